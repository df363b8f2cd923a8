"""Settings: Kafka's types and ranges, errors that name the allowed values, warnings for unknown settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.metadata.config import (
    TOPIC_CONFIGS,
    BrokerConfig,
    ConfigError,
    ConfigSource,
    deletion_policy_problem,
    read_properties,
    topic_defaults,
    topic_synonyms,
    validate_topic_config,
)


def problems_of(**settings: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.from_properties({name.replace("_", "."): value for name, value in settings.items()})
    return caught.value.problems


def test_defaults_are_kafkas() -> None:
    config = BrokerConfig.from_properties({"broker.id": "0"})
    assert config.get_int("log.segment.bytes") == 1 << 30
    assert config.get_int("replica.lag.time.max.ms") == 30_000
    assert config.get_int("offsets.topic.num.partitions") == 50
    assert config.get_optional_int("log.retention.ms") is None
    assert [str(listener) for listener in config.listeners] == ["PLAINTEXT://:9092"]


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("broker_id", "one", "whole number"),
        ("num_partitions", "0", "at least 1"),
        ("log_segment_bytes", "13", "at least 14"),
        ("compression_type", "brotli", "one of uncompressed, zstd"),
        ("delete_topic_enable", "yes", "true or false"),
        ("message_max_bytes", "2147483648", "between -2147483648 and 2147483647"),
        ("log_cleaner_min_cleanable_ratio", "1.5", "between 0 and 1"),
    ],
)
def test_an_invalid_setting_is_refused_with_name_value_and_allowed_values(
    name: str, value: str, allowed: str
) -> None:
    (problem,) = problems_of(**{name: value})
    assert problem.startswith(f"{name.replace('_', '.')}={value}: ")
    assert allowed in problem


def test_all_problems_are_reported_at_once() -> None:
    assert len(problems_of(num_partitions="0", broker_id="x", log_dir="/tmp/x", message_max_bytes="-1")) == 3


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"authorizer.class.name": "org.example.Mine"}, "not supported"),
        ({"listeners": "PLAINTEXT://:1,SASL_SSL://:2"}, "GSSAPI is not served"),
        (
            {"listeners": "SASL_SSL://:1", "security.inter.broker.protocol": "SASL_SSL"}
            | {"sasl.enabled.mechanisms": "PLAIN"},
            "must be included in sasl.enabled.mechanisms",
        ),
        (
            {"listeners": "PLAINTEXT://:1,SASL_SSL://:2", "sasl.enabled.mechanisms": "PLAIN"}
            | {"listener.name.sasl_ssl.plain.sasl.server.callback.handler.class": "com.example.Own"},
            "com.example.Own",
        ),
        ({"listeners": "PLAINTEXT://:1,SSL://:2", "ssl.engine.factory.class": "com.example.Own"}, "Own"),
        ({"listener.name.ssl.ssl.client.auth": "maybe"}, "must be one of required, requested, none"),
        ({"process.roles": "broker,controller"}, "KRaft is not supported"),
    ],
)
def test_unsupported_settings_that_are_unsafe_to_ignore_are_refused(
    settings: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        BrokerConfig.from_properties(settings)


def test_an_unknown_setting_causes_a_warning_with_the_nearest_name() -> None:
    config = BrokerConfig.from_properties({"num.partition": "3"})
    assert config.warnings == ["unknown setting num.partition is ignored (did you mean num.partitions?)"]
    assert config.get_int("num.partitions") == 1


def test_a_kafka_setting_without_effect_has_its_own_warning() -> None:
    (warning,) = BrokerConfig.from_properties({"num.io.threads": "8"}).warnings
    assert "no effect in Ottla" in warning


@pytest.mark.parametrize(
    "listeners",
    ["9092", "PLAINTEXT://host", "PLAINTEXT://host:70000", "NAMELESS://h:1", "PLAINTEXT://0.0.0.0:1"],
)
def test_invalid_listeners_are_refused(listeners: str) -> None:
    assert problems_of(listeners=listeners)


@pytest.mark.parametrize(
    "connect",
    [":::", "a:b", "a:0", "a:65536", "a:1,", "a b:1", "http://a:1", "a:1//x", "[::1:2181"],
)
def test_an_invalid_zookeeper_address_is_refused(connect: str) -> None:
    assert problems_of(zookeeper_connect=connect) == [
        f"zookeeper.connect={connect}: must be HOST:PORT[,HOST:PORT…][/chroot]"
    ]


@pytest.mark.parametrize("connect", ["a:1", "a", "10.0.0.1:2181, b.c:65535/kafka/one", "[::1]:2181/x", ""])
def test_zookeeper_addresses_are_parsed(connect: str) -> None:
    assert BrokerConfig.from_properties({"zookeeper.connect": connect}).get_optional_str(
        "zookeeper.connect"
    ) in (connect, None)


def test_a_log_dir_named_twice_is_refused() -> None:
    assert problems_of(log_dirs="/a,/b, /a") == ["log.dirs=/a,/b, /a: /a is named 2 times"]


def test_listeners_with_names_of_their_own() -> None:
    config = BrokerConfig.from_properties(
        {
            "listeners": "INTERNAL://:9092, EXTERNAL://0.0.0.0:9093",
            "advertised.listeners": "INTERNAL://b0:9092,EXTERNAL://node:30000",
            "listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT",
            "inter.broker.listener.name": "INTERNAL",
        }
    )
    assert [(listener.name, listener.port) for listener in config.listeners] == [
        ("INTERNAL", 9092),
        ("EXTERNAL", 9093),
    ]
    assert config.advertised_listeners[1].host == "node"


@pytest.mark.parametrize(
    ("settings", "retention_ms"),
    [
        ({}, "604800000"),
        ({"log.retention.hours": "2"}, "7200000"),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, "180000"),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, "4"),
        ({"log.retention.hours": "-1"}, "-1"),
    ],
)
def test_a_topics_default_comes_from_the_most_specific_broker_setting(
    settings: dict[str, str], retention_ms: str
) -> None:
    assert topic_defaults(BrokerConfig.from_properties(settings))["retention.ms"] == retention_ms


def test_every_topic_setting_has_a_default_that_it_allows() -> None:
    for name, value in topic_defaults(BrokerConfig.from_properties({})).items():
        assert validate_topic_config(name, value) is None
    assert set(topic_defaults(BrokerConfig.from_properties({}))) == set(TOPIC_CONFIGS.keys)


def test_a_topic_has_the_brokers_deletion_policies_or_its_own() -> None:
    setting, classes = "ottla.deletion.policies", "ottla.log.deletion.policy.classes"
    config = BrokerConfig.from_properties({classes: "a:B", "ottla.log.deletion.policies": "a:B"})
    assert topic_defaults(config)[setting] == "a:B"
    assert [tuple(s) for s in topic_synonyms(config, setting)] == [
        ("ottla.log.deletion.policies", "a:B", ConfigSource.STATIC_BROKER),
        ("ottla.log.deletion.policies", "size,time", ConfigSource.DEFAULT),
    ]
    assert deletion_policy_problem(config, {setting: "time,a:B"}) is None
    assert deletion_policy_problem(config, {}) is None
    assert deletion_policy_problem(BrokerConfig.from_properties({}), {setting: "time,a:B"}) == (
        f"Invalid value time,a:B for configuration {setting}: unknown policy a:B; {classes} allows size, time"
    )
    assert validate_topic_config(setting, "a:B,size") is None
    assert validate_topic_config(setting, "not a name") is not None


def test_a_misspelt_topic_setting_is_refused_with_the_nearest_name() -> None:
    assert validate_topic_config("retention.m", "1") == (
        "Unknown topic config name: retention.m (did you mean retention.ms?)"
    )


def test_javas_properties_format_is_read(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "# a comment\n! another\nbroker.id = 3\nlog.dirs: /a,\\\n   /b\nempty=\n\nlisteners=PLAINTEXT://h:1\n"
    )
    assert read_properties(file) == {
        "broker.id": "3",
        "log.dirs": "/a,/b",
        "empty": "",
        "listeners": "PLAINTEXT://h:1",
    }


def test_a_missing_properties_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_properties(tmp_path / "none")

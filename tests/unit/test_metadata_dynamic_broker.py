"""Which settings of a broker may change while it runs, and what counts when several places name one."""

from __future__ import annotations

import pytest

from ottla.metadata.config import BROKER_CONFIGS, BrokerConfig, ConfigSource
from ottla.metadata.dynamic_broker import DynamicBrokerConfig, Refused
from ottla.metadata.stored_passwords import NoSecret


def settings_of(**given: str) -> tuple[DynamicBrokerConfig, list[frozenset[str]]]:
    properties = {name.replace("_", "."): value for name, value in given.items()}
    settings = DynamicBrokerConfig(BrokerConfig.from_properties({"broker.id": "3", **properties}))
    told: list[frozenset[str]] = []
    settings.on_change.append(told.append)
    return settings, told


def test_layers_count_from_the_brokers_own_to_the_default() -> None:
    settings, told = settings_of(log_segment_bytes="100")
    config = settings.config
    settings.heard("<default>", {"log.segment.bytes": "200"})
    assert config.get_int("log.segment.bytes") == 200
    settings.heard("3", {"log.segment.bytes": "300"})
    assert config.get_int("log.segment.bytes") == 300
    assert [(s.text, s.source) for s in config.synonyms("log.segment.bytes")] == [
        ("300", ConfigSource.DYNAMIC_BROKER),
        ("200", ConfigSource.DYNAMIC_CLUSTER),
        ("100", ConfigSource.STATIC_BROKER),
        ("1073741824", ConfigSource.DEFAULT),
    ]
    settings.heard("<default>", {})
    assert config.get_int("log.segment.bytes") == 300
    settings.heard("3", {})
    assert config.get_int("log.segment.bytes") == 100
    assert told == [frozenset({"log.segment.bytes"})] * 3, "nobody is told of what changes nothing"


def test_another_brokers_settings_are_not_ours() -> None:
    settings, told = settings_of()
    settings.heard("4", {"log.segment.bytes": "200"})
    assert told == []
    assert settings.config.get_int("log.segment.bytes") == 1 << 30


def test_a_dynamic_time_in_milliseconds_hides_one_given_in_hours() -> None:
    settings, _ = settings_of(log_retention_hours="2")
    settings.heard("3", {"log.retention.ms": "5"})
    assert settings.config.get_int("log.retention.ms") == 5
    assert settings.config.get_int("log.retention.hours") == 168, "as Kafka describes it"
    settings.heard("3", {})
    assert settings.config.get_int("log.retention.hours") == 2


@pytest.mark.parametrize(
    ("new", "says"),
    [
        ({"num.partitions": "2", "broker.rack": "r"}, r"dynamically: Set\(broker.rack, num.partitions\)"),
        ({"listeners": "PLAINTEXT://:1"}, "dynamically"),
        ({"ssl.keystore.location": "/x"}, "dynamically updated only per-listener"),
        ({"listener.name.ssl.sasl.enabled.mechanisms": "PLAIN"}, "dynamically"),
        ({"ssl.client.auth": "required"}, "dynamically"),
        ({"listener.name.internal.max.connections": "0"}, "Invalid max.connections 0"),
        ({"log.segment.bytes": "x"}, "Invalid value x for configuration log.segment.bytes: Not a number"),
        ({"log.segment.bytes": "1"}, "Value must be at least 14"),
        ({"leader.replication.throttled.rate": "-1"}, "Value must be at least 0"),
        ({"log.retention.ms": "0"}, "log.retention.ms=0: must be -1, or at least 1"),
        ({"num.io.threads": "17"}, "not be greater than double the current value 8"),
        ({"num.network.threads": "0"}, "Value must be at least 1"),
        ({"log.cleaner.threads": "0"}, "at least 1"),
        ({"num.replica.fetchers": "-1"}, "at least 1"),
    ],
)
@pytest.mark.parametrize("per_broker", [True, False])
def test_what_is_refused(new: dict[str, str], says: str, per_broker: bool) -> None:
    settings, _ = settings_of()
    with pytest.raises(Refused, match=says):
        settings.check(new, per_broker=per_broker)


def test_threads_are_halved_or_doubled_at_most_from_what_they_are_now() -> None:
    settings, _ = settings_of(num_io_threads="8")
    settings.check({"num.io.threads": "16"}, per_broker=True)
    settings.heard("3", {"num.io.threads": "16"})
    settings.check({"num.io.threads": "32"}, per_broker=True)
    settings.check({}, per_broker=True)
    settings.heard("3", {"num.io.threads": "32"})
    with pytest.raises(Refused, match="at least half the current value 32"):
        settings.check({}, per_broker=True)


def test_names_that_nobody_knows_may_be_stored() -> None:
    settings, told = settings_of()
    settings.check({"some.plugin": "x"}, per_broker=False)
    settings.heard("<default>", {"some.plugin": "x"})
    assert settings.config.of_cluster == {"some.plugin": "x"}
    assert told == []


PASSWORD = "listener.name.ssl.ssl.keystore.password"


def test_passwords_are_stored_encrypted_and_read_back() -> None:
    settings, _ = settings_of(password_encoder_secret="one")
    stored = settings.to_store({PASSWORD: "geheim", "log.retention.ms": "5"})
    assert stored["log.retention.ms"] == "5"
    assert "geheim" not in stored[PASSWORD]
    settings.heard("3", stored)
    assert settings.config.security("SSL").get("ssl.keystore.password") == "geheim"


def test_without_a_secret_no_password_is_stored_nor_read() -> None:
    stored = settings_of(password_encoder_secret="one")[0].to_store({PASSWORD: "geheim"})
    for given in ({}, {"password_encoder_secret": "another"}):
        settings, _ = settings_of(**given)
        settings.heard("3", {**stored, "log.retention.ms": "5"})
        assert settings.config.of_broker == {"log.retention.ms": "5"}
    with pytest.raises(NoSecret):
        settings_of()[0].to_store({PASSWORD: "geheim"})
    assert settings_of()[0].to_store({"log.retention.ms": "5"}) == {"log.retention.ms": "5"}


def test_the_old_secret_is_for_what_the_present_one_does_not_open() -> None:
    stored = settings_of(password_encoder_secret="one")[0].to_store({PASSWORD: "geheim", "x": "y"})
    settings, _ = settings_of(password_encoder_secret="two", password_encoder_old_secret="one")
    anew = settings.with_present_secret(stored)
    assert anew["x"] == "y"
    assert settings.usable(anew)[PASSWORD] == "geheim"
    assert settings.with_present_secret(anew) == anew
    assert settings_of(password_encoder_secret="one")[0].with_present_secret(stored) == stored


def test_of_what_is_stored_only_the_valid_and_dynamic_counts() -> None:
    settings, _ = settings_of()
    stored = {"log.segment.bytes": "x", "num.partitions": "2", "log.retention.ms": "5", "remote.x": "y"}
    assert settings.usable(stored) == {"log.retention.ms": "5"}


def test_stored_settings_that_contradict_each_other_change_nothing() -> None:
    settings, told = settings_of()
    settings.heard("3", {"log.retention.ms": "0", "log.segment.bytes": "100"})
    assert settings.config.get_int("log.segment.bytes") == 1 << 30
    assert told == []


def test_one_that_cannot_follow_does_not_keep_others_from_it() -> None:
    settings, told = settings_of()

    def fail(names: frozenset[str]) -> None:
        raise OSError("no")

    settings.on_change.insert(0, fail)
    settings.heard("3", {"log.segment.bytes": "100"})
    assert told == [frozenset({"log.segment.bytes"})]


def test_every_dynamic_setting_says_so() -> None:
    dynamic = {name for name, key in BROKER_CONFIGS.keys.items() if key.dynamic}
    assert {"log.retention.ms", "message.max.bytes", "unclean.leader.election.enable"} < dynamic
    assert not {"log.retention.hours", "num.partitions", "listeners"} & dynamic

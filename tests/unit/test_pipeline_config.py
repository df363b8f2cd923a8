"""The jobs' configuration files: what is allowed, what is said of the rest, and what clients are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla_pipeline.config.common import ConfigError, JobConfig, KafkaConfig, TopicsConfig, load, validate

GOOD: dict[str, Any] = {"name": "orders", "kafka": {"bootstrap": "a:9092,b:9092"}, "checkpoint": "cp"}


class Sourced(JobConfig):
    source: TopicsConfig


def test_defaults_are_filled_in() -> None:
    config = validate(GOOD, JobConfig, "job.yaml")
    assert config.consumer_group == "ottla-job-orders"
    assert config.trigger.write_options() == {"processingTime": "10 seconds"}
    assert config.kafka.java() == {"bootstrap.servers": "a:9092,b:9092"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"kafka": {"bootstrap": "nowhere"}},
            "kafka.bootstrap: must be HOST:PORT[,HOST:PORT…], not 'nowhere'",
        ),
        (
            {"kafka": {"bootstap": "a:1"}},  # codespell:ignore bootstap
            "kafka.bootstap: unknown key; known are bootstrap, sasl, tls",  # codespell:ignore bootstap
        ),
        ({"kafka": {}}, "kafka.bootstrap: is missing"),
        ({"max_offsets_per_trigger": 5}, "max_offsets_per_trigger: unknown key; known are name, kafka"),
        ({"maxOffsetsPerTrigger": 0}, "maxOffsetsPerTrigger: Input should be greater than or equal to 1"),
        ({"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger: must be a whole number"),
        (
            {"trigger": {"interval": "soon"}},
            "trigger.interval: must be a number and a unit, like '10 seconds'",
        ),
        (
            {"source": {"topics": ["a"], "topicPattern": "b"}},
            "source: give topics or topicPattern, one of the two",
        ),
        ({"source": {}}, "source: give topics or topicPattern, one of the two"),
        ({"source": {"topicPattern": "("}}, "source.topicPattern: is no regular expression"),
        ({"source": {"topics": ["a b"]}}, "source.topics.0: String should match pattern"),
        (
            {"kafka": {"bootstrap": "a:1", "sasl": {"mechanism": "PLAIN", "username": "u"}}},
            "kafka.sasl: give password or passwordFile, one of the two",
        ),
        (
            {"kafka": {"bootstrap": "a:1", "tls": {"certificate": "c.pem"}}},
            "kafka.tls: certificate and key go together",
        ),
    ],
)
def test_a_mistake_is_told_with_its_path(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=r"job\.yaml: ") as raised:
        validate({"source": {"topics": ["t"]}, **GOOD, **changed}, Sourced, "job.yaml")
    assert f"job.yaml: {said}" in str(raised.value)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        validate({**GOOD, "name": "", "checkpoint": 5, "x": 1}, JobConfig, "job.yaml")
    assert len(str(raised.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "not YAML"),
        ("- a", "must hold a mapping"),
        (None, "No such file"),
        ("", "must hold a mapping"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "job.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load(file, JobConfig)


def test_security_is_said_to_each_client_in_its_words(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key", "password"):
        (tmp_path / name).write_text(f"{name} of PEM\n")
    config = validate(
        {
            "bootstrap": "a:1",
            "sasl": {
                "mechanism": "SCRAM-SHA-512",
                "username": 'a"b',
                "passwordFile": str(tmp_path / "password"),
            },
            "tls": {
                "ca": str(tmp_path / "ca"),
                "certificate": str(tmp_path / "cert"),
                "key": str(tmp_path / "key"),
            },
            "options": {"fetch.max.bytes": 5, "check.crcs": True},
        },
        KafkaConfig,
        "kafka",
    )
    assert config.java() == {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required"
        ' username="a\\"b" password="password of PEM";',
        "ssl.endpoint.identification.algorithm": "https",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "ca of PEM\n",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "cert of PEM\n",
        "ssl.keystore.key": "key of PEM\n",
        "fetch.max.bytes": "5",
        "check.crcs": "true",
    }
    assert config.spark_options()["kafka.fetch.max.bytes"] == "5"
    assert config.librdkafka() == {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": 'a"b',
        "sasl.password": "password of PEM",
        "ssl.ca.location": str(tmp_path / "ca"),
        "ssl.certificate.location": str(tmp_path / "cert"),
        "ssl.key.location": str(tmp_path / "key"),
        "ssl.endpoint.identification.algorithm": "https",
    }


def test_a_pattern_is_one_of_the_whole_name() -> None:
    source = TopicsConfig(topic_pattern="orders|payments")
    assert source.subscription() == {"subscribePattern": "^(?:orders|payments)$"}

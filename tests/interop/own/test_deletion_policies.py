"""Deletion policies under `ottla up`: chosen by a Topic resource, CreateTopics and AlterConfigs.

One broker with the policy of docs/explanation/storage.md and one that fails. librdkafka's and Apache Kafka's
clients set the topics' settings.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from bench.apache_kafka import run_tool
from tests.judges.up_session import UpSession
from tests.oracles import needs_kafka_jars
from tests.selection import ROOT

DOCS = ROOT / "docs/explanation/storage.md"
BUSINESS, BROKEN = "company_policies:BusinessDays", "company_policies:Broken"
SETTING = "ottla.deletion.policies"
DAY_MS = 24 * 60 * 60 * 1000
pytestmark = pytest.mark.timeout(420)

MORE_POLICIES = """
class Broken:
    def deletable(self, log):
        raise RuntimeError("this policy is broken")
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpSession]:
    directory = tmp_path_factory.mktemp("policies")
    (code,) = re.findall(r"```python\n(.+?)```", DOCS.read_text(), re.DOTALL)
    (directory / "company_policies.py").write_text(code + MORE_POLICIES)
    session = UpSession(directory)
    settings = {
        "ottla.log.deletion.policy.classes": f"{BUSINESS},{BROKEN}",
        "log.retention.check.interval.ms": 300,
        "log.segment.delete.delay.ms": 100,
    }
    session.write("BrokerCluster", "demo", {"replicas": 1, "config": settings})
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(directory))
        with session:
            session.wait_ready()
            yield session


def write_topic(up: UpSession, name: str, **config: Any) -> None:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    spec = {"clusterRef": {"name": "demo"}, "partitions": 1, "replicas": 1, "config": settings}
    up.write("Topic", name, spec)


def fill(up: UpSession, topic: str) -> None:
    """Ten segments of records that are 30 days old, and one of new records."""
    now_ms = int(time.time() * 1000)
    producer = Producer({"bootstrap.servers": up.bootstrap, "batch.size": 2000})
    for age_ms in (*[30 * DAY_MS] * 100, *[0] * 3):
        producer.produce(topic, b"x" * 1000, timestamp=now_ms - age_ms)
        producer.flush(60)


def segments(up: UpSession, topic: str) -> list[int]:
    folders = list((up.data / "brokers").glob(f"*/**/{topic}-0"))
    assert len(folders) == 1, folders
    return sorted(int(path.stem) for path in folders[0].glob("*.log"))


def broker_log(up: UpSession) -> str:
    return "".join(path.read_text() for path in (up.data / "brokers").glob("*/*.log"))


def refusal(up: UpSession, policies: str, topic: str | None) -> KafkaError:
    """The error of the settings in AlterConfigs, or in CreateTopics for a new topic."""
    admin = AdminClient({"bootstrap.servers": up.bootstrap})
    if topic is None:
        new = NewTopic("refused", num_partitions=1, replication_factor=1, config={SETTING: policies})
        (future,) = admin.create_topics([new]).values()
    else:
        entry = ConfigEntry(SETTING, policies, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        (future,) = admin.incremental_alter_configs([resource]).values()
    with pytest.raises(KafkaException) as refused:
        future.result(60)
    error: KafkaError = refused.value.args[0]
    return error


def test_a_topic_resource_chooses_policies_and_a_failing_policy_stops_no_other(up: UpSession) -> None:
    small = {"segment_bytes": 10_000, "retention_ms": 5 * DAY_MS}
    write_topic(up, "kept", **small, ottla_deletion_policies=BROKEN)
    write_topic(up, "trimmed", **small, ottla_deletion_policies=f"{BROKEN},{BUSINESS}")
    for topic in ("kept", "trimmed"):
        up.wait_until(lambda topic=topic: up.topic(topic) is not None, f"topic {topic}")  # type: ignore[misc]
        fill(up, topic)
    up.wait_until(lambda: segments(up, "trimmed")[0] > 80, "the old segments to be deleted")
    assert segments(up, "trimmed")[-1] >= 90
    assert segments(up, "kept")[0] == 0, "its only policy names nothing"
    up.wait_until(lambda: f"deletion policy {BROKEN} failed on kept-0" in broker_log(up), "the error")
    assert "this policy is broken" in broker_log(up)


def test_kafka_configs_sets_and_describes_policies(up: UpSession) -> None:
    needs_kafka_jars()
    new = NewTopic("manual", num_partitions=1, replication_factor=1, config={SETTING: BUSINESS})
    admin = AdminClient({"bootstrap.servers": up.bootstrap})
    admin.create_topics([new])["manual"].result(60)
    up.wait_until(lambda: up.topic("manual") is not None, "the topic")
    entity = ["--bootstrap-server", up.bootstrap, "--entity-type", "topics", "--entity-name", "manual"]
    tool = "kafka.admin.ConfigCommand"
    assert f"{SETTING}={BUSINESS} " in run_tool(tool, [*entity, "--describe"]).stdout
    done = run_tool(tool, [*entity, "--alter", "--add-config", f"{SETTING}=[size,{BROKEN}]"])
    assert done.returncode == 0, done.stdout + done.stderr
    shown = run_tool(tool, [*entity, "--describe"]).stdout
    own, default = f"DYNAMIC_TOPIC_CONFIG:{SETTING}=size,{BROKEN}", "ottla.log.deletion.policies=size,time"
    assert f"{SETTING}=size,{BROKEN} sensitive=false synonyms={{{own}, DEFAULT_CONFIG:{default}}}" in shown


def test_an_unknown_policy_is_refused(up: UpSession) -> None:
    write_topic(up, "orders")
    up.wait_until(lambda: up.condition("Topic/orders")[0] == "True", "the topic")
    for topic in (None, "orders"):
        error = refusal(up, "size,os:abort", topic)
        assert error.code() == KafkaError.INVALID_CONFIG
        assert error.str() == (
            f"Invalid value size,os:abort for configuration {SETTING}: unknown policy os:abort; "
            f"ottla.log.deletion.policy.classes allows size, time, {BUSINESS}, {BROKEN}"
        )
        assert refusal(up, "size,,time", topic).code() == KafkaError.INVALID_CONFIG
    write_topic(up, "orders", ottla_deletion_policies="weekly")
    up.wait_until(
        lambda: "unknown policy weekly" in str(up.resource("Topic/orders")),
        "the resource to say so",
    )
    write_topic(up, "orders", ottla_deletion_policies=f"time,{BUSINESS}")
    up.wait_until(lambda: up.condition("Topic/orders")[0] == "True", "the topic to be as wanted")

"""The condition Complete of a Topic under `ottla up`: real brokers, a real audit job, audited clients.

All tests share one run: each start of Spark takes seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.local.zookeeper import JavaUnusable, find_java
from ottla_pipeline.auditing.confluent import AuditedProducer
from ottla_pipeline.auditing.ottla_consumer import BlockingAuditedConsumer
from ottla_pipeline.auditing.reporting import AuditOptions
from tests.judges.up_session import UpSession

pytestmark = pytest.mark.timeout(900)
OPTIONS = AuditOptions(window_s=1.0, interval_s=0.5)
KEY = "Topic/orders"
CLUSTER = {"clusterRef": {"name": "demo"}}


def audit(*, suspend: bool = False) -> dict[str, Any]:
    return {
        **CLUSTER,
        "job": "audit",
        "storage": {"size": "1Gi"},
        "suspend": suspend,
        "config": {
            "topics": {"topics": ["orders"]},
            "window": "1 second",
            "trigger": {"interval": "500 milliseconds"},
            "tiers": [
                {"name": "brokers", "grace": "1 second"},
                {"name": "billing", "application": "billing", "grace": "1 second"},
            ],
            "spark": {"settings": {"spark.sql.shuffle.partitions": "1"}},
        },
    }


def produce(session: UpSession, records: int) -> None:
    with AuditedProducer({"bootstrap.servers": session.bootstrap}, audit=OPTIONS) as producer:
        for number in range(records):
            producer.produce("orders", b"v%d" % number)


def consume(session: UpSession, records: int) -> None:
    """As the application billing."""
    given = {"bootstrap.servers": session.bootstrap, "group.id": "billing", "auto.offset.reset": "earliest"}
    with BlockingAuditedConsumer(given, audit=OPTIONS) as consumer:
        consumer.subscribe(["orders"])
        for _ in range(records):
            consumer.getone()


def reported(session: UpSession) -> dict[str, Any]:
    resource = session.resource(KEY)
    assert resource is not None
    found: dict[str, Any] = resource["status"].get("audit") or {}
    return found


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, quick_spark: None) -> Iterator[UpSession]:
    """The application billing lacks 10 of 500 records, and an audit runs."""
    try:
        find_java()
    except JavaUnusable as error:
        pytest.skip(str(error))
    with UpSession(tmp_path_factory.mktemp("up")) as running:
        offsets = {"offsets.topic.num.partitions": 1, "offsets.topic.replication.factor": 1}
        running.write("BrokerCluster", "demo", {"replicas": 1, "config": offsets})
        for name in ("orders", "ottla.audit"):
            running.write("Topic", name, {**CLUSTER, "partitions": 2, "replicas": 1})
        running.wait_ready()
        assert running.condition(KEY, "Complete") == ("", "", "")
        produce(running, 500)
        consume(running, 490)
        running.write("Pipeline", "audit", audit())
        yield running
        assert running.stop() == 0


def test_missing_records_are_in_the_status_of_the_topic(session: UpSession) -> None:
    session.wait_until(lambda: session.condition(KEY, "Complete")[:2] == ("False", "Missing"), "Missing", 240)
    assert session.condition(KEY, "Complete")[2].startswith("10 records are missing in ")
    session.wait_line(rf"{KEY} Complete=False Missing")
    found = reported(session)
    assert (found["pipeline"], found["missing"], found["duplicated"]) == ("audit", 10, 0)
    assert {window["tier"] for window in found["windows"]} == {"billing"}
    assert sum(window["missing"] for window in found["windows"]) == 10


def test_a_topic_is_complete_once_every_record_was_processed(session: UpSession) -> None:
    consume(session, 10)
    until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    session.wait_until(
        lambda: session.condition(KEY, "Complete")[:2] == ("True", "Complete"), "Complete", 240
    )
    session.wait_until(lambda: reported(session)["completeUntil"] >= until, f"complete until {until}")
    assert reported(session)["missing"] == 0
    assert "windows" not in reported(session) or reported(session)["windows"] == []


def test_the_last_result_stays_until_the_audit_is_deleted(session: UpSession) -> None:
    session.wait_until(lambda: "completeUntil" in reported(session), "a result", 240)
    until = reported(session)["completeUntil"]
    session.write("Pipeline", "audit", audit(suspend=True))
    session.wait_until(
        lambda: session.condition(KEY, "Complete")[:2] == ("Unknown", "AuditNotRunning"), "Unknown"
    )
    assert reported(session)["completeUntil"] >= until
    session.remove("Pipeline", "audit")
    session.wait_until(lambda: session.condition(KEY, "Complete") == ("", "", ""), "no audit")
    assert reported(session) == {}

"""A Pipeline under `ottla up`: real brokers, real Spark, one driver that is stopped, changed and killed.

One scenario, because each start of Spark takes seconds. pyarrow, which reads the lake's files, is the oracle.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow.dataset as ds
import pytest
from confluent_kafka import Producer

from ottla.client.admin import AdminClient
from ottla.local.cluster import run_admin
from ottla.local.zookeeper import JavaUnusable, find_java
from tests.judges.up_session import UpSession

pytestmark = pytest.mark.timeout(900)
TOPIC, GROUP = "orders", "ottla-lake-orders"
CONFIG: dict[str, Any] = {
    "source": {"topics": [TOPIC]},
    "format": {"type": "json", "fields": "id STRING, event_time TIMESTAMP"},
    "event": {"id": "id", "time": "event_time"},
    "trigger": {"interval": "500 milliseconds"},
    "sink": {"type": "parquet", "path": "lake"},
    "spark": {"settings": {"spark.sql.shuffle.partitions": "1"}},
}
KEY = "Pipeline/orders"


def spec(*, suspend: bool = False, **config: Any) -> dict[str, Any]:
    return {
        "clusterRef": {"name": "demo"},
        "job": "lake",
        "storage": {"size": "1Gi"},
        "suspend": suspend,
        "config": {**CONFIG, **config},
    }


def produce(session: UpSession, first: int, count: int) -> set[str]:
    producer = Producer({"bootstrap.servers": session.bootstrap, "linger.ms": 5})
    ids = {f"order-{number}" for number in range(first, first + count)}
    for id_ in ids:
        producer.produce(TOPIC, json.dumps({"id": id_, "event_time": "2026-01-02T03:04:05Z"}), id_)
    assert producer.flush(30) == 0
    return ids


def landed(session: UpSession) -> list[str]:
    """The ids in the lake, as often as they are there."""
    lake = session.data / "pipelines" / "orders" / "data" / "lake"
    if not lake.exists():
        return []
    found: list[str] = ds.dataset(lake, format="parquet").to_table(columns=["id"])["id"].to_pylist()
    return found


def published(session: UpSession) -> int:
    """Offsets that the job has published, all partitions together."""

    async def ask(client: AdminClient) -> int:
        offsets = await client.group_offsets(GROUP)
        return sum(offsets.values())

    return run_admin([("127.0.0.1", session.port)], ask)


def driver_pid(session: UpSession) -> int:
    status = session.resource(KEY)
    assert status is not None
    return int(status["status"]["driver"].removeprefix("process "))


def wait_landed(session: UpSession, ids: set[str]) -> None:
    session.wait_until(lambda: len(landed(session)) >= len(ids), f"{len(ids)} records in the lake", 240)
    assert sorted(landed(session)) == sorted(ids)


@pytest.mark.budget(60)  # five starts of a driver
def test_a_pipeline_runs_is_rejected_upgraded_suspended_and_continues_after_a_kill(
    tmp_path: Path, quick_spark: None
) -> None:
    try:
        find_java()
    except JavaUnusable as error:
        pytest.skip(str(error))
    began = time.monotonic()
    with UpSession(tmp_path) as session:
        offsets = {"offsets.topic.num.partitions": 1, "offsets.topic.replication.factor": 1}
        session.write("BrokerCluster", "demo", {"replicas": 1, "config": offsets})
        session.write("Topic", TOPIC, {"clusterRef": {"name": "demo"}, "partitions": 2, "replicas": 1})
        # The job says what is wrong with its configuration, and the resource where.
        session.write("Pipeline", "orders", spec(source={"topics": TOPIC}))
        session.wait_until(
            lambda: session.condition(KEY, "Failing")[:2] == ("True", "InvalidConfig"), "InvalidConfig"
        )
        assert session.condition(KEY, "Failing")[2].startswith("spec.config.source.topics: ")
        assert session.condition(KEY)[:2] == ("False", "InvalidConfig")

        ids = produce(session, 0, 500)
        session.write("Pipeline", "orders", spec())
        session.wait_ready()
        session.wait_until(lambda: session.condition(KEY, "CaughtUp")[0] == "True", "CaughtUp", 240)
        assert session.condition(KEY, "Running")[0] == "True"
        assert session.condition(KEY, "Failing")[0] == "False"
        wait_landed(session, ids)
        resource = session.resource(KEY)
        assert resource is not None
        status = resource["status"]
        assert status["applicationId"].startswith("local-")
        assert status["lag"] == 0
        assert status["lastBatch"]["durationMs"] > 0
        session.wait_until(lambda: published(session) == 500, "the group's offsets")

        # Suspended it reads nothing; resumed it goes on from its checkpoint.
        before = driver_pid(session)
        session.write("Pipeline", "orders", spec(suspend=True))
        session.wait_until(lambda: session.condition(KEY)[:2] == ("True", "Suspended"), "Suspended")
        assert not psutil.pid_exists(before)
        ids |= produce(session, 500, 300)
        # Another configuration in the same breath: resumed, it is that one's.
        session.write("Pipeline", "orders", spec(maxOffsetsPerTrigger=200))
        wait_landed(session, ids)

        # Killed, it comes back, and lands each record once.
        session.wait_until(lambda: session.condition(KEY)[:2] == ("True", "Running"), "Running")
        ids |= produce(session, 800, 300)
        os.kill(driver_pid(session), signal.SIGKILL)
        session.wait_line(rf"{KEY} Failing=True DriverFailed .*signal 9")
        wait_landed(session, ids)
        session.wait_until(lambda: session.condition(KEY, "Failing")[0] == "False", "it fails no more")

        last = driver_pid(session)
        assert session.stop() == 0
        assert not psutil.pid_exists(last)
    print(f"{time.monotonic() - began:.0f} s")

"""A Pipeline under `ottla up`: real brokers, real Spark, one driver that is stopped, changed and killed.

All tests share one run, and each goes on with the records that are there. pyarrow, which reads the lake's
files, is the oracle.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
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


@dataclass
class Orders:
    """The run, and the ids of all orders that were produced."""

    session: UpSession
    ids: set[str] = field(default_factory=set)

    def produce(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.session.bootstrap, "linger.ms": 5})
        ids = {f"order-{number}" for number in range(len(self.ids), len(self.ids) + count)}
        for id_ in ids:
            producer.produce(TOPIC, json.dumps({"id": id_, "event_time": "2026-01-02T03:04:05Z"}), id_)
        assert producer.flush(30) == 0
        self.ids |= ids

    def wait_landed(self) -> None:
        """Each order once."""
        session, count = self.session, len(self.ids)
        session.wait_until(lambda: len(landed(session)) >= count, f"{count} records in the lake", 240)
        assert sorted(landed(session)) == sorted(self.ids)

    def run(self) -> None:
        """The pipeline, if it does not run yet."""
        if self.session.condition(KEY)[:2] != ("True", "Running"):
            self.session.write("Pipeline", "orders", spec())
            self.wait_condition("Ready", "True", "Running")

    def wait_condition(self, type_: str, *wanted: str, key: str = KEY) -> None:
        self.session.wait_until(
            lambda: self.session.condition(key, type_)[: len(wanted)] == wanted, f"{type_} {wanted}", 240
        )


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory, quick_spark: None) -> Iterator[Orders]:
    try:
        find_java()
    except JavaUnusable as error:
        pytest.skip(str(error))
    with UpSession(tmp_path_factory.mktemp("up")) as session:
        offsets = {"offsets.topic.num.partitions": 1, "offsets.topic.replication.factor": 1}
        session.write("BrokerCluster", "demo", {"replicas": 1, "config": offsets})
        session.write("Topic", TOPIC, {"clusterRef": {"name": "demo"}, "partitions": 2, "replicas": 1})
        session.wait_ready()
        session.wait_until(lambda: session.topic(TOPIC) is not None, "the topic")
        yield Orders(session)


def test_a_configuration_that_the_job_refuses_is_in_the_status(orders: Orders) -> None:
    """The job says what is wrong with its configuration, and the resource where."""
    session, key = orders.session, "Pipeline/refused"
    session.write("Pipeline", "refused", spec(source={"topics": TOPIC}))
    orders.wait_condition("Failing", "True", "InvalidConfig", key=key)
    assert session.condition(key, "Failing")[2].startswith("spec.config.source.topics: ")
    assert session.condition(key)[:2] == ("False", "InvalidConfig")
    session.remove("Pipeline", "refused")
    session.wait_until(lambda: session.resource(key) is None, "the pipeline to be gone")


def test_a_pipeline_lands_each_record_and_reports_its_progress(orders: Orders) -> None:
    session = orders.session
    orders.produce(500)
    orders.run()
    orders.wait_condition("CaughtUp", "True")
    orders.wait_condition("Running", "True")
    assert session.condition(KEY, "Failing")[0] == "False"
    orders.wait_landed()
    resource = session.resource(KEY)
    assert resource is not None
    status = resource["status"]
    assert status["applicationId"].startswith("local-")
    assert status["lag"] == 0
    assert status["lastBatch"]["durationMs"] > 0
    session.wait_until(lambda: published(session) == len(orders.ids), "the group's offsets")


def test_a_suspended_pipeline_reads_nothing_and_resumes_with_another_configuration(orders: Orders) -> None:
    session = orders.session
    orders.run()
    before = driver_pid(session)
    session.write("Pipeline", "orders", spec(suspend=True))
    orders.wait_condition("Ready", "True", "Suspended")
    assert not psutil.pid_exists(before)
    orders.produce(300)
    # Another configuration in the same breath: resumed, it is that one's.
    session.write("Pipeline", "orders", spec(maxOffsetsPerTrigger=200))
    orders.wait_landed()
    orders.wait_condition("Ready", "True", "Running")


def test_a_killed_driver_comes_back_and_lands_each_record_once(orders: Orders) -> None:
    session = orders.session
    orders.run()
    orders.produce(300)
    os.kill(driver_pid(session), signal.SIGKILL)
    session.wait_line(rf"{KEY} Failing=True DriverFailed .*signal 9")
    orders.wait_landed()
    orders.wait_condition("Failing", "False")


def test_the_driver_ends_with_the_run(orders: Orders) -> None:
    """The last test of the module: it stops the run."""
    orders.run()
    last = driver_pid(orders.session)
    assert orders.session.stop() == 0
    assert not psutil.pid_exists(last)

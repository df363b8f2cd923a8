"""A job of a user's own under `ottla up`: the Pipeline of docs/guides/pipeline/streams.md as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from ottla.local.zookeeper import JavaUnusable, find_java
from tests.judges.python_jobs import produce, read_committed
from tests.judges.up_session import UpSession
from tests.selection import ROOT

pytestmark = pytest.mark.timeout(600)
PAGE = ROOT / "docs/guides/pipeline/streams.md"
KEY = "Pipeline/totals"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, quick_spark: None) -> Iterator[UpSession]:
    """With the topics of the page."""
    try:
        find_java()
    except JavaUnusable as error:
        pytest.skip(str(error))
    with UpSession(tmp_path_factory.mktemp("up")) as running:
        config = {"offsets.topic.num.partitions": 1, "offsets.topic.replication.factor": 1}
        config |= {"transaction.state.log.num.partitions": 1, "transaction.state.log.replication.factor": 1}
        config |= {"transaction.state.log.min.isr": 1}
        running.write("BrokerCluster", "demo", {"replicas": 1, "config": config})
        topic = {"clusterRef": {"name": "demo"}, "partitions": 1, "replicas": 1}
        for name in ("orders", "totals"):
            running.write("Topic", name, topic)
        running.write("Topic", "customers", {**topic, "config": {"cleanup.policy": "compact"}})
        running.wait_ready()
        names = ("orders", "totals", "customers")
        running.wait_until(lambda: all(running.topic(name) is not None for name in names), "the topics")
        yield running
        assert running.stop() == 0


@pytest.fixture
def spec() -> dict[str, Any]:
    """The page's Pipeline, with quick batches."""
    block = re.search(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert block is not None
    found: dict[str, Any] = yaml.safe_load(block[1])["spec"]
    found["config"] |= {"trigger": {"interval": "200 milliseconds"}}
    found["config"]["spark"] = {"settings": {"spark.sql.shuffle.partitions": "1"}}
    return found


def test_a_function_that_the_source_lacks_is_named_in_the_status(
    session: UpSession, spec: dict[str, Any]
) -> None:
    session.write("Pipeline", "wrong", {**spec, "config": {**spec["config"], "function": "total"}})

    def failing() -> tuple[str, str, str]:
        return session.condition("Pipeline/wrong", "Failing")

    session.wait_until(lambda: failing()[0] == "True", "it to fail", 240)
    assert "source has no function total" in failing()[2]
    session.remove("Pipeline", "wrong")


def test_the_function_in_the_resource_runs(session: UpSession, spec: dict[str, Any]) -> None:
    produce(session.bootstrap, "customers", [("ann", {"country": "NO"})])
    orders = [
        ("o1", "ann", 10.0, 10),
        ("o2", "bob", 5.0, 10),
        ("o1", "ann", 10.0, 10),
        ("o3", "ann", 1.0, 20),
    ]
    produce(
        session.bootstrap,
        "orders",
        [
            (None, {"id": id_, "customer": who, "amount": amount, "ordered_at": f"2024-01-05T{hour}:00:00Z"})
            for id_, who, amount, hour in orders
        ],
    )
    session.write("Pipeline", "totals", spec)

    def totals() -> list[tuple[str | None, str | None, int, float]]:
        rows = read_committed(session.bootstrap, "totals")
        found = [(key, row["country"], row["orders"], row["amount"]) for key, row in rows]
        return sorted(found, key=str)

    session.wait_until(lambda: len(totals()) >= 2, "two totals", 240)
    assert totals() == [("NO", "NO", 1, 10.0), (None, None, 1, 5.0)]
    session.wait_until(lambda: session.condition(KEY)[:2] == ("True", "Running"), "it to run")

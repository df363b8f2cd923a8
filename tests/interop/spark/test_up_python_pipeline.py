"""A job of a user's own under `ottla up`: the Pipeline of docs/pipeline-streams.md as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ottla.local.zookeeper import JavaUnusable, find_java
from tests.judges.python_jobs import produce, read_committed
from tests.judges.up_session import UpSession
from tests.selection import ROOT

pytestmark = pytest.mark.timeout(600)
PAGE = ROOT / "docs" / "pipeline-streams.md"
KEY = "Pipeline/totals"


@pytest.mark.budget(40)  # two starts of a driver
def test_a_function_in_the_resource_runs_and_its_errors_are_in_the_status(
    tmp_path: Path, quick_spark: None
) -> None:
    try:
        find_java()
    except JavaUnusable as error:
        pytest.skip(str(error))
    block = re.search(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert block is not None
    spec = yaml.safe_load(block[1])["spec"]
    spec["config"] |= {"trigger": {"interval": "200 milliseconds"}}
    spec["config"]["spark"] = {"settings": {"spark.sql.shuffle.partitions": "1"}}
    with UpSession(tmp_path) as session:
        config = {"offsets.topic.num.partitions": 1, "offsets.topic.replication.factor": 1}
        config |= {"transaction.state.log.num.partitions": 1, "transaction.state.log.replication.factor": 1}
        config |= {"transaction.state.log.min.isr": 1}
        session.write("BrokerCluster", "demo", {"replicas": 1, "config": config})
        for topic in ("orders", "totals"):
            session.write("Topic", topic, {"clusterRef": {"name": "demo"}, "partitions": 1, "replicas": 1})
        compacted = {"cleanup.policy": "compact"}
        session.write(
            "Topic",
            "customers",
            {"clusterRef": {"name": "demo"}, "partitions": 1, "replicas": 1, "config": compacted},
        )
        wrong = {**spec, "config": {**spec["config"], "function": "total"}}
        session.write("Pipeline", "totals", wrong)
        session.wait_until(
            lambda: (
                session.condition(KEY, "Failing")[0] == "True"
                and "source has no function total" in session.condition(KEY, "Failing")[2]
            ),
            "the missing function is named",
            240,
        )
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
                (
                    None,
                    {"id": id_, "customer": who, "amount": amount, "ordered_at": f"2024-01-05T{hour}:00:00Z"},
                )
                for id_, who, amount, hour in orders
            ],
        )
        session.write("Pipeline", "totals", spec)
        session.wait_ready()

        def totals() -> list[tuple[str | None, str | None, int, float]]:
            rows = read_committed(session.bootstrap, "totals")
            found = [(key, row["country"], row["orders"], row["amount"]) for key, row in rows]
            return sorted(found, key=str)

        session.wait_until(lambda: len(totals()) >= 2, "two totals", 240)
        assert totals() == [("NO", "NO", 1, 10.0), (None, None, 1, 5.0)]
        assert session.condition(KEY)[:2] == ("True", "Running")
        assert session.stop() == 0

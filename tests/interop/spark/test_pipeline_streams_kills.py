"""A job of a user's own as a process, killed again and again at random moments: what it wrote is what plain
Python makes of the same records.

OTTLA_KILLS says how often it is killed (twice if it is not set), OTTLA_SEED with which seed.
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from ottla.local.processes import wait_until
from ottla_pipeline.config.common import validate
from ottla_pipeline.jobs import python
from ottla_pipeline.running import JobContext, await_queries
from tests.judges.lake_line import SMALL
from tests.judges.python_jobs import PythonJob, create_topics, in_any_order, produce, read_committed

pytestmark = pytest.mark.timeout(900)
KILLS = int(os.environ.get("OTTLA_KILLS", "2"))
SEED = int(os.environ.get("OTTLA_SEED", "1"))
RECORDS = 3_000
REPEATED = 200
BASE = datetime(2024, 1, 5, tzinfo=UTC)
WAIT_S = 240.0
SPARK = (python.SESSION, SMALL)
SOURCE = """
from pyspark.sql import functions as sf
from ottla_pipeline import streams

def sums(job):
    sold = job.read_topic("kills.sold", "id INT, item STRING, at TIMESTAMP", time="at")
    sold = streams.deduplicate(sold, ["id"], time="at", lateness="2 hours")
    prices = job.topic_table("kills.prices", "price INT", key="item")
    priced = streams.join_table(sold, prices, on=["item"], how="leftOuter")
    rows = priced.select("id", "item", "price")
    job.write(rows, job.topic_sink("kills.priced", key=["item"]), query="priced")
    totals = {"sold": sf.count("*"), "sum": sf.sum("price")}
    by_minute = streams.tumbling(priced, "1 minute", totals, time="at", by=["item"])
    by_minute = by_minute.select(sf.unix_seconds("window_start").alias("start"), "item", "sold", "sum")
    delta = streams.DeltaSink(job.spark, job.options["delta"])
    job.write(by_minute, delta, job.topic_sink("kills.sums"), query="sums")
"""


@dataclass
class Killed:
    """Topics of a job of which one driver after the other is killed; the last test writes the rest."""

    bootstrap: str
    folder: Path
    chance: random.Random
    prices: dict[str, int]
    sold: list[dict[str, Any]]
    """The records by id, of which some are produced twice."""
    halves: tuple[list[dict[str, Any]], list[dict[str, Any]]]
    produced: int = 0

    @property
    def delta(self) -> Path:
        return self.folder / "delta"

    def produce_half(self) -> None:
        """The next one, if there is one."""
        if self.produced < len(self.halves):
            produce(self.bootstrap, "kills.sold", [(None, row) for row in self.halves[self.produced]])
            self.produced += 1

    def start(self) -> PythonJob:
        return PythonJob(
            self.folder / "kills",
            self.bootstrap,
            SOURCE,
            "sums",
            options={"delta": str(self.delta)},
            spark={"settings": SMALL},
            trigger={"interval": "1 millisecond"},
            maxOffsetsPerTrigger=50,
        )

    def written(self) -> list[int]:
        return [row["id"] for _, row in read_committed(self.bootstrap, "kills.priced")]


@pytest.fixture(scope="module")
def killed(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    chance = random.Random(SEED)
    create_topics(bootstrap, ["kills.sold", "kills.priced", "kills.sums"], partitions=2)
    create_topics(bootstrap, ["kills.prices"], **{"cleanup.policy": "compact"})
    prices = {f"i{number}": number for number in range(8)}
    produce(bootstrap, "kills.prices", [(item, {"price": price}) for item, price in prices.items()])
    items = [*prices, "without a price", None]
    sold = [
        {"id": number, "item": chance.choice(items), "at": _instant(chance.randrange(3_600))}
        for number in range(RECORDS)
    ]
    repeated = [*sold, *chance.sample(sold, REPEATED)]
    chance.shuffle(repeated)
    halves = repeated[: RECORDS // 2], repeated[RECORDS // 2 :]
    made = Killed(bootstrap, tmp_path_factory.mktemp("kills"), chance, prices, sold, halves)
    made.produce_half()
    return made


@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_driver_has_written_no_row_twice(killed: Killed, number: int) -> None:
    before = len(killed.written())
    with killed.start() as process:
        grows = wait_until(
            lambda: len(killed.written()) > before or not process.running, timeout_s=WAIT_S, poll_s=0.2
        )
        assert grows, process.said[-5000:]
        assert process.running, process.said[-5000:]
        killed.produce_half()  # meanwhile
        time.sleep(killed.chance.uniform(0.0, 2.0))  # a kill at any moment
    ids = killed.written()
    assert len(set(ids)) == len(ids), f"doubled after kill {number}, seed {SEED}"
    assert len(ids) < RECORDS, "it was killed too late to be of use"


def test_the_driver_after_killed_ones_writes_each_row_once(killed: Killed, spark: SparkSession) -> None:
    bootstrap, sold, prices = killed.bootstrap, killed.sold, killed.prices
    while killed.produced < len(killed.halves):
        killed.produce_half()
    end = [{"id": -1 - n, "item": "end", "at": _instant(10 * 3_600)} for n in range(2)]
    produce(bootstrap, "kills.sold", [(None, row) for row in end])
    raw = {
        "name": "kills",
        "kafka": {"bootstrap": bootstrap},
        "checkpoint": str(killed.folder / "kills" / "checkpoint"),
        "source": SOURCE,
        "function": "sums",
        "options": {"delta": str(killed.delta)},
        "trigger": {"availableNow": True},
    }
    context = JobContext(spark, print)
    with context.at_end:
        assert await_queries(python.start(context, validate(raw, python.PythonConfig, "kills")), Event())

    written = read_committed(bootstrap, "kills.priced")
    assert all(key == row["item"] for key, row in written)
    expected = [
        {"id": row["id"], "item": row["item"], "price": prices.get(row["item"])} for row in [*sold, *end]
    ]
    assert in_any_order([row for _, row in written]) == in_any_order(expected)
    windows: dict[tuple[int, str | None], list[int | None]] = defaultdict(list)
    for row in sold:
        seconds = round(datetime.fromisoformat(row["at"]).timestamp())
        windows[seconds - seconds % 60, row["item"]].append(prices.get(row["item"]))
    model = in_any_order(
        [
            {
                "start": start,
                "item": item,
                "sold": len(found),
                "sum": None if found[0] is None else sum(price for price in found if price is not None),
            }
            for (start, item), found in windows.items()
        ]
    )
    assert in_any_order([row for _, row in read_committed(bootstrap, "kills.sums")]) == model
    assert in_any_order(DeltaTable(str(killed.delta)).to_pyarrow_table().to_pylist()) == model


def _instant(second: int) -> str:
    return (BASE + timedelta(seconds=second)).isoformat()

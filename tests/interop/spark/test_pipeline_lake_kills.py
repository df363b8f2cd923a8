"""The lake job's process, killed again and again at random moments; what landed is what was produced.

OTTLA_KILLS says how often each sink's job is killed (twice if it is not set), OTTLA_SEED with which seed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ottla.local.processes import wait_until
from ottla_pipeline.jobs import lake, lake_compact
from ottla_pipeline.running import JobContext
from tests.judges.lake_line import SMALL, Line, create_topics

pytestmark = pytest.mark.timeout(900)
KILLS = int(os.environ.get("OTTLA_KILLS", "2"))
SEED = int(os.environ.get("OTTLA_SEED", "1"))
EVENTS = 6_000
BAD = 40
WAIT_S = 240.0
SPARK = (lake.SESSION, SMALL)


class Job:
    """A job of the command in a process group of its own: Python and the JVM die at the same moment."""

    def __init__(self, job: str, config: Path, log: Path, *arguments: str) -> None:
        self._log = log
        self._file = log.open("a")
        command = [sys.executable, "-m", "ottla_pipeline.command", job, "--config", str(config), *arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._file, text=True, start_new_session=True
        )

    def first_line(self) -> str:
        """Waits for it: then batches are under way."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self._log.read_text()[-3000:]
        return line

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(WAIT_S)
        self.close()

    def close(self) -> None:
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._file.close()


@dataclass
class Killed:
    """A lake of which one driver after the other is killed; the last test writes the rest."""

    line: Line
    chance: random.Random
    log: Path

    def kill_one(self, meanwhile: Callable[[], None]) -> None:
        """At any moment after `meanwhile`, which begins with the first batch."""
        job = Job("lake", self.line.folder / "lake.yaml", self.log)
        try:
            job.first_line()
            meanwhile()
            time.sleep(self.chance.uniform(0.0, 2.0))  # a kill at any moment
        finally:
            job.kill()

    def kill_a_compaction(self) -> None:
        """Beside the job; it dies as well."""
        staged = self.line.folder / "lake" / "_staging"
        compaction = Job("lake-compact", self.line.folder / "lake.yaml", self.log)
        try:
            began = wait_until(lambda: any(staged.glob("compaction-*")), timeout_s=WAIT_S)
            assert began, self.log.read_text()[-3000:]
            time.sleep(self.chance.uniform(0.0, 1.0))  # a kill at any moment
        finally:
            compaction.kill()


@pytest.fixture(scope="module", params=["parquet", "delta"])
def killed(
    request: pytest.FixtureRequest, bootstrap: str, tmp_path_factory: pytest.TempPathFactory
) -> Killed:
    folder = tmp_path_factory.mktemp(request.param)
    line = Line(bootstrap, (f"kills-{request.param}.a", f"kills-{request.param}.b"), folder, request.param)
    create_topics(bootstrap, line.topics)
    line.produce(range(EVENTS // 2))
    line.send(line.topics[0], [f"bad {number}".encode() for number in range(BAD)])
    line.write_config(
        maxOffsetsPerTrigger=40,
        trigger={"interval": "1 millisecond"},
        spark={"settings": SMALL},
        compaction={"minFiles": 2},
    )
    return Killed(line, random.Random(SEED), folder / "log")


@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_driver_has_written_no_record_twice(killed: Killed, number: int) -> None:
    line = killed.line

    def meanwhile() -> None:
        if number == 0:
            line.produce(range(EVENTS // 2, EVENTS))  # the topics are written to meanwhile
        elif number == 1 and line.sink == "parquet":
            killed.kill_a_compaction()

    killed.kill_one(meanwhile)
    seen = line.ids()
    assert len(set(seen)) == len(seen), f"doubled after kill {number}, seed {SEED}"
    assert len(seen) < EVENTS, "it was killed too late to be of use"


def test_the_driver_after_killed_ones_writes_the_rest_once(killed: Killed, spark: SparkSession) -> None:
    line = killed.line
    line.land(spark, maxOffsetsPerTrigger=3_000)
    line.complete()
    assert sorted(row["value"] for row in line.dead()) == sorted(f"bad {n}".encode() for n in range(BAD))
    said: list[str] = []
    assert lake_compact.run(JobContext(spark, said.append), line.config(compaction={"minFiles": 2})) == 0
    assert "became" in said[0]
    line.complete()

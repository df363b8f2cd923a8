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


@pytest.mark.parametrize("sink", ["parquet", "delta"])
@pytest.mark.budget(60)  # each kill costs a start of Spark
def test_each_record_is_written_once_whenever_the_driver_is_killed(
    bootstrap: str, tmp_path: Path, spark: SparkSession, sink: str
) -> None:
    chance = random.Random(SEED)
    line = Line(bootstrap, (f"kills-{sink}.a", f"kills-{sink}.b"), tmp_path, sink)
    create_topics(bootstrap, line.topics)
    line.produce(range(EVENTS // 2))
    line.send(line.topics[0], [f"bad {number}".encode() for number in range(BAD)])
    config = line.write_config(
        maxOffsetsPerTrigger=40,
        trigger={"interval": "1 millisecond"},
        spark={"settings": SMALL},
        compaction={"minFiles": 2},
    )
    log, staged = tmp_path / "log", tmp_path / "lake" / "_staging"
    for number in range(KILLS):
        job = Job("lake", config, log)
        try:
            job.first_line()
            if number == 0:
                line.produce(range(EVENTS // 2, EVENTS))  # the topics are written to meanwhile
            elif number == 1 and sink == "parquet":
                compaction = Job("lake-compact", config, log)  # beside the job; it dies as well
                try:
                    began = wait_until(lambda: any(staged.glob("compaction-*")), timeout_s=WAIT_S)
                    assert began, log.read_text()[-3000:]
                    time.sleep(chance.uniform(0.0, 1.0))  # a kill at any moment
                finally:
                    compaction.kill()
            time.sleep(chance.uniform(0.0, 2.0))  # a kill at any moment
        finally:
            job.kill()
        seen = line.ids()
        assert len(set(seen)) == len(seen), f"doubled after kill {number}, seed {SEED}"
    assert len(line.ids()) < EVENTS, "it was killed too late to be of use"
    line.land(spark, maxOffsetsPerTrigger=3_000)
    line.complete()
    assert sorted(row["value"] for row in line.dead()) == sorted(f"bad {n}".encode() for n in range(BAD))
    said: list[str] = []
    assert lake_compact.run(JobContext(spark, said.append), line.config(compaction={"minFiles": 2})) == 0
    assert "became" in said[0]
    line.complete()

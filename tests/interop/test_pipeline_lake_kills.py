"""The lake job's process, killed again and again at random moments; what landed is what was produced.

OTTLA_KILLS says how often each sink's job is killed (3 times if it is not set), OTTLA_SEED with which seed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla_pipeline.spark import JavaMissing, check_java
from tests.interop.lake_line import Line, create_topics
from tests.interop.one_broker import one_broker

pytestmark = pytest.mark.timeout(900)
KILLS = int(os.environ.get("OTTLA_KILLS", "3"))
SEED = int(os.environ.get("OTTLA_SEED", "1"))
EVENTS = 4_000
BAD = 40
WAIT_S = 240.0


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        check_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    with one_broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap


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

    def finish(self) -> str:
        said, _ = self.process.communicate(timeout=WAIT_S)
        self.close()
        assert self.process.returncode == 0, self._log.read_text()[-3000:]
        return said

    def close(self) -> None:
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._file.close()


@pytest.mark.parametrize("sink", ["parquet", "delta"])
def test_what_was_produced_landed_once_whenever_the_driver_was_killed(
    bootstrap: str, tmp_path: Path, sink: str
) -> None:
    chance = random.Random(SEED)
    line = Line(bootstrap, (f"kills-{sink}.a", f"kills-{sink}.b"), tmp_path, sink)
    create_topics(bootstrap, line.topics)
    line.produce(range(EVENTS))
    line.send(line.topics[0], [f"bad {number}".encode() for number in range(BAD)])
    settings = {"spark.databricks.delta.snapshotPartitions": "2", "spark.sql.shuffle.partitions": "2"}
    config = line.write_config(
        maxOffsetsPerTrigger=60,
        trigger={"interval": "1 millisecond"},
        spark={"settings": settings},
        compaction={"minFiles": 2},
    )
    log = tmp_path / "log"
    for number in range(KILLS):
        job = Job("lake", config, log)
        try:
            job.first_line()
            if number == KILLS - 1:  # the last time, a compaction runs beside it, and dies as well
                other = Job("lake-compact", config, log)
                time.sleep(chance.uniform(3.0, 9.0))
                other.kill()
            time.sleep(chance.uniform(0.0, 2.0))
        finally:
            job.kill()
        seen = line.ids()
        assert len(set(seen)) == len(seen), f"doubled after kill {number}, seed {SEED}"
    assert len(line.ids()) < EVENTS, "it was killed too late to be of use"
    line.write_config(maxOffsetsPerTrigger=2_000, spark={"settings": settings}, compaction={"minFiles": 2})
    Job("lake", config, log, "--available-now").finish()
    line.complete()
    assert sorted(row["value"] for row in line.dead()) == sorted(f"bad {n}".encode() for n in range(BAD))
    assert "became" in Job("lake-compact", config, log).finish()
    line.complete()

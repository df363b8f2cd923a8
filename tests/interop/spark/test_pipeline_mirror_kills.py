"""`ottla-pipeline mirror` killed at random moments, its source written to: each record once, in order.

OTTLA_KILLS says how often; twice if it is not set.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.local.processes import wait_until
from ottla_pipeline.spark import JavaMissing, check_java
from tests.judges.mirror_clusters import create, read, two_clusters, values

pytestmark = pytest.mark.timeout(900)
KILLS = int(os.environ.get("OTTLA_KILLS", "2"))
SEED = 8
TOPIC = "orders"
THERE = f"east.{TOPIC}"


class Source(threading.Thread):
    """Writes to both partitions in transactions until it is told to stop; some of them are aborted."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._brokers = bootstrap
        self.done = threading.Event()
        self.committed: list[str] = []

    def run(self) -> None:
        chance, number = random.Random(SEED), 0
        producer = Producer({"bootstrap.servers": self._brokers, "transactional.id": "source"})
        producer.init_transactions(60)
        while not self.done.is_set():
            producer.begin_transaction()
            texts = []
            for _ in range(chance.randrange(1, 300)):
                headers = [("n", str(number).encode()), ("n", None)] if number % 7 == 0 else None
                producer.produce(
                    TOPIC,
                    f"v{number}".encode(),
                    chance.choice([None, b"k", str(number).encode()]),
                    chance.randrange(2),
                    timestamp=1_400_000_000_000 + chance.randrange(10**9),
                    headers=headers,
                )
                texts.append(f"v{number}")
                number += 1
            if chance.random() < 0.1:
                producer.flush(60)
                producer.abort_transaction(60)
            else:
                producer.commit_transaction(60)
                self.committed += texts
            self.done.wait(0.3)

    def end(self) -> None:
        self.done.set()
        self.join(60)


class Mirror:
    """The job's process. Killed, it leaves Java and Spark's Python workers to notice by themselves."""

    def __init__(self, config: Path, log: Path, *arguments: str) -> None:
        self.log = log
        self._output = log.open("w")
        command = [sys.executable, "-m", "ottla_pipeline.command", "mirror", "--config", str(config)]
        self.process = subprocess.Popen(
            [*command, *arguments], stdout=self._output, stderr=subprocess.STDOUT, start_new_session=True
        )

    def end(self) -> None:
        """Everything that it started, too: they are a process group of their own."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._output.close()


def ends(bootstrap: str) -> int:
    """How much the target holds, markers and open transactions included."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
    try:
        topic = reader.list_topics(timeout=30).topics.get(THERE)
        partitions = topic.partitions if topic is not None else ()
        return sum(reader.get_watermark_offsets(TopicPartition(THERE, p), timeout=30)[1] for p in partitions)
    finally:
        reader.close()


@dataclass
class Killed:
    """Two clusters, of which the first is written to until the last test; one mirror after the other is
    killed."""

    east: str
    west: str
    source: Source
    folder: Path
    chance: random.Random
    running: ExitStack
    mirrors: int = 0

    def start(self, *arguments: str, **changes: Any) -> Mirror:
        """The job, until the last test ends: what a killed one started lives on for a while."""
        config = self.folder / "mirror.yaml"
        body: dict[str, Any] = {
            "name": "kills",
            "source": {"alias": "east", "bootstrap": self.east},
            "target": {"alias": "west", "bootstrap": self.west},
            "topicPattern": ".*",
            "checkpoint": str(self.folder / "checkpoint"),
            "trigger": {"interval": "100 milliseconds"},
            "maxOffsetsPerTrigger": 3000,
            "transaction": {"maxRecords": 100},
        }
        config.write_text(json.dumps(body | changes))
        self.mirrors += 1
        mirror = Mirror(config, self.folder / f"mirror-{self.mirrors}.log", *arguments)
        self.running.callback(mirror.end)
        return mirror


@pytest.fixture(scope="module")
def killed(quick_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    try:
        check_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    folder = tmp_path_factory.mktemp("kills")
    with two_clusters(folder) as (east, west), ExitStack() as running:
        create(east, TOPIC)
        source = Source(east)
        running.callback(source.end)
        source.start()
        yield Killed(east, west, source, folder, random.Random(SEED), running)


@pytest.mark.parametrize("number", range(KILLS))
def test_a_mirror_goes_on_after_those_that_were_killed(killed: Killed, number: int) -> None:
    held = ends(killed.west)
    mirror = killed.start()
    moved = wait_until(lambda: mirror.process.poll() is not None or ends(killed.west) > held, timeout_s=240)
    assert moved, "it mirrors"
    assert mirror.process.poll() is None, mirror.log.read_text()
    time.sleep(killed.chance.uniform(0, 1.5))  # a kill at any moment
    mirror.process.kill()  # not the group: what it started lives on for a while
    mirror.process.wait()


def test_mirrors_killed_at_random_moments_write_each_record_once(killed: Killed) -> None:
    killed.source.end()
    # What has piled up meanwhile, in few batches.
    last = killed.start("--available-now", maxOffsetsPerTrigger=50_000, transaction={})
    assert last.process.wait(400) == 0, last.log.read_text()
    there = read(killed.west, THERE)
    assert there == read(killed.east, TOPIC), "keys, values, headers, timestamps, partitions and order"
    assert values(there) == sorted(killed.source.committed)

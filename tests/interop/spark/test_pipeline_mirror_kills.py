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
from contextlib import suppress
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


@pytest.fixture
def clusters(quick_spark: None, tmp_path: Path) -> Iterator[tuple[str, str]]:
    try:
        check_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    with two_clusters(tmp_path) as bootstraps:
        yield bootstraps


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


class Mirror:
    """The job's process. Killed, it leaves Java and Spark's Python workers to notice by themselves."""

    def __init__(self, config: Path, log: Path, *arguments: str) -> None:
        self._log = log.open("w")
        command = [sys.executable, "-m", "ottla_pipeline.command", "mirror", "--config", str(config)]
        self.process = subprocess.Popen(
            [*command, *arguments], stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
        )

    def end(self) -> None:
        """Everything that it started, too: they are a process group of their own."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()


def ends(bootstrap: str) -> int:
    """How much the target holds, markers and open transactions included."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
    try:
        partitions = reader.list_topics(THERE, timeout=30).topics[THERE].partitions
        return sum(reader.get_watermark_offsets(TopicPartition(THERE, p), timeout=30)[1] for p in partitions)
    finally:
        reader.close()


@pytest.mark.budget(60)  # each kill costs a start of Spark
def test_a_mirror_killed_at_random_moments_writes_each_record_once(
    clusters: tuple[str, str], tmp_path: Path
) -> None:
    east, west = clusters
    create(east, TOPIC)
    config = tmp_path / "mirror.yaml"
    body: dict[str, Any] = {
        "name": "kills",
        "source": {"alias": "east", "bootstrap": east},
        "target": {"alias": "west", "bootstrap": west},
        "topicPattern": ".*",
        "checkpoint": str(tmp_path / "checkpoint"),
        "trigger": {"interval": "100 milliseconds"},
        "maxOffsetsPerTrigger": 3000,
        "transaction": {"maxRecords": 100},
    }
    config.write_text(json.dumps(body))
    chance, source = random.Random(SEED), Source(east)
    mirrors: list[Mirror] = []
    held = 0
    source.start()
    try:
        for number in range(KILLS):
            mirror = Mirror(config, tmp_path / f"mirror-{number}.log")
            mirrors.append(mirror)
            moved = wait_until(
                lambda: mirror.process.poll() is not None or ends(west) > held,  # noqa: B023
                timeout_s=240,
            )
            assert moved, "it mirrors"
            assert mirror.process.poll() is None, (tmp_path / f"mirror-{number}.log").read_text()
            time.sleep(chance.uniform(0, 1.5))  # a kill at any moment
            mirror.process.kill()  # not the group: what it started lives on for a while
            mirror.process.wait()
            held = ends(west)
        source.done.set()
        source.join(60)
        # What has piled up meanwhile, in few batches.
        config.write_text(json.dumps({**body, "maxOffsetsPerTrigger": 50_000, "transaction": {}}))
        last = Mirror(config, tmp_path / "mirror-last.log", "--available-now")
        mirrors.append(last)
        assert last.process.wait(400) == 0, (tmp_path / "mirror-last.log").read_text()
    finally:
        source.done.set()
        source.join(60)
        for mirror in mirrors:
            mirror.end()
    there = read(west, THERE)
    assert there == read(east, TOPIC), "keys, values, headers, timestamps, partitions and order"
    assert values(there) == sorted(source.committed)

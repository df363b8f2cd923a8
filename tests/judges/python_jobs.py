"""`ottla-pipeline python` as a process, and its topics: helpers of the tests of streams in Python."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

WAIT_S = 240.0


def create_topics(bootstrap: str, names: Iterable[str], *, partitions: int = 1, **config: str) -> None:
    topics = [NewTopic(name, partitions, 1, config=config) for name in names]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics(topics).values():
        future.result(90)


def produce(bootstrap: str, topic: str, records: Iterable[tuple[str | None, Any]]) -> None:
    """Produces keys, and values as JSON; None is a tombstone."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
    for key, value in records:
        producer.produce(topic, None if value is None else json.dumps(value), key)
    assert producer.flush(60) == 0


def read_committed(bootstrap: str, topic: str) -> list[tuple[str | None, Any]]:
    """Keys and values of all committed records of a topic."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True}
    reader = Consumer({**settings, "isolation.level": "read_committed", "auto.offset.reset": "earliest"})
    try:
        partitions = reader.list_topics(topic, 30).topics[topic].partitions
        reader.assign([TopicPartition(topic, number, 0) for number in partitions])
        found: list[tuple[str | None, Any]] = []
        ended = 0
        while ended < len(partitions):
            message = reader.poll(30)
            assert message is not None, f"{topic} has no end"
            if message.error() is not None:
                ended += 1
                continue
            key, value = message.key(), message.value()
            assert value is not None
            found.append((None if key is None else key.decode(), json.loads(value)))
        return found
    finally:
        reader.close()


class PythonJob:
    """The command in a process group of its own, so that a kill ends Python and the JVM at the same
    moment."""

    def __init__(self, folder: Path, bootstrap: str, source: str, function: str, **config: Any) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "job.yaml"
        raw = {
            "name": folder.name,
            "kafka": {"bootstrap": bootstrap},
            "checkpoint": str(folder / "checkpoint"),
            "source": source,
            "function": function,
            **config,
        }
        file.write_text(json.dumps(raw))
        self._log = folder / "log"
        command = [sys.executable, "-m", "ottla_pipeline.command", "python", "--config", str(file)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, start_new_session=True
            )

    def __enter__(self) -> PythonJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def said(self) -> str:
        return self._log.read_text()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def finish(self) -> str:
        """Waits for a successful end; returns the output."""
        assert self.process.wait(WAIT_S) == 0, self.said[-5000:]
        return self.said

    def kill(self) -> None:
        if self.running:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(WAIT_S)
        if self.process.stdin is not None:
            self.process.stdin.close()


def in_any_order(rows: Sequence[Any]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)

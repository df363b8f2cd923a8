"""A consumer group of two processes, and the ids that it has read.

Called by `demo.run`. A group delivers at least once: after a change of its coordinator or of a leader, a
member may read uncommitted records again. So the group must read every id; repeated ids are counted
separately and are no error. A member commits records only after it has sent their ids to the parent process.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event as Flag
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

MEMBERS = 2
STALLED_S = 120.0
JOIN_S = 120.0
LEAVE_S = 15.0


def settings(bootstrap: str, group: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.offset.store": False,
        "auto.commit.interval.ms": 1000,
        "session.timeout.ms": 10_000,
        "heartbeat.interval.ms": 1_000,
        "log_level": 2,
    }


def member(bootstrap: str, group: str, topics: Sequence[str], out: Connection, stop: Flag) -> None:
    """One member, in a process: sends lists of ids to `out` until `stop` is set, then leaves the group.

    After each assignment it sends the number of its partitions.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and sets `stop`
    consumer = Consumer(settings(bootstrap, group))
    consumer.subscribe(list(topics), on_assign=lambda _, partitions: out.send(len(partitions)))
    try:
        while not stop.is_set():
            ids: list[str] = []
            ends: dict[tuple[str, int], int] = {}
            for message in consumer.consume(num_messages=2_000, timeout=0.2):
                if message.error() is None:
                    ids.append(json.loads(message.value() or b"{}").get("id", ""))
                    ends[str(message.topic()), int(message.partition() or 0)] = int(message.offset() or 0) + 1
            if ids:
                out.send(ids)
                store(consumer, ends)
    except BrokenPipeError:
        pass  # the parent process has ended
    finally:
        consumer.close()
        out.close()


def store(consumer: Consumer, ends: dict[tuple[str, int], int]) -> None:
    """Store offsets for the next commit, unless the partition was revoked."""
    for (topic, partition), end in ends.items():
        try:
            consumer.store_offsets(offsets=[TopicPartition(topic, partition, end)])
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:
                raise


class Readers:
    """The processes of the group, in the parent process. A context manager that stops them."""

    def __init__(self, bootstrap: str, group: str, topics: Sequence[str]) -> None:
        self.ids: set[str] = set()
        self.read = 0
        self._lock = threading.Lock()
        self._joined: set[int] = set()
        self._last_received_s = time.monotonic()
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self._members: list[BaseProcess] = []
        self._threads: list[threading.Thread] = []
        for number in range(MEMBERS):
            receiving, sending = context.Pipe(duplex=False)
            arguments = (bootstrap, group, tuple(topics), sending, self._stop)
            process = context.Process(target=member, args=arguments, name=f"reader-{number}", daemon=True)
            process.start()
            sending.close()  # the child has a copy; this one would keep the pipe open after the child's end
            thread = threading.Thread(target=self._gather, args=(number, receiving), daemon=True)
            thread.start()
            self._members.append(process)
            self._threads.append(thread)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _gather(self, number: int, pipe: Connection) -> None:
        while True:
            try:
                received: int | list[str] = pipe.recv()
            except (EOFError, OSError):
                return
            with self._lock:
                if isinstance(received, int):
                    self._joined.add(number)
                    continue
                ids = received
                self.read += len(ids)
                self.ids.update(ids)
                self._last_received_s = time.monotonic()

    @property
    def unique(self) -> int:
        with self._lock:
            return len(self.ids)

    @property
    def read_again(self) -> int:
        """The number of events that were read again."""
        with self._lock:
            return self.read - len(self.ids)

    def wait_joined(self) -> bool:
        """Wait until each member has partitions; False after JOIN_S."""
        deadline_s = time.monotonic() + JOIN_S
        while len(self._joined) < MEMBERS and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return len(self._joined) == MEMBERS

    def wait_for(self, count: int, progress: Callable[[int], None]) -> bool:
        """Wait for `count` unique ids; False without progress for STALLED_S, or without a running member."""
        self._last_received_s = time.monotonic()
        while self.unique < count:
            progress(self.unique)
            alive = any(process.is_alive() for process in self._members)
            if not alive or time.monotonic() - self._last_received_s > STALLED_S:
                return self.unique >= count
            time.sleep(0.1)
        progress(self.unique)
        return True

    def close(self) -> None:
        """Stop the members: they leave the group and end."""
        self._stop.set()
        for process in self._members:
            process.join(LEAVE_S)
            if process.is_alive():
                process.kill()
                process.join()
        for thread in self._threads:
            thread.join(LEAVE_S)

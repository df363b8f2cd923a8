"""Members of a consumer group that record what they read and which commits were confirmed.

Called by the tests of migration. Each member is a librdkafka consumer in a thread of its own.
"""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaException, TopicPartition


class Member:
    """A consumer that commits after every poll that returned records."""

    def __init__(self, bootstrap: str, topic: str, group: str, name: str) -> None:
        self.name = name
        self.seen: set[tuple[int, int]] = set()
        """(partition, offset)."""
        self.committed: dict[int, int] = {}
        """partition -> the highest offset whose commit was acknowledged."""
        self.failures: list[str] = []
        self._uncommitted: dict[int, int] = {}
        self._asked = False
        """A commit is under way: of two, the older could be tried again after the newer."""
        self._stopping = threading.Event()
        self._topic = topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "client.id": name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
                "reconnect.backoff.max.ms": 500,
                "on_commit": self._was_committed,
            }
        )
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(90)
        assert not self._thread.is_alive(), f"{self.name} does not close"

    def _run(self) -> None:
        try:
            self._consumer.subscribe([self._topic], on_revoke=self._forget, on_lost=self._forget)
            while not self._stopping.is_set():
                self._poll()
        except Exception as error:
            self.failures.append(repr(error))
        finally:
            self._consumer.close()

    def _poll(self) -> None:
        for message in self._consumer.consume(500, timeout=0.2):
            problem = message.error()
            if problem is not None:
                # While brokers go, librdkafka says so, and goes on by itself unless the error is fatal.
                assert not problem.fatal(), problem
                continue
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self.seen.add((partition, offset))
            self._uncommitted[partition] = offset + 1
        if self._uncommitted and not self._asked:
            self._commit()

    def _forget(self, _: Consumer, places: list[TopicPartition]) -> None:
        """Forgets the commits of revoked partitions: another member commits them from now on."""
        for place in places:
            self._uncommitted.pop(place.partition, None)

    def _commit(self) -> None:
        """Commits asynchronously. A blocking commit gets no callbacks, and librdkafka, whose session may have
        expired, waits for the revocation callback."""
        places = [TopicPartition(self._topic, p, offset) for p, offset in self._uncommitted.items()]
        # A rebalance, or no coordinator: nothing is promised, and the next poll tries again.
        with contextlib.suppress(KafkaException):
            self._consumer.commit(offsets=places, asynchronous=True)
            self._asked = True

    def _was_committed(self, error: object, places: list[TopicPartition]) -> None:
        self._asked = False
        for place in places:
            if error is None and place.error is None:
                known = self.committed.get(place.partition, -1)
                self.committed[place.partition] = max(known, place.offset)
                if self._uncommitted.get(place.partition, 0) <= place.offset:
                    self._uncommitted.pop(place.partition, None)

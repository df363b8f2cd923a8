"""Members of a consumer group that record what they read and which commits were confirmed.

Called by the group tests. Each member is a librdkafka consumer in a thread of its own.
"""

from __future__ import annotations

import contextlib
import threading
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaException, TopicPartition

from ottla.client.routing import ClusterUnreachable
from ottla.local.cluster import LocalCluster
from ottla.protocol.errors import KafkaError
from ottla.wire.connection import ConnectionLost


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


class WatchedGroup:
    """Two members, and the committed offsets that the cluster reports: these may never go back."""

    def __init__(self, cluster: LocalCluster, topic: str, group: str) -> None:
        self.cluster, self.topic, self.group = cluster, topic, group
        self.members = [Member(cluster.bootstrap, topic, group, f"member-{n}") for n in range(2)]
        self._observed: dict[int, int] = {}
        self._running = ExitStack()

    def __enter__(self) -> Self:
        for member in self.members:
            self._running.enter_context(member)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()

    @property
    def seen(self) -> set[tuple[int, int]]:
        return set().union(*[set(member.seen) for member in self.members])

    def check(self) -> None:
        """Asserts that the members live, and that committed offsets have not gone back."""
        assert [failure for member in self.members for failure in member.failures] == []
        promised = dict(self._observed)
        for member in self.members:
            for partition, offset in dict(member.committed).items():
                promised[partition] = max(promised.get(partition, -1), offset)
        try:
            offsets = self.cluster.admin(lambda client: client.group_offsets(self.group))
        except (ClusterUnreachable, ConnectionLost, KafkaError, TimeoutError, OSError):
            return  # no coordinator just now
        now = {place.partition: offset for place, offset in offsets.items() if place.topic == self.topic}
        lost = {p: (offset, now.get(p)) for p, offset in promised.items() if now.get(p, -1) < offset}
        assert not lost, f"committed offsets went back, (before, now) by partition: {lost}"
        self._observed = now

    def coordinator(self) -> int:
        return self.cluster.admin(lambda client: client.describe_group(self.group)).coordinator.id

    def wait_until_stable(self, *, not_at: int | None = None) -> None:
        def stable() -> bool:
            self.check()
            try:
                found = self.cluster.admin(lambda client: client.describe_group(self.group))
            except KafkaError:
                return False
            return (found.state, len(found.members)) == ("Stable", 2) and found.coordinator.id != not_at

        self.cluster.wait_until(stable, "the group to be stable")

    def wait_for_more(self, records: int) -> None:
        goal = len(self.seen) + records

        def read() -> bool:
            self.check()
            return len(self.seen) >= goal

        self.cluster.wait_until(read, f"{records} more records to be read")

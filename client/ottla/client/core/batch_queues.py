"""The batches that have no outcome yet: taken by the sender, put back, divided, finished.

The base of `Accumulator`, which fills them. Invariants: a batch is in its partition's queue, or on the wire,
or has its one outcome; a queue's batches are in the order in which they have to be written; `used_bytes` is
the sum of the topics' `used_bytes`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from ottla.client.core.batches import BATCH_OVERHEAD, Batch
from ottla.client.core.config import ProducerConfig
from ottla.client.core.partitioners import Sticky
from ottla.client.core.sequences import Sequence as ProducerSequence
from ottla.client.core.types import Header, TopicPartition
from ottla.client.errors import DeliveryTimeoutError


class Outcome(NamedTuple):
    """What became of a batch; of records that never got a partition, whose partition is -1, too."""

    batch: Batch
    base_offset: int
    log_append_time_ms: int
    """-1 where the records' own timestamps hold."""
    error: BaseException | None
    record_errors: dict[int, BaseException] | None = None
    """Those records that were at fault, where the broker says so (KIP-467)."""


Settle: TypeAlias = Callable[[Outcome], None]


class PartitionQueue:
    """The batches of one partition, first to be sent first."""

    __slots__ = ("batches", "in_flight", "open", "sequence", "tp")

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.batches: deque[Batch] = deque()
        self.open: Batch | None = None
        """The last of `batches`, while it takes records."""
        self.in_flight = 0
        """Batches on the wire."""
        self.sequence = ProducerSequence()


class Waiting(NamedTuple):
    """A record whose partition cannot be told yet."""

    number: int
    since: float
    size: int
    partition: int | None
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    sink: Any


class Topic:
    __slots__ = ("name", "partitions", "queues", "sticky", "used_bytes", "waiting")

    def __init__(self, name: str, sticky: Sticky) -> None:
        self.name = name
        self.partitions = 0
        """0 while that is not known."""
        self.queues: list[PartitionQueue] = []
        self.sticky = sticky
        self.used_bytes = 0
        """Of its records without an outcome."""
        self.waiting: deque[Waiting] = deque()


class BatchQueues:
    """Times are seconds."""

    def __init__(self, config: ProducerConfig, settle: Settle) -> None:
        self._settle = settle
        self._linger_s = config.linger_ms / 1000
        self._delivery_timeout_s = config.delivery_timeout_ms / 1000
        self.used_bytes = 0
        self._topics: dict[str, Topic] = {}
        self.short_of_room = False
        """Somebody waits for memory: batches go out without lingering."""
        self.flushing = 0
        """How many want everything sent without lingering."""
        self.incomplete: dict[Batch, None] = {}
        """Batches without an outcome, oldest first."""
        self.active: dict[PartitionQueue, None] = {}
        """Queues that hold batches; who was served goes to the end."""

    def ready_at(self, queue: PartitionQueue) -> float:
        """When its first batch may be sent."""
        first = queue.batches[0]
        if first.attempts:
            return first.backoff_until
        if first is not queue.open or self.flushing or self.short_of_room:
            return -math.inf
        return first.created_at + self._linger_s

    def take(self, queue: PartitionQueue) -> Batch:
        """Its first batch, which takes no records any more."""
        batch = queue.batches.popleft()
        if queue.open is batch:
            queue.open = None
        del self.active[queue]
        if queue.batches:
            self.active[queue] = None
        return batch

    def put_back(self, queue: PartitionQueue, *batches: Batch) -> None:
        """To be sent again, before what was not sent yet, in the order of their numbers."""
        for batch in batches:
            numbered = queue.sequence.in_flight
            at = 0
            if batch in numbered:
                earlier = set(numbered[: numbered.index(batch)])
                while at < len(queue.batches) and queue.batches[at] in earlier:
                    at += 1
            else:
                while at < len(queue.batches) and queue.batches[at].number < batch.number:
                    at += 1
            queue.batches.insert(at, batch)
        self.active[queue] = None

    def divide(self, queue: PartitionQueue, batch: Batch) -> None:
        """Put two halves in the place of a batch that is too large."""
        parts = batch.split()
        if batch.stamped:
            queue.sequence.replace(batch, parts)
        self._free(batch.tp.topic, batch.size - BATCH_OVERHEAD)
        before, self.incomplete = self.incomplete, {}
        for other in before:
            self.incomplete.update(dict.fromkeys(parts if other is batch else [other]))
        for part in parts:
            self._free(part.tp.topic, BATCH_OVERHEAD - part.size)
        self.put_back(queue, *parts)

    def finish(self, outcome: Outcome) -> None:
        """A batch has its outcome; it is in no queue any more, or this takes it out."""
        batch = outcome.batch
        assert not batch.done, f"{batch!r} has its outcome already"
        batch.done = True
        del self.incomplete[batch]
        self._free(batch.tp.topic, batch.size - BATCH_OVERHEAD)
        self.short_of_room = False
        self._settle(outcome)

    def _free(self, topic: str, size: int) -> None:
        """So many bytes of a topic's records have an outcome."""
        self.used_bytes -= size
        self._topics[topic].used_bytes -= size

    def withdraw(self, queue: PartitionQueue, batch: Batch) -> None:
        """Take a batch out of its queue."""
        queue.batches.remove(batch)
        if queue.open is batch:
            queue.open = None
        if not queue.batches:
            self.active.pop(queue, None)

    def expired(self, now: float) -> list[Batch]:
        """Batches whose delivery.timeout.ms has passed, on the wire or not."""
        latest = now - self._delivery_timeout_s
        found = []
        for batch in self.incomplete:
            if batch.created_at > latest:
                break
            found.append(batch)
        return found

    def expiry_error(self, batch: Batch) -> DeliveryTimeoutError:
        return DeliveryTimeoutError(
            f"{batch.count} records for {batch.tp}: no acknowledgement in {self._delivery_timeout_s:g} s, "
            f"after {batch.attempts} attempts"
        )

"""Where records wait: a partition's batches, a topic's records that have no partition yet; and how it ends.

Kept by the accumulator, served by the sender.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from ottla.client.core.batches import Batch
from ottla.client.core.partitioners import Sticky
from ottla.client.core.sequences import Sequence as ProducerSequence
from ottla.client.core.types import Header, TopicPartition


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

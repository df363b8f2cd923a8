"""The record accumulator: unacknowledged records in batches by partition, within buffer.memory.

The producer appends records; the sender takes, reenqueues, splits and completes batches. Each partition has a
queue of batches, whose last batch may be open. Each topic has a queue of records that wait until its
partitions are known. Invariants:

* records of a partition stay in the order in which they were appended, with or without a key;
* a batch is in the queue of its partition, or in flight, or complete;
* `used_bytes` is the sum over the incomplete records (also by topic), and never above buffer.memory; a topic
  that uses buffer.memory.per.topic takes no further record;
* every record gets one result, through the `on_batch_done` callback.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from ottla.client.core.backoff import Uniform
from ottla.client.core.batches import (
    BATCH_OVERHEAD,
    LARGE_OVERHEAD,
    SMALL_OVERHEAD,
    SMALL_RECORD,
    Batch,
    headers_size,
)
from ottla.client.core.cluster import Cluster
from ottla.client.core.config import ProducerConfig
from ottla.client.core.partitioners import BY_NAME, KeyHashCache, Partitioner, StickyPartitioner
from ottla.client.core.sequences import Sequence as ProducerSequence
from ottla.client.core.settings import made
from ottla.client.core.types import Header, TopicPartition
from ottla.client.errors import (
    ClientError,
    ConfigError,
    DeliveryTimeoutError,
    MessageTooLargeError,
    RequestTimedOutError,
    for_code,
    typed,
)


class BatchResult(NamedTuple):
    """The result of a batch, or of a record that was never assigned a partition (partition -1)."""

    batch: Batch
    base_offset: int
    log_append_time_ms: int
    """-1 if the timestamps of the records are kept."""
    error: BaseException | None
    record_errors: dict[int, BaseException] | None = None
    """The errors of the records at fault, if the broker returned them (KIP-467)."""


OnBatchDone: TypeAlias = Callable[[BatchResult], None]


class PartitionQueue:
    """The batches of one partition in the order in which they are sent."""

    __slots__ = ("batches", "in_flight", "open", "sequence", "tp")

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.batches: deque[Batch] = deque()
        self.open: Batch | None = None
        """The last of `batches`, while it takes records."""
        self.in_flight = 0
        """The number of batches in flight."""
        self.sequence = ProducerSequence()


class UnassignedRecord(NamedTuple):
    """A record whose partition is not known yet."""

    number: int
    since: float
    size: int
    partition: int | None
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    delivery: Any


class Topic:
    """A topic of the accumulator: its partition queues, and records without a partition."""

    __slots__ = ("name", "partitions", "queues", "sticky", "used_bytes", "waiting")

    def __init__(self, name: str, sticky: StickyPartitioner) -> None:
        self.name = name
        self.partitions = 0
        """0 while the number of partitions is unknown."""
        self.queues: list[PartitionQueue] = []
        self.sticky = sticky
        self.used_bytes = 0
        """Bytes of its incomplete records."""
        self.waiting: deque[UnassignedRecord] = deque()


log = logging.getLogger("ottla.client")

APPENDED: Final = 0
NEW_BATCH: Final = 1
"""Appended to a new batch: wake the sender."""
BATCH_FULL: Final = 2
"""Appended, and a batch is full: the caller should let it be sent before the next record."""
NO_METADATA: Final = 3
"""Appended, and the partitions of the topic are unknown: the caller should wait for metadata."""
BUFFER_FULL: Final = 4
"""Not appended: buffer.memory is in use."""
TOPIC_FULL: Final = 5
"""Not appended: the topic uses its share, buffer.memory.per.topic. Other topics may have memory left."""


class Accumulator:
    """Kafka's RecordAccumulator. Times are seconds."""

    def __init__(
        self, config: ProducerConfig, cluster: Cluster, uniform: Uniform, on_batch_done: OnBatchDone
    ) -> None:
        """Raises ConfigError for an invalid partitioner."""
        self._on_batch_done = on_batch_done
        self._linger_s = config.linger_ms / 1000
        self._delivery_timeout_s = config.delivery_timeout_ms / 1000
        self.used_bytes = 0
        self._topics: dict[str, Topic] = {}
        self.exhausted = False
        """A sender waits for memory: batches are sent without lingering."""
        self.flushing = 0
        """The number of flushes in progress: batches are sent without lingering."""
        self.incomplete: dict[Batch, None] = {}
        """Incomplete batches, oldest first."""
        self.active: dict[PartitionQueue, None] = {}
        """Queues with batches; a queue from which a batch was taken moves to the end."""
        self._cluster = cluster
        self._uniform = uniform
        self._batch_size = config.batch_size
        self._max_block_s = config.max_block_ms / 1000
        self._request_max = config.max_request_size
        self._record_max = min(config.max_request_size - BATCH_OVERHEAD, config.buffer_memory)
        self._adaptive = config.partitioner_adaptive_partitioning_enable
        self._users_partitioner = made("partitioner.class", config.partitioner_class, config)
        self._partitioner = _partitioner(
            config.partitioner
            if self._users_partitioner is None
            else getattr(self._users_partitioner, "partition", self._users_partitioner)
        )
        self._key_hash = None if config.partitioner_ignore_keys else KeyHashCache()
        self.memory = config.buffer_memory
        per_topic = config.buffer_memory_per_topic
        self._topic_max = math.inf if per_topic >= self.memory else per_topic
        """The limit for one topic in bytes; negative for all that are free."""
        self._unchecked_max = self.memory if per_topic < 0 else min(self.memory, per_topic)
        """No further check is needed while the bytes in use, plus those of the topic, are within this."""
        self.is_available: Callable[[int], bool] = lambda node_id: True
        """Whether records without a key may be assigned to a partition of this node; set by the sender."""
        self.on_partition_added: Callable[[TopicPartition], None] | None = None
        """Called with the partition of each new batch; set for transactions."""
        self.on_unassigned_failed: Callable[[BaseException], None] = lambda error: None
        """Called when a record that waited for its partition fails; set by the sender for transactions."""
        self._waiting = 0
        self._seen_version = -1
        self._numbers = 0
        self._assigning_number = 0
        """The number of the unassigned record that is being appended."""

    def ready_at(self, queue: PartitionQueue) -> float:
        """When the first batch of a queue may be sent."""
        first = queue.batches[0]
        if first.attempts:
            return first.backoff_until
        if first is not queue.open or self.flushing or self.exhausted:
            return -math.inf
        return first.created_at + self._linger_s

    def take(self, queue: PartitionQueue) -> Batch:
        """Remove and close the first batch of a queue."""
        batch = queue.batches.popleft()
        if queue.open is batch:
            queue.open = None
        del self.active[queue]
        if queue.batches:
            self.active[queue] = None
        return batch

    def reenqueue(self, queue: PartitionQueue, *batches: Batch) -> None:
        """Put batches back for a retry, before unsent ones and in the order of their sequence numbers."""
        for batch in reversed(batches):  # each before its successors, also where numbers are equal (halves)
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

    def split_and_reenqueue(self, queue: PartitionQueue, batch: Batch) -> None:
        """Replace a batch that is too large by two halves."""
        parts = batch.split()
        if batch.stamped:
            queue.sequence.replace(batch, parts)
        self._free(batch.tp.topic, batch.size - BATCH_OVERHEAD)
        before, self.incomplete = self.incomplete, {}
        for other in before:
            self.incomplete.update(dict.fromkeys(parts if other is batch else [other]))
        for part in parts:
            self._free(part.tp.topic, BATCH_OVERHEAD - part.size)
        self.reenqueue(queue, *parts)

    def complete(self, outcome: BatchResult) -> None:
        """Report the result of a batch, which is in no queue."""
        batch = outcome.batch
        assert not batch.done, f"{batch!r} is complete already"
        batch.done = True
        del self.incomplete[batch]
        self._free(batch.tp.topic, batch.size - BATCH_OVERHEAD)
        self.exhausted = False
        self._on_batch_done(outcome)

    def _free(self, topic: str, size: int) -> None:
        """Release memory of records of a topic."""
        self.used_bytes -= size
        self._topics[topic].used_bytes -= size

    def remove(self, queue: PartitionQueue, batch: Batch) -> None:
        """Remove a batch from its queue."""
        queue.batches.remove(batch)
        if queue.open is batch:
            queue.open = None
        if not queue.batches:
            self.active.pop(queue, None)

    def expired(self, now: float) -> list[Batch]:
        """Batches whose delivery.timeout.ms has passed, in flight or not."""
        found = []
        for batch in self.incomplete:
            # The same sum as in `next_expiry`: with another rounding the sender would wake without end.
            if batch.created_at + self._delivery_timeout_s > now:
                break
            found.append(batch)
        return found

    def expiry_error(self, batch: Batch) -> DeliveryTimeoutError:
        return DeliveryTimeoutError(
            f"{batch.count} records for {batch.tp}: not acknowledged within {self._delivery_timeout_s:g} s, "
            f"after {batch.attempts} attempts"
        )

    # --- appending ---

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        partition: int | None,
        timestamp_ms: int,
        delivery: Any,
        clock: Callable[[], float],
    ) -> int:
        """Append a record: APPENDED, NEW_BATCH, BATCH_FULL, NO_METADATA, BUFFER_FULL or TOPIC_FULL. `clock`
        is called only for records that begin a batch or wait for a partition. Raises MessageTooLargeError,
        and ValueError for an invalid partition."""
        size = 0 if value is None else len(value)
        if key is not None:
            size += len(key)
        if headers:
            size += headers_size(headers)
        size += SMALL_OVERHEAD if size < SMALL_RECORD else LARGE_OVERHEAD
        if size > self._record_max:
            raise self._too_large(size)
        known = self._topics.get(topic)
        if known is None:
            known = self._new_topic(topic)
        used = known.used_bytes + size
        if used + self.used_bytes > self._unchecked_max and (shortage := self._check_room(known, size)):
            return shortage
        partitions = known.partitions
        if partition is not None and partition < 0:
            raise ValueError(f"partition {partition} of {topic}: partition numbers start at 0")
        if not partitions or (partition is not None and partition >= partitions):
            self._numbers += 1
            since = clock()
            waiting = UnassignedRecord(
                self._numbers, since, size, partition, timestamp_ms, key, value, headers, delivery
            )
            self._add_unassigned(known, waiting)
            return NO_METADATA
        sticky = None
        if partition is None:
            if self._partitioner is not None:
                partition = self._checked(topic, self._partitioner(topic, key, value, partitions), partitions)
            elif key is not None and self._key_hash is not None:
                partition = self._key_hash(key) % partitions
            if partition is None:
                sticky = known.sticky
                partition = sticky.partition
                if partition is None:
                    partition = self._choose(known)
        queue = known.queues[partition]
        batch = queue.open
        size_max = self._batch_size
        if batch is not None and batch.size + size > size_max:
            queue.open = batch = None
            if sticky is not None:  # switch to the next sticky partition
                queue = known.queues[self._choose(known)]
                batch = queue.open
                if batch is not None and batch.size + size > size_max:
                    batch = None
        result = APPENDED
        if batch is None:
            batch = self._new_batch(queue, clock())
            result = NEW_BATCH
        batch.records.append((timestamp_ms, key, value, headers))
        batch.deliveries.append(delivery)
        batch.size = grown = batch.size + size
        self.used_bytes += size
        known.used_bytes = used
        if grown + size > size_max:
            # A record of the same size does not fit any more: send the batch without lingering.
            queue.open = None
            result = BATCH_FULL
        if sticky is not None:
            sticky.left -= size
            if result == BATCH_FULL or sticky.left <= 0:
                sticky.partition = None
        return result

    def _check_room(self, topic: Topic, size: int) -> int:
        """TOPIC_FULL, BUFFER_FULL, or APPENDED if there is memory."""
        if self._assigning_number:
            return APPENDED  # its memory was reserved while it waited
        most = self.memory - self.used_bytes if self._topic_max < 0 else self._topic_max
        if topic.used_bytes and topic.used_bytes + size > most:
            shortage = TOPIC_FULL
        elif self.used_bytes + size > self.memory:
            shortage = BUFFER_FULL
        else:
            return APPENDED
        self.exhausted = True
        return shortage

    def _checked(self, topic: str, chosen: int | None, partitions: int) -> int | None:
        if chosen is not None and not 0 <= chosen < partitions:
            raise ValueError(
                f"the partitioner chose {chosen!r}; {topic} has partitions 0 to {partitions - 1}"
            )
        return chosen

    def _too_large(self, size: int) -> ClientError:
        key, most = ("max.request.size", self._request_max)
        if size > self.memory:
            key, most = ("buffer.memory", self.memory)
        return MessageTooLargeError(f"a record of {size} bytes with its overhead; {key} is {most}")

    def _new_topic(self, name: str) -> Topic:
        sticky = StickyPartitioner(self._batch_size, self._uniform, adaptive=self._adaptive)
        topic = self._topics[name] = Topic(name, sticky)
        self._update_partitions(topic)
        return topic

    def _new_batch(self, queue: PartitionQueue, now: float) -> Batch:
        number = self._assigning_number
        if not number:
            self._numbers += 1
            number = self._numbers
        batch = Batch(queue.tp, now, number)
        self._cluster.add(queue.tp.topic, now)
        queue.batches.append(batch)
        queue.open = batch
        self.active[queue] = None
        self.incomplete[batch] = None
        if self.on_partition_added is not None:
            self.on_partition_added(queue.tp)
        return batch

    def leave_partition(self, topic: str) -> None:
        """The next record without a key may be assigned to another partition."""
        known = self._topics.get(topic)
        if known is not None:
            known.sticky.partition = None

    def _choose(self, topic: Topic) -> int:
        """Choose the next sticky partition: one whose leader can be reached, if there is any."""
        good = []
        for queue in topic.queues:
            leader = self._cluster.leader(queue.tp)
            if leader is not None and self.is_available(leader.node_id):
                good.append(queue)
        queues = good or topic.queues[: topic.partitions]
        return topic.sticky.choose([q.tp.partition for q in queues], [len(q.batches) for q in queues])

    # --- records without a partition ---

    def _add_unassigned(self, topic: Topic, record: UnassignedRecord) -> None:
        self._cluster.add(topic.name, record.since)
        if topic.partitions:
            self._cluster.invalidate(topic.name)
        topic.waiting.append(record)
        self._waiting += 1
        self._free(topic.name, -record.size)

    def _update_partitions(self, topic: Topic) -> None:
        partitions = self._cluster.partitions(topic.name) or 0
        # Queues are never removed, since their batches would be lost; those of a deleted topic expire.
        for partition in range(len(topic.queues), partitions):
            topic.queues.append(PartitionQueue(TopicPartition(topic.name, partition)))
        topic.partitions = partitions

    def refresh(self, now: float) -> None:
        """Process new metadata: append records whose partition is known now."""
        if self._seen_version != self._cluster.version:
            self._seen_version = self._cluster.version
            for topic in self._topics.values():
                self._update_partitions(topic)
        if self._waiting:
            for topic in self._topics.values():
                if topic.waiting:
                    self._assign_partitions(topic, now)

    def _assign_partitions(self, topic: Topic, now: float) -> None:
        error, authentication_error = self._cluster.error(topic.name), self._cluster.authentication_error
        fatal: BaseException | None = None
        if not topic.partitions:
            if authentication_error is not None:
                fatal = typed(authentication_error)
            elif self._cluster.fatal_error(topic.name):
                fatal = for_code(error, topic.name)
            elif now < topic.waiting[0].since + self._max_block_s:
                return
        waiting, topic.waiting = topic.waiting, deque()
        self._waiting -= len(waiting)
        for record in waiting:
            self._free(topic.name, record.size)
            beyond = record.partition is not None and record.partition >= topic.partitions
            if topic.partitions and not beyond:
                self._append_unassigned(topic, record, now)
            elif fatal is not None:
                self._fail(topic, record, fatal)
            elif now >= record.since + self._max_block_s:
                what = f"partition {record.partition} of {topic.name}" if topic.partitions else topic.name
                text = f"{what} is not in the cluster's metadata after {self._max_block_s:g} s"
                if error:
                    text += f": {error.name}"
                self._fail(topic, record, RequestTimedOutError(text))
            else:
                self._add_unassigned(topic, record)

    def _append_unassigned(self, topic: Topic, record: UnassignedRecord, now: float) -> None:
        number, _, _, partition, timestamp_ms, key, value, headers, delivery = record
        self._assigning_number = number
        try:
            self.append(topic.name, key, value, headers, partition, timestamp_ms, delivery, lambda: now)
        except Exception as error:  # of a partitioner
            self._fail(topic, record, error)
        finally:
            self._assigning_number = 0

    def _fail(self, topic: Topic, record: UnassignedRecord, error: BaseException) -> None:
        batch = Batch(TopicPartition(topic.name, -1), record.since, 0)
        batch.records.append((record.timestamp_ms, record.key, record.value, record.headers))
        batch.deliveries.append(record.delivery)
        self.on_unassigned_failed(error)
        self._on_batch_done(BatchResult(batch, -1, -1, error))

    def close_partitioner(self) -> None:
        """Close the partitioner of the user; errors are logged."""
        close = getattr(self._users_partitioner, "close", None)
        if close is not None:
            try:
                close()
            except Exception:
                log.warning("partitioner.class: close() failed", exc_info=True)

    @property
    def last_number(self) -> int:
        """The highest number of the batches and unassigned records so far."""
        return self._numbers

    def has_incomplete_up_to(self, number: int) -> bool:
        """Whether a batch or record up to this number is incomplete."""
        return any(batch.number <= number for batch in self.incomplete) or any(
            record.number <= number for topic in self._topics.values() for record in topic.waiting
        )

    @property
    def empty(self) -> bool:
        return not self.incomplete and not self._waiting

    # --- for the sender ---

    def queue_of(self, tp: TopicPartition) -> PartitionQueue:
        return self._topics[tp.topic].queues[tp.partition]

    def queues(self) -> Iterator[PartitionQueue]:
        for topic in self._topics.values():
            yield from topic.queues

    def next_expiry(self) -> float:
        """When the next batch or unassigned record expires."""
        at = math.inf
        for batch in self.incomplete:
            at = batch.created_at + self._delivery_timeout_s
            break
        if self._waiting:
            since = min(topic.waiting[0].since for topic in self._topics.values() if topic.waiting)
            at = min(at, since + self._max_block_s)
        return at

    def fail_unassigned(self, error: BaseException) -> None:
        """Fail the records without a partition."""
        for topic in self._topics.values():
            waiting, topic.waiting = topic.waiting, deque()
            for record in waiting:
                self._waiting -= 1
                self._free(topic.name, record.size)
                self._fail(topic, record, error)


def _partitioner(given: Any) -> Partitioner | None:
    if given is None or callable(given):
        partitioner: Partitioner | None = given
        return partitioner
    if given not in BY_NAME:
        allowed = f"must be a function, or one of {', '.join(BY_NAME)}"
        raise ConfigError(f"partitioner={given!r}: {allowed}")
    return BY_NAME[given]

"""Records that were sent and not acknowledged: batches by partition, within buffer.memory.

The producer appends records, the sender takes, puts back, splits and finishes batches. Each partition has a
queue of batches, of which the last may be open; each topic has a queue of records that wait until its
partitions are known. Invariants:

* records of a partition are in the order in which they were appended, keyed or not;
* a batch is in its partition's queue, or in flight, or has its one outcome;
* `used_bytes` is the sum over the records that have no outcome yet (also by topic), and never above
  buffer.memory; a topic that holds buffer.memory.per.topic takes no further record;
* every record gets one outcome, through the `settle` callback.
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
from ottla.client.core.partitioners import BY_NAME, KeyHash, Partitioner, Sticky
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
from ottla.protocol.errors import ErrorCode


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


log = logging.getLogger("ottla.client")

APPENDED: Final = 0
BEGUN: Final = 1
"""Appended, and there is something new for the sender to look at."""
BATCH_FULL: Final = 2
"""Appended, and a batch is full: the caller does well to let it go out before the next record."""
WAITS: Final = 3
"""Appended, and nothing is known of the topic: the caller does well to wait for metadata."""
NO_ROOM: Final = 4
"""Not appended: buffer.memory is in use."""
TOPIC_FULL: Final = 5
"""Not appended: the topic holds as much as buffer.memory.per.topic allows. There is room for other topics."""


class Accumulator:
    """Times are seconds."""

    def __init__(self, config: ProducerConfig, cluster: Cluster, uniform: Uniform, settle: Settle) -> None:
        """Raises ConfigError for a partitioner that is none."""
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
        self._key_hash = None if config.partitioner_ignore_keys else KeyHash()
        self.memory = config.buffer_memory
        per_topic = config.buffer_memory_per_topic
        self._topic_max = math.inf if per_topic >= self.memory else per_topic
        """Bytes of one topic; negative for as many as are free."""
        self._ample = self.memory if per_topic < 0 else min(self.memory, per_topic)
        """There is room as long as all that is used, and what the topic uses, do not exceed this together."""
        self.available: Callable[[int], bool] = lambda node_id: True
        """Whether new records without a key may go to this node; set by the sender."""
        self.added: Callable[[TopicPartition], None] | None = None
        """Told of each new batch's partition: transactions have to know."""
        self._waiting = 0
        self._seen_version = -1
        self._numbers = 0
        self._designating = 0
        """The number of a waiting record that is given its partition just now."""

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

    # --- appending ---

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        partition: int | None,
        timestamp_ms: int,
        sink: Any,
        clock: Callable[[], float],
    ) -> int:
        """APPENDED, BEGUN, BATCH_FULL, WAITS, NO_ROOM or TOPIC_FULL. `clock` is asked for the time by those
        records alone that begin a batch, or wait. Raises MessageTooLargeError, and ValueError for a partition
        that cannot be."""
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
        if used + self.used_bytes > self._ample and (lack := self._lacks_room(known, size)):
            return lack
        partitions = known.partitions
        if partition is not None and partition < 0:
            raise ValueError(f"partition {partition} of {topic}: partitions are numbered from 0")
        if not partitions or (partition is not None and partition >= partitions):
            self._numbers += 1
            since = clock()
            waiting = Waiting(self._numbers, since, size, partition, timestamp_ms, key, value, headers, sink)
            self._wait(known, waiting)
            return WAITS
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
        most = self._batch_size
        if batch is not None and batch.size + size > most:
            queue.open = batch = None
            if sticky is not None:  # it is another partition's turn
                queue = known.queues[self._choose(known)]
                batch = queue.open
                if batch is not None and batch.size + size > most:
                    batch = None
        result = APPENDED
        if batch is None:
            batch = self._new_batch(queue, clock())
            result = BEGUN
        batch.records.append((timestamp_ms, key, value, headers))
        batch.sinks.append(sink)
        batch.size = grown = batch.size + size
        self.used_bytes += size
        known.used_bytes = used
        if grown + size > most:
            # Another record like this one has no place in it: it need not wait for that one to come.
            queue.open = None
            result = BATCH_FULL
        if sticky is not None:
            sticky.left -= size
            if result == BATCH_FULL or sticky.left <= 0:
                sticky.partition = None
        return result

    def _lacks_room(self, topic: Topic, size: int) -> int:
        """TOPIC_FULL, NO_ROOM, or APPENDED if there is room after all."""
        if self._designating:
            return APPENDED  # it had its room while it waited
        most = self.memory - self.used_bytes if self._topic_max < 0 else self._topic_max
        if topic.used_bytes and topic.used_bytes + size > most:
            lack = TOPIC_FULL
        elif self.used_bytes + size > self.memory:
            lack = NO_ROOM
        else:
            return APPENDED
        self.short_of_room = True
        return lack

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
        sticky = Sticky(self._batch_size, self._uniform, adaptive=self._adaptive)
        topic = self._topics[name] = Topic(name, sticky)
        self._learn(topic)
        return topic

    def _new_batch(self, queue: PartitionQueue, now: float) -> Batch:
        number = self._designating
        if not number:
            self._numbers += 1
            number = self._numbers
        batch = Batch(queue.tp, now, number)
        self._cluster.add(queue.tp.topic, now)
        queue.batches.append(batch)
        queue.open = batch
        self.active[queue] = None
        self.incomplete[batch] = None
        if self.added is not None:
            self.added(queue.tp)
        return batch

    def leave_partition(self, topic: str) -> None:
        """The next record without a key may go to another partition."""
        known = self._topics.get(topic)
        if known is not None:
            known.sticky.partition = None

    def _choose(self, topic: Topic) -> int:
        """The next sticky partition: one with a leader that can be reached, if there is any."""
        good = []
        for queue in topic.queues:
            leader = self._cluster.leader(queue.tp)
            if leader is not None and self.available(leader.node_id):
                good.append(queue)
        queues = good or topic.queues[: topic.partitions]
        return topic.sticky.choose([q.tp.partition for q in queues], [len(q.batches) for q in queues])

    # --- records whose partition is not known ---

    def _wait(self, topic: Topic, record: Waiting) -> None:
        self._cluster.add(topic.name, record.since)
        if topic.partitions:
            self._cluster.invalidate(topic.name)
        topic.waiting.append(record)
        self._waiting += 1
        self._free(topic.name, -record.size)

    def _learn(self, topic: Topic) -> None:
        partitions = self._cluster.partitions(topic.name) or 0
        # Never fewer: what is queued would be lost; a deleted topic's batches expire.
        for partition in range(len(topic.queues), partitions):
            topic.queues.append(PartitionQueue(TopicPartition(topic.name, partition)))
        topic.partitions = partitions

    def refresh(self, now: float) -> None:
        """Take in what is new of the cluster; records whose partition is known by now get into its queue."""
        if self._seen_version != self._cluster.version:
            self._seen_version = self._cluster.version
            for topic in self._topics.values():
                self._learn(topic)
        if self._waiting:
            for topic in self._topics.values():
                if topic.waiting:
                    self._designate(topic, now)

    def _designate(self, topic: Topic, now: float) -> None:
        error, refusal = self._cluster.error(topic.name), self._cluster.refusal
        hopeless: BaseException | None = None
        if not topic.partitions:
            if refusal is not None:
                hopeless = typed(refusal)
            elif error is not ErrorCode.NONE and not error.retriable:
                hopeless = for_code(error, topic.name)
            elif now < topic.waiting[0].since + self._max_block_s:
                return
        waiting, topic.waiting = topic.waiting, deque()
        self._waiting -= len(waiting)
        for record in waiting:
            self._free(topic.name, record.size)
            beyond = record.partition is not None and record.partition >= topic.partitions
            if topic.partitions and not beyond:
                self._append_waiting(topic, record, now)
            elif hopeless is not None:
                self._refuse(topic, record, hopeless)
            elif now >= record.since + self._max_block_s:
                what = f"partition {record.partition} of {topic.name}" if topic.partitions else topic.name
                told = f"{what} is not in the cluster's metadata after {self._max_block_s:g} s"
                self._refuse(topic, record, RequestTimedOutError(told))
            else:
                self._wait(topic, record)

    def _append_waiting(self, topic: Topic, record: Waiting, now: float) -> None:
        number, _, _, partition, timestamp_ms, key, value, headers, sink = record
        self._designating = number
        try:
            self.append(topic.name, key, value, headers, partition, timestamp_ms, sink, lambda: now)
        except Exception as error:  # of a partitioner
            self._refuse(topic, record, error)
        finally:
            self._designating = 0

    def _refuse(self, topic: Topic, record: Waiting, error: BaseException) -> None:
        batch = Batch(TopicPartition(topic.name, -1), record.since, 0)
        batch.records.append((record.timestamp_ms, record.key, record.value, record.headers))
        batch.sinks.append(record.sink)
        self._settle(Outcome(batch, -1, -1, error))

    def close_partitioner(self) -> None:
        """No record comes any more. What it raises is logged."""
        close = getattr(self._users_partitioner, "close", None)
        if close is not None:
            try:
                close()
            except Exception:
                log.warning("partitioner.class: close() failed", exc_info=True)

    @property
    def last_number(self) -> int:
        """What was sent so far has no higher one."""
        return self._numbers

    def has_before(self, number: int) -> bool:
        """Whether anything up to this number has no outcome yet."""
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
        """When the next batch, or waiting record, expires."""
        at = math.inf
        for batch in self.incomplete:
            at = batch.created_at + self._delivery_timeout_s
            break
        if self._waiting:
            since = min(topic.waiting[0].since for topic in self._topics.values() if topic.waiting)
            at = min(at, since + self._max_block_s)
        return at

    def refuse_waiting(self, error: BaseException) -> None:
        """Give up the records that have no partition yet."""
        for topic in self._topics.values():
            waiting, topic.waiting = topic.waiting, deque()
            for record in waiting:
                self._waiting -= 1
                self._free(topic.name, record.size)
                self._refuse(topic, record, error)


def _partitioner(given: Any) -> Partitioner | None:
    if given is None or callable(given):
        partitioner: Partitioner | None = given
        return partitioner
    if given not in BY_NAME:
        allowed = f"must be a function, or one of {', '.join(BY_NAME)}"
        raise ConfigError(f"partitioner={given!r}: {allowed}")
    return BY_NAME[given]

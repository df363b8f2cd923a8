"""Writes one source partition to the target, exactly once.

Called by the tasks; runs in Spark's Python workers. A writer is a transactional producer whose
`transactional.id` belongs to the source partition only:

1. `init_transactions` fences the previous writer of that partition (an earlier attempt of the task, or a
   driver that was considered dead) and ends its open transaction;
2. then the committed position is read, from the mirror's consumer group on the target;
3. each transaction has records, the sync of their offsets, and the position after them.

Invariants: a record before the position is never written, and a record at or after it is never left out
(batches arrive in the source's order, the next one only after this one is complete). Position, records and
sync are committed together or not at all. So any task may be killed and repeated at any point.

After any error with an unknown outcome (a fenced epoch, a commit that timed out) the producer is closed and
the first two steps are repeated: the position then shows what has been written.

A position is an offset that the mirror's own consumer group has committed on the target, for the
*target's* topic and partition (Kafka commits no offsets for topics that do not exist). It is part of the
transaction of the records (`send_offsets_to_transaction`); the other values are in the commit's metadata.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from ottla_pipeline.errors import coordinator_hint
from ottla_pipeline.mirroring.syncs import OffsetSyncReader
from ottla_pipeline.mirroring.target import MirroredTopic, Target, forwarded_headers
from ottla_pipeline.mirroring.translation import Lineage, OffsetSync, OffsetSyncKey, runs_of, slot_of

if TYPE_CHECKING:
    import pyarrow as pa

REQUEST_S = 60.0
POLL_EVERY = 1000
REPORT_EVERY = 256
"""One of so many deliveries has a callback: enough to know all offsets if no other producer writes."""
BATCH_BYTES_MAX = 1_000_000
MESSAGE_BYTES_MAX = 1_000_000_000
"""Disables librdkafka's own limit: that of the target's topic applies."""
ATTEMPTS = 3


class WriteFailed(Exception):
    """A partition could not be written; the message has its name and the target's error."""


@dataclass(slots=True)
class Written:
    """The counts of one task."""

    records: int = 0
    bytes: int = 0
    skipped: int = 0
    """Written by an earlier attempt of the task."""
    looped: int = 0
    """Skipped, because they came from the target."""
    transactions: int = 0
    produce_s: float = 0.0
    commit_s: float = 0.0


class PartitionWriter:
    """Writes one partition of one topic; opened on first use, and again after an error."""

    def __init__(self, target: Target, mirrored: MirroredTopic, partition: int) -> None:
        self._target = target
        self._mirrored = mirrored
        self._partition = partition
        self._producer: Producer | None = None
        self._group: object = None
        self._position = Position(mirrored.lineage)
        self._failed: KafkaError | None = None

    @property
    def name(self) -> str:
        return f"{self._mirrored.source}-{self._partition}"

    def write(self, batches: Sequence[pa.RecordBatch], written: Written) -> None:
        """Writes those of these records that are not on the target yet, in one transaction. Raises
        WriteFailed."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                if self._producer is None:
                    self._open()
                fresh = [new for batch in batches if (new := self._unwritten(batch)).num_rows]
                if fresh:
                    self._transaction(fresh, written)
                break
            except (KafkaException, SystemError) as error:
                cause = error_of(error)
                if cause is None:
                    raise
                self.close()
                if attempt == ATTEMPTS:
                    raise WriteFailed(self._failure_message(self._failed or cause)) from None
        written.skipped += sum(batch.num_rows for batch in batches) - sum(b.num_rows for b in fresh)

    def close(self) -> None:
        """Closes the connections; the next writer's `init_transactions` ends an open transaction."""
        if self._producer is not None:
            self._producer.purge()
        self._producer = self._group = None

    def _failure_message(self, error: KafkaError) -> str:
        return (
            f"{self.name} to {self._mirrored.target} on {self._target.naming.target}: {error.str()} "
            f"({error.name()}), {ATTEMPTS} times{coordinator_hint(dict(self._target.settings), error)}"
        )

    # ------------------------------------------------------------------ opening

    def _open(self) -> None:
        settings = dict(self._target.settings)
        limits = self._target.limits
        producer = Producer(
            {
                "linger.ms": 5,
                **settings,
                "transactional.id": f"{self._target.mirror}/{self.name}",
                "transaction.timeout.ms": limits.timeout_ms,
                "batch.size": min(BATCH_BYTES_MAX, self._mirrored.message_bytes_max),
                "message.max.bytes": MESSAGE_BYTES_MAX,
                "queue.buffering.max.messages": 2 * limits.records_max + 1000,
            }
        )
        self._failed = None
        producer.init_transactions(REQUEST_S)
        self._producer = producer
        consumer = Consumer(
            {
                **settings,
                "group.id": self._target.mirror,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",  # a position of an open transaction is waited for
                "allow.auto.create.topics": False,
            }
        )
        try:
            found = self._committed(consumer)
            self._group = consumer.consumer_group_metadata()
        finally:
            consumer.close()
        found = found or self._position_from_syncs()
        self._position = resume_position(found, self._mirrored.lineage, self.name)

    def _committed(self, consumer: Consumer) -> Position | None:
        where = TopicPartition(self._mirrored.target, self._partition)
        (found,) = consumer.committed([where], timeout=REQUEST_S)
        if found.error is not None:
            raise KafkaException(found.error)
        return Position.parse(found.offset, found.metadata) if found.offset >= 0 else None

    def _position_from_syncs(self) -> Position | None:
        """The position in the syncs, for the case that the group has none or Kafka has deleted it."""
        with OffsetSyncReader(dict(self._target.settings), self._target.syncs) as reader:
            sync = reader.catch_up(open_too=True).latest(self._mirrored.source, self._partition)
        return Position(sync.lineage, sync.position, sync.number + 1) if sync else None

    # ------------------------------------------------------------------ writing

    def _unwritten(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The records at the position and after."""
        offsets = batch.column("offset")
        if not len(offsets) or offsets[0].as_py() >= self._position.offset:
            return batch
        if offsets[-1].as_py() < self._position.offset:
            return batch.slice(batch.num_rows)
        new = sum(1 for offset in offsets.to_pylist() if offset >= self._position.offset)
        return batch.slice(batch.num_rows - new)

    def _transaction(self, batches: Sequence[pa.RecordBatch], written: Written) -> None:
        assert self._producer is not None
        producer, began = self._producer, time.monotonic()
        sources: list[int] = []
        reports: list[tuple[int, int]] = []
        position = batches[-1].column("offset")[-1].as_py() + 1
        assert position > self._position.offset, "a transaction moves the position on"
        producer.begin_transaction()
        looped = 0
        for number, batch in enumerate(batches):
            looped += self._produce(batch, sources, reports, last=number == len(batches) - 1)
        if not sources:
            producer.abort_transaction(REQUEST_S)  # all records had passed the target: nothing to write
            written.looped += looped
            return
        self._flush(producer)
        runs = tuple(runs_of(sources, sorted(reports)))
        sync = OffsetSync(self._mirrored.lineage, self._position.number, position, runs)
        key = OffsetSyncKey(self._mirrored.source, self._partition, slot_of(sync.number))
        producer.produce(self._target.syncs, sync.encode(), key.encode(), partition=0)
        following = Position(self._mirrored.lineage, position, sync.number + 1)
        where = TopicPartition(self._mirrored.target, self._partition, position, following.metadata())
        produced = time.monotonic()
        producer.send_offsets_to_transaction([where], self._group, REQUEST_S)
        producer.commit_transaction(REQUEST_S)
        self._position = following
        written.records += len(sources)
        written.bytes += sum(batch.nbytes for batch in batches)
        written.looped += looped
        written.transactions += 1
        written.produce_s += produced - began
        written.commit_s += time.monotonic() - produced

    def _produce(
        self, batch: pa.RecordBatch, sources: list[int], reports: list[tuple[int, int]], *, last: bool
    ) -> int:
        """Hands a batch to the producer; returns the number of records that are left out."""
        assert self._producer is not None
        produce, poll = self._producer.produce, self._producer.poll
        topic, partition, naming = self._mirrored.target, self._partition, self._target.naming
        marks, looped = naming.marks_records, 0
        offsets = batch.column("offset").to_pylist()
        all_headers = headers_of(batch.column("headers"), len(offsets))
        rows = zip(
            offsets,
            batch.column("value").to_pylist(),
            batch.column("key").to_pylist(),
            batch.column("timestamp").to_pylist(),
            all_headers,
            strict=True,
        )
        for offset, value, key, timestamp, headers in rows:
            if marks:
                headers = forwarded_headers(headers, naming)
                if headers is None:
                    looped += 1
                    continue
            index = len(sources)
            report = None
            if index % REPORT_EVERY == 0 or (last and offset == offsets[-1]):
                report = partial(self._report, reports, index)
            while True:
                try:
                    if headers:
                        produce(
                            topic,
                            value,
                            key,
                            partition,
                            on_delivery=report,
                            timestamp=timestamp or 1,
                            headers=headers,
                        )
                    else:
                        produce(topic, value, key, partition, on_delivery=report, timestamp=timestamp or 1)
                    break
                except BufferError:
                    poll(0.1)
            sources.append(offset)
            if index % POLL_EVERY == 0:
                poll(0)
        return looped

    def _report(
        self, reports: list[tuple[int, int]], index: int, error: KafkaError | None, message: Message
    ) -> None:
        """A delivery report, from `poll` and `flush`."""
        if error is not None:
            self._failed = self._failed or error
            return
        offset = message.offset()
        assert offset is not None
        reports.append((index, offset))

    def _flush(self, producer: Producer) -> None:
        deadline = time.monotonic() + self._target.limits.timeout_ms / 1000
        while producer.flush(1.0) and time.monotonic() < deadline:
            pass
        if self._failed is not None:
            raise KafkaException(self._failed)


def error_of(error: BaseException) -> KafkaError | None:
    """librdkafka's error, or None for another exception. confluent-kafka raises a fatal error before it
    runs pending delivery reports, and Python then raises a SystemError for it."""
    cause = error if isinstance(error, KafkaException) else error.__cause__
    return cause.args[0] if isinstance(cause, KafkaException) else None


def headers_of(column: pa.Array, rows: int) -> list[list[tuple[str, str | bytes | None]] | None]:
    """Each record's headers in confluent-kafka's form; None for a record without headers."""
    if column.null_count == rows:
        return [None] * rows
    return [
        [(header["key"], header["value"]) for header in headers] if headers else None
        for headers in column.to_pylist()
    ]


class PositionRefused(Exception):
    """A committed position does not belong to the mirrored topic; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Position:
    """`offset` is the next source offset to mirror; `number` is that of the next transaction."""

    lineage: Lineage
    offset: int = 0
    number: int = 0

    def metadata(self) -> str:
        body = {"source": self.lineage.source, "target": self.lineage.target, "number": self.number}
        return json.dumps(body, separators=(",", ":"))

    @staticmethod
    def parse(offset: int, metadata: str | None) -> Position:
        """Parses a committed position. Raises PositionRefused if another program committed it."""
        try:
            body = json.loads(metadata or "")
            return Position(Lineage(str(body["source"]), str(body["target"])), offset, int(body["number"]))
        except (ValueError, KeyError, TypeError):
            raise PositionRefused(
                f"offset {offset} has the metadata {metadata!r}, which was not written by a mirror"
            ) from None


def resume_position(found: Position | None, lineage: Lineage, what: str) -> Position:
    """The position to continue from, given the committed position and the present topics.

    A target topic that was created again has no record of the source: it is filled from the batch's
    beginning. A source topic that was created again has other records at the same offsets: only its owner
    can decide what becomes of the old ones, so this raises PositionRefused.
    """
    if found is None or found.lineage.target != lineage.target:
        return Position(lineage)
    if found.lineage.source != lineage.source:
        raise PositionRefused(
            f"{what} is mirrored up to offset {found.offset} from the topic {found.lineage.source}, and the "
            f"source has another of that name now, {lineage.source} (cluster/topic id). Delete the target's "
            "topic, or mirror under another name, and start with a new checkpoint"
        )
    return found

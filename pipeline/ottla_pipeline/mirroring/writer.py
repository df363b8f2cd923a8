"""One source partition into the target, exactly once.

Called by the tasks; runs in Spark's Python workers. A writer is a transactional producer whose
`transactional.id` belongs to the source partition alone:

1. `init_transactions` fences whoever wrote that partition before (a task of a former attempt, a driver that
was
   thought dead) and ends what it left open;
2. only then the committed position is read, from the mirror's consumer group on the target;
3. each transaction holds records, the sync of their offsets, and the position behind them.

Invariants: a record before the position is never written, one at or after it never left out (batches come in
the source's order, and the next batch only when this one is through); position, records and sync are there
together or not at all. So any task may be killed and run again at any point, whatever Spark remembers.

On any error whose outcome is in doubt (a fenced epoch, a commit that timed out) the producer is thrown away
and the two first steps are taken again: the position then says what has been written.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from ottla_pipeline.coordinator import hint
from ottla_pipeline.mirroring.naming import pass_on
from ottla_pipeline.mirroring.positions import Position, position_for
from ottla_pipeline.mirroring.syncs import SyncReader
from ottla_pipeline.mirroring.target import Target, TopicFacts
from ottla_pipeline.mirroring.translation import Sync, SyncKey, runs_of, slot_of

if TYPE_CHECKING:
    import pyarrow as pa

REQUEST_S = 60.0
POLL_EVERY = 1000
REPORT_EVERY = 256
"""Of so many deliveries one is reported back: enough to know all, where nobody else writes."""
BATCH_BYTES_MAX = 1_000_000
MESSAGE_BYTES_MAX = 1_000_000_000
"""librdkafka's own limit out of the way: the target's topic has the say."""
ATTEMPTS = 3


class WriteFailed(Exception):
    """A partition could not be written; the message says which, and what the target answered."""


@dataclass(slots=True)
class Written:
    """What one task did."""

    records: int = 0
    bytes: int = 0
    skipped: int = 0
    """Were written by a former attempt."""
    looped: int = 0
    """Had been on the target already."""
    transactions: int = 0
    produce_s: float = 0.0
    commit_s: float = 0.0


class PartitionWriter:
    """Writes one partition of one topic; opened on first use, and again after an error."""

    def __init__(self, target: Target, facts: TopicFacts, partition: int) -> None:
        self._target = target
        self._facts = facts
        self._partition = partition
        self._producer: Producer | None = None
        self._group: object = None
        self._position = Position(facts.lineage)
        self._failed: KafkaError | None = None

    @property
    def name(self) -> str:
        return f"{self._facts.source}-{self._partition}"

    def write(self, batches: Sequence[pa.RecordBatch], written: Written) -> None:
        """One transaction with those of these records that are not there yet. WriteFailed if it cannot be."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                if self._producer is None:
                    self._open()
                fresh = [new for batch in batches if (new := self._unwritten(batch)).num_rows]
                if fresh:
                    self._transaction(fresh, written)
                break
            except (KafkaException, SystemError) as error:
                told = error_of(error)
                if told is None:
                    raise
                self.close()
                if attempt == ATTEMPTS:
                    raise WriteFailed(self._told(self._failed or told)) from None
        written.skipped += sum(batch.num_rows for batch in batches) - sum(b.num_rows for b in fresh)

    def close(self) -> None:
        """Let go of the connections; an open transaction is left to the next one's `init_transactions`."""
        if self._producer is not None:
            self._producer.purge()
        self._producer = self._group = None

    def _told(self, error: KafkaError) -> str:
        return (
            f"{self.name} to {self._facts.target} on {self._target.naming.target}: {error.str()} "
            f"({error.name()}), {ATTEMPTS} times{hint(dict(self._target.settings), error)}"
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
                "batch.size": min(BATCH_BYTES_MAX, self._facts.message_bytes_max),
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
        found = found or self._remembered()
        self._position = position_for(found, self._facts.lineage, self.name)

    def _committed(self, consumer: Consumer) -> Position | None:
        where = TopicPartition(self._facts.target, self._partition)
        (found,) = consumer.committed([where], timeout=REQUEST_S)
        if found.error is not None:
            raise KafkaException(found.error)
        return Position.parse(found.offset, found.metadata) if found.offset >= 0 else None

    def _remembered(self) -> Position | None:
        """The position as the syncs have it: the group's was never there, or was forgotten."""
        with SyncReader(dict(self._target.settings), self._target.syncs) as reader:
            sync = reader.catch_up(open_too=True).latest(self._facts.source, self._partition)
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
            producer.abort_transaction(REQUEST_S)  # all of them had been there: nothing to write
            written.looped += looped
            return
        self._flush(producer)
        runs = tuple(runs_of(sources, sorted(reports)))
        sync = Sync(self._facts.lineage, self._position.number, position, runs)
        key = SyncKey(self._facts.source, self._partition, slot_of(sync.number))
        producer.produce(self._target.syncs, sync.encode(), key.encode(), partition=0)
        following = Position(self._facts.lineage, position, sync.number + 1)
        where = TopicPartition(self._facts.target, self._partition, position, following.metadata())
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
        """Hands a batch to the producer; how many of its records are left out."""
        assert self._producer is not None
        produce, poll = self._producer.produce, self._producer.poll
        topic, partition, naming = self._facts.target, self._partition, self._target.naming
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
                headers = pass_on(headers, naming)
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
    """What librdkafka said; None if it was not librdkafka. confluent-kafka raises a fatal error before it
    runs the delivery reports behind it, which Python then blames for it with a SystemError."""
    told = error if isinstance(error, KafkaException) else error.__cause__
    return told.args[0] if isinstance(told, KafkaException) else None


def headers_of(column: pa.Array, rows: int) -> list[list[tuple[str, str | bytes | None]] | None]:
    """Each record's headers as librdkafka wants them; None for a record without any."""
    if column.null_count == rows:
        return [None] * rows
    return [
        [(header["key"], header["value"]) for header in headers] if headers else None
        for headers in column.to_pylist()
    ]

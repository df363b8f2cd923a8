"""Writes batches of records to topics, each batch once: in one transaction, with the number of the batch.

Called by jobs from the driver, in `foreachBatch`. The number is stored as the committed offset of a consumer
group of its own (KIP-98's TxnOffsetCommit), on partition 0 of one of the topics. So after a crash the group
shows whether the repeated batch was written, and readers with `isolation.level=read_committed` see each batch
whole, once.

Invariants: there is one producer per transactional id, and a later one fences an earlier one; a batch's
records and its number are committed together or not at all. Offsets of a group expire
(`offsets.retention.minutes`, a week): a job that died between the end of a transaction and Spark's own
commit, and is restarted later than that, writes this one batch a second time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from ottla_pipeline.errors import JobStartError, coordinator_hint

REQUEST_S: Final = 30.0
TOPIC_S: Final = 10.0
COMMIT_S: Final = 120.0
TRANSACTION_TIMEOUT_MS: Final = 120_000
ATTEMPTS: Final = 3
_NOTHING_COMMITTED: Final = -1001

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """A record to write; its key determines the partition."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class TransactionalWriter:
    """Usage: `open`, then `write` for each batch in order. `owner` is the query that numbers the batches;
    `topics` are written to, and the number is stored with the topic `marker`."""

    def __init__(
        self,
        settings: Mapping[str, str],
        *,
        transactional_id: str,
        group: str,
        marker: str,
        topics: Sequence[str] = (),
    ) -> None:
        self._settings = dict(settings)
        self._transactional_id = transactional_id
        self._group = group
        self._marker = marker
        self._topics = (marker, *topics)
        self._producer: Producer | None = None
        self._metadata: Any = None
        self._owner = ""
        self._next = 0

    def open(self, owner: str) -> int:
        """The number of the first batch that was not written (0 before the first). Ends an open
        transaction of an earlier run. Raises JobStartError if the batches belong to another query, if a
        topic does not exist, or if there are too few brokers for transactions; KafkaException if brokers
        do not respond."""
        self._owner = owner
        self._producer = Producer(
            {
                "linger.ms": "20",
                "compression.type": "lz4",
                "transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS),
                **self._settings,
                "transactional.id": self._transactional_id,
            }
        )
        try:
            self._producer.init_transactions(COMMIT_S)
        except KafkaException as error:
            if why := coordinator_hint(self._settings, error.args[0]):
                raise JobStartError(f"topic {self._marker} cannot be written{why}") from error
            raise
        for topic in self._topics:
            self._find(topic)
        consumer = Consumer({**self._settings, "group.id": self._group, "isolation.level": "read_committed"})
        try:
            (found,) = consumer.committed([TopicPartition(self._marker, 0)], REQUEST_S)
            self._metadata = consumer.consumer_group_metadata()
        finally:
            consumer.close()
        if found.error is not None:
            raise KafkaException(found.error)
        if found.offset == _NOTHING_COMMITTED:
            self._next = 0
        elif found.metadata != owner:
            raise JobStartError(
                f"group {self._group} shows that topic {self._marker} holds batches of another checkpoint "
                f"(query {found.metadata}); this one is {owner}. Results would be written twice. Use that "
                "checkpoint, or give the job another name."
            )
        else:
            self._next = int(found.offset)
        return self._next

    def _find(self, topic: str) -> None:
        """Requests the metadata of a topic, which creates it where auto.create.topics.enable is set. Raises
        JobStartError if the topic does not exist: a transaction would fail only after minutes."""
        assert self._producer is not None
        until = time.monotonic() + TOPIC_S
        while self._producer.list_topics(topic, REQUEST_S).topics[topic].error is not None:
            if time.monotonic() > until:
                raise JobStartError(
                    f"topic {topic} does not exist, and the brokers do not create it automatically "
                    "(auto.create.topics.enable=false): create it"
                )
            time.sleep(0.2)

    def write(self, batch_id: int, records: Callable[[], Iterable[OutgoingRecord]]) -> int:
        """Writes the batch's records, unless they are there; returns the number of records written.
        `records` is called again if a transaction had to be aborted. A batch without records stores no
        number. Raises KafkaException if the transaction fails."""
        if batch_id < self._next:
            return 0
        for attempt in range(ATTEMPTS):
            try:
                written = self._transaction(batch_id, records())
                self._next = batch_id + 1
                return written
            except KafkaException as error:
                self._abort_or_raise(error.args[0], last=attempt == ATTEMPTS - 1)
        raise AssertionError("the last attempt returned or raised")

    def _transaction(self, batch_id: int, records: Iterable[OutgoingRecord]) -> int:
        assert self._producer is not None, "open comes first"
        written = 0
        for record in records:
            if not written:
                self._producer.begin_transaction()
            self._produce(record)
            written += 1
        if not written:
            return 0
        position = TopicPartition(self._marker, 0, batch_id + 1, self._owner)
        self._producer.send_offsets_to_transaction([position], self._metadata, COMMIT_S)
        self._producer.commit_transaction(COMMIT_S)
        return written

    def _produce(self, record: OutgoingRecord) -> None:
        assert self._producer is not None
        while True:
            try:
                self._producer.produce(record.topic, record.value, record.key, headers=list(record.headers))
                self._producer.poll(0)
                return
            except BufferError:
                self._producer.poll(0.1)

    def _abort_or_raise(self, error: KafkaError, *, last: bool) -> None:
        """Aborts a failed attempt for the next one; raises KafkaException if none is possible."""
        assert self._producer is not None
        if not error.fatal():
            self._producer.abort_transaction(COMMIT_S)
            if not last:
                return
        raise KafkaException(error)

    def close(self) -> None:
        """Closes the producer. An open transaction is aborted by the next start or its time-out."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None

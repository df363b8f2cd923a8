"""A batch of records to topics, each batch once: in one transaction with the number of the batch.

Called by jobs from the driver, in `foreachBatch`. The number is kept where a transaction can keep it: as the
committed offset of a consumer group that is used for nothing else (KIP-98's TxnOffsetCommit), on partition 0
of one of the topics. So after a crash the group says whether the batch that Spark runs again is there
already, and readers with `isolation.level=read_committed` see each batch whole, once.

Invariants: one producer a transactional id, whoever opens it later fences the one before; a batch's records
and its number are committed together or not at all. Offsets of a group expire (`offsets.retention.minutes`, a
week): a job that died between the end of a transaction and Spark's own commit, and stays away for longer,
writes that one batch a second time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from ottla_pipeline.connectivity import coordinator_hint
from ottla_pipeline.errors import JobStartError

REQUEST_S: Final = 30.0
TOPIC_S: Final = 10.0
COMMIT_S: Final = 120.0
TRANSACTION_TIMEOUT_MS: Final = 120_000
ATTEMPTS: Final = 3
_NOTHING_COMMITTED: Final = -1001

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One record to write; its partition is the key's."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class TransactionalTopics:
    """Use: `open`, then `write` for each batch in turn. `owner` names whose batches are numbered; `topics`
    are written to, and `marker` is the one that the number is kept with."""

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
        """The number of the first batch that is not there yet (0 before the first). Ends what an earlier run
        left open. JobStartError when the batches there are another's, a topic is not there, or brokers are
        too few for transactions; KafkaException when they do not answer."""
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
                raise JobStartError(f"topic {self._marker} cannot be written to{why}") from error
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
                f"group {self._group} says that topic {self._marker} holds batches of another checkpoint "
                f"(query {found.metadata}); this one is {owner}. Results would be there twice. Use that "
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
                    f"there is no topic {topic}, and the brokers do not make it by themselves "
                    "(auto.create.topics.enable=false): create it"
                )
            time.sleep(0.2)

    def write(self, batch_id: int, records: Callable[[], Iterable[Outgoing]]) -> int:
        """Writes the batch's records, unless it is there already; how many were written. `records` is called
        again when a transaction had to be given up. A batch of no records leaves no mark. KafkaException when
        there is no transaction to be had."""
        if batch_id < self._next:
            return 0
        for attempt in range(ATTEMPTS):
            try:
                written = self._transaction(batch_id, records())
                self._next = batch_id + 1
                return written
            except KafkaException as error:
                self._give_up(error.args[0], last=attempt == ATTEMPTS - 1)
        raise AssertionError("the last attempt returned or raised")

    def _transaction(self, batch_id: int, records: Iterable[Outgoing]) -> int:
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

    def _produce(self, record: Outgoing) -> None:
        assert self._producer is not None
        while True:
            try:
                self._producer.produce(record.topic, record.value, record.key, headers=list(record.headers))
                self._producer.poll(0)
                return
            except BufferError:
                self._producer.poll(0.1)

    def _give_up(self, error: KafkaError, *, last: bool) -> None:
        """After a failed attempt: aborts it, so that another can be made; raises if there can be none."""
        assert self._producer is not None
        if not error.fatal():
            self._producer.abort_transaction(COMMIT_S)
            if not last:
                return
        raise KafkaException(error)

    def close(self) -> None:
        """What was not committed is aborted, here or when the job is started again."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None

"""The schemas topic as a log: read continuously, written by one instance at a time. The only module with
Kafka clients.

Called by `store`. All calls block; `read` runs in a thread of its own, the others in the caller's thread.

Writers are fenced by one transactional id for the topic: a claim aborts the open transaction of the
previous claimant, whose next transaction fails. So a record is in the log only if no other instance
claimed between the claimant's read to the end and its commit. Instances need not know each other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from ottla_pipeline.errors import coordinator_hint

log = logging.getLogger(__name__)
REQUEST_S: Final = 10.0
KEPT_S: Final = 3.0
CLAIM_S: Final = 20.0
COMMIT_S: Final = 10.0
TRANSACTION_MS: Final = 15_000
POLL_S: Final = 0.5
BATCH_MAX: Final = 1000
WRITE_HEADER: Final = "ottla-write"
SAFE_REPLICAS: Final = 3
_TOPIC_GONE: Final = frozenset(
    (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._UNKNOWN_PARTITION)
)


class TopicUnusable(Exception):
    """The topic cannot store schemas; the message says why and what to do."""


class LogFailed(Exception):
    """A Kafka operation failed; whether a write is in the log is unknown."""


class RecordTooLarge(Exception):
    """A record is larger than the topic or the brokers permit."""


class LogRecord(NamedTuple):
    """A record; `write` is the id of the write that it completes."""

    offset: int
    key: bytes | None
    value: bytes | None
    write: bytes | None


Deliver = Callable[[Sequence[LogRecord], int], None]
"""Takes records in order, and the offset up to which all has been read."""


class TopicLog:
    """The log. `options` are librdkafka settings of all its clients."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        options: Mapping[str, Any],
        *,
        replication_factor: int = SAFE_REPLICAS,
    ) -> None:
        self.topic = topic
        self._replication_factor = replication_factor
        self._client = {
            "bootstrap.servers": bootstrap,
            "client.id": "ottla-registry",
            "logger": log,
            **options,
        }
        self._partition = TopicPartition(topic, 0)
        self._offset_client: Consumer | None = None
        self._offset_lock = threading.Lock()
        self._producer: Producer | None = None
        self._stopping = threading.Event()

    # -- The topic --

    def ensure_topic(self) -> None:
        """Creates the topic, or checks the existing one. Raises TopicUnusable, LogFailed."""
        admin = AdminClient(self._client)
        try:
            known = admin.list_topics(timeout=REQUEST_S)
            if self.topic not in known.topics:
                self._create(admin, len(known.brokers))
                known = admin.list_topics(timeout=REQUEST_S)
            partitions = len(known.topics[self.topic].partitions) if self.topic in known.topics else 1
            if partitions != 1:
                reason = f"has {partitions} partitions and must have one, which orders its records"
                raise TopicUnusable(f"topic {self.topic} {reason}")
            resource = ConfigResource(ResourceType.TOPIC, self.topic)
            configs = admin.describe_configs([resource], request_timeout=REQUEST_S)[resource].result()
        except KafkaException as error:
            admin.poll(0)  # logs the client's errors, for example a refused password
            raise LogFailed(f"topic {self.topic}: {_message(error)}") from error
        policy = configs["cleanup.policy"].value
        if policy != "compact":
            reason = f"has cleanup.policy={policy}, which deletes schemas by age; set it to compact"
            raise TopicUnusable(f"topic {self.topic} {reason}")

    def _create(self, admin: AdminClient, brokers: int) -> None:
        replicas = max(1, min(self._replication_factor, brokers))
        if replicas < self._replication_factor:
            log.warning("topic %s: %d brokers, so %d replicas", self.topic, brokers, replicas)
        config = {"cleanup.policy": "compact"}
        if replicas >= SAFE_REPLICAS:
            config["min.insync.replicas"] = "2"
        new = NewTopic(self.topic, 1, replicas, config=config)
        try:
            admin.create_topics([new], request_timeout=REQUEST_S)[self.topic].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    # -- Reading --

    def read(self, deliver: Deliver) -> None:
        """Delivers all records from the first one on, until `stop`. Raises LogFailed if the topic was
        deleted or truncated."""
        reader = self._consumer()
        try:
            reader.assign([TopicPartition(self.topic, 0, OFFSET_BEGINNING)])
            while not self._stopping.is_set():
                first = reader.poll(POLL_S)
                if first is not None:
                    self._deliver([first, *reader.consume(BATCH_MAX, timeout=0)], deliver)
        finally:
            reader.close()

    def _deliver(self, messages: Sequence[Message], deliver: Deliver) -> None:
        found: list[LogRecord] = []
        reached = 0
        for message in messages:
            error, offset = message.error(), message.offset()
            if error is None:
                assert offset is not None
                headers = dict(message.headers() or ())
                write = headers.get(WRITE_HEADER)
                found.append(
                    LogRecord(
                        offset, message.key(), message.value(), write if isinstance(write, bytes) else None
                    )
                )
                reached = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                reached = max(reached, offset or 0)  # offsets before it may be transaction markers
            elif error.code() in _TOPIC_GONE:
                raise LogFailed(
                    f"topic {self.topic} was deleted or truncated while it was read: {error.str()}"
                )
            else:
                log.warning("reading topic %s: %s", self.topic, error.str())
        if reached:
            deliver(found, reached)

    def end(self) -> int:
        """The offset after the last readable record. Raises LogFailed.

        Uses a client of its own, because a request of the reader would wait for its pending fetch. A
        client that reads nothing does not notice a dead leader, so a client without a response is
        replaced.
        """
        with self._offset_lock:
            kept = self._offset_client is not None
            for timeout_s in (KEPT_S, REQUEST_S) if kept else (REQUEST_S,):
                if self._offset_client is None:
                    self._offset_client = self._consumer()
                reason = "its leader does not answer"
                try:
                    offsets = self._offset_client.get_watermark_offsets(
                        self._partition, timeout_s, cached=False
                    )
                    if offsets is not None:
                        return offsets[1]
                except KafkaException as error:
                    reason = _message(error)
                self._offset_client.close()
                self._offset_client = None
        raise LogFailed(f"topic {self.topic}: {reason}")

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                **self._client,
                "group.id": "ottla-registry",  # librdkafka requires it; there is no membership or commit
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "allow.auto.create.topics": False,
            }
        )

    # -- Writing --

    def claim(self) -> None:
        """Makes this instance the writer; the open transaction of another one has ended when this returns.
        Raises LogFailed."""
        self.release()
        began = time.monotonic()
        producer = Producer(
            {
                **self._client,
                "transactional.id": f"ottla-registry-{self.topic}",
                "transaction.timeout.ms": TRANSACTION_MS,
                "delivery.timeout.ms": TRANSACTION_MS - 5000,
                "linger.ms": 0,
            }
        )
        try:
            producer.init_transactions(CLAIM_S)
        except KafkaException as error:
            why = _message(error) + coordinator_hint(self._client, error.args[0])
            raise LogFailed(f"topic {self.topic}: could not claim the writer role: {why}") from error
        log.info(
            "claimed the writer role of topic %s (%.0f ms)", self.topic, (time.monotonic() - began) * 1000
        )
        self._producer = producer

    def append(self, records: Sequence[tuple[bytes, bytes | None]], write: bytes) -> None:
        """Appends all records or none; they are readable soon after this returns. Raises LogFailed,
        RecordTooLarge."""
        producer = self._producer
        assert producer is not None, "claim first"
        refused: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                refused.append(error)

        try:
            producer.begin_transaction()
            for number, (key, value) in enumerate(records, 1):
                headers: list[tuple[str, str | bytes | None]] = []
                if number == len(records):
                    headers.append((WRITE_HEADER, write))
                producer.produce(self.topic, value, key, partition=0, headers=headers, on_delivery=delivered)
            producer.commit_transaction(COMMIT_S)
        except KafkaException as error:
            reasons = [each.code() for each in refused] + [error.args[0].code()]
            if KafkaError.MSG_SIZE_TOO_LARGE in reasons:
                raise RecordTooLarge(f"larger than topic {self.topic} takes (max.message.bytes)") from error
            raise LogFailed(f"topic {self.topic}: {_message(error)}") from error

    def release(self) -> None:
        """Ends this instance's writing. An open transaction ends with the next claim or its time-out."""
        self._producer = None

    def stop(self) -> None:
        """Ends `read`."""
        self._stopping.set()
        with self._offset_lock:
            client, self._offset_client = self._offset_client, None
        if client is not None:
            client.close()


def _message(error: KafkaException) -> str:
    inner = error.args[0]
    return str(inner.str()) if isinstance(inner, KafkaError) else str(error)

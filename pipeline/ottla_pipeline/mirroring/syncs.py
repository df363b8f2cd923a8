"""Reads the topic of offset syncs, which has a record for each of the mirror's transactions.

Called by the group sync, which keeps a `OffsetSyncStore` up to date with it, and by the writer if it finds no
committed position: Kafka deletes a group's offsets after `offsets.retention.minutes` (a week), but no
record of this topic. It has one partition, so the syncs of a source partition are in order.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from ottla_pipeline.mirroring.translation import OffsetSync, OffsetSyncKey, OffsetSyncStore

POLL_S = 0.5
LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]
REQUEST_S = 30.0
CATCH_UP_S = 900.0
"""The maximum duration of a transaction (transaction.max.timeout.ms)."""


class SyncsUnreadable(Exception):
    """The topic could not be read to its end; the message has the position."""


class OffsetSyncReader:
    """Reads the topic incrementally."""

    def __init__(self, settings: Mapping[str, str], topic: str) -> None:
        self.table = OffsetSyncStore()
        self._topic = topic
        self._admin = AdminClient(dict(settings))
        self._reached = 0
        self._consumer = Consumer(
            {
                **settings,
                "group.id": topic,  # librdkafka requires it; there is no membership or commit
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "allow.auto.create.topics": False,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._consumer.close()

    def catch_up(self, *, open_too: bool = False, within_s: float = CATCH_UP_S) -> OffsetSyncStore:
        """The table with everything that is committed now. `open_too` also waits for open transactions, so
        that nothing that was committed before this call is missing."""
        end = self._end(IsolationLevel.READ_UNCOMMITTED if open_too else IsolationLevel.READ_COMMITTED)
        deadline = time.monotonic() + within_s
        while self._reached < end:
            if time.monotonic() > deadline:
                raise SyncsUnreadable(
                    f"{self._topic}: read up to offset {self._reached} of {end} within {within_s:.0f} s; "
                    "a transaction stays open, or its broker cannot be reached"
                )
            for message in self._consumer.consume(1000, timeout=POLL_S):
                error, offset = message.error(), message.offset()
                assert offset is not None
                if error is None:
                    self._add(message.key(), message.value())
                    self._reached = offset + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._reached = max(self._reached, offset)
                elif not error.retriable():
                    raise KafkaException(error)
        return self.table

    def _add(self, key: bytes | str | None, value: bytes | str | None) -> None:
        if key and value:
            assert isinstance(key, bytes)
            assert isinstance(value, bytes)
            self.table.add(OffsetSyncKey.decode(key), OffsetSync.decode(value))

    def _end(self, isolation: IsolationLevel) -> int:
        where = TopicPartition(self._topic, 0)
        found = self._admin.list_offsets(
            {where: LATEST}, isolation_level=isolation, request_timeout=REQUEST_S
        )
        return int(found[where].result(REQUEST_S).offset)

"""Records between the fetcher and the user: deserialization, and records that iteration has not returned.

Called by `Consumer`. Invariant of `PrefetchedRecords`: it holds a record from the poll that returned it until
the user takes the next record, so that a commit never covers records that the user has not taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from operator import length_hint

from ottla.client import errors, serialization
from ottla.client.core.assigned import OffsetAndMetadata
from ottla.client.core.consumer_config import ConsumerConfig
from ottla.client.core.fetch_buffer import Deserialize
from ottla.client.core.types import ConsumerRecord, TopicPartition


class PrefetchedRecords:
    """The records of polls that `async for` and `getone` have not returned yet."""

    def __init__(self) -> None:
        self._parts: deque[tuple[TopicPartition, list[ConsumerRecord], Iterator[ConsumerRecord]]] = deque()

    def __bool__(self) -> bool:
        return any(length_hint(rest) for _, _, rest in self._parts)

    def add(self, records: Mapping[TopicPartition, list[ConsumerRecord]]) -> None:
        self._parts.extend((tp, part, iter(part)) for tp, part in records.items())

    def each(self) -> Iterator[Iterator[ConsumerRecord]]:
        """Iterators over the records of one partition after another; iteration may stop and continue at any
        record."""
        while self._parts:
            yield self._parts[0][2]
            if self._parts and not length_hint(self._parts[0][2]):
                self._parts.popleft()

    def next(self) -> ConsumerRecord | None:
        for rest in self.each():
            for record in rest:
                return record
        return None

    def take(self) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Remove and return all records."""
        taken: dict[TopicPartition, list[ConsumerRecord]] = {}
        for tp, _, rest in self._parts:
            records = list(rest)
            if records:
                taken.setdefault(tp, []).extend(records)
        self._parts.clear()
        return taken

    def before(
        self, consumed: Mapping[TopicPartition, OffsetAndMetadata], *, finished: bool
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets `consumed`, without the records that were not returned; `finished`: whether the last
        returned record counts as processed."""
        result = dict(consumed)
        for number, (tp, records, rest) in reversed(list(enumerate(self._parts))):
            left = length_hint(rest)
            returned = len(records) - left
            if number == 0 and returned and not finished:
                returned -= 1
            if returned < len(records) and tp in result:
                first = records[returned]
                result[tp] = OffsetAndMetadata(first.offset, "", first.leader_epoch if returned else -1)
        return result

    def drop(self, tp: TopicPartition) -> None:
        """Remove the records of a partition, after a seek."""
        self._keep(lambda other: other != tp)

    def keep(self, partitions: Collection[TopicPartition]) -> None:
        self._keep(lambda tp: tp in partitions)

    def clear(self) -> None:
        self._keep(lambda tp: False)

    def _keep(self, which: Callable[[TopicPartition], bool]) -> None:
        for tp, _, rest in self._parts:
            if not which(tp):
                deque(rest, maxlen=0)  # an iteration may be in progress
        self._parts = deque(part for part in self._parts if which(part[0]))


def deserializing(config: ConsumerConfig) -> Deserialize | None:
    """The function that deserializes records by key.deserializer and value.deserializer; None if both are
    unset."""
    of_key = serialization.deserializing(config.key_deserializer)
    of_value = serialization.deserializing(config.value_deserializer)
    if of_key is None and of_value is None:
        return None

    def deserialize(record: ConsumerRecord) -> ConsumerRecord:
        key, value = record.key, record.value
        what = "key"
        try:
            if of_key is not None:
                key = of_key(record.topic, key)
            what = "value"
            if of_value is not None:
                value = of_value(record.topic, value)
        except serialization.SchemaNeeded:
            raise
        except Exception as problem:
            text = f"the {what} cannot be read: {problem}"
            raise errors.DeserializationError(
                record.topic, record.partition, record.offset, text
            ) from problem
        return record._replace(key=key, value=value)

    return deserialize

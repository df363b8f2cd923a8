"""Ottla's client and confluent-kafka behind one interface, so that a scenario runs with either.

Called by `test_client_like_confluent.py`. The interface has what a user sees, in common terms: partitions,
records, rebalance callbacks, and error texts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeAlias

import confluent_kafka
from confluent_kafka import KafkaException

from ottla.client import blocking, errors
from ottla.client.core.assigned import OffsetAndMetadata
from ottla.client.core.types import RecordMetadata, TopicPartition
from ottla.protocol.errors import ErrorCode

WAIT_S = 60.0

Place: TypeAlias = tuple[str, int]
Header: TypeAlias = tuple[str, bytes | None]
Outcome: TypeAlias = tuple[int, int] | str
"""Partition and offset, or what went wrong."""
Settings: TypeAlias = Mapping[str, object]


class Found(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


class Sending(Protocol):
    def send(
        self, topic: str, value: bytes | None, key: bytes | None = None, **more: Any
    ) -> Callable[[], Outcome]:
        """Sends with `partition`, `timestamp_ms` and `headers`. The returned function waits for the
        outcome."""
        ...

    def flush(self) -> None: ...
    def begin(self) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def send_offsets(self, offsets: Mapping[Place, int], consumer: Any) -> None: ...
    def close(self) -> None: ...


class Reading(Protocol):
    callbacks: list[tuple[str, list[int]]]
    """What listeners heard: got, gave or lost, and which partitions."""

    def subscribe(self, topics: Sequence[str] = (), pattern: str | None = None) -> None: ...
    def assign(self, places: Sequence[Place]) -> None: ...
    def assignment(self) -> set[int]: ...
    def poll(self, timeout_s: float = 0.1, most: int = 500) -> list[Found]:
        """Records. Raises KeyError with the error."""
        ...

    def at_end(self) -> bool:
        """Whether all known records have been read."""
        ...

    def seek(self, place: Place, offset: int) -> None: ...
    def pause(self, place: Place) -> None: ...
    def resume(self, place: Place) -> None: ...
    def position(self, place: Place) -> int: ...
    def commit(self, offsets: Mapping[Place, tuple[int, str]] | None = None) -> None: ...
    def commit_later(self, offsets: Mapping[Place, tuple[int, str]]) -> str: ...
    def committed(self, places: Iterable[Place]) -> list[tuple[int, str] | None]: ...
    def offset_at(self, place: Place, timestamp_ms: int) -> int | None: ...
    def ends(self, place: Place) -> tuple[int, int]: ...
    def close(self) -> None: ...


def error_text(error: object) -> str:
    """The error as text that does not depend on the client."""
    if isinstance(error, KafkaException):
        error = error.args[0]
    if isinstance(error, confluent_kafka.KafkaError):
        local = {
            error._AUTO_OFFSET_RESET: "no offset to begin at",
            error._UNKNOWN_PARTITION: "no such topic or partition",
            error._UNKNOWN_TOPIC: "no such topic or partition",
            error.UNKNOWN_TOPIC_OR_PART: "no such topic or partition",
            error._FENCED: "fenced",
            error._PURGE_QUEUE: "aborted",
        }
        return local.get(error.code()) or ErrorCode.of(error.code()).name
    for kind, words in (
        (errors.NoOffsetForPartitionError, "no offset to begin at"),
        (errors.OffsetOutOfRangeError, "no offset to begin at"),
        (errors.RequestTimedOutError, "no such topic or partition"),  # is not in the metadata in time
        (errors.ProducerFencedError, "fenced"),
        (errors.InvalidProducerEpochError, "fenced"),
        (errors.TransactionAbortedError, "aborted"),
    ):
        if isinstance(error, kind):
            return words
    return error.code.name if isinstance(error, errors.BrokerError) else repr(error)


# --- Ottla's -------------------------------------------------------------------------------------


class OurProducer:
    def __init__(self, bootstrap: str, settings: Settings) -> None:
        self._producer = blocking.Producer({"bootstrap.servers": bootstrap, **settings})
        self._producer.start()

    def send(
        self, topic: str, value: bytes | None, key: bytes | None = None, **more: Any
    ) -> Callable[[], Outcome]:
        future = self._producer.send(topic, value, key, **more)

        def outcome() -> Outcome:
            try:
                metadata: RecordMetadata = future.result(WAIT_S)
            except errors.ClientError as error:
                return error_text(error)
            return metadata.partition, metadata.offset

        return outcome

    def flush(self) -> None:
        self._producer.flush(WAIT_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def send_offsets(self, offsets: Mapping[Place, int], consumer: Any) -> None:
        given = {TopicPartition(*place): offset for place, offset in offsets.items()}
        self._producer.send_offsets_to_transaction(given, consumer.metadata())

    def close(self) -> None:
        self._producer.stop(WAIT_S)


class OurConsumer:
    def __init__(self, bootstrap: str, settings: Settings) -> None:
        self._consumer = blocking.Consumer({"bootstrap.servers": bootstrap, **settings})
        self.callbacks: list[tuple[str, list[int]]] = []

    def subscribe(self, topics: Sequence[str] = (), pattern: str | None = None) -> None:
        def listener(what: str) -> Callable[[list[TopicPartition]], None]:
            return lambda places: self.callbacks.append((what, sorted(tp.partition for tp in places)))

        self._consumer.subscribe(
            topics,
            pattern=pattern,
            on_assigned=lambda places: listener("got")(places) if places else None,
            on_revoked=listener("gave"),
            on_lost=listener("lost"),
        )

    def assign(self, places: Sequence[Place]) -> None:
        self._consumer.assign(places)

    def assignment(self) -> set[int]:
        return {tp.partition for tp in self._consumer.assignment()}

    def poll(self, timeout_s: float = 0.1, most: int = 500) -> list[Found]:
        try:
            taken = self._consumer.poll(timeout_s, most)
        except errors.ClientError as error:
            raise KeyError(error_text(error)) from error
        return [
            Found(r.topic, r.partition, r.offset, r.timestamp_ms, r.key, r.value, tuple(r.headers))
            for rows in taken.values()
            for r in rows
        ]

    def at_end(self) -> bool:
        return all(self._consumer.lag(tp) == 0 for tp in self._consumer.assignment())

    def seek(self, place: Place, offset: int) -> None:
        self._consumer.seek(place, offset)

    def pause(self, place: Place) -> None:
        self._consumer.pause(place)

    def resume(self, place: Place) -> None:
        self._consumer.resume(place)

    def position(self, place: Place) -> int:
        return self._consumer.position(place)

    def commit(self, offsets: Mapping[Place, tuple[int, str]] | None = None) -> None:
        self._consumer.commit(None if offsets is None else _ours(offsets))

    def commit_later(self, offsets: Mapping[Place, tuple[int, str]]) -> str:
        callbacks: list[str] = []
        self._consumer.commit_nowait(
            _ours(offsets),
            lambda _, error: callbacks.append("done" if error is None else error_text(error)),
        )
        _until(lambda: callbacks)
        return callbacks[0]

    def committed(self, places: Iterable[Place]) -> list[tuple[int, str] | None]:
        wanted = [TopicPartition(*place) for place in places]
        found = self._consumer.committed(wanted)
        rows = (found[tp] for tp in wanted)
        return [None if row is None else (row.offset, row.metadata) for row in rows]

    def offset_at(self, place: Place, timestamp_ms: int) -> int | None:
        (found,) = self._consumer.offsets_for_times({place: timestamp_ms}).values()
        return None if found is None else found.offset

    def ends(self, place: Place) -> tuple[int, int]:
        tp = TopicPartition(*place)
        return self._consumer.beginning_offsets([tp])[tp], self._consumer.end_offsets([tp])[tp]

    def metadata(self) -> Any:
        return self._consumer.group_metadata()

    def close(self) -> None:
        self._consumer.stop()


def _ours(offsets: Mapping[Place, tuple[int, str]]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition(*place): OffsetAndMetadata(*given) for place, given in offsets.items()}


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- confluent-kafka -----------------------------------------------------------------------------

_THEIR_NAMES = {
    "max.request.size": "message.max.bytes",
    "max.block.ms": "topic.metadata.propagation.max.ms",  # how long a topic may be missing
    "metadata.max.age.ms": "topic.metadata.refresh.interval.ms",
}


def _their(settings: Settings) -> dict[str, Any]:
    return {_THEIR_NAMES.get(name, name): value for name, value in settings.items()}


class TheirProducer:
    def __init__(self, bootstrap: str, settings: Settings) -> None:
        given = {
            "bootstrap.servers": bootstrap,
            "partitioner": "murmur2_random",
            "topic.metadata.propagation.max.ms": 500,
            **_their(settings),
        }
        self._producer = confluent_kafka.Producer(given)
        if "transactional.id" in settings:
            self._producer.init_transactions(WAIT_S)

    def send(
        self, topic: str, value: bytes | None, key: bytes | None = None, **more: Any
    ) -> Callable[[], Outcome]:
        callbacks: list[Outcome] = []

        def on_delivery(error: Any, message: Any) -> None:
            callbacks.append((message.partition(), message.offset()) if error is None else error_text(error))

        names = {"timestamp_ms": "timestamp"}
        given: dict[str, Any] = {names.get(name, name): value for name, value in more.items()}
        given["on_delivery"] = on_delivery
        try:
            self._producer.produce(topic, value, key, **given)
        except KafkaException as error:
            callbacks.append(error_text(error))

        def arrived() -> bool:
            if not callbacks:
                self._producer.poll(0.1)  # says how many reports it served, of any record
            return bool(callbacks)

        def outcome() -> Outcome:
            _until(arrived)
            return callbacks[0]

        return outcome

    def flush(self) -> None:
        assert self._producer.flush(WAIT_S) == 0

    def begin(self) -> None:
        self._producer.begin_transaction()

    def commit(self) -> None:
        self._producer.commit_transaction(WAIT_S)

    def abort(self) -> None:
        self._producer.abort_transaction(WAIT_S)

    def send_offsets(self, offsets: Mapping[Place, int], consumer: Any) -> None:
        given = [confluent_kafka.TopicPartition(*place, offset) for place, offset in offsets.items()]
        self._producer.send_offsets_to_transaction(given, consumer.metadata(), WAIT_S)

    def close(self) -> None:
        with suppress(KafkaException):  # it was fenced
            self._producer.flush(WAIT_S)


class TheirConsumer:
    def __init__(self, bootstrap: str, settings: Settings) -> None:
        given = _their(settings)
        if given.get("auto.offset.reset") == "none":
            given["auto.offset.reset"] = "error"
        given.setdefault("group.id", "nobody")
        given.setdefault("allow.auto.create.topics", True)
        self._consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "enable.partition.eof": True, **given}
        )
        self._ended: set[Place] = set()
        self.callbacks: list[tuple[str, list[int]]] = []

    def subscribe(self, topics: Sequence[str] = (), pattern: str | None = None) -> None:
        def listener(what: str) -> Callable[[Any, list[Any]], None]:
            def record(_: Any, places: list[Any]) -> None:
                if places:
                    self.callbacks.append((what, sorted(place.partition for place in places)))

            return record

        names = list(topics) if pattern is None else [f"^{pattern}$"]
        self._consumer.subscribe(
            names, on_assign=listener("got"), on_revoke=listener("gave"), on_lost=listener("lost")
        )

    def assign(self, places: Sequence[Place]) -> None:
        self._ended.clear()
        self._consumer.assign([confluent_kafka.TopicPartition(*place) for place in places])

    def assignment(self) -> set[int]:
        return {place.partition for place in self._consumer.assignment()}

    def poll(self, timeout_s: float = 0.1, most: int = 500) -> list[Found]:
        found = []
        for message in self._consumer.consume(most, timeout_s):
            error = message.error()
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None
            if error is not None:
                if error.code() == error._PARTITION_EOF:
                    assert partition is not None
                    self._ended.add((topic, partition))
                elif error.code() != error.UNKNOWN_TOPIC_OR_PART:  # told beside the records
                    raise KeyError(error_text(error))
                continue
            assert partition is not None
            assert offset is not None
            key = message.key()
            headers = tuple(message.headers() or ())
            place = Found(topic, partition, offset, message.timestamp()[1], key, message.value(), headers)  # type: ignore[arg-type]
            found.append(place)
            self._ended.discard((topic, partition))
        return found

    def at_end(self) -> bool:
        return self._ended >= {(place.topic, place.partition) for place in self._consumer.assignment()}

    def seek(self, place: Place, offset: int) -> None:
        self._ended.discard(place)
        self._consumer.seek(confluent_kafka.TopicPartition(*place, offset))

    def pause(self, place: Place) -> None:
        self._consumer.pause([confluent_kafka.TopicPartition(*place)])

    def resume(self, place: Place) -> None:
        self._consumer.resume([confluent_kafka.TopicPartition(*place)])

    def position(self, place: Place) -> int:
        return self._consumer.position([confluent_kafka.TopicPartition(*place)])[0].offset

    def commit(self, offsets: Mapping[Place, tuple[int, str]] | None = None) -> None:
        if offsets is None:
            self._consumer.commit(asynchronous=False)
        else:
            self._consumer.commit(offsets=_theirs(offsets), asynchronous=False)

    def commit_later(self, offsets: Mapping[Place, tuple[int, str]]) -> str:
        self._consumer.commit(offsets=_theirs(offsets), asynchronous=True)
        places = list(offsets)
        _until(lambda: self.committed(places) == [offsets[place] for place in places])
        return "done"

    def committed(self, places: Iterable[Place]) -> list[tuple[int, str] | None]:
        wanted = [confluent_kafka.TopicPartition(*place) for place in places]
        rows = self._consumer.committed(wanted, timeout=WAIT_S)
        return [None if row.offset < 0 else (row.offset, row.metadata or "") for row in rows]

    def offset_at(self, place: Place, timestamp_ms: int) -> int | None:
        asked = confluent_kafka.TopicPartition(*place, timestamp_ms)
        (found,) = self._consumer.offsets_for_times([asked], timeout=WAIT_S)
        return None if found.offset < 0 else found.offset

    def ends(self, place: Place) -> tuple[int, int]:
        found: tuple[int, int] = self._consumer.get_watermark_offsets(
            confluent_kafka.TopicPartition(*place), timeout=WAIT_S
        )
        return found

    def metadata(self) -> Any:
        return self._consumer.consumer_group_metadata()

    def close(self) -> None:
        self._consumer.close()


def _theirs(offsets: Mapping[Place, tuple[int, str]]) -> list[confluent_kafka.TopicPartition]:
    # The metadata is the third place of the constructor in some versions: by name.
    return [
        confluent_kafka.TopicPartition(topic, partition, offset=offset, metadata=metadata)
        for (topic, partition), (offset, metadata) in offsets.items()
    ]


PRODUCERS: dict[str, Callable[[str, Settings], Sending]] = {
    "Ottla's client": OurProducer,
    "confluent-kafka": TheirProducer,
}
CONSUMERS: dict[str, Callable[[str, Settings], Reading]] = {
    "Ottla's client": OurConsumer,
    "confluent-kafka": TheirConsumer,
}

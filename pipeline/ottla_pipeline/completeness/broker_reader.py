"""Reads the events of topics with confluent-kafka, for the job `compare`.

It deliberately shares no code with the lake job, which reads with Spark's connector and the Java client:
an error in either one shows as a difference. A Spark task reads each partition from its first offset to
its end offset at the start of the comparison.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message, TopicPartition

from ottla_pipeline.checkpoints import OffsetRange

STALLED_S = 60.0
POLL_S = 1.0
BATCH_MAX = 5_000
REQUEST_S = 30.0


class ReadStalled(Exception):
    """A partition could not be read to its end offset; the message has the last position."""


class BrokerEvent(NamedTuple):
    """An event in a topic; `id` is None if the value has no readable id."""

    topic: str
    id: str | None
    time: str | None


def consumer(bootstrap: str, options: Mapping[str, str]) -> Consumer:
    """A consumer without group membership and commits, which reports the end of partitions."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "ottla-compare",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
            **options,
        }
    )


def offset_ranges(bootstrap: str, topics: list[str], options: Mapping[str, str]) -> list[OffsetRange]:
    """The offset ranges of all partitions of these topics at present. A topic that does not exist has
    none."""
    reader = consumer(bootstrap, options)
    try:
        known = reader.list_topics(timeout=REQUEST_S).topics
        found: list[OffsetRange] = []
        for topic in topics:
            for partition in sorted(known[topic].partitions) if topic in known else ():
                low, high = reader.get_watermark_offsets(TopicPartition(topic, partition), timeout=REQUEST_S)
                found.append(OffsetRange(topic, partition, low, high))
        return found
    finally:
        reader.close()


def event_of(message: Message, id_field: str, time_field: str) -> BrokerEvent:
    """Extracts the id and the time from a record's JSON value."""
    try:
        body: Any = json.loads(message.value() or b"null")
    except ValueError:
        body = None
    body = body if isinstance(body, dict) else {}
    identity, time = body.get(id_field), body.get(time_field)
    return BrokerEvent(
        str(message.topic()),
        identity if isinstance(identity, str) and identity else None,
        time if isinstance(time, str) else None,
    )


def read_range(
    wanted: OffsetRange, bootstrap: str, id_field: str, time_field: str, options: Mapping[str, str]
) -> Iterator[BrokerEvent]:
    """The events of one range, in offset order. Raises ReadStalled when no record arrives for STALLED_S."""
    if wanted.start >= wanted.end:
        return
    reader = consumer(bootstrap, options)
    try:
        reader.assign([TopicPartition(wanted.topic, wanted.partition, wanted.start)])
        reached, idle_s = wanted.start, 0.0
        while reached < wanted.end:
            # `consume` waits for this number of messages: more than remain would add a second at the end.
            messages = reader.consume(min(BATCH_MAX, wanted.end - reached), timeout=POLL_S)
            idle_s = 0.0 if messages else idle_s + POLL_S
            if idle_s >= STALLED_S:
                where = f"{wanted.topic}-{wanted.partition} at offset {reached} of {wanted.end}"
                raise ReadStalled(f"{where}: no record arrived for {STALLED_S:.0f} s")
            for message in messages:
                error, offset = message.error(), message.offset()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                if offset is None or offset == OFFSET_INVALID:
                    continue
                if error is not None:  # the end; offsets before it may be transaction markers
                    reached = max(reached, offset)
                    continue
                reached = offset + 1
                if offset < wanted.end:
                    yield event_of(message, id_field, time_field)
    finally:
        reader.close()

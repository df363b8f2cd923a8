"""Reads partitions from given offsets to their ends with confluent-kafka."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

WAIT_S = 120


def read_to_end(
    bootstrap: str, partitions: Sequence[TopicPartition], settings: Mapping[str, object] | None = None
) -> list[Message]:
    """All messages that a consumer with these settings gets from the partitions' offsets on."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            **(settings or {}),
        }
    )
    try:
        consumer.assign(list(partitions))
        found: list[Message] = []
        ended: set[tuple[str | None, int | None]] = set()
        deadline = time.monotonic() + WAIT_S
        while len(ended) < len(partitions):
            assert time.monotonic() < deadline, f"only {ended} have ended, with {len(found)} messages"
            message = consumer.poll(1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add((message.topic(), message.partition()))
        return found
    finally:
        consumer.close()

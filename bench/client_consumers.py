"""Consumers that `bench.clients` measures: each reads so many records of a topic from its beginning.

All have a group of their own, commit automatically every five seconds, check checksums, and fetch as much
ahead as they do by default.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from itertools import islice
from typing import Any, Final


async def _ottla(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    from ottla.client.consumer import Consumer

    seen = 0
    async with Consumer(
        bootstrap_servers=bootstrap, group_id=_group(), auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe([topic])
        async for record in consumer:
            assert len(record.value) == len(value)
            seen += 1
            if seen == count:
                break


async def _ottla_poll(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    """By batches."""
    from ottla.client.consumer import Consumer

    seen = 0
    async with Consumer(
        bootstrap_servers=bootstrap, group_id=_group(), auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe([topic])
        while seen < count:
            for records in (await consumer.poll(1)).values():
                for record in records:
                    assert len(record.value) == len(value)
                    seen += 1


def _ottla_blocking(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    from ottla.client.blocking import Consumer

    with Consumer(bootstrap_servers=bootstrap, **_settings()) as consumer:
        consumer.subscribe([topic])
        for record in islice(consumer, count):
            assert len(record.value) == len(value)


async def _aiokafka(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=_group(), auto_offset_reset="earliest"
    )
    await consumer.start()
    seen = 0
    async for record in consumer:
        assert len(record.value) == len(value)
        seen += 1
        if seen == count:
            break
    await consumer.stop()


async def _aiokafka_getmany(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=_group(), auto_offset_reset="earliest"
    )
    await consumer.start()
    seen = 0
    while seen < count:
        for records in (await consumer.getmany(timeout_ms=1000, max_records=500)).values():
            for record in records:
                assert len(record.value) == len(value)
                seen += 1
    await consumer.stop()


def _kafka_python(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=_group(), auto_offset_reset="earliest"
    )
    for record in islice(consumer, count):
        assert len(record.value) == len(value)
    consumer.close()


def _confluent(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": _group(),
            "auto.offset.reset": "earliest",
            "check.crcs": True,
        }
    )
    consumer.subscribe([topic])
    seen = 0
    while seen < count:
        for message in consumer.consume(500, 1.0):
            assert message.error() is None
            assert len(message.value() or b"") == len(value)
            seen += 1
    consumer.close()


def _settings() -> dict[str, object]:
    return {"group_id": _group(), "auto_offset_reset": "earliest"}


def _group() -> str:
    return f"g-{uuid.uuid4().hex[:8]}"


CONSUMERS: Final[dict[str, Callable[[str, str, bytes, int], Any]]] = {
    "ottla": _ottla,
    "ottla poll": _ottla_poll,
    "ottla blocking": _ottla_blocking,
    "aiokafka": _aiokafka,
    "aiokafka getmany": _aiokafka_getmany,
    "kafka-python": _kafka_python,
    "confluent-kafka": _confluent,
}

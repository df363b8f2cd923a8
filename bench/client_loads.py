"""Runs one load of `bench.clients`: `python -m bench.client_loads KIND NAME BOOTSTRAP TOPIC SIZE COUNT`.

Called by bench.clients. It imports nothing of this project but the measured client, so that the same code can
measure another checkout's. Clients have the same settings. Producers: acks=all with idempotence, batches of
16 KiB, 5 ms of linger, random bytes without keys. Consumers: a group of their own, a commit every five
seconds, checksums verified, and each client's default of data fetched ahead.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import time
import uuid
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, Final

BATCH_BYTES: Final = 16_384
LINGER_MS: Final = 5
BUFFER_BYTES: Final = 32 * 1024 * 1024


# --- producers: each function returns when the last record is acknowledged --------------------------------


async def _write_ottla(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    from ottla.client.producer import Producer

    async with Producer(bootstrap_servers=bootstrap, linger_ms=LINGER_MS, batch_size=BATCH_BYTES) as producer:
        last = None
        for _ in range(count):
            last = await producer.send(topic, value)
        await producer.flush()
        assert last is not None
        await last


async def _write_ottla_nowait(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    """Without a future for each record."""
    from ottla.client.errors import BufferExhaustedError
    from ottla.client.producer import Producer

    failed: list[BaseException] = []

    def on_delivery(metadata: object, error: BaseException | None) -> None:
        if error is not None:
            failed.append(error)

    async with Producer(bootstrap_servers=bootstrap, linger_ms=LINGER_MS, batch_size=BATCH_BYTES) as producer:
        for number in range(count):
            while True:
                try:
                    producer.send_nowait(topic, value, on_delivery=on_delivery)
                    break
                except BufferExhaustedError:
                    await asyncio.sleep(0.001)
            if number % 100 == 99:
                await asyncio.sleep(0)
        await producer.flush()
    assert not failed, failed[0]


def _write_ottla_blocking(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    from ottla.client.blocking import Producer

    with Producer(bootstrap_servers=bootstrap, linger_ms=LINGER_MS, batch_size=BATCH_BYTES) as producer:
        futures = [producer.send(topic, value) for _ in range(count)]
        producer.flush()
    for future in futures:
        future.result()


async def _write_aiokafka(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=True,
        linger_ms=LINGER_MS,
        max_batch_size=BATCH_BYTES,
    )
    await producer.start()
    last = None
    for _ in range(count):
        last = await producer.send(topic, value)
    await producer.flush()
    assert last is not None
    await last
    await producer.stop()


def _write_kafka_python(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=True,
        linger_ms=LINGER_MS,
        batch_size=BATCH_BYTES,
    )
    last = None
    for _ in range(count):
        last = producer.send(topic, value)
    producer.flush()
    assert last is not None
    last.get(timeout=60)
    producer.close()


def _write_confluent(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "queue.buffering.max.kbytes": BUFFER_BYTES // 1024,
        }
    )
    failed: list[Any] = []

    def on_delivery(error: Any, message: Any) -> None:
        if error is not None:
            failed.append(error)

    for _ in range(count):
        while True:
            try:
                producer.produce(topic, value, on_delivery=on_delivery)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    producer.flush()
    assert not failed, failed[0]


PRODUCERS: Final[dict[str, Callable[[str, str, bytes, int], Any]]] = {
    "ottla": _write_ottla,
    "ottla send_nowait": _write_ottla_nowait,
    "ottla blocking": _write_ottla_blocking,
    "aiokafka": _write_aiokafka,
    "kafka-python": _write_kafka_python,
    "confluent-kafka": _write_confluent,
}


# --- consumers: each function returns when it has read `count` records and left its group ---------------


def _consumer_settings(bootstrap: str) -> dict[str, Any]:
    return {"bootstrap_servers": bootstrap, "group_id": _new_group(), "auto_offset_reset": "earliest"}


def _new_group() -> str:
    return f"g-{uuid.uuid4().hex[:8]}"


async def _read_ottla(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    from ottla.client.consumer import Consumer

    count_read = 0
    async with Consumer(**_consumer_settings(bootstrap)) as consumer:
        consumer.subscribe([topic])
        async for record in consumer:
            assert len(record.value) == len(value)
            count_read += 1
            if count_read == count:
                break


async def _read_ottla_poll(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    """Reads with `poll`."""
    from ottla.client.consumer import Consumer

    count_read = 0
    async with Consumer(**_consumer_settings(bootstrap)) as consumer:
        consumer.subscribe([topic])
        while count_read < count:
            for records in (await consumer.poll(1)).values():
                for record in records:
                    assert len(record.value) == len(value)
                    count_read += 1


def _read_ottla_blocking(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    from ottla.client.blocking import Consumer

    with Consumer(**_consumer_settings(bootstrap)) as consumer:
        consumer.subscribe([topic])
        for record in islice(consumer, count):
            assert len(record.value) == len(value)


async def _read_aiokafka(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(topic, **_consumer_settings(bootstrap))
    await consumer.start()
    count_read = 0
    async for record in consumer:
        assert len(record.value) == len(value)
        count_read += 1
        if count_read == count:
            break
    await consumer.stop()


async def _read_aiokafka_getmany(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(topic, **_consumer_settings(bootstrap))
    await consumer.start()
    count_read = 0
    while count_read < count:
        for records in (await consumer.getmany(timeout_ms=1000, max_records=500)).values():
            for record in records:
                assert len(record.value) == len(value)
                count_read += 1
    await consumer.stop()


def _read_kafka_python(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(topic, **_consumer_settings(bootstrap))
    for record in islice(consumer, count):
        assert len(record.value) == len(value)
    consumer.close()


def _read_confluent(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": _new_group(),
            "auto.offset.reset": "earliest",
            "check.crcs": True,
        }
    )
    consumer.subscribe([topic])
    count_read = 0
    while count_read < count:
        for message in consumer.consume(500, 1.0):
            assert message.error() is None
            assert len(message.value() or b"") == len(value)
            count_read += 1
    consumer.close()


CONSUMERS: Final[dict[str, Callable[[str, str, bytes, int], Any]]] = {
    "ottla": _read_ottla,
    "ottla poll": _read_ottla_poll,
    "ottla blocking": _read_ottla_blocking,
    "aiokafka": _read_aiokafka,
    "aiokafka getmany": _read_aiokafka_getmany,
    "kafka-python": _read_kafka_python,
    "confluent-kafka": _read_confluent,
}


MODULES: Final = {
    "ottla": "ottla.client.blocking",
    "aiokafka": "aiokafka",
    "kafka-python": "kafka",
    "confluent-kafka": "confluent_kafka",
}
LOADS: Final = {"produce": PRODUCERS, "consume": CONSUMERS}


def _peak_rss_mib() -> float:
    """Peak resident MiB of this program; getrusage would include the parent process before exec."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmHWM in /proc/self/status")


def main(kind: str, name: str, bootstrap: str, topic: str, size: int, count: int) -> None:
    """Run one load and print its time, CPU time and peak memory as JSON."""
    load = LOADS[kind][name]
    importlib.import_module(MODULES[name.partition(" ")[0]])  # the import is not measured
    value = os.urandom(size)
    began, cpu = time.perf_counter(), time.process_time()
    work = load(bootstrap, topic, value, count)
    if asyncio.iscoroutine(work):
        asyncio.run(work)
    took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    sys.stdout.write(json.dumps({"took_s": took_s, "cpu_s": cpu_s, "rss_mib": _peak_rss_mib()}) + "\n")


if __name__ == "__main__":
    _, kind, name, bootstrap, topic, size, count = sys.argv
    main(kind, name, bootstrap, topic, int(size), int(count))

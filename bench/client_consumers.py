"""`python -m bench.client_consumers`: Ottla's consumer beside aiokafka, kafka-python and confluent-kafka.

Each reads so many records of a topic from its beginning, in a process of its own on core 1, one after the
other, in turns; the broker (`ottla dev`) runs on core 0. All have a group of their own, commit
automatically every five seconds, check checksums, and fetch as much ahead as they do by default. What is
told is records a second from the making of the consumer to its end, joining the group included, and CPU
seconds a million records, imports included; the median of the runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from bench.sides import on_core
from bench.tools import BROKER_CORE, CLIENT_CORE

PARTITIONS: Final = 4
BATCH_BYTES: Final = 16_384
RECORDS: Final = {100: 400_000, 1000: 150_000}
"""How many are read, by the size of their values."""


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


# --- running -------------------------------------------------------------------------------------


def _fill(bootstrap: str, topic: str, size: int, count: int) -> None:
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": bootstrap, "batch.size": BATCH_BYTES, "linger.ms": 5}
    producer = Producer(settings)
    value = os.urandom(size)
    for number in range(count):
        producer.produce(topic, value, partition=number % PARTITIONS)
        if number % 1000 == 0:
            producer.flush(60)
    if producer.flush(60):
        raise click.ClickException("the records could not be written")


def _measured(name: str, bootstrap: str, topic: str, size: int, count: int) -> tuple[float, float]:
    command = [sys.executable, "-m", "bench.client_consumers", "run", name, bootstrap, topic]
    with on_core(CLIENT_CORE):
        done = subprocess.run(
            [*command, str(size), str(count)], capture_output=True, text=True, timeout=600, check=False
        )
    if done.returncode:
        raise click.ClickException(f"{name}: {done.stderr[-2000:]}")
    took_s, cpu_s = json.loads(done.stdout.splitlines()[-1])
    return took_s, cpu_s


@click.group(invoke_without_command=True)
@click.option("--runs", default=3, show_default=True)
@click.option("--only", multiple=True, help="Clients whose name has this text; repeatable.")
@click.pass_context
def main(context: click.Context, runs: int, only: tuple[str, ...]) -> None:
    """Measure consumers for Python on this machine."""
    if context.invoked_subcommand is not None:
        return
    from ottla.testing import DevBroker

    names = [name for name in CONSUMERS if not only or any(text in name for text in only)]
    with on_core(BROKER_CORE):
        broker = DevBroker()
        broker.start()
    try:
        for size, count in RECORDS.items():
            topic = f"values-of-{size}"
            broker.create_topic(topic, PARTITIONS)
            _fill(broker.bootstrap, topic, size, count)
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
            for run in range(runs + 1):  # the first one warms the broker and the page cache
                for name in names:
                    figures = _measured(name, broker.bootstrap, topic, size, count)
                    if run:
                        found[name].append(figures)
            Console(width=110).print(_table(size, count, found))
    finally:
        broker.close()


def _table(size: int, count: int, found: dict[str, list[tuple[float, float]]]) -> Table:
    table = Table(title=f"consume, {size} bytes")
    for heading in ("client", "records/s", "CPU s per million"):
        table.add_column(heading, justify="left" if heading == "client" else "right")
    for name, figures in found.items():
        took_s, cpu_s = (statistics.median(column) for column in zip(*figures, strict=True))
        table.add_row(name, f"{count / took_s:,.0f}", f"{cpu_s * 1e6 / count:.2f}")
    return table


@main.command("run", hidden=True)
@click.argument("name")
@click.argument("bootstrap")
@click.argument("topic")
@click.argument("size", type=int)
@click.argument("count", type=int)
def run_one(name: str, bootstrap: str, topic: str, size: int, count: int) -> None:
    began = time.perf_counter()
    work = CONSUMERS[name](bootstrap, topic, bytes(size), count)
    if asyncio.iscoroutine(work):
        asyncio.run(work)
    click.echo(json.dumps([time.perf_counter() - began, time.process_time()]))


if __name__ == "__main__":
    main()

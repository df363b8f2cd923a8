"""`python -m bench.clients`: Ottla's client beside aiokafka, kafka-python and confluent-kafka, on one broker.

One broker of Ottla's over the in-memory store runs on core 0; each client in a process of its own on core 1,
one after the other, in turns, `--runs` times. All have the same settings: acks=all with idempotence, batches
of 16 KiB, 5 ms of linger, values of random bytes without keys, one topic of `--partitions`. What is told is
records a second from the first send to the last acknowledgement, and CPU time a million records; the median
of the runs. Every run counts afterwards that the broker has all of them.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from bench.sides import on_core
from bench.tools import BROKER_CORE, CLIENT_CORE
from ottla.client.admin import AdminClient
from ottla.local.cluster import run_admin
from ottla.local.ports import wait_until
from ottla.local.processes import ChildProcess
from ottla.metadata.config import BrokerConfig
from ottla.metadata.memory import MemoryStore
from ottla.server.broker import Broker, new_event_loop

BATCH_BYTES: Final = 16_384
LINGER_MS: Final = 5
BUFFER_BYTES: Final = 32 * 1024 * 1024
RECORDS: Final = {100: 200_000, 1000: 60_000}
"""As many as the slowest client takes a few seconds for, by the size of their values."""


# --- producing: each returns when the last record is acknowledged --------------------------------


async def _ottla(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    from ottla.client.producer import Producer

    async with Producer(bootstrap_servers=bootstrap, linger_ms=LINGER_MS, batch_size=BATCH_BYTES) as producer:
        last = None
        for _ in range(count):
            last = await producer.send(topic, value)
        await producer.flush()
        assert last is not None
        await last


async def _ottla_nowait(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    """Without a future for each record."""
    from ottla.client.errors import BufferExhaustedError
    from ottla.client.producer import Producer

    failed: list[BaseException] = []

    def told(metadata: object, error: BaseException | None) -> None:
        if error is not None:
            failed.append(error)

    async with Producer(bootstrap_servers=bootstrap, linger_ms=LINGER_MS, batch_size=BATCH_BYTES) as producer:
        for number in range(count):
            while True:
                try:
                    producer.send_nowait(topic, value, on_delivery=told)
                    break
                except BufferExhaustedError:
                    await asyncio.sleep(0.001)
            if number % 100 == 99:
                await asyncio.sleep(0)
        await producer.flush()
    assert not failed, failed[0]


def _ottla_blocking(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    from ottla.client.blocking import Producer

    with Producer(bootstrap_servers=bootstrap, linger_ms=LINGER_MS, batch_size=BATCH_BYTES) as producer:
        futures = [producer.send(topic, value) for _ in range(count)]
        producer.flush()
    for future in futures:
        future.result()


async def _aiokafka(bootstrap: str, topic: str, value: bytes, count: int) -> None:
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


def _kafka_python(bootstrap: str, topic: str, value: bytes, count: int) -> None:
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


def _confluent(bootstrap: str, topic: str, value: bytes, count: int) -> None:
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

    def told(error: Any, message: Any) -> None:
        if error is not None:
            failed.append(error)

    for _ in range(count):
        while True:
            try:
                producer.produce(topic, value, on_delivery=told)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    producer.flush()
    assert not failed, failed[0]


PRODUCERS: Final[dict[str, Callable[[str, str, bytes, int], Any]]] = {
    "ottla": _ottla,
    "ottla send_nowait": _ottla_nowait,
    "ottla blocking": _ottla_blocking,
    "aiokafka": _aiokafka,
    "kafka-python": _kafka_python,
    "confluent-kafka": _confluent,
}


MODULES: Final = {
    "ottla": "ottla.client.blocking",
    "aiokafka": "aiokafka",
    "kafka-python": "kafka",
    "confluent-kafka": "confluent_kafka",
}


# --- running -------------------------------------------------------------------------------------


def _run_client(kind: str, name: str, bootstrap: str, topic: str, size: int, count: int) -> None:
    """In a process of its own: prints what it took as JSON."""
    load = {"produce": PRODUCERS}[kind][name]
    importlib.import_module(MODULES[name.partition(" ")[0]])  # what that costs is not measured
    value = os.urandom(size)
    began, cpu = time.perf_counter(), time.process_time()
    work = load(bootstrap, topic, value, count)
    if asyncio.iscoroutine(work):
        asyncio.run(work)
    took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    rss_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    click.echo(json.dumps({"took_s": took_s, "cpu_s": cpu_s, "rss_mib": rss_mib}))


async def _serve(directory: Path, ready: Path) -> None:
    properties = {
        "broker.id": "0",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(directory / "data"),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    broker = Broker(BrokerConfig.from_properties(properties), store=MemoryStore())
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    await broker.start()
    partial = ready.with_suffix(".partial")
    partial.write_text(str(broker.endpoints[0].port))
    partial.rename(ready)
    await stopping.wait()
    await broker.stop()


@contextmanager
def one_broker(directory: Path) -> Iterator[int]:
    """A broker on its core; its port."""
    ready = directory / "ready"
    command = [sys.executable, "-m", "bench.clients", "serve", str(directory), str(ready)]
    broker = ChildProcess("broker", command, log=directory / "broker.log")
    with on_core(BROKER_CORE):
        broker.start()
    try:
        if not wait_until(lambda: ready.exists() or not broker.running, timeout_s=60) or not broker.running:
            raise click.ClickException(f"the broker did not come up:\n{broker.log_tail()}")
        yield int(ready.read_text())
    finally:
        broker.stop(timeout_s=60)


def _measured(kind: str, name: str, port: int, topic: str, size: int, count: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.clients", "run", kind, name, f"127.0.0.1:{port}", topic]
    with on_core(CLIENT_CORE):
        done = subprocess.run(
            [*command, str(size), str(count)], capture_output=True, text=True, timeout=600, check=False
        )
    if done.returncode:
        raise click.ClickException(f"{name}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _end_offsets(port: int, topic: str, partitions: int) -> int:
    async def count(admin: AdminClient) -> int:
        return await records_of(admin, topic, partitions)

    return run_admin([("127.0.0.1", port)], count)


async def records_of(admin: AdminClient, topic: str, partitions: int) -> int:
    """How many records the topic holds."""
    from ottla.client.core.types import TopicPartition

    ends = await admin.end_offsets([TopicPartition(topic, partition) for partition in range(partitions)])
    return sum(ends.values())


def _create(port: int, topic: str, partitions: int) -> None:
    run_admin(
        [("127.0.0.1", port)],
        lambda admin: admin.create_topic(topic, partitions=partitions, replication_factor=1),
    )


@click.group(invoke_without_command=True)
@click.option("--runs", default=3, show_default=True)
@click.option("--partitions", default=4, show_default=True)
@click.option("--only", multiple=True, help="Clients whose name has this text; repeatable.")
@click.option("--scale", default=1.0, show_default=True, help="Times as many records.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures to this file.")
@click.pass_context
def main(
    context: click.Context,
    runs: int,
    partitions: int,
    only: tuple[str, ...],
    scale: float,
    json_file: Path | None,
) -> None:
    """Measure clients for Python on this machine."""
    if context.invoked_subcommand is not None:
        return
    names = [name for name in PRODUCERS if not only or any(text in name for text in only)]
    console = Console(width=110)
    figures: list[dict[str, Any]] = []
    for size, records in RECORDS.items():
        count = int(records * scale)
        found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder, one_broker(Path(folder)) as port:
            for run in range(runs + 1):  # the first one warms the broker and the page cache
                for name in names:
                    topic = f"{name.replace(' ', '-')}-{size}-{run}"
                    _create(port, topic, partitions)
                    result = _measured("produce", name, port, topic, size, count)
                    held = _end_offsets(port, topic, partitions)
                    assert held == count, f"{name}: the broker holds {held} of {count} records"
                    if run:
                        found[name].append(result)
        rows = [_summary("produce", size, count, name, results) for name, results in found.items() if results]
        figures += rows
        console.print(_table(rows))
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=1) + "\n")


def _summary(kind: str, size: int, count: int, name: str, results: list[dict[str, float]]) -> dict[str, Any]:
    def median(key: str) -> float:
        return statistics.median(result[key] for result in results)

    return {
        "kind": kind,
        "bytes": size,
        "client": name,
        "records_per_s": count / median("took_s"),
        "cpu_s_per_million": median("cpu_s") * 1e6 / count,
        "rss_mib": median("rss_mib"),
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title=f"{rows[0]['kind']}, {rows[0]['bytes']} bytes")
    for heading in ("client", "records/s", "CPU s per million", "memory MiB"):
        table.add_column(heading, justify="left" if heading == "client" else "right")
    for row in rows:
        table.add_row(
            row["client"],
            f"{row['records_per_s']:,.0f}",
            f"{row['cpu_s_per_million']:.1f}",
            f"{row['rss_mib']:.0f}",
        )
    return table


@main.command("run", hidden=True)
@click.argument("kind")
@click.argument("name")
@click.argument("bootstrap")
@click.argument("topic")
@click.argument("size", type=int)
@click.argument("count", type=int)
def run_one(kind: str, name: str, bootstrap: str, topic: str, size: int, count: int) -> None:
    _run_client(kind, name, bootstrap, topic, size, count)


@main.command("serve", hidden=True)
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("ready", type=click.Path(path_type=Path))
def serve(directory: Path, ready: Path) -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(directory, ready))


if __name__ == "__main__":
    main()

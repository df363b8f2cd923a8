"""`python -m bench.compaction`: what a producer feels of a log being compacted, and how fast that is.

Ottla and Apache Kafka, a broker each, in turns, on core 0 with all their threads and processes; the client on
core 1. A topic is filled with keyed records under cleanup.policy=delete. Then, in one run: a producer sends a
record every few milliseconds for a while, the topic's policy becomes `compact`, and the producer goes on
until the cleaner's checkpoint says that all is clean. What is compared are the latencies of the two parts, on
the same broker a moment apart. It sends to another topic, one request in flight, acks=1.

Between the two another process does nothing but count, on the broker's core and as nice as Ottla's cleaner:
what is felt of that is the machine's doing (a virtual one is held back by its host the more it works), and
not compaction's.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Table

from bench.memory import touch_free_pages
from bench.sides import KafkaSide, OttlaSide, Side
from bench.tools import BROKER_CORE, CLIENT_CORE
from ottla.protocol import codec, frames
from ottla.protocol.messages import ProduceRequest, ProduceResponse
from ottla.protocol.records import Record, build_batch
from ottla.storage.checkpoints import MalformedCheckpoint, read_offsets

PRODUCE_VERSION = 9
RECORD_BYTES = 200
BATCH_RECORDS = 80
SEGMENT_BYTES = 32 << 20
PACED, DIRT = "bench-paced", "bench-dirt"
CLEAN_TIMEOUT_S = 600
NICENESS = 10
"""As `storage.cleaner.worker` has it."""
SETTINGS = {
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.segment.bytes": str(SEGMENT_BYTES),
}
_SIZE = struct.Struct(">i")


class Round(NamedTuple):
    """One run on one side; latencies in ms."""

    idle_ms: list[float]
    counting_ms: list[float]
    cleaning_ms: list[float]
    cleaning_s: float
    mib: float


class Connection:
    """One request after the other."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def produce(self, frame: bytes) -> float:
        """How many ms the answer took."""
        began = time.perf_counter()
        self._sock.sendall(frame)
        (size,) = _SIZE.unpack(self._read(4))
        answer = self._read(size)
        took_ms = (time.perf_counter() - began) * 1000
        body = frames.response_body_offset(ProduceRequest.api_key, PRODUCE_VERSION, answer)
        response = codec.decode(ProduceResponse, PRODUCE_VERSION, answer, body)
        error = response.responses[0].partition_responses[0].error_code
        if error:
            raise click.ClickException(f"Produce was answered with error {error}")
        return took_ms

    def _read(self, count: int) -> bytes:
        parts = []
        while count:
            part = self._sock.recv(count)
            if not part:
                raise click.ClickException("the broker closed the connection")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        self._sock.close()


def frame(topic: str, records: list[Record]) -> bytes:
    data = ProduceRequest.PartitionProduceData(index=0, records=build_batch(records))
    message = ProduceRequest(
        acks=1,
        timeout_ms=30_000,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
    )
    return frames.encode_request(message, PRODUCE_VERSION, 1, "bench-compaction")


def fill(side: Side, mib: int, keys: int) -> float:
    """Keyed records, the newest segment nearly empty; how many MiB."""
    rng = random.Random(7)
    connection = Connection(side.leader_port(DIRT))
    now_ms = time.time_ns() // 1_000_000
    sent = 0
    try:
        while sent < mib << 20:
            records = [
                Record(at, now_ms, b"key-%08d" % rng.randrange(keys), os.urandom(RECORD_BYTES // 2) * 2)
                for at in range(BATCH_RECORDS)
            ]
            data = frame(DIRT, records)
            connection.produce(data)
            sent += len(data)
    finally:
        connection.close()
    return sent / (1 << 20)


def paced(connection: Connection, rate: float, done: Callable[[float], bool]) -> list[float]:
    """Send at `rate` a second until `done`, which is told for how many seconds that went, says so."""
    record = Record(0, time.time_ns() // 1_000_000, None, os.urandom(RECORD_BYTES))
    data = frame(PACED, [record])
    latencies: list[float] = []
    began = time.perf_counter()
    due = began
    looked = began
    while True:
        due += 1 / rate
        time.sleep(max(0.0, due - time.perf_counter()))
        latencies.append(connection.produce(data))
        now = time.perf_counter()
        if now - looked > 0.25:
            looked = now
            if done(now - began):
                return latencies


def is_clean(side: Side) -> bool:
    """Whether all but the active segment is."""
    segments = side.segments(DIRT)
    folder = segments[0].parent
    active = max(int(path.stem) for path in segments if path.stem.isdigit())
    try:
        return read_offsets(folder.parent / "cleaner-offset-checkpoint").get((DIRT, 0)) == active
    except MalformedCheckpoint:
        return False


@contextmanager
def counting() -> Iterator[None]:
    """A process that counts, and no more, on the broker's core."""
    core = f"import os; os.sched_setaffinity(0, {{{BROKER_CORE}}}); os.nice({NICENESS})"
    process = subprocess.Popen([sys.executable, "-c", f"{core}\nwhile True: pass"])
    try:
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def run(side: Side, mib: int, keys: int, rate: float, idle_s: float) -> Round:
    side.create_topic(PACED)
    side.create_topic(DIRT)
    filled = fill(side, mib, keys)
    touch_free_pages()
    connection = Connection(side.leader_port(PACED))
    try:
        paced(connection, rate, lambda since_s: since_s > 2)
        idle = paced(connection, rate, lambda since_s: since_s > idle_s)
        with counting():
            counted = paced(connection, rate, lambda since_s: since_s > idle_s)
        side.admin(lambda c: c.alter_topic_config(DIRT, set_values={"cleanup.policy": "compact"}))
        began = time.perf_counter()

        def done(since_s: float) -> bool:
            if since_s > CLEAN_TIMEOUT_S:
                raise click.ClickException(f"{side.name} has not cleaned in {CLEAN_TIMEOUT_S} s")
            return is_clean(side)

        cleaning = paced(connection, rate, done)
        took_s = time.perf_counter() - began
    finally:
        connection.close()
    side.delete_topic(PACED)
    side.delete_topic(DIRT)
    return Round(idle, counted, cleaning, took_s, filled)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def show(found: dict[str, list[Round]]) -> Table:
    table = Table(title="Produce beside compaction, latencies in ms, medians of the rounds")
    for name in (
        "side",
        "MiB/s cleaned",
        "p50 idle",
        "p50 cleaning",
        "p99 idle",
        "p99 counting",
        "p99 cleaning",
        "÷ idle",
        "÷ counting",
    ):
        table.add_column(name, justify="left" if name == "side" else "right")
    for name, rounds in found.items():

        def median(of: Callable[[Round], float], rounds: list[Round] = rounds) -> float:
            return statistics.median(of(each) for each in rounds)

        def ratio(beside: Callable[[Round], list[float]], rounds: list[Round] = rounds) -> float:
            return statistics.median(
                percentile(each.cleaning_ms, 0.99) / percentile(beside(each), 0.99) for each in rounds
            )

        table.add_row(
            name,
            f"{median(lambda r: r.mib / r.cleaning_s):.1f}",
            f"{median(lambda r: percentile(r.idle_ms, 0.5)):.2f}",
            f"{median(lambda r: percentile(r.cleaning_ms, 0.5)):.2f}",
            f"{median(lambda r: percentile(r.idle_ms, 0.99)):.2f}",
            f"{median(lambda r: percentile(r.counting_ms, 0.99)):.2f}",
            f"{median(lambda r: percentile(r.cleaning_ms, 0.99)):.2f}",
            f"{ratio(lambda r: r.idle_ms):.2f}",
            f"{ratio(lambda r: r.counting_ms):.2f}",
        )
    return table


@click.command()
@click.option("--mib", default=256, show_default=True, help="Size of the log that is cleaned.")
@click.option("--keys", default=100_000, show_default=True, help="How many keys its records have.")
@click.option("--rate", default=500.0, show_default=True, help="Records a second beside it.")
@click.option("--idle", default=10.0, show_default=True, help="Seconds measured before.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--only", type=click.Choice(["ottla", "kafka"]), help="One side alone.")
def main(mib: int, keys: int, rate: float, idle: float, rounds: int, only: str | None) -> None:
    """Latencies of a producer while another topic is compacted, beside those of a moment before."""
    os.sched_setaffinity(0, {CLIENT_CORE})
    found: dict[str, list[Round]] = {}
    kinds = {"ottla": OttlaSide, "kafka": KafkaSide}
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ottla-bench-")))
        sides: list[Side] = [
            stack.enter_context(kind(root / name, 1, SETTINGS))
            for name, kind in kinds.items()
            if only in (None, name)
        ]
        for _ in range(rounds):
            for side in sides:
                found.setdefault(side.name, []).append(run(side, mib, keys, rate, idle))
    Console().print(show(found))


if __name__ == "__main__":
    main()

"""`python -m bench.compaction`: latencies of a producer beside the compaction of a log, and its speed.

Ottla and Apache Kafka run one broker each, in turns, on core 0 with all their threads and processes; the
client runs on core 1. A topic is filled with keyed records under cleanup.policy=delete. In one run a producer
sends a record to another topic every few milliseconds (acks=1, one request in flight) for a while; then the
first topic's policy becomes `compact`, and the producer continues until the cleaner's checkpoint is at the
active segment. The latencies of the two parts are compared, on the same broker within seconds.

Between the two parts, a process counts in a loop on the broker's core, at the niceness of Ottla's cleaner.
Its effect on the latencies is the machine's (the host of a virtual machine slows a busy core down), not
compaction's.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
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

from bench.connection import RequestConnection, check_errors, decode_response
from bench.interpreter import say_interpreter
from bench.processes import touch_free_pages
from bench.sides import Side, chosen_sides, only_option
from bench.tools import BROKER_CORE, CLIENT_CORE
from bench.traffic import percentile
from ottla.ports.files import OS_FILES
from ottla.protocol import frames
from ottla.protocol.messages import ProduceRequest
from ottla.protocol.records import Record, build_batch
from ottla.storage.checkpoints import MalformedCheckpoint, read_offsets

PRODUCE_VERSION = 9
RECORD_BYTES = 200
BATCH_RECORDS = 80
SEGMENT_BYTES = 32 << 20
PACED_TOPIC, COMPACTED_TOPIC = "bench-paced", "bench-compacted"
CLEAN_TIMEOUT_S = 600
NICENESS = 10
"""The niceness of the cleaner's worker process."""
SETTINGS = {
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.segment.bytes": str(SEGMENT_BYTES),
}


class Round(NamedTuple):
    """One run on one side; latencies in ms."""

    idle_ms: list[float]
    counting_ms: list[float]
    cleaning_ms: list[float]
    cleaning_s: float
    mib: float


def timed(connection: RequestConnection, frame: bytes) -> float:
    """Sends a Produce request; the time until its response, in ms."""
    began = time.perf_counter()
    connection.send(frame)
    response = connection.receive()
    took_ms = (time.perf_counter() - began) * 1000
    check_errors(decode_response(ProduceRequest.api_key, PRODUCE_VERSION, response))
    return took_ms


def frame(topic: str, records: list[Record]) -> bytes:
    data = ProduceRequest.PartitionProduceData(index=0, records=build_batch(records))
    message = ProduceRequest(
        acks=1,
        timeout_ms=30_000,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
    )
    return frames.encode_request(message, PRODUCE_VERSION, 1, "bench-compaction")


def fill(side: Side, mib: int, keys: int) -> float:
    """Fill the compacted topic with keyed records; the MiB that were written."""
    rng = random.Random(7)
    connection = RequestConnection(side.leader_port(COMPACTED_TOPIC))
    now_ms = time.time_ns() // 1_000_000
    sent = 0
    try:
        while sent < mib << 20:
            records = [
                Record(at, now_ms, b"key-%08d" % rng.randrange(keys), os.urandom(RECORD_BYTES // 2) * 2)
                for at in range(BATCH_RECORDS)
            ]
            data = frame(COMPACTED_TOPIC, records)
            timed(connection, data)
            sent += len(data)
    finally:
        connection.close()
    return sent / (1 << 20)


def send_paced(connection: RequestConnection, rate: float, done: Callable[[float], bool]) -> list[float]:
    """Send `rate` records a second until `done(seconds so far)` is true; the latencies in ms."""
    record = Record(0, time.time_ns() // 1_000_000, None, os.urandom(RECORD_BYTES))
    data = frame(PACED_TOPIC, [record])
    latencies: list[float] = []
    began = time.perf_counter()
    due = began
    checked = began
    while True:
        due += 1 / rate
        time.sleep(max(0.0, due - time.perf_counter()))
        latencies.append(timed(connection, data))
        now = time.perf_counter()
        if now - checked > 0.25:
            checked = now
            if done(now - began):
                return latencies


def is_clean(side: Side) -> bool:
    """Whether all segments but the active one are compacted."""
    segments = side.segments(COMPACTED_TOPIC)
    folder = segments[0].parent
    active = max(int(path.stem) for path in segments if path.stem.isdigit())
    try:
        return (
            read_offsets(OS_FILES, folder.parent / "cleaner-offset-checkpoint").get((COMPACTED_TOPIC, 0))
            == active
        )
    except MalformedCheckpoint:
        return False


@contextmanager
def counting() -> Iterator[None]:
    """A process that counts in a loop on the broker's core."""
    core = f"import os; os.sched_setaffinity(0, {{{BROKER_CORE}}}); os.nice({NICENESS})"
    process = subprocess.Popen([sys.executable, "-c", f"{core}\nwhile True: pass"])
    try:
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def run(side: Side, mib: int, keys: int, rate: float, idle_s: float) -> Round:
    side.create_topic(PACED_TOPIC)
    side.create_topic(COMPACTED_TOPIC)
    filled = fill(side, mib, keys)
    touch_free_pages()
    connection = RequestConnection(side.leader_port(PACED_TOPIC))
    try:
        send_paced(connection, rate, lambda since_s: since_s > 2)
        idle = send_paced(connection, rate, lambda since_s: since_s > idle_s)
        with counting():
            counted = send_paced(connection, rate, lambda since_s: since_s > idle_s)
        side.admin(lambda c: c.alter_topic_config(COMPACTED_TOPIC, set_values={"cleanup.policy": "compact"}))
        began = time.perf_counter()

        def done(since_s: float) -> bool:
            if since_s > CLEAN_TIMEOUT_S:
                raise click.ClickException(
                    f"{side.name} did not finish the compaction in {CLEAN_TIMEOUT_S} s"
                )
            return is_clean(side)

        cleaning = send_paced(connection, rate, done)
        took_s = time.perf_counter() - began
    finally:
        connection.close()
    side.delete_topic(PACED_TOPIC)
    side.delete_topic(COMPACTED_TOPIC)
    return Round(idle, counted, cleaning, took_s, filled)


def results_table(rounds_by_side: dict[str, list[Round]]) -> Table:
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
    for name, rounds in rounds_by_side.items():

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
@click.option("--keys", default=100_000, show_default=True, help="Number of keys.")
@click.option("--rate", default=500.0, show_default=True, help="Records a second of the producer.")
@click.option("--idle", default=10.0, show_default=True, help="Seconds measured before the compaction.")
@click.option("--rounds", default=3, show_default=True)
@only_option
def main(mib: int, keys: int, rate: float, idle: float, rounds: int, only: str | None) -> None:
    """Latencies of a producer while another topic is compacted, and before."""
    say_interpreter()
    os.sched_setaffinity(0, {CLIENT_CORE})
    rounds_by_side: dict[str, list[Round]] = {}
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ottla-bench-")))
        sides: list[Side] = [
            stack.enter_context(kind(root / kind.name, 1, SETTINGS)) for kind in chosen_sides(only)
        ]
        for _ in range(rounds):
            for side in sides:
                rounds_by_side.setdefault(side.name, []).append(run(side, mib, keys, rate, idle))
    Console().print(results_table(rounds_by_side))


if __name__ == "__main__":
    main()

"""`python -m bench.clients`: Ottla's client beside aiokafka, kafka-python and confluent-kafka, on one broker.

One broker (`ottla dev`) runs on core 0. The clients run in turns, each in a process on core 1: they write
records to a new topic, or read a topic from its beginning (`client_loads` has their settings). The table has
the medians of the runs: records a second (from the construction of the client to the last acknowledgement, or
until a consumer that has joined its group has left it), CPU time per million records, the process' peak
memory, and the ratios to Ottla's client. After each producer's run the records in the topic are counted.

`--against CHECKOUT` measures the client of another checkout in turns with this one's. It is the test of a
change to the client's hot path.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from rich.console import Console
from rich.table import Table

from bench.client_loads import BATCH_BYTES, LOADS
from bench.interpreter import say_interpreter
from bench.sides import on_core, python_path
from bench.tools import BROKER_CORE, CLIENT_CORE
from ottla.client.admin import AdminClient
from ottla.client.core.types import TopicPartition
from ottla.local.cluster import run_admin
from ottla.testing import DevBroker

THIS_CHECKOUT: Final = Path(__file__).parent.parent
OURS: Final = "ottla"
COUNTS: Final = {
    "produce": {100: 200_000, 1000: 60_000},
    "consume": {100: 400_000, 1000: 150_000},
}
"""Records of a run by the size of their values; the slowest client takes a few seconds for them."""
QUICK: Final = 0.1
_TIMEOUT_S: Final = 600


class ClientUnderTest(NamedTuple):
    """A client and its checkout."""

    name: str
    checkout: Path

    @property
    def title(self) -> str:
        return self.name if self.checkout == THIS_CHECKOUT else f"{self.name} (before)"


def clients_to_measure(kind: str, only: tuple[str, ...], against: Path | None) -> list[ClientUnderTest]:
    """The clients to measure; Ottla's twice with `against`."""
    chosen = [name for name in LOADS[kind] if not only or any(text in name for text in only)]
    found = []
    for name in chosen:
        if against is not None and name.startswith(OURS):
            found.append(ClientUnderTest(name, against))
        found.append(ClientUnderTest(name, THIS_CHECKOUT))
    return found


def summary(
    kind: str, size: int, count: int, samples: dict[str, list[dict[str, float]]]
) -> list[dict[str, Any]]:
    """A row for each client: medians, and the ratios to Ottla's asyncio client of this checkout."""
    rows: list[dict[str, Any]] = []
    for client, taken in samples.items():
        took_s, cpu_s, rss_mib = (
            statistics.median(sample[key] for sample in taken) for key in ("took_s", "cpu_s", "rss_mib")
        )
        rows.append(
            {
                "kind": kind,
                "bytes": size,
                "client": client,
                "records_per_s": count / took_s,
                "cpu_s_per_million": cpu_s * 1e6 / count,
                "rss_mib": rss_mib,
            }
        )
    ours = next((row for row in rows if row["client"] == OURS), None)
    for row in rows:
        if ours is not None:
            row["ours_times_as_fast"] = ours["records_per_s"] / row["records_per_s"]
            row["ours_of_its_cpu"] = ours["cpu_s_per_million"] / row["cpu_s_per_million"]
    return rows


def results_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title=f"{rows[0]['kind']}, {rows[0]['bytes']} bytes")
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "client": lambda row: str(row["client"]),
        "records/s": lambda row: f"{row['records_per_s']:,.0f}",
        "CPU s / million": lambda row: f"{row['cpu_s_per_million']:.2f}",
        "peak MiB": lambda row: f"{row['rss_mib']:.0f}",
    }
    if "ours_times_as_fast" in rows[0]:
        columns["ottla is … as fast"] = lambda row: f"{row['ours_times_as_fast']:.2f} ×"
        columns["with … of its CPU"] = lambda row: f"{row['ours_of_its_cpu']:.2f}"
    for heading in columns:
        table.add_column(heading, justify="left" if heading == "client" else "right")
    for row in rows:
        table.add_row(*(cell(row) for cell in columns.values()))
    return table


# --- running -------------------------------------------------------------------------------------


@contextmanager
def one_broker() -> Iterator[DevBroker]:
    """A running broker on the broker's core."""
    broker = DevBroker()
    try:
        with on_core(BROKER_CORE):
            broker.start()
        yield broker
    finally:
        broker.close()


def run_client(
    kind: str, client: ClientUnderTest, bootstrap: str, topic: str, size: int, count: int
) -> dict[str, float]:
    """Run one load in a process. Raises click.ClickException."""
    command = [sys.executable, "-m", "bench.client_loads", kind, client.name, bootstrap, topic]
    paths = {"PYTHONPATH": python_path(client.checkout)}
    with on_core(CLIENT_CORE):
        done = subprocess.run(
            [*command, str(size), str(count)],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            cwd=client.checkout,
            env={**os.environ, **paths},
        )
    if done.returncode:
        raise click.ClickException(f"{client.title}: {done.stderr[-2000:]}")
    sample: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return sample


def record_count(broker: DevBroker, topic: str, partitions: int) -> int:
    """Number of records in the topic."""

    async def ends(admin: AdminClient) -> int:
        of_topic = [TopicPartition(topic, partition) for partition in range(partitions)]
        return sum((await admin.end_offsets(of_topic)).values())

    return run_admin([("127.0.0.1", broker.port)], ends)


def fill(bootstrap: str, topic: str, partitions: int, size: int, count: int) -> None:
    """Write the records for the consumers, in batches like the producers'."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "batch.size": BATCH_BYTES, "linger.ms": 5})
    value = os.urandom(size)
    for number in range(count):
        producer.produce(topic, value, partition=number % partitions)
        if number % 1000 == 999:
            producer.flush(60)
    if producer.flush(60):
        raise click.ClickException("the records could not be written")


def produce_run(
    broker: DevBroker, client: ClientUnderTest, partitions: int, size: int, count: int
) -> dict[str, float]:
    topic = f"written-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic, partitions)
    try:
        sample = run_client("produce", client, broker.bootstrap, topic, size, count)
        written = record_count(broker, topic, partitions)
        if written != count:
            raise click.ClickException(f"{client.title}: the broker has {written} of {count} records")
    finally:
        broker.delete_topic(topic)
    return sample


@click.command()
@click.option("--runs", default=3, show_default=True)
@click.option("--partitions", default=4, show_default=True)
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(LOADS)), help="Default: both.")
@click.option("--size", "sizes", multiple=True, type=int, help="Bytes of a value. Default: 100 and 1000.")
@click.option("--only", multiple=True, help="Clients whose name has this text; repeatable.")
@click.option(
    "--against", type=click.Path(path_type=Path, exists=True, resolve_path=True), help="Another checkout."
)
@click.option("--scale", default=1.0, show_default=True, help="Factor of the number of records.")
@click.option("--quick", is_flag=True, help="A tenth of the records, one run: shows whether it works.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures to this file.")
def main(
    runs: int,
    partitions: int,
    kinds: tuple[str, ...],
    sizes: tuple[int, ...],
    only: tuple[str, ...],
    against: Path | None,
    scale: float,
    quick: bool,
    json_file: Path | None,
) -> None:
    """Measure clients for Python on this machine."""
    say_interpreter()
    if quick:
        runs, scale = 1, scale * QUICK
    other = None if against is None else against.resolve()
    console = Console(width=110)
    figures: list[dict[str, Any]] = []
    with one_broker() as broker:
        for kind in kinds or LOADS:
            chosen = clients_to_measure(kind, only, other)
            for size, records in COUNTS[kind].items():
                if not chosen or (sizes and size not in sizes):
                    continue
                count = int(records * scale)
                topic = f"values-of-{size}"
                if kind == "consume":
                    broker.create_topic(topic, partitions)
                    fill(broker.bootstrap, topic, partitions, size, count)
                samples: dict[str, list[dict[str, float]]] = {client.title: [] for client in chosen}
                for run in range(runs + 1):  # the first run warms the broker and the page cache
                    for client in chosen if run % 2 else reversed(chosen):
                        if kind == "produce":
                            sample = produce_run(broker, client, partitions, size, count)
                        else:
                            sample = run_client(kind, client, broker.bootstrap, topic, size, count)
                        if run:
                            samples[client.title].append(sample)
                rows = summary(kind, size, count, samples)
                figures += rows
                console.print(results_table(rows))
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()

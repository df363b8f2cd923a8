"""`make bench`: Kafka's own ProducerPerformance and ConsumerPerformance on both brokers, alternating.

Each broker runs alone on core 0, the client on core 1. Both are warmed up with the measured load until
three runs agree within 10 % (a cold JVM looks three times worse than a warm one), then measured in turn.
Printed are throughput, the broker's CPU seconds per million records (from /proc) and memory, and the ratios.
"""

from __future__ import annotations

import functools
import re
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from bench.apache_kafka import KafkaBroker, java_command
from bench.memory import touch_free_pages
from bench.usage import usage_of
from ottla.client.admin import AdminClient
from ottla.local.brokers import BrokerProcess
from ottla.local.cluster import run_admin
from ottla.local.ports import free_port
from ottla.local.zookeeper import EmbeddedZooKeeper

RECORD_BYTES = 200
BROKER_CORE, CLIENT_CORE = "0", "1"
AGREE_WITHIN = 0.10
WARM_RUNS_MAX = 12
console = Console()


@dataclass(frozen=True)
class Load:
    """One kind of load. `settings` are the Java producer's."""

    name: str
    records: int
    settings: tuple[str, ...]


LOADS = (
    Load("64 KiB batches, acks=1", 1_000_000, ("acks=1", "batch.size=65536", "linger.ms=5")),
    Load("16 KiB batches, acks=1", 500_000, ("acks=1", "batch.size=16384", "linger.ms=0")),
    Load("one record a request, acks=1", 50_000, ("acks=1", "batch.size=1", "linger.ms=0")),
)


@dataclass(frozen=True)
class Contender:
    name: str
    bootstrap: str
    pid: int


@dataclass(frozen=True)
class Sample:
    records_per_s: float
    cpu_s_per_million: float
    rss_mib: float


def measure(contender: Contender, records: int, command: list[str], rate: Callable[[str], float]) -> Sample:
    touch_free_pages()
    before = usage_of(contender.pid)
    ran = subprocess.run(
        ["taskset", "-c", CLIENT_CORE, *command], capture_output=True, text=True, timeout=300, check=False
    )
    after = usage_of(contender.pid)
    if ran.returncode:
        raise click.ClickException(
            f"{contender.name}: {command} failed:\n{ran.stdout[-500:]}\n{ran.stderr[-500:]}"
        )
    return Sample(rate(ran.stdout), (after.cpu_s - before.cpu_s) / records * 1e6, after.rss_mib)


def produce(contender: Contender, load: Load, topic: str) -> Sample:
    command = java_command(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(load.records), "--record-size", str(RECORD_BYTES)),
        *(
            "--throughput",
            "-1",
            "--producer-props",
            f"bootstrap.servers={contender.bootstrap}",
            *load.settings,
        ),
    )
    return measure(contender, load.records, command, produced_per_s)


def produced_per_s(output: str) -> float:
    """The rate of the last line, the one over the whole run."""
    return float(re.findall(r"([\d.]+) records/sec", output)[-1])


def consume(contender: Contender, records: int, topic: str) -> Sample:
    command = java_command(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--topic", topic, "--messages", str(records), "--bootstrap-server", contender.bootstrap),
        *("--timeout", "60000"),
    )
    return measure(contender, records, command, fetched_per_s)


def fetched_per_s(output: str) -> float:
    """fetch.nMsg.sec, the last column: the rate without the time the group took to form."""
    return float(output.strip().splitlines()[-1].split(",")[-1])


def steady(samples: list[Sample]) -> bool:
    last = [sample.records_per_s for sample in samples[-3:]]
    return len(last) == 3 and max(last) <= min(last) * (1 + AGREE_WITHIN)


def compare(
    name: str, contenders: list[Contender], run: Callable[[Contender], Sample], runs: int, table: Table
) -> None:
    for contender in contenders:
        warm: list[Sample] = []
        while not steady(warm) and len(warm) < WARM_RUNS_MAX:
            warm.append(run(contender))
        note = "" if steady(warm) else f" (three runs never agreed within {AGREE_WITHIN:.0%})"
        console.print(f"  {name}: {contender.name} warm after {len(warm)} runs{note}")
    samples: dict[str, list[Sample]] = {contender.name: [] for contender in contenders}
    for _ in range(runs):
        for contender in contenders:
            samples[contender.name].append(run(contender))
    medians = {
        which: Sample(
            statistics.median(s.records_per_s for s in taken),
            statistics.median(s.cpu_s_per_million for s in taken),
            statistics.median(s.rss_mib for s in taken),
        )
        for which, taken in samples.items()
    }
    ours, theirs = medians["Ottla"], medians["Kafka"]
    for which, median in medians.items():
        table.add_row(
            name,
            which,
            f"{median.records_per_s:,.0f}",
            f"{median.cpu_s_per_million:.2f}",
            f"{median.rss_mib:.0f}",
        )
    table.add_row(
        "",
        "Ottla / Kafka",
        f"{ours.records_per_s / theirs.records_per_s:.2f}",
        f"{ours.cpu_s_per_million / theirs.cpu_s_per_million:.2f}",
        f"{ours.rss_mib / theirs.rss_mib:.2f}",
        style="bold",
        end_section=True,
    )


@click.command()
@click.option("--runs", default=3, show_default=True, help="Measured runs of each, after the warm-up.")
@click.option("--only", multiple=True, help="Loads whose name has this text; all when not given.")
@click.option("--scale", default=1.0, show_default=True, help="Multiply the number of records.")
def main(runs: int, only: tuple[str, ...], scale: float) -> None:
    """Measure Ottla beside Apache Kafka 3.9.1, single broker each, on this machine."""
    table = Table(
        "load", "broker", "records/s", "CPU s / million", "MiB", title="medians, and Ottla's share of Kafka's"
    )
    for column in table.columns[2:]:
        column.justify = "right"
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as name:
        directory = Path(name)
        zookeepers = [EmbeddedZooKeeper(directory / f"zookeeper-{i}") for i in range(2)]
        port = free_port()
        ours = BrokerProcess(0, directory / "ottla", port)
        kafka: KafkaBroker | None = None
        try:
            for zookeeper in zookeepers:
                zookeeper.start()
            ours.write_properties(
                zookeepers[0].connect,
                {"offsets.topic.replication.factor": "1", "group.initial.rebalance.delay.ms": "0"},
            )
            ours.start_and_wait()
            kafka = KafkaBroker(directory / "kafka", zookeepers[1].connect)
            kafka.start()
            assert ours.pid is not None
            assert kafka.pid is not None
            contenders = [
                Contender("Ottla", f"127.0.0.1:{port}", ours.pid),
                Contender("Kafka", kafka.bootstrap, kafka.pid),
            ]
            for contender in contenders:
                # Every thread of it, so that "one core" holds for the JVM's helpers too.
                subprocess.run(
                    ["taskset", "-a", "-c", "-p", BROKER_CORE, str(contender.pid)],
                    check=True,
                    capture_output=True,
                )
            for number, load in enumerate(LOADS):
                load = Load(load.name, max(1000, int(load.records * scale)), load.settings)
                if only and not any(text in load.name for text in only):
                    continue
                topic = f"produce-{number}"
                make_topics(contenders, topic)
                compare(
                    load.name, contenders, functools.partial(produce, load=load, topic=topic), runs, table
                )
            if not only or any(text in "consume from memory" for text in only):
                load = Load("", int(1_000_000 * scale), LOADS[0].settings)
                make_topics(contenders, "consume")
                for contender in contenders:
                    produce(contender, load, "consume")
                compare(
                    "consume from memory",
                    contenders,
                    functools.partial(consume, records=load.records, topic="consume"),
                    runs,
                    table,
                )
        finally:
            ours.stop()
            if kafka is not None:
                kafka.stop()
            for zookeeper in zookeepers:
                zookeeper.stop()
    console.print(table)


def make_topics(contenders: list[Contender], topic: str) -> None:
    for contender in contenders:
        host, _, port = contender.bootstrap.rpartition(":")

        async def create(client: AdminClient) -> None:
            await client.create_topic(topic, partitions=1, replication_factor=1)

        run_admin([(host, int(port))], create)


if __name__ == "__main__":
    main()

"""`python -m bench.idle`: start, memory and CPU of a broker with thousands of unused partitions.

One broker a side, with topics of a hundred partitions. It is stopped and started, first without partitions
and then with them. The results are the time and the CPU time until it leads all of them (by its metadata),
the memory beyond that of an empty broker (RSS, also of a JVM), and the CPU time while idle. Then it is killed
(SIGKILL) and started again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Table

from bench.interpreter import say_interpreter
from bench.processes import usage_of
from bench.sides import Side, chosen_sides, only_option
from ottla.client.admin import AdminClient
from ottla.protocol.messages import MetadataRequest, MetadataResponse
from ottla.wire.connection import BrokerConnection

PER_TOPIC = 100
WAIT_S = 400.0
IDLE_CHECK_S = 3.0
BUSY_S = 0.1
IDLE_CHECKS_MAX = 20
"""A start is over when the broker takes less than BUSY_S of CPU time in a check; at most so many checks."""
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "auto.leader.rebalance.enable": "false",
    # After a SIGKILL, Kafka waits for the end of its former session; Ottla expires that itself.
    "zookeeper.session.timeout.ms": "6000",
    "zookeeper.connection.timeout.ms": "60000",
}


class Start(NamedTuple):
    """A start of a broker, until it leads all partitions."""

    wall_s: float
    cpu_s: float
    rss_mib: float


async def wait_until_leading(port: int, partitions: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            connection = await BrokerConnection.open("127.0.0.1", port, client_id="bench", timeout_s=60)
        except OSError:
            await asyncio.sleep(0.2)
            continue
        try:
            while time.monotonic() < deadline:
                metadata: MetadataResponse = await connection.request(
                    MetadataRequest(topics=None), version=12, timeout_s=60
                )
                if sum(p.leader_id >= 0 for topic in metadata.topics for p in topic.partitions) >= partitions:
                    return
                await asyncio.sleep(0.2)
        except OSError:
            continue
        finally:
            connection.close()
    raise TimeoutError(f"not all of {partitions} partitions have a leader")


def start(side: Side, partitions: int) -> Start:
    began = time.monotonic()
    side.start_brokers()
    asyncio.run(wait_until_leading(side.ports[0], partitions))
    took_s = time.monotonic() - began
    cpu_s = usage_of(side.pids).cpu_s
    usage = usage_of(side.pids)
    for _ in range(IDLE_CHECKS_MAX):
        time.sleep(IDLE_CHECK_S)
        before, usage = usage, usage_of(side.pids)
        if usage.cpu_s - before.cpu_s < BUSY_S:
            break
    return Start(took_s, cpu_s, usage.rss_mib)


def idle_cpu_rate(side: Side, seconds: float) -> float:
    """CPU seconds per second while idle."""
    before, then = usage_of(side.pids), time.monotonic()
    time.sleep(seconds)
    after, now = usage_of(side.pids), time.monotonic()
    return (after.cpu_s - before.cpu_s) / (now - then)


def create(side: Side, partitions: int) -> None:
    async def all_topics(client: AdminClient) -> None:
        for number in range(partitions // PER_TOPIC):
            await client.create_topic(f"idle-{number}", partitions=PER_TOPIC, replication_factor=1)

    side.admin(all_topics)
    asyncio.run(wait_until_leading(side.ports[0], partitions))


def kill(side: Side) -> None:
    for pid in side.pids:
        os.kill(pid, signal.SIGKILL)
    side.stop_brokers()


@click.command()
@click.option("--partitions", default=10_000, show_default=True)
@only_option
@click.option("--idle", default=30.0, show_default=True, help="Seconds of the idle measurement.")
def main(partitions: int, only: str | None, idle: float) -> None:
    """A broker's start, memory and CPU with unused partitions, and without."""
    say_interpreter()
    console = Console(width=150)
    table = Table(
        "side", "partitions", "start s", "CPU s of it", "after SIGKILL s", "CPU s of it",
        "RSS MiB", "KiB / partition", "idle CPU ms / s",
    )  # fmt: skip
    for column in table.columns[1:]:
        column.justify = "right"
    load = os.getloadavg()[0]
    for kind in chosen_sides(only):
        with (
            tempfile.TemporaryDirectory(prefix="ottla-bench-") as directory,
            kind(Path(directory), 1, SETTINGS) as side,
        ):
            side.stop_brokers()
            empty = start(side, 0)
            resting = idle_cpu_rate(side, idle / 2)
            table.add_row(
                kind.name, "0", f"{empty.wall_s:.1f}", f"{empty.cpu_s:.1f}", "", "",
                f"{empty.rss_mib:,.0f}", "", f"{resting * 1000:.1f}",
            )  # fmt: skip
            began = time.monotonic()
            create(side, partitions)
            console.print(
                f"{kind.name}: {partitions:,} partitions created in {time.monotonic() - began:.1f} s"
            )
            side.stop_brokers()
            full = start(side, partitions)
            resting = idle_cpu_rate(side, idle)
            each = (full.rss_mib - empty.rss_mib) * 1024 / partitions
            console.print(
                f"{kind.name}: {full}, {each:.1f} KiB a partition, {resting * 1000:.1f} ms / s idle"
            )
            kill(side)
            again = start(side, partitions)
            table.add_row(
                kind.name, f"{partitions:,}", f"{full.wall_s:.1f}", f"{full.cpu_s:.1f}",
                f"{again.wall_s:.1f}", f"{again.cpu_s:.1f}", f"{full.rss_mib:,.0f}", f"{each:.1f}",
                f"{resting * 1000:.1f}", end_section=True,
            )  # fmt: skip
    console.print(table)
    console.print(f"load of the machine: {load:.1f} before, {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()

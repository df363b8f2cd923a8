"""`python -m bench.idle`: a broker with thousands of partitions that nobody uses: its start, memory and CPU.

One broker a side, with topics of a hundred partitions. It is stopped and started again, at first without
partitions and then with them: the time until it leads all of them (as its metadata says), the memory that
it holds more than without, and the CPU time that it takes while nothing happens.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Table

from bench.sides import KafkaSide, OttlaSide, Side
from bench.usage import usage_of
from ottla.client.connection import BrokerConnection
from ottla.protocol.messages import MetadataRequest, MetadataResponse

PER_TOPIC = 100
WAIT_S = 900.0
SETTINGS = {"offsets.topic.num.partitions": "1", "auto.leader.rebalance.enable": "false"}


class Rest(NamedTuple):
    """A broker that has started and has nothing to do."""

    start_s: float
    pss_mib: float
    cpu_s: float
    """CPU time per second."""


async def until_it_leads(port: int, partitions: int) -> None:
    connection = await BrokerConnection.open("127.0.0.1", port, client_id="bench")
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        answer: MetadataResponse = await connection.request(MetadataRequest(topics=None), version=12)
        if sum(p.leader_id >= 0 for topic in answer.topics for p in topic.partitions) >= partitions:
            connection.close()
            return
        await asyncio.sleep(0.2)
    raise TimeoutError("some partitions are not led by anybody")


def restart(side: Side, partitions: int, idle_s: float) -> Rest:
    side.stop_brokers()
    began = time.monotonic()
    side.start_brokers()
    asyncio.run(until_it_leads(side.ports[0], partitions))
    took_s = time.monotonic() - began
    time.sleep(min(idle_s, 5))  # what the start set off
    before, then = usage_of(side.pids), time.monotonic()
    time.sleep(idle_s)
    after, now = usage_of(side.pids), time.monotonic()
    return Rest(took_s, after.pss_mib, (after.cpu_s - before.cpu_s) / (now - then))


def create(side: Side, partitions: int) -> None:
    for number in range(partitions // PER_TOPIC):
        side.admin(
            lambda c, number=number: c.create_topic(  # type: ignore[misc]
                f"idle-{number}", partitions=PER_TOPIC, replication_factor=1
            )
        )
    asyncio.run(until_it_leads(side.ports[0], partitions))


@click.command()
@click.option("--partitions", default=10_000, show_default=True)
@click.option("--only", type=click.Choice(["ottla", "kafka"]), help="One side alone.")
@click.option("--idle", default=20.0, show_default=True, help="Seconds of doing nothing.")
def main(partitions: int, only: str | None, idle: float) -> None:
    """A broker's start, memory and CPU with partitions that nobody uses, and without."""
    table = Table("side", "partitions", "start s", "memory MiB", "KiB / partition", "CPU ms / s")
    for column in table.columns[1:]:
        column.justify = "right"
    for kind in (OttlaSide, KafkaSide):
        if only not in (None, kind.name.lower()):
            continue
        with (
            tempfile.TemporaryDirectory(prefix="ottla-bench-") as directory,
            kind(Path(directory), 1, SETTINGS) as side,
        ):
            without = restart(side, 0, idle)
            create(side, partitions)
            rest = restart(side, partitions, idle)
        for count, row in ((0, without), (partitions, rest)):
            each = (row.pss_mib - without.pss_mib) * 1024 / count if count else 0.0
            table.add_row(
                kind.name,
                f"{count:,}",
                f"{row.start_s:.1f}",
                f"{row.pss_mib:,.0f}",
                f"{each:.1f}" if count else "",
                f"{row.cpu_s * 1000:.1f}",
                end_section=bool(count),
            )
    Console().print(table)


if __name__ == "__main__":
    main()

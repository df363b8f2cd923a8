"""`python -m bench.groups`: the time that a broker takes to load many groups, and other clients' waits.

One broker a side, Ottla and Apache Kafka, is stopped and started: first without groups, then with many, each
with one member and commits for several partitions. The groups are made by the same requests on both sides.
The results are the time from the start of the process until the broker has loaded every partition of
__consumer_offsets, less the time without groups; the CPU time in the same way; and the longest time that
another client, which sends ApiVersions requests one after the other, waits for a response.
"""

from __future__ import annotations

import asyncio
import os
import struct
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Table

from bench.interpreter import say_interpreter
from bench.processes import usage_of
from bench.sides import Side, chosen_sides, only_option
from bench.tools import CLIENT_CORE
from ottla.client.admin import AdminClient
from ottla.coordinators.records import partition_for
from ottla.protocol import messages as m
from ottla.wire.connection import BrokerConnection

TOPICS = 10
CLIENTS = 8
WAIT_S = 300.0
SESSION_MS = 1_800_000
"""Kafka's maximum, so that no member expires between two starts."""
SETTINGS = {"auto.create.topics.enable": "false", "log.cleaner.enable": "false"}
_RETRIABLE = {14, 15, 16}


class Load(NamedTuple):
    groups: int
    partitions: int
    commits: int
    offsets_partitions: int


class Member(NamedTuple):
    """The only member of a group."""

    group_id: str
    member_id: str
    generation_id: int


class Start(NamedTuple):
    took_s: float
    cpu_s: float
    longest_wait_ms: float


def group_id(number: int) -> str:
    return f"service-{number:05d}-consumers"


def topic_of(number: int) -> str:
    return f"orders-{number % TOPICS}"


def subscription(topic: str) -> bytes:
    return struct.pack(">hih", 1, 1, len(topic)) + topic.encode() + struct.pack(">i", -1)


async def make_group(connection: BrokerConnection, number: int, partitions: int, commits: int) -> Member:
    """Make a stable group of one member, with its commits."""
    group, topic = group_id(number), topic_of(number)
    protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=subscription(topic))
    join = m.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=SESSION_MS,
        protocol_type="consumer",
        protocols=[protocol],
    )
    while True:
        joined: m.JoinGroupResponse = await connection.request(join, version=3, timeout_s=60)
        if joined.error_code not in _RETRIABLE:
            break
        await asyncio.sleep(0.2)
    assert joined.error_code == 0, joined
    assignment = m.SyncGroupRequest.SyncGroupRequestAssignment(
        member_id=joined.member_id, assignment=b"\0" * 60
    )
    sync = m.SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[assignment],
    )
    synced = await connection.request(sync, version=3, timeout_s=60)
    assert synced.error_code == 0, synced
    for at in range(commits):
        rows = [
            m.OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=p, committed_offset=1000 * number + at, committed_metadata=""
            )
            for p in range(partitions)
        ]
        commit = m.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=joined.generation_id,
            member_id=joined.member_id,
            topics=[m.OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=rows)],
        )
        done: m.OffsetCommitResponse = await connection.request(commit, version=7, timeout_s=60)
        assert not any(row.error_code for row in done.topics[0].partitions), done
    return Member(group, joined.member_id, joined.generation_id)


async def fill(port: int, load: Load) -> None:
    numbers = iter(range(load.groups))

    async def work(numbers: Iterator[int]) -> None:
        connection = await BrokerConnection.open("127.0.0.1", port, client_id="bench")
        for number in numbers:
            await make_group(connection, number, load.partitions, load.commits)
        connection.close()

    await asyncio.gather(*[work(numbers) for _ in range(CLIENTS)])


async def wait_until_loaded(port: int, groups: int, offsets_partitions: int) -> float:
    """Wait until the broker has loaded the groups; the longest wait of another client, in ms."""
    waits: list[float] = [0.0]

    async def send_small_requests() -> None:
        other = await BrokerConnection.open("127.0.0.1", port, client_id="other")
        while True:
            began = time.perf_counter()
            await other.request(m.ApiVersionsRequest(), version=0, timeout_s=60)
            waits.append((time.perf_counter() - began) * 1000)

    group_of_partition = {
        partition_for(group_id(at), offsets_partitions): group_id(at) for at in range(groups)
    }
    other_client = asyncio.create_task(send_small_requests())
    connection = await BrokerConnection.open("127.0.0.1", port, client_id="bench")
    deadline = time.monotonic() + WAIT_S
    try:
        while time.monotonic() < deadline:
            if await is_loaded(connection, list(group_of_partition.values())):
                return max(waits)
            await asyncio.sleep(0.05)
    finally:
        other_client.cancel()
        connection.close()
    raise TimeoutError(f"{groups} groups were not loaded in {WAIT_S} s")


async def is_loaded(connection: BrokerConnection, group_ids: list[str]) -> bool:
    found = await connection.request(m.FindCoordinatorRequest(key=group_id(0), key_type=0), version=2)
    if found.error_code:
        return False
    # No group is in this state, so that the response is short; its error code reports loading partitions.
    listed: m.ListGroupsResponse = await connection.request(
        m.ListGroupsRequest(states_filter=["Dead"]), version=4
    )
    if listed.error_code:
        return False
    described: m.DescribeGroupsResponse = await connection.request(
        m.DescribeGroupsRequest(groups=group_ids), version=5
    )
    return all(group.group_state == "Stable" for group in described.groups)


def start(side: Side, groups: int, offsets_partitions: int) -> Start:
    side.stop_brokers()
    began = time.monotonic()
    side.start_brokers()
    longest_ms = asyncio.run(wait_until_loaded(side.ports[0], groups, offsets_partitions))
    return Start(time.monotonic() - began, usage_of(side.pids).cpu_s, longest_ms)


def run(side: Side, load: Load, rounds: int) -> tuple[list[Start], list[Start]]:
    """(starts without groups, starts with them)"""
    for at in range(TOPICS):
        topic = topic_of(at)
        side.admin(
            partial(AdminClient.create_topic, name=topic, partitions=load.partitions, replication_factor=1)
        )
    asyncio.run(wait_until_loaded(side.ports[0], 0, load.offsets_partitions))
    without = [start(side, 0, load.offsets_partitions) for _ in range(rounds)]
    began = time.monotonic()
    asyncio.run(fill(side.ports[0], load))
    click.echo(f"{side.name}: groups created in {time.monotonic() - began:.1f} s", err=True)
    return without, [start(side, load.groups, load.offsets_partitions) for _ in range(rounds)]


def results_table(found: dict[str, tuple[list[Start], list[Start]]], load: Load) -> Table:
    """The minimum of each figure, since other work on the machine only adds."""
    table = Table(
        title=f"Loading {load.groups} groups with {load.groups * load.partitions} committed partitions"
    )
    for name in ("side", "start without", "start with", "loading", "its CPU", "longest wait", "without"):
        table.add_column(name, justify="left" if name == "side" else "right")
    for name, (without, loaded) in found.items():
        before, after = (
            Start(*(min(values) for values in zip(*starts, strict=True))) for starts in (without, loaded)
        )
        table.add_row(
            name,
            f"{before.took_s:.2f} s",
            f"{after.took_s:.2f} s",
            f"{after.took_s - before.took_s:.2f} s",
            f"{after.cpu_s - before.cpu_s:.2f} s",
            f"{after.longest_wait_ms:.0f} ms",
            f"{before.longest_wait_ms:.0f} ms",
        )
    return table


@click.command()
@click.option("--groups", default=10_000, show_default=True)
@click.option("--partitions", default=10, show_default=True, help="Partitions that each group commits.")
@click.option("--commits", default=1, show_default=True, help="Commits of each partition.")
@click.option("--offsets-partitions", default=50, show_default=True, help="offsets.topic.num.partitions")
@click.option("--rounds", default=3, show_default=True)
@only_option
def main(
    groups: int, partitions: int, commits: int, offsets_partitions: int, rounds: int, only: str | None
) -> None:
    """Start a broker that coordinates many groups."""
    say_interpreter()
    os.sched_setaffinity(0, {CLIENT_CORE})
    load = Load(groups, partitions, commits, offsets_partitions)
    settings = {**SETTINGS, "offsets.topic.num.partitions": str(offsets_partitions)}
    found: dict[str, tuple[list[Start], list[Start]]] = {}
    for kind in chosen_sides(only):
        with (
            tempfile.TemporaryDirectory(prefix="ottla-bench-") as root,
            kind(Path(root), 1, settings) as side,
        ):
            found[side.name] = run(side, load, rounds)
    Console().print(results_table(found, load))


if __name__ == "__main__":
    main()

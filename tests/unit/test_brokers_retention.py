"""Retention on three brokers: old segments are deleted, on followers too, and readers below the log start
offset get an error."""

from __future__ import annotations

from collections.abc import Callable, Coroutine

import pytest

from ottla.client import Consumer
from ottla.client.admin import TopicPartition
from ottla.client.errors import OffsetOutOfRangeError
from ottla.simulation.cluster import Cluster
from tests.worlds.simulated_brokers import create, produce, replica, restart, run, state_of, until

RECORDS = 400
SEGMENT_BYTES = 4096
KEPT_BYTES = 3 * SEGMENT_BYTES
PLACE = TopicPartition("topic", 0)


async def fill(cluster: Cluster, records: int = RECORDS) -> None:
    """More than ten segments."""
    for first in range(0, records, 10):
        await produce(cluster, "topic", [f"{n}{' ' * 100}" for n in range(first, min(first + 10, records))])


def segments(cluster: Cluster, broker: int) -> dict[int, int]:
    """The base offsets of a replica's segments on its disk, with their sizes."""
    machine = cluster.machines[broker]
    prefix, suffix = f"{machine.log_dir}/topic-0/", ".log"
    return {
        int(path.removeprefix(prefix).removesuffix(suffix)): len(file.data)
        for path, file in sorted(machine.disk.names.items())
        if path.startswith(prefix) and path.endswith(suffix)
    }


def leftovers(cluster: Cluster) -> list[str]:
    return [
        path
        for machine in cluster.machines.values()
        for path in machine.disk.names
        if path.endswith(".deleted")
    ]


async def alter(cluster: Cluster, setting: str, value: int) -> None:
    """Returns when every broker has applied it."""
    named = {setting: str(value)}
    await cluster.admin(lambda admin: admin.alter_topic_config("topic", set_values=named))

    def is_applied() -> bool:
        found = [replica(cluster, broker, "topic") for broker in cluster.machines]
        field = setting.replace(".", "_")
        return all(each is not None and getattr(each.log.config, field) == value for each in found)

    await until(is_applied, f"{setting}={value} to be applied")


async def start_and_end(cluster: Cluster) -> tuple[int, int]:
    starts = await cluster.admin(lambda admin: admin.start_offsets([PLACE]))
    ends = await cluster.admin(lambda admin: admin.end_offsets([PLACE]))
    return starts[PLACE], ends[PLACE]


def run_filled(scenario: Callable[[Cluster], Coroutine[object, object, None]]) -> None:
    async def begin(cluster: Cluster) -> None:
        await create(cluster, "topic", segment_bytes=str(SEGMENT_BYTES), retention_ms="-1")
        await fill(cluster)
        assert all(len(segments(cluster, broker)) > 10 for broker in cluster.machines)
        await scenario(cluster)

    run(begin, settings={"log.retention.check.interval.ms": "1000"}, files_are_checked=True)


def test_segments_over_the_size_limit_are_deleted_on_all_replicas() -> None:
    async def scenario(cluster: Cluster) -> None:
        def all_keep_as_much(brokers: set[int]) -> bool:
            """The oldest went, on each broker, and no more than those: one segment over, at most."""
            kept = [segments(cluster, broker) for broker in brokers]
            sizes = [sum(each.values()) for each in kept]
            return len({min(each) for each in kept}) == 1 and all(
                KEPT_BYTES <= size < KEPT_BYTES + SEGMENT_BYTES for size in sizes
            )

        everyone = set(cluster.machines)
        await alter(cluster, "retention.bytes", KEPT_BYTES)
        await until(lambda: all_keep_as_much(everyone), "all to keep as much")
        assert await start_and_end(cluster) == (min(segments(cluster, 0)), RECORDS)
        await until(lambda: leftovers(cluster) == [], "the deleted files to be gone")

        # A follower that was away meanwhile takes over the new start; so does a leader that starts again.
        leader = state_of(cluster, "topic").leader
        away = next(broker for broker in cluster.machines if broker != leader)
        await cluster.stop_broker(away)
        await fill(cluster)
        await until(lambda: all_keep_as_much(everyone - {away}), "the log start to move on")
        assert max(segments(cluster, away)) < min(segments(cluster, leader))
        await restart(cluster)
        await until(lambda: all_keep_as_much(everyone), "the follower to leave its old segments behind")
        now = await start_and_end(cluster)
        assert now == (min(segments(cluster, away)), 2 * RECORDS)
        cluster.kill(leader)
        await until(lambda: state_of(cluster, "topic").leader not in (leader, -1), "a new leader")
        assert await start_and_end(cluster) == now
        await restart(cluster)
        assert all_keep_as_much(everyone)

    run_filled(scenario)


def test_expired_segments_are_deleted_even_if_none_remain() -> None:
    async def scenario(cluster: Cluster) -> None:
        await alter(cluster, "retention.ms", 1)
        await until(
            lambda: all(segments(cluster, broker) == {RECORDS: 0} for broker in cluster.machines),
            "one empty segment to be left on each broker",
        )
        assert await start_and_end(cluster) == (RECORDS, RECORDS)
        await alter(cluster, "retention.ms", 100_000_000)
        await fill(cluster, 10)
        assert await start_and_end(cluster) == (RECORDS, RECORDS + 10)

    run_filled(scenario)


def test_a_reader_below_the_log_start_gets_out_of_range_and_may_reset() -> None:
    async def scenario(cluster: Cluster) -> None:
        await alter(cluster, "retention.bytes", KEPT_BYTES)
        await until(lambda: min(segments(cluster, 0)) > 10, "the log start to move")
        await alter(cluster, "retention.bytes", -1)
        start, _ = await start_and_end(cluster)

        async def first(reset: str) -> int:
            """The offset of the first record, read from offset 5."""
            async with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset=reset) as consumer:
                consumer.assign([PLACE])
                consumer.seek(PLACE, 5)
                while True:
                    for records in (await consumer.poll(1.0)).values():
                        return records[0].offset

        with pytest.raises(OffsetOutOfRangeError):
            await cluster.in_process("reader", first("none"))
        assert await cluster.in_process("reader", first("earliest")) == start

    run_filled(scenario)

"""The coordinator is killed while it rewinds a group: the offsets of all partitions have changed, or of none.

Which of the two is in the log of the next coordinator: the rewind is there if its batch was replicated. The
members start far in the log (FAR) and are rewound to its start (TO). Then they get every record from there
on, and none from their old position.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ottla.client import Consumer
from ottla.client.admin import AdminClient, TopicPartition
from ottla.client.errors import ClientError
from ottla.coordinators.records import OffsetRecordKey, parse_key, parse_offset_value
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import OffsetCommitRequest, OffsetCommitResponse
from ottla.protocol.records import decode_records
from ottla.simulation.cluster import PORT, Cluster
from ottla.wire.connection import BrokerConnection, ConnectionLost
from tests.worlds.simulated_brokers import Load, create, produce, restart, run, state_of, until

RECORDS, FAR, TO = 1000, 600, 10
BETWEEN = 300
"""No member gets here: less is behind the rewind, more is before it."""
PLACES = [TopicPartition("read", number) for number in range(2)]
ALL = {0, 1}


class Member:
    """A consumer that commits after each record."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.got: list[tuple[int, int]] = []
        """(partition, offset)."""
        self.task = cluster.client(f"member-{number}").create_task(self._read(cluster.bootstrap))

    async def _read(self, bootstrap: str) -> None:
        async with Consumer(
            bootstrap_servers=bootstrap,
            group_id="group",
            partition_assignment_strategy="cooperative-sticky",
            heartbeat_interval_ms=300,
            session_timeout_ms=20_000,
            request_timeout_ms=5_000,
            enable_auto_commit=False,
            max_poll_records=1,
        ) as consumer:
            consumer.subscribe(["read"])
            while True:
                for place, records in (await consumer.poll(0.2)).items():
                    self.got += [(place.partition, record.offset) for record in records]
                    with contextlib.suppress(ClientError):  # it was rewound, or has no coordinator
                        await consumer.commit()
                    await asyncio.sleep(0.02)

    @property
    def after(self) -> list[tuple[int, int]]:
        """The records from the first one after the rewind."""
        for number, (_, offset) in enumerate(self.got):
            if offset < BETWEEN:
                return self.got[number:]
        return []


class Group:
    """Two members that read, and their coordinator, which is to be killed."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.members = [Member(cluster, number) for number in range(2)]
        self.coordinator = -1

    async def begin(self) -> None:
        await self.until(lambda: all(len(each.got) > 5 for each in self.members), "both to read")
        self.coordinator = await self.current_coordinator()

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        def met() -> bool:
            for member in self.members:
                if member.task.done():
                    member.task.result()
            return condition()

        await until(met, what)

    async def current_coordinator(self) -> int:
        found = await self.cluster.admin(lambda admin: admin.describe_group("group"))
        return found.coordinator.id

    async def wait_for_failover(self) -> None:
        def has_moved() -> bool:
            leader = state_of(self.cluster, "__consumer_offsets").leader
            return leader not in (self.coordinator, -1)

        await until(has_moved, "another broker to be the group's coordinator")

    def rewinds_in_log_of(self, broker: int) -> set[int]:
        """Partitions whose rewind is in the broker's files. Members commit TO + 1 at the least."""
        found: set[int] = set()
        for path, file in self.cluster.machines[broker].disk.names.items():
            if "__consumer_offsets-" in path and path.endswith(".log"):
                for record in decode_records(bytes(file.data)):
                    key = parse_key(record.key or b"")
                    if isinstance(key, OffsetRecordKey):
                        assert record.value is not None
                        if parse_offset_value(bytes(record.value)).offset == TO:
                            found.add(key.partition[1])
        return found

    async def rewind(
        self, act: Callable[[], Coroutine[Any, Any, None]], *, is_paused: bool = False
    ) -> OffsetCommitResponse | None:
        """Send a rewind, once, and `act` while it is under way; None: the connection ended without an answer.
        With `is_paused` the coordinator is paused before, and does not read it."""
        row = OffsetCommitRequest.OffsetCommitRequestPartition
        rows = [row(partition_index=place.partition, committed_offset=TO) for place in PLACES]
        topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="read", partitions=rows)
        request = OffsetCommitRequest(group_id="group", topics=[topic], remove_members=True)
        host = self.cluster.machines[self.coordinator].host
        client = self.cluster.client("rewinder")
        connection = await client.create_task(BrokerConnection.open(host, PORT, timeout_s=30))

        async def ask() -> OffsetCommitResponse | None:
            try:
                response: OffsetCommitResponse = await connection.request(request)
            except ConnectionLost:
                return None
            finally:
                connection.close()
            return response

        if is_paused:
            self.cluster.pause(self.coordinator)
        asking = client.create_task(ask())
        await act()
        return await asking

    async def kill(self) -> None:
        self.cluster.kill(self.coordinator)

    async def committed(self) -> dict[TopicPartition, int]:
        return await self.cluster.admin(lambda admin: admin.group_offsets("group"))

    async def check_all_changed(self) -> None:
        def seen() -> dict[int, set[int]]:
            return {n: {offset for m in self.members for p, offset in m.after if p == n} for n in ALL}

        await self.until(
            lambda: all(len(each.after) > 10 for each in self.members), "both to read from there"
        )
        await self.until(
            lambda: all(len(each) > 10 for each in seen().values()), "every partition to be read"
        )
        committed = await self.committed()
        for partition, offsets in seen().items():
            assert offsets == set(range(TO, max(offsets) + 1)), f"partition {partition}"
            assert max(offsets) < BETWEEN
            # Nor was anything committed from the old position.
            assert TO < committed[TopicPartition("read", partition)] <= max(offsets) + 1

    async def check_nothing_changed(self) -> None:
        """The members read on from where they were."""
        before = [len(member.got) for member in self.members]
        await self.until(
            lambda: all(len(m.got) > n + 10 for m, n in zip(self.members, before, strict=True)),
            "both to read on",
        )
        assert all(member.after == [] for member in self.members)
        committed = await self.committed()
        assert committed.keys() == set(PLACES)
        assert all(offset > BETWEEN for offset in committed.values())

    async def check(self, rewound: set[int]) -> None:
        """After the failover, and when all are in sync again."""
        await self.wait_for_failover()
        check = self.check_all_changed if rewound else self.check_nothing_changed
        await check()
        await restart(self.cluster)
        for broker in self.cluster.machines:
            assert self.rewinds_in_log_of(broker) == rewound, f"broker {broker}"
        await check()


def run_group(scenario: Callable[[Group], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    async def begin(cluster: Cluster) -> None:
        await create(cluster, "read", {0: (0, 1, 2), 1: (1, 2, 0)})
        await produce(cluster, "read", ["old"] * RECORDS * 2, partitions=2)

        async def place(admin: AdminClient) -> None:
            (await admin.alter_group_offsets("group", dict.fromkeys(PLACES, FAR))).raise_first()

        await cluster.admin(place)
        load = Load(cluster, "read", 2)
        group = Group(cluster)
        await group.begin()
        await scenario(group)
        load.stop()

    run(begin, settings={"offsets.topic.num.partitions": "1"}, seed=seed)


def test_a_coordinator_killed_before_it_reads_the_request() -> None:
    async def scenario(group: Group) -> None:
        assert await group.rewind(group.kill, is_paused=True) is None
        await group.check(set())

    run_group(scenario)


def test_a_coordinator_killed_after_the_append_and_before_replication() -> None:
    async def scenario(group: Group) -> None:
        others = set(group.cluster.machines) - {group.coordinator}

        async def kill_once_written() -> None:
            await until(lambda: group.rewinds_in_log_of(group.coordinator) == ALL, "it to be written")
            await group.kill()

        for broker in others:
            group.cluster.pause(broker)
        # The followers' fetches that were there have been answered, and none follows.
        await asyncio.sleep(1.0)
        assert await group.rewind(kill_once_written) is None
        for broker in others:
            group.cluster.resume(broker)
        await group.check(set())

    run_group(scenario)


@pytest.mark.parametrize("delay_ms", [0.5, 1.0, 1.5, 2.0, 2.5])
def test_a_rewind_whose_coordinator_is_killed_before_the_response_is_done_or_not_at_all(
    delay_ms: float,
) -> None:
    """Before it is written, while it is replicated, and when it has answered."""

    async def scenario(group: Group) -> None:
        async def kill() -> None:
            await asyncio.sleep(delay_ms / 1000)
            await group.kill()

        response = await group.rewind(kill)
        await group.wait_for_failover()
        rewound = group.rewinds_in_log_of(await group.current_coordinator())
        assert rewound in (set(), ALL), "it is one batch"
        assert rewound == ALL or response is None
        await group.check(rewound)

    run_group(scenario)


def test_a_rewind_survives_its_coordinator_once_it_has_responded() -> None:
    async def scenario(group: Group) -> None:
        response = await group.rewind(lambda: asyncio.sleep(0))
        await group.kill()
        assert response is not None
        errors = [row.error_code for topic in response.topics for row in topic.partitions]
        assert errors == [ErrorCode.NONE] * 2
        await group.check(ALL)

    run_group(scenario)


def test_the_admin_client_finds_the_new_coordinator() -> None:
    async def scenario(group: Group) -> None:
        async def rewind(admin: AdminClient) -> None:
            found = await admin.alter_group_offsets("group", dict.fromkeys(PLACES, TO), live=True)
            found.raise_first()

        rewinding = asyncio.ensure_future(group.cluster.admin(rewind))
        await asyncio.sleep(0.004)
        await group.kill()
        assert not rewinding.done()
        await rewinding
        await group.check_all_changed()

    run_group(scenario)

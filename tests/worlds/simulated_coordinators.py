"""A coordinator in a world of its own, for the coordinators' stories: virtual time, a log in memory."""

from __future__ import annotations

import asyncio
import functools
import heapq
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from ottla.coordinators.config import GroupConfig
from ottla.coordinators.coordinator import GroupCoordinator
from ottla.coordinators.interfaces import ACKS_ALL, ClientContext
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from ottla.protocol.records import Record, decode_batch, parse_batch_header

WALL_TIME_MS = 1_700_000_000_000
SESSION_MS = 10_000
REBALANCE_MS = 60_000


def scenario(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @functools.wraps(test)
    def run() -> None:
        asyncio.run(test())

    # Else pytest would look through to the coroutine function, and not run it.
    del run.__dict__["__wrapped__"]
    return run


async def run_until_idle() -> None:
    """Let everything happen that can happen without time passing."""
    for _ in range(30):
        await asyncio.sleep(0)


class _Call:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualTime:
    def __init__(self) -> None:
        self.elapsed_ms = 0
        self._calls: list[tuple[int, int, _Call]] = []
        self._sequence = 0

    def now_ms(self) -> int:
        return self.elapsed_ms

    def wall_ms(self) -> int:
        return WALL_TIME_MS + self.elapsed_ms

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> _Call:
        self._sequence += 1
        call = _Call(callback)
        heapq.heappush(self._calls, (self.elapsed_ms + delay_ms, self._sequence, call))
        return call

    async def advance(self, ms: int) -> None:
        await run_until_idle()
        until_ms = self.elapsed_ms + ms
        while self._calls and self._calls[0][0] <= until_ms:
            due_ms, _, call = heapq.heappop(self._calls)
            self.elapsed_ms = max(self.elapsed_ms, due_ms)
            if call.callback is not None:
                call.callback()
                await run_until_idle()
        self.elapsed_ms = until_ms


class MemoryLog:
    """`__consumer_offsets` as lists of batches. `hold` keeps appends from being replicated."""

    topic = "__consumer_offsets"

    def __init__(self) -> None:
        self.batches: dict[int, list[bytes]] = {}
        self.answers: list[ErrorCode] = []
        self.acks: list[int] = []
        self.held: list[asyncio.Future[ErrorCode]] = []
        self.hold = False

    def is_leader(self, partition: int) -> bool:
        return True

    def append(
        self,
        partition: int,
        batch: bytes,
        *,
        acks: int = ACKS_ALL,
        timeout_ms: int | None = None,
        guard: object | None = None,
    ) -> asyncio.Future[ErrorCode]:
        self.acks.append(acks)
        answer = self.answers.pop(0) if self.answers else ErrorCode.NONE
        if answer is ErrorCode.NONE:
            self.put(partition, batch)
        write: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        if self.hold:
            self.held.append(write)
        else:
            write.set_result(answer)
        return write

    def put(self, partition: int, batch: bytes) -> None:
        """Give it the next offsets, as a log does."""
        batches = self.batches.setdefault(partition, [])
        offset = parse_batch_header(batches[-1]).next_offset if batches else 0
        batches.append(struct.pack(">q", offset) + batch[8:])

    def release(self) -> None:
        self.hold = False
        for write in self.held:
            write.set_result(ErrorCode.NONE)
        self.held.clear()

    async def read_all(self, partition: int) -> AsyncIterator[bytes]:
        for batch in list(self.batches.get(partition, [])):
            yield batch

    def records(self) -> list[Record]:
        return [
            record for batches in self.batches.values() for batch in batches for record in decode_batch(batch)
        ]


def subscription(*topics: str) -> bytes:
    names = b"".join(struct.pack(">h", len(t)) + t.encode() for t in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">i", -1)


class SimulatedGroups:
    def __init__(
        self, log: MemoryLog | None = None, time: VirtualTime | None = None, **settings: int
    ) -> None:
        settings = {"group_initial_rebalance_delay_ms": 0, "offsets_topic_num_partitions": 1, **settings}
        self.time = time or VirtualTime()
        self.log = log or MemoryLog()
        self.settings = settings
        self._ids = 0
        self.coordinator = GroupCoordinator(
            config=GroupConfig(**settings),
            log=self.log,
            clock=self.time.wall_ms,
            scheduler=self.time,
            member_ids=self._member_id,
            partition_exists=lambda topic, partition: topic != "missing" and partition < 99,
        )

    def _member_id(self, name: str) -> str:
        self._ids += 1
        return f"{name}-{self._ids}"

    async def started(self) -> SimulatedGroups:
        self.coordinator.start()
        for partition in range(self.settings["offsets_topic_num_partitions"]):
            load = self.coordinator.load(partition)
            assert load is not None
            await load
        return self

    async def elsewhere(self) -> SimulatedGroups:
        """Another broker that takes the log over; this one has lost it."""
        for partition in range(self.settings["offsets_topic_num_partitions"]):
            self.coordinator.unload(partition)
        other = SimulatedGroups(self.log, self.time, **self.settings)
        other._ids = 1_000
        return await other.started()

    def client(self, name: str, group: str = "g", **options: Any) -> Client:
        return Client(self, name, group, **options)

    async def members(self, count: int, group: str = "g", **options: Any) -> list[Client]:
        """A stable group of consumers c1, c2 …; c1 leads. Each is assigned its own name."""
        clients = [self.client(f"c{index + 1}", group, **options) for index in range(count)]
        await self.rebalance(clients)
        return clients

    async def join(self, clients: list[Client]) -> None:
        joins = []
        for client in clients:
            joins.append(client.joining())
            await run_until_idle()
        await self.time.advance(0)
        for client, join in zip(clients, joins, strict=True):
            client.took(await finished(join))

    async def rebalance(self, clients: list[Client]) -> None:
        await self.join(clients)
        await self.sync(clients)

    async def sync(self, clients: list[Client]) -> None:
        assignment = {client.member_id: client.name.encode() for client in clients}
        syncs = [client.syncing(assignment if client.is_leader else {}) for client in clients]
        for client, sync in zip(clients, syncs, strict=True):
            response = await finished(sync)
            assert response.error_code == ErrorCode.NONE
            client.assignment = response.assignment

    async def describe(self, group: str = "g") -> DescribeGroupsResponse.DescribedGroup:
        request = DescribeGroupsRequest(groups=[group])
        return (await self.coordinator.describe_groups(request)).groups[0]

    async def state(self, group: str = "g") -> str:
        return (await self.describe(group)).group_state

    async def committed(
        self, group: str = "g", topic: str = "t", partition: int = 0, *, stable: bool = False
    ) -> tuple[int, int]:
        """(offset, error code)"""
        wanted = [OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])]
        request = OffsetFetchRequest(group_id=group, topics=wanted, require_stable=stable)
        response = await self.coordinator.offset_fetch(request, 7)
        assert response.error_code == ErrorCode.NONE
        found = response.topics[0].partitions[0]
        return found.committed_offset, found.error_code


CONTEXT = ClientContext("client", "/127.0.0.1")


async def finished(task: asyncio.Task[Any]) -> Any:
    """The result of something that must be done by now."""
    await run_until_idle()
    assert task.done(), "still waiting for its answer"
    return task.result()


class Client:
    """A consumer's side of the protocol, one request at a time."""

    def __init__(
        self,
        simulation: SimulatedGroups,
        name: str,
        group: str,
        *,
        instance_id: str | None = None,
        version: int = 9,
        topics: tuple[str, ...] = ("t",),
        protocols: tuple[str, ...] = ("range",),
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
    ) -> None:
        self.simulation = simulation
        self.coordinator = simulation.coordinator
        self.name = name
        self.group = group
        self.instance_id = instance_id
        self.version = version
        self.topics = topics
        self.protocols = protocols
        self.protocol_type = protocol_type
        self.session_ms = session_ms
        self.rebalance_ms = rebalance_ms
        self.member_id = ""
        self.generation = -1
        self.is_leader = False
        self.assignment = b""

    def at(self, simulation: SimulatedGroups) -> Client:
        """Go on with another broker."""
        self.simulation, self.coordinator = simulation, simulation.coordinator
        return self

    def restarted(self) -> Client:
        """The process anew: it knows its configuration, and nothing else."""
        return Client(
            self.simulation,
            self.name,
            self.group,
            instance_id=self.instance_id,
            version=self.version,
            topics=self.topics,
            protocols=self.protocols,
            rebalance_ms=self.rebalance_ms,
        )

    async def join_once(self) -> JoinGroupResponse:
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=self.protocol_type,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=subscription(*self.topics))
                for name in self.protocols
            ],
        )
        return await self.coordinator.join_group(
            request, self.version, ClientContext(self.name, "/127.0.0.1")
        )

    async def _join(self) -> JoinGroupResponse:
        response = await self.join_once()
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            response = await self.join_once()
        return response

    def joining(self) -> asyncio.Task[JoinGroupResponse]:
        """Join as clients do: with the member id, once told it."""
        return asyncio.get_running_loop().create_task(self._join())

    def took(self, response: JoinGroupResponse) -> None:
        assert response.error_code == ErrorCode.NONE, ErrorCode(response.error_code).name
        self.member_id = response.member_id
        self.generation = response.generation_id
        self.is_leader = response.leader == response.member_id

    def syncing(self, assignment: dict[str, bytes] | None = None) -> asyncio.Task[SyncGroupResponse]:
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocols[0],
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=share)
                for member_id, share in (assignment or {}).items()
            ],
        )
        return asyncio.get_running_loop().create_task(self.coordinator.sync_group(request, 5))

    async def heartbeat(self) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        return ErrorCode(self.coordinator.heartbeat(request).error_code)

    async def leave(self) -> ErrorCode:
        request = LeaveGroupRequest(
            group_id=self.group,
            members=[
                LeaveGroupRequest.MemberIdentity(member_id=self.member_id, group_instance_id=self.instance_id)
            ],
        )
        response = await self.coordinator.leave_group(request, 5)
        return ErrorCode(response.error_code or response.members[0].error_code)

    async def commit(
        self, offset: int, *, topic: str = "t", partition: int = 0, metadata: str = ""
    ) -> ErrorCode:
        return await commit(
            self.simulation,
            offset,
            group=self.group,
            topic=topic,
            partition=partition,
            metadata=metadata,
            generation=self.generation,
            member_id=self.member_id,
            instance_id=self.instance_id,
        )


async def commit(
    simulation: SimulatedGroups,
    offset: int,
    *,
    group: str = "g",
    topic: str = "t",
    partition: int = 0,
    metadata: str | None = "",
    generation: int = -1,
    member_id: str = "",
    instance_id: str | None = None,
    retention_ms: int = -1,
) -> ErrorCode:
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        retention_time_ms=retention_ms,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=offset,
                        committed_leader_epoch=3,
                        committed_metadata=metadata,
                    )
                ],
            )
        ],
    )
    response = await simulation.coordinator.offset_commit(request)
    return ErrorCode(response.topics[0].partitions[0].error_code)

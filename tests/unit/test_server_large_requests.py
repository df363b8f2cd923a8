"""A large request takes the event loop one slice at a time, with the same response as without slices."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any

import pytest

from ottla.ports import Clock, OsClock
from ottla.protocol import frames
from ottla.protocol import messages as m
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.types import Message, fields_of
from ottla.server.dispatch import sliced_work
from ottla.server.dispatch.dispatcher import Dispatcher, Request, Route
from ottla.server.dispatch.large_requests import PART_ITEMS_MAX, LargeRequests
from ottla.server.dispatch.sliced_work import SLICE_S, Abandoned, SlicedWork
from ottla.server.dispatch.splits import (
    BETWEEN_BROKERS,
    SPLITS,
    WHOLE,
    WHOLE_ITEMS_MAX,
    join,
    parts,
    split_of,
)
from ottla.server.handlers.admin.client_quotas import ClientQuotasHandler
from ottla.server.handlers.admin.scram_credentials import ScramCredentialsHandler
from tests.unit.test_server_dispatch import FakeConnection, decode_answer, frame_of

ITEMS = 30_000


class Ticks(OsClock):
    """A clock that advances by a step at each call."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self.now_s = 0.0
        self._step_s = step_s
        self.monotonic_s = self._tick

    def _tick(self) -> float:
        self.now_s += self._step_s
        return self.now_s


async def answered(
    route: Route, message: Message, version: int, clock: Clock | None = None
) -> tuple[FakeConnection, int]:
    """The connection after the response, and the number of loop iterations for other work."""
    loop = asyncio.get_running_loop()
    dispatcher = Dispatcher(loop)
    dispatcher.large = LargeRequests(loop, clock or OsClock())
    dispatcher.register([route])
    connection = FakeConnection()
    dispatcher.on_frame(connection, frame_of(message, version))
    turns = 0
    while not (connection.answers or connection.closed):
        await asyncio.sleep(0)
        turns += 1
    await dispatcher.stop()
    return connection, turns


def no_error(message: Message, version: int, code: ErrorCode, detail: str | None) -> Message:
    raise AssertionError(f"{code!r}: {detail}")


class Offsets:
    """A handler of ListOffsets that answers each partition with its index."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def handle(self, request: Request) -> None:
        message = request.decode(m.ListOffsetsRequest)
        named = Counter((t.name, p.partition_index) for t in message.topics for p in t.partitions)
        self.sizes.append(sum(named.values()))
        row = m.ListOffsetsResponse.ListOffsetsPartitionResponse
        request.respond(
            m.ListOffsetsResponse(
                topics=[
                    m.ListOffsetsResponse.ListOffsetsTopicResponse(
                        name=t.name,
                        partitions=[
                            row(partition_index=p.partition_index, offset=named[t.name, p.partition_index])
                            for p in t.partitions
                        ],
                    )
                    for t in message.topics
                ]
            )
        )


def list_offsets(*topics: tuple[str, list[int]]) -> m.ListOffsetsRequest:
    partition = m.ListOffsetsRequest.ListOffsetsPartition
    return m.ListOffsetsRequest(
        replica_id=-1,
        topics=[
            m.ListOffsetsRequest.ListOffsetsTopic(
                name=name, partitions=[partition(partition_index=i, timestamp=-1) for i in indexes]
            )
            for name, indexes in topics
        ],
    )


def test_a_large_request_is_handled_in_parts_and_answered_whole() -> None:
    offsets = Offsets()
    route = Route(m.ListOffsetsRequest, offsets.handle, no_error)
    request = list_offsets(("t", list(range(ITEMS))), ("u", [3, 4]))
    connection, turns = asyncio.run(answered(route, request, 7))
    answer = decode_answer(connection, 7, m.ListOffsetsResponse)
    assert isinstance(answer, m.ListOffsetsResponse)
    assert [topic.name for topic in answer.topics] == ["t", "u"]
    assert [p.partition_index for p in answer.topics[0].partitions] == list(range(ITEMS))
    assert [p.partition_index for p in answer.topics[1].partitions] == [3, 4]
    assert max(offsets.sizes) <= PART_ITEMS_MAX + 2
    assert turns > len(offsets.sizes) > 10


def test_duplicates_are_in_the_same_part() -> None:
    offsets = Offsets()
    route = Route(m.ListOffsetsRequest, offsets.handle, no_error)
    indexes = [*range(ITEMS), *range(ITEMS), *range(ITEMS)]
    connection, _ = asyncio.run(answered(route, list_offsets(("t", indexes)), 7))
    answer = decode_answer(connection, 7, m.ListOffsetsResponse)
    assert isinstance(answer, m.ListOffsetsResponse)
    assert {p.offset for p in answer.topics[0].partitions} == {2}, "each part has both of a partition"
    assert len(answer.topics[0].partitions) == 2 * ITEMS


def test_other_work_runs_after_each_slice() -> None:
    """With a clock that advances by a millisecond at each step of the work, a slice has five steps."""
    offsets = Offsets()
    route = Route(m.ListOffsetsRequest, offsets.handle, no_error)
    clock = Ticks(0.001)
    request = list_offsets(("t", list(range(ITEMS))))
    _, turns = asyncio.run(answered(route, request, 7, clock))
    steps_decoding = ITEMS / 200
    assert turns >= 2 * steps_decoding * 0.001 / SLICE_S


def test_coroutine_handlers_get_parts_too() -> None:
    seen: list[int] = []

    async def delete(request: Request) -> Message:
        names = request.decode(m.DeleteGroupsRequest).groups_names
        seen.append(len(names))
        await asyncio.sleep(0)
        row = m.DeleteGroupsResponse.DeletableGroupResult
        return m.DeleteGroupsResponse(results=[row(group_id=name) for name in names])

    route = Route(m.DeleteGroupsRequest, delete, no_error)
    names = [f"group-{i}" for i in range(ITEMS)]
    connection, _ = asyncio.run(answered(route, m.DeleteGroupsRequest(groups_names=list(names)), 2))
    answer = decode_answer(connection, 2, m.DeleteGroupsResponse)
    assert isinstance(answer, m.DeleteGroupsResponse)
    assert [result.group_id for result in answer.results] == names
    assert len(seen) > 10


def test_the_error_of_a_part_is_the_error_of_its_items() -> None:
    def handle(request: Request) -> None:
        names = request.decode(m.DescribeGroupsRequest).groups
        if "group-0" in names:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "")
        row = m.DescribeGroupsResponse.DescribedGroup
        request.respond(m.DescribeGroupsResponse(groups=[row(group_id=name) for name in names]))

    def error(message: Message, version: int, code: ErrorCode, detail: str | None) -> Message:
        assert isinstance(message, m.DescribeGroupsRequest)
        row = m.DescribeGroupsResponse.DescribedGroup
        return m.DescribeGroupsResponse(groups=[row(group_id=g, error_code=code) for g in message.groups])

    names = [f"group-{i}" for i in range(ITEMS)]
    route = Route(m.DescribeGroupsRequest, handle, error)
    connection, _ = asyncio.run(answered(route, m.DescribeGroupsRequest(groups=list(names)), 5))
    answer = decode_answer(connection, 5, m.DescribeGroupsResponse)
    assert isinstance(answer, m.DescribeGroupsResponse)
    assert [group.group_id for group in answer.groups] == names
    assert answer.groups[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert answer.groups[-1].error_code == ErrorCode.NONE


def test_a_malformed_large_request_closes_the_connection() -> None:
    route = Route(m.ListOffsetsRequest, Offsets().handle, no_error)

    async def send() -> FakeConnection:
        loop = asyncio.get_running_loop()
        dispatcher = Dispatcher(loop)
        dispatcher.large = LargeRequests(loop, OsClock())
        dispatcher.register([route])
        connection = FakeConnection()
        dispatcher.on_frame(connection, frame_of(list_offsets(("t", list(range(ITEMS)))), 7)[:-1])
        await asyncio.wait_for(dispatcher.idle(), 60)
        return connection

    assert "malformed LIST_OFFSETS" in asyncio.run(send()).why


def test_offsets_of_too_many_partitions_are_not_committed() -> None:
    """They would make a larger batch than the topic of offsets takes: Kafka's error for that."""

    async def commit(request: Request) -> Message:
        raise AssertionError("the coordinator does not hear of it")

    def error(message: Message, version: int, code: ErrorCode, detail: str | None) -> Message:
        assert isinstance(message, m.OffsetCommitRequest)
        row = m.OffsetCommitResponse.OffsetCommitResponsePartition
        return m.OffsetCommitResponse(
            topics=[
                m.OffsetCommitResponse.OffsetCommitResponseTopic(
                    name=t.name,
                    partitions=[
                        row(partition_index=p.partition_index, error_code=code) for p in t.partitions
                    ],
                )
                for t in message.topics
            ]
        )

    partition = m.OffsetCommitRequest.OffsetCommitRequestPartition
    topic = m.OffsetCommitRequest.OffsetCommitRequestTopic(
        name="t",
        partitions=[
            partition(partition_index=i, committed_offset=0, committed_metadata="")
            for i in range(WHOLE_ITEMS_MAX + 1)
        ],
    )
    route = Route(m.OffsetCommitRequest, commit, error)
    connection, _ = asyncio.run(answered(route, m.OffsetCommitRequest(group_id="g", topics=[topic]), 8))
    answer = decode_answer(connection, 8, m.OffsetCommitResponse)
    assert isinstance(answer, m.OffsetCommitResponse)
    assert len(answer.topics[0].partitions) == WHOLE_ITEMS_MAX + 1
    assert {p.error_code for p in answer.topics[0].partitions} == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}


def _quotas(n: int) -> Message:
    row = m.AlterClientQuotasRequest
    return row(
        entries=[
            row.EntryData(
                entity=[row.EntityData(entity_type="user", entity_name=f"u{i}")],
                ops=[row.OpData(key="producer_byte_rate", value=1.0)],
            )
            for i in range(n)
        ]
    )


def _credentials(n: int) -> Message:
    row = m.AlterUserScramCredentialsRequest
    return row(
        deletions=[row.ScramCredentialDeletion(name=f"d{i}", mechanism=1) for i in range(n)],
        upsertions=[
            row.ScramCredentialUpsertion(
                name=f"u{i}", mechanism=1, iterations=4096, salt=b"", salted_password=b""
            )
            for i in range(n)
        ],
    )


_NOT_ASKED: Any = None


@pytest.mark.parametrize(
    ("message", "version", "routes", "rows"),
    [
        pytest.param(
            _quotas(WHOLE_ITEMS_MAX + 1),
            1,
            ClientQuotasHandler(_NOT_ASKED).routes(),
            lambda answer: [entry.entity[0].entity_name for entry in answer.entries],
            id="quotas",
        ),
        pytest.param(
            _credentials(WHOLE_ITEMS_MAX // 2 + 1),
            0,
            ScramCredentialsHandler(_NOT_ASKED, _NOT_ASKED).routes(),
            lambda answer: [result.user for result in answer.results],
            id="credentials",
        ),
    ],
)
def test_the_refusal_of_too_many_items_is_made_in_parts(
    message: Message, version: int, routes: list[Route], rows: Callable[[Any], list[str]]
) -> None:
    """The loop is not held for the rows of a refusal either."""
    route = next(route for route in routes if route.request_class is type(message))
    sizes: list[int] = []

    def error(message: Message, version: int, code: ErrorCode, detail: str | None) -> Message:
        answer = route.on_error(message, version, code, detail)
        sizes.append(len(rows(answer)))
        return answer

    names = rows(route.on_error(message, version, ErrorCode.INVALID_REQUEST, None))
    measured = Route(type(message), route.handle, error)
    connection, _ = asyncio.run(answered(measured, message, version))
    answer = decode_answer(connection, version, frames.RESPONSES[route.api_key])
    assert sorted(rows(answer)) == sorted(names)
    assert max(sizes) < 100


def test_a_long_answer_to_a_short_request_is_encoded_in_slices() -> None:
    async def groups(request: Request) -> Message:
        row = m.ListGroupsResponse.ListedGroup
        return m.ListGroupsResponse(groups=[row(group_id=f"group-{i}") for i in range(ITEMS)])

    route = Route(m.ListGroupsRequest, groups, no_error)
    connection, turns = asyncio.run(answered(route, m.ListGroupsRequest(), 4, Ticks(0.001)))
    answer = decode_answer(connection, 4, m.ListGroupsResponse)
    assert isinstance(answer, m.ListGroupsResponse)
    assert len(answer.groups) == ITEMS
    assert turns >= ITEMS / 200 * 0.001 / SLICE_S


def test_a_closed_connection_ends_the_work() -> None:
    offsets = Offsets()

    async def leave() -> None:
        loop = asyncio.get_running_loop()
        dispatcher = Dispatcher(loop)
        dispatcher.large = LargeRequests(loop, OsClock())
        connection = FakeConnection()

        def handle(request: Request) -> None:
            offsets.handle(request)
            connection.closed = True

        dispatcher.register([Route(m.ListOffsetsRequest, handle, no_error)])
        dispatcher.on_frame(connection, frame_of(list_offsets(("t", list(range(ITEMS)))), 7))
        await asyncio.wait_for(dispatcher.idle(), 60)
        assert not connection.answers

    asyncio.run(leave())
    assert len(offsets.sizes) == 1


# --- the order of work ------------------------------------------------------------------------------


def work(steps: int, done: list[str], name: str) -> Generator[None, None, str]:
    for _ in range(steps):
        yield
    done.append(name)
    return name


def test_short_requests_overtake_long_ones() -> None:
    async def scenario() -> list[str]:
        sliced = SlicedWork(asyncio.get_running_loop(), Ticks(SLICE_S).monotonic_s)
        done: list[str] = []

        async def one(steps: int, name: str) -> None:
            async with sliced.task(1, name, lambda: False) as task:
                assert await task.run(work(steps, done, name)) == name

        await asyncio.gather(one(100, "long"), one(3, "short"), one(10, "middle"))
        return done

    assert asyncio.run(scenario()) == ["short", "middle", "long"]


def test_two_big_requests_are_worked_on_at_a_time_one_of_each_client() -> None:
    async def scenario() -> list[str]:
        sliced = SlicedWork(asyncio.get_running_loop(), Ticks(SLICE_S).monotonic_s)
        order: list[str] = []
        inside: list[str] = []

        async def one(client: str) -> None:
            async with sliced.task(sliced_work.BIG_BYTES + 1, client, lambda: False) as task:
                inside.append(client)
                assert len(inside) <= 2
                assert len(set(inside)) == len(inside)
                await task.run(work(3, order, client))
                inside.remove(client)

        await asyncio.gather(*(one(client) for client in ("a", "a", "a", "b", "c")))
        return order

    order = asyncio.run(scenario())
    assert order[:2] == ["a", "b"]
    assert sorted(order) == ["a", "a", "a", "b", "c"]


def test_members_that_wait_in_a_join_do_not_block_other_requests() -> None:
    """More than may be in progress: the last one to join completes the group."""
    members = sliced_work.SMALL_BYTES_MAX // 20_000 + 10

    async def scenario() -> int:
        loop = asyncio.get_running_loop()
        everybody = asyncio.Event()
        joined = 0

        async def join_group(request: Request) -> Message:
            nonlocal joined
            joined += 1
            if joined == members:
                everybody.set()
            await everybody.wait()
            return m.JoinGroupResponse(protocol_name="range")

        dispatcher = Dispatcher(loop)
        dispatcher.large = LargeRequests(loop, OsClock())
        dispatcher.register([Route(m.JoinGroupRequest, join_group, no_error)])
        protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=bytes(20_000))
        frame = frame_of(m.JoinGroupRequest(group_id="g", protocols=[protocol]), 6)
        connections = [FakeConnection() for _ in range(members)]
        for connection in connections:
            dispatcher.on_frame(connection, frame)
        await asyncio.wait_for(dispatcher.idle(), 60)
        return sum(len(connection.answers) for connection in connections)

    assert asyncio.run(scenario()) == members


def test_work_for_a_closed_connection_stops() -> None:
    async def scenario() -> None:
        sliced = SlicedWork(asyncio.get_running_loop(), Ticks(SLICE_S).monotonic_s)
        gone = False
        async with sliced.task(1, "a", lambda: gone) as task:
            running = asyncio.ensure_future(task.run(work(1_000_000, [], "a")))
            await asyncio.sleep(0)
            gone = True
            with pytest.raises(Abandoned):
                await running

    asyncio.run(scenario())


def test_full_collections_wait_for_the_end_of_the_work() -> None:
    before = gc.get_threshold()

    async def scenario() -> None:
        sliced = SlicedWork(asyncio.get_running_loop(), OsClock().monotonic_s)
        async with sliced.task(1, "a", lambda: False):
            assert gc.get_threshold()[2] > 1_000_000
        assert gc.get_threshold() == before

    asyncio.run(scenario())


# --- cutting ----------------------------------------------------------------------------------------


def cut(message: Message, version: int, size: int) -> list[Message]:
    split = split_of(message, version)
    assert split is not None
    return [part for part in parts(message, split, lambda: size) if part is not None]


def test_null_lists_are_not_cut() -> None:
    assert split_of(m.MetadataRequest(topics=None), 9) is None
    assert split_of(m.MetadataRequest(topics=[]), 0) is None
    assert split_of(m.OffsetFetchRequest(group_id="g", topics=None), 7) is None


def test_the_partitions_of_a_group_s_offsets_are_cut() -> None:
    topics = m.OffsetFetchRequest.OffsetFetchRequestTopics
    group = m.OffsetFetchRequest.OffsetFetchRequestGroup
    request = m.OffsetFetchRequest(
        groups=[
            group(group_id="g", topics=[topics(name="t", partition_indexes=list(range(10_000)))]),
            group(group_id="h", topics=None),
        ]
    )
    pieces = cut(request, 8, 10)
    assert len(pieces) >= 20
    found = [
        index
        for piece in pieces
        if isinstance(piece, m.OffsetFetchRequest)
        for g in piece.groups
        for topic in g.topics or ()
        for index in topic.partition_indexes
    ]
    assert sorted(found) == list(range(10_000))
    last = pieces[-1]
    assert isinstance(last, m.OffsetFetchRequest)
    assert (last.groups[-1].group_id, last.groups[-1].topics) == ("h", None)


def test_the_log_directories_of_the_parts_are_one_list() -> None:
    request = m.DescribeLogDirsRequest(
        topics=[m.DescribeLogDirsRequest.DescribableLogDirTopic(topic="t", partitions=list(range(100)))]
    )
    split = split_of(request, 2)
    assert split is not None

    def answer(index: int) -> m.DescribeLogDirsResponse:
        row = m.DescribeLogDirsResponse.DescribeLogDirsResult
        topic = m.DescribeLogDirsResponse.DescribeLogDirsTopic(name=f"t{index}")
        return m.DescribeLogDirsResponse(results=[row(log_dir="/a", topics=[topic]), row(log_dir="/b")])

    whole = answer(0)
    join(whole, answer(1), split)
    assert [(r.log_dir, [t.name for t in r.topics]) for r in whole.results] == [
        ("/a", ["t0", "t1"]),
        ("/b", []),
    ]


@pytest.mark.parametrize("version", [5, 6])
def test_topics_to_delete_are_cut_by_name_or_id(version: int) -> None:
    state = m.DeleteTopicsRequest.DeleteTopicState
    names = [f"t{i}" for i in range(100)]
    if version < 6:
        request = m.DeleteTopicsRequest(topic_names=list(names))
    else:
        request = m.DeleteTopicsRequest(topics=[state(name=name) for name in names])
    found: list[str | None] = []
    for piece in cut(request, version, 10):
        assert isinstance(piece, m.DeleteTopicsRequest)
        found += piece.topic_names if version < 6 else [topic.name for topic in piece.topics]
    assert found == names


def test_every_api_that_clients_call_with_a_list_is_cut_or_bounded() -> None:
    """So that a new API is considered."""
    own_way = {ApiKey.FETCH}
    with_lists = {
        ApiKey(key)
        for key, cls in frames.REQUESTS.items()
        if any(field.type.wire == "array" for field in fields_of(cls))
    }
    not_served = {ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE}
    assert with_lists - set(SPLITS) - set(WHOLE) - BETWEEN_BROKERS - own_way - not_served == set()

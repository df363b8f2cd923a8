"""Requests to one broker, and its responses in a comparable form.

Called by the `test_*_like_kafka.py`, which compare the responses of two brokers. Names that brokers invent
(the UUIDs in member ids) are numbered in the order of their appearance, and lists, whose order has no meaning
in these APIs, are sorted.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from bench.apache_kafka import KafkaBroker
from ottla.local.brokers import BrokerProcess
from ottla.local.processes import free_port
from ottla.local.zookeeper import EmbeddedZooKeeper
from ottla.protocol.messages import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    MetadataRequest,
    MetadataResponse,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from ottla.protocol.types import Message, Struct
from ottla.wire.connection import BrokerConnection

CLIENTS = ("anna", "bert", "carl", "dora")
_UUID = re.compile(r"([a-z0-9]*-)([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_UNKNOWN_MEMBER = 25


class RequestRecorder:
    """Connections of four clients to one broker, and all recorded responses, by label."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._connections: dict[str, BrokerConnection] = {}
        self._names: dict[str, str] = {}
        self.answers: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        for client in (*CLIENTS, "watcher"):
            self._connections[client] = await BrokerConnection.open(
                "127.0.0.1", self.port, client_id=client, timeout_s=60
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._connections.values():
            connection.close()

    async def send(self, client: str, request: Message, version: int) -> Any:
        return await self._connections[client].request(request, version=version, timeout_s=90)

    def begin(self, client: str, request: Message, version: int) -> asyncio.Task[Any]:
        """Sends a request without waiting for the response: joins wait for others."""
        return asyncio.create_task(self.send(client, request, version))

    async def ask(
        self, label: str, client: str, request: Message, version: int, *, ignoring: Iterable[str] = ()
    ) -> Any:
        answer = await self.send(client, request, version)
        self.note(label, answer, ignoring=ignoring)
        return answer

    def note(self, label: str, answer: object, *, ignoring: Iterable[str] = ()) -> None:
        assert label not in self.answers, f"two answers called {label}"
        self.answers[label] = self._comparable(answer, frozenset(ignoring))

    def _comparable(self, value: object, ignoring: frozenset[str]) -> Any:
        if isinstance(value, Struct):
            slots: tuple[str, ...] = value.__slots__
            names = [name for name in slots if name not in ignoring]
            return {name: self._comparable(getattr(value, name), ignoring) for name in names}
        if isinstance(value, list):
            return sorted((self._comparable(item, ignoring) for item in value), key=repr)
        if isinstance(value, str):
            return _UUID.sub(self._numbered, value)
        return value

    def _numbered(self, found: re.Match[str]) -> str:
        prefix, uuid = found.groups()
        of_prefix = sum(name.startswith(prefix) for name in self._names.values())
        return self._names.setdefault(uuid, f"{prefix}{of_prefix}")

    async def group(self, group: str) -> DescribeGroupsResponse.DescribedGroup:
        answer: DescribeGroupsResponse = await self.send("watcher", DescribeGroupsRequest(groups=[group]), 5)
        return answer.groups[0]

    async def wait_for_group(
        self, group: str, *, state: str | None = None, members: int | None = None
    ) -> None:
        async def reached() -> bool:
            now = await self.group(group)
            return state in (None, now.group_state) and members in (None, len(now.members))

        await until(reached)

    async def wait_for_coordinator(self) -> None:
        """Waits until the broker coordinates every group: it loads partition after partition."""

        async def ready() -> bool:
            found = await self.send("watcher", FindCoordinatorRequest(key="any", key_type=0), 2)
            if found.error_code:
                return False
            states = [await self.send("watcher", heartbeat(f"none-{n}", 1, "x"), 4) for n in range(40)]
            return all(state.error_code == _UNKNOWN_MEMBER for state in states)

        await until(ready)


Scenario = Callable[[RequestRecorder], Coroutine[Any, Any, None]]
"""What one broker is asked, and what it answers."""


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():  # noqa: ASYNC110 (the condition is on the other side of a socket)
        await asyncio.sleep(0.02)


async def ready(recorder: RequestRecorder) -> None:
    """Waits until the broker knows that it is the controller: Kafka's broker serves requests before that."""

    async def knows() -> bool:
        answer: MetadataResponse = await recorder.send("watcher", MetadataRequest(topics=[]), 5)
        return answer.controller_id >= 0 and len(answer.brokers) == 1

    await until(knows)


async def until_led(recorder: RequestRecorder, topics: Iterable[str]) -> None:
    """Waits until the single broker leads every partition of these topics."""
    wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]

    async def led() -> bool:
        answer: MetadataResponse = await recorder.send("anna", MetadataRequest(topics=wanted), 5)
        return all(p.leader_id == 0 for topic in answer.topics for p in topic.partitions)

    await until(led)


def side_by_side(
    ports: Mapping[str, int], scenario: Scenario, timeout_s: float = 300
) -> dict[str, dict[str, Any]]:
    """Runs the scenario on every broker at the same time: name -> label -> response."""

    async def record(port: int) -> dict[str, Any]:
        async with RequestRecorder(port) as recorder:
            await scenario(recorder)
            return recorder.answers

    async def record_all() -> list[dict[str, Any]]:
        async with asyncio.timeout(timeout_s):
            return list(await asyncio.gather(*[record(port) for port in ports.values()]))

    return dict(zip(ports, asyncio.run(record_all()), strict=True))


def same(ports: Mapping[str, int], scenario: Scenario) -> dict[str, Any]:
    """Runs the scenario on Apache Kafka and on Ottla, asserts equal responses, and returns them."""
    return compare(side_by_side(ports, scenario))


def compare(by_broker: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Asserts that the responses of both brokers are equal, by label, and returns Apache Kafka's."""
    kafka, ours = by_broker["Apache Kafka"], by_broker["Ottla"]
    assert kafka, "nothing was asked"
    assert ours.keys() == kafka.keys()
    differing = [label for label in kafka if ours[label] != kafka[label]]
    assert not differing, "\n".join(_difference(label, kafka[label], ours[label]) for label in differing)
    return kafka


def _difference(label: str, kafka: object, ours: object) -> str:
    """The two responses; long ones from shortly before the first difference."""
    texts = str(kafka), str(ours)
    at = next((n for n, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    start = max(0, at - 500)
    return f"{label}, {len(texts[0])} and {len(texts[1])} characters, from {start}:\n" + "".join(
        f"  {name}: {text[start : at + 500]}\n"
        for name, text in zip(("Apache Kafka", "Ottla       "), texts, strict=True)
    )


# --- requests, in few words ----------------------------------------------------------------------------


def subscription(*topics: str) -> bytes:
    """A consumer's metadata, version 1 of the consumer protocol."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">i", -1)


def join(
    group: str,
    member: str = "",
    *,
    instance: str | None = None,
    protocols: tuple[str, ...] = ("range",),
    kind: str = "consumer",
    session_ms: int = 120_000,
    rebalance_ms: int = 120_000,
    topic: str = "t",
) -> JoinGroupRequest:
    offered = [
        JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=subscription(topic))
        for name in protocols
    ]
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        member_id=member,
        group_instance_id=instance,
        protocol_type=kind,
        protocols=offered,
    )


def sync(
    group: str,
    generation: int,
    member: str,
    assignments: Mapping[str, bytes] | None = None,
    *,
    instance: str | None = None,
    kind: str | None = "consumer",
    protocol: str | None = "range",
) -> SyncGroupRequest:
    rows = [
        SyncGroupRequest.SyncGroupRequestAssignment(member_id=to, assignment=what)
        for to, what in (assignments or {}).items()
    ]
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member,
        group_instance_id=instance,
        protocol_type=kind,
        protocol_name=protocol,
        assignments=rows,
    )


def heartbeat(group: str, generation: int, member: str, instance: str | None = None) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=group, generation_id=generation, member_id=member, group_instance_id=instance
    )


def leave(group: str, *members: tuple[str, str | None]) -> LeaveGroupRequest:
    rows = [
        LeaveGroupRequest.MemberIdentity(member_id=member, group_instance_id=instance)
        for member, instance in members
    ]
    return LeaveGroupRequest(group_id=group, members=rows)


def commit(
    group: str,
    generation: int,
    member: str,
    offset: int,
    *,
    topic: str = "t",
    partition: int = 0,
    metadata: str | None = "",
    instance: str | None = None,
    retention_ms: int = -1,
) -> OffsetCommitRequest:
    part = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata=metadata
    )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        group_instance_id=instance,
        retention_time_ms=retention_ms,
        topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[part])],
    )


def fetch_offsets(group: str, topics: Mapping[str, list[int]] | None) -> OffsetFetchRequest:
    row = OffsetFetchRequest.OffsetFetchRequestTopic
    asked = None if topics is None else [row(name=t, partition_indexes=p) for t, p in topics.items()]
    return OffsetFetchRequest(group_id=group, topics=asked)


def delete_offsets(group: str, *topics: str) -> OffsetDeleteRequest:
    def row(topic: str) -> OffsetDeleteRequest.OffsetDeleteRequestTopic:
        part = OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
        return OffsetDeleteRequest.OffsetDeleteRequestTopic(name=topic, partitions=[part])

    return OffsetDeleteRequest(group_id=group, topics=[row(topic) for topic in topics])


KEEP = {"log.retention.check.interval.ms": "86400000", "log.cleaner.backoff.ms": "86400000"}
"""Records of long ago, which many tests write, stay until the end of a slow run; nothing is compacted."""
KAFKA_KEEPS = {**KEEP, "log.initial.task.delay.ms": "86400000"}
"""Its first look comes half a minute after its start, whatever the interval."""


@contextmanager
def kafka_and_ottla(
    directory: Path,
    settings: Mapping[str, str],
    prepare: Callable[[str], None] = lambda connect: None,
    *,
    of_kafka: Mapping[str, str] | None = None,
    of_ottla: Mapping[str, str] | None = None,
    classes: Path | None = None,
) -> Iterator[dict[str, int]]:
    """The ports of one broker of each kind by name, over one ZooKeeper.

    Both get `settings`, and some of their own. `prepare` is called with the connect string of each before it
    starts; `classes` is a class path for Java.
    """
    with ExitStack() as running:
        zookeeper = EmbeddedZooKeeper(directory / "zookeeper")
        running.callback(zookeeper.stop)
        zookeeper.start()
        kept = {**KAFKA_KEEPS, **settings, **(of_kafka or {})}
        for chroot in ("kafka", "ottla"):
            prepare(f"{zookeeper.connect}/{chroot}")
        java = KafkaBroker(directory / "kafka", f"{zookeeper.connect}/kafka", settings=kept, classes=classes)
        ours = BrokerProcess(0, directory / "ottla", free_port())
        running.callback(java.stop)
        running.callback(ours.stop)
        ours.write_properties(f"{zookeeper.connect}/ottla", {**KEEP, **settings, **(of_ottla or {})})
        ours.start_and_wait()
        java.start()
        ports = {"Apache Kafka": java.port, "Ottla": ours.port}
        side_by_side(ports, ready)
        yield ports

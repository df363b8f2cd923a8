"""A cluster for the controller's tests: a real store in memory, and brokers that only answer.

`FakeBroker` stands at the far end of the channel port: it keeps what it was sent, has a real metadata cache,
and answers without error unless told otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from ottla.controller.controller import Controller
from ottla.metadata import znodes
from ottla.metadata.cache import MetadataCache
from ottla.metadata.config import BrokerConfig
from ottla.metadata.memory import MemoryStore, MemoryTree
from ottla.metadata.registration import BrokerRegistration
from ottla.metadata.znodes import Endpoint, PartitionState
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from ottla.protocol.types import Message
from ottla.wire.inter_broker import InterBrokerClient
from tests.worlds.clocks import run_in_virtual_time

WAIT_S = 60.0
FIRST_PORT = 9092

T = TypeVar("T")
M = TypeVar("M", bound=Message)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_in_virtual_time(asyncio.wait_for(scenario(), 90))


class FirstOfAll(Random):
    """Always the first of the numbers to choose from; ids are random."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return 0 if stop is None else start


class FakeBroker:
    """What a broker's side of the inter-broker requests has seen."""

    def __init__(self, broker_id: int) -> None:
        self.id = broker_id
        self.received: list[Message] = []
        self.cache = MetadataCache()
        self.reachable = True
        self.closed = False
        self.stop_error = ErrorCode.NONE
        self.failed_disk: set[tuple[UUID, int]] = set()
        self.changed = asyncio.Event()

    async def until(self, condition: Callable[[FakeBroker], bool]) -> None:
        """Wait for the messages that make the condition hold."""
        while not condition(self):
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), WAIT_S)

    def of(self, kind: type[M]) -> list[M]:
        return [message for message in self.received if isinstance(message, kind)]

    def partition_states(
        self, topic: str, partition: int = 0
    ) -> list[LeaderAndIsrRequest.LeaderAndIsrPartitionState]:
        """What LeaderAndIsr told of one partition, in order."""
        return [
            state
            for request in self.of(LeaderAndIsrRequest)
            for entry in request.topic_states
            if entry.topic_name == topic
            for state in entry.partition_states
            if state.partition_index == partition
        ]

    def stops(self) -> list[tuple[str, int, int, bool]]:
        """(topic, partition, leader epoch, delete) of each StopReplica."""
        return [
            (entry.topic_name, state.partition_index, state.leader_epoch, state.delete_partition)
            for request in self.of(StopReplicaRequest)
            for entry in request.topic_states
            for state in entry.partition_states
        ]

    async def request(self, message: Message, *, timeout_s: float = 30) -> Any:
        await asyncio.sleep(0)
        if not self.reachable:
            raise ConnectionRefusedError(f"broker {self.id} is not reachable")
        self.received.append(message)
        self.changed.set()
        if isinstance(message, UpdateMetadataRequest):
            self.cache.update(message)
            return UpdateMetadataResponse()
        if isinstance(message, LeaderAndIsrRequest):
            return self._leader_and_isr(message)
        assert isinstance(message, StopReplicaRequest)
        return StopReplicaResponse(
            partition_errors=[
                StopReplicaResponse.StopReplicaPartitionError(
                    topic_name=topic.topic_name,
                    partition_index=state.partition_index,
                    error_code=self.stop_error,
                )
                for topic in message.topic_states
                for state in topic.partition_states
            ]
        )

    def _leader_and_isr(self, message: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        response = LeaderAndIsrResponse()
        for topic in message.topic_states:
            errors = [
                LeaderAndIsrResponse.LeaderAndIsrPartitionError(
                    partition_index=state.partition_index,
                    error_code=ErrorCode.KAFKA_STORAGE_ERROR
                    if (topic.topic_id, state.partition_index) in self.failed_disk
                    else ErrorCode.NONE,
                )
                for state in topic.partition_states
            ]
            response.topics.append(
                LeaderAndIsrResponse.LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=errors)
            )
        return response

    def abort(self) -> None:
        pass


class Node:
    """A broker process: a session, a registration, a controller that stands for election."""

    def __init__(self, cluster: Cluster, broker_id: int) -> None:
        self.id = broker_id
        self.cluster = cluster
        self.fake = FakeBroker(broker_id)
        self.store = cluster.make_store(cluster.tree)
        self.registration = BrokerRegistration(
            self.store,
            broker_id,
            [Endpoint("PLAINTEXT", "host", FIRST_PORT + broker_id)],
            rack=cluster.racks.get(broker_id),
            clock=cluster.clock,
        )
        self.controller = Controller(
            broker_id=broker_id,
            store=self.store,
            config=cluster.config,
            clock=cluster.clock,
            inter_broker=InterBrokerClient(lambda _: None, cluster.connect, request_timeout_s=30),
            random=FirstOfAll(),
        )

    @property
    def epoch(self) -> int:
        return self.registration.broker_epoch

    async def start(self) -> None:
        await self.store.connect()
        await self.controller.start(await self.registration.register())

    async def stop(self) -> None:
        await self.controller.stop()
        await self.store.close()

    async def crash(self) -> None:
        """Vanish, and have the session expire."""
        self.fake.reachable = False
        self.controller._eligible = False
        self.cluster.tree.end_session(self.store.session_id)
        await self.stop()


class Cluster:
    """Brokers over one tree. Use as `async with Cluster(3) as cluster`."""

    def __init__(self, size: int = 3, *, racks: dict[int, str] | None = None, **settings: str) -> None:
        self.tree = MemoryTree()
        self.make_store: Callable[[MemoryTree], MemoryStore] = MemoryStore
        self.now_ms = 1_000
        self.racks = racks or {}
        self.config = BrokerConfig.from_properties(
            {
                "zookeeper.connect": "memory",
                "broker.id": "0",
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        self.nodes: dict[int, Node] = {}
        self.initial = range(size)

    def clock(self) -> int:
        return self.now_ms

    async def connect(self, host: str, port: int) -> Any:
        node = self.nodes[port - FIRST_PORT]
        if not node.fake.reachable:
            raise ConnectionRefusedError
        return node.fake

    async def __aenter__(self) -> Cluster:
        for broker_id in self.initial:
            await self.start(broker_id)
        await self.wait_until_quiet()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for node in self.nodes.values():
            await node.stop()

    async def start(self, broker_id: int) -> Node:
        node = self.nodes[broker_id] = Node(self, broker_id)
        await node.start()
        return node

    async def crash(self, broker_id: int) -> None:
        await self.nodes[broker_id].crash()

    @property
    def active(self) -> Node:
        (node,) = [node for node in self.nodes.values() if node.controller.is_active]
        return node

    @property
    def controller(self) -> Controller:
        return self.active.controller

    async def until(self, condition: Callable[[], T], what: str = "") -> T:
        """Wait, turn by turn of the loop, until the condition holds."""
        deadline = asyncio.get_running_loop().time() + WAIT_S
        while True:
            value = condition()
            if value:
                return value
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"never came true: {what or condition}")
            await asyncio.sleep(0.001)

    async def wait_until_quiet(self) -> None:
        """Wait until the controller knows all live brokers, and has told them all that it has to say."""

        def knows() -> bool:
            active = [n for n in self.nodes.values() if n.controller.is_active]
            alive = {n.id for n in self.nodes.values() if n.fake.reachable}
            return len(active) == 1 and all(
                {b.id for b in self.nodes[i].fake.cache.brokers()} == alive for i in alive
            )

        await self.until(knows, "all brokers know all brokers")
        counted, quiet_turns = -1, 0
        while quiet_turns < 50:
            await asyncio.sleep(0)
            now = sum(len(node.fake.received) for node in self.nodes.values())
            counted, quiet_turns = now, quiet_turns + 1 if now == counted else 0

    def state(self, topic: str, partition: int = 0) -> PartitionState | None:
        node = self.tree.find(znodes.state_path(topic, partition))
        return znodes.decode_partition_state(topic, partition, node.data) if node else None

    def leader(self, topic: str, partition: int = 0) -> int | None:
        state = self.state(topic, partition)
        return state.leader if state else None

    def data(self, path: str) -> bytes | None:
        node = self.tree.find(path)
        return node.data if node else None

    async def create(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        assignments: dict[int, list[int]] | None = None,
        configs: dict[str, str | None] | None = None,
        validate_only: bool = False,
        timeout_ms: int = 60_000,
    ) -> CreateTopicsResponse.CreatableTopicResult:
        request = CreateTopicsRequest(
            topics=[creatable(name, partitions, replication_factor, assignments, configs)],
            timeout_ms=timeout_ms,
            validate_only=validate_only,
        )
        (result,) = (await self.controller.create_topics(request)).topics
        return result


def creatable(
    name: str,
    partitions: int = -1,
    replication_factor: int = -1,
    assignments: dict[int, list[int]] | None = None,
    configs: dict[str, str | None] | None = None,
) -> CreateTopicsRequest.CreatableTopic:
    return CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        assignments=[
            CreateTopicsRequest.CreatableReplicaAssignment(partition_index=p, broker_ids=replicas)
            for p, replicas in (assignments or {}).items()
        ],
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
            for key, value in (configs or {}).items()
        ],
    )

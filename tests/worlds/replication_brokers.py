"""Several replica managers in one process, joined by connections that never leave it.

Used by the tests of the manager, the fetchers and AlterPartition. Messages pass through the codec, in the
version that was chosen, as they would on the wire. The tests play the controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from ottla.metadata.cache import MetadataCache
from ottla.metadata.config import BrokerConfig, topic_defaults
from ottla.protocol import codec, frames
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    FetchRequest,
    FetchResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    UpdateMetadataRequest,
)
from ottla.protocol.types import ZERO_UUID
from ottla.replication.manager import ReplicaManager
from ottla.replication.offsets import offset_for_leader_epoch, offset_for_time
from ottla.replication.reads import read as read_replica
from ottla.storage.log_manager import LogManager
from ottla.wire.inter_broker import InterBrokerClient
from tests.worlds.replication_cluster import RecordingListener, as_answer, batch

TOPIC = "flights"
TOPIC_ID = UUID(int=7)


class Broker:
    """One broker's replication, and what the tests look at."""

    def __init__(self, brokers: Brokers, broker_id: int, settings: dict[str, str]) -> None:
        self.id = broker_id
        self.brokers = brokers
        self.up = True
        self.versions = {
            FetchRequest.api_key: 17,
            ListOffsetsRequest.api_key: 9,
            OffsetForLeaderEpochRequest.api_key: 4,
        }
        self.requests: list[tuple[Any, int]] = []
        self.events = asyncio.Event()
        config = BrokerConfig.from_properties(
            {
                "broker.id": str(broker_id),
                "zookeeper.connect": "nowhere:2181",
                "log.dirs": str(brokers.path / str(broker_id)),
                "replica.fetch.backoff.ms": "20",
                **settings,
            }
        )
        self.recorder = RecordingListener()
        self.cache = MetadataCache()
        self.logs = LogManager(config.log_dirs, broker_id, "cluster", topic_defaults(config))
        self.logs.load(brokers.now_ms)
        self.manager = ReplicaManager(
            broker_id=broker_id,
            config=config,
            logs=self.logs,
            cache=self.cache,
            clock=lambda: brokers.now_ms + brokers.wall_step_ms,
            monotonic_clock=lambda: brokers.now_ms,
            inter_broker=InterBrokerClient(self.cache.broker, brokers.connect, request_timeout_s=30),
            alter_partition=brokers.alter_partition,
            listener=self.recorder,
        )
        self.manager.start()

    def produce(self, *values: str, partition: int = 0, acks: int = -1) -> None:
        leader = self.manager.partition(TOPIC, partition)
        leader.append_as_leader(batch(*values), required_acks=acks, now_ms=self.brokers.now_ms)
        self.events.set()

    async def answer(self, message: Any) -> Any:
        match message:
            case FetchRequest():
                return await self._answer_fetch(message)
            case ListOffsetsRequest():
                return self._answer_list_offsets(message)
            case OffsetForLeaderEpochRequest():
                return self._answer_epochs(message)
            case _:
                raise AssertionError(message)

    async def _answer_fetch(self, request: FetchRequest) -> FetchResponse:
        replica_id = max(request.replica_id, request.replica_state.replica_id)
        response = self._read(request, replica_id)
        if not any(p.records or p.error_code for t in response.responses for p in t.partitions):
            self.events.clear()
            try:
                async with asyncio.timeout(0.02):
                    await self.events.wait()
            except TimeoutError:
                return response
            response = self._read(request, replica_id)
        return response

    def _read(self, request: FetchRequest, replica_id: int) -> FetchResponse:
        topics = []
        for topic in request.topics:
            answers = []
            for asked in topic.partitions:
                partition = self.manager.find(topic.topic or TOPIC, asked.partition)
                if partition is None:
                    answer = FetchResponse.PartitionData(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                else:
                    answer = as_answer(
                        read_replica(
                            partition,
                            asked.fetch_offset,
                            asked.partition_max_bytes,
                            replica_id=replica_id,
                            broker_epoch=request.replica_state.replica_epoch,
                            current_leader_epoch=asked.current_leader_epoch,
                            last_fetched_epoch=asked.last_fetched_epoch,
                            now_ms=self.brokers.now_ms,
                        )
                    )
                answer.partition_index = asked.partition
                answers.append(answer)
            topics.append(
                FetchResponse.FetchableTopicResponse(
                    topic=topic.topic, topic_id=topic.topic_id, partitions=answers
                )
            )
        return FetchResponse(responses=topics)

    def _answer_epochs(self, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        response = OffsetForLeaderEpochResponse()
        for topic in request.topics:
            rows = []
            for asked in topic.partitions:
                partition = self.manager.partition(topic.topic, asked.partition)
                error, epoch, end = offset_for_leader_epoch(
                    partition, asked.current_leader_epoch, asked.leader_epoch
                )
                rows.append(
                    OffsetForLeaderEpochResponse.EpochEndOffset(
                        partition=asked.partition, error_code=error, leader_epoch=epoch, end_offset=end
                    )
                )
            response.topics.append(
                OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=topic.topic, partitions=rows)
            )
        return response

    def _answer_list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        [topic] = request.topics
        [asked] = topic.partitions
        answer = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=asked.partition_index)
        try:
            partition = self.manager.partition(topic.name, asked.partition_index)
            found = offset_for_time(partition, asked.timestamp, None, asked.current_leader_epoch)
            assert found is not None
            answer.offset, answer.timestamp, answer.leader_epoch = found
        except KafkaError as error:
            answer.error_code = error.code
        return ListOffsetsResponse(
            topics=[ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=[answer])]
        )


class Connection:
    """Stands in for a BrokerConnection."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.closed = False
        self.under_way: set[asyncio.Task[None]] = set()

    def version_of(self, api_key: int) -> int:
        return self.broker.versions[api_key]

    async def request(self, message: Any, *, version: int, timeout_s: float = 30) -> Any:
        if not self.broker.up or self.closed:
            raise ConnectionError("connection lost")
        received = codec.decode(type(message), version, codec.encode(message, version))
        self.broker.requests.append((received, version))
        response = await self.broker.answer(received)
        if not self.broker.up:
            raise ConnectionError("connection lost")
        return codec.decode(frames.RESPONSES[message.api_key], version, codec.encode(response, version))

    def send(self, message: Any, version: int, timeout_s: float, answered: Callable[[Any], None]) -> None:
        async def exchange() -> None:
            try:
                response = await self.request(message, version=version, timeout_s=timeout_s)
            except Exception as error:
                response = error
            answered(response)

        task = asyncio.get_running_loop().create_task(exchange())
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)

    def close(self) -> None:
        self.closed = True


class Brokers:
    """Brokers 1 to `count`; broker N listens on port N."""

    def __init__(self, path: Path, count: int = 2, **settings: str) -> None:
        self.path = path
        self.now_ms = 1_000_000
        self.wall_step_ms = 0
        self.connections = 0
        self.alterations: list[AlterPartitionRequest] = []
        self.alter_answer: Callable[[AlterPartitionRequest], AlterPartitionResponse] | None = None
        dotted = {name.replace("_", "."): value for name, value in settings.items()}
        self.all = {broker_id: Broker(self, broker_id, dotted) for broker_id in range(1, count + 1)}
        self.controller_epoch = 1
        for broker in self.all.values():
            broker.cache.update(self.metadata())

    def __getitem__(self, broker_id: int) -> Broker:
        return self.all[broker_id]

    async def connect(self, host: str, port: int) -> Any:
        self.connections += 1
        if not self.all[port].up:
            raise ConnectionError(f"{host}:{port} refused")
        return Connection(self.all[port])

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        self.alterations.append(request)
        await asyncio.sleep(0)
        if self.alter_answer is None:
            raise ConnectionError("no controller")
        return self.alter_answer(request)

    def metadata(self) -> UpdateMetadataRequest:
        return UpdateMetadataRequest(
            controller_id=1,
            live_brokers=[
                UpdateMetadataRequest.UpdateMetadataBroker(
                    id=broker,
                    endpoints=[
                        UpdateMetadataRequest.UpdateMetadataEndpoint(
                            host="here", port=broker, listener="PLAINTEXT"
                        )
                    ],
                )
                for broker in self.all
            ],
        )

    def order(
        self,
        *,
        leader: int,
        epoch: int,
        partitions: int = 1,
        isr: list[int] | None = None,
        replicas: list[int] | None = None,
        topic_id: UUID = TOPIC_ID,
        partition_epoch: int | None = None,
        is_new: bool = False,
    ) -> LeaderAndIsrRequest:
        everyone = list(self.all)
        return LeaderAndIsrRequest(
            controller_id=1,
            controller_epoch=self.controller_epoch,
            topic_states=[
                LeaderAndIsrRequest.LeaderAndIsrTopicState(
                    topic_name=TOPIC,
                    topic_id=topic_id,
                    partition_states=[
                        LeaderAndIsrRequest.LeaderAndIsrPartitionState(
                            partition_index=index,
                            controller_epoch=self.controller_epoch,
                            leader=leader,
                            leader_epoch=epoch,
                            isr=everyone if isr is None else isr,
                            partition_epoch=epoch if partition_epoch is None else partition_epoch,
                            replicas=everyone if replicas is None else replicas,
                            is_new=is_new,
                        )
                        for index in range(partitions)
                    ],
                )
            ],
        )

    def leader_and_isr(self, *brokers: int, **order: Any) -> dict[int, LeaderAndIsrResponse]:
        """LeaderAndIsr to `brokers`, or to all."""
        request = self.order(**order)
        return {
            broker: self.all[broker].manager.apply_leader_and_isr(request, 7)
            for broker in brokers or self.all
        }

    async def stop(self) -> None:
        for broker in self.all.values():
            await broker.manager.stop()
            broker.logs.close(self.now_ms)


async def until(condition: Callable[[], bool], brokers: Brokers | None = None) -> None:
    """Await a condition; virtual time passes meanwhile, for what waits for it."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)
            if brokers is not None:
                brokers.now_ms += 2


def error_of(response: LeaderAndIsrResponse) -> ErrorCode:
    """The code of a response about one partition."""
    [topic] = response.topics
    [row] = topic.partition_errors
    return ErrorCode(row.error_code)


NO_ID = ZERO_UUID

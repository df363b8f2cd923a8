"""Fetching from one leader broker: the thin loop around the decisions in `follower`.

Started by `manager`, one per leader broker that some partition follows. One request is in flight; it asks for
all partitions that are due, and waits at the leader for news (replica.fetch.wait.max.ms). A partition that
leaves while a request is in flight is simply not found when the answer comes; one that comes back is
another `FollowerFetch`, to which the old answer says nothing.

Fetch 13 and later name topics by id; as long as one of the topics has none, 12 is spoken. No fetch sessions
(KIP-227) yet: every request lists every partition.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from ottla.client.connection import BrokerConnection, UnsupportedApi
from ottla.metadata.config import BrokerConfig
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.messages import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse
from ottla.replication.follower import AskOffsets, FollowerFetch, Retry, Step
from ottla.replication.offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from ottla.replication.partition import Partition
from ottla.replication.requests import PartitionKey

_logger = logging.getLogger(__name__)

Connect = Callable[[str, int], Awaitable[BrokerConnection]]
Endpoint = tuple[str, int]

_TOPIC_IDS_FROM: Final = 13
_REPLICA_STATE_FROM: Final = 15
_FAILURES = (OSError, TimeoutError, KafkaError, ProtocolError, UnsupportedApi)


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """The `replica.*` settings of a follower; times in ms, sizes in bytes."""

    wait_ms_max: int = 500
    bytes_min: int = 1
    partition_bytes_max: int = 1024 * 1024
    response_bytes_max: int = 10 * 1024 * 1024
    backoff_ms: int = 1000
    request_timeout_ms: int = 30_000

    @classmethod
    def of(cls, config: BrokerConfig) -> FetchSettings:
        return cls(
            wait_ms_max=config.get_int("replica.fetch.wait.max.ms"),
            bytes_min=config.get_int("replica.fetch.min.bytes"),
            partition_bytes_max=config.get_int("replica.fetch.max.bytes"),
            response_bytes_max=config.get_int("replica.fetch.response.max.bytes"),
            backoff_ms=config.get_int("replica.fetch.backoff.ms"),
            request_timeout_ms=config.get_int("replica.socket.timeout.ms"),
        )


def build_fetch(
    followers: Mapping[PartitionKey, FollowerFetch],
    *,
    now_ms: int,
    version: int,
    broker_id: int,
    broker_epoch: int,
    settings: FetchSettings,
) -> tuple[FetchRequest, int]:
    """A Fetch of all partitions that are due, and the version to send it in (at most `version`)."""
    topics: dict[str, FetchRequest.FetchTopic] = {}
    for (name, _), follower in followers.items():
        if follower.due_ms > now_ms:
            continue
        topic = topics.get(name)
        if topic is None:
            topic_id = follower.partition.topic_id
            if topic_id is None:
                version = min(version, _TOPIC_IDS_FROM - 1)
                topic = FetchRequest.FetchTopic(topic=name)
            else:
                topic = FetchRequest.FetchTopic(topic=name, topic_id=topic_id)
            topics[name] = topic
        topic.partitions.append(follower.request(settings.partition_bytes_max))
    request = FetchRequest(
        max_wait_ms=settings.wait_ms_max,
        min_bytes=settings.bytes_min,
        max_bytes=settings.response_bytes_max,
        topics=list(topics.values()),
    )
    if version >= _REPLICA_STATE_FROM:
        request.replica_state = FetchRequest.ReplicaState(replica_id=broker_id, replica_epoch=broker_epoch)
    else:
        request.replica_id = broker_id
    return request, version


class LeaderFetcher:
    """Keeps the partitions that follow broker `leader_id` up with it."""

    def __init__(
        self,
        leader_id: int,
        *,
        broker_id: int,
        broker_epoch: Callable[[], int],
        endpoint: Callable[[int], Endpoint | None],
        connect: Connect,
        clock: Callable[[], int],
        settings: FetchSettings,
    ) -> None:
        """`endpoint` is asked again before each connection: brokers move."""
        self.leader_id = leader_id
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._endpoint = endpoint
        self._connect = connect
        self._clock = clock
        self._settings = settings
        self._followers: dict[PartitionKey, FollowerFetch] = {}
        self._connection: BrokerConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._followers)

    def add(self, partition: Partition) -> None:
        """Fetch `partition` from now on. Needs a running loop."""
        assert partition.leader_id == self.leader_id
        self._followers[partition.key] = FollowerFetch(partition)
        self._changed.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name=f"fetch from broker {self.leader_id}"
            )

    def remove(self, key: PartitionKey) -> None:
        """Stop fetching; an answer under way is ignored."""
        self._followers.pop(key, None)

    async def stop(self) -> None:
        self._followers.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._disconnect()

    async def _run(self) -> None:
        while True:
            now_ms = self._clock()
            due_ms = min((follower.due_ms for follower in self._followers.values()), default=None)
            if due_ms is None or due_ms > now_ms:
                await self._pause(None if due_ms is None else due_ms - now_ms)
                continue
            try:
                await self._fetch_once()
            except asyncio.CancelledError:
                raise
            except _FAILURES as error:
                _logger.info("fetching from broker %d failed: %s", self.leader_id, error or repr(error))
                self._give_up()
            except Exception:
                _logger.exception("fetching from broker %d failed", self.leader_id)
                self._give_up()

    async def _pause(self, pause_ms: int | None) -> None:
        """Wait for a partition to come, `pause_ms` at most (None: as long as it takes)."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if pause_ms is None else pause_ms / 1000):
                await self._changed.wait()

    def _give_up(self) -> None:
        self._disconnect()
        now_ms = self._clock()
        for follower in self._followers.values():
            if follower.due_ms <= now_ms:
                follower.postpone(now_ms, self._settings.backoff_ms)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _connected(self) -> BrokerConnection:
        connection = self._connection
        if connection is None or connection.closed:
            endpoint = self._endpoint(self.leader_id)
            if endpoint is None:
                raise ConnectionError("its address is not known")
            connection = self._connection = await self._connect(*endpoint)
        return connection

    async def _request(self, connection: BrokerConnection, message: Any, version: int) -> Any:
        timeout_s = self._settings.request_timeout_ms / 1000
        return await connection.request(message, version=version, timeout_s=timeout_s)

    async def _fetch_once(self) -> None:
        connection = await self._connected()
        request, version = build_fetch(
            self._followers,
            now_ms=self._clock(),
            version=connection.version_of(FetchRequest.api_key),
            broker_id=self._broker_id,
            broker_epoch=self._broker_epoch(),
            settings=self._settings,
        )
        if not request.topics:
            return
        asked = dict(self._followers)
        names: dict[UUID, str] = {topic.topic_id: topic.topic for topic in request.topics}
        response: FetchResponse = await self._request(connection, request, version)
        if response.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode.of(response.error_code), "the whole fetch was refused")
        out_of_range: list[FollowerFetch] = []
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for answer in topic.partitions:
                key = (name, answer.partition_index)
                follower = self._followers.get(key)
                if follower is None or asked.get(key) is not follower:
                    continue
                step = follower.decide(answer)
                if isinstance(step, AskOffsets):
                    out_of_range.append(follower)
                else:
                    self._apply(key, follower, step)
                if answer.records:
                    # To the end of the line: the response's size is limited, and everyone has a turn.
                    self._followers[key] = self._followers.pop(key)
        for follower in out_of_range:
            await self._place(connection, follower)

    def _apply(self, key: PartitionKey, follower: FollowerFetch, step: Step) -> None:
        """One partition's trouble (a corrupt batch, a full disk) must not hold up the others."""
        if isinstance(step, Retry):
            _logger.info("broker %d refused %r: %s", self.leader_id, follower.partition, step.error.name)
        now_ms = self._clock()
        try:
            follower.apply(step, now_ms=now_ms, backoff_ms=self._settings.backoff_ms)
        except (OSError, KafkaError) as error:
            _logger.error("%r cannot follow: %s", follower.partition, error)
            follower.postpone(now_ms, self._settings.backoff_ms)
        except Exception:
            _logger.exception("%r cannot follow", follower.partition)
            follower.postpone(now_ms, self._settings.backoff_ms)

    async def _place(self, connection: BrokerConnection, follower: FollowerFetch) -> None:
        """The log end lies outside the leader's log: find out where to go on."""
        partition = follower.partition
        step: Step | None = None
        end = await self._leader_offset(connection, follower, LATEST_TIMESTAMP)
        if isinstance(end, int):
            if not follower.is_current:
                return
            step = follower.decide_on_end(end)
            if step is None:
                start = await self._leader_offset(connection, follower, EARLIEST_TIMESTAMP)
                if not follower.is_current:
                    return
                step = follower.decide_on_start(start) if isinstance(start, int) else start
        else:
            step = end
        if self._followers.get(partition.key) is follower:
            self._apply(partition.key, follower, step)

    async def _leader_offset(
        self, connection: BrokerConnection, follower: FollowerFetch, timestamp: int
    ) -> int | Retry:
        partition = follower.partition
        request = ListOffsetsRequest(
            replica_id=self._broker_id,
            topics=[
                ListOffsetsRequest.ListOffsetsTopic(
                    name=partition.topic,
                    partitions=[
                        ListOffsetsRequest.ListOffsetsPartition(
                            partition_index=partition.partition,
                            current_leader_epoch=follower.leader_epoch,
                            timestamp=timestamp,
                        )
                    ],
                )
            ],
        )
        version = min(connection.version_of(ListOffsetsRequest.api_key), 7)
        response: ListOffsetsResponse = await self._request(connection, request, version)
        answer = response.topics[0].partitions[0]
        if answer.error_code != ErrorCode.NONE:
            return Retry(ErrorCode.of(answer.error_code))
        return answer.offset

"""Fetching from one leader broker: the thin loop around the decisions in `follower`.

Started by `manager`, one per leader broker that some partition follows. One request is in flight; it asks for
all partitions that are due, and waits at the leader for news (replica.fetch.wait.max.ms). A partition that
leaves while a request is in flight is simply not found when the answer comes; one that comes back is
another `FollowerFetch`, to which the old answer says nothing.

The leader keeps a session (KIP-227), so a round looks at those partitions only whose request may be another
than the last one: what was answered, came, went, or is due again (`_changed`). Fetch 13 and later name topics
by id; as long as one of the topics has none, 12 is spoken.

Invariant: a partition that is not due is in `_later`; a due one that is not in `_changed` is in the session
as it would be asked for now.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from ottla.metadata.config import BrokerConfig
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.messages import FetchRequest, FetchResponse
from ottla.quotas.replication import ReplicationQuota
from ottla.replication.asking import epoch_ends, leader_offset
from ottla.replication.fetch_session import SESSION_ERRORS, FetchSession
from ottla.replication.follower import AskOffsets, FollowerFetch, Ignore, Retry, Step
from ottla.replication.offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from ottla.replication.partition import Partition
from ottla.replication.requests import PartitionKey
from ottla.wire.connection import Answered, BrokerConnection, UnsupportedApi
from ottla.wire.inter_broker import InterBrokerConnection

_logger = logging.getLogger(__name__)

_TRUNCATION_FROM: Final = 12
_TOPIC_IDS_FROM: Final = 13
REPLICA_STATE_FROM: Final = 15
"""Versions of Fetch carry the follower's id and broker epoch in `replica_state` (KIP-903)."""
_CLOSE_WAIT_S: Final = 0.5
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


class LeaderFetcher:
    """Keeps the partitions that follow broker `leader_id` up with it."""

    def __init__(
        self,
        leader_id: int,
        *,
        broker_id: int,
        broker_epoch: Callable[[], int],
        connection: InterBrokerConnection,
        clock: Callable[[], int],
        monotonic_clock: Callable[[], int],
        settings: FetchSettings,
        quota: Callable[[], ReplicationQuota],
    ) -> None:
        """`clock` gives wall time in ms, for the logs; `monotonic_clock` measures delays. `quota` throttles
        the partitions that lag behind (KIP-73)."""
        self.leader_id = leader_id
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._connection = connection
        self._clock = clock
        self._monotonic_clock = monotonic_clock
        self._settings = settings
        self._quota = quota
        self._followers: dict[PartitionKey, FollowerFetch] = {}
        self._changed: dict[PartitionKey, None] = {}
        self._later: dict[PartitionKey, FollowerFetch] = {}
        self._without_topic_id: set[PartitionKey] = set()
        self._unplaced: dict[PartitionKey, FollowerFetch] = {}
        self._asks_epochs = False
        """The leader is too old to answer a fetch with where we diverge: what is `_unplaced` asks for that
        before it fetches."""
        self._session = FetchSession(leader_id)
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._stopping = False

    def __len__(self) -> int:
        return len(self._followers)

    def add(self, partition: Partition) -> None:
        """Fetch `partition` from now on. Needs a running loop."""
        assert partition.leader_id == self.leader_id
        self.remove(partition.key)
        self._followers[partition.key] = self._unplaced[partition.key] = FollowerFetch(partition)
        if partition.topic_id is None:
            self._without_topic_id.add(partition.key)
        self._woken.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name=f"fetch from broker {self.leader_id}"
            )

    def remove(self, key: PartitionKey) -> None:
        """Stop fetching; an answer under way is ignored."""
        self._followers.pop(key, None)
        self._later.pop(key, None)
        self._unplaced.pop(key, None)
        self._without_topic_id.discard(key)
        self._changed[key] = None

    def log_start_moved(self, key: PartitionKey) -> None:
        """The start of a follower's log moved, and not by an answer of the leader's: it wants to know."""
        self._changed[key] = None

    async def stop(self) -> None:
        """Finish the request in flight, and close the session: the leader has better use for its memory."""
        for key in list(self._followers):
            self.remove(key)
        self._stopping = True
        self._woken.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=self._settings.wait_ms_max / 1000 + _CLOSE_WAIT_S)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._connection.close()

    async def _run(self) -> None:
        while not self._stopping:
            now_ms = self._monotonic_clock()
            for key in [key for key, follower in self._later.items() if follower.due_ms <= now_ms]:
                del self._later[key]
                self._changed[key] = None
            if len(self._followers) == len(self._later):
                due_ms = min((follower.due_ms for follower in self._later.values()), default=None)
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
        with contextlib.suppress(*_FAILURES):
            await self._close_session()

    async def _close_session(self) -> None:
        connection = self._connection.current
        if self._session.id and connection is not None:
            version = connection.version_of(FetchRequest.api_key)
            answered = asyncio.Event()
            self._send(connection, self._session.final_request(), version, lambda _: answered.set())
            await answered.wait()

    async def _pause(self, pause_ms: int | None) -> None:
        """Wait for a partition to come, `pause_ms` at most (None: as long as it takes)."""
        if not self._stopping:
            self._woken.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if pause_ms is None else pause_ms / 1000):
                    await self._woken.wait()

    def _give_up(self) -> None:
        self._connection.close()
        self._session.restart()
        # The leader may be back as another program.
        self._unplaced.update(self._followers)
        for key in self._followers.keys() - self._later.keys():
            self._postpone(key, self._followers[key])

    def _postpone(self, key: PartitionKey, follower: FollowerFetch) -> None:
        follower.postpone(self._monotonic_clock(), self._settings.backoff_ms)
        self._looked_at(key, follower)

    def _looked_at(self, key: PartitionKey, follower: FollowerFetch) -> None:
        """Something was decided about a partition: it is to be asked for anew, now or later."""
        self._changed[key] = None
        if follower.due_ms > self._monotonic_clock():
            self._later[key] = follower

    async def _fetch_once(self) -> None:
        """Fetch, and go on fetching for as long as nothing but that is to be done.

        Each answer's callback sends the next request; the task wakes only when it is needed.
        """
        connection = self._connection.current or await self._connection.open()
        self._asks_epochs = connection.version_of(FetchRequest.api_key) < _TRUNCATION_FROM
        if self._asks_epochs:
            await self._find_divergence(connection)
        needed: asyncio.Future[list[FollowerFetch]] = asyncio.get_running_loop().create_future()
        self._ask(connection, needed)
        for follower in await needed:
            await self._place(connection, follower)

    def _ask(self, connection: BrokerConnection, needed: asyncio.Future[list[FollowerFetch]]) -> None:
        version = self._version(connection)
        full = self._session.begin(by_topic_id=version >= _TOPIC_IDS_FROM)
        request = self._next_request(full)
        if request is None:
            needed.set_result([])
        else:
            self._send(connection, request, version, partial(self._answered, connection, full, needed))

    def _answered(
        self,
        connection: BrokerConnection,
        full: bool,
        needed: asyncio.Future[list[FollowerFetch]],
        response: FetchResponse | BaseException,
    ) -> None:
        if needed.done():
            return  # cancelled: nobody wants the answer any more
        try:
            if isinstance(response, BaseException):
                raise response
            out_of_range = self._take(response, full)
            if out_of_range or self._later or self._stopping or (self._asks_epochs and self._unplaced):
                needed.set_result(out_of_range)
            else:
                self._ask(connection, needed)
        except Exception as error:
            needed.set_exception(error)

    def _take(self, response: FetchResponse, full: bool) -> list[FollowerFetch]:
        """Do what the answer asks for. Returns whose offset lies outside the leader's log."""
        out_of_range: list[FollowerFetch] = []
        answers = self._session.accept(response)
        if answers is None:
            if full and response.error_code not in SESSION_ERRORS:
                raise KafkaError(ErrorCode.of(response.error_code), "the whole fetch was refused")
            return out_of_range  # a full request sets it right
        for key, answer in answers:
            follower = self._followers.get(key)
            if follower is None:
                continue
            step = follower.decide(answer)
            if isinstance(step, Ignore):
                # What it said, a high watermark perhaps, the session would not say again.
                self._session.restart()
            if isinstance(step, AskOffsets):
                out_of_range.append(follower)
            else:
                self._apply(key, follower, step)
            self._looked_at(key, follower)
            if answer.records:
                self._count(key, len(answer.records))
                # To the end of the line: the response's size is limited, and everyone has a turn.
                self._followers[key] = self._followers.pop(key)
        return out_of_range

    def _version(self, connection: BrokerConnection) -> int:
        """The version of Fetch to speak."""
        version = connection.version_of(FetchRequest.api_key)
        for key in [key for key in self._without_topic_id if self._followers[key].partition.topic_id]:
            self._without_topic_id.remove(key)
            self._changed[key] = None
        return min(version, _TOPIC_IDS_FROM - 1) if self._without_topic_id else version

    def _next_request(self, full: bool) -> FetchRequest | None:
        """What to ask the leader for now, with all partitions or those that changed; None if for nothing."""
        session, now_ms = self._session, self._monotonic_clock()
        quota = self._quota()
        throttled = quota.active and quota.is_exceeded(now_ms)
        if not self._asks_epochs:
            self._unplaced.clear()
        # What lags behind may have to leave the session, though nothing about it has changed.
        for key in list(self._followers) if full or throttled else self._changed:
            follower = self._followers.get(key)
            if follower is not None and throttled and not follower.caught_up and quota.is_throttled(*key):
                follower.due_ms = max(follower.due_ms, now_ms + self._settings.wait_ms_max)
                self._later[key] = follower
            if follower is None or key in self._later or key in self._unplaced:
                session.forget(key)
            else:
                request = follower.request(
                    self._settings.partition_bytes_max, names_epoch=not self._asks_epochs
                )
                session.want(key, follower.partition.topic_id, request)
        self._changed.clear()
        return session.request()

    def _send(
        self, connection: BrokerConnection, request: FetchRequest, version: int, answered: Answered
    ) -> None:
        """Send a request with what goes into each of them."""
        settings = self._settings
        request.max_wait_ms = settings.wait_ms_max
        request.min_bytes = settings.bytes_min
        request.max_bytes = settings.response_bytes_max
        if version >= REPLICA_STATE_FROM:
            request.replica_state = FetchRequest.ReplicaState(
                replica_id=self._broker_id, replica_epoch=self._broker_epoch()
            )
        else:
            request.replica_id = self._broker_id
        connection.send(request, version, settings.request_timeout_ms / 1000, answered)

    def _count(self, key: PartitionKey, size: int) -> None:
        quota = self._quota()
        if quota.active and quota.is_throttled(*key):
            quota.record(size, self._monotonic_clock())

    def _apply(self, key: PartitionKey, follower: FollowerFetch, step: Step) -> None:
        """One partition's trouble (a corrupt batch, a full disk) must not hold up the others."""
        if isinstance(step, Retry):
            _logger.info("broker %d refused %r: %s", self.leader_id, follower.partition, step.error.name)
        try:
            follower.apply(
                step,
                now_ms=self._clock(),
                monotonic_ms=self._monotonic_clock(),
                backoff_ms=self._settings.backoff_ms,
            )
        except (OSError, KafkaError) as error:
            _logger.error("%r cannot follow: %s", follower.partition, error)
            self._postpone(key, follower)
        except Exception:
            _logger.exception("%r cannot follow", follower.partition)
            self._postpone(key, follower)

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
            self._looked_at(partition.key, follower)

    async def _leader_offset(
        self, connection: BrokerConnection, follower: FollowerFetch, timestamp: int
    ) -> int | Retry:
        timeout_s = self._settings.request_timeout_ms / 1000
        return await leader_offset(
            connection, follower, timestamp, replica_id=self._broker_id, timeout_s=timeout_s
        )

    async def _find_divergence(self, connection: BrokerConnection) -> None:
        """Truncate by OffsetForLeaderEpoch what the answers to fetches would else have truncated, of a leader
        that speaks no Fetch 12 (KIP-101, KIP-279). What is refused is asked for again with its next turn.
        """
        while asked := [f for key, f in self._unplaced.items() if key not in self._later]:
            ends = await epoch_ends(
                connection,
                [f for f in asked if f.is_current and f.partition.log.latest_epoch is not None],
                replica_id=self._broker_id,
                timeout_s=self._settings.request_timeout_ms / 1000,
            )
            for follower in asked:
                key = follower.partition.key
                if self._unplaced.get(key) is not follower:
                    continue
                step, is_placed = follower.decide_on_epoch(ends.get(key))
                if is_placed:
                    del self._unplaced[key]
                self._apply(key, follower, step)
                self._looked_at(key, follower)

"""Fetches the records of followers from one leader broker; `follower` has the decisions about each partition.

Started by `manager`, one for each broker that leads a partition which this broker follows. One request is in
flight: it has all partitions that are due, and waits at the leader for records (replica.fetch.wait.max.ms).
The response about a partition that was removed meanwhile is ignored; one that was removed and added again is
another `FollowerFetch`, which ignores it too.

The leader has a fetch session (KIP-227), so each request considers only the partitions whose entry in the
session may have to change: those in the last response, added, removed, or due again (`_changed`). Fetch 13
and later name topics by id; while a topic has no id, Fetch 12 is sent.

Invariant: a partition that is not due is in `_delayed`; a due one that is not in `_changed` is in the session
with the values that a request would have now.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from ottla.metadata.config import BrokerConfig
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.messages import FetchRequest, FetchResponse
from ottla.quotas.broker import ReplicationQuota
from ottla.replication.fetch_session import SESSION_ERRORS, FetchSessionHandler
from ottla.replication.follower import FollowerFetch, Ignore, RequestOffsets, Retry, Step
from ottla.replication.leader_endpoint import epoch_ends, leader_offset
from ottla.replication.offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from ottla.replication.partition import Partition
from ottla.replication.requests import PartitionKey
from ottla.wire.connection import BrokerConnection, OnResponse, UnsupportedApi
from ottla.wire.inter_broker import InterBrokerConnection

_logger = logging.getLogger(__name__)

_TRUNCATION_FROM: Final = 12
_TOPIC_IDS_FROM: Final = 13
REPLICA_STATE_FROM: Final = 15
"""From this version of Fetch on, `replica_state` has the follower's id and broker epoch (KIP-903)."""
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


class ReplicaFetcher:
    """See the module: fetches the partitions that broker `leader_id` leads."""

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
        self._delayed: dict[PartitionKey, FollowerFetch] = {}
        self._without_topic_id: set[PartitionKey] = set()
        self._unverified: dict[PartitionKey, FollowerFetch] = {}
        self._uses_epoch_requests = False
        """The leader supports no Fetch 12, whose response has the point of divergence: the partitions in
        `_unverified` are truncated by OffsetForLeaderEpoch before they are fetched."""
        self._session = FetchSessionHandler(leader_id)
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._stopping = False

    def __len__(self) -> int:
        return len(self._followers)

    def lags(self) -> Iterator[tuple[PartitionKey, int]]:
        """The lag of each partition."""
        return ((key, follower.lag) for key, follower in list(self._followers.items()))

    def add(self, partition: Partition) -> None:
        """Fetch `partition` from now on. Needs a running loop."""
        assert partition.leader_id == self.leader_id
        self.remove(partition.key)
        self._followers[partition.key] = self._unverified[partition.key] = FollowerFetch(partition)
        if partition.topic_id is None:
            self._without_topic_id.add(partition.key)
        self._wake.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name=f"fetch from broker {self.leader_id}"
            )

    def remove(self, key: PartitionKey) -> None:
        """Stop fetching; the response in flight is ignored."""
        self._followers.pop(key, None)
        self._delayed.pop(key, None)
        self._unverified.pop(key, None)
        self._without_topic_id.discard(key)
        self._changed[key] = None

    def log_start_changed(self, key: PartitionKey) -> None:
        """The log start offset of a follower has changed by retention: the next request has the new one."""
        self._changed[key] = None

    async def stop(self) -> None:
        """Wait for the request in flight, and close the session, which frees the leader's memory."""
        for key in list(self._followers):
            self.remove(key)
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=self._settings.wait_ms_max / 1000 + _CLOSE_WAIT_S)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._connection.close()

    async def _run(self) -> None:
        while not self._stopping:
            now_ms = self._monotonic_clock()
            for key in [key for key, follower in self._delayed.items() if follower.due_ms <= now_ms]:
                del self._delayed[key]
                self._changed[key] = None
            if len(self._followers) == len(self._delayed):
                due_ms = min((follower.due_ms for follower in self._delayed.values()), default=None)
                await self._pause(None if due_ms is None else due_ms - now_ms)
                continue
            try:
                await self._fetch_once()
            except asyncio.CancelledError:
                raise
            except _FAILURES as error:
                _logger.info(
                    "Error sending fetch request to node %d: %s", self.leader_id, error or repr(error)
                )
                self._handle_failure()
            except Exception:
                _logger.exception("Error sending fetch request to node %d", self.leader_id)
                self._handle_failure()
        with contextlib.suppress(*_FAILURES):
            await self._close_session()

    async def _close_session(self) -> None:
        connection = self._connection.current
        if self._session.id and connection is not None:
            version = connection.version_of(FetchRequest.api_key)
            closed = asyncio.Event()
            self._send(connection, self._session.final_request(), version, lambda _: closed.set())
            await closed.wait()

    async def _pause(self, pause_ms: int | None) -> None:
        """Wait until a partition is added, or for `pause_ms`; None: without a limit."""
        if not self._stopping:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if pause_ms is None else pause_ms / 1000):
                    await self._wake.wait()

    def _handle_failure(self) -> None:
        self._connection.close()
        self._session.restart()
        # The leader may return with another version of its software.
        self._unverified.update(self._followers)
        for key in [key for key in self._followers if key not in self._delayed]:
            self._postpone(key, self._followers[key])

    def _postpone(self, key: PartitionKey, follower: FollowerFetch) -> None:
        follower.postpone(self._monotonic_clock(), self._settings.backoff_ms)
        self._schedule(key, follower)

    def _schedule(self, key: PartitionKey, follower: FollowerFetch) -> None:
        """Have a partition requested with its new values, now or when it is due."""
        self._changed[key] = None
        if follower.due_ms > self._monotonic_clock():
            self._delayed[key] = follower

    async def _fetch_once(self) -> None:
        """Fetch, and continue while nothing else has to be done.

        The callback of each response sends the next request; the task runs only when it is needed.
        """
        connection = self._connection.current or await self._connection.open()
        self._uses_epoch_requests = connection.version_of(FetchRequest.api_key) < _TRUNCATION_FROM
        if self._uses_epoch_requests:
            await self._truncate_by_epoch(connection)
        interrupted: asyncio.Future[list[FollowerFetch]] = asyncio.get_running_loop().create_future()
        self._send_fetch(connection, interrupted)
        for follower in await interrupted:
            await self._handle_out_of_range(connection, follower)

    def _send_fetch(
        self, connection: BrokerConnection, interrupted: asyncio.Future[list[FollowerFetch]]
    ) -> None:
        version = self._version(connection)
        full = self._session.begin(by_topic_id=version >= _TOPIC_IDS_FROM)
        request = self._next_request(full)
        if request is None:
            interrupted.set_result([])
        else:
            self._send(
                connection, request, version, partial(self._on_fetch_response, connection, full, interrupted)
            )

    def _on_fetch_response(
        self,
        connection: BrokerConnection,
        full: bool,
        interrupted: asyncio.Future[list[FollowerFetch]],
        response: FetchResponse | BaseException,
    ) -> None:
        if interrupted.done():
            return  # the task was cancelled
        try:
            if isinstance(response, BaseException):
                raise response
            out_of_range = self._process_response(response, full)
            if (
                out_of_range
                or self._delayed
                or self._stopping
                or (self._uses_epoch_requests and self._unverified)
            ):
                interrupted.set_result(out_of_range)
            else:
                self._send_fetch(connection, interrupted)
        except Exception as error:
            interrupted.set_exception(error)

    def _process_response(self, response: FetchResponse, full: bool) -> list[FollowerFetch]:
        """Apply a response. Returns the followers whose offset is outside the leader's log."""
        out_of_range: list[FollowerFetch] = []
        responses = self._session.accept(response)
        if responses is None:
            if full and response.error_code not in SESSION_ERRORS:
                raise KafkaError(ErrorCode.of(response.error_code), "the leader rejected the fetch request")
            return out_of_range  # the next request is full
        for key, partition_data in responses:
            follower = self._followers.get(key)
            if follower is None:
                continue
            follower.leader_high_watermark = partition_data.high_watermark
            step = follower.decide(partition_data)
            if isinstance(step, Ignore):
                # The session will not repeat what the response had, e.g. a high watermark.
                self._session.restart()
            if isinstance(step, RequestOffsets):
                out_of_range.append(follower)
            else:
                self._apply(key, follower, step)
            self._schedule(key, follower)
            if partition_data.records:
                self._record_bytes(key, len(partition_data.records))
                # Last in the next request: the size of a response is limited, and the others come first.
                self._followers[key] = self._followers.pop(key)
        return out_of_range

    def _version(self, connection: BrokerConnection) -> int:
        """The version of the next Fetch request."""
        version = connection.version_of(FetchRequest.api_key)
        for key in [key for key in sorted(self._without_topic_id) if self._followers[key].partition.topic_id]:
            self._without_topic_id.remove(key)
            self._changed[key] = None
        return min(version, _TOPIC_IDS_FROM - 1) if self._without_topic_id else version

    def _next_request(self, full: bool) -> FetchRequest | None:
        """The next request, with all partitions or those that changed; None without any partition."""
        session, now_ms = self._session, self._monotonic_clock()
        quota = self._quota()
        throttled = quota.active and quota.is_exceeded(now_ms)
        if not self._uses_epoch_requests:
            self._unverified.clear()
        # A throttled partition may have to leave the session, though it has not changed.
        for key in list(self._followers) if full or throttled else self._changed:
            follower = self._followers.get(key)
            if follower is not None and throttled and not follower.caught_up and quota.is_throttled(*key):
                follower.due_ms = max(follower.due_ms, now_ms + self._settings.wait_ms_max)
                self._delayed[key] = follower
            if follower is None or key in self._delayed or key in self._unverified:
                session.remove(key)
            else:
                request = follower.request(
                    self._settings.partition_bytes_max, detects_divergence=not self._uses_epoch_requests
                )
                session.add(key, follower.partition.topic_id, request)
        self._changed.clear()
        return session.request()

    def _send(
        self, connection: BrokerConnection, request: FetchRequest, version: int, on_response: OnResponse
    ) -> None:
        """Set the fields that all requests have in common, and send it."""
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
        connection.send(request, version, settings.request_timeout_ms / 1000, on_response)

    def _record_bytes(self, key: PartitionKey, size: int) -> None:
        quota = self._quota()
        if quota.active and quota.is_throttled(*key):
            quota.record(size, self._monotonic_clock())

    def _apply(self, key: PartitionKey, follower: FollowerFetch, step: Step) -> None:
        """Apply a step to a partition. Its failure (a corrupt batch, a full disk) must not stop the
        others."""
        if isinstance(step, Retry):
            _logger.info(
                "Error for %r from broker %d: %s", follower.partition, self.leader_id, step.error.name
            )
        try:
            follower.apply(
                step,
                now_ms=self._clock(),
                monotonic_ms=self._monotonic_clock(),
                backoff_ms=self._settings.backoff_ms,
            )
        except (OSError, KafkaError) as error:
            _logger.error("Error while processing data for %r: %s", follower.partition, error)
            self._postpone(key, follower)
        except Exception:
            _logger.exception("Unexpected error occurred while processing data for %r", follower.partition)
            self._postpone(key, follower)

    async def _handle_out_of_range(self, connection: BrokerConnection, follower: FollowerFetch) -> None:
        """The log end offset is outside the leader's log: find the offset from which to fetch."""
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
            self._schedule(partition.key, follower)

    async def _leader_offset(
        self, connection: BrokerConnection, follower: FollowerFetch, timestamp: int
    ) -> int | Retry:
        timeout_s = self._settings.request_timeout_ms / 1000
        return await leader_offset(
            connection, follower, timestamp, replica_id=self._broker_id, timeout_s=timeout_s
        )

    async def _truncate_by_epoch(self, connection: BrokerConnection) -> None:
        """Truncate by OffsetForLeaderEpoch the partitions in `_unverified`, for a leader that supports no
        Fetch 12 (KIP-101, KIP-279). A partition with an error is retried when it is due again.
        """
        while pending := [f for key, f in self._unverified.items() if key not in self._delayed]:
            ends = await epoch_ends(
                connection,
                [f for f in pending if f.is_current and f.partition.log.latest_epoch is not None],
                replica_id=self._broker_id,
                timeout_s=self._settings.request_timeout_ms / 1000,
            )
            for follower in pending:
                key = follower.partition.key
                if self._unverified.get(key) is not follower:
                    continue
                step, is_truncated = follower.decide_on_epoch(ends.get(key))
                if is_truncated:
                    del self._unverified[key]
                self._apply(key, follower, step)
                self._schedule(key, follower)

"""The fetcher: fetches ahead of `poll`, with fetch sessions (KIP-227), preferred read replicas (KIP-392) and
bounded memory.

A request manager; its data goes to `fetch_buffer`, from which `Consumer` takes it. Invariants:

* At most one request to a node is in flight, and requests to different nodes are independent.
* A request reserves no memory. Its max_bytes is fetch.max.bytes less the buffered bytes of the partitions
that
  are read from the node. So a node uses at most fetch.max.bytes, in flight and buffered, except for a larger
  batch.
* A paused partition does not count. It keeps its buffered data: at most twice max.partition.fetch.bytes.
* A request lists the partitions first that have had no records for the longest time: without a session,
brokers
  serve them in this order.
* A response counts only for the offset that is still the fetch offset.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import defaultdict
from collections.abc import Hashable, Iterable
from operator import attrgetter
from typing import Any, Final, TypeAlias

from ottla.client import errors
from ottla.client.core.assigned import Assigned, AssignedPartition, Phase
from ottla.client.core.backoff import Uniform
from ottla.client.core.cluster import Cluster
from ottla.client.core.consumer_config import ConsumerConfig
from ottla.client.core.decoding import PartitionData, last_batch
from ottla.client.core.fetch_buffer import FetchBuffer
from ottla.client.core.fetch_sessions import FetchPosition, FetchSession
from ottla.client.core.positions import Positions
from ottla.client.core.stats import FetchStats
from ottla.client.core.types import Leader, Node, TopicPartition, UnsentRequest
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
from ottla.protocol.types import ZERO_UUID

log = logging.getLogger(__name__)

_CONSUMER: Final = -1
_RETRY_AFTER_METADATA: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
"""Errors after which the fetch is retried with fresh metadata."""


_Requested: TypeAlias = dict[TopicPartition, tuple[AssignedPartition, int, int]]
"""The partitions of a request: the state, its era and the fetch offset."""
_BY_TURN: Final = attrgetter("turn")


class Fetcher:
    """Kafka's Fetcher."""

    def __init__(
        self,
        config: ConsumerConfig,
        cluster: Cluster,
        assigned: Assigned,
        positions: Positions,
        uniform: Uniform,
        buffer: FetchBuffer,
        stats: FetchStats,
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._assigned = assigned
        self._positions = positions
        self._uniform = uniform
        self._buffer = buffer
        self._stats = stats
        self._sessions: defaultdict[int, FetchSession] = defaultdict(FetchSession)
        self._in_flight: dict[int, _Requested] = {}
        self._not_before: dict[int, float] = {}
        self._failures: dict[int, int] = {}
        self._turns = itertools.count(1)

    # --- requests and responses ---

    def poll(self, now: float) -> list[UnsentRequest]:
        by_node: defaultdict[int, list[AssignedPartition]] = defaultdict(list)
        buffered_bytes: defaultdict[int, int] = defaultdict(int)
        busy: set[int] = set()  # nodes with partitions of which enough is buffered
        for state in self._assigned:
            if not state.fetchable:
                continue
            leader = self._cluster.leader(state.tp)
            if leader is None:
                if state.retry_at <= now:
                    self._cluster.invalidate(state.tp)
                    state.retry_at = now + self._pause_s()
                continue
            node_id = self._read_node(state, leader, now)
            buffered_bytes[node_id] += state.buffered_bytes
            if state.buffered_bytes > self._config.max_partition_fetch_bytes:
                busy.add(node_id)
            elif (
                node_id not in self._in_flight
                and state.retry_at <= now
                and self._not_before.get(node_id, now) <= now
            ):
                by_node[node_id].append(state)
        out = []
        for node_id, states in by_node.items():
            if node_id in busy and all(map(self._caught_up, states)):
                continue  # a long poll would delay the partitions that need more data soon
            free_bytes = self._config.fetch_max_bytes - buffered_bytes[node_id]
            if free_bytes > 0 or not buffered_bytes[node_id]:
                out.append(self._fetch(node_id, states, free_bytes))
        return out

    def _caught_up(self, state: AssignedPartition) -> bool:
        """Whether the last fetch has reached the end of the log."""
        end = state.last_stable_offset if self._config.isolation else state.high_watermark
        return 0 <= end <= state.fetch_offset

    def _read_node(self, state: AssignedPartition, leader: Leader, now: float) -> int:
        """The node to read a partition from: its leader, or the preferred read replica."""
        if state.preferred < 0:
            return leader.node_id
        known = self._cluster.partition(state.tp)
        offline = known is not None and state.preferred in known.offline
        if now >= state.preferred_until or offline or state.preferred not in self._cluster.nodes:
            state.preferred = -1
            return leader.node_id
        return state.preferred

    def _fetch(self, node_id: int, states: list[AssignedPartition], bytes_max: int) -> UnsentRequest:
        config = self._config
        states.sort(key=_BY_TURN)
        wanted = {}
        for state in states:
            topic_id = self._cluster.topic_id(state.tp.topic) or ZERO_UUID
            leader = self._cluster.leader(state.tp)
            wanted[state.tp] = FetchPosition(
                topic_id,
                state.fetch_offset,
                -1 if leader is None else leader.epoch,
                config.max_partition_fetch_bytes,
            )
        request = m.FetchRequest(
            replica_id=_CONSUMER,
            max_wait_ms=config.fetch_max_wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=bytes_max,
            isolation_level=config.isolation,
            rack_id=config.client_rack,
        )
        version_max = self._sessions[node_id].build(wanted, request)
        self._in_flight[node_id] = {state.tp: (state, state.era, state.fetch_offset) for state in states}
        timeout_s = config.request_timeout_ms / 1000
        return UnsentRequest(node_id, request, node_id, timeout_s, version_max=version_max, keeps=True)

    def next_time(self, now: float) -> float:
        times = [state.retry_at for state in self._assigned if state.retry_at > now and state.fetchable]
        times += [at for at in self._not_before.values() if at > now]
        return min(times, default=math.inf)

    def on_response(self, tag: Hashable, response: Any, now: float) -> None:
        assert isinstance(tag, int)
        requested = self._in_flight.pop(tag)
        self._buffer.drop_obsolete()
        session = self._sessions[tag]
        if isinstance(response, BaseException):
            session.failed()
            failures = self._failures.get(tag, 0)
            self._not_before[tag] = now + self._pause_s(failures)
            self._failures[tag] = failures + 1
            for state, _, _ in requested.values():
                if state.preferred == tag:
                    state.preferred = -1
            log.debug("fetch from broker %d failed: %s", tag, response)
            return
        if not session.handle_response(response):
            if response.error_code not in (0, ErrorCode.FETCH_SESSION_ID_NOT_FOUND):
                log.info("fetch from broker %d failed: %s", tag, ErrorCode.of(response.error_code).name)
                self._cluster.invalidate()
            self._not_before[tag] = now + self._pause_s()
            return
        self._failures.pop(tag, None)
        self._not_before.pop(tag, None)
        nodes = [Node(n.node_id, n.host, n.port, n.rack) for n in response.node_endpoints]
        size = 0
        for topic in response.responses:
            name = session.name(topic)
            for row in topic.partitions:
                entry = requested.get(TopicPartition(name or "", row.partition_index))
                if entry is not None:
                    self._take_partition(*entry, row, nodes, tag, now)
                size += len(row.records or b"")
        if size:
            self._stats.record_response(tag, size, now)

    def _take_partition(
        self,
        state: AssignedPartition,
        era: int,
        offset: int,
        row: m.FetchResponse.PartitionData,
        nodes: Iterable[Node],
        node_id: int,
        now: float,
    ) -> None:
        tp = state.tp
        if self._assigned.get(tp) is not state or state.era != era or state.fetch_offset != offset:
            return
        if row.error_code:
            self._failed(state, ErrorCode.of(row.error_code), row, nodes, node_id, now)
            return
        state.retry_at = -math.inf
        state.high_watermark = max(row.high_watermark, -1)
        state.last_stable_offset = row.last_stable_offset
        state.log_start_offset = row.log_start_offset
        if row.preferred_read_replica >= 0:
            state.preferred = row.preferred_read_replica
            state.preferred_until = now + self._config.metadata_max_age_ms / 1000
        data = row.records
        if not data:
            return
        state.turn = next(self._turns)
        view = memoryview(data)
        last = last_batch(view, offset)
        if last is None:
            text = f"a fetch at offset {offset} returned {len(view)} bytes without a complete batch"
            self._buffer.problems.append(errors.DeserializationError(tp.topic, tp.partition, offset, text))
            state.retry_at = now + self._pause_s()
            return
        aborted = (row.aborted_transactions or ()) if self._config.isolation else None
        found = PartitionData(tp, view, offset, check_crcs=self._config.check_crcs, aborted=aborted)
        self._buffer.add(state, found, len(view))
        self._stats.record_fetched(tp.topic, len(view), now)
        state.fetch_offset = last.next_offset

    def _failed(
        self,
        state: AssignedPartition,
        code: ErrorCode,
        row: m.FetchResponse.PartitionData,
        nodes: Iterable[Node],
        node_id: int,
        now: float,
    ) -> None:
        tp = state.tp
        state.turn = next(self._turns)
        state.retry_at = now + self._pause_s()
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            if state.preferred == node_id:
                state.preferred = -1
                state.retry_at = now
            elif state.position == state.fetch_offset:
                self._out_of_range(state)
        elif code in _RETRY_AFTER_METADATA:
            log.debug("fetching %s from broker %d: %s", tp, node_id, code.name)
            if state.preferred == node_id:
                state.preferred = -1
            leader = Leader(row.current_leader.leader_id, row.current_leader.leader_epoch)
            if leader.node_id >= 0 and leader.epoch >= 0 and self._cluster.take_leader(tp, leader, nodes):
                state.retry_at = now
            else:
                self._cluster.invalidate(tp)
        else:
            where = f"fetching {tp} at offset {state.fetch_offset}"
            self._buffer.problems.append(errors.for_code(code, where))

    def _out_of_range(self, state: AssignedPartition) -> None:
        text = f"offset {state.position} of {state.tp} is out of range"
        if self._config.auto_offset_reset == "none":
            self._buffer.problems.append(errors.for_code(ErrorCode.OFFSET_OUT_OF_RANGE, text))
        else:
            log.info("%s: resetting the position to %s", text, self._config.auto_offset_reset)
            self._positions.reset((state,))

    def close(self) -> list[UnsentRequest]:
        """Requests that close the fetch sessions; their responses need not be awaited."""
        out = []
        for node_id, session in self._sessions.items():
            request = m.FetchRequest(replica_id=_CONSUMER, max_wait_ms=0, min_bytes=0, topics=[])
            if node_id in self._cluster.nodes and session.close(request):
                out.append(UnsentRequest(node_id, request, node_id, 1.0, keeps=True))
        return out

    def _pause_s(self, failures: int = 0) -> float:
        return self._config.retry_pause_s(failures, self._uniform)

    @property
    def lags(self) -> dict[TopicPartition, int]:
        """The number of records after the position of each partition, as of its last response."""
        committed = self._config.isolation
        return {
            state.tp: max(
                (state.last_stable_offset if committed else state.high_watermark) - state.position, 0
            )
            for state in self._assigned
            if state.phase is Phase.FETCHING and state.high_watermark >= 0
        }

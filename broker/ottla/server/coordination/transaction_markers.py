"""Transaction markers: written by the leaders of partitions, sent by transaction coordinators.

`TransactionMarkerWriter` is the leader's side. The handler of WriteTxnMarkers calls it, and, without a
connection, the coordinator in the same broker. `TransactionMarkerChannelManager` is the coordinator's side
(its MarkerSender): one queue per broker, one request in flight per broker, which carries the whole queue.

Invariant: a wanted marker stays in some queue until its partition's leader has replicated it, or the
partition no longer exists.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, NamedTuple

from ottla.coordinators.interfaces import Marker
from ottla.coordinators.transactions.transaction import TopicPartition
from ottla.metadata.cache import MetadataCache
from ottla.ports.tasks import TaskSet
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from ottla.protocol.records import ControlType, build_control_batch
from ottla.protocol.topics import OFFSETS_TOPIC, indexes_by_topic
from ottla.replication.manager import ReplicaManager
from ottla.server.coordination.replicated_log import append_replicated
from ottla.server.dispatch.purgatory import Purgatory
from ottla.wire.connection import UnsupportedApi
from ottla.wire.inter_broker import InterBrokerClient, Purpose

log = logging.getLogger(__name__)

RETRY_S: Final = 0.1
"""Backoff between two attempts at a broker or a partition."""

_FENCED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
"""The partition has seen a newer producer or coordinator epoch: this coordinator is fenced and gives up."""
_COMPLETED: Final = frozenset(
    {ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION}
)
"""The marker is written; or not needed, because the log cannot hold transactions."""


class TransactionMarkerWriter:
    """Appends markers to partitions that this broker leads."""

    def __init__(
        self,
        replicas: ReplicaManager,
        purgatory: Purgatory,
        clock: Callable[[], int],
        *,
        timeout_ms: int,
    ) -> None:
        self._replicas = replicas
        self._purgatory = purgatory
        self._clock = clock
        self._timeout_ms = timeout_ms
        self.on_offsets_marker: Callable[[int, int, bool], None] = lambda partition, producer_id, commit: None
        """Called for a marker in `__consumer_offsets`, with the partition, the producer id, and whether it is
        a commit."""

    async def write(self, marker: Marker) -> dict[TopicPartition, ErrorCode]:
        """Append the marker to partitions that this broker leads, and wait for their replicas."""
        errors: dict[TopicPartition, ErrorCode] = {}
        appends: dict[TopicPartition, asyncio.Future[ErrorCode]] = {}
        now_ms = self._clock()
        batch = build_control_batch(
            ControlType.COMMIT if marker.commit else ControlType.ABORT,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp=now_ms,
        )
        for key in sorted(marker.partitions):
            if self._replicas.find(*key) is None:
                errors[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            appends[key] = append_replicated(
                self._replicas, self._purgatory, key, batch, now_ms=now_ms, timeout_ms=self._timeout_ms
            )
        for key, append in appends.items():
            errors[key] = await append
            if key[0] == OFFSETS_TOPIC and errors[key] is ErrorCode.NONE:
                self.on_offsets_marker(key[1], marker.producer_id, marker.commit)
        return errors


class _PendingMarker(NamedTuple):
    """A marker that some partitions do not have yet."""

    marker: Marker
    on_written: Callable[[frozenset[TopicPartition]], None]
    is_wanted: Callable[[], bool]

    def for_partitions(self, partitions: Iterable[TopicPartition]) -> _PendingMarker:
        return self._replace(marker=self.marker._replace(partitions=frozenset(partitions)))


class TransactionMarkerChannelManager:
    """See the module; implements the coordinator's MarkerSender."""

    def __init__(
        self,
        broker_id: int,
        cache: MetadataCache,
        inter_broker: InterBrokerClient,
        writer: TransactionMarkerWriter,
    ) -> None:
        self._broker_id = broker_id
        self._cache = cache
        self._inter_broker = inter_broker
        self._writer = writer
        self._queues: dict[int, list[_PendingMarker]] = {}
        """Brokers with a request in flight, and the markers of the next request."""
        self._tasks = TaskSet()
        self._stopped = False

    def send(
        self,
        marker: Marker,
        on_written: Callable[[frozenset[TopicPartition]], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        self._send(_PendingMarker(marker, on_written, is_wanted))

    async def stop(self) -> None:
        """Send no more: the next coordinator reads from the log which markers are missing."""
        self._stopped = True
        await self._tasks.stop()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(work).add_done_callback(self._task_done)

    @staticmethod
    def _task_done(work: asyncio.Task[None]) -> None:
        if not work.cancelled() and (problem := work.exception()) is not None:
            log.error("Sending transaction markers failed", exc_info=problem)

    def _send(self, pending: _PendingMarker) -> None:
        """Send to the current leaders of its partitions."""
        if self._stopped or not pending.is_wanted():
            return
        by_leader: dict[int | None, list[TopicPartition]] = {}
        gone: list[TopicPartition] = []
        metadata_known = bool(self._cache.brokers())
        for key in sorted(pending.marker.partitions):
            partition = self._cache.partition(*key)
            if partition is None and metadata_known:
                gone.append(key)
            elif partition is None or self._cache.broker(partition.leader) is None:
                by_leader.setdefault(None, []).append(key)
            else:
                by_leader.setdefault(partition.leader, []).append(key)
        for leader, partitions in by_leader.items():
            part = pending.for_partitions(partitions)
            if leader is None:
                self._send_later(part)
            elif leader == self._broker_id:
                self._start(self._write(part))
            else:
                self._enqueue(leader, part)
        if gone:
            log.info(
                "Partitions %s no longer exist: no marker of producer %d", gone, pending.marker.producer_id
            )
            pending.on_written(frozenset(gone))

    def _send_later(self, pending: _PendingMarker) -> None:
        if not self._stopped:
            self._start(self._send_after_backoff(pending))

    async def _send_after_backoff(self, pending: _PendingMarker) -> None:
        await asyncio.sleep(RETRY_S)
        self._send(pending)

    async def _write(self, pending: _PendingMarker) -> None:
        try:
            errors = await self._writer.write(pending.marker)
        except Exception:
            log.exception("Writing markers of producer %d failed", pending.marker.producer_id)
            errors = dict.fromkeys(sorted(pending.marker.partitions), ErrorCode.UNKNOWN_SERVER_ERROR)
        self._handle_errors(pending, errors)

    def _enqueue(self, broker_id: int, pending: _PendingMarker) -> None:
        queue = self._queues.get(broker_id)
        if queue is None:
            self._queues[broker_id] = [pending]
            self._start(self._drain(broker_id))
        else:
            queue.append(pending)

    async def _drain(self, broker_id: int) -> None:
        """Send the broker's queue, request by request, until it is empty."""
        try:
            while self._queues[broker_id]:
                batch, self._queues[broker_id] = self._queues[broker_id], []
                batch = [pending for pending in batch if pending.is_wanted()]
                if batch:
                    await self._send_to(broker_id, batch)
        finally:
            del self._queues[broker_id]

    async def _send_to(self, broker_id: int, batch: list[_PendingMarker]) -> None:
        try:
            response = await self._inter_broker.request(
                broker_id, _request(batch), Purpose.TRANSACTION_MARKERS
            )
        except Exception as problem:
            # Retry after any error: a marker that is not sent again leaves a transaction open for ever.
            expected = isinstance(problem, OSError | TimeoutError | UnsupportedApi)
            log.info(
                "Sending transaction markers to broker %d failed, retrying: %s",
                broker_id, problem or type(problem).__name__, exc_info=not expected,
            )  # fmt: skip
            for pending in batch:
                self._send_later(pending)
            return
        errors = _errors(response)
        for pending in batch:
            of_producer = errors.get(pending.marker.producer_id, {})
            self._handle_errors(
                pending,
                {
                    key: of_producer.get(key, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                    for key in sorted(pending.marker.partitions)
                },
            )

    def _handle_errors(self, pending: _PendingMarker, errors: dict[TopicPartition, ErrorCode]) -> None:
        done = [key for key, error in errors.items() if error in _COMPLETED]
        final = {key: error.name for key, error in errors.items() if error in _FENCED}
        again = [key for key, error in errors.items() if error not in _COMPLETED and error not in _FENCED]
        if done:
            pending.on_written(frozenset(done))
        if final:
            log.warning("Markers of producer %d are fenced: %s", pending.marker.producer_id, final)
        elif again:
            log.info(
                "Retrying markers of producer %d: %s",
                pending.marker.producer_id, {key: errors[key].name for key in again},
            )  # fmt: skip
            self._send_later(pending.for_partitions(again))


def _request(batch: list[_PendingMarker]) -> WriteTxnMarkersRequest:
    markers = []
    for pending in batch:
        marker = pending.marker
        markers.append(
            WriteTxnMarkersRequest.WritableTxnMarker(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                transaction_result=marker.commit,
                topics=[
                    WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
                    for name, indexes in indexes_by_topic(marker.partitions).items()
                ],
                coordinator_epoch=marker.coordinator_epoch,
            )
        )
    return WriteTxnMarkersRequest(markers=markers)


def _errors(response: WriteTxnMarkersResponse) -> dict[int, dict[TopicPartition, ErrorCode]]:
    errors: dict[int, dict[TopicPartition, ErrorCode]] = {}
    for result in response.markers:
        of_producer = errors.setdefault(result.producer_id, {})
        for topic in result.topics:
            for partition in topic.partitions:
                of_producer[topic.name, partition.partition_index] = ErrorCode.of(partition.error_code)
    return errors

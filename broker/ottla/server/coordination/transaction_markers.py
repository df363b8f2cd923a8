"""Markers, by which transactions end in the logs: appended by the partitions' leaders, sent by coordinators.

`MarkerWriter` is the leader's side, called by the handler of WriteTxnMarkers and, without a connection, by
the coordinator in the same broker. `MarkerQueues` is the coordinator's (its MarkerSender): one queue a
broker, one request at a time each, with all that waits in it.

Invariant: a marker that is wanted stays in some queue until its partition's leader has it in a replicated
log, or the partition is known to be gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from ottla.coordinators.transactions.interfaces import Marker
from ottla.coordinators.transactions.transaction import TopicPartition
from ottla.metadata.cache import MetadataCache
from ottla.protocol.errors import ErrorCode
from ottla.protocol.grouping import indexes_by_topic
from ottla.protocol.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from ottla.protocol.records import ControlType, build_control_batch
from ottla.protocol.topic_names import OFFSETS_TOPIC
from ottla.replication.manager import ReplicaManager
from ottla.server.coordination.replicated_append import append_replicated
from ottla.server.dispatch.purgatory import Purgatory
from ottla.wire.connection import UnsupportedApi
from ottla.wire.inter_broker import InterBrokerClient, Purpose

log = logging.getLogger(__name__)

RETRY_S: Final = 0.1
"""Between two attempts at a broker or a partition."""

_FINAL: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
"""A later coordinator has spoken to this partition: this one's word is worth nothing any more."""
_DONE: Final = frozenset(
    {ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION}
)
"""Written; or not needed, where no transaction can have been written to."""


class MarkerWriter:
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
        self.offsets_ended: Callable[[int, int, bool], None] = lambda partition, producer_id, commit: None
        """Hears of markers in `__consumer_offsets`: its partition, the producer id, whether it is a
        commit."""

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
        for key in marker.partitions:
            if self._replicas.find(*key) is None:
                errors[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            appends[key] = append_replicated(
                self._replicas, self._purgatory, key, batch, now_ms=now_ms, timeout_ms=self._timeout_ms
            )
        for key, append in appends.items():
            errors[key] = await append
            if key[0] == OFFSETS_TOPIC and errors[key] is ErrorCode.NONE:
                self.offsets_ended(key[1], marker.producer_id, marker.commit)
        return errors


class _Sending(NamedTuple):
    marker: Marker
    marked: Callable[[frozenset[TopicPartition]], None]
    is_wanted: Callable[[], bool]

    def only(self, partitions: Iterable[TopicPartition]) -> _Sending:
        return self._replace(marker=self.marker._replace(partitions=frozenset(partitions)))


class MarkerQueues:
    """See the module; implements the coordinator's MarkerSender."""

    def __init__(
        self, broker_id: int, cache: MetadataCache, inter_broker: InterBrokerClient, writer: MarkerWriter
    ) -> None:
        self._broker_id = broker_id
        self._cache = cache
        self._inter_broker = inter_broker
        self._writer = writer
        self._queues: dict[int, list[_Sending]] = {}
        """Brokers that are being sent to, with what is to be sent next."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    def send(
        self,
        marker: Marker,
        marked: Callable[[frozenset[TopicPartition]], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        self._send(_Sending(marker, marked, is_wanted))

    async def stop(self) -> None:
        """Send no more: who coordinates next reads in the log what is to be sent."""
        self._stopped = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: asyncio.Task[None]) -> None:
        self._tasks.add(work)
        work.add_done_callback(self._ended)

    def _ended(self, work: asyncio.Task[None]) -> None:
        self._tasks.discard(work)
        if not work.cancelled() and (problem := work.exception()) is not None:
            log.error("sending transaction markers failed", exc_info=problem)

    def _send(self, sending: _Sending) -> None:
        """To the leaders of its partitions, as they are known now."""
        if self._stopped or not sending.is_wanted():
            return
        by_leader: dict[int | None, list[TopicPartition]] = {}
        gone: list[TopicPartition] = []
        knows_cluster = bool(self._cache.brokers())
        for key in sending.marker.partitions:
            partition = self._cache.partition(*key)
            if partition is None and knows_cluster:
                gone.append(key)
            elif partition is None or self._cache.broker(partition.leader) is None:
                by_leader.setdefault(None, []).append(key)
            else:
                by_leader.setdefault(partition.leader, []).append(key)
        for leader, partitions in by_leader.items():
            part = sending.only(partitions)
            if leader is None:
                self._send_later(part)
            elif leader == self._broker_id:
                self._start(asyncio.get_running_loop().create_task(self._write(part)))
            else:
                self._enqueue(leader, part)
        if gone:
            log.info("%s are gone, and need no marker of producer %d", gone, sending.marker.producer_id)
            sending.marked(frozenset(gone))

    def _send_later(self, sending: _Sending) -> None:
        asyncio.get_running_loop().call_later(RETRY_S, self._send, sending)

    async def _write(self, sending: _Sending) -> None:
        try:
            errors = await self._writer.write(sending.marker)
        except Exception:
            log.exception("writing markers of producer %d failed", sending.marker.producer_id)
            errors = dict.fromkeys(sending.marker.partitions, ErrorCode.UNKNOWN_SERVER_ERROR)
        self._settle(sending, errors)

    def _enqueue(self, broker_id: int, sending: _Sending) -> None:
        queue = self._queues.get(broker_id)
        if queue is None:
            self._queues[broker_id] = [sending]
            self._start(asyncio.get_running_loop().create_task(self._serve(broker_id)))
        else:
            queue.append(sending)

    async def _serve(self, broker_id: int) -> None:
        """Send what is in the broker's queue until there is nothing."""
        try:
            while self._queues[broker_id]:
                batch, self._queues[broker_id] = self._queues[broker_id], []
                batch = [sending for sending in batch if sending.is_wanted()]
                if batch:
                    await self._send_to(broker_id, batch)
        finally:
            del self._queues[broker_id]

    async def _send_to(self, broker_id: int, batch: list[_Sending]) -> None:
        try:
            response = await self._inter_broker.request(
                broker_id, _request(batch), Purpose.TRANSACTION_MARKERS
            )
        except Exception as problem:
            # Whatever it is, a marker that is not sent again leaves a transaction open for ever.
            expected = isinstance(problem, OSError | TimeoutError | UnsupportedApi)
            log.info(
                "broker %d did not take markers: %s",
                broker_id, problem or type(problem).__name__, exc_info=not expected,
            )  # fmt: skip
            for sending in batch:
                self._send_later(sending)
            return
        errors = _errors(response)
        for sending in batch:
            of_producer = errors.get(sending.marker.producer_id, {})
            self._settle(
                sending,
                {
                    key: of_producer.get(key, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                    for key in sending.marker.partitions
                },
            )

    def _settle(self, sending: _Sending, errors: dict[TopicPartition, ErrorCode]) -> None:
        done = [key for key, error in errors.items() if error in _DONE]
        final = {key: error.name for key, error in errors.items() if error in _FINAL}
        again = errors.keys() - done - final.keys()
        if done:
            sending.marked(frozenset(done))
        if final:
            log.warning("markers of producer %d are refused: %s", sending.marker.producer_id, final)
        elif again:
            log.info(
                "markers of producer %d are to be sent again: %s",
                sending.marker.producer_id, {key: errors[key].name for key in again},
            )  # fmt: skip
            self._send_later(sending.only(again))


def _request(batch: list[_Sending]) -> WriteTxnMarkersRequest:
    markers = []
    for sending in batch:
        marker = sending.marker
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

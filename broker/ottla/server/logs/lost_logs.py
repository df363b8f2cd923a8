"""Detects in-sync replicas that have lost their logs: such a broker must not lead, nor count as in sync.

Used by the handler of LeaderAndIsr. A partition that is not new, with this broker in its ISR beside others,
has a log here, unless the log is lost (a disk was replaced, a directory removed) or a controller crashed
before it sent the first LeaderAndIsr. The other members of the ISR have the answer: if any of them has
records, the log is lost. A leader with an empty log would make them truncate theirs, and a follower with an
empty log could be elected.

A lost replica gets the error KAFKA_STORAGE_ERROR, like one on a failed disk, so that the controller removes
it from the ISR and elects another member. Then the controller is notified (as in KIP-112) to send the
broker's replicas again, and the replica starts as a follower outside the ISR.

If this broker is the only member of the ISR, the replica starts with an empty log, as in Kafka: no other
replica has the records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Final

from ottla.metadata.cache import MetadataCache
from ottla.protocol.errors import KafkaError, ProtocolError
from ottla.protocol.messages import DescribeLogDirsRequest, DescribeLogDirsResponse
from ottla.protocol.topics import indexes_by_topic
from ottla.replication.manager import ReplicaManager
from ottla.replication.requests import PartitionKey, PartitionState
from ottla.wire.connection import UnsupportedApi
from ottla.wire.inter_broker import InterBrokerClient, Purpose

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S: Final = 5.0
RETRY_S_MIN: Final = 1.0
RETRY_S_MAX: Final = 60.0

_FAILURES = (OSError, TimeoutError, KafkaError, ProtocolError, UnsupportedApi)


class LostLogDetector:
    """See the module."""

    def __init__(
        self,
        replicas: ReplicaManager,
        cache: MetadataCache,
        inter_broker: InterBrokerClient,
        notify_controller: Callable[[], None],
    ) -> None:
        """`notify_controller` makes the controller send all of this broker's replicas again."""
        self._replicas = replicas
        self._cache = cache
        self._inter_broker = inter_broker
        self._notify_controller = notify_controller
        self._refused: set[PartitionKey] = set()
        self._retrying: asyncio.Task[None] | None = None

    async def find(self, missing: Collection[PartitionState]) -> set[PartitionKey]:
        """Which of these in-sync replicas without a log have lost it: another member of the ISR has records,
        or does not respond."""
        by_member: dict[int, list[PartitionKey]] = {}
        for state in missing:
            for member in state.isr:
                if member != self._replicas.broker_id:
                    by_member.setdefault(member, []).append(state.key)
        nonempty = await asyncio.gather(*(self._possibly_nonempty(*item) for item in by_member.items()))
        lost = set().union(*nonempty)
        for topic, partition in sorted(lost):
            log.error(
                "In-sync replica %s-%d is not new and has no log; other in-sync replicas may "
                "have records: rejecting it until the controller has removed it from the ISR",
                topic,
                partition,
            )
        return lost

    async def _possibly_nonempty(self, member: int, keys: list[PartitionKey]) -> set[PartitionKey]:
        """The partitions that have records on another broker, or may have because it does not respond."""
        topic = DescribeLogDirsRequest.DescribableLogDirTopic
        request = DescribeLogDirsRequest(
            topics=[
                topic(topic=name, partitions=partitions)
                for name, partitions in indexes_by_topic(keys).items()
            ]
        )
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                response: DescribeLogDirsResponse = await self._inter_broker.request(
                    member, request, Purpose.DESCRIBE_LOG_DIRS
                )
        except _FAILURES as error:
            log.warning("Cannot ask broker %d for its log sizes: %r", member, error)
            return set(keys)
        results = response.results
        if response.error_code or not results or any(result.error_code for result in results):
            return set(keys)
        return {
            (found.name, row.partition_index)
            for result in results
            for found in result.topics
            for row in found.partitions
            if row.partition_size > 0
        }.intersection(keys)

    def notify_later(self, keys: Iterable[PartitionKey]) -> None:
        """Make the controller send these rejected replicas again, with backoff. Needs a running loop."""
        self._refused.update(keys)
        if self._refused and (self._retrying is None or self._retrying.done()):
            self._retrying = asyncio.get_running_loop().create_task(self._retry())

    async def _retry(self) -> None:
        delay_s = RETRY_S_MIN
        while True:
            await asyncio.sleep(delay_s)
            self._refused = {key for key in self._refused if self._is_wanted(key)}
            if not self._refused:
                return
            self._notify_controller()
            delay_s = min(2 * delay_s, RETRY_S_MAX)

    def _is_wanted(self, key: PartitionKey) -> bool:
        """Whether the replica is assigned to this broker and does not exist yet."""
        known = self._cache.partition(*key)
        return (
            self._replicas.find(*key) is None
            and known is not None
            and self._replicas.broker_id in known.replicas
        )

    async def stop(self) -> None:
        if self._retrying is not None:
            self._retrying.cancel()
            await asyncio.gather(self._retrying, return_exceptions=True)

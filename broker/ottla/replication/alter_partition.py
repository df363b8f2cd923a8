"""Sending of ISR changes to the controller (AlterPartitionManager, KIP-497).

`manager` submits the changes that its partitions propose; `send` sends a request to the current controller.
Invariants: one request is in flight; a partition has at most one change waiting; every response is matched by
partition, and checked there against the proposed change, because the leader may have changed since.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from uuid import UUID

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import AlterPartitionRequest, AlterPartitionResponse
from ottla.protocol.types import ZERO_UUID
from ottla.replication.isr import UNKNOWN_EPOCH, IsrChange
from ottla.replication.partition import Partition
from ottla.replication.requests import PartitionKey

_logger = logging.getLogger(__name__)

RETRY_MS: Final = 50

SendAlterPartition = Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]]
Proposals = Mapping[PartitionKey, tuple[Partition, IsrChange]]


def build_request(broker_id: int, broker_epoch: int, proposals: Proposals) -> AlterPartitionRequest:
    """All proposals in one request, in the format of version 3.

    A follower has the broker epoch of its last fetch (KIP-903), so that the controller rejects a follower
    that has restarted since, maybe without its log. Kafka's controller in ZooKeeper mode ignores it.
    """
    topics: dict[str, AlterPartitionRequest.TopicData] = {}
    for partition, change in proposals.values():
        topic = topics.get(partition.topic)
        if topic is None:
            topic = topics[partition.topic] = AlterPartitionRequest.TopicData(
                topic_name=partition.topic, topic_id=partition.topic_id or ZERO_UUID
            )
        topic.partitions.append(
            AlterPartitionRequest.PartitionData(
                partition_index=partition.partition,
                leader_epoch=change.leader_epoch,
                new_isr_with_epochs=[
                    AlterPartitionRequest.BrokerState(
                        broker_id=broker, broker_epoch=change.broker_epochs.get(broker, UNKNOWN_EPOCH)
                    )
                    for broker in sorted(change.proposed)
                ],
                partition_epoch=change.partition_epoch,
            )
        )
    return AlterPartitionRequest(broker_id=broker_id, broker_epoch=broker_epoch, topics=list(topics.values()))


def highest_version(request: AlterPartitionRequest) -> int:
    """3, or 1 if a topic has no id: from version 2 topics have ids only."""
    return 1 if any(topic.topic_id == ZERO_UUID for topic in request.topics) else 3


def downgrade(request: AlterPartitionRequest, version: int) -> AlterPartitionRequest:
    """The same request in the format of `version`: before 3 the ISR is a list of broker ids."""
    if version >= 3:
        return request
    return AlterPartitionRequest(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        topics=[
            AlterPartitionRequest.TopicData(
                topic_name=topic.topic_name,
                topic_id=topic.topic_id,
                partitions=[
                    AlterPartitionRequest.PartitionData(
                        partition_index=row.partition_index,
                        leader_epoch=row.leader_epoch,
                        new_isr=[member.broker_id for member in row.new_isr_with_epochs],
                        partition_epoch=row.partition_epoch,
                    )
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


class IsrChanges:
    """The numbers of ISR changes, for metrics."""

    def __init__(self) -> None:
        self.shrinks = self.expands = self.failed = 0

    def committed(self, change: IsrChange) -> None:
        self.shrinks += bool(change.committed - change.proposed)
        self.expands += bool(change.proposed - change.committed)


def apply_response(
    proposals: Proposals, response: AlterPartitionResponse, now_ms: int, counts: IsrChanges | None = None
) -> dict[PartitionKey, tuple[Partition, IsrChange]]:
    """Apply the result of each proposal to its partition, and count it. Returns the proposals to retry."""
    retries: dict[PartitionKey, tuple[Partition, IsrChange]] = {}
    if response.error_code != ErrorCode.NONE:
        # For the whole request: the controller moved, or has not seen this broker's registration yet.
        error = ErrorCode.of(response.error_code)
        _logger.info("AlterPartition failed with %s, retrying", error.name)
        return {key: item for key, item in proposals.items() if item[0].isr_change is item[1]}
    names: dict[UUID, str] = {
        item[0].topic_id: key[0] for key, item in proposals.items() if item[0].topic_id is not None
    }
    rows: dict[PartitionKey, AlterPartitionResponse.PartitionData] = {}
    for topic in response.topics:
        name = topic.topic_name or names.get(topic.topic_id, "")
        for row in topic.partitions:
            rows[(name, row.partition_index)] = row
    for key, (partition, change) in proposals.items():
        result = rows.get(key)
        error = ErrorCode.UNKNOWN_SERVER_ERROR if result is None else ErrorCode.of(result.error_code)
        if result is not None and error is ErrorCode.NONE:
            if counts is not None:
                counts.committed(change)
            partition.isr_change_committed(
                change,
                leader_epoch=result.leader_epoch,
                isr=frozenset(result.isr),
                partition_epoch=result.partition_epoch,
                now_ms=now_ms,
            )
        else:
            if counts is not None:
                counts.failed += 1
            if partition.isr_change_failed(change, error, now_ms):
                retries[key] = (partition, change)
    return retries


class AlterPartitionManager:
    """Sends submitted changes, several in a request, until the controller has decided each one."""

    def __init__(
        self,
        broker_id: int,
        broker_epoch: Callable[[], int],
        send: SendAlterPartition,
        clock: Callable[[], int],
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._send_request = send
        self._clock = clock
        self.changes = IsrChanges()
        self._unsent: dict[PartitionKey, tuple[Partition, IsrChange]] = {}
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def submit(self, partition: Partition, change: IsrChange) -> None:
        """Queue `change`; replaces an older one of the same partition. Needs a running loop."""
        self._unsent[partition.key] = (partition, change)
        if self._task is None and not self._stopped:
            self._task = asyncio.get_running_loop().create_task(self._send_all(), name="alter-partition")

    async def stop(self) -> None:
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _send_all(self) -> None:
        try:
            # Other proposals of this iteration of the event loop go into the same request.
            await asyncio.sleep(0)
            while proposals := self._take():
                retries = await self._send(proposals)
                if retries:
                    for key, item in retries.items():
                        self._unsent.setdefault(key, item)
                    await asyncio.sleep(RETRY_MS / 1000)
        finally:
            self._task = None

    def _take(self) -> dict[PartitionKey, tuple[Partition, IsrChange]]:
        proposals, self._unsent = self._unsent, {}
        return {key: item for key, item in proposals.items() if item[0].isr_change is item[1]}

    async def _send(self, proposals: Proposals) -> Proposals:
        request = build_request(self._broker_id, self._broker_epoch(), proposals)
        try:
            return apply_response(proposals, await self._send_request(request), self._clock(), self.changes)
        except (OSError, TimeoutError, KafkaError) as error:
            _logger.info("AlterPartition could not be sent to the controller, retrying: %s", error)
            return proposals
        except Exception:
            # Without a response, the partition's ISR could not change any more in this leader epoch.
            _logger.exception("AlterPartition failed, retrying")
            return proposals

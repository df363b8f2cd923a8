"""DescribeProducers 0 (KIP-664): the producer state of replicas.

Behaviour: any replica responds for its own log, as in Kafka, whose tools send the request to the leader.
Epochs and last sequence numbers are those that the next batch is checked against; the transaction's start
offset is -1 without an open transaction.
"""

from __future__ import annotations

from ottla.metadata.cache import MetadataCache
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import DescribeProducersRequest, DescribeProducersResponse
from ottla.protocol.topics import is_legal_topic_name
from ottla.replication.manager import ReplicaManager
from ottla.server.dispatch.dispatcher import Request, Route

Topic = DescribeProducersResponse.TopicResponse
Partition = DescribeProducersResponse.PartitionResponse
_NO_TRANSACTION = -1


class DescribeProducersHandler:
    def __init__(self, replicas: ReplicaManager, cache: MetadataCache) -> None:
        self._replicas = replicas
        self._cache = cache

    def routes(self) -> list[Route]:
        return [Route(DescribeProducersRequest, self.handle, _error)]

    def handle(self, request: Request) -> None:
        message = request.decode(DescribeProducersRequest)
        topics = [
            Topic(name=t.name, partitions=[self._describe(t.name, index) for index in t.partition_indexes])
            for t in message.topics
        ]
        request.respond(DescribeProducersResponse(topics=topics))

    def _describe(self, topic: str, index: int) -> Partition:
        if not is_legal_topic_name(topic):
            code = ErrorCode.INVALID_TOPIC_EXCEPTION
            return Partition(
                partition_index=index, error_code=code, error_message=f"{topic!r} is not a legal topic name"
            )
        try:
            log = self._replicas.partition(topic, index).log
        except KafkaError as error:
            return Partition(partition_index=index, error_code=error.code)
        return Partition(
            partition_index=index,
            active_producers=[
                DescribeProducersResponse.ProducerState(
                    producer_id=producer_id,
                    producer_epoch=entry.epoch,
                    last_sequence=entry.last_sequence,
                    last_timestamp=entry.last_timestamp,
                    coordinator_epoch=entry.coordinator_epoch,
                    current_txn_start_offset=(
                        _NO_TRANSACTION if entry.transaction_start is None else entry.transaction_start
                    ),
                )
                for producer_id, entry in log.producers.entries().items()
            ],
        )


def _error(
    message: DescribeProducersRequest, version: int, code: ErrorCode, detail: str | None
) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            Topic(
                name=t.name,
                partitions=[
                    Partition(partition_index=index, error_code=code, error_message=detail)
                    for index in t.partition_indexes
                ],
            )
            for t in message.topics
        ]
    )

"""Requests of transactional producers, for scenarios with a `RequestRecorder`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ottla.protocol import messages as m
from ottla.protocol.records import Record, build_batch
from tests.judges.request_recorder import RequestRecorder, until

RETRIABLE = {14, 15, 16, 51, 79}
"""Loading, not available, not (yet) the coordinator; concurrent transactions; unknown leader."""
PRODUCER = ("producer_id",)
"""Numbers that brokers give out."""


class Producer(NamedTuple):
    transactional_id: str
    id: int
    epoch: int


def init(
    transactional_id: str | None,
    *,
    timeout_ms: int = 600_000,
    producer_id: int = -1,
    epoch: int = -1,
) -> m.InitProducerIdRequest:
    return m.InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
    )


async def initialized(recorder: RequestRecorder, transactional_id: str) -> Producer:
    """Initializes the producer, with retries while the coordinator returns a retriable error."""
    while True:
        answer = await recorder.send("anna", init(transactional_id), 4)
        if answer.error_code == 0:
            return Producer(transactional_id, answer.producer_id, answer.producer_epoch)
        assert answer.error_code in RETRIABLE, answer
        await asyncio.sleep(0.05)


async def wait_for_transaction_coordinator(recorder: RequestRecorder) -> None:
    """Waits until all partitions of `__transaction_state` have leaders."""

    async def found() -> bool:
        keys = [f"id{number}" for number in range(20)]
        answer = await recorder.send("anna", m.FindCoordinatorRequest(key_type=1, coordinator_keys=keys), 4)
        return all(each.error_code == 0 for each in answer.coordinators)

    await until(found)
    for number in range(20):
        await initialized(recorder, f"id{number}")


def _topics(
    partitions: Mapping[str, Sequence[int]],
) -> list[m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]:
    topic = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return [topic(name=name, partitions=list(indexes)) for name, indexes in partitions.items()]


def add(producer: Producer, partitions: Mapping[str, Sequence[int]]) -> m.AddPartitionsToTxnRequest:
    """AddPartitionsToTxn as clients send it: versions 0 to 3."""
    return m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=producer.transactional_id,
        v3_and_below_producer_id=producer.id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=_topics(partitions),
    )


def add_many(
    *wanted: tuple[Producer, Mapping[str, Sequence[int]]], verify_only: bool
) -> m.AddPartitionsToTxnRequest:
    """AddPartitionsToTxn as brokers send it: versions 4 and 5."""
    return m.AddPartitionsToTxnRequest(
        transactions=[
            m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                transactional_id=producer.transactional_id,
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                verify_only=verify_only,
                topics=_topics(partitions),
            )
            for producer, partitions in wanted
        ]
    )


def add_offsets(producer: Producer, group: str) -> m.AddOffsetsToTxnRequest:
    return m.AddOffsetsToTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        group_id=group,
    )


def end(producer: Producer, *, commit: bool) -> m.EndTxnRequest:
    return m.EndTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        committed=commit,
    )


def batch(producer: Producer, sequence: int, *values: bytes, transactional: bool = True) -> bytes:
    return build_batch(
        [Record(n, 1_700_000_000_000 + n, None, value) for n, value in enumerate(values)],
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


def produce(transactional_id: str | None, topic: str, records: Mapping[int, bytes]) -> m.ProduceRequest:
    parts = [
        m.ProduceRequest.PartitionProduceData(index=index, records=data) for index, data in records.items()
    ]
    return m.ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[m.ProduceRequest.TopicProduceData(name=topic, partition_data=parts)],
    )


def commit_offset(
    producer: Producer,
    group: str,
    offset: int,
    *,
    topic: str = "t",
    partition: int = 0,
    metadata: str | None = "",
    generation: int = -1,
    member: str = "",
) -> m.TxnOffsetCommitRequest:
    part = m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata=metadata
    )
    return m.TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=group,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        generation_id=generation,
        member_id=member,
        topics=[m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=topic, partitions=[part])],
    )


def marker(
    producer: Producer, partitions: Mapping[str, Sequence[int]], *, commit: bool, coordinator_epoch: int = 0
) -> m.WriteTxnMarkersRequest:
    topic = m.WriteTxnMarkersRequest.WritableTxnMarkerTopic
    topics = [topic(name=name, partition_indexes=list(indexes)) for name, indexes in partitions.items()]
    return m.WriteTxnMarkersRequest(
        markers=[
            m.WriteTxnMarkersRequest.WritableTxnMarker(
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                transaction_result=commit,
                topics=topics,
                coordinator_epoch=coordinator_epoch,
            )
        ]
    )


async def wait_for_state(recorder: RequestRecorder, transactional_id: str, *states: str) -> None:
    async def reached() -> bool:
        request = m.DescribeTransactionsRequest(transactional_ids=[transactional_id])
        answer = await recorder.send("watcher", request, 0)
        return answer.transaction_states[0].transaction_state in states

    await until(reached)


async def wait_for_stable_offset(recorder: RequestRecorder, topic: str, partition: int, offset: int) -> None:
    """Waits until the last stable offset is at least this."""
    part = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=-1)
    row = m.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[part])

    async def reached() -> bool:
        answer = await recorder.send("watcher", m.ListOffsetsRequest(isolation_level=1, topics=[row]), 7)
        found: int = answer.topics[0].partitions[0].offset
        return found >= offset

    await until(reached)

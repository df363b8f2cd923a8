"""Transactions and producers (KIP-588, KIP-664, KIP-994): describe, list, abort hanging ones, fence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ottla.client.admin.fan_out import COORDINATOR, LEADER
from ottla.client.admin.network import (
    TRANSACTION,
    AdminNetwork,
    by_topic,
    each_partition,
    outcome,
    raise_error,
)
from ottla.client.admin_types import (
    Node,
    Partitions,
    ProducerIdAndEpoch,
    ProducerState,
    Results,
    TopicPartition,
    TransactionDescription,
    TransactionListing,
)
from ottla.client.errors import ClientError
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode

_FENCE_RETRIABLE: Final = COORDINATOR | {ErrorCode.CONCURRENT_TRANSACTIONS}
_ABORT_RETRIABLE: Final = LEADER | {ErrorCode.BROKER_NOT_AVAILABLE}


async def describe_producers(
    network: AdminNetwork, partitions: Partitions, *, broker: int | None = None
) -> Results[TopicPartition, tuple[ProducerState, ...]]:
    """The producer states of partitions on their leaders, or on the given replica."""
    row = m.DescribeProducersRequest.TopicRequest
    wanted = each_partition(partitions)

    async def ask(
        node: Node, share: list[TopicPartition]
    ) -> dict[TopicPartition, tuple[ProducerState, ...] | ClientError]:
        topics = [row(name=t, partition_indexes=p) for t, p in by_topic(share).items()]
        response = await network.send_to(node, m.DescribeProducersRequest(topics=topics))
        return {
            tp: outcome(p.error_code, p.error_message, tp) or tuple(map(_producer, p.active_producers))
            for t in response.topics
            for p in t.partitions
            for tp in [TopicPartition(t.name, p.partition_index)]
        }

    if broker is None:
        return await network.by_node(wanted, network.leaders, ask, LEADER)

    async def find(keys: Any) -> dict[TopicPartition, Node | ClientError]:
        return dict.fromkeys(keys, (await network.nodes([broker]))[broker])

    return await network.by_node(wanted, find, ask, LEADER - {ErrorCode.NOT_LEADER_OR_FOLLOWER})


async def describe_transactions(
    network: AdminNetwork, transactional_ids: Iterable[str]
) -> Results[str, TransactionDescription]:
    """The transactions of transactional ids, from their coordinators."""

    async def ask(node: Node, share: list[str]) -> dict[str, TransactionDescription | ClientError]:
        response = await network.send_to(node, m.DescribeTransactionsRequest(transactional_ids=share))
        return {
            row.transactional_id: outcome(row.error_code, None, row.transactional_id)
            or TransactionDescription(
                node,
                row.transaction_state,
                row.producer_id,
                row.producer_epoch,
                row.transaction_timeout_ms,
                row.transaction_start_time_ms,
                tuple(TopicPartition(t.topic, p) for t in row.topics for p in t.partitions),
            )
            for row in response.transaction_states
        }

    return await network.by_node(transactional_ids, network.coordinators(TRANSACTION), ask, COORDINATOR)


async def list_transactions(
    network: AdminNetwork,
    *,
    states: Iterable[str] = (),
    producer_ids: Iterable[int] = (),
    running_longer_than_ms: int | None = None,
) -> Results[int, tuple[TransactionListing, ...]]:
    """The transactional ids by the broker that coordinates them, optionally filtered."""
    request = m.ListTransactionsRequest(
        state_filters=list(states),
        producer_id_filters=list(producer_ids),
        duration_filter=-1 if running_longer_than_ms is None else running_longer_than_ms,
    )

    async def ask(node: Node) -> tuple[TransactionListing, ...]:
        response = await network.send_to(node, request)
        raise_error(response.error_code)
        return tuple(
            TransactionListing(row.transactional_id, row.producer_id, row.transaction_state)
            for row in response.transaction_states
        )

    return await network.at_brokers(None, ask)


async def abort_transaction(
    network: AdminNetwork,
    partition: tuple[str, int],
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
) -> None:
    """Abort a hanging transaction in one partition, with the numbers from `describe_producers`. Raises
    KafkaError."""
    request = m.WriteTxnMarkersRequest
    where = TopicPartition(*partition)
    topic = request.WritableTxnMarkerTopic(name=where.topic, partition_indexes=[where.partition])
    marker = request.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=coordinator_epoch,
        transaction_result=False,
        topics=[topic],
    )

    async def ask(node: Node, share: list[TopicPartition]) -> dict[TopicPartition, ClientError | None]:
        response = await network.send_to(node, request(markers=[marker]))
        return {
            tp: outcome(p.error_code, None, tp)
            for row in response.markers
            for t in row.topics
            for p in t.partitions
            for tp in [TopicPartition(t.name, p.partition_index)]
        }

    (await network.by_node([where], network.leaders, ask, _ABORT_RETRIABLE)).raise_first()


async def fence_producers(
    network: AdminNetwork, transactional_ids: Iterable[str]
) -> Results[str, ProducerIdAndEpoch]:
    """Fence the active producers of these transactional ids, and abort their transactions."""

    async def ask(node: Node, share: list[str]) -> dict[str, ProducerIdAndEpoch | ClientError]:
        found: dict[str, ProducerIdAndEpoch | ClientError] = {}
        for name in share:
            request = m.InitProducerIdRequest(
                transactional_id=name, transaction_timeout_ms=network.timeout_ms
            )
            response = await network.send_to(node, request)
            found[name] = outcome(response.error_code, None, name) or ProducerIdAndEpoch(
                response.producer_id, response.producer_epoch
            )
        return found

    return await network.by_node(transactional_ids, network.coordinators(TRANSACTION), ask, _FENCE_RETRIABLE)


def _producer(row: m.DescribeProducersResponse.ProducerState) -> ProducerState:
    return ProducerState(
        row.producer_id,
        row.producer_epoch,
        row.last_sequence,
        row.last_timestamp,
        row.coordinator_epoch,
        row.current_txn_start_offset,
    )

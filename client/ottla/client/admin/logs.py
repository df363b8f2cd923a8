"""Offsets of logs (KIP-79, KIP-734), and deletion of records (KIP-107)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, Final

from ottla.client import errors
from ottla.client.admin.fan_out import LEADER
from ottla.client.admin.network import AdminNetwork, by_partition, each_partition, outcome
from ottla.client.admin_types import (
    ByPartition,
    ListedOffset,
    Node,
    OffsetSpec,
    Partitions,
    Results,
    TopicPartition,
)
from ottla.client.core.consumer_config import ISOLATION_LEVELS
from ottla.client.errors import ClientError
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode

_VERSION_OF: Final = {
    OffsetSpec.MAX_TIMESTAMP: 7,
    OffsetSpec.EARLIEST_LOCAL: 8,
    OffsetSpec.LATEST_TIERED: 9,
}
"""The first version of ListOffsets that supports the spec."""
_OFFSETS_RETRIABLE: Final = LEADER | {ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.UNKNOWN_LEADER_EPOCH}
_DELETE_RETRIABLE: Final = LEADER | {ErrorCode.REQUEST_TIMED_OUT}


async def list_offsets(
    network: AdminNetwork,
    specs: ByPartition[OffsetSpec | int],
    *,
    isolation_level: str = "read_uncommitted",
) -> Results[TopicPartition, ListedOffset]:
    """The offset of each partition for an `OffsetSpec` or a timestamp in ms. With read_committed, LATEST is
    the last stable offset."""
    return await _offsets(network, by_partition(specs), ISOLATION_LEVELS[isolation_level], _OFFSETS_RETRIABLE)


async def _offsets(
    network: AdminNetwork,
    specs: Mapping[TopicPartition, OffsetSpec | int],
    isolation: int,
    retriable: Collection[ErrorCode],
) -> Results[TopicPartition, ListedOffset]:
    request = m.ListOffsetsRequest

    async def ask(
        node: Node, share: list[TopicPartition]
    ) -> dict[TopicPartition, ListedOffset | ClientError]:
        rows: defaultdict[str, list[Any]] = defaultdict(list)
        for tp in share:
            row = request.ListOffsetsPartition(partition_index=tp.partition, timestamp=int(specs[tp]))
            rows[tp.topic].append(row)
        needed = max(_VERSION_OF.get(OffsetSpec(specs[tp]), 0) if specs[tp] < 0 else 0 for tp in share)
        if needed:
            await _require_version(network, node, request.api_key, needed)
        topics = [request.ListOffsetsTopic(name=t, partitions=p) for t, p in rows.items()]
        response = await network.send_to(
            node, request(replica_id=-1, isolation_level=isolation, topics=topics)
        )
        return {
            tp: outcome(p.error_code, None, tp) or ListedOffset(p.offset, p.timestamp, p.leader_epoch)
            for t in response.topics
            for p in t.partitions
            for tp in [TopicPartition(t.name, p.partition_index)]
        }

    return await network.by_node(specs, network.leaders, ask, retriable)


async def _require_version(network: AdminNetwork, node: Node, api_key: int, version: int) -> None:
    served = await network.version_of(node, api_key)
    if served < version:
        raise errors.UnsupportedVersionError(f"broker {node.id} does not support this OffsetSpec")


async def delete_records(network: AdminNetwork, before: ByPartition[int]) -> Results[TopicPartition, int]:
    """Delete the records before an offset (-1: all records); returns the new log start offsets."""
    request = m.DeleteRecordsRequest
    wanted = by_partition(before)

    async def ask(node: Node, share: list[TopicPartition]) -> dict[TopicPartition, int | ClientError]:
        rows: defaultdict[str, list[Any]] = defaultdict(list)
        for tp in share:
            row = request.DeleteRecordsPartition(partition_index=tp.partition, offset=wanted[tp])
            rows[tp.topic].append(row)
        topics = [request.DeleteRecordsTopic(name=t, partitions=p) for t, p in rows.items()]
        response = await network.send_to(node, request(timeout_ms=network.timeout_ms, topics=topics))
        return {
            tp: p.low_watermark if error is None else error
            for t in response.topics
            for p in t.partitions
            for tp in [TopicPartition(t.name, p.partition_index)]
            for error in [outcome(p.error_code, None, tp)]
        }

    return await network.by_node(wanted, network.leaders, ask, _DELETE_RETRIABLE)


# --- offsets of one kind, without retries ---


async def end_offsets(network: AdminNetwork, partitions: Partitions) -> dict[TopicPartition, int]:
    """The high watermarks; partitions without a leader are not in the result."""
    return await _offsets_without_retry(network, partitions, OffsetSpec.LATEST)


async def start_offsets(network: AdminNetwork, partitions: Partitions) -> dict[TopicPartition, int]:
    """The log start offsets; partitions without a leader are not in the result."""
    return await _offsets_without_retry(network, partitions, OffsetSpec.EARLIEST)


async def offsets_for_time(
    network: AdminNetwork, partitions: Partitions, timestamp_ms: int
) -> dict[TopicPartition, int]:
    """The first offset with this timestamp or a later one; partitions without one are not in the result."""
    return await _offsets_without_retry(network, partitions, timestamp_ms)


async def _offsets_without_retry(
    network: AdminNetwork, partitions: Partitions, spec: OffsetSpec | int
) -> dict[TopicPartition, int]:
    found = await _offsets(
        network, dict.fromkeys(each_partition(partitions), spec), isolation=0, retriable=()
    )
    return {tp: listed.offset for tp, listed in found.items() if listed.offset >= 0}

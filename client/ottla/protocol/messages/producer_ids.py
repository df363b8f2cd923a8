"""The ids that make producers idempotent."""

from __future__ import annotations

from ottla.protocol.types import Int16, Int32, Int64, Message, String, field


class InitProducerIdRequest(Message, api_key=22, versions="0-5", flexible="2+"):
    """A producer id; with a transactional id, the one it owns, at a higher epoch."""

    transactional_id: String | None = field("0+", nullable="0+")
    transaction_timeout_ms: Int32 = field("0+")
    producer_id: Int64 = field("3+", default=-1)
    producer_epoch: Int16 = field("3+", default=-1)


class InitProducerIdResponse(Message, api_key=22, versions="0-5", flexible="2+"):
    """The id and epoch to stamp batches with."""

    throttle_time_ms: Int32 = field("0+", ignorable=True)
    error_code: Int16 = field("0+")
    producer_id: Int64 = field("0+", default=-1)
    producer_epoch: Int16 = field("0+")


class AllocateProducerIdsRequest(Message, api_key=67, versions="0", flexible="0+"):
    """A broker asks the controller for a block of producer ids (KIP-730)."""

    broker_id: Int32 = field("0+")
    broker_epoch: Int64 = field("0+", default=-1)


class AllocateProducerIdsResponse(Message, api_key=67, versions="0", flexible="0+"):
    """The block: its first id, and how many."""

    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    producer_id_start: Int64 = field("0+")
    producer_id_len: Int32 = field("0+")

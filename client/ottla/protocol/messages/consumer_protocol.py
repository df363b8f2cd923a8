"""What consumers of a classic group tell each other through the coordinator: an int16 version, then these."""

from __future__ import annotations

from ottla.protocol.types import Bytes, Int32, Message, String, Struct, field


class ConsumerProtocolSubscription(Message, versions="0-3"):
    """What a member wants to read, and what it owned until now (KIP-429)."""

    class TopicPartition(Struct):
        topic: String = field("1+")
        partitions: list[Int32] = field("1+")

    topics: list[String] = field("0+")
    user_data: Bytes | None = field("0+", nullable="0+", default=None)
    owned_partitions: list[ConsumerProtocolSubscription.TopicPartition] = field("1+", ignorable=True)
    generation_id: Int32 = field("2+", default=-1, ignorable=True)
    rack_id: String | None = field("3+", nullable="3+", default=None, ignorable=True)


class ConsumerProtocolAssignment(Message, versions="0-3"):
    """The partitions that the leader of the group gave to a member."""

    class TopicPartition(Struct):
        topic: String = field("0+")
        partitions: list[Int32] = field("0+")

    assigned_partitions: list[ConsumerProtocolAssignment.TopicPartition] = field("0+")
    user_data: Bytes | None = field("0+", nullable="0+", default=None)

"""The records of `__consumer_offsets` in Kafka's format.

A key is an int16 version and a struct; the version is also the type of the record: 0 and 1 are offsets, 2 is
a group. A value is an int16 version and a struct; a record without a value is a tombstone. Records are
written in the versions of Kafka 3.9 in ZooKeeper mode, older and newer versions are read. Called by
`membership` and `coordinator` to write, by `replay` to read.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from ottla.coordinators.group import Group, GroupState, Member
from ottla.coordinators.offsets import CommittedOffset, TopicPartition
from ottla.protocol.codec import decode, encode
from ottla.protocol.errors import MalformedMessage
from ottla.protocol.java_hash import absolute, string_hash
from ottla.protocol.types import Bytes, Int32, Int64, Message, String, Struct, field

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
OFFSET_VALUE_VERSION = 3
OFFSET_VALUE_VERSION_WITH_EXPIRY = 1
"""The only version with an expiry time."""
GROUP_VALUE_VERSION = 3

_VERSION = struct.Struct(">h")
_VERSION_AND_LENGTH = struct.Struct(">hh")
_BARE_OFFSET = struct.Struct(">hqihq")
"""An OffsetCommitValue of version 3 with empty metadata, the common case."""


class OffsetCommitKey(Message, versions="0-1"):
    group: String = field("0-1")
    topic: String = field("0-1")
    partition: Int32 = field("0-1")


class OffsetCommitValue(Message, versions="0-4", flexible="4+"):
    offset: Int64 = field("0+")
    leader_epoch: Int32 = field("3+", default=-1, ignorable=True)
    metadata: String = field("0+")
    commit_timestamp: Int64 = field("0+")
    expire_timestamp: Int64 = field("1", default=-1, ignorable=True)


class GroupMetadataKey(Message, versions="2"):
    group: String = field("2")


class GroupMetadataValue(Message, versions="0-4", flexible="4+"):
    class MemberMetadata(Struct):
        member_id: String = field("0+")
        group_instance_id: String | None = field("3+", nullable="3+", default=None, ignorable=True)
        client_id: String = field("0+")
        client_host: String = field("0+")
        rebalance_timeout: Int32 = field("1+", default=-1, ignorable=True)
        session_timeout: Int32 = field("0+")
        subscription: Bytes = field("0+")
        assignment: Bytes = field("0+")

    protocol_type: String = field("0+")
    generation: Int32 = field("0+")
    protocol: String | None = field("0+", nullable="0+")
    leader: String | None = field("0+", nullable="0+")
    current_state_timestamp: Int64 = field("2+", default=-1, ignorable=True)
    members: list[GroupMetadataValue.MemberMetadata] = field("0+")


class OffsetRecordKey(NamedTuple):
    group_id: str
    partition: TopicPartition


class GroupRecordKey(NamedTuple):
    group_id: str


RecordKey: TypeAlias = OffsetRecordKey | GroupRecordKey


def partition_for(group_id: str, partitions: int) -> int:
    """The partition of `__consumer_offsets` of a group."""
    return absolute(string_hash(group_id)) % partitions


# -- writing ---------------------------------------------------------------------------------------------


def _versioned(message: Message, version: int) -> bytes:
    return _VERSION.pack(version) + encode(message, version)


def offset_key(group_id: str, partition: TopicPartition) -> bytes:
    key = OffsetCommitKey(group=group_id, topic=partition[0], partition=partition[1])
    return _versioned(key, OFFSET_KEY_VERSION)


def offset_value(offset: CommittedOffset) -> bytes:
    with_expiry = offset.expire_timestamp_ms is not None
    value = OffsetCommitValue(
        offset=offset.offset,
        leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        commit_timestamp=offset.commit_timestamp_ms,
        expire_timestamp=-1 if offset.expire_timestamp_ms is None else offset.expire_timestamp_ms,
    )
    return _versioned(value, OFFSET_VALUE_VERSION_WITH_EXPIRY if with_expiry else OFFSET_VALUE_VERSION)


def offset_entries(
    group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
) -> list[tuple[bytes, bytes]]:
    """Key and value of the record of each offset."""
    return [(offset_key(group_id, key), offset_value(offset)) for key, offset in offsets.items()]


def group_key(group_id: str) -> bytes:
    return _versioned(GroupMetadataKey(group=group_id), GROUP_KEY_VERSION)


def group_value_bytes(value: GroupMetadataValue) -> bytes:
    return _versioned(value, GROUP_VALUE_VERSION)


def group_value(group: Group, assignment: dict[str, bytes]) -> GroupMetadataValue:
    """The record of the group's current state, with the members' new assignment."""
    return GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol_name,
        leader=group.leader_id,
        current_state_timestamp=-1 if group.state_since_ms is None else group.state_since_ms,
        members=[
            GroupMetadataValue.MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata_for(group.protocol_name),
                assignment=assignment.get(member.member_id, b""),
            )
            for member in group.members.values()
        ],
    )


# -- reading ---------------------------------------------------------------------------------------------


def parse_key(key: bytes) -> RecordKey | None:
    """The parsed key; None for unknown record types. Raises MalformedMessage."""
    if len(key) < _VERSION.size:
        raise MalformedMessage("record key in __consumer_offsets", "it is shorter than its version")
    (version,) = _VERSION.unpack_from(key)
    if OffsetCommitKey.min_version <= version <= OffsetCommitKey.max_version:
        commit = decode(OffsetCommitKey, version, key, _VERSION.size)
        return OffsetRecordKey(commit.group, (commit.topic, commit.partition))
    if version == GROUP_KEY_VERSION:
        return GroupRecordKey(decode(GroupMetadataKey, version, key, _VERSION.size).group)
    return None


def key_schema(version: int) -> type[Message] | None:
    """The schema of keys with this version; None for unknown record types."""
    if OffsetCommitKey.min_version <= version <= OffsetCommitKey.max_version:
        return OffsetCommitKey
    return GroupMetadataKey if version == GROUP_KEY_VERSION else None


def value_schema(key: Message) -> type[Message]:
    """The schema of the value that belongs to a key."""
    return OffsetCommitValue if isinstance(key, OffsetCommitKey) else GroupMetadataValue


def split_offset_key(key: bytes) -> tuple[bytes, bytes] | None:
    """The bytes of an offset's key up to the group id, and the rest; None for other keys and malformed ones.

    Both parts repeat in a log, so that `replay` parses each of them once.
    """
    if len(key) < _VERSION_AND_LENGTH.size:
        return None
    version, length = _VERSION_AND_LENGTH.unpack_from(key)
    end = _VERSION_AND_LENGTH.size + length
    if not 0 <= version <= OFFSET_KEY_VERSION or not _VERSION_AND_LENGTH.size <= end < len(key):
        return None
    return key[:end], key[end:]


def parse_offset_value(value: bytes) -> CommittedOffset:
    if len(value) == _BARE_OFFSET.size:
        version, offset, leader_epoch, length, timestamp = _BARE_OFFSET.unpack(value)
        if version == OFFSET_VALUE_VERSION and length == 0:
            return CommittedOffset(offset, leader_epoch, "", timestamp)
    version = _value_version(value, OffsetCommitValue)
    commit = decode(OffsetCommitValue, version, value, _VERSION.size)
    return CommittedOffset(
        commit.offset,
        commit.leader_epoch,
        commit.metadata,
        commit.commit_timestamp,
        None if commit.expire_timestamp == -1 else commit.expire_timestamp,
    )


def parse_group_value(group_id: str, value: bytes) -> Group:
    version = _value_version(value, GroupMetadataValue)
    stored = decode(GroupMetadataValue, version, value, _VERSION.size)
    group = Group(group_id, GroupState.STABLE if stored.members else GroupState.EMPTY)
    since = stored.current_state_timestamp
    group.state_since_ms = None if since == -1 else since
    group.generation = stored.generation
    group.protocol_type = stored.protocol_type or None
    group.protocol_name = stored.protocol
    group.leader_id = stored.leader
    for item in stored.members:
        rebalance_timeout = item.session_timeout if version == 0 else item.rebalance_timeout
        member = Member(
            member_id=item.member_id,
            instance_id=item.group_instance_id,
            client_id=item.client_id,
            client_host=item.client_host,
            rebalance_timeout_ms=rebalance_timeout,
            session_timeout_ms=item.session_timeout,
            protocols=((stored.protocol or "", bytes(item.subscription)),),
            assignment=bytes(item.assignment),
        )
        group.add(member, stored.protocol_type)
    group.refresh_subscribed_topics()
    return group


def _value_version(value: bytes, schema: type[Message]) -> int:
    if len(value) < _VERSION.size:
        raise MalformedMessage(schema.__name__, "it is shorter than its version")
    version: int = _VERSION.unpack_from(value)[0]
    if not schema.min_version <= version <= schema.max_version:
        raise MalformedMessage(schema.__name__, f"version {version}; this broker reads 0 to 4")
    return version

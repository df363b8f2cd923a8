"""The records of `__consumer_offsets`, byte for byte, and which partition a group belongs to."""

from __future__ import annotations

import struct

import pytest

from ottla.coordinators import records
from ottla.coordinators.group import Group, GroupState, Member, parse_subscription
from ottla.coordinators.offsets import CommittedOffset
from ottla.protocol.codec import encode
from ottla.protocol.errors import MalformedMessage


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def test_the_key_of_an_offset_has_kafkas_bytes() -> None:
    key = records.offset_key("grp", ("topic", 7))
    assert key == b"\x00\x01" + text("grp") + text("topic") + struct.pack(">i", 7)
    assert records.parse_key(key) == records.OffsetRecordKey("grp", ("topic", 7))
    assert records.parse_key(b"\x00\x00" + key[2:]) == records.OffsetRecordKey("grp", ("topic", 7))


def test_the_key_of_a_group_has_kafkas_bytes() -> None:
    key = records.group_key("grp")
    assert key == b"\x00\x02" + text("grp")
    assert records.parse_key(key) == records.GroupRecordKey("grp")


def test_keys_of_the_new_group_coordinator_are_ignored() -> None:
    assert records.parse_key(b"\x00\x03" + text("grp")) is None
    with pytest.raises(MalformedMessage):
        records.parse_key(b"\x00\x01" + text("grp"))


def test_an_offset_is_written_as_version_3() -> None:
    offset = CommittedOffset(12, 3, "meta", 1_000)
    value = records.offset_value(offset)
    assert value == b"\x00\x03" + struct.pack(">qi", 12, 3) + text("meta") + struct.pack(">q", 1_000)
    assert records.parse_offset_value(value) == offset


def test_an_offset_with_its_own_expiry_is_written_as_version_1() -> None:
    offset = CommittedOffset(12, 3, "meta", 1_000, 2_000)
    value = records.offset_value(offset)
    assert value == b"\x00\x01" + struct.pack(">q", 12) + text("meta") + struct.pack(">qq", 1_000, 2_000)
    assert records.parse_offset_value(value) == CommittedOffset(12, -1, "meta", 1_000, 2_000)


@pytest.mark.parametrize("version", [0, 2, 4])
def test_offsets_of_other_versions_are_read(version: int) -> None:
    value = records.OffsetCommitValue(offset=12, metadata="m", commit_timestamp=5)
    stored = struct.pack(">h", version) + encode(value, version)
    assert records.parse_offset_value(stored) == CommittedOffset(12, -1, "m", 5)


def a_group() -> Group:
    group = Group("grp")
    group.add(Member("m-1", "i-1", "c", "/127.0.0.1", 60_000, 10_000, (("range", b"sub"),)), "consumer")
    group.generation, group.protocol_name = 4, "range"
    group.state, group.state_since_ms = GroupState.STABLE, 99
    return group


def test_a_group_is_written_as_version_3() -> None:
    value = records.group_value_bytes(records.group_value(a_group(), {"m-1": b"share"}))
    assert value == (
        b"\x00\x03"
        + text("consumer")
        + struct.pack(">i", 4)
        + text("range")
        + text("m-1")
        + struct.pack(">qi", 99, 1)
        + (text("m-1") + text("i-1") + text("c") + text("/127.0.0.1"))
        + struct.pack(">ii", 60_000, 10_000)
        + (struct.pack(">i", 3) + b"sub" + struct.pack(">i", 5) + b"share")
    )
    loaded = records.parse_group_value("grp", value)
    assert (loaded.state, loaded.generation, loaded.protocol_name) == (GroupState.STABLE, 4, "range")
    assert (loaded.leader_id, loaded.static_members, loaded.state_since_ms) == ("m-1", {"i-1": "m-1"}, 99)
    assert loaded.members["m-1"].assignment == b"share"
    assert loaded.members["m-1"].protocols == (("range", b"sub"),)


def test_an_empty_group_has_neither_protocol_nor_leader() -> None:
    group = Group("grp")
    group.generation, group.protocol_type = 5, "consumer"
    value = records.group_value_bytes(records.group_value(group, {}))
    null = b"\xff\xff"
    assert value == (
        b"\x00\x03" + text("consumer") + struct.pack(">i", 5) + null + null + struct.pack(">qi", -1, 0)
    )
    loaded = records.parse_group_value("grp", value)
    assert (loaded.state, loaded.protocol_type, loaded.state_since_ms) == (GroupState.EMPTY, "consumer", None)


def test_version_0_had_one_timeout_for_both() -> None:
    stored = b"\x00\x00" + encode(records.group_value(a_group(), {}), 0)
    member = records.parse_group_value("grp", stored).members["m-1"]
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (10_000, 10_000)
    assert member.instance_id is None


def test_values_of_unknown_versions_are_refused() -> None:
    for parse in (records.parse_offset_value, lambda value: records.parse_group_value("g", value)):
        with pytest.raises(MalformedMessage, match="version 5"):
            parse(b"\x00\x05abc")


@pytest.mark.parametrize(
    ("group", "java_hash"),
    [
        ("", 0),
        ("console-consumer-1", 35782224),
        ("polygenelubricants", -(2**31)),
        ("my-group", -1906497762),
        ("é😀", 1996812),
    ],
)
def test_a_groups_partition_is_that_of_javas_hash(group: str, java_hash: int) -> None:
    expected = 0 if java_hash == -(2**31) else abs(java_hash)
    assert records.partition_for(group, 50) == expected % 50
    assert records.partition_for(group, 10**10) == expected


def test_a_subscription_with_a_wrong_length_is_refused() -> None:
    whole = struct.pack(">hi", 0, 2) + text("one") + text("two")
    assert parse_subscription(whole) == ["one", "two"]
    for cut in range(len(whole)):
        with pytest.raises((struct.error, ValueError)):
            parse_subscription(whole[:cut])

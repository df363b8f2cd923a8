"""Decoding of any bytes ends at once with a message or with MalformedMessage and its position."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.codec import decode, decode_from, decode_steps, encode
from ottla.protocol.errors import MalformedMessage
from ottla.protocol.messages import (
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    ListOffsetsRequest,
    MetadataRequest,
    ProduceRequest,
)
from ottla.protocol.types import Message
from tests.protocol_samples import CASES, RandomChoices, build, case_id
from tests.worlds.traced_memory import peak_of


@pytest.mark.parametrize(("cls", "version"), CASES, ids=case_id)
def test_every_truncation_is_detected(cls: type[Message], version: int) -> None:
    encoded = max((encode(build(cls, version, RandomChoices(seed)), version) for seed in range(5)), key=len)
    cuts = range(len(encoded)) if len(encoded) < 80 else random.Random(1).sample(range(len(encoded)), 80)
    for length in cuts:
        with pytest.raises(MalformedMessage):
            decode(cls, version, encoded[:length])


@pytest.mark.parametrize(("cls", "version"), CASES, ids=case_id)
def test_flipped_bytes_raise_only_malformed_message(cls: type[Message], version: int) -> None:
    generator = random.Random(2)
    encoded = encode(build(cls, version, RandomChoices(3)), version)
    for _ in range(40):
        damaged = bytearray(encoded)
        for _ in range(generator.randint(1, 3)):
            if damaged:
                damaged[generator.randrange(len(damaged))] = generator.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF))
        try:
            _, end = decode_from(cls, version, damaged)
        except MalformedMessage:
            with pytest.raises(MalformedMessage):
                list(decode_steps(cls, version, damaged))
            continue
        assert end <= len(damaged)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(CASES), st.binary(max_size=400))
def test_random_bytes_raise_only_malformed_message(case: tuple[type[Message], int], noise: bytes) -> None:
    cls, version = case
    try:
        _, end = decode_from(cls, version, noise)
    except MalformedMessage:
        return
    assert end <= len(noise)


def test_the_error_names_the_field_and_the_place() -> None:
    encoded = encode(HeartbeatRequest(group_id="g", generation_id=1, member_id="member"), 0)
    with pytest.raises(MalformedMessage) as caught:
        decode(HeartbeatRequest, 0, encoded[:-2])
    assert caught.value.subject == "HeartbeatRequest v0"
    assert caught.value.what == "member_id: length 6 runs past the end"
    assert caught.value.position == len(encoded) - 6
    assert str(caught.value) == (
        "malformed HeartbeatRequest v0: member_id: length 6 runs past the end (at byte 9)"
    )


def test_the_error_names_nested_fields() -> None:
    request = ListOffsetsRequest(
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name="t", partitions=[ListOffsetsRequest.ListOffsetsPartition()]
            )
        ]
    )
    encoded = encode(request, 1)
    with pytest.raises(MalformedMessage, match=r"topics\[\].partitions: 1 elements cannot be left"):
        decode(ListOffsetsRequest, 1, encoded[:-1])


@pytest.mark.parametrize("version", [0, 9])
def test_a_huge_count_allocates_nothing(version: int) -> None:
    """A frame of a few bytes that claims two billion topics."""
    huge = struct.pack(">i", 2**31 - 1) if version == 0 else b"\xff\xff\xff\xff\x07"
    body = huge + bytes(60)
    decode(MetadataRequest, version, encode(MetadataRequest(), version))  # compiled before memory is measured

    def refused() -> None:
        with pytest.raises(MalformedMessage, match=r"topics: .* elements cannot be left"):
            decode(MetadataRequest, version, body)

    assert peak_of(refused) < 50_000


def test_a_huge_count_of_integers_allocates_nothing() -> None:
    encoded = bytearray(
        encode(FetchRequest(forgotten_topics_data=[FetchRequest.ForgottenTopic(topic="t")]), 11)
    )
    position = encoded.index(b"\0\x01t") + 3
    encoded[position : position + 4] = struct.pack(">i", 2**30)
    with pytest.raises(MalformedMessage, match=r"forgotten_topics_data\[\].partitions: .* elements"):
        decode(FetchRequest, 11, encoded)


def test_a_count_of_tagged_fields_ends_with_the_input() -> None:
    encoded = encode(MetadataRequest(topics=[]), 9)
    with pytest.raises(MalformedMessage, match="tagged fields"):
        decode(MetadataRequest, 9, encoded[:-1] + b"\xff\xff\xff\xff\x0f" + b"\x40\x00" * 20)


@pytest.mark.parametrize("varint", [b"\xff\xff\xff\xff\xff\x01", b"\xff\xff\xff\xff\x1f", b"\x80\x80"])
def test_overlong_varints_are_refused(varint: bytes) -> None:
    with pytest.raises(MalformedMessage, match="topics"):
        decode(MetadataRequest, 9, varint)


def test_null_is_refused_where_the_version_has_none() -> None:
    with pytest.raises(MalformedMessage, match="group_id: null"):
        decode(HeartbeatRequest, 0, struct.pack(">h", -1) + bytes(20))
    with pytest.raises(MalformedMessage, match="topics: null"):
        decode(MetadataRequest, 0, struct.pack(">i", -1))


def test_negative_lengths_below_null_count_as_null() -> None:
    """As in Kafka's own reader, where any length below zero is null."""
    assert decode(MetadataRequest, 1, struct.pack(">i", -7)).topics is None


def test_text_that_is_not_utf8_is_refused() -> None:
    encoded = encode(HeartbeatRequest(group_id="group"), 0).replace(b"group", b"gr\xffup")
    with pytest.raises(MalformedMessage, match=r"group_id: .*utf-8"):
        decode(HeartbeatRequest, 0, encoded)


def test_a_tagged_field_must_have_its_declared_length() -> None:
    leader = FetchResponse.LeaderIdAndEpoch(leader_id=1)
    partition = FetchResponse.PartitionData(current_leader=leader, records=b"")
    topic = FetchResponse.FetchableTopicResponse(topic="t", partitions=[partition])
    encoded = encode(FetchResponse(responses=[topic]), 12)
    at = encoded.index(b"\x01\x01\x09")  # one tagged field: tag 1, of nine bytes
    damaged = encoded[: at + 2] + b"\x0a" + encoded[at + 3 : at + 12] + b"\0" + encoded[at + 12 :]
    with pytest.raises(MalformedMessage, match=r"partitions\[\].current_leader: tagged field is not as long"):
        decode(FetchResponse, 12, damaged)


def test_records_that_claim_more_than_the_frame_are_refused() -> None:
    partition = ProduceRequest.PartitionProduceData(records=bytes(100))
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[partition])
    encoded = encode(ProduceRequest(topic_data=[topic]), 3)
    with pytest.raises(MalformedMessage, match=r"records: length 100 runs past the end"):
        decode(ProduceRequest, 3, encoded[:-1])


def test_strings_longer_than_kafka_takes_are_refused_in_flexible_versions_too() -> None:
    long = b"\x81\x80\x02" + b"x" * 32768
    with pytest.raises(MalformedMessage, match="group_id: string longer than 32767 bytes"):
        decode(HeartbeatRequest, 4, long + bytes(20))

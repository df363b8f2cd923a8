"""An encoded message decodes to the same message, in every version; values that a version cannot carry are
refused."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.protocol.codec import decode, decode_from, decode_steps, encode, encode_parts, encode_steps
from ottla.protocol.errors import UnencodableMessage, UnknownVersion
from ottla.protocol.messages import (
    CreateTopicsRequest,
    FetchRequest,
    FetchResponse,
    ListGroupsRequest,
    MetadataRequest,
    MetadataResponse,
    OffsetFetchRequest,
    ProduceRequest,
)
from ottla.protocol.types import ZERO_UUID, Message, default_of
from tests.protocol_samples import CASES, RandomChoices, build, case_id, plain, strategy

T = TypeVar("T")
TOPIC_ID = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


@pytest.mark.parametrize(("cls", "version"), CASES, ids=case_id)
def test_every_message_survives_its_round_trip(cls: type[Message], version: int) -> None:
    for seed in range(8):
        sample = build(cls, version, RandomChoices(seed))
        encoded = encode(sample, version)
        decoded, end = decode_from(cls, version, encoded)
        assert end == len(encoded)
        assert plain(decoded) == plain(sample)
        assert encode(decoded, version) == encoded


def finish(steps: Generator[None, None, T]) -> tuple[T, int]:
    """The generator's return value, and the number of its yields."""
    yields = 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result, yields
        yields += 1


@pytest.mark.parametrize(("cls", "version"), CASES, ids=case_id)
def test_stepwise_encoding_has_the_same_bytes(cls: type[Message], version: int) -> None:
    for seed in range(4):
        sample = build(cls, version, RandomChoices(seed))
        encoded = encode(sample, version)
        parts, _ = finish(encode_steps(sample, version))
        assert b"".join(parts) == encoded
        decoded, _ = finish(decode_steps(cls, version, memoryview(encoded)))
        assert plain(decoded) == plain(sample)


@pytest.mark.parametrize("version", [1, 12])
def test_large_arrays_are_decoded_and_encoded_in_many_steps(version: int) -> None:
    topic = MetadataRequest.MetadataRequestTopic
    request = MetadataRequest(topics=[topic(name=f"t{i}") for i in range(10_000)])
    encoded = encode(request, version)
    parts, yields = finish(encode_steps(request, version))
    assert b"".join(parts) == encoded
    assert yields >= 50
    decoded, yields = finish(decode_steps(MetadataRequest, version, encoded))
    assert decoded == request
    assert yields >= 50


def test_a_large_array_of_numbers_is_decoded_in_steps() -> None:
    topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=list(range(200_000)))
    request = OffsetFetchRequest(group_id="g", topics=[topic])
    decoded, yields = finish(decode_steps(OffsetFetchRequest, 5, encode(request, 5)))
    assert decoded == request
    assert yields >= 3


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_values_survive_a_round_trip(data: st.DataObject) -> None:
    cls, version = data.draw(st.sampled_from(CASES))
    sample = data.draw(strategy(cls, version))
    # In the middle of a buffer, as messages lie in a frame.
    buffer = memoryview(b"\xff" * 7 + encode(sample, version) + b"\xff" * 9)
    decoded, end = decode_from(cls, version, buffer, 7)
    assert end == len(buffer) - 9
    assert plain(decoded) == plain(sample)


def test_records_are_views_of_the_input() -> None:
    request = ProduceRequest(
        topic_data=[
            ProduceRequest.TopicProduceData(
                name="t", partition_data=[ProduceRequest.PartitionProduceData(records=b"batch")]
            )
        ]
    )
    buffer = bytearray(encode(request, 9))
    records = decode(ProduceRequest, 9, buffer).topic_data[0].partition_data[0].records
    assert records == b"batch"
    buffer[buffer.index(b"batch")] = ord("p")
    assert records == b"patch"


def test_parts_hand_records_through_uncopied() -> None:
    batch = memoryview(b"batch")
    response = fetch_response(records=batch)
    parts = encode_parts(response, 12)
    assert any(part is batch for part in parts)
    assert b"".join(parts) == encode(response, 12)


def test_null_and_empty_differ() -> None:
    for version in (1, 9, 12):
        assert decode(MetadataRequest, version, encode(MetadataRequest(topics=None), version)).topics is None
        assert decode(MetadataRequest, version, encode(MetadataRequest(topics=[]), version)).topics == []


def test_a_field_the_version_lacks_gets_its_default() -> None:
    metadata = decode(MetadataResponse, 0, encode(MetadataResponse(cluster_id="ignorable"), 0))
    assert metadata.cluster_id is None
    assert metadata.controller_id == -1


def test_a_value_the_version_cannot_carry_is_refused_by_name() -> None:
    states = ListGroupsRequest(states_filter=["Stable"])
    assert decode(ListGroupsRequest, 4, encode(states, 4)) == states
    with pytest.raises(UnencodableMessage, match=r"ListGroupsRequest v3: states_filter"):
        encode(states, 3)


def test_a_nested_value_the_version_cannot_carry_is_refused_by_name() -> None:
    request = FetchRequest(
        topics=[FetchRequest.FetchTopic(partitions=[FetchRequest.FetchPartition(last_fetched_epoch=3)])]
    )
    with pytest.raises(UnencodableMessage, match=r"topics\[\].partitions\[\].last_fetched_epoch"):
        encode(request, 11)


def test_a_null_the_version_does_not_allow_is_refused_by_name() -> None:
    with pytest.raises(UnencodableMessage, match="topics is None"):
        encode(MetadataRequest(topics=None), 0)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (2**31, "timeout_ms is 2147483648, which int32 cannot hold"),
        ("soon", "timeout_ms is 'soon', not an integer"),
        (None, "timeout_ms is None, not an integer"),
    ],
)
def test_a_value_its_type_cannot_hold_is_refused_by_name(value: Any, complaint: str) -> None:
    with pytest.raises(UnencodableMessage, match=f"CreateTopicsRequest v1: {complaint}"):
        encode(CreateTopicsRequest(timeout_ms=value), 1)


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        ({"name": 3}, r"topics\[1\].name is 3, not a string"),
        ({"name": "\ud800"}, r"topics\[1\].name cannot be encoded"),
        ({"num_partitions": 2**40}, r"topics\[1\].num_partitions is 1099511627776, which int32"),
        ({"assignments": 7}, r"topics\[1\].assignments is 7, not a list"),
        ({"assignments": ["x"]}, r"topics\[1\].assignments\[0\] is 'x', not a CreateTopicsRequest.Creatable"),
    ],
)
def test_the_error_names_the_element(broken: dict[str, Any], complaint: str) -> None:
    topics = [CreateTopicsRequest.CreatableTopic(name="t"), CreateTopicsRequest.CreatableTopic(**broken)]
    for version in (1, 5):
        with pytest.raises(UnencodableMessage, match=complaint):
            encode(CreateTopicsRequest(topics=topics), version)


def test_a_string_longer_than_kafka_takes_is_refused_in_every_version() -> None:
    topic = CreateTopicsRequest.CreatableTopic(name="x" * 40_000)
    for version in (1, 5):
        with pytest.raises(UnencodableMessage, match="name has 40000 bytes; at most 32767"):
            encode(CreateTopicsRequest(topics=[topic]), version)


def test_versions_outside_the_table_are_refused() -> None:
    for version in (-1, 13):
        with pytest.raises(UnknownVersion, match="versions 0 to 12"):
            encode(MetadataRequest(), version)
        with pytest.raises(UnknownVersion, match="versions 0 to 12"):
            decode(MetadataRequest, version, b"")


def test_unknown_tagged_fields_are_skipped() -> None:
    encoded = encode(MetadataRequest(topics=[]), 9)
    assert encoded.endswith(b"\0")
    with_tags = encoded[:-1] + b"\x02" + b"\x07\x03abc" + b"\x80\x01\x00"
    message, end = decode_from(MetadataRequest, 9, with_tags)
    assert (message, end) == (MetadataRequest(topics=[]), len(with_tags))


def test_tagged_fields_travel_only_when_they_differ_from_the_default() -> None:
    usual = encode(fetch_response(), 12)
    diverging = fetch_response()
    diverging.responses[0].partitions[0].diverging_epoch = FetchResponse.EpochEndOffset(epoch=4, end_offset=9)
    assert len(encode(diverging, 12)) == len(usual) + 2 + 13
    assert decode(FetchResponse, 12, encode(diverging, 12)) == diverging
    same_as_default = fetch_response()
    same_as_default.responses[0].partitions[0].diverging_epoch = FetchResponse.EpochEndOffset()
    assert encode(same_as_default, 12) == usual


def test_uuids_survive() -> None:
    topic = MetadataRequest.MetadataRequestTopic(topic_id=TOPIC_ID, name=None)
    decoded = decode(MetadataRequest, 10, encode(MetadataRequest(topics=[topic]), 10))
    assert decoded.topics == [topic]
    assert MetadataRequest.MetadataRequestTopic().topic_id == ZERO_UUID


def test_a_shared_default_refuses_assignment() -> None:
    partition = fetch_response().responses[0].partitions[0]
    assert partition.diverging_epoch is default_of(FetchResponse.EpochEndOffset)
    with pytest.raises(AttributeError, match=r"assign a FetchResponse.EpochEndOffset\(\.\.\.\) of your own"):
        partition.diverging_epoch.epoch = 4
    assert partition.diverging_epoch == FetchResponse.EpochEndOffset()
    assert FetchResponse.EpochEndOffset() == partition.diverging_epoch


def test_list_defaults_are_not_shared() -> None:
    first, second = MetadataResponse(), MetadataResponse()
    first.topics.append(MetadataResponse.MetadataResponseTopic(name="t"))
    assert second.topics == []


def test_messages_compare_and_print_by_their_fields() -> None:
    assert FetchRequest(max_wait_ms=1) != FetchRequest(max_wait_ms=2)
    assert FetchRequest() != MetadataRequest()
    node = MetadataResponse.MetadataResponseBroker(node_id=1, host="h", port=9092)
    assert repr(node) == "MetadataResponse.MetadataResponseBroker(node_id=1, host='h', port=9092, rack=None)"
    with pytest.raises(TypeError, match="max_wait"):
        FetchRequest(max_wait=1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        FetchRequest().max_wait = 1  # type: ignore[attr-defined]


def fetch_response(records: bytes | memoryview = b"batch") -> FetchResponse:
    partition = FetchResponse.PartitionData(high_watermark=5, records=records)
    return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=[partition])])

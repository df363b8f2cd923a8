"""Frames: hand-written sizes and headers agree with the header messages, in all header versions."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol import messages
from ottla.protocol.api import API_TABLE, ApiKey
from ottla.protocol.codec import decode, encode
from ottla.protocol.errors import MalformedMessage, UnencodableMessage
from ottla.protocol.frames import (
    REQUESTS,
    RESPONSES,
    encode_request,
    encode_response,
    encode_response_parts,
    parse_correlation_id,
    parse_request_header,
    request_header_version,
    response_body_offset,
    response_header_version,
)
from ottla.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ControlledShutdownRequest,
    FetchResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    MetadataRequest,
)
from tests.protocol_samples import CASES

REQUEST_CASES = [(cls, version) for cls, version in CASES if cls.__name__.endswith("Request")]
RESPONSE_CASES = [(cls, version) for cls, version in CASES if cls.__name__.endswith("Response")]


@pytest.mark.parametrize("client_id", ["kcat", "", "Ä", None])
def test_request_frames_are_a_header_message_and_a_body(client_id: str | None) -> None:
    for cls, version in REQUEST_CASES:
        frame = encode_request(cls(), version, 77, client_id)
        header_version = request_header_version(cls.api_key, version)
        header = messages.RequestHeader(
            request_api_key=cls.api_key, request_api_version=version, correlation_id=77, client_id=client_id
        )
        expected = encode(header, header_version) + encode(cls(), version)
        assert frame == struct.pack(">i", len(expected)) + expected, (cls.__name__, version)
        parsed = parse_request_header(memoryview(frame)[4:])
        known_client = None if header_version == 0 else client_id
        assert parsed[:4] == (cls.api_key, version, 77, known_client)
        assert frame[4 + parsed.body_offset :] == encode(cls(), version)


def test_response_frames_are_a_header_message_and_a_body() -> None:
    for cls, version in RESPONSE_CASES:
        frame = encode_response(cls(), version, -5)
        header_version = response_header_version(cls.api_key, version)
        expected = encode(messages.ResponseHeader(correlation_id=-5), header_version) + encode(cls(), version)
        assert frame == struct.pack(">i", len(expected)) + expected, (cls.__name__, version)
        assert parse_correlation_id(frame[4:]) == -5
        assert frame[4 + response_body_offset(cls.api_key, version, frame[4:]) :] == encode(cls(), version)


def test_the_header_versions_follow_the_rules() -> None:
    assert request_header_version(ApiKey.METADATA, 8) == 1
    assert request_header_version(ApiKey.METADATA, 9) == 2
    assert request_header_version(ApiKey.CONTROLLED_SHUTDOWN, 0) == 0
    assert request_header_version(ApiKey.CONTROLLED_SHUTDOWN, 1) == 1
    assert request_header_version(ApiKey.API_VERSIONS, 3) == 2
    assert request_header_version(ApiKey.SASL_HANDSHAKE, 1) == 1
    assert request_header_version(999, 5) == 1
    assert response_header_version(ApiKey.METADATA, 8) == 0
    assert response_header_version(ApiKey.METADATA, 9) == 1


def test_api_versions_is_answered_with_header_0_in_every_version() -> None:
    for version in range(5):
        assert response_header_version(ApiKey.API_VERSIONS, version) == 0
    frame = encode_response(ApiVersionsResponse(), 3, 1)
    assert decode(ApiVersionsResponse, 3, frame, 8) == ApiVersionsResponse()


def test_controlled_shutdown_0_has_no_client_id() -> None:
    frame = encode_request(ControlledShutdownRequest(broker_id=3), 0, 9, "ignored")
    assert frame == struct.pack(">ihhii", 12, 7, 0, 9, 3)


def test_a_version_from_the_future_still_has_a_header() -> None:
    """ApiVersions 127 has to be answered with the supported range, so its header must be read."""
    frame = encode_request(ApiVersionsRequest(), 3, 1, "c")[4:]
    newer = frame[:2] + struct.pack(">h", 127) + frame[4:]
    assert parse_request_header(newer)[:4] == (18, 127, 1, "c")


def test_tagged_fields_of_headers_are_skipped() -> None:
    frame = struct.pack(">hhih", 3, 9, 1, 1) + b"c" + b"\x01\x05\x02ab" + encode(MetadataRequest(), 9)
    assert frame[parse_request_header(frame).body_offset :] == encode(MetadataRequest(), 9)
    assert response_body_offset(3, 9, struct.pack(">i", 1) + b"\x01\x05\x02ab" + b"body") == 9


@pytest.mark.parametrize(
    ("frame", "what", "position"),
    [
        (b"", "the frame ends within it", 0),
        (b"\0\x03\0\x09", "the frame ends within it", 4),
        (struct.pack(">hhi", 3, 9, 1), "the frame ends within it", 8),
        (struct.pack(">hhih", 3, 9, 1, 30) + b"short", "client_id: length 30 runs past the end", 10),
        (struct.pack(">hhih", 3, 9, 1, 1) + b"c", "the frame ends within it", 11),
        (struct.pack(">hhih", 3, 9, 1, 1) + b"\xff\0", "client_id: 'utf-8' codec can't decode", 10),
        (
            struct.pack(">hhih", 3, 9, 1, 1) + b"c\x01\x05\x09ab",
            "<tagged fields>: length 9 runs past the end",
            14,
        ),
        (
            struct.pack(">hhih", 3, 9, 1, 1) + b"c\xff\xff\xff\xff\x0f\0\0",
            "<tagged fields>: 4294967295 of them",
            16,
        ),
        (
            struct.pack(">hhih", 3, 9, 1, 1) + b"c\x81\x80\x80\x80\x80\x01",
            "<tagged fields>: varint longer than 5 bytes",
            11,
        ),
    ],
)
def test_malformed_request_headers_are_refused_with_what_and_where(
    frame: bytes, what: str, position: int
) -> None:
    for given_as in (bytes, memoryview):
        with pytest.raises(MalformedMessage) as caught:
            parse_request_header(given_as(frame))
        assert caught.value.subject == "request header"
        assert caught.value.what.startswith(what)
        assert caught.value.position == position


def test_malformed_response_headers_are_refused_with_what_and_where() -> None:
    with pytest.raises(MalformedMessage, match=r"response header: the frame ends within it \(at byte 4\)"):
        response_body_offset(3, 9, bytes(4))
    with pytest.raises(MalformedMessage, match=r"<tagged fields>: length 3 runs past the end \(at byte 7\)"):
        response_body_offset(3, 9, bytes(4) + b"\x01\x05\x03ab")
    with pytest.raises(MalformedMessage, match=r"response header: the frame ends within it \(at byte 3\)"):
        parse_correlation_id(bytes(3))


@given(st.binary(max_size=40))
def test_random_headers_raise_only_malformed_message(noise: bytes) -> None:
    with suppress(MalformedMessage):
        assert parse_request_header(noise).body_offset <= len(noise)
    with suppress(MalformedMessage):
        parse_correlation_id(noise)
    with suppress(MalformedMessage):
        assert response_body_offset(ApiKey.METADATA, 9, noise) <= len(noise)


def test_a_client_id_too_long_for_its_prefix_is_refused() -> None:
    with pytest.raises(UnencodableMessage, match="client id"):
        encode_request(HeartbeatRequest(), 0, 1, "x" * 40_000)


def test_a_response_in_parts_accepts_any_sized_object_as_records() -> None:
    class FileRange:
        def __len__(self) -> int:
            return 1000

    file_range: Any = FileRange()
    partition = FetchResponse.PartitionData(records=file_range)
    topic = FetchResponse.FetchableTopicResponse(topic="t", partitions=[partition])
    parts = encode_response_parts(FetchResponse(responses=[topic]), 12, 1)
    assert any(part is file_range for part in parts)
    assert struct.unpack_from(">i", parts[0])[0] == sum(map(len, parts)) - 4


def test_requests_and_responses_pair_up() -> None:
    assert set(REQUESTS) == set(RESPONSES) == set(API_TABLE)
    assert REQUESTS[ApiKey.HEARTBEAT] is HeartbeatRequest
    assert RESPONSES[ApiKey.HEARTBEAT] is HeartbeatResponse

"""The packed Fetch response equals the codec's bytes in every version, and file ranges stay ranges."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

import pytest

from ottla.metadata.cache import BrokerEndpoint
from ottla.ports.files import OS_FILES
from ottla.protocol import codec, frames
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import FetchRequest, FetchResponse
from ottla.server.dispatch.fetch_sessions import WantedPartition
from ottla.server.handlers.fetch.response import (
    COPIED_SLICE_MAX_BYTES,
    INLINE_SLICE_MAX_BYTES,
    FetchedPartition,
    begin_session,
    build,
    by_topic,
    size_of,
)
from ottla.storage.segment_files import FileSlice, SegmentFile

ID = UUID("12345678-1234-5678-1234-567812345678")


def joined(parts: list[object]) -> bytes:
    return b"".join(p.to_bytes() if isinstance(p, FileSlice) else bytes(p) for p in parts)  # type: ignore[call-overload]


ABORTED = [(2**40, 3), (9, 2**35)]


def wanted(index: int, topic: str = "tøpic", topic_id: UUID = ID) -> WantedPartition:
    return WantedPartition(topic, topic_id, FetchRequest.FetchPartition(partition=index))


def expected(version: int, *, read_committed: bool, small: bytes, big: bytes) -> FetchResponse:
    aborted: list[FetchResponse.AbortedTransaction] | None = None
    if read_committed:
        row = FetchResponse.AbortedTransaction
        aborted = [row(producer_id=producer, first_offset=offset) for producer, offset in ABORTED]
    wrong = FetchResponse.PartitionData(
        partition_index=9,
        error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
        high_watermark=-1,
        aborted_transactions=[],
        records=b"",
    )
    diverged = FetchResponse.PartitionData(
        partition_index=2,
        high_watermark=5,
        last_stable_offset=5,
        log_start_offset=0,
        aborted_transactions=None,
        records=b"",
    )
    response = FetchResponse(
        responses=[
            FetchResponse.FetchableTopicResponse(
                topic="tøpic" if version < 13 else "",
                topic_id=ID,
                partitions=[
                    FetchResponse.PartitionData(
                        partition_index=0,
                        high_watermark=7,
                        last_stable_offset=6,
                        log_start_offset=3,
                        aborted_transactions=aborted,
                        records=small,
                    ),
                    FetchResponse.PartitionData(
                        partition_index=1,
                        high_watermark=2**40,
                        last_stable_offset=2**40,
                        log_start_offset=0,
                        aborted_transactions=aborted,
                        records=big,
                    ),
                    diverged,
                    wrong,
                ],
            ),
            FetchResponse.FetchableTopicResponse(
                topic="" if version >= 13 else "other",
                topic_id=UUID(int=5),
                partitions=[
                    FetchResponse.PartitionData(
                        partition_index=4,
                        high_watermark=1,
                        last_stable_offset=1,
                        log_start_offset=1,
                        aborted_transactions=None,
                        records=b"",
                    )
                ],
            ),
        ]
    )
    if version >= 12:
        diverged.diverging_epoch = FetchResponse.EpochEndOffset(epoch=3, end_offset=2**33)
        wrong.current_leader = FetchResponse.LeaderIdAndEpoch(leader_id=2, leader_epoch=8)
    if version >= 16:
        response.node_endpoints = [
            FetchResponse.NodeEndpoint(node_id=2, host="broker-2", port=9092, rack="a"),
            FetchResponse.NodeEndpoint(node_id=3, host="broker-3", port=9093),
        ]
    return response


@pytest.mark.parametrize("read_committed", [False, True])
@pytest.mark.parametrize("version", range(4, 18))
def test_the_packed_fetch_response_equals_the_codecs(
    version: int, read_committed: bool, tmp_path: Path
) -> None:
    content = os.urandom(INLINE_SLICE_MAX_BYTES * 3)
    (tmp_path / "segment").write_bytes(content)
    file = SegmentFile(OS_FILES, tmp_path / "segment")
    small = FileSlice(file, 10, 200)
    big = [FileSlice(file, 0, INLINE_SLICE_MAX_BYTES + 1), FileSlice(file, 5, COPIED_SLICE_MAX_BYTES)]
    big_size = INLINE_SLICE_MAX_BYTES + 1 + COPIED_SLICE_MAX_BYTES
    wrong = FetchedPartition(wanted(9), ErrorCode.NOT_LEADER_OR_FOLLOWER, aborted=())
    diverging = (3, 2**33) if version >= 12 else None
    diverged = FetchedPartition(wanted(2), ErrorCode.NONE, 5, 5, 0, diverging=diverging)
    aborted = ABORTED if read_committed else None
    if version >= 12:
        wrong.current_leader = (2, 8)
    parts = build(
        version,
        42,
        by_topic(
            [
                FetchedPartition(wanted(0), ErrorCode.NONE, 7, 6, 3, [small], 200, aborted=aborted),
                FetchedPartition(wanted(1), ErrorCode.NONE, 2**40, 2**40, 0, big, big_size, aborted=aborted),
                diverged,
                wrong,
                FetchedPartition(wanted(4, "other", UUID(int=5)), ErrorCode.NONE, 1, 1, 1),
            ]
        ),
        session_id=0,
        endpoints=[BrokerEndpoint(2, "broker-2", 9092, "a"), BrokerEndpoint(3, "broker-3", 9093)],
    )
    slices = [p for p in parts if isinstance(p, FileSlice)]
    assert slices == [big[0]], "the big range stays a range, the small ones are read"
    message = expected(
        version,
        read_committed=read_committed,
        small=small.to_bytes(),
        big=b"".join(s.to_bytes() for s in big),
    )
    assert joined(parts) == frames.encode_response(message, version, 42)  # type: ignore[arg-type]
    body = codec.encode(message, version)
    assert size_of(parts, version) == 4 + len(body)
    if version >= 7:
        begin_session(parts, version, 77)
        message.session_id = 77
        assert joined(parts) == frames.encode_response(message, version, 42)  # type: ignore[arg-type]
    frame = memoryview(joined(parts))[4:]  # type: ignore[arg-type]
    codec.decode(FetchResponse, version, frame, frames.response_body_offset(1, version, frame))


@pytest.mark.parametrize("version", range(11, 18))
def test_a_preferred_read_replica_is_packed(version: int) -> None:
    parts = build(
        version,
        1,
        by_topic(
            [
                FetchedPartition(wanted(0), ErrorCode.NONE, 7, 6, 3, preferred=2),
                FetchedPartition(wanted(1), ErrorCode.NONE, 7, 6, 3, aborted=()),
            ]
        ),
    )
    rows = [
        FetchResponse.PartitionData(
            partition_index=index,
            high_watermark=7,
            last_stable_offset=6,
            log_start_offset=3,
            aborted_transactions=None if preferred >= 0 else [],
            preferred_read_replica=preferred,
            records=b"",
        )
        for index, preferred in ((0, 2), (1, -1))
    ]
    topic = FetchResponse.FetchableTopicResponse(
        topic="tøpic" if version < 13 else "", topic_id=ID, partitions=rows
    )
    response = FetchResponse(responses=[topic])
    assert joined(parts) == frames.encode_response(response, version, 1)  # type: ignore[arg-type]


def test_a_range_that_the_disk_cannot_read_stays_a_range(tmp_path: Path) -> None:
    file = SegmentFile(OS_FILES, tmp_path / "segment")
    file.fd, descriptor = -1, file.fd  # reading fails with EBADF
    piece = FileSlice(file, 0, 10)
    parts = build(12, 1, by_topic([FetchedPartition(wanted(0), ErrorCode.NONE, 7, 6, 3, [piece], 10)]))
    file.fd = descriptor
    assert piece in parts

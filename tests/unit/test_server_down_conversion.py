"""Down-conversion of fetched records: inline or in the thread, within a memory limit."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from ottla.ports.files import OS_FILES, Files
from ottla.ports.workers import OsWorkers
from ottla.protocol import frames
from ottla.protocol.compression import Codec
from ottla.protocol.errors import ErrorCode
from ottla.protocol.legacy_records import decode_message_set
from ottla.protocol.messages import FetchRequest, FetchResponse
from ottla.protocol.records import Record, build_batch
from ottla.protocol.types import ZERO_UUID
from ottla.server.dispatch.dispatcher import Request, Route
from ottla.server.dispatch.fetch_sessions import WantedPartition
from ottla.server.handlers.fetch.down_conversion import (
    INLINE_MAX_BYTES,
    RESPONSE_MAX_BYTES,
    DownConverter,
    refuse_zstd,
)
from ottla.server.handlers.fetch.response import FetchedPartition
from ottla.storage.log_config import LogConfig
from ottla.storage.segment_files import FileSlice, SegmentFile
from tests.unit.test_server_dispatch import FakeConnection, decode_answer, frame_of

PLAIN = LogConfig()


def batch(value: bytes, codec: Codec = Codec.NONE) -> bytes:
    return build_batch([Record(0, 1, b"k", value)], codec=codec)


def fetched(tmp_path: Path, index: int, data: bytes) -> FetchedPartition:
    path = tmp_path / f"{index}.log"
    path.write_bytes(data)
    wanted = WantedPartition("t", ZERO_UUID, FetchRequest.FetchPartition(partition=index, fetch_offset=0))
    piece = FileSlice(SegmentFile(OS_FILES, path), 0, len(data))
    return FetchedPartition(wanted, high_watermark=1, slices=[piece], size=len(data))


def request_of(connection: FakeConnection, version: int, replica_id: int) -> Request:
    message = FetchRequest(replica_id=replica_id, max_wait_ms=0, min_bytes=1)
    frame = frame_of(message, version)
    route = Route(FetchRequest, lambda request: None, lambda *_: FetchResponse())
    return Request(connection, route, frames.parse_request_header(frame), frame)


def answer(
    *partitions: FetchedPartition,
    version: int = 3,
    config: LogConfig | None = PLAIN,
    replica_id: int = -1,
    meanwhile: Callable[[FakeConnection], None] = lambda connection: None,
) -> list[FetchResponse.PartitionData]:
    """The partitions of the response; `meanwhile` runs before the thread can return its work."""
    connection = FakeConnection()

    async def recorder() -> None:
        request = request_of(connection, version, replica_id)
        DownConverter(OsWorkers()).respond(request, [("t", ZERO_UUID, list(partitions))], lambda *_: config)
        meanwhile(connection)
        async with asyncio.timeout(90):
            while not connection.answers and not connection.closed:  # noqa: ASYNC110 (a thread answers)
                await asyncio.sleep(0.01)

    asyncio.run(recorder())
    if connection.closed:
        assert not connection.answers
        return []
    response = decode_answer(connection, version, FetchResponse)
    assert isinstance(response, FetchResponse)
    return response.responses[0].partitions


def values(row: FetchResponse.PartitionData) -> list[bytes | None]:
    return [record.value for record in decode_message_set(row.records or b"")]


@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_the_version_of_the_fetch_decides_the_format(tmp_path: Path, version: int, magic: int) -> None:
    (row,) = answer(fetched(tmp_path, 0, batch(b"v")), version=version)
    assert row.records is not None
    assert row.records[16] == magic
    assert (row.error_code, row.high_watermark) == (0, 1)


def test_few_bytes_are_converted_inline(tmp_path: Path) -> None:
    def is_answered(connection: FakeConnection) -> None:
        assert connection.answers

    answer(fetched(tmp_path, 0, batch(b"v")), meanwhile=is_answered)


def test_many_bytes_are_converted_in_the_thread(tmp_path: Path) -> None:
    def is_not_answered(connection: FakeConnection) -> None:
        assert not connection.answers

    big = bytes(INLINE_MAX_BYTES)
    rows = answer(
        fetched(tmp_path, 0, batch(big)), fetched(tmp_path, 1, batch(b"v")), meanwhile=is_not_answered
    )
    assert [values(row) for row in rows] == [[big], [b"v"]]


def test_a_client_that_has_gone_gets_no_answer(tmp_path: Path) -> None:
    gone = fetched(tmp_path, 0, batch(bytes(INLINE_MAX_BYTES)))
    assert answer(gone, meanwhile=lambda connection: connection.close()) == []


def test_the_conversion_of_a_response_is_limited_but_never_empty(tmp_path: Path) -> None:
    sizes = [RESPONSE_MAX_BYTES + 1, 10, RESPONSE_MAX_BYTES - 5000, 6000]
    for order, given in (([0, 1], [True, False]), ([1, 2, 3], [True, True, False])):
        parts = [fetched(tmp_path, at, batch(bytes(sizes[at]))) for at in order]
        assert [bool(row.records) for row in answer(*parts)] == given


def test_a_topic_may_refuse_all_but_followers(tmp_path: Path) -> None:
    refusing = LogConfig(message_downconversion_enable=False)
    (row,) = answer(fetched(tmp_path, 0, batch(b"v")), config=refusing)
    assert (row.error_code, row.high_watermark, row.records) == (ErrorCode.UNSUPPORTED_VERSION, -1, b"")
    (row,) = answer(fetched(tmp_path, 0, batch(b"v")), config=refusing, replica_id=2)
    assert values(row) == [b"v"]


def test_an_inconvertible_batch_fails_only_its_partition(tmp_path: Path) -> None:
    zstd, good = fetched(tmp_path, 0, batch(b"v", Codec.ZSTD)), fetched(tmp_path, 1, batch(b"v"))
    damaged = fetched(tmp_path, 2, batch(b"v")[:65] + b"\x7e" + batch(b"v")[66:])
    rows = answer(zstd, good, damaged)
    assert [row.error_code for row in rows] == [
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        0,
        ErrorCode.CORRUPT_MESSAGE,
    ]
    assert values(rows[1]) == [b"v"]


def test_a_flipped_bit_is_not_converted_to_a_message_with_a_valid_checksum(tmp_path: Path) -> None:
    data = bytearray(batch(b"value"))
    data[-3] ^= 4  # in the value
    (row,) = answer(fetched(tmp_path, 0, bytes(data)))
    assert (row.error_code, row.records) == (ErrorCode.CORRUPT_MESSAGE, b"")


def test_zstd_topics_are_refused_to_older_clients(tmp_path: Path) -> None:
    part = fetched(tmp_path, 0, batch(b"v"))
    refuse_zstd([("t", ZERO_UUID, [part])], lambda *_: PLAIN)
    assert (part.error, part.size) == (ErrorCode.NONE, len(batch(b"v")))
    refuse_zstd([("t", ZERO_UUID, [part])], lambda *_: LogConfig(compression_type="zstd"))
    assert (part.error, part.size, part.slices) == (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, 0, None)
    assert part.high_watermark == -1


class FailingFiles:
    """Files of a disk that has failed."""

    def __getattr__(self, name: str) -> object:
        return getattr(OS_FILES, name)

    def is_resident(self, *_: object) -> bool:
        raise OSError(errno.EIO, "Input/output error")

    pread = is_resident


def test_a_disk_error_fails_only_its_partition(tmp_path: Path) -> None:
    good, failing = fetched(tmp_path, 0, batch(b"v")), fetched(tmp_path, 1, batch(b"v"))
    (piece,) = failing.slices or ()
    failing.slices = [piece._replace(file=SegmentFile(cast(Files, FailingFiles()), piece.file.path))]
    rows = answer(good, failing)
    # These versions have no KAFKA_STORAGE_ERROR.
    assert [row.error_code for row in rows] == [0, ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert values(rows[0]) == [b"v"]

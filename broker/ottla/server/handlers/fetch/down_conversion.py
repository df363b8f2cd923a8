"""Converts records for Fetch 0 to 3, whose clients read only message formats 0 and 1: a slow path.

Called by ottla.server.handlers.fetch.sender with the fetched partitions, in place of packing the response.
Logs contain only format 2, so every record is converted (`ottla.protocol.down_conversion`): to format 0 for
Fetch 0 and 1, to format 1 for Fetch 2 and 3, as Apache Kafka 3.9 does. Errors per partition:
UNSUPPORTED_VERSION if message.downconversion.enable is false (not for followers);
UNSUPPORTED_COMPRESSION_TYPE for batches of zstd, and, below Fetch 10, for whole topics of
compression.type=zstd (KIP-110).

Records are read into memory here. One response converts at most RESPONSE_MAX_BYTES of log (the client fetches
the rest with its next request; Kafka converts while it sends). More than INLINE_MAX_BYTES are converted by a
thread, one response after the other: the thread shares the interpreter's lock with the loop, which waits some
6 ms at a time (measured) instead of the whole time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from ottla.ports.workers import Workers
from ottla.protocol.compression import Codec
from ottla.protocol.down_conversion import down_converted
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import FetchRequest, FetchResponse
from ottla.server.dispatch.dispatcher import Request
from ottla.server.handlers.fetch.response import FetchedPartition, FetchedTopic
from ottla.storage.log_config import LogConfig
from ottla.storage.segment_files import FileSlice

log = logging.getLogger(__name__)

CONVERTED_BELOW: Final = 4
"""The first Fetch version whose records are sent without conversion."""
ZSTD_FROM: Final = 10
INLINE_MAX_BYTES: Final = 16 * 1024
"""About 160 records of 100 bytes: half a millisecond."""
RESPONSE_MAX_BYTES: Final = 16 * 1024 * 1024

ConfigOf = Callable[[str, int], LogConfig | None]
"""The settings of a partition's log; None without a replica."""

_MAGIC_1_FROM = 2


class _Conversion(NamedTuple):
    """A partition's records that have to be converted."""

    into: FetchResponse.PartitionData
    slices: list[FileSlice]
    fetch_offset: int
    magic: int


class DownConverter:
    """Builds responses with converted records."""

    def __init__(self, workers: Workers) -> None:
        self._thread = workers.threads("down-conversion", 1)

    async def stop(self) -> None:
        await self._thread.stop()

    def respond(
        self, request: Request, topics: list[FetchedTopic], config_of: ConfigOf, throttle_ms: int = 0
    ) -> None:
        """Respond to `request`, of a version below CONVERTED_BELOW, now or when the thread is done."""
        from_follower = request.decode(FetchRequest).replica_id >= 0
        magic = 1 if request.version >= _MAGIC_1_FROM else 0
        response = FetchResponse(throttle_time_ms=throttle_ms)
        work: list[_Conversion] = []
        for name, _, partitions in topics:
            rows: list[FetchResponse.PartitionData] = []
            response.responses.append(FetchResponse.FetchableTopicResponse(topic=name, partitions=rows))
            for p in partitions:
                row = FetchResponse.PartitionData(
                    partition_index=p.index,
                    error_code=p.error,
                    high_watermark=p.high_watermark,
                    records=b"",
                )
                rows.append(row)
                refusal = _refusal(config_of(name, p.index), from_follower=from_follower)
                if refusal:
                    _refuse(row, refusal)
                elif p.slices:
                    work.append(_Conversion(row, p.slices, p.wanted.asked.fetch_offset, magic))
        pieces = [piece for each in work for piece in each.slices]
        if sum(piece.length for piece in pieces) <= INLINE_MAX_BYTES and all(map(_is_resident, pieces)):
            _convert(work)
            request.respond(response)
            return
        converted = self._thread.submit(_convert_for, request, work)
        converted.add_done_callback(partial(_respond, request, response))


def refuse_zstd(topics: list[FetchedTopic], config_of: ConfigOf) -> None:
    """Replace the records of topics with compression.type=zstd by an error: for versions below ZSTD_FROM."""
    for name, p in _rows(topics):
        config = config_of(name, p.index)
        if config is not None and config.target_codec is Codec.ZSTD:
            p.error = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
            p.high_watermark = p.last_stable_offset = p.log_start_offset = -1
            p.slices = None
            p.size = 0
            p.aborted = ()


def _rows(topics: list[FetchedTopic]) -> Iterator[tuple[str, FetchedPartition]]:
    for name, _, partitions in topics:
        for p in partitions:
            yield name, p


def _refusal(config: LogConfig | None, *, from_follower: bool) -> ErrorCode:
    """The error of all records of a log with these settings, or NONE."""
    if config is None:
        return ErrorCode.NONE
    if config.target_codec is Codec.ZSTD:
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    if not config.message_downconversion_enable and not from_follower:
        return ErrorCode.UNSUPPORTED_VERSION
    return ErrorCode.NONE


def _refuse(row: FetchResponse.PartitionData, error: ErrorCode) -> None:
    row.error_code = error
    row.high_watermark = -1


def _is_resident(piece: FileSlice) -> bool:
    try:
        return piece.file.files.is_resident(piece.file.fd, piece.position, piece.length)
    except OSError:
        return False  # the conversion gets the error again, and reports it for its partition


def _convert_for(request: Request, work: list[_Conversion]) -> None:
    if not request.abandoned:
        _convert(work)


def _convert(work: list[_Conversion]) -> None:
    """Fill in the records, or the error. Reads the disk."""
    left = RESPONSE_MAX_BYTES
    for into, slices, fetch_offset, magic in work:
        size = sum(piece.length for piece in slices)
        if size > left and left < RESPONSE_MAX_BYTES:
            continue  # the first one is converted whatever its size
        left -= size
        try:
            data = b"".join([piece.to_bytes() for piece in slices])
            into.records = down_converted(data, magic, fetch_offset)
        except KafkaError as problem:
            log.info("Cannot convert records of partition %d: %s", into.partition_index, problem)
            _refuse(into, problem.code)
        except OSError:
            log.exception("Cannot read records of partition %d", into.partition_index)
            # These versions have no KAFKA_STORAGE_ERROR.
            _refuse(into, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _respond(request: Request, response: FetchResponse, converted: asyncio.Future[None]) -> None:
    if converted.cancelled() or request.abandoned:
        return
    problem = converted.exception()
    if problem is None:
        request.respond(response)
    else:
        request.fail(problem)

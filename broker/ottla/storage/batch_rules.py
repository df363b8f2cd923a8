"""What a batch must satisfy before it is appended, and the named slow paths of an append.

Called by `Log`'s appends. `check_client_batch` looks at header fields only. The rest decode
records, and are reached only where a topic's configuration or an old client asks for it:

* upconversion of message formats v0 and v1 (`legacy_records`);
* recompression (compression.type other than `producer`);
* LogAppendTime (header only, but the checksum is made anew);
* keys on compacted topics, and limits on timestamps.
"""

from __future__ import annotations

from crc32c import crc32c

from ottla.protocol.compression import Codec
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.legacy_records import upconvert
from ottla.protocol.records import (
    BATCH_HEADER,
    CODEC_MASK,
    CONTROL_FLAG,
    CRC_START,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC_V2,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    TimestampType,
    build_batch,
    decode_batch,
    parse_batch_header,
    with_log_append_time,
)
from ottla.storage.log_config import INT64_MAX, LogConfig

_MAGIC_POSITION = 16
_LEGACY_ENTRY_MIN_BYTES = LOG_OVERHEAD + 14


def single_batch(view: memoryview) -> memoryview:
    """The one v2 batch that a producer may send per partition; old formats are converted to one.

    Raises KafkaError: INVALID_RECORD when there is none, or more than one (KIP-98),
    CORRUPT_MESSAGE when its length cannot be right.
    """
    if len(view) <= _MAGIC_POSITION:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a produce request needs one record batch per partition")
    length = int.from_bytes(view[8:12], "big", signed=True)
    magic = view[_MAGIC_POSITION]
    if magic < MAGIC_V2:
        return memoryview(upconvert(view))
    if magic != MAGIC_V2:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"record batches of magic {magic} are not known")
    size = LOG_OVERHEAD + length
    if size < RECORD_BATCH_OVERHEAD:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"batch length {length} is too small for a header")
    if size > len(view):
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{len(view)} bytes were sent of a record batch of {size}")
    rest = len(view) - size
    if rest >= _LEGACY_ENTRY_MIN_BYTES:
        second = LOG_OVERHEAD + int.from_bytes(view[size + 8 : size + 12], "big", signed=True)
        if second <= rest:
            raise KafkaError(ErrorCode.INVALID_RECORD, "only one record batch per partition is allowed")
    return view[:size]


def check_client_batch(
    base_offset: int,
    attributes: int,
    last_offset_delta: int,
    producer_id: int,
    base_sequence: int,
    record_count: int,
) -> None:
    """Whether a client may send this header.

    Raises KafkaError: INVALID_RECORD, INVALID_TIMESTAMP, UNSUPPORTED_COMPRESSION_TYPE.
    """
    if base_offset != 0:
        problem = f"the base offset must be 0, not {base_offset}"
    elif record_count <= 0 or last_offset_delta != record_count - 1:
        problem = f"{record_count} records do not span offsets 0 to {last_offset_delta}"
    elif attributes & CONTROL_FLAG:
        problem = "clients may not write control records"
    elif producer_id > NO_PRODUCER_ID and base_sequence <= NO_SEQUENCE:
        problem = f"an idempotent producer's sequence cannot be {base_sequence}"
    elif attributes & LOG_APPEND_TIME_FLAG:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "clients may not say LogAppendTime: brokers do")
    elif attributes & CODEC_MASK > Codec.ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"no compression codec has the id {attributes & CODEC_MASK}",
        )
    else:
        return
    raise KafkaError(ErrorCode.INVALID_RECORD, problem)


def needs_rewrite_or_records(config: LogConfig) -> bool:
    """Whether appends to a topic of this configuration take the slow path `prepare`."""
    return (
        config.timestamp_type is TimestampType.LOG_APPEND_TIME
        or config.target_codec is not None
        or config.compacts
        or config.message_timestamp_after_max_ms != INT64_MAX
        or config.message_timestamp_before_max_ms != INT64_MAX
    )


def prepare(view: memoryview, config: LogConfig, now_ms: int, *, client: bool) -> tuple[memoryview, int]:
    """The batch as this topic stores it, and the log append time (-1 under CreateTime).

    Control batches are stored as they are. Raises KafkaError(INVALID_RECORD) for a record without a
    key on a compacted topic, KafkaError(INVALID_TIMESTAMP) for one too far from `now_ms` (KIP-937).
    """
    header = parse_batch_header(view)
    if header.is_control:
        return view, NO_TIMESTAMP
    if client:
        _check_records(view, config, now_ms)
    if config.target_codec is not None and config.target_codec is not header.codec:
        view = memoryview(_recompressed(view, header, config, config.target_codec))
    if config.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return memoryview(with_log_append_time(view, now_ms)), now_ms
    return view, NO_TIMESTAMP


def _check_records(view: memoryview, config: LogConfig, now_ms: int) -> None:
    after_ms = config.message_timestamp_after_max_ms
    before_ms = config.message_timestamp_before_max_ms
    limited = config.timestamp_type is TimestampType.CREATE_TIME and (
        after_ms != INT64_MAX or before_ms != INT64_MAX
    )
    if not limited and not config.compacts:
        return
    for index, record in enumerate(decode_batch(view)):
        if config.compacts and record.key is None:
            raise KafkaError(ErrorCode.INVALID_RECORD, f"record {index} has no key; the topic is compacted")
        if not limited or record.timestamp == NO_TIMESTAMP:
            continue
        if record.timestamp - now_ms > after_ms or now_ms - record.timestamp > before_ms:
            raise KafkaError(
                ErrorCode.INVALID_TIMESTAMP,
                f"record {index} has timestamp {record.timestamp}; the topic takes at most {before_ms} ms "
                f"before and {after_ms} ms after {now_ms}",
            )


def _recompressed(view: memoryview, header: BatchHeader, config: LogConfig, codec: Codec) -> bytes:
    return build_batch(
        decode_batch(view),
        codec=codec,
        level=config.compression_level(codec),
        base_offset=header.base_offset,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        leader_epoch=header.partition_leader_epoch,
        timestamp_type=header.timestamp_type,
        transactional=header.is_transactional,
    )


def verified_batches(view: memoryview, expected: int) -> list[tuple[int, BatchHeader]]:
    """(position, header) of the batches that a leader sent, in order from offset `expected` on.

    A partial batch at the end is left out. Raises KafkaError: CORRUPT_MESSAGE,
    UNSUPPORTED_FOR_MESSAGE_FORMAT, OFFSET_OUT_OF_RANGE when they cannot follow.
    """
    batches = []
    pos = 0
    while pos + RECORD_BATCH_OVERHEAD <= len(view):
        header = BatchHeader(*BATCH_HEADER.unpack_from(view, pos))
        end = pos + LOG_OVERHEAD + header.batch_length
        if header.magic != MAGIC_V2:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"the leader sent magic {header.magic}"
            )
        if end > len(view):
            break
        if end < pos + RECORD_BATCH_OVERHEAD or crc32c(view[pos + CRC_START : end]) != header.crc:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, f"batch at offset {header.base_offset}: checksum or length"
            )
        if header.base_offset < expected or header.last_offset_delta < 0:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"a batch at offset {header.base_offset} cannot follow; expected {expected} or later",
            )
        expected = header.base_offset + header.last_offset_delta + 1
        batches.append((pos, header))
        pos = end
    return batches

"""Validates and converts batches before they are appended (Kafka's LogValidator).

Called by `Log`'s appends, and by the produce handler for what depends on the request's version. On the fast
path only the header is validated: length, checksum and `check_client_batch`. A `SlowPath` needs more than the
header; `slow_paths` returns those that apply:

* OLD_FORMAT: message sets of formats 0 and 1 are converted (Produce 0 to 2);
* KEYS: every record of a compacted topic needs a key;
* TIMESTAMPS: the topic limits its records' timestamps (message.timestamp.before/after.max.ms, KIP-937);
* LOG_APPEND_TIME: the topic's records get the broker's time (header only, but with a new checksum);
* MARKED: a client's batch has LogAppendTime, which only brokers may set (header, or an error);
* RECOMPRESSION: compression.type names another codec than the batch has;
* COMPRESSED: the batch is compressed, and must decompress to as many whole records as its header states, with
  ascending offsets; a wrong max timestamp in the header is corrected. Other fields of the records are not
  read: that is most of the cost of Kafka's validation.

All of them but LOG_APPEND_TIME read the records, and find the errors that Kafka's LogValidator finds on each
append: wrong lengths and counts, records that the topic does not accept (`record_validation`), a wrong max
timestamp (which is corrected). The fast path does not find these.

A few bytes can hold many records. With `allow_deferral`, the event loop gets `ValidationDeferred` where the
validation could take more than about a millisecond; a worker process then calls `validate`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Flag, auto
from typing import Final

from crc32c import crc32c

from ottla.ports.files import Files
from ottla.protocol.batch_rewrites import with_codec, with_create_time, with_log_append_time
from ottla.protocol.compression import Codec
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.legacy_records import (
    MAGIC_POSITION,
    Message,
    codec_of_message,
    iter_messages,
    open_message,
)
from ottla.protocol.records import (
    BATCH_HEADER,
    CODEC_MASK,
    CONTROL_FLAG,
    CRC_START,
    DELETE_HORIZON_FLAG,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC_V2,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    Record,
    TimestampType,
    build_batch,
    decode_batch,
    parse_batch_header,
)
from ottla.storage import record_validation
from ottla.storage.log_config import LogConfig
from ottla.storage.record_validation import DecodedRecords, InvalidRecords

_LEGACY_ENTRY_MIN_BYTES = LOG_OVERHEAD + 14

INLINE_RECORDS_MAX: Final = 2000
INLINE_BYTES_MAX: Final = 256 * 1024
"""The size of the decompressed records that are scanned inline."""
INLINE_RECOMPRESSED_BYTES_MAX: Final = 32 * 1024
INLINE_LEGACY_BYTES_MAX: Final = 16 * 1024
"""The size of an uncompressed message set of an old format that is converted inline."""


class ValidationDeferred(Exception):
    """The validation may take long, and was not done: call `validate` elsewhere."""


class SlowPath(Flag):
    """The reasons why a validation needs more than the header. See the module."""

    NONE = 0
    OLD_FORMAT = auto()
    KEYS = auto()
    TIMESTAMPS = auto()
    LOG_APPEND_TIME = auto()
    MARKED = auto()
    RECOMPRESSION = auto()
    COMPRESSED = auto()


_NEEDS_RECORDS: Final = SlowPath.KEYS | SlowPath.TIMESTAMPS | SlowPath.MARKED | SlowPath.RECOMPRESSION
_OF_BROKERS: Final = SlowPath.RECOMPRESSION | SlowPath.LOG_APPEND_TIME
"""Those of the batches that a broker writes: its coordinators' batches are valid."""


def topic_paths(config: LogConfig) -> SlowPath:
    """The slow paths that follow from a topic's configuration; with none, `prepare_batch` has nothing to
    do."""
    paths = SlowPath.NONE
    if config.compacts:
        paths |= SlowPath.KEYS
    if record_validation.limits_timestamps(config):
        paths |= SlowPath.TIMESTAMPS
    if config.timestamp_type is TimestampType.LOG_APPEND_TIME:
        paths |= SlowPath.LOG_APPEND_TIME
    if config.target_codec is not None:
        paths |= SlowPath.RECOMPRESSION
    return paths


def slow_paths(config: LogConfig, magic: int, attributes: int) -> SlowPath:
    """The slow paths of a client's batch with these `attributes`."""
    paths = topic_paths(config)
    if magic < MAGIC_V2:
        paths |= SlowPath.OLD_FORMAT
    if attributes & LOG_APPEND_TIME_FLAG:
        paths |= SlowPath.MARKED
    if config.target_codec == attributes & CODEC_MASK:
        paths &= ~SlowPath.RECOMPRESSION
    if magic == MAGIC_V2 and attributes & CODEC_MASK:
        paths |= SlowPath.COMPRESSED
    return paths


def needs_rewrite_or_records(config: LogConfig) -> bool:
    """Whether appends to a topic of this configuration may take a slow path."""
    return bool(topic_paths(config))


def rewrites_brokers_batches(config: LogConfig) -> bool:
    """Whether the batches that a broker writes to such a topic may take a slow path."""
    return bool(topic_paths(config) & _OF_BROKERS)


def to_single_v2_batch(
    view: memoryview, config: LogConfig, now_ms: int, *, allow_deferral: bool = False
) -> memoryview:
    """The single v2 batch of a producer's records for a partition. Old formats are validated and converted;
    the result is empty if they hold no whole message.

    Raises KafkaError as `single_batch`, and for old formats as `legacy_records`, INVALID_TIMESTAMP and
    MESSAGE_TOO_LARGE; ValidationDeferred.
    """
    if len(view) <= MAGIC_POSITION or view[MAGIC_POSITION] < MAGIC_V2:
        if allow_deferral and (
            len(view) > INLINE_LEGACY_BYTES_MAX
            or (len(view) > MAGIC_POSITION + 1 and view[MAGIC_POSITION + 1] & CODEC_MASK)
        ):
            raise ValidationDeferred
        return memoryview(_convert_legacy(view, config, now_ms))
    return single_batch(view)


def single_batch(view: memoryview) -> memoryview:
    """The single v2 batch that a producer may send per partition.

    Raises KafkaError: INVALID_RECORD if there is none or more than one (KIP-98), CORRUPT_MESSAGE if its magic
    or length is invalid.
    """
    if len(view) <= MAGIC_POSITION:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a produce request needs one record batch per partition")
    length = int.from_bytes(view[8:12], "big", signed=True)
    magic = view[MAGIC_POSITION]
    if magic != MAGIC_V2:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"record batches of magic {magic} are not known")
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
    """Raise KafkaError if a client may not send this header: INVALID_RECORD, UNKNOWN_SERVER_ERROR (as in
    Kafka, for an unknown codec).
    """
    if base_offset != 0:
        problem = f"the base offset must be 0, not {base_offset}"
    elif attributes & CODEC_MASK > Codec.ZSTD:
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"no compression codec has the id {attributes & CODEC_MASK}"
        )
    elif record_count <= 0 or last_offset_delta != record_count - 1:
        problem = f"{record_count} records do not span offsets 0 to {last_offset_delta}"
    elif attributes & CONTROL_FLAG:
        problem = "clients may not write control records"
    elif producer_id > NO_PRODUCER_ID and base_sequence <= NO_SEQUENCE:
        problem = f"an idempotent producer's sequence cannot be {base_sequence}"
    else:
        return
    raise KafkaError(ErrorCode.INVALID_RECORD, problem)


def validate(records: bytes | memoryview, config: LogConfig, now_ms: int) -> tuple[memoryview, int]:
    """Validate and convert a client's records completely. Returns the batch to store, empty if there is none,
    and the log append time, for `Log.append_as_leader(validated=...)`. Raises KafkaError as that does.
    """
    view = to_single_v2_batch(memoryview(records), config, now_ms)
    if not view:
        return view, NO_TIMESTAMP
    header = parse_batch_header(view)
    if len(view) > config.max_message_bytes or crc32c(view[CRC_START:]) != header.crc:
        return view, NO_TIMESTAMP  # the log rejects it
    check_client_batch(
        header.base_offset,
        header.attributes,
        header.last_offset_delta,
        header.producer_id,
        header.base_sequence,
        header.record_count,
    )
    return prepare_batch(view, config, now_ms, client=True)


def validate_in_worker(
    files: Files, records: bytes | memoryview, config: LogConfig, now_ms: int
) -> tuple[bytes | memoryview, int]:
    """`validate` as the job of a worker process. Raises MemoryError if the process has too little memory."""
    return validate(records, config, now_ms)


def prepare_batch(
    view: memoryview, config: LogConfig, now_ms: int, *, client: bool, allow_deferral: bool = False
) -> tuple[memoryview, int]:
    """Validate and convert a v2 batch. Returns the batch to store and the log append time (-1 under
    CreateTime).

    Control batches are stored unchanged. Raises KafkaError as `record_validation`, and UNKNOWN_SERVER_ERROR,
    as Kafka, for a batch that cannot be rebuilt; ValidationDeferred.
    """
    header = parse_batch_header(view)
    if header.is_control:
        return view, NO_TIMESTAMP
    paths = slow_paths(config, header.magic, header.attributes)
    if not client:
        paths &= _OF_BROKERS
    if paths & _NEEDS_RECORDS:
        view = _validate_records(
            view, header, config, now_ms, paths, client=client, allow_deferral=allow_deferral
        )
    elif paths & SlowPath.COMPRESSED:
        if allow_deferral and header.record_count > INLINE_RECORDS_MAX:
            raise ValidationDeferred
        with _deferred_if_large(allow_deferral):
            in_order, highest = record_validation.scan_record_heads(
                view, header, INLINE_BYTES_MAX if allow_deferral else None
            )
        view = _with_true_timestamp(view, header, in_order=in_order, highest_timestamp=highest)
    if paths & SlowPath.LOG_APPEND_TIME:
        return memoryview(with_log_append_time(view, now_ms)), now_ms
    return view, NO_TIMESTAMP


def _validate_records(
    view: memoryview,
    header: BatchHeader,
    config: LogConfig,
    now_ms: int,
    paths: SlowPath,
    *,
    client: bool,
    allow_deferral: bool,
) -> memoryview:
    """Validate the records. Returns the batch under CreateTime in the topic's codec."""
    decoded = (
        _scan_inline(view, header, paths)
        if allow_deferral
        else record_validation.decode_and_scan(view, header)
    )
    if client:
        record_validation.check(view, header, decoded, config, now_ms)
    if paths & SlowPath.RECOMPRESSION:
        return memoryview(_recompress(view, header, decoded, config))
    in_order = decoded.scan.in_order or header.codec is Codec.NONE
    return _with_true_timestamp(view, header, in_order=in_order, highest_timestamp=decoded.highest_timestamp)


def _with_true_timestamp(
    view: memoryview, header: BatchHeader, *, in_order: bool, highest_timestamp: int
) -> memoryview:
    """The batch with the true max timestamp of its records, under CreateTime."""
    if not in_order:
        # Kafka tries to reassign the offsets of such records, and fails, as it has not read them completely.
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the records' offsets are not consecutive from 0")
    if header.max_timestamp != highest_timestamp or header.attributes & LOG_APPEND_TIME_FLAG:
        return memoryview(with_create_time(view, highest_timestamp))
    return view


def _scan_inline(view: memoryview, header: BatchHeader, paths: SlowPath) -> DecodedRecords:
    max_bytes = INLINE_RECOMPRESSED_BYTES_MAX if paths & SlowPath.RECOMPRESSION else INLINE_BYTES_MAX
    if header.record_count > INLINE_RECORDS_MAX or len(view) > max_bytes:
        raise ValidationDeferred
    with _deferred_if_large(allow_deferral=True):
        return record_validation.decode_and_scan(view, header, max_bytes)


@contextmanager
def _deferred_if_large(allow_deferral: bool) -> Iterator[None]:
    """Turn MESSAGE_TOO_LARGE into ValidationDeferred: a batch beyond the inline limit may be valid."""
    try:
        yield
    except KafkaError as problem:
        if allow_deferral and problem.code is ErrorCode.MESSAGE_TOO_LARGE:
            raise ValidationDeferred from None
        raise


def _recompress(
    view: memoryview, header: BatchHeader, decoded: DecodedRecords, config: LogConfig
) -> bytes | bytearray:
    """The batch in the topic's codec. The records are rebuilt only if their encoding would change."""
    codec = config.target_codec
    assert codec is not None
    if decoded.lowest_timestamp < NO_TIMESTAMP:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"a timestamp of {decoded.lowest_timestamp}")
    level = config.compression_level(codec)
    rewritten = header.attributes & (LOG_APPEND_TIME_FLAG | DELETE_HORIZON_FLAG)
    if decoded.scan.in_order and decoded.scan.first_delta == 0 and not rewritten:
        return with_codec(view, decoded.data, codec, level, decoded.highest_timestamp)
    return build_batch(
        decode_batch(view),
        codec=codec,
        level=level,
        base_offset=header.base_offset,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        leader_epoch=header.partition_leader_epoch,
        transactional=header.is_transactional,
    )


def _convert_legacy(view: memoryview, config: LogConfig, now_ms: int) -> bytes:
    """Convert a message set to one batch under CreateTime (OLD_FORMAT); empty without messages."""
    messages = list(iter_messages(view))
    if not messages:
        return b""
    codec = Codec.NONE
    for message in messages:
        if message.size > config.max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a message of {message.size} bytes; the topic takes at most {config.max_message_bytes}",
            )
        if message.attributes & CODEC_MASK:
            # The message is a wrapper, or its codec does not exist in this format.
            codec = codec_of_message(message)
    if codec is not Codec.NONE and len(messages) > 1:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a compressed message must be the only one")
    records: list[Record] = []
    for message in messages:
        if message.magic != messages[0].magic:
            raise KafkaError(
                ErrorCode.INVALID_RECORD, f"formats {messages[0].magic} and {message.magic} in one set"
            )
        records += _legacy_records(message, config, now_ms)
    if min(record.timestamp for record in records) < NO_TIMESTAMP:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "a negative timestamp")
    if config.target_codec is None:
        return build_batch(records, codec=codec)
    return build_batch(
        records, codec=config.target_codec, level=config.compression_level(config.target_codec)
    )


def _legacy_records(message: Message, config: LogConfig, now_ms: int) -> list[Record]:
    records = open_message(message)
    errors = record_validation.record_errors(records, config, now_ms, by_broker=message.has_append_time)
    found = list(errors)
    if found:
        raise InvalidRecords(found)
    return records


def validate_leader_batches(view: memoryview, expected: int) -> list[tuple[int, BatchHeader]]:
    """(position, header) of the batches that a leader sent, which must ascend from offset `expected`.

    An incomplete batch at the end is ignored. Raises KafkaError: CORRUPT_MESSAGE,
    UNSUPPORTED_FOR_MESSAGE_FORMAT, OFFSET_OUT_OF_RANGE for an offset below the expected one.
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

"""What a batch must satisfy before it is appended, and the named slow paths of an append.

Called by `Log`'s appends, and by the produce handler for what depends on the request's version. On the fast
path a batch is its header and an opaque rest: length, checksum, and `check_client_batch`. Whatever leads off
it is a `SlowPath`, and `slow_paths` says which conditions do:

* OLD_FORMAT: message sets of formats 0 and 1 are converted (Produce 0 to 2);
* KEYS: every record of a compacted topic needs a key;
* TIMESTAMPS: the topic limits its records' timestamps (message.timestamp.before/after.max.ms, KIP-937);
* LOG_APPEND_TIME: the topic's records get the broker's time (header only, but the checksum is made anew);
* MARKED: a client says LogAppendTime, which is for brokers to say (header, or a refusal);
* RECOMPRESSION: compression.type names another codec than the batch has;
* COMPRESSED: the batch is compressed, and must decompress to as many whole records as its header says, with
  offsets in order; a highest timestamp that is not the header's is put right. Further fields within the
  records are not read: that is most of what Kafka's validation would cost here.

All others but LOG_APPEND_TIME look at the records, and find there what Kafka's LogValidator finds on each
append: lengths and counts that lie, record by record what the topic does not take (`record_checks`), a
highest timestamp that is not the header's (it is put right). On the fast path these stay unfound.

A few bytes can hold many records. Whoever must not take long (the event loop) asks for `light` work only, and
hears `SlowAppend` for what could be more than about a millisecond's; `settle` then does it all elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Flag, auto
from typing import Final

from crc32c import crc32c

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
from ottla.storage.record_validation import Inside, RecordsRefused

_LEGACY_ENTRY_MIN_BYTES = LOG_OVERHEAD + 14


LIGHT_RECORDS: Final = 2000
LIGHT_BYTES: Final = 256 * 1024
"""Of records, decompressed, to be walked over."""
LIGHT_RECOMPRESSED_BYTES: Final = 32 * 1024
LIGHT_OLD_BYTES: Final = 16 * 1024
"""Of a message set of an old format that is not compressed."""


class SlowAppend(Exception):
    """This may take long. Nothing has been done yet."""


class SlowPath(Flag):
    """Why an append is more than a look at the header. See the module."""

    NONE = 0
    OLD_FORMAT = auto()
    KEYS = auto()
    TIMESTAMPS = auto()
    LOG_APPEND_TIME = auto()
    MARKED = auto()
    RECOMPRESSION = auto()
    COMPRESSED = auto()


_LOOKS_INSIDE: Final = SlowPath.KEYS | SlowPath.TIMESTAMPS | SlowPath.MARKED | SlowPath.RECOMPRESSION


def topic_paths(config: LogConfig) -> SlowPath:
    """The slow paths that a topic's settings may lead to; with none, `prepare` has nothing to do."""
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
    """Those that a client's batch with these `attributes` takes."""
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
    """Whether appends to a topic of this configuration take a slow path, or may."""
    return bool(topic_paths(config))


def batch_to_append(view: memoryview, config: LogConfig, now_ms: int, *, light: bool = False) -> memoryview:
    """The one v2 batch of what a producer sent for a partition; old formats are converted to one, and judged
    by the topic's settings. Empty where there is no whole message of an old format: nothing to append.

    Raises KafkaError as `single_batch`, and for old formats as `legacy_records`, INVALID_TIMESTAMP and
    MESSAGE_TOO_LARGE; SlowAppend.
    """
    if len(view) <= MAGIC_POSITION or view[MAGIC_POSITION] < MAGIC_V2:
        if light and (
            len(view) > LIGHT_OLD_BYTES
            or (len(view) > MAGIC_POSITION + 1 and view[MAGIC_POSITION + 1] & CODEC_MASK)
        ):
            raise SlowAppend
        return memoryview(_converted(view, config, now_ms))
    return single_batch(view)


def single_batch(view: memoryview) -> memoryview:
    """The one v2 batch that a producer may send per partition.

    Raises KafkaError: INVALID_RECORD when there is none, or more than one (KIP-98), CORRUPT_MESSAGE when its
    magic or length cannot be right.
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
    """Whether a client may send this header.

    Raises KafkaError: INVALID_RECORD, UNKNOWN_SERVER_ERROR (Kafka's answer to a codec that is none).
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


def settle(records: bytes | memoryview, config: LogConfig, now_ms: int) -> tuple[memoryview, int]:
    """All that an append of a client's records does before it comes to the log: the batch as this topic
    stores it, empty where there is none, and the log append time. `Log.append_as_leader` takes it for that.

    Raises KafkaError as that does.
    """
    view = batch_to_append(memoryview(records), config, now_ms)
    if not view:
        return view, NO_TIMESTAMP
    header = parse_batch_header(view)
    if len(view) > config.max_message_bytes or crc32c(view[CRC_START:]) != header.crc:
        return view, NO_TIMESTAMP  # which the log refuses
    check_client_batch(
        header.base_offset,
        header.attributes,
        header.last_offset_delta,
        header.producer_id,
        header.base_sequence,
        header.record_count,
    )
    return prepare(view, config, now_ms, client=True)


def prepare(
    view: memoryview, config: LogConfig, now_ms: int, *, client: bool, light: bool = False
) -> tuple[memoryview, int]:
    """The batch as this topic stores it, and the log append time (-1 under CreateTime).

    Control batches are stored as they are. Raises KafkaError as `record_checks`, and for a batch that cannot
    be made anew UNKNOWN_SERVER_ERROR, as Kafka does; SlowAppend.
    """
    header = parse_batch_header(view)
    if header.is_control:
        return view, NO_TIMESTAMP
    paths = slow_paths(config, header.magic, header.attributes)
    if not client:
        paths &= SlowPath.RECOMPRESSION | SlowPath.LOG_APPEND_TIME
    if paths & _LOOKS_INSIDE:
        view = _judged(view, header, config, now_ms, paths, client=client, light=light)
    elif paths & SlowPath.COMPRESSED:
        if light and header.record_count > LIGHT_RECORDS:
            raise SlowAppend
        with _light_or_slow(light):
            in_order, highest = record_validation.heads(view, header, LIGHT_BYTES if light else None)
        view = _without_lies(view, header, in_order=in_order, highest_timestamp=highest)
    if paths & SlowPath.LOG_APPEND_TIME:
        return memoryview(with_log_append_time(view, now_ms)), now_ms
    return view, NO_TIMESTAMP


def _judged(
    view: memoryview,
    header: BatchHeader,
    config: LogConfig,
    now_ms: int,
    paths: SlowPath,
    *,
    client: bool,
    light: bool,
) -> memoryview:
    """The batch under CreateTime, its records checked, in the topic's codec."""
    inside = _light_inside(view, header, paths) if light else record_validation.looked_into(view, header)
    if client:
        record_validation.check(view, header, inside, config, now_ms)
    if paths & SlowPath.RECOMPRESSION:
        return memoryview(_recompressed(view, header, inside, config))
    in_order = inside.scan.in_order or header.codec is Codec.NONE
    return _without_lies(view, header, in_order=in_order, highest_timestamp=inside.highest_timestamp)


def _without_lies(
    view: memoryview, header: BatchHeader, *, in_order: bool, highest_timestamp: int
) -> memoryview:
    """The batch with the highest timestamp that its records have, under CreateTime."""
    if not in_order:
        # Kafka means to number such records anew, and fails as it has not read them whole.
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR, "the records' offsets do not ascend from 0 one by one"
        )
    if header.max_timestamp != highest_timestamp or header.attributes & LOG_APPEND_TIME_FLAG:
        return memoryview(with_create_time(view, highest_timestamp))
    return view


def _light_inside(view: memoryview, header: BatchHeader, paths: SlowPath) -> Inside:
    most = LIGHT_RECOMPRESSED_BYTES if paths & SlowPath.RECOMPRESSION else LIGHT_BYTES
    if header.record_count > LIGHT_RECORDS or len(view) > most:
        raise SlowAppend
    with _light_or_slow(light=True):
        return record_validation.looked_into(view, header, most)


@contextmanager
def _light_or_slow(light: bool) -> Iterator[None]:
    """What decompresses to more than a limit for light work may be right, and is SlowAppend's."""
    try:
        yield
    except KafkaError as problem:
        if light and problem.code is ErrorCode.MESSAGE_TOO_LARGE:
            raise SlowAppend from None
        raise


def _recompressed(
    view: memoryview, header: BatchHeader, inside: Inside, config: LogConfig
) -> bytes | bytearray:
    """The batch in the topic's codec. Where its records are as they would be written anew, they are not."""
    codec = config.target_codec
    assert codec is not None
    if inside.lowest_timestamp < NO_TIMESTAMP:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"a timestamp of {inside.lowest_timestamp}")
    level = config.compression_level(codec)
    rewritten = header.attributes & (LOG_APPEND_TIME_FLAG | DELETE_HORIZON_FLAG)
    if inside.scan.in_order and inside.scan.first_delta == 0 and not rewritten:
        return with_codec(view, inside.data, codec, level, inside.highest_timestamp)
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


def _converted(view: memoryview, config: LogConfig, now_ms: int) -> bytes:
    """The slow path OLD_FORMAT: a message set as one batch, under CreateTime; no messages, no batch."""
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
            # Such a codec does not exist in these formats, or the message is a wrapper.
            codec = codec_of_message(message)
    if codec is not Codec.NONE and len(messages) > 1:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a compressed message must be the only one")
    records: list[Record] = []
    for message in messages:
        if message.magic != messages[0].magic:
            raise KafkaError(
                ErrorCode.INVALID_RECORD, f"formats {messages[0].magic} and {message.magic} in one set"
            )
        records += _records_of(message, config, now_ms)
    if min(record.timestamp for record in records) < NO_TIMESTAMP:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "a negative timestamp")
    if config.target_codec is None:
        return build_batch(records, codec=codec)
    return build_batch(
        records, codec=config.target_codec, level=config.compression_level(config.target_codec)
    )


def _records_of(message: Message, config: LogConfig, now_ms: int) -> list[Record]:
    records = open_message(message)
    errors = record_validation.record_errors(records, config, now_ms, by_broker=message.has_append_time)
    found = list(errors)
    if found:
        raise RecordsRefused(found)
    return records


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

"""Down-conversion of batches v2 for old clients: every record that the old format can express, once."""

from __future__ import annotations

import pytest

from ottla.protocol.compression import Codec, decompress
from ottla.protocol.down_conversion import GROUP_BYTES, down_converted
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.legacy_records import decode_message_set, encode_message_set, iter_messages
from ottla.protocol.records import ControlType, Record, TimestampType, build_batch, build_control_batch

OLD_CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]


def batch(first: int, *values: bytes, codec: Codec = Codec.NONE, **options: object) -> bytes:
    records = [
        Record(first + at, 1000 + at, b"k%d" % at, value, [("h", b"x")]) for at, value in enumerate(values)
    ]
    return build_batch(records, base_offset=first, codec=codec, **options)  # type: ignore[arg-type]


MARKER = build_control_batch(
    ControlType.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=1, base_offset=7
)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS)
def test_records_come_with_their_offsets(magic: int, codec: Codec) -> None:
    data = batch(5, b"a", b"b", codec=codec) + batch(9, b"c", codec=codec)
    found = decode_message_set(down_converted(data, magic, 5))
    assert [(record.offset, record.key, record.value) for record in found] == [
        (5, b"k0", b"a"),
        (6, b"k1", b"b"),
        (9, b"k0", b"c"),
    ]
    assert [record.timestamp for record in found] == ([1000, 1001, 1000] if magic else [-1, -1, -1])


def test_wrappers_of_v1_count_from_their_first_record_and_those_of_v0_do_not() -> None:
    records = [Record(offset, offset, b"k", b"v") for offset in (40, 43)]
    for magic, inner in ((0, [40, 43]), (1, [0, 3])):
        (wrapper,) = iter_messages(encode_message_set(records, magic, Codec.GZIP))
        assert wrapper.offset == 43
        assert wrapper.timestamp == (43 if magic else -1)
        assert wrapper.value is not None
        offsets = [m.offset for m in iter_messages(decompress(Codec.GZIP, wrapper.value))]
        assert offsets == inner


def test_the_brokers_time_stays_marked_in_v1() -> None:
    data = batch(0, b"a", b"b", codec=Codec.GZIP, timestamp_type=TimestampType.LOG_APPEND_TIME)
    (wrapper,) = iter_messages(down_converted(data, 1, 0))
    assert (wrapper.attributes, wrapper.timestamp) == (Codec.GZIP | 8, 1001)
    (wrapper,) = iter_messages(down_converted(data, 0, 0))
    assert wrapper.attributes == Codec.GZIP


def test_lz4_in_v0_has_the_old_header_checksum() -> None:
    data = batch(0, b"a" * 100, codec=Codec.LZ4)
    for magic, checksum in ((0, 0x1A), (1, 0x82)):
        (wrapper,) = iter_messages(down_converted(data, magic, 0))
        assert wrapper.value is not None
        assert wrapper.value[6] == checksum


def test_records_before_the_fetch_are_left_out_unless_a_wrapper_holds_them() -> None:
    assert [r.offset for r in decode_message_set(down_converted(batch(0, b"a", b"b", b"c"), 1, 1))] == [1, 2]
    wrapped = batch(0, b"a", b"b", b"c", codec=Codec.GZIP)
    assert [r.offset for r in decode_message_set(down_converted(wrapped, 1, 1))] == [0, 1, 2]


def test_control_batches_are_left_out() -> None:
    data = MARKER + batch(8, b"a")
    assert [record.offset for record in decode_message_set(down_converted(data, 1, 7))] == [8]


def test_a_fetch_without_convertible_records_still_makes_the_client_advance() -> None:
    only = down_converted(MARKER, 1, 7)
    assert len(only) == 12
    assert int.from_bytes(only[8:], "big") > 0
    assert list(iter_messages(only)) == []


def test_a_partial_batch_is_replaced_by_padding() -> None:
    whole = batch(0, *[b"v" * 20] * 5, codec=Codec.GZIP)
    data = whole + batch(5, b"b" * 100)[:-1]
    converted = down_converted(data, 1, 0)
    assert len(converted) == len(data), "as long as what is in the log"
    assert [record.offset for record in decode_message_set(converted)] == [0, 1, 2, 3, 4]
    assert down_converted(data[: len(whole) - 1], 1, 0) == b""


def test_the_first_batch_is_whole_however_long_it_becomes() -> None:
    data = batch(0, *[b""] * 100)
    converted = down_converted(data, 1, 0)
    assert len(converted) > len(data)
    assert len(decode_message_set(converted)) == 100


def test_later_batches_are_cut_off_at_the_length_in_the_log() -> None:
    data = b"".join(batch(at, b"") for at in range(100))
    small = batch(0, *[b""] * 100) + batch(100, *[b""] * 100)
    assert len(down_converted(data, 1, 0)) == len(data)
    found = decode_message_set(down_converted(small, 1, 0))
    assert [record.offset for record in found] == list(range(len(found)))
    assert 100 <= len(found) < 200, "what was cut off is fetched next"


def test_zstd_is_refused_where_nothing_comes_before_it() -> None:
    zstd = batch(1, b"b", codec=Codec.ZSTD)
    with pytest.raises(KafkaError) as caught:
        down_converted(zstd, 1, 1)
    assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    with pytest.raises(KafkaError):
        down_converted(MARKER + zstd, 1, 0)
    converted = down_converted(batch(0, b"a") + zstd + batch(2, b"c"), 1, 0)
    assert [record.offset for record in decode_message_set(converted)] == [0]


def test_a_batch_that_does_not_decode_is_refused_at_the_front_only() -> None:
    broken = bytearray(batch(1, b"b"))
    broken[65] = 0x7E
    with pytest.raises(KafkaError) as caught:
        down_converted(broken, 1, 1)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert len(decode_message_set(down_converted(batch(0, b"a") + broken, 1, 0))) == 1


def test_large_answers_are_filled_group_by_group() -> None:
    data = batch(0, b"a") + batch(1, bytes(3 * GROUP_BYTES), codec=Codec.ZSTD)
    data += batch(2, bytes([7]) * 400_000)[:-1]
    converted = down_converted(data, 0, 0)
    assert len(converted) == len(data)
    assert [record.offset for record in decode_message_set(converted)] == [0]


def test_a_timestamp_before_1970_becomes_none() -> None:
    data = build_batch([Record(0, -5, b"k", b"v")])
    assert decode_message_set(down_converted(data, 1, 0))[0].timestamp == -1

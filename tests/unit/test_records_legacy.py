"""Message sets of formats v0 and v1 are read, also compressed ones."""

from __future__ import annotations

import pytest

from ottla.protocol.compression import Codec
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.legacy_records import codec_of_message, decode_message_set, iter_messages
from tests.legacy_messages import message, wrapped


@pytest.mark.parametrize("magic", [0, 1])
def test_plain_messages_are_records(magic: int) -> None:
    data = message(magic, 0, b"a", b"1") + message(magic, 1, None, None)
    timestamp = -1 if magic == 0 else 1000
    assert [(r.offset, r.timestamp, r.key, r.value) for r in decode_message_set(data)] == [
        (0, timestamp, b"a", b"1"),
        (1, timestamp, None, None),
    ]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_compressed_sets_are_opened(magic: int, codec: Codec) -> None:
    inner = b"".join(message(magic, at, b"k%d" % at, b"v" * 100) for at in range(5))
    data = wrapped(magic, codec, 4, inner)
    assert [codec_of_message(one) for one in iter_messages(data)] == [codec]
    assert [record.key for record in decode_message_set(data)] == [b"k%d" % at for at in range(5)]


def test_inner_offsets_of_v1_count_back_from_the_wrappers() -> None:
    inner = b"".join(message(1, at, None, b"v") for at in range(3))
    assert [record.offset for record in decode_message_set(wrapped(1, Codec.GZIP, 42, inner))] == [40, 41, 42]


def test_a_wrapper_with_log_append_time_gives_it_to_its_records() -> None:
    inner = message(1, 0, None, b"v", timestamp=7)
    assert decode_message_set(wrapped(1, Codec.GZIP, 0, inner, attributes=8))[0].timestamp == 4000
    assert decode_message_set(wrapped(1, Codec.GZIP, 0, inner))[0].timestamp == 7


def test_damage_is_refused() -> None:
    data = bytearray(message(1, 0, b"a", b"1"))
    data[-1] ^= 1
    with pytest.raises(KafkaError) as caught:
        decode_message_set(data)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_a_message_that_was_cut_off_is_left_out() -> None:
    whole = message(1, 0, b"a", b"1")
    assert decode_message_set(whole[:-1]) == []
    assert len(decode_message_set(whole + message(1, 1, b"b", b"2")[:-1])) == 1


def test_compression_within_compression_is_refused() -> None:
    inner = wrapped(1, Codec.GZIP, 0, message(1, 0, None, b"v"))
    with pytest.raises(KafkaError) as caught:
        decode_message_set(wrapped(1, Codec.GZIP, 0, inner))
    assert caught.value.code is ErrorCode.INVALID_RECORD

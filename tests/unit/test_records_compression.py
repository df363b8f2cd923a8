"""Codecs: round trips, in the framing of Kafka's other readers and writers."""

from __future__ import annotations

import gzip
import struct
import time

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.compression import (
    Codec,
    compress,
    decompress,
    decompressed_max_bytes,
    fix_lz4_v0_header,
)
from ottla.protocol.errors import ErrorCode, KafkaError

DATA = b"".join(b"record %d of a stream; " % number for number in range(20_000))


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("data", [b"", b"x", DATA, DATA[: 64 * 1024], bytes(range(256)) * 700])
def test_data_survives_a_round_trip(codec: Codec, data: bytes) -> None:
    assert decompress(codec, compress(codec, data)) == data


@given(data=st.binary(max_size=2000), codec=st.sampled_from(Codec))
def test_arbitrary_data_survives_a_round_trip(data: bytes, codec: Codec) -> None:
    assert decompress(codec, memoryview(compress(codec, memoryview(data)))) == data


def test_raw_snappy_is_read_too() -> None:
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(DATA))) == DATA


def test_snappy_is_written_in_blocks_of_the_stream_format() -> None:
    compressed = compress(Codec.SNAPPY, DATA)
    assert compressed[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


def test_lz4_frames_have_independent_blocks() -> None:
    flags = compress(Codec.LZ4, DATA)[4]
    assert flags >> 6 == 1, "version of the frame format"
    assert flags & 0x20, "Kafka's Java reader refuses blocks that depend on each other"


def test_an_lz4_header_with_the_checksum_of_format_v0_is_corrected() -> None:
    frame = bytearray(compress(Codec.LZ4, DATA))
    frame[6] ^= 0xFF
    with pytest.raises(KafkaError):
        decompress(Codec.LZ4, frame)
    assert decompress(Codec.LZ4, fix_lz4_v0_header(frame)) == DATA


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
@given(data=st.binary(min_size=1, max_size=100))
def test_uncompressed_bytes_are_refused(codec: Codec, data: bytes) -> None:
    refusal = None
    try:
        decompress(codec, data)
    except KafkaError as error:
        refusal = error.code
    assert refusal in (None, ErrorCode.CORRUPT_MESSAGE)


def test_a_snappy_block_that_reaches_beyond_the_data_is_refused() -> None:
    with pytest.raises(KafkaError):
        decompress(Codec.SNAPPY, compress(Codec.SNAPPY, DATA)[:-5])


def test_snappy_streams_put_one_after_the_other_are_read() -> None:
    assert decompress(Codec.SNAPPY, compress(Codec.SNAPPY, b"a") + compress(Codec.SNAPPY, b"b")) == b"ab"


def test_many_small_gzip_members_cost_no_more_than_their_bytes() -> None:
    """They used to cost the square: 4 MB of empty ones held a broker up for eight seconds."""
    member = gzip.compress(b"", 1)
    began = time.process_time()
    assert decompress(Codec.GZIP, member * 200_000 + gzip.compress(DATA)) == DATA
    assert time.process_time() - began < 3


def test_gzip_members_put_one_after_the_other_are_read() -> None:
    assert decompress(Codec.GZIP, compress(Codec.GZIP, b"a") + compress(Codec.GZIP, b"b")) == b"ab"


@pytest.mark.parametrize(
    ("codec", "levels"), [(Codec.GZIP, [1, 9]), (Codec.LZ4, [9, 8]), (Codec.ZSTD, [-5, 1, 19])]
)
def test_levels_that_take_longer_compress_more(codec: Codec, levels: list[int]) -> None:
    compressed = [compress(codec, DATA, level) for level in levels]
    assert all(decompress(codec, each) == DATA for each in compressed)
    sizes = [len(each) for each in compressed]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]


def test_lz4_levels_keep_blocks_independent() -> None:
    assert compress(Codec.LZ4, DATA, 12)[4] & 0x20


def test_a_v0_header_is_the_one_that_old_clients_wrote() -> None:
    frame = compress(Codec.LZ4, DATA, v0_header=True)
    assert frame[6] == 0x1A, "xxHash32 of magic and descriptor, its second byte (KAFKA-3160)"
    assert decompress(Codec.LZ4, fix_lz4_v0_header(frame)) == DATA


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_a_decompression_bomb_is_refused(codec: Codec) -> None:
    bomb = compress(codec, bytes(65 << 20))
    assert decompressed_max_bytes(len(bomb)) < 65 << 20
    with pytest.raises(KafkaError) as caught:
        decompress(codec, bomb)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_data_of_the_maximal_size_is_read(codec: Codec) -> None:
    most = bytes(64 << 20)
    assert len(decompress(codec, compress(codec, most))) == len(most)

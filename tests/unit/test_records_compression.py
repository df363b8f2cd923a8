"""Codecs: what is compressed comes back, in the framing that Kafka's other readers and writers use."""

from __future__ import annotations

import struct

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.compression import Codec, compress, decompress, fix_lz4_v0_header
from ottla.protocol.errors import ErrorCode, KafkaError

DATA = b"".join(b"record %d of a stream; " % number for number in range(20_000))


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("data", [b"", b"x", DATA, DATA[: 64 * 1024], bytes(range(256)) * 700])
def test_data_comes_back(codec: Codec, data: bytes) -> None:
    assert decompress(codec, compress(codec, data)) == data


@given(data=st.binary(max_size=2000), codec=st.sampled_from(Codec))
def test_any_data_comes_back(data: bytes, codec: Codec) -> None:
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


def test_an_lz4_header_with_the_checksum_of_format_v0_is_mended() -> None:
    frame = bytearray(compress(Codec.LZ4, DATA))
    frame[6] ^= 0xFF
    with pytest.raises(KafkaError):
        decompress(Codec.LZ4, frame)
    assert decompress(Codec.LZ4, fix_lz4_v0_header(frame)) == DATA


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
@given(data=st.binary(min_size=1, max_size=100))
def test_what_is_not_compressed_is_refused(codec: Codec, data: bytes) -> None:
    refusal = None
    try:
        decompress(codec, data)
    except KafkaError as error:
        refusal = error.code
    assert refusal in (None, ErrorCode.CORRUPT_MESSAGE)


def test_a_snappy_block_that_reaches_beyond_the_data_is_refused() -> None:
    with pytest.raises(KafkaError):
        decompress(Codec.SNAPPY, compress(Codec.SNAPPY, DATA)[:-5])

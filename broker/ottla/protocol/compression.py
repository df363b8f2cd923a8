"""The compression codecs of record batches: gzip, snappy, lz4 and zstd, as Kafka frames them.

Called by `records` and `legacy_records`, never on the broker's hot path: a broker that stores what
the producer sent does not look inside. The work is done by cramjam; what is ours is the framing
where Kafka's readers are particular about it:

* snappy is written in xerial's stream format (what Java clients read and write) and read in either
  that or the raw format that some older clients send;
* lz4 is written as a frame of independent 64 KiB blocks, because Kafka's Java reader refuses blocks
  that refer to earlier ones (which is what cramjam's own frame writer makes);
* lz4 frames in messages of format v0 carry a header checksum over the wrong bytes (KAFKA-3160):
  `fix_lz4_v0_header` mends it before decompression.
"""

from __future__ import annotations

import struct
from enum import IntEnum

import cramjam

from ottla.protocol.errors import ErrorCode, KafkaError

Buffer = bytes | bytearray | memoryview


class Codec(IntEnum):
    """Compression codec, as in the three low bits of a batch's attributes (zstd: KIP-110)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODEC_BY_NAME: dict[str, Codec] = {
    "none": Codec.NONE,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
# Version 1, independent blocks, no checksums, blocks of at most 64 KiB; the third byte is the
# header checksum of the first two, constant because they are.
_LZ4_HEADER = _LZ4_MAGIC + b"\x60\x40\x82"
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_STORED = 0x8000_0000
_LZ4_END = b"\x00\x00\x00\x00"

_U32_LE = struct.Struct("<I")
_I32_BE = struct.Struct(">i")


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Compress `data`; `level` is gzip's or zstd's own, None for Kafka's default."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(data, level=6 if level in (None, -1) else level))
        case Codec.SNAPPY:
            return _compress_xerial(memoryview(data))
        case Codec.LZ4:
            return _compress_lz4(memoryview(data))
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=3 if level is None else level))


def decompress(codec: Codec, data: Buffer) -> bytes:
    """Decompress `data`. Raises KafkaError(CORRUPT_MESSAGE) where it is not what the codec says."""
    try:
        match codec:
            case Codec.NONE:
                return bytes(data)
            case Codec.GZIP:
                return bytes(cramjam.gzip.decompress(data))
            case Codec.SNAPPY:
                return _decompress_snappy(memoryview(data))
            case Codec.LZ4:
                return bytes(cramjam.lz4.decompress(data))
            case Codec.ZSTD:
                return bytes(cramjam.zstd.decompress(data))
    except (cramjam.DecompressionError, struct.error, ValueError) as problem:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"{codec.name.lower()} data does not decompress: {problem}"
        ) from problem


def _compress_xerial(data: memoryview) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_I32_BE.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview) -> bytes:
    if data[:8] != _XERIAL_MAGIC:
        return bytes(cramjam.snappy.decompress_raw(data))
    parts = []
    pos = len(_XERIAL_HEADER)
    while pos < len(data):
        (length,) = _I32_BE.unpack_from(data, pos)
        pos += 4
        if not 0 <= length <= len(data) - pos:
            raise ValueError(f"a block of {length} bytes at {pos} does not fit in {len(data)} bytes")
        parts.append(bytes(cramjam.snappy.decompress_raw(data[pos : pos + length])))
        pos += length
    return b"".join(parts)


def _compress_lz4(data: memoryview) -> bytes:
    parts = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        raw = data[start : start + _LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(raw, store_size=False))
        if len(block) < len(raw):
            parts += (_U32_LE.pack(len(block)), block)
        else:
            parts += (_U32_LE.pack(len(raw) | _LZ4_STORED), bytes(raw))
    parts.append(_LZ4_END)
    return b"".join(parts)


def fix_lz4_v0_header(data: Buffer) -> bytes:
    """The frame with the header checksum that the lz4 format asks for (KAFKA-3160: message format
    v0 computed it over the magic as well). Frames too short to hold a header are returned as is."""
    frame = bytearray(data)
    if len(frame) < 7 or frame[:4] != _LZ4_MAGIC:
        return bytes(frame)
    content_size_bytes = 8 if frame[4] & 0x08 else 0
    end = 6 + content_size_bytes
    if len(frame) > end:
        frame[end] = (_xxh32(bytes(frame[4:end])) >> 8) & 0xFF
    return bytes(frame)


def _xxh32(data: bytes) -> int:
    """xxHash32 with seed 0 of fewer than 16 bytes: all that a frame header needs."""
    assert len(data) < 16
    prime1, prime2, prime3, prime4, prime5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    mask = 0xFFFF_FFFF
    acc = (prime5 + len(data)) & mask
    pos = 0
    while pos + 4 <= len(data):
        acc = (acc + _U32_LE.unpack_from(data, pos)[0] * prime3) & mask
        acc = (((acc << 17) | (acc >> 15)) & mask) * prime4 & mask
        pos += 4
    for byte in data[pos:]:
        acc = (acc + byte * prime5) & mask
        acc = (((acc << 11) | (acc >> 21)) & mask) * prime1 & mask
    acc = (acc ^ (acc >> 15)) * prime2 & mask
    acc = (acc ^ (acc >> 13)) * prime3 & mask
    return acc ^ (acc >> 16)

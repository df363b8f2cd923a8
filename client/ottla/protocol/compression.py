"""The compression codecs of record batches: gzip, snappy, lz4 and zstd, as Kafka frames them.

Called by `records` and `legacy_records`, never on the broker's hot path: a broker stores the producer's
bytes without decompressing them. zlib and cramjam compress; this module has the
framing that Kafka's readers require:

* snappy is written in xerial's stream format (what Java clients read and write) and read in either
  that or the raw format that some older clients send;
* lz4 is written as a frame of independent 64 KiB blocks, because Kafka's Java reader refuses blocks
  that refer to earlier ones (which is what cramjam's own frame writer makes);
* lz4 frames in messages of format v0 carry a header checksum over the wrong bytes (KAFKA-3160):
  `compress` writes it on demand, and `fix_lz4_v0_header` corrects it before decompression.

Invariant: nothing decompresses to more than `decompressed_max_bytes`, whatever the sender claims.
"""

from __future__ import annotations

import struct
import zlib
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

DEFAULT_LEVEL: dict[Codec, int] = {Codec.GZIP: -1, Codec.LZ4: 9, Codec.ZSTD: 3}
"""Kafka's levels; 9 of lz4 is the fast compressor, any other level the high compressor."""

_GZIP_WBITS = 16 + zlib.MAX_WBITS
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW_MIN_BYTES = 4096
_LZ4_RATIO_MAX = 255
_SNAPPY_RATIO_MAX = 22  # 64 bytes for a copy of three
_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_BLOCK_MAX_BYTES = 128 * 1024
_DECOMPRESSED_MAX_BYTES = 64 * 1024 * 1024
_DECOMPRESSED_RATIO_MAX = 16

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
# Version 1, independent blocks, no checksums, blocks of at most 64 KiB; the third byte is the
# header checksum of the first two, constant because they are.
_LZ4_HEADER = _LZ4_MAGIC + b"\x60\x40\x82"
_LZ4_HEADER_V0 = _LZ4_MAGIC + b"\x60\x40\x1a"  # the checksum of the magic, too
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_STORED = 0x8000_0000
_LZ4_END = b"\x00\x00\x00\x00"

_U32_LE = struct.Struct("<I")
_I32_BE = struct.Struct(">i")


def compress(codec: Codec, data: Buffer, level: int | None = None, *, v0_header: bool = False) -> bytes:
    """Compress `data`; `level` is the codec's own, None for Kafka's default. `v0_header`: with the lz4
    header checksum that readers of message format v0 expect."""
    if level is None:
        level = DEFAULT_LEVEL.get(codec)
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            assert level is not None
            stream = zlib.compressobj(level, wbits=_GZIP_WBITS)
            return stream.compress(data) + stream.flush()
        case Codec.SNAPPY:
            return _compress_xerial(memoryview(data))
        case Codec.LZ4:
            header = _LZ4_HEADER_V0 if v0_header else _LZ4_HEADER
            return _compress_lz4(memoryview(data), header, None if level == DEFAULT_LEVEL[codec] else level)
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=level))


def decompressed_max_bytes(compressed_bytes: int) -> int:
    """The limit of the decompressed size of so many bytes: 64 MiB, or 16 times the size if that is more.

    Kafka has no such limit, and runs out of heap.
    """
    return max(_DECOMPRESSED_MAX_BYTES, _DECOMPRESSED_RATIO_MAX * compressed_bytes)


def decompress(codec: Codec, data: Buffer, most: int | None = None) -> bytes:
    """Decompress `data`. Raises KafkaError: CORRUPT_MESSAGE if the codec cannot decompress it,
    MESSAGE_TOO_LARGE if the result is larger than `most`, or `decompressed_max_bytes`."""
    limit = decompressed_max_bytes(len(data)) if most is None else most
    try:
        match codec:
            case Codec.NONE:
                return bytes(data)
            case Codec.GZIP:
                return _decompress_gzip(data, limit)
            case Codec.SNAPPY:
                return _decompress_snappy(memoryview(data), limit)
            case Codec.LZ4:
                if _lz4_may_become(memoryview(data)) <= limit:
                    return bytes(cramjam.lz4.decompress(data))
                return _decompress_into_limit(codec, data, limit)
            case Codec.ZSTD:
                if not data:
                    return b""  # no frame is an empty stream, as for Kafka's reader
                if _zstd_may_become(memoryview(data)) <= limit:
                    return bytes(cramjam.zstd.decompress(data))
                return _decompress_into_limit(codec, data, limit)
    except _TooLarge:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{len(data)} bytes of {codec.name.lower()} data decompress to more than {limit}",
        ) from None
    except (cramjam.DecompressionError, zlib.error, struct.error, ValueError) as problem:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"{codec.name.lower()} data does not decompress: {problem}"
        ) from problem


class _TooLarge(Exception):
    """The decompressed data is larger than the limit."""


def _decompress_gzip(data: Buffer, limit: int) -> bytes:
    """All members of the stream, as Java reads them; bytes after the first that are no member are ignored."""
    view = memoryview(data)
    at = 0
    parts: list[bytes] = []
    while True:
        stream = zlib.decompressobj(wbits=_GZIP_WBITS)
        # zlib copies the bytes behind a member: with many small members it gets few bytes at a time.
        window = _GZIP_WINDOW_MIN_BYTES
        while not stream.eof:
            if at == len(view):
                raise ValueError("the stream ends early")
            # One byte more than the limit detects a stream that is too large.
            part = stream.decompress(view[at : at + window], limit + 1)
            limit -= len(part)
            if limit < 0:
                raise _TooLarge
            parts.append(part)
            at = min(at + window, len(view)) - len(stream.unused_data)
            window *= 2
        if view[at : at + 2] != _GZIP_MAGIC:
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_into_limit(codec: Codec, data: Buffer, limit: int) -> bytes:
    """Decompress data that may exceed the limit, into a buffer of the limit's size, which has to be
    cleared."""
    module = cramjam.lz4 if codec is Codec.LZ4 else cramjam.zstd
    buffer = bytearray(limit + 1)
    try:
        size = module.decompress_into(data, buffer)
    except cramjam.DecompressionError as problem:
        if "write whole buffer" in str(problem):
            raise _TooLarge from None
        raise
    if size > limit:
        raise _TooLarge
    return bytes(memoryview(buffer)[:size])


def _lz4_may_become(data: memoryview) -> int:
    """An upper bound of the decompressed size of an lz4 frame, from the headers of its blocks; of a malformed
    one, of the part before the error."""
    if len(data) < 7 or data[:4] != _LZ4_MAGIC:
        return 0
    flags = data[4]
    block_max_bytes = 1 << (8 + 2 * (data[5] >> 4 & 7))
    pos = 7 + (8 if flags & 0x08 else 0)
    total = 0
    while pos + 4 <= len(data):
        (size,) = _U32_LE.unpack_from(data, pos)
        if size == 0:
            break  # decoders read one frame
        stored = size & _LZ4_STORED
        size &= ~_LZ4_STORED
        total += size if stored else min(block_max_bytes, size * _LZ4_RATIO_MAX)
        pos += 4 + size + (4 if flags & 0x10 else 0)
    return total


def _zstd_may_become(data: memoryview) -> int:
    """An upper bound of the decompressed size of a zstd stream, from the headers of its blocks (RFC 8878); of
    a malformed one, of the part before the error."""
    total = pos = 0
    while pos + 6 <= len(data):
        (magic,) = _U32_LE.unpack_from(data, pos)
        if magic & 0xFFFFFFF0 == 0x184D2A50:  # a skippable frame
            pos += 8 + int.from_bytes(data[pos + 4 : pos + 8], "little")
            continue
        if magic != _ZSTD_MAGIC:
            break
        descriptor = data[pos + 4]
        single_segment = descriptor >> 5 & 1
        content_size_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
        pos += 5 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3] + content_size_bytes
        last = False
        while not last and pos + 3 <= len(data):
            header = int.from_bytes(data[pos : pos + 3], "little")
            last = bool(header & 1)
            kind, size = header >> 1 & 3, header >> 3
            pos += 3 + (1 if kind == 1 else size)
            total += size if kind < 2 else _ZSTD_BLOCK_MAX_BYTES
        pos += 4 if descriptor & 4 else 0
    return total


def _compress_xerial(data: memoryview) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_I32_BE.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, limit: int) -> bytes:
    if data[:8] != _XERIAL_MAGIC:
        return _decompress_raw_snappy(data, limit)
    parts = []
    pos = 0
    while pos < len(data):
        if data[pos : pos + 8] == _XERIAL_MAGIC:  # streams may be concatenated
            pos += len(_XERIAL_HEADER)
            continue
        (length,) = _I32_BE.unpack_from(data, pos)
        pos += 4
        if not 0 <= length <= len(data) - pos:
            raise ValueError(f"a block of {length} bytes at {pos} does not fit in {len(data)} bytes")
        part = _decompress_raw_snappy(data[pos : pos + length], limit)
        limit -= len(part)
        parts.append(part)
        pos += length
    return b"".join(parts)


def _decompress_raw_snappy(data: memoryview, limit: int) -> bytes:
    claimed = cramjam.snappy.decompress_raw_len(data)
    if claimed > _SNAPPY_RATIO_MAX * len(data):
        raise ValueError(f"{len(data)} bytes cannot become {claimed}")
    if claimed > limit:
        raise _TooLarge
    return bytes(cramjam.snappy.decompress_raw(data))


def _compress_lz4(data: memoryview, header: bytes, level: int | None) -> bytes:
    parts = [header]
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        raw = data[start : start + _LZ4_BLOCK_BYTES]
        if level is None:
            block = bytes(cramjam.lz4.compress_block(raw, store_size=False))
        else:
            block = _thorough_lz4_block(raw, level)
        if len(block) < len(raw):
            parts += (_U32_LE.pack(len(block)), block)
        else:
            parts += (_U32_LE.pack(len(raw) | _LZ4_STORED), bytes(raw))
    parts.append(_LZ4_END)
    return b"".join(parts)


def _thorough_lz4_block(raw: memoryview, level: int) -> bytes:
    """The block of a one-block frame: cramjam compresses by level in frames only."""
    frame = bytes(cramjam.lz4.compress(raw, level=level))
    start = len(_LZ4_HEADER)
    (size,) = _U32_LE.unpack_from(frame, start)
    if size & _LZ4_STORED:
        return bytes(raw)
    return frame[start + 4 : start + 4 + size]


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

"""Messages of the formats v0 and v1, byte by byte: what old clients send, and what they should not."""

from __future__ import annotations

import struct
from zlib import crc32

from ottla.protocol.compression import Codec, compress


def message(
    magic: int,
    offset: int = 0,
    key: bytes | None = b"k",
    value: bytes | None = b"v",
    *,
    timestamp: int = 1000,
    attributes: int = 0,
) -> bytes:
    body = struct.pack(">bb", magic, attributes)
    if magic == 1:
        body += struct.pack(">q", timestamp)
    for data in (key, value):
        body += struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data
    return entry(offset, body)


def entry(offset: int, body: bytes) -> bytes:
    """A message of this content, with its offset, size and checksum."""
    return struct.pack(">qiI", offset, len(body) + 4, crc32(body)) + body


def wrapped(magic: int, codec: Codec, offset: int, inner: bytes, attributes: int = 0) -> bytes:
    """A message with a compressed set of messages."""
    data = bytearray(compress(codec, inner))
    if codec is Codec.LZ4 and magic == 0:
        data[6] ^= 0x55  # the wrong checksum that old clients wrote
    return message(magic, offset, None, bytes(data), timestamp=4000, attributes=codec | attributes)

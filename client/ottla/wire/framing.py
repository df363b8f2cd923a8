"""Cuts the byte stream from a broker into frames. Called by `connection_state`.

Bytes are received into the memory that `buffer` returns. A `borrowed` frame is a view of the read buffer, and
valid until the next call of `buffer`. A frame that has to be valid longer, or that is larger than the largest
read buffer, has a buffer of its own. Invariant: frames are whole and in order, however the stream was
segmented."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final

_SIZE: Final = struct.Struct(">i")
_SIZE_MIN: Final = 4
"""A correlation id."""
_READ_BUFFER_BYTES: Final = 64 * 1024
READ_BUFFER_BYTES_MAX: Final = 2 * 1024 * 1024
"""The largest size of the read buffer, for a fetcher, whose responses are mostly of the same size."""
FRAME_BYTES_MAX: Final = 256 * 1024 * 1024


class ConnectionLost(ConnectionError):
    """The connection ended before the response came; whether the request took effect is not known."""


class FrameBuffer:
    """See the module."""

    def __init__(self, next_is_kept: Callable[[], bool]) -> None:
        """`next_is_kept`: whether the next frame has to be valid longer than its delivery."""
        self.borrowed = False
        """Whether the last frame is a view of the read buffer."""
        self._next_is_kept = next_is_kept
        self._buffer = bytearray(_READ_BUFFER_BYTES)
        self._filled = 0
        self._own: bytearray | None = None
        self._own_filled = 0

    def buffer(self) -> memoryview:
        """The memory for the next bytes; never empty."""
        if self._own is not None:
            return memoryview(self._own)[self._own_filled :]
        return memoryview(self._buffer)[self._filled :]

    def received(self, nbytes: int) -> Iterator[memoryview]:
        """The frames that are whole after so many bytes were received, without their sizes. Take all of them
        before the next call. Raises ConnectionLost for an invalid size."""
        own = self._own
        if own is not None:
            self._own_filled += nbytes
            if self._own_filled == len(own):
                self._own = None
                self.borrowed = False
                yield memoryview(own)
            return
        self._filled += nbytes
        filled, position, view = self._filled, 0, memoryview(self._buffer)
        while filled - position >= 4:
            (size,) = _SIZE.unpack_from(view, position)
            if not _SIZE_MIN <= size <= FRAME_BYTES_MAX:
                raise ConnectionLost(f"the broker sent a frame of {size} bytes")
            end = position + 4 + size
            if end > filled:
                position = self._reserve(size, view, position)
                break
            self.borrowed = True
            yield view[position + 4 : end]
            position = end
        rest = filled - position
        if rest and (position or self._buffer is not view.obj):
            # Overlapping slices of one buffer are copied as memmove does.
            memoryview(self._buffer)[:rest] = view[position:filled]
        self._filled = rest

    def _reserve(self, size: int, view: memoryview, position: int) -> int:
        """Provide memory for a frame that is not whole: in the read buffer if it may be borrowed, else a
        buffer of its own. Returns the end of the bytes that the read buffer does not need any more."""
        if not self._next_is_kept() and size + 4 <= READ_BUFFER_BYTES_MAX:
            if size + 4 > len(view):
                self._buffer = bytearray(min(2 * (size + 4), READ_BUFFER_BYTES_MAX))
            return position
        came = view[position + 4 : self._filled]
        self._own = bytearray(size)
        self._own[: len(came)] = came
        self._own_filled = len(came)
        return self._filled

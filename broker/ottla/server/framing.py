"""A connection's receive buffer: socket bytes in, whole request frames out, nothing copied.

Kafka frames a request as a four-byte big-endian size and that many bytes. A frame is handed out as a
memoryview of the buffer itself, and a record batch inside it stays such a view until it is written to
the log, so the buffer's bytes may not move while a request is being worked on. Hence the rules:

- `next_frame` hands out one frame; until `release` no byte before the free space is touched: `space`
  gives only what is free behind the data (later pipelined frames gather there), perhaps nothing.
- Between frames the unread rest may move to the front, or into a bigger buffer when the frame that has
  begun needs one. A buffer that grew goes back to its base size after a run of frames that did not need it.

Called by ottla.server.connection; the shape (`space`, `received`) is also that of
`asyncio.BufferedProtocol`, for the TLS transport to come. No I/O here.
"""

from __future__ import annotations

from struct import Struct

_SIZE = Struct(">i")
BASE_BYTES = 64 * 1024
MIN_SPACE_BYTES = 4096
SMALL_FRAMES_BEFORE_SHRINK = 256


class InvalidFrameSize(Exception):
    """The peer announced a size that is negative or above `socket.request.max.bytes`."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"invalid request size {size}, allowed are 0 to {limit} bytes")
        self.size = size
        self.limit = limit


class FrameBuffer:
    __slots__ = ("_base", "_busy", "_end", "_max_frame", "_need", "_small_frames", "_start", "_view")

    def __init__(self, max_frame_bytes: int, base_bytes: int = BASE_BYTES) -> None:
        self._max_frame = max_frame_bytes
        self._base = base_bytes
        self._view = memoryview(bytearray(base_bytes))
        self._start = 0  # first byte not handed out yet
        self._end = 0  # first free byte
        self._need = 0  # bytes (size included) of the frame that has begun, once known
        self._busy = False  # a frame is out
        self._small_frames = 0

    @property
    def busy(self) -> bool:
        return self._busy

    @property
    def capacity(self) -> int:
        return len(self._view)

    @property
    def buffered(self) -> int:
        return self._end - self._start

    def space(self) -> memoryview:
        """Where the next bytes go; empty only while a frame is out and the buffer is full behind it."""
        if not self._busy:
            start, end, capacity = self._start, self._end, len(self._view)
            if start == end:
                self._start = self._end = 0
                if self._need <= capacity:
                    return self._view
                start = end = 0
            if max(self._need, end - start + MIN_SPACE_BYTES) > capacity - start:
                self._make_room()
        return self._view[self._end :]

    def received(self, count: int) -> None:
        self._end += count
        assert self._end <= len(self._view)

    def next_frame(self) -> memoryview | None:
        """The next whole frame without its size, or None. Raises InvalidFrameSize."""
        start = self._start
        available = self._end - start
        if self._busy or available < 4:
            return None
        (size,) = _SIZE.unpack_from(self._view, start)
        if size < 0 or size > self._max_frame:
            raise InvalidFrameSize(size, self._max_frame)
        need = size + 4
        if available < need:
            self._need = need
            return None
        self._need = 0
        self._busy = True
        self._start = start + need
        self._small_frames = self._small_frames + 1 if need <= self._base else 0
        return self._view[start + 4 : start + need]

    def release(self) -> None:
        """The frame handed out is done with: its bytes may be overwritten from now on."""
        self._busy = False
        if len(self._view) > self._base and self._small_frames >= SMALL_FRAMES_BEFORE_SHRINK:
            self.shrink()

    def shrink(self) -> None:
        """Give a grown buffer back if what it holds fits the base size (also called on idle connections)."""
        pending = self._end - self._start
        if (
            self._busy
            or len(self._view) <= self._base
            or max(pending + MIN_SPACE_BYTES, self._need) > self._base
        ):
            return
        self._move_to(memoryview(bytearray(self._base)))

    def _make_room(self) -> None:
        pending = self._end - self._start
        wanted = max(self._need, pending + MIN_SPACE_BYTES)
        if wanted <= len(self._view):
            # Overlapping slices of one buffer are copied as memmove does.
            self._view[:pending] = self._view[self._start : self._end]
            self._start, self._end = 0, pending
        else:
            # The size is known, so take it at once (the system zeroes it lazily); a power of two, so that
            # the next frame, a little bigger, finds room.
            wanted = max(wanted, min(1 << (wanted - 1).bit_length(), self._max_frame + 4))
            self._move_to(memoryview(bytearray(max(wanted, self._base))))

    def _move_to(self, view: memoryview) -> None:
        pending = self._end - self._start
        view[:pending] = self._view[self._start : self._end]
        self._view = view
        self._start, self._end = 0, pending
        self._small_frames = 0

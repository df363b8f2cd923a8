"""A connection's receive buffer: socket bytes in, whole request frames out, nothing copied.

Kafka frames a request as a four-byte big-endian size and that many bytes. A frame is handed out as a
memoryview of the buffer, and a record batch in it stays such a view until it is written to the log, so the
bytes must not move while the request is served. The rules:

- `next_frame` hands out one frame. Until `release` no byte before the free space changes: `space` returns
  only the free bytes behind the data, perhaps none; pipelined frames gather there. A request that waits
  without need of its frame calls `detach`.
- Between frames the bytes that were not handed out may move to the front of the buffer, or into a larger one
  for the frame that has begun: only once they fill the present buffer, whatever size the client announced.
- The buffer is taken from the pool when bytes are received, and given back when it is empty, unless the pool
  has plenty.
- With a limit on all requests (`RequestMemory`) memory is reserved for a frame once its size is known.
  `starved` is set when there is none, and the connection waits.

Called by ottla.server.network.channel. No I/O here.
"""

from __future__ import annotations

from struct import Struct

from ottla.server.network.buffers import PLENTY_BYTES, POOLED_BYTES_MAX, BufferPool, RequestMemory

_SIZE = Struct(">i")
_API_KEY = Struct(">h")
MIN_SPACE_BYTES = 4096
SMALL_FRAMES_BEFORE_SHRINK = 256
AHEAD = 4
"""A connection with deferred responses has space for so many frames: its requests are replicated together,
and so are to be read together. For others a larger buffer costs a tenth of a Produce of 64 KiB, because the
bytes leave the CPU cache before they are used."""
FIRST_GROWTH_BYTES = 1 << 20
"""The first size of a buffer for a frame above `POOLED_BYTES_MAX`."""


class InvalidFrameSize(Exception):
    """The peer announced a size that is negative or above `socket.request.max.bytes`."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"invalid request size {size}, allowed are 0 to {limit} bytes")
        self.size = size
        self.limit = limit


class FrameBuffer:
    """See the module."""

    __slots__ = (
        "_end",
        "_max_frame",
        "_memory",
        "_need",
        "_pinned",
        "_pool",
        "_rest",
        "_small_frames",
        "_start",
        "_usual",
        "_view",
        "ahead",
        "busy",
        "reserved",
        "starved",
    )

    def __init__(self, max_frame_bytes: int, pool: BufferPool, memory: RequestMemory | None = None) -> None:
        self._max_frame = max_frame_bytes
        self._pool = pool
        self._memory = memory
        self._view: memoryview | None = None
        self._rest: bytes = b""  # unread bytes while there is no buffer (see `compact`)
        self._start = 0  # first byte not handed out yet
        self._end = 0  # first free byte
        self._need = 0  # bytes (size included) of the frame that has begun, once known
        self._pinned = False  # a request refers to bytes of the buffer
        self._usual = pool.base_bytes  # the size of a buffer for the larger of the last frames
        self._small_frames = 0
        self.ahead = 1
        """For how many frames the buffer has space."""
        self.busy = False
        """A frame is handed out, and not released."""
        self.reserved = 0
        """The bytes that this connection has reserved in RequestMemory."""
        self.starved = False
        """RequestMemory had no bytes left for the frame that has begun."""

    @property
    def capacity(self) -> int:
        """Bytes of the buffer; 0 while there is none."""
        return 0 if self._view is None else len(self._view)

    @property
    def buffered(self) -> int:
        return len(self._rest) + self._end - self._start

    def set_max_frame_bytes(self, max_frame_bytes: int) -> None:
        """Allow frames of another size."""
        self._max_frame = max_frame_bytes

    def space(self) -> memoryview:
        """The free bytes, to receive into; empty only while a frame is handed out and the buffer is full
        behind it. Call `received` afterwards, also with 0."""
        view = self._view
        if view is None:
            view = self._take()
        elif not self._pinned:
            room = len(view) - self._end
            if room < MIN_SPACE_BYTES or (self._start and self._need > room + self._end - self._start):
                view = self._enlarge_space(view)
        return view[self._end :]

    def received(self, count: int) -> None:
        self._end += count
        if not count:
            self.compact()

    def next_frame(self, api_key: int | None = None) -> memoryview | None:
        """The next whole frame without its size, or None; with `api_key` only if it is a request of that API.
        Raises InvalidFrameSize."""
        if self._rest and not self.busy:
            self._take()
        start = self._start
        available = self._end - start
        if available < 4 or self.busy:
            return None
        view = self._view
        assert view is not None
        (size,) = _SIZE.unpack_from(view, start)
        if size < 0 or size > self._max_frame:
            raise InvalidFrameSize(size, self._max_frame)
        need = size + 4
        if self._memory is not None and not self.reserved:
            self.starved = not self._memory.reserve(need)
            if self.starved:
                return None
            self.reserved = need
        if available < need:
            self._need = need
            return None
        if api_key is not None and (size < 2 or _API_KEY.unpack_from(view, start + 4)[0] != api_key):
            return None
        self._need = 0
        self.busy = self._pinned = True
        self._start = start + need
        if need > self._pool.base_bytes:
            self._small_frames = 0
            if need * self.ahead > self._usual:
                self._usual = min(need * self.ahead, POOLED_BYTES_MAX)
        else:
            self._small_frames += 1
        return view[start + 4 : start + need]

    def detach(self) -> None:
        """The bytes of the frame that is handed out are not needed any more."""
        self._pinned = False
        if self._start == self._end and self._view is not None:
            self._give_back()

    def release(self) -> None:
        """The request of the frame has its response; its bytes may be overwritten."""
        self.busy = self._pinned = False
        if self.reserved:
            assert self._memory is not None
            self._memory.release(self.reserved)
            self.reserved = 0
        if self._start == self._end and self._view is not None:
            pool = self._pool
            if pool.lent_bytes <= pool.kept_bytes_max and self._small_frames < SMALL_FRAMES_BEFORE_SHRINK:
                self._start = self._end = 0
            else:
                if self._small_frames >= SMALL_FRAMES_BEFORE_SHRINK:
                    self._small_frames = 0
                    self._usual = pool.base_bytes
                self._give_back()

    def compact(self) -> None:
        """Keep only the bytes that were not handed out, and give the buffer back, if it is mostly empty."""
        view = self._view
        if view is not None and not self._pinned and (self._end - self._start) * 2 < len(view):
            self._rest = bytes(view[self._start : self._end])
            self._give_back()

    def close(self) -> None:
        """Give the buffer and the memory back; a frame that is handed out stays readable."""
        if self._view is not None:
            if self._pinned:
                self._pool.write_off(self._view)
                self._view = None
            else:
                self._give_back()
        self._rest = b""
        if self.reserved:
            assert self._memory is not None
            self._memory.release(self.reserved)
            self.reserved = 0

    def _take(self) -> memoryview:
        rest, pool = self._rest, self._pool
        size = self._usual if pool.lent_bytes < PLENTY_BYTES else pool.base_bytes
        self._view = view = pool.take(max(size, len(rest) + MIN_SPACE_BYTES) if rest else size)
        if rest:
            self._end = len(rest)
            view[: self._end] = rest
            self._rest = b""
        return view

    def _give_back(self) -> None:
        assert self._view is not None
        self._pool.give(self._view)
        self._view = None
        self._start = self._end = 0

    def _enlarge_space(self, view: memoryview) -> memoryview:
        """Move the data to the front or into a larger buffer: the free space behind it is too small."""
        start, capacity = self._start, len(view)
        pending = self._end - start
        if start and (self._need <= capacity or pending + MIN_SPACE_BYTES <= capacity):
            # Overlapping slices of one buffer are copied as memmove does.
            view[:pending] = view[start : self._end]
            self._start, self._end = 0, pending
        elif self._need > capacity:
            if self._need > POOLED_BYTES_MAX and capacity < FIRST_GROWTH_BYTES:
                view = self._pool.take(FIRST_GROWTH_BYTES)
            else:
                view = self._pool.take(self._need)
            self._move_to(view)
        return view

    def _move_to(self, view: memoryview) -> None:
        old = self._view
        assert old is not None
        pending = self._end - self._start
        view[:pending] = old[self._start : self._end]
        self._pool.give(old)
        self._view = view
        self._start, self._end = 0, pending

"""Memory for what clients send: receive buffers that connections share, and queued.max.request.bytes.

Called by ottla.server.network.framing (one `FrameBuffer` a connection) and ottla.server.network.listener
(which makes both).

- `BufferPool`: when more than `KEPT_BYTES_MAX` are in use, a connection has a buffer only while it holds
  received bytes or a request refers to it. So the memory depends on the bytes in flight and not on the number
  of connections. Free buffers beyond `FREE_BYTES_MAX` are returned to the system.
- `RequestMemory`: Kafka's SimpleMemoryPool, not strict: a request is admitted while any memory is left, so
  that one request may exceed the limit by up to socket.request.max.bytes. The others wait, first come first
  served.

No I/O here.
"""

from __future__ import annotations

import mmap  # noqa: TID251 (memory without a file)
from collections import deque
from collections.abc import Callable

BASE_BYTES = 64 * 1024
POOLED_BYTES_MAX = 2 << 20
"""A larger buffer is made for one request, and freed with it. A producer's requests are 1 MiB by default."""
FREE_BYTES_MAX = 16 << 20
KEPT_BYTES_MAX = 8 << 20
"""Up to so many bytes in use, a connection keeps its buffer between requests: to take one each time costs
half a microsecond."""
PLENTY_BYTES = 64 << 20
"""Up to so many bytes in use, a connection may have a buffer of the size that its last requests needed."""


class BufferPool:
    """Buffers of 64 KiB times a power of two."""

    __slots__ = ("_free", "base_bytes", "free_bytes", "kept_bytes_max", "lent_bytes")

    def __init__(self, base_bytes: int = BASE_BYTES, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self.base_bytes = base_bytes
        self.kept_bytes_max = kept_bytes_max
        self._free: dict[int, list[memoryview]] = {}
        self.free_bytes = 0
        self.lent_bytes = 0
        """The capacities of the buffers that connections hold; the system backs only pages that were
        written."""

    def take(self, size: int) -> memoryview:
        """A buffer of at least `size` bytes with undefined content."""
        base = self.base_bytes
        if size > POOLED_BYTES_MAX:
            capacity = size
        else:
            capacity = base if size <= base else 1 << (size - 1).bit_length()
            free = self._free.get(capacity)
            if free:
                self.free_bytes -= capacity
                self.lent_bytes += capacity
                return free.pop()
        self.lent_bytes += capacity
        # The system backs only the written pages of a mapping, and gets them back at once.
        return memoryview(bytearray(capacity)) if capacity <= base else _mapped(capacity)

    def give(self, view: memoryview) -> None:
        """Take `view` back; nothing refers to it any more."""
        capacity = len(view)
        self.lent_bytes -= capacity
        if capacity <= POOLED_BYTES_MAX and self.free_bytes + capacity <= FREE_BYTES_MAX:
            self.free_bytes += capacity
            free = self._free.get(capacity)
            if free is None:
                free = self._free[capacity] = []
            free.append(view)

    def write_off(self, view: memoryview) -> None:
        """Release `view` while something may still refer to it: it is freed with the last reference."""
        self.lent_bytes -= len(view)


def _mapped(size: int) -> memoryview:
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


class RequestMemory:
    """queued.max.request.bytes: the limit of the bytes of all requests, from the moment that their size is
    known until their response. A limit of -1 has no instance."""

    __slots__ = ("_call_soon", "_waiting", "_waking", "available", "limit")

    def __init__(self, limit: int, call_soon: Callable[[Callable[[], None]], object]) -> None:
        """`call_soon` is the loop's: waiting connections are not resumed within the response of another
        one."""
        assert limit > 0
        self.limit = limit
        self.available = limit
        """Below zero when the last admitted request was larger than what was left."""
        self._call_soon = call_soon
        self._waiting: deque[Callable[[], None]] = deque()
        self._waking = False

    def reserve(self, size: int) -> bool:
        if self.available <= 0:
            return False
        self.available -= size
        return True

    def release(self, size: int) -> None:
        self.available += size
        assert self.available <= self.limit
        if self._waiting and self.available > 0 and not self._waking:
            self._waking = True
            self._call_soon(self._wake)

    def wait(self, wake: Callable[[], None]) -> None:
        """Call `wake` once there is memory, also if the connection was closed meanwhile."""
        self._waiting.append(wake)

    def _wake(self) -> None:
        self._waking = False
        for _ in range(len(self._waiting)):
            if self.available <= 0:
                break
            self._waiting.popleft()()

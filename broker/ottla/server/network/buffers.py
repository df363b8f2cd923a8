"""Memory for what clients send: receive buffers that connections share, and queued.max.request.bytes.

Called by ottla.server.network.framing (one `FrameBuffer` a connection) and ottla.server.network.listener
(which makes both).

- `BufferPool`: when more than `KEPT_BYTES_MAX` are in use, a connection has a buffer only while bytes wait in
  it or a request refers to it. So the memory follows the bytes under way and not the number of connections.
  What is free beyond `FREE_BYTES_MAX` goes back to the system.
- `RequestMemory`: Kafka's SimpleMemoryPool, not strict: a request is let in while any memory is left at all,
  so that one may overdraw it by up to socket.request.max.bytes. Who is not let in, waits, first come first
  served.

No I/O here.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable

BASE_BYTES = 64 * 1024
POOLED_BYTES_MAX = 2 << 20
"""A bigger buffer is made for one request, and goes with it. A producer's requests are 1 MiB by default."""
FREE_BYTES_MAX = 16 << 20
KEPT_BYTES_MAX = 8 << 20
"""Up to so much in use, a connection keeps its buffer from one request to the next: taking one anew each time
costs half a microsecond."""
PLENTY_BYTES = 64 << 20
"""Up to so much in use, a connection may have a buffer of the size that its last requests needed."""


class BufferPool:
    """Buffers of 64 KiB times a power of two."""

    __slots__ = ("_free", "base_bytes", "free_bytes", "kept_bytes_max", "lent_bytes")

    def __init__(self, base_bytes: int = BASE_BYTES, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self.base_bytes = base_bytes
        self.kept_bytes_max = kept_bytes_max
        self._free: dict[int, list[memoryview]] = {}
        self.free_bytes = 0
        self.lent_bytes = 0
        """What connections hold: their capacities, of which the system has backed what was written to."""

    def take(self, size: int) -> memoryview:
        """A buffer of at least `size` bytes, its content whatever it is."""
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
        # Of a mapping of its own the system backs only what is written to, and gets it back at once.
        return memoryview(bytearray(capacity)) if capacity <= base else _mapped(capacity)

    def give(self, view: memoryview) -> None:
        """Take `view` back; nobody refers to it any more."""
        capacity = len(view)
        self.lent_bytes -= capacity
        if capacity <= POOLED_BYTES_MAX and self.free_bytes + capacity <= FREE_BYTES_MAX:
            self.free_bytes += capacity
            free = self._free.get(capacity)
            if free is None:
                free = self._free[capacity] = []
            free.append(view)

    def write_off(self, view: memoryview) -> None:
        """`view` is not wanted any more, but somebody may still refer to it: it goes with them."""
        self.lent_bytes -= len(view)


def _mapped(size: int) -> memoryview:
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


class RequestMemory:
    """queued.max.request.bytes: how much the requests of all connections may take up, from the moment that
    their size is known until they are answered. For a limit of -1 there is no instance at all."""

    __slots__ = ("_call_soon", "_waiting", "_waking", "available", "limit")

    def __init__(self, limit: int, call_soon: Callable[[Callable[[], None]], object]) -> None:
        """`call_soon` is the loop's: who waits is not let in from within somebody else's answer."""
        assert limit > 0
        self.limit = limit
        self.available = limit
        """Below zero when the last request that was let in was bigger than what was left."""
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
        """Have `wake` called once there is memory. A connection that is gone by then must bear it."""
        self._waiting.append(wake)

    def _wake(self) -> None:
        self._waking = False
        for _ in range(len(self._waiting)):
            if self.available <= 0:
                break
            self._waiting.popleft()()

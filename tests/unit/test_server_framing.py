"""The receive buffer: frames are returned whole, in place, and their bytes do not move while they are in
use."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ottla.server.network.buffers import (
    FREE_BYTES_MAX,
    PLENTY_BYTES,
    POOLED_BYTES_MAX,
    BufferPool,
    RequestMemory,
)
from ottla.server.network.framing import SMALL_FRAMES_BEFORE_SHRINK, FrameBuffer, InvalidFrameSize

BASE = 8192


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def make(max_frame: int = 1_000_000, memory: RequestMemory | None = None) -> tuple[FrameBuffer, BufferPool]:
    pool = BufferPool(base_bytes=BASE, kept_bytes_max=0)
    return FrameBuffer(max_frame, pool, memory), pool


def feed(buffer: FrameBuffer, data: bytes) -> None:
    """Feeds bytes as a socket would: as many at a time as there is room for."""
    while data:
        space = buffer.space()
        assert space, "no room"
        count = min(len(space), len(data))
        space[:count] = data[:count]
        buffer.received(count)
        data = data[count:]


def receive_one(buffer: FrameBuffer, body: bytes) -> None:
    """A whole frame, with a check after every receive."""
    data = framed(body)
    received = None
    while received is None:
        space = buffer.space()
        count = min(len(space), len(data))
        space[:count] = data[:count]
        buffer.received(count)
        data = data[count:]
        received = next_body(buffer)
    assert received == body
    assert not data


def next_body(buffer: FrameBuffer) -> bytes | None:
    frame = buffer.next_frame()
    if frame is None:
        return None
    body = bytes(frame)
    buffer.release()
    return body


def test_a_frame_is_returned_after_its_last_byte() -> None:
    buffer, _ = make()
    data = framed(b"hello")
    for i in range(len(data) - 1):
        feed(buffer, data[i : i + 1])
        assert buffer.next_frame() is None
    feed(buffer, data[-1:])
    assert next_body(buffer) == b"hello"
    assert buffer.buffered == 0


def test_pipelined_frames_are_returned_one_at_a_time() -> None:
    buffer, _ = make()
    feed(buffer, framed(b"one") + framed(b"") + framed(b"three"))
    first = buffer.next_frame()
    assert first is not None
    assert buffer.next_frame() is None, "the first has not been released"
    assert bytes(first) == b"one"
    buffer.release()
    assert next_body(buffer) == b""
    assert next_body(buffer) == b"three"
    assert next_body(buffer) is None


def test_later_bytes_do_not_change_a_frame_in_use() -> None:
    buffer, _ = make()
    feed(buffer, framed(b"x" * 5000))
    frame = buffer.next_frame()
    assert frame is not None
    rest = framed(b"y" * 6000)
    room = len(buffer.space())
    assert 0 < room < len(rest)
    feed(buffer, rest[:room])
    assert len(buffer.space()) == 0, "full behind the frame: reading has to wait"
    assert bytes(frame) == b"x" * 5000
    buffer.release()
    feed(buffer, rest[room:])
    assert next_body(buffer) == b"y" * 6000


def test_a_frame_that_began_at_the_end_of_the_buffer_is_moved_whole() -> None:
    buffer, _ = make()
    feed(buffer, framed(b"a" * 6000) + framed(b"c" * 7000)[:100])
    assert next_body(buffer) == b"a" * 6000
    assert buffer.next_frame() is None
    feed(buffer, framed(b"c" * 7000)[100:])
    assert next_body(buffer) == b"c" * 7000
    assert buffer.capacity == 0


# --- memory ------------------------------------------------------------------------------------------


def test_a_buffer_exists_only_while_bytes_are_in_it_or_referenced() -> None:
    buffer, pool = make()
    assert pool.lent_bytes == 0
    feed(buffer, framed(b"one"))
    assert pool.lent_bytes == BASE
    frame = buffer.next_frame()
    assert frame is not None
    assert pool.lent_bytes == BASE
    buffer.detach()
    assert pool.lent_bytes == 0, "one that waits without need of its bytes has none"
    feed(buffer, framed(b"two"))
    assert buffer.next_frame() is None, "the first one waits still"
    buffer.release()
    assert next_body(buffer) == b"two"
    assert pool.lent_bytes == 0


def test_a_buffer_is_reused_while_little_memory_is_in_use() -> None:
    pool = BufferPool(base_bytes=BASE, kept_bytes_max=BASE)
    first, second = FrameBuffer(1000, pool), FrameBuffer(1000, pool)
    feed(first, framed(b"one"))
    assert next_body(first) == b"one"
    assert pool.lent_bytes == BASE
    feed(second, framed(b"two"))
    assert next_body(second) == b"two"
    assert pool.lent_bytes == BASE, "the second one's went back"
    first.compact()
    assert pool.lent_bytes == 0


def test_an_empty_read_leaves_no_buffer_behind() -> None:
    buffer, pool = make()
    buffer.space()
    buffer.received(0)
    assert pool.lent_bytes == 0


def test_a_buffer_grows_by_received_bytes_and_not_by_a_declared_size() -> None:
    buffer, pool = make(max_frame=200_000_000)
    data = framed(b"b" * (3 << 20))
    data = (100_000_000).to_bytes(4, "big") + data[4:]
    feed(buffer, data[:5])
    assert buffer.next_frame() is None
    feed(buffer, data[5:4000])
    assert buffer.capacity == BASE
    feed(buffer, data[4000:20_000])
    assert buffer.capacity == 1 << 20
    feed(buffer, data[20_000:])
    assert buffer.capacity == 100_000_004
    buffer.close()
    assert pool.lent_bytes == 0


def test_a_large_buffer_is_freed_with_its_request() -> None:
    buffer, pool = make(max_frame=10_000_000)
    body = bytes(range(256)) * 20_000
    feed(buffer, framed(body)[:8192])
    assert buffer.next_frame() is None
    feed(buffer, framed(body)[8192:])
    assert buffer.capacity > POOLED_BYTES_MAX
    frame = buffer.next_frame()
    assert frame is not None
    assert len(buffer.space()) == 0, "the next request does not gather behind it"
    assert bytes(frame) == body
    buffer.release()
    assert pool.lent_bytes == 0
    assert pool.free_bytes <= 2 << 20


@pytest.mark.parametrize(("ahead", "capacity"), [(1, 131_072), (4, 524_288)])
def test_the_next_buffer_has_the_size_of_recent_frames(ahead: int, capacity: int) -> None:
    buffer, _ = make()
    buffer.ahead = ahead
    receive_one(buffer, b"b" * 100_000)
    for _ in range(SMALL_FRAMES_BEFORE_SHRINK):
        feed(buffer, framed(b"small"))
        assert buffer.capacity == capacity
        assert next_body(buffer) == b"small"
    feed(buffer, framed(b"small"))
    assert buffer.capacity == BASE


def test_buffers_are_minimal_while_much_memory_is_in_use() -> None:
    buffer, pool = make()
    receive_one(buffer, b"b" * 100_000)
    pool.take(PLENTY_BYTES)
    feed(buffer, b"\0")
    assert buffer.capacity == BASE


def test_compacting_keeps_received_bytes_and_frees_the_buffer() -> None:
    buffer, pool = make()
    feed(buffer, framed(b"whole") + framed(b"next")[:6])
    assert next_body(buffer) == b"whole"
    buffer.compact()
    assert pool.lent_bytes == 0
    assert buffer.buffered == 6
    assert buffer.next_frame() is None
    feed(buffer, framed(b"next")[6:])
    assert next_body(buffer) == b"next"
    assert pool.lent_bytes == 0


def test_whole_frames_behind_a_waiting_frame_survive_compacting() -> None:
    buffer, _ = make()
    feed(buffer, framed(b"waits"))
    assert buffer.next_frame() is not None
    buffer.detach()
    feed(buffer, framed(b"one") + framed(b"two"))
    buffer.compact()
    buffer.release()
    assert next_body(buffer) == b"one"
    assert next_body(buffer) == b"two"


def test_compacting_does_not_move_a_frame_in_use() -> None:
    buffer, _ = make()
    feed(buffer, framed(b"out"))
    frame = buffer.next_frame()
    buffer.compact()
    assert frame is not None
    assert bytes(frame) == b"out"
    assert buffer.capacity == BASE


def test_free_buffers_are_kept_up_to_a_limit() -> None:
    pool = BufferPool()
    views = [pool.take(POOLED_BYTES_MAX) for _ in range(20)]
    for view in views:
        pool.give(view)
    assert pool.lent_bytes == 0
    assert pool.free_bytes == FREE_BYTES_MAX
    again = pool.take(POOLED_BYTES_MAX)
    assert any(again is view for view in views)


def test_a_frame_in_use_stays_readable_when_the_connection_closes() -> None:
    buffer, pool = make()
    feed(buffer, framed(b"late"))
    frame = buffer.next_frame()
    buffer.close()
    assert pool.lent_bytes == 0
    feed(FrameBuffer(1000, pool), b"other")
    assert frame is not None
    assert bytes(frame) == b"late"


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
def test_a_size_out_of_bounds_is_refused_before_any_allocation(size: int) -> None:
    buffer, _ = make(max_frame=1000)
    feed(buffer, size.to_bytes(4, "big", signed=True))
    with pytest.raises(InvalidFrameSize):
        buffer.next_frame()
    assert buffer.capacity == BASE


# --- queued.max.request.bytes ------------------------------------------------------------------------


class Turns:
    """A fake `call_soon`, whose iterations the test runs."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def take(self) -> None:
        due, self.due = self.due, []
        for callback in due:
            callback()


def test_requests_are_admitted_while_memory_is_left_and_then_wait_for_responses() -> None:
    turns = Turns()
    memory = RequestMemory(1000, turns.call_soon)
    pool = BufferPool(base_bytes=BASE)
    first, second, third = (FrameBuffer(1_000_000, pool, memory) for _ in range(3))
    feed(first, framed(b"a" * 996))
    feed(second, framed(b"b" * 5000))
    assert first.next_frame() is not None
    assert memory.available == 0
    assert second.next_frame() is None
    assert second.starved
    memory.wait(lambda: None)
    first.release()
    turns.take()
    assert memory.available == 1000
    frame = second.next_frame()
    assert frame is not None, "bigger than all there is, but the first one in"
    assert not second.starved
    assert memory.available == 1000 - 5004
    feed(third, framed(b"c"))
    assert third.next_frame() is None
    second.release()
    assert next_body(third) == b"c"
    assert memory.available == 1000


def test_a_started_frame_keeps_its_memory() -> None:
    memory = RequestMemory(1000, Turns().call_soon)
    pool = BufferPool(base_bytes=BASE)
    slow, other = FrameBuffer(10_000, pool, memory), FrameBuffer(10_000, pool, memory)
    feed(slow, framed(b"s" * 2000)[:4])
    assert slow.next_frame() is None
    assert slow.reserved == 2004
    feed(other, framed(b"o"))
    assert other.next_frame() is None
    assert other.starved
    feed(slow, framed(b"s" * 2000)[4:])
    assert next_body(slow) == b"s" * 2000
    assert next_body(other) == b"o"


def test_waiting_connections_are_admitted_in_order() -> None:
    turns = Turns()
    memory = RequestMemory(100, turns.call_soon)
    assert memory.reserve(100)
    let_in: list[str] = []

    def wants(name: str) -> Callable[[], None]:
        def wake() -> None:
            if memory.reserve(60):
                let_in.append(name)

        return wake

    for name in ("first", "second", "third"):
        memory.wait(wants(name))
    memory.release(100)
    assert let_in == []
    turns.take()
    assert let_in == ["first", "second"], "the second overdraws, the third waits"
    memory.release(60)
    turns.take()
    assert let_in == ["first", "second", "third"]


def test_a_closed_connection_frees_its_memory() -> None:
    memory = RequestMemory(100, Turns().call_soon)
    buffer = FrameBuffer(1000, BufferPool(base_bytes=BASE), memory)
    feed(buffer, (500).to_bytes(4, "big"))
    assert buffer.next_frame() is None
    assert memory.available == 100 - 504
    buffer.close()
    assert memory.available == 100


def test_a_filtered_read_returns_only_requests_of_that_api() -> None:
    buffer, _ = make()
    feed(buffer, framed(b"\x00\x00produce") + framed(b"\x00\x01fetch") + framed(b""))
    frame = buffer.next_frame(0)
    assert frame is not None
    assert bytes(frame) == b"\x00\x00produce"
    buffer.release()
    assert buffer.next_frame(0) is None
    assert next_body(buffer) == b"\x00\x01fetch"
    assert buffer.next_frame(0) is None, "too short to name one"
    assert next_body(buffer) == b""

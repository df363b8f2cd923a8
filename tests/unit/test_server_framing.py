"""The receive buffer: frames come out whole, in place, and nothing moves under one that is out."""

from __future__ import annotations

import pytest

from ottla.server.framing import SMALL_FRAMES_BEFORE_SHRINK, FrameBuffer, InvalidFrameSize


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def feed(buffer: FrameBuffer, data: bytes) -> None:
    """As a socket would: as much at a time as there is room for."""
    while data:
        space = buffer.space()
        assert space, "no room"
        count = min(len(space), len(data))
        space[:count] = data[:count]
        buffer.received(count)
        data = data[count:]


def next_body(buffer: FrameBuffer) -> bytes | None:
    frame = buffer.next_frame()
    if frame is None:
        return None
    body = bytes(frame)
    buffer.release()
    return body


def test_a_frame_comes_out_when_its_last_byte_has_come() -> None:
    buffer = FrameBuffer(1000, base_bytes=8192)
    data = framed(b"hello")
    for i in range(len(data) - 1):
        feed(buffer, data[i : i + 1])
        assert buffer.next_frame() is None
    feed(buffer, data[-1:])
    assert next_body(buffer) == b"hello"
    assert buffer.buffered == 0


def test_pipelined_frames_come_one_at_a_time() -> None:
    buffer = FrameBuffer(1000, base_bytes=8192)
    feed(buffer, framed(b"one") + framed(b"") + framed(b"three"))
    first = buffer.next_frame()
    assert first is not None
    assert buffer.next_frame() is None, "the first has not been released"
    assert bytes(first) == b"one"
    buffer.release()
    assert next_body(buffer) == b""
    assert next_body(buffer) == b"three"
    assert next_body(buffer) is None


def test_what_is_received_behind_a_frame_that_is_out_leaves_it_alone() -> None:
    buffer = FrameBuffer(10_000, base_bytes=8192)
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


def test_the_buffer_grows_for_a_big_frame_and_shrinks_after_many_small_ones() -> None:
    buffer = FrameBuffer(1_000_000, base_bytes=8192)
    feed(buffer, framed(b"b" * 300_000))
    assert next_body(buffer) == b"b" * 300_000
    assert buffer.capacity >= 300_004
    for i in range(SMALL_FRAMES_BEFORE_SHRINK):
        assert buffer.capacity > 8192, i
        feed(buffer, framed(b"small"))
        assert next_body(buffer) == b"small"
    assert buffer.capacity == 8192


def test_a_frame_that_began_at_the_end_of_the_buffer_is_moved_whole() -> None:
    buffer = FrameBuffer(10_000, base_bytes=8192)
    feed(buffer, framed(b"a" * 6000) + framed(b"c" * 7000)[:100])
    assert next_body(buffer) == b"a" * 6000
    feed(buffer, framed(b"c" * 7000)[100:])
    assert next_body(buffer) == b"c" * 7000
    assert buffer.capacity == 8192


def test_shrinking_keeps_what_was_received() -> None:
    buffer = FrameBuffer(1_000_000, base_bytes=8192)
    feed(buffer, framed(b"b" * 300_000) + framed(b"next")[:6])
    assert next_body(buffer) == b"b" * 300_000
    buffer.shrink()
    assert buffer.capacity == 8192
    feed(buffer, framed(b"next")[6:])
    assert next_body(buffer) == b"next"


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
def test_a_size_out_of_bounds_is_refused_before_any_room_is_made(size: int) -> None:
    buffer = FrameBuffer(1000, base_bytes=8192)
    feed(buffer, size.to_bytes(4, "big", signed=True))
    with pytest.raises(InvalidFrameSize):
        buffer.next_frame()
    assert buffer.capacity == 8192

"""A channel without a socket: what it requests from its transport, and how it handles what is reported."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

import pytest

from ottla.ports.files import OS_FILES
from ottla.ports.workers import OsWorkers
from ottla.server.logs.page_cache_reader import OnLoaded, PageCacheReader
from ottla.server.network.buffers import BufferPool
from ottla.server.network.channel import Connection, KafkaChannel, Part, drop_from_file
from ottla.storage.segment_files import FileSlice, SegmentFile
from tests.worlds.connection_harness import framed


class SimulatedTransport:
    """Takes as many bytes as `takes` allows, and records what it was asked for."""

    certificate = None

    def __init__(self, channel: KafkaChannel) -> None:
        self.channel = channel
        self.sent = b""
        self.takes = 1 << 30
        self.reader, self.writer, self.closed = True, False, False
        channel.transport = self

    def deliver(self, data: bytes) -> None:
        """Bytes of the client, which the channel has memory for."""
        space = self.channel.space()
        assert space is not None
        space[: len(data)] = data
        self.channel.received(len(data))

    def send(self, out: deque[Part]) -> bool:
        head = out.popleft()
        assert not isinstance(head, FileSlice)
        self.sent += head[: self.takes]
        rest = memoryview(head)[self.takes :]
        self.takes -= len(head) - len(rest)
        if rest:
            out.appendleft(rest)
        return not rest

    def send_file(self, out: deque[Part], count_max: int) -> int:
        part = out[0]
        assert isinstance(part, FileSlice)
        count = min(part.length, count_max, self.takes)
        self.sent += part.to_bytes()[:count]
        self.takes -= count
        if count:
            drop_from_file(out, count)
        return count

    def add_reader(self) -> None:
        self.reader = True

    def remove_reader(self) -> None:
        self.reader = False

    def add_writer(self) -> None:
        self.writer = True

    def remove_writer(self) -> None:
        self.writer = False

    def close(self) -> None:
        self.closed = True


class Client:
    """A channel over a simulated transport, and the requests that it has handed out."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.requests: list[bytes] = []
        self.closed: list[KafkaChannel] = []
        self.reader = PageCacheReader(loop, OsWorkers())
        self.channel = KafkaChannel(
            loop=loop,
            listener="PLAINTEXT",
            peer=("10.0.0.7", 1234),
            max_request_bytes=1000,
            buffers=BufferPool(),
            memory=None,
            page_cache_reader=self.reader,
            on_frame=self.on_frame,
            on_closed=self.closed.append,
        )
        self.transport = SimulatedTransport(self.channel)

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        self.requests.append(bytes(frame))


@pytest.fixture
def client() -> Iterator[Client]:
    loop = asyncio.SelectorEventLoop()
    client = Client(loop)
    yield client
    loop.run_until_complete(client.reader.stop())
    loop.close()


def test_the_next_request_is_handed_out_once_the_transport_has_taken_the_response(client: Client) -> None:
    transport = client.transport
    transport.deliver(framed(b"one") + framed(b"two"))
    assert client.requests == [b"one"]
    transport.takes = 3
    client.channel.respond((framed(b"1"),))
    assert transport.writer
    assert client.requests == [b"one"]
    transport.takes = 100
    client.channel.writable()
    assert transport.sent == framed(b"1")
    assert not transport.writer
    assert client.requests == [b"one", b"two"]


def test_a_client_that_does_not_read_its_response_is_not_read(client: Client) -> None:
    transport = client.transport
    transport.deliver(framed(b"one"))
    transport.takes = 0
    client.channel.respond((framed(b"1"),))
    assert client.channel.space() is None
    assert not transport.reader
    transport.takes = 100
    client.channel.writable()
    assert transport.reader


def test_the_end_of_the_stream_closes_the_channel_after_the_last_response(client: Client) -> None:
    transport = client.transport
    transport.deliver(framed(b"one"))
    client.channel.ended()
    assert not transport.closed
    client.channel.respond((framed(b"1"),))
    assert transport.sent == framed(b"1")
    assert transport.closed
    assert client.closed == [client.channel]


def test_a_request_above_the_limit_closes_the_channel(client: Client) -> None:
    client.transport.deliver((1001).to_bytes(4, "big"))
    assert client.transport.closed
    client.channel.close("again")
    assert client.closed == [client.channel], "once"


def test_a_range_of_a_file_is_sent_as_far_as_the_transport_takes_it(
    client: Client, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("log") / "segment"
    path.write_bytes(b"0123456789")
    transport = client.transport
    transport.deliver(framed(b"fetch"))
    transport.takes = 6
    client.channel.respond((b"head", FileSlice(SegmentFile(OS_FILES, path), 2, 5), b"end"))
    assert transport.sent == b"head23"
    assert transport.writer
    transport.takes = 100
    client.channel.writable()
    assert transport.sent == b"head23456end"
    assert not transport.writer


class SlowPageCache:
    """Finds a range in the page cache only at the second look, after whose first one it is being read."""

    def __init__(self) -> None:
        self.callbacks: list[OnLoaded] = []

    def ensure_resident(self, part: FileSlice, length: int, on_loaded: OnLoaded) -> bool:
        self.callbacks.append(on_loaded)
        return len(self.callbacks) > 1


@pytest.fixture
def slice_of_file(tmp_path_factory: pytest.TempPathFactory) -> FileSlice:
    path = tmp_path_factory.mktemp("log") / "segment"
    path.write_bytes(b"0123456789")
    return FileSlice(SegmentFile(OS_FILES, path), 2, 5)


@pytest.mark.parametrize("is_behind", [True, False])
def test_nothing_is_sent_while_a_range_is_being_read(
    client: Client, slice_of_file: FileSlice, is_behind: bool
) -> None:
    """Found by a seed of the simulation: the range was sent meanwhile, and nothing was left after it."""
    channel, transport, cache = client.channel, client.transport, SlowPageCache()
    channel._page_cache_reader = cache  # type: ignore[assignment]
    if is_behind:
        produce = b"\0\0 is handed out while a response is deferred"
        transport.deliver(framed(b"fetch") + framed(produce))
        deferred = channel.defer_response()
        channel._loop.run_until_complete(asyncio.sleep(0))
        assert client.requests == [b"fetch", produce]
        channel.complete(deferred, (slice_of_file,))
        channel.respond((b"end",))
    else:
        parts = [slice_of_file, *[b"."] * 20, b"end"]
        channel.on_frame = lambda connection, frame: connection.respond(parts)
        transport.deliver(framed(b"fetch"))
    assert transport.sent == b""
    cache.callbacks[0](None)
    assert transport.sent.startswith(b"23456")
    assert transport.sent.endswith(b"end")

"""A simulated network: machines, links with delays and cuts, and connections with the behaviour of TCP.

Brokers use it through nonblocking sockets (`SimulatedSocket`, the port `Network`), clients through the event
loop (`create_connection`). Bytes of one direction arrive in order, once, or never. A cut link holds them
back, as TCP retransmits; a connection to a process that was killed is reset; one to a machine that lost its
power stays silent until the machine is back.

Invariants: at most `WINDOW_BYTES` of one direction are on their way or unread; a closed or reset side
receives nothing more.
"""

from __future__ import annotations

import asyncio
import errno
import random
import socket
import zlib
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, Final, Protocol, cast

from ottla.simulation.loop import CURRENT, Process, SimulatedLoop, _Handle

WINDOW_BYTES: Final = 256 * 1024
CONNECT_TIMEOUT_S: Final = 127.0
"""After so long Linux gives up an unanswered attempt to connect."""
_RESET: Final = object()
_END: Final = object()


class Receiver(Protocol):
    """What a direction leads to."""

    host: str

    def receive(self, item: Any) -> None: ...


USUAL_DELAY_S: Final = 0.0001
USUAL_JITTER_S: Final = 0.0004


class Link:
    """The way from one machine to another."""

    __slots__ = ("blocked", "delay_s", "jitter_s")

    def __init__(self) -> None:
        self.blocked = False
        self.delay_s = USUAL_DELAY_S
        self.jitter_s = USUAL_JITTER_S


class Direction:
    """What one side of a connection sends to the other, in order."""

    __slots__ = ("in_flight", "last_at", "link", "network", "queue", "receiver", "stalled")

    def __init__(self, network: SimulatedNetwork, link: Link, receiver: Receiver) -> None:
        self.network = network
        self.link = link
        self.receiver = receiver
        self.queue: deque[Any] = deque()
        self.in_flight = 0
        """Bytes that were sent and that the receiver has not read."""
        self.last_at = 0.0
        self.stalled = 0

    def send(self, item: Any) -> None:
        """Send bytes, an end or a reset."""
        self.queue.append(item)
        self._schedule()

    def _schedule(self) -> None:
        network, link = self.network, self.link
        at = network.loop.now + link.delay_s + link.jitter_s * network.random.random()
        if at < self.last_at:
            at = self.last_at
        self.last_at = at
        network.loop.call_at(at, self._arrive, context=network.context)

    def _arrive(self) -> None:
        if self.link.blocked:
            self.stalled += 1
            self.network.stalled[self] = None
            return
        if self.queue:
            item = self.queue.popleft()
            self.network.record(self.receiver, item)
            if callable(item):
                item()
            else:
                self.receiver.receive(item)

    def hold(self, delay_s: float) -> None:
        """What is sent from now on takes at least so long: TCP repeats what the network loses of this
        connection."""
        self.last_at = max(self.last_at, self.network.loop.now + delay_s)

    def flow_again(self) -> None:
        """The link is no longer blocked."""
        stalled, self.stalled = self.stalled, 0
        for _ in range(stalled):
            self._schedule()


class Side:
    """One side of a connection."""

    __slots__ = (
        "address",
        "closed",
        "ended",
        "host",
        "inbox",
        "network",
        "notify_readable",
        "notify_writable",
        "out",
        "peer",
        "process",
        "reset",
        "silent",
        "unread",
    )

    def __init__(
        self, network: SimulatedNetwork, host: str, address: tuple[str, int], process: Process | None
    ) -> None:
        self.network = network
        self.host = host
        self.address = address
        self.process = process
        self.peer: Side = self
        self.out: Direction = cast(Direction, None)
        self.inbox: deque[memoryview] = deque()
        self.unread = 0
        self.ended = False
        """The peer sends no more."""
        self.reset = False
        self.closed = False
        self.silent = False
        """The machine has lost its power: it does not answer."""
        self.notify_readable: Callable[[], None] = _nothing
        self.notify_writable: Callable[[], None] = _nothing

    @property
    def readable(self) -> bool:
        return bool(self.unread or self.ended or self.reset)

    @property
    def window(self) -> int:
        """How many bytes `write` takes now."""
        return WINDOW_BYTES - self.out.in_flight

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Send what the window allows. Raises ConnectionResetError, BrokenPipeError."""
        self._check()
        if self.closed:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        if self.reset:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        count = min(len(data), self.window)
        if count > 0:
            out = self.out
            for watch in tuple(self.network.on_write):
                watch(self, data)
            out.in_flight += count
            out.send(bytes(data) if count == len(data) else bytes(memoryview(data)[:count]))
        return count

    def read(self, space: memoryview) -> int:
        """Fill the space; 0 at the end. Raises BlockingIOError, ConnectionResetError."""
        self._check()
        inbox = self.inbox
        if not inbox:
            if self.reset:
                raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
            if self.ended:
                return 0
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        filled, most = 0, len(space)
        while inbox and filled < most:
            head = inbox[0]
            count = min(len(head), most - filled)
            space[filled : filled + count] = head[:count]
            filled += count
            if count == len(head):
                inbox.popleft()
            else:
                inbox[0] = head[count:]
        self._took(filled)
        return filled

    def take(self) -> memoryview | None:
        """The next bytes; None if there are none."""
        if not self.inbox:
            return None
        chunk = self.inbox.popleft()
        self._took(len(chunk))
        return chunk

    def _took(self, count: int) -> None:
        self.unread -= count
        direction = self.peer.out
        was_full = direction.in_flight >= WINDOW_BYTES
        direction.in_flight -= count
        if was_full and not self.peer.closed:
            self.peer.notify_writable()

    def _check(self) -> None:
        if self.process is not None and not self.process.alive:
            raise BrokenPipeError(errno.EPIPE, "the process is dead")

    def receive(self, item: Any) -> None:
        """An item has arrived from the peer."""
        if self.silent:
            return
        if item is _RESET:
            if not self.closed:
                self.reset = True
                self.inbox.clear()
                self.unread = 0
                self.notify_readable()
                self.notify_writable()
            return
        if self.closed:
            if item is not _END and not self.peer.closed:
                self.out.send(_RESET)
            return
        if self.reset:
            return
        if item is _END:
            self.ended = True
        else:
            self.inbox.append(memoryview(item))
            self.unread += len(item)
        self.notify_readable()

    def receive_reset(self) -> None:
        """The network breaks the connection; the peer learns it when it sends."""
        if not self.closed:
            self.receive(_RESET)

    def close(self) -> None:
        """Send the end, or a reset if received bytes are unread."""
        if not self.closed:
            self.closed = True
            if not self.reset and not self.silent:
                self.out.send(_RESET if self.unread else _END)
            self.network.sides.pop(self, None)

    def abort(self) -> None:
        """Reset the connection."""
        if not self.closed:
            self.closed = True
            if not self.reset and not self.silent:
                self.out.send(_RESET)
            self.network.sides.pop(self, None)


def _nothing() -> None:
    pass


class SimulatedSocket:
    """A connected or listening socket that does not block. The part of `socket.socket` that brokers use."""

    def __init__(self, network: SimulatedNetwork, side: Side | None) -> None:
        self._network = network
        self._loop = network.loop
        self.side = side
        self.reader: asyncio.Handle | None = None
        self.writer: asyncio.Handle | None = None
        self.fd = network.loop.new_descriptor()
        network.loop.sockets[self.fd] = self
        self._reader_scheduled = self._writer_scheduled = False
        self.listening = False
        self.backlog: deque[Side] = deque()
        self.address: tuple[str, int] = ("", 0)
        if side is not None:
            side.notify_readable = side.notify_writable = self.poll

    # --- events ---

    @property
    def _readable(self) -> bool:
        return bool(self.backlog) if self.side is None else self.side.readable

    @property
    def _writable(self) -> bool:
        return self.side is not None and (self.side.reset or self.side.window > 0)

    def poll(self) -> None:
        if self.reader is not None and not self._reader_scheduled and self._readable:
            self._reader_scheduled = True
            self._schedule(self.reader, self._run_reader)
        if self.writer is not None and not self._writer_scheduled and self._writable:
            self._writer_scheduled = True
            self._schedule(self.writer, self._run_writer)

    def _schedule(self, handle: asyncio.Handle, run: Callable[[], None]) -> None:
        self._loop.ready.append(_Handle(run, (), self._loop, handle._context))  # type: ignore[attr-defined]

    def _run_reader(self) -> None:
        self._reader_scheduled = False
        handle = self.reader
        if handle is not None and self._readable:
            handle._callback(*handle._args)  # type: ignore[attr-defined]
            self.poll()

    def _run_writer(self) -> None:
        self._writer_scheduled = False
        handle = self.writer
        if handle is not None and self._writable:
            handle._callback(*handle._args)  # type: ignore[attr-defined]
            self.poll()

    # --- the socket ---

    def fileno(self) -> int:
        return self.fd

    def getsockname(self) -> tuple[str, int]:
        return self.address if self.side is None else self.side.address

    def getpeername(self) -> tuple[str, int]:
        assert self.side is not None
        return self.side.peer.address

    def setsockopt(self, *_: object) -> None:
        """Options have no effect."""

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def listen(self, backlog: int = 0) -> None:
        self.listening = True

    async def connect(self, host: str, port: int) -> None:
        self.side = side = await self._network.dial(host, port)
        side.notify_readable = side.notify_writable = self.poll

    def accept(self) -> tuple[SimulatedSocket, tuple[str, int]]:
        """Raises BlockingIOError."""
        while self.backlog:
            side = self.backlog.popleft()
            if not side.closed:
                side.process = CURRENT.get()
                return SimulatedSocket(self._network, side), side.peer.address
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    def recv_into(self, space: memoryview) -> int:
        assert self.side is not None
        return self.side.read(space)

    def send(self, data: bytes | bytearray | memoryview, flags: int = 0) -> int:
        assert self.side is not None
        if not len(data):
            return 0
        count = self.side.write(data)
        if count <= 0:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return count

    def sendmsg(self, buffers: list[Any], ancillary: object = (), flags: int = 0) -> int:
        return self.send(b"".join(buffers))

    def shutdown(self, how: int) -> None:
        assert self.side is not None
        if not self.side.closed:
            self.side.out.send(_END)

    def close(self) -> None:
        if self._loop.sockets.pop(self.fd, None) is None:
            return
        if self.reader is not None:
            self.reader.cancel()
        if self.writer is not None:
            self.writer.cancel()
        self.reader = self.writer = None
        if self.side is not None:
            self.side.close()
        else:
            self._network.unlisten(self)


class SimulatedTransport(asyncio.Transport):
    """The asyncio transport of an outgoing connection."""

    def __init__(self, side: Side, protocol: asyncio.BaseProtocol, loop: SimulatedLoop) -> None:
        super().__init__({"peername": side.peer.address, "sockname": side.address})
        self._side = side
        self._protocol: Any = protocol
        self._buffered = isinstance(protocol, asyncio.BufferedProtocol)
        self._loop = loop
        self._pending = bytearray()
        self._reading = True
        self._closing = False
        self._lost = False
        self._paused_writing = False
        self._scheduled = False
        self._high, self._low = 64 * 1024, 16 * 1024
        self._context = copy_context()
        side.notify_readable = self._on_readable
        side.notify_writable = self._on_writable

    def _on_readable(self) -> None:
        if not self._scheduled and self._reading:
            self._scheduled = True
            self._loop.call_soon(self._read, context=self._context)

    def _on_writable(self) -> None:
        self._loop.call_soon(self._flush, context=self._context)

    def _read(self) -> None:
        self._scheduled = False
        side, protocol = self._side, self._protocol
        while self._reading and not self._lost and not self._closing:
            if side.reset:
                self._lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
                return
            chunk = side.take()
            if chunk is None:
                break
            if self._buffered:
                while chunk and not self._lost and not self._closing:
                    space = protocol.get_buffer(-1)
                    count = min(len(space), len(chunk))
                    memoryview(space)[:count] = chunk[:count]
                    protocol.buffer_updated(count)
                    chunk = chunk[count:]
            else:
                protocol.data_received(bytes(chunk))
        if self._lost or self._closing:
            if side.reset and self._closing:
                self._lose(None)
            return
        if side.ended and not side.unread and self._reading:
            keep_open = protocol.eof_received()
            if not keep_open:
                self.close()

    def write(self, data: Any) -> None:
        if self._closing or self._lost or not data:
            return
        if self._pending:
            self._pending += data
        else:
            count = self._write(data)
            if count < len(data):
                self._pending += memoryview(data)[count:]
        if len(self._pending) > self._high and not self._paused_writing:
            self._paused_writing = True
            self._protocol.pause_writing()

    def _write(self, data: Any) -> int:
        try:
            return self._side.write(data)
        except OSError as problem:
            self._loop.call_soon(self._lose, problem)
            return len(data)

    def _flush(self) -> None:
        if self._lost:
            return
        while self._pending:
            count = self._write(self._pending)
            if count <= 0:
                return
            del self._pending[:count]
        if self._paused_writing and len(self._pending) <= self._low:
            self._paused_writing = False
            self._protocol.resume_writing()
        if self._closing:
            self._lose(None)

    def close(self) -> None:
        if self._closing or self._lost:
            return
        self._closing = True
        if not self._pending:
            self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        if not self._lost:
            self._closing = True
            self._pending.clear()
            self._side.abort()
            self._loop.call_soon(self._lose, None)

    def _lose(self, problem: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self._side.close()
        self._protocol.connection_lost(problem)

    def is_closing(self) -> bool:
        return self._closing or self._lost

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._on_readable()

    def is_reading(self) -> bool:
        return self._reading

    def get_protocol(self) -> asyncio.BaseProtocol:
        return cast(asyncio.BaseProtocol, self._protocol)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_write_buffer_size(self) -> int:
        return len(self._pending)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._side.out.send(_END)


class SimulatedNetwork:
    """All machines with their links and connections."""

    def __init__(self, loop: SimulatedLoop, source: random.Random) -> None:
        self.loop = loop
        self.random = source
        self.context = copy_context()
        """The simulation's: deliveries belong to no process."""
        self.sides: dict[Side, None] = {}
        self.stalled: dict[Direction, None] = {}
        self.trace: Callable[[float, str, int], None] = lambda now, host, crc: None
        self.on_write: list[Callable[[Side, bytes | bytearray | memoryview], None]] = []
        """Called before bytes are sent."""
        self._links: dict[tuple[str, str], Link] = {}
        self._listening: dict[tuple[str, int], SimulatedSocket] = {}
        self._off: set[str] = set()
        """Machines without power."""
        self._port = 30_000
        loop.connect = self.connect

    # --- machines and links ---

    def link(self, source: str, destination: str) -> Link:
        found = self._links.get((source, destination))
        if found is None:
            found = self._links[source, destination] = Link()
        return found

    def block(self, source: str, destination: str) -> None:
        """Cut the way in one direction."""
        self.link(source, destination).blocked = True

    def unblock(self, source: str, destination: str) -> None:
        link = self.link(source, destination)
        if link.blocked:
            link.blocked = False
            for direction in [each for each in self.stalled if each.link is link]:
                del self.stalled[direction]
                direction.flow_again()

    def heal(self) -> None:
        """Restore every link."""
        for source, destination in list(self._links):
            self.unblock(source, destination)

    def process_died(self, process: Process) -> None:
        """The kernel closes the sockets of a dead process."""
        for sock in [each for each in self._listening.values() if each.address[0] == process.name]:
            sock.close()
        for side in [each for each in self.sides if each.process is process]:
            side.abort()

    def power_off(self, host: str) -> None:
        """The machine is gone, and its connections are not closed."""
        self._off.add(host)
        for sock in [each for each in self._listening.values() if each.address[0] == host]:
            sock.close()
        for side in [each for each in self.sides if each.host == host]:
            side.silent = side.closed = True
            del self.sides[side]
            side.peer.notify_writable()

    def power_on(self, host: str) -> None:
        self._off.discard(host)
        for side in [each for each in self.sides if each.peer.silent and each.peer.host == host]:
            side.peer.out.send(_RESET)

    def reset_connections(self, between: Callable[[str, str], bool]) -> None:
        """Reset connections of pairs of hosts."""
        for side in list(self.sides):
            if between(side.host, side.peer.host):
                side.receive_reset()

    def record(self, receiver: Receiver, item: Any) -> None:
        crc = zlib.crc32(item) if isinstance(item, bytes) else 0
        self.trace(self.loop.now, receiver.host, crc)

    # --- listening and connecting ---

    def for_host(self, host: str) -> HostNetwork:
        return HostNetwork(self, host)

    def listen_on(self, sock: SimulatedSocket, host: str, port: int) -> None:
        if (host, port) in self._listening:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        sock.address = (host, port)
        self._listening[host, port] = sock

    def unlisten(self, sock: SimulatedSocket) -> None:
        if self._listening.get(sock.address) is sock:
            del self._listening[sock.address]

    def free_port(self) -> int:
        self._port += 1
        return self._port

    async def connect(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None,
        port: int | None,
        **settings: Any,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """As `loop.create_connection`: raises OSError."""
        assert not settings.get("ssl"), "the simulated network has no TLS"
        sock: SimulatedSocket | None = settings.get("sock")
        if sock is None:
            assert host is not None
            assert port is not None
            side = await self.dial(host, port)
        else:
            assert sock.side is not None
            side = sock.side
            self.loop.sockets.pop(sock.fd, None)
        protocol = protocol_factory()
        transport = SimulatedTransport(side, protocol, self.loop)
        protocol.connection_made(transport)
        transport.resume_reading()
        return transport, protocol

    def new_socket(self, *_: int) -> socket.socket:
        """A socket that is not connected."""
        return cast(socket.socket, SimulatedSocket(self, None))

    async def dial(self, host: str, port: int) -> Side:
        """Connect. Raises ConnectionRefusedError, TimeoutError (of the system)."""
        loop = self.loop
        process = CURRENT.get()
        source = "client" if process is None else process.name
        here = Side(self, source, (source, self.free_port()), process)
        there = Side(self, host, (host, port), None)
        here.peer, there.peer = there, here
        here.out = Direction(self, self.link(source, host), there)
        there.out = Direction(self, self.link(host, source), here)
        answered: asyncio.Future[OSError | None] = loop.create_future()

        def synchronize() -> None:
            """The request to connect has arrived."""
            if host in self._off:
                return
            listener = self._listening.get((host, port))
            if listener is None or not listener.listening:
                there.closed = True
                there.out.send(
                    partial(acknowledge, ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))
                )
            else:
                self.sides[there] = None
                there.out.send(partial(acknowledge, None))
                listener.backlog.append(there)
                listener.poll()

        def acknowledge(problem: OSError | None) -> None:
            if not answered.done():
                answered.set_result(problem)

        here.out.send(synchronize)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                problem = await answered
        except TimeoutError:
            problem = TimeoutError(errno.ETIMEDOUT, "Connection timed out")
        except BaseException:
            here.abort()
            raise
        if problem is not None:
            here.closed = True
            raise problem
        self.sides[here] = None
        return here


class HostNetwork:
    """The network as one machine sees it: the port `ottla.ports.network.Network`."""

    def __init__(self, network: SimulatedNetwork, host: str) -> None:
        self._network = network
        self._host = host

    def resolve(self, host: str) -> set[str]:
        return {host}

    def host_name(self) -> str:
        return self._host

    def bind(self, host: str | None, port: int) -> socket.socket:
        sock = SimulatedSocket(self._network, None)
        self._network.listen_on(sock, self._host, port or self._network.free_port())
        return cast(socket.socket, sock)

"""Clients that want to harm, or know not what they do: the broker's memory stays bounded, others are served.

Over real sockets against a broker in a process of its own, whose resident memory is read from /proc.
"""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.local.processes import wait_until
from ottla.protocol import frames
from ottla.protocol.messages import (
    ApiVersionsRequest,
    CreateTopicsRequest,
    FetchRequest,
    MetadataRequest,
    ProduceRequest,
)
from ottla.protocol.records import Record, build_batch
from ottla.protocol.types import Message
from tests.judges.one_broker import one_broker

pytestmark = pytest.mark.timeout(420)
MIB = 1 << 20
PAGE = resource.getpagesize()
CONNECTIONS = 10_000


class Subject:
    """A broker under attack."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid, self.port = pid, port

    def memory(self) -> int:
        """Resident bytes of its own, without those of files and libraries."""
        _, resident, shared, *_ = Path(f"/proc/{self.pid}/statm").read_text().split()
        return (int(resident) - int(shared)) * PAGE

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=90)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def cpu_s(self) -> float:
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9


@contextmanager
def broker(directory: Path, **settings: str) -> Iterator[Subject]:
    """`_` in the names of settings is `.`."""
    given = {name.replace("_", "."): text for name, text in settings.items()}
    with one_broker(directory, given) as running:
        yield Subject(running.pid, running.port)


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    # A longer backlog: these clients connect faster than anybody accepts; who finds it full waits for 1 s.
    directory = tmp_path_factory.mktemp("broker")
    with enough_descriptors(), broker(directory, socket_listen_backlog_size="1000") as it:
        yield it


@contextmanager
def enough_descriptors() -> Iterator[None]:
    """For this process and the brokers that it starts."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def framed(message: Message, version: int, correlation_id: int = 1, client_id: str = "hostile") -> bytes:
    return frames.encode_request(message, version, correlation_id, client_id)


def receive(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = sock.recv(count - len(data))
        assert chunk, f"closed after {len(data)} of {count} bytes"
        data += chunk
    return bytes(data)


def correlation_id(sock: socket.socket) -> int:
    """Of the next answer."""
    size = int.from_bytes(receive(sock, 4), "big")
    return int.from_bytes(receive(sock, size)[:4], "big")


def is_closed(sock: socket.socket) -> bool:
    """Whether the broker closes the connection, and says nothing before."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def ready(sockets: list[socket.socket], event: int, timeout_s: float) -> list[socket.socket]:
    """Those that can be read from or written to; select() itself ends at descriptor 1,023."""
    poll = select.poll()
    by_fd = {sock.fileno(): sock for sock in sockets}
    for fd in by_fd:
        poll.register(fd, event)
    return [by_fd[fd] for fd, _ in poll.poll(timeout_s * 1000)]


HELLO = framed(ApiVersionsRequest(), 0)


@contextmanager
def bystander(subject: Subject) -> Iterator[list[float]]:
    """An honest client that asks all the time; the seconds that its answers took. It must have had some."""
    waits: list[float] = []
    stop = threading.Event()
    problems: list[Exception] = []

    def ask() -> None:
        try:
            with subject.connect() as sock:
                while not stop.is_set():
                    started = time.monotonic()
                    sock.sendall(HELLO)
                    correlation_id(sock)
                    waits.append(time.monotonic() - started)
                    stop.wait(0.002)
        except Exception as e:
            problems.append(e)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield waits
        asked = len(waits)
        assert wait_until(lambda: len(waits) >= asked + 5 or bool(problems), timeout_s=90)
    finally:
        stop.set()
        thread.join()
    assert not problems, problems


@contextmanager
def closing(sockets: list[socket.socket]) -> Iterator[list[socket.socket]]:
    try:
        yield sockets
    finally:
        for sock in sockets:
            sock.close()


# --- what makes no sense -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        b"\x80\x00\x00\x00",
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x01\x00",
        b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(517 - 11),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x00\x00\x00\x08\x7f\xff\x00\x00\x00\x00\x00\x01",
    ],
    ids=["minus one", "least", "zero", "one byte", "HTTP", "TLS", "SSH", "unknown API"],
)
def test_invalid_requests_close_the_connection_without_a_response(subject: Subject, data: bytes) -> None:
    with bystander(subject), subject.connect() as sock:
        sock.sendall(data)
        assert is_closed(sock)


# --- memory ------------------------------------------------------------------------------------------


def test_the_size_of_a_large_request_alone_takes_no_memory(subject: Subject) -> None:
    before = subject.memory()
    with bystander(subject), closing([subject.connect() for _ in range(200)]) as sockets:
        for sock in sockets:
            sock.sendall((100 * MIB).to_bytes(4, "big") + b"\0" * 100)
        with subject.connect() as after:  # when this is answered, all of that was read
            after.sendall(HELLO)
            correlation_id(after)
        assert subject.memory() - before < 20 * MIB


def test_a_large_request_takes_memory_as_it_is_received_and_frees_it(subject: Subject) -> None:
    before = subject.memory()
    with bystander(subject), subject.connect() as sock:
        sock.sendall((100 * MIB).to_bytes(4, "big") + HELLO[4:])
        for sent in (30, 60, 90):
            sock.sendall(bytes(30 * MIB))
            expected = (sent - 5) * MIB
            assert wait_until(lambda least=expected: subject.memory() - before > least, timeout_s=90)
            assert subject.memory() - before < (sent + 20) * MIB
    assert wait_until(lambda: subject.memory() - before < 20 * MIB, timeout_s=90)


def test_slowly_received_requests_take_only_the_memory_of_their_received_bytes(subject: Subject) -> None:
    before = subject.memory()
    with bystander(subject), closing([subject.connect() for _ in range(500)]) as sockets:
        for at in range(len(HELLO) - 1):
            for sock in sockets:
                sock.sendall(HELLO[at : at + 1])
        assert subject.memory() - before < 60 * MIB
        for sock in sockets:
            sock.sendall(HELLO[-1:])
        assert {correlation_id(sock) for sock in sockets} == {1}, "slow, and yet served"


def test_ten_thousand_idle_connections_take_little_memory_and_no_cpu_time(subject: Subject) -> None:
    before = subject.memory()
    count = min(CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1000)
    with closing([]) as sockets, bystander(subject) as waits:
        alone = cpu_each(subject, waits)
        for start in range(0, count, 100):
            batch = [subject.connect() for _ in range(min(100, count - start))]
            sockets += batch
            for sock in batch:
                sock.sendall(HELLO)
            for sock in batch:
                correlation_id(sock)
        each = (subject.memory() - before) / count
        del waits[:]
        among_them = cpu_each(subject, waits)
        print(f"\n{count} quiet connections: {each:.0f} bytes each, longest wait {max(waits) * 1e3:.1f} ms, "
              f"{among_them * 1e6:.0f} µs of a core an answer, {alone * 1e6:.0f} µs before")  # fmt: skip
        assert each < 8192
        # To look at them all each time would take several milliseconds.
        assert among_them < max(0.003, 3 * alone)


def cpu_each(subject: Subject, waits: list[float]) -> float:
    """The processor's seconds that the broker takes for an answer to the bystander: that other processes keep
    it waiting is not its fault."""
    cpu, asked = subject.cpu_s(), len(waits)
    assert wait_until(lambda: len(waits) >= asked + 500, timeout_s=120)
    return (subject.cpu_s() - cpu) / (len(waits) - asked)


def test_a_client_that_never_reads_gets_bounded_responses_and_loses_none(subject: Subject) -> None:
    count = 100_000
    answer_bytes = 0
    with subject.connect() as probe:
        probe.sendall(HELLO)
        answer_bytes = 4 + int.from_bytes(receive(probe, 4), "big")
    before = subject.memory()
    with bystander(subject), subject.connect() as sock:
        long_name = "x" * 300  # or the kernel's buffers hold all requests
        data = memoryview(
            b"".join(framed(ApiVersionsRequest(), 0, number, long_name) for number in range(count))
        )
        sock.setblocking(False)
        sent = 0
        while ready([sock], select.POLLOUT, 1):  # until the broker takes no more for a second
            with contextlib.suppress(BlockingIOError):
                sent += sock.send(data[sent : sent + 65_536])
            assert sent < len(data), "it was all taken, and nobody reads the answers"
        assert subject.memory() - before < 10 * MIB
        sock.setblocking(True)
        sender = threading.Thread(target=lambda: sock.sendall(data[sent:]))
        sender.start()
        stream = bytearray()
        for number in range(count):
            while len(stream) < answer_bytes:
                chunk = sock.recv(1 << 20)
                assert chunk
                stream += chunk
            assert int.from_bytes(stream[4:8], "big") == number
            del stream[:answer_bytes]
        sender.join()
        assert not stream
        assert subject.memory() - before < 10 * MIB


def test_a_half_closed_connection_gets_its_responses_and_is_closed(subject: Subject) -> None:
    with subject.connect() as sock:
        sock.sendall(framed(ApiVersionsRequest(), 0, 1) + framed(MetadataRequest(topics=None), 4, 2))
        sock.shutdown(socket.SHUT_WR)
        assert [correlation_id(sock), correlation_id(sock)] == [1, 2]
        assert is_closed(sock)


def test_queued_max_request_bytes_bounds_memory_and_other_requests_wait(tmp_path: Path) -> None:
    settings = {"socket_request_max_bytes": str(8 * MIB), "queued_max_request_bytes": str(16 * MIB)}
    with enough_descriptors(), broker(tmp_path, **settings) as subject:
        before = subject.memory()
        with closing([subject.connect() for _ in range(40)]) as sockets:
            for sock in sockets:
                sock.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    sock.send((8 * MIB).to_bytes(4, "big"))
            body = bytes(64 * 1024)
            for _ in range(100):
                for sock in ready(sockets, select.POLLOUT, 0):
                    with contextlib.suppress(BlockingIOError):
                        sock.send(body)
            assert subject.memory() - before < 30 * MIB
            with subject.connect() as honest:
                honest.sendall(HELLO)
                assert not ready([honest], select.POLLIN, 0.3), "there is no memory for it"
                for sock in sockets:
                    sock.close()
                assert correlation_id(honest) == 1


# --- time and order --------------------------------------------------------------------------------


def create(sock: socket.socket) -> None:
    topic = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    sock.sendall(framed(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 5, 0))
    assert correlation_id(sock) == 0


def fetch(number: int, max_wait_ms: int) -> bytes:
    """Which waits as long as it may."""
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=MIB)
    asked = FetchRequest.FetchTopic(topic="t", partitions=[partition])
    message = FetchRequest(
        replica_id=-1, max_wait_ms=max_wait_ms, min_bytes=10 * MIB, max_bytes=20 * MIB, topics=[asked]
    )
    return framed(message, 11, number)


def test_responses_to_delayed_and_other_requests_are_in_order(subject: Subject) -> None:
    def produce(number: int, acks: int) -> bytes:
        batch = build_batch([Record(0, 0, None, b"x" * 1000)])
        data = ProduceRequest.PartitionProduceData(index=0, records=batch)
        asked = ProduceRequest.TopicProduceData(name="t", partition_data=[data])
        return framed(ProduceRequest(acks=acks, timeout_ms=5000, topic_data=[asked]), 9, number)

    with subject.connect() as sock:
        create(sock)
        started = time.monotonic()
        sock.sendall(
            b"".join(
                (
                    fetch(1, 300),
                    framed(ApiVersionsRequest(), 0, 2),
                    produce(3, -1),
                    produce(99, 0),
                    fetch(4, 200),
                    framed(MetadataRequest(topics=None), 4, 5),
                    produce(6, 1),
                    fetch(7, 0),
                )
            )
        )
        assert [correlation_id(sock) for _ in range(7)] == [1, 2, 3, 4, 5, 6, 7]
        assert time.monotonic() - started >= 0.49, "both waited to their end, one after the other"


def test_idle_connections_are_closed_and_those_with_a_pending_response_are_not(tmp_path: Path) -> None:
    with (
        broker(tmp_path, connections_max_idle_ms="4000") as subject,
        subject.connect() as waiting,
    ):
        create(waiting)
        waiting.sendall(fetch(1, 9000))
        with subject.connect() as idle:
            started = time.monotonic()
            idle.sendall(HELLO)
            correlation_id(idle)
            assert is_closed(idle)
            assert time.monotonic() - started >= 3.9
        assert correlation_id(waiting) == 1

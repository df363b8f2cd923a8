"""The floor of a broker's cost: a process that makes its system calls with the same bytes, and nothing else.

Started by `bench.requests` beside a broker, on the broker's core. It decodes nothing: it receives a request
that the broker has answered before, writes its last bytes to a file (Produce) or sends a range of a file
(Fetch), and sends the broker's response. Its CPU time is what no broker in Python can go below; the kernel's
part of it is what no broker can.
"""

from __future__ import annotations

import base64
import json
import os
import select
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bench.connection import SIZE
from ottla.local.processes import ChildProcess, StartFailed, wait_until

LOG_BYTES_MAX: Final = 1 << 30
"""The file of the requests starts again, as retention deletes the segments of the broker's topic."""
REQUEST_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True)
class Exchange:
    """A request of this size, and what a broker does for it."""

    request_bytes: int
    written_bytes: int
    """The end of the request, which is appended to the log."""
    head: str
    """The response's first bytes, its size included, in base64."""
    file_bytes: int = 0
    """Bytes of the file that follow the head."""
    tail: str = ""

    @classmethod
    def of_produce(cls, request_bytes: int, batch_bytes: int, response: bytes) -> Exchange:
        return cls(request_bytes, batch_bytes, _text(SIZE.pack(len(response)) + response))

    @classmethod
    def of_fetch(cls, request_bytes: int, response: bytes, records_at: int, records_bytes: int) -> Exchange:
        head, tail = response[:records_at], response[records_at + records_bytes :]
        return cls(request_bytes, 0, _text(SIZE.pack(len(response)) + head), records_bytes, _text(tail))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


@contextmanager
def running(directory: Path, exchanges: list[Exchange], records: bytes) -> Iterator[ChildProcess]:
    """A floor that answers these requests, fetches with `records`; its port is in directory/ready."""
    directory.mkdir()
    (directory / "exchanges").write_text(json.dumps([asdict(exchange) for exchange in exchanges]))
    (directory / "records").write_bytes(records)
    ready, log = directory / "ready", directory / "floor.log"
    floor = ChildProcess("floor", [sys.executable, "-m", "bench.floor", str(directory)], log=log)
    floor.start()
    try:
        if not wait_until(lambda: ready.exists() or not floor.running, timeout_s=30) or not ready.exists():
            raise StartFailed(log.read_text())
        yield floor
    finally:
        floor.stop(timeout_s=20)


class _Log:
    """The file that takes the written bytes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._at = 0

    def append(self, data: memoryview) -> None:
        self._at += os.pwritev(self._fd, [data], self._at)
        if self._at > LOG_BYTES_MAX:
            os.ftruncate(self._fd, 0)
            self._at = 0


def serve(directory: Path) -> None:
    """Answers requests, one connection at a time as the benchmark opens them, until it is killed."""
    parsed = [Exchange(**fields) for fields in json.loads((directory / "exchanges").read_text())]
    answers: Mapping[int, tuple[int, bytes, int, bytes]] = {
        each.request_bytes: (
            each.written_bytes,
            base64.b64decode(each.head),
            each.file_bytes,
            base64.b64decode(each.tail),
        )
        for each in parsed
    }
    log, records = _Log(directory / "log"), os.open(directory / "records", os.O_RDONLY)
    listener = socket.create_server(("127.0.0.1", 0))
    (directory / "port").write_text(str(listener.getsockname()[1]))
    (directory / "port").rename(directory / "ready")
    buffer = memoryview(bytearray(REQUEST_BYTES_MAX))
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection, select.epoll() as poller:
            poller.register(connection, select.EPOLLIN)
            _answer(connection, poller, buffer, answers, log, records)


def _answer(
    connection: socket.socket,
    poller: select.epoll,
    buffer: memoryview,
    answers: Mapping[int, tuple[int, bytes, int, bytes]],
    log: _Log,
    records: int,
) -> None:
    """The requests of one connection have one size."""
    filled, size = 0, SIZE.size
    while True:
        poller.poll()
        received = connection.recv_into(buffer[filled:size])
        if received == 0:
            return
        filled += received
        if size == SIZE.size == filled:
            size += SIZE.unpack_from(buffer)[0]
        if filled < size:
            continue
        written, head, file_bytes, tail = answers[size]
        if written:
            log.append(buffer[size - written : size])
            connection.send(head)
        else:
            connection.send(head, socket.MSG_MORE)
            sent = 0
            while sent < file_bytes:
                sent += os.sendfile(connection.fileno(), records, sent, file_bytes - sent)
            connection.send(tail)
        filled = 0


if __name__ == "__main__":
    serve(Path(sys.argv[1]))

"""The floor of a broker's cost: a process that makes its system calls with the same bytes, and nothing else.

Started by `bench.requests` beside a broker, on the broker's core. It decodes nothing: it receives a request
that the broker has answered before, writes its batches to a file (Produce) or sends a range of a file
(Fetch), and sends the broker's response. Its CPU time is what no broker in Python can go below; the kernel's
part of it is what no broker can.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from bench.connection import SIZE
from bench.processes import serve_at, serving

LOG_BYTES_MAX: Final = 1 << 30
"""The file of the requests starts again, as retention deletes the segments of the broker's topic."""
REQUEST_BYTES_MAX: Final = 1 << 20


class Exchange(NamedTuple):
    """What a broker does for a request."""

    written: Sequence[slice]
    """The batches of the request, each of which is appended to the log."""
    head: bytes
    """The response's first bytes, its size included."""
    file_bytes: int = 0
    """Bytes of the file that follow the head."""
    tail: bytes = b""

    @classmethod
    def of_produce(cls, batches: Sequence[slice], response: bytes) -> Exchange:
        return cls(batches, SIZE.pack(len(response)) + response)

    @classmethod
    def of_fetch(cls, response: bytes, records: bytes) -> Exchange:
        head, _, tail = response.partition(records)
        return cls((), SIZE.pack(len(response)) + head, len(records), tail)


@contextmanager
def running(directory: Path, exchanges: Mapping[int, Exchange], records: bytes) -> Iterator[tuple[int, int]]:
    """A floor that answers requests of these sizes, fetches with `records`: its process id and port."""
    directory.mkdir()
    (directory / "exchanges").write_bytes(pickle.dumps(exchanges))
    (directory / "records").write_bytes(records)
    with serving("floor", [sys.executable, "-m", "bench.floor", str(directory)], directory) as floor:
        yield floor


class _Log:
    """The file that takes the written bytes."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._at = 0

    def append(self, data: memoryview) -> None:
        self._at += os.pwritev(self._fd, [data], self._at)
        if self._at > LOG_BYTES_MAX:
            os.ftruncate(self._fd, 0)
            self._at = 0


def serve(directory: Path) -> None:
    """Answers requests, one connection at a time as the benchmark opens them, until it is killed."""
    exchanges: Mapping[int, Exchange] = pickle.loads((directory / "exchanges").read_bytes())
    log, records = _Log(directory / "log"), os.open(directory / "records", os.O_RDONLY)
    listener = socket.create_server(("127.0.0.1", 0))
    serve_at(listener.getsockname()[1], directory)
    buffer = memoryview(bytearray(REQUEST_BYTES_MAX))
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection, select.epoll() as poller:
            poller.register(connection, select.EPOLLIN)
            _answer(connection, poller, buffer, exchanges, log, records)


def _answer(
    connection: socket.socket,
    poller: select.epoll,
    buffer: memoryview,
    exchanges: Mapping[int, Exchange],
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
        written, head, file_bytes, tail = exchanges[size]
        if written:
            for batch in written:
                log.append(buffer[batch])
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

"""A TLS socket reads as a plain one, many TLS records at a time."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ottla.server.network.tls_transport import RECORD_BYTES, receive
from tests.certificates import Authority

Pair = tuple[ssl.SSLSocket, ssl.SSLSocket]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """The server's end, and the client's."""
    authority = Authority()
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(authority.sign("broker").write_pem(tmp_path / "broker.pem"))
    trusting = ssl.create_default_context(cadata=authority.pem)
    ours, theirs = socket.socketpair()
    with ThreadPoolExecutor(1) as thread:
        shaken = thread.submit(trusting.wrap_socket, theirs, server_hostname="localhost")
        server = serving.wrap_socket(ours, server_side=True)
        client = shaken.result(60)
    server.setblocking(False)
    with server, client:
        yield server, client


def test_all_received_records_are_read_in_one_call(pair: Pair) -> None:
    stream, client = pair
    data = os.urandom(4 * RECORD_BYTES + 100)
    client.sendall(data)
    space = memoryview(bytearray(1 << 20))
    assert receive(stream, space) == len(data)
    assert space[: len(data)] == data
    with pytest.raises(BlockingIOError):
        receive(stream, space)


def test_complete_records_are_returned_without_waiting(pair: Pair) -> None:
    stream, client = pair
    data = os.urandom(2 * RECORD_BYTES)
    client.sendall(data)
    space = memoryview(bytearray(1 << 20))
    assert receive(stream, space) == len(data)


def test_a_read_is_limited_to_the_buffer(pair: Pair) -> None:
    stream, client = pair
    data = os.urandom(3 * RECORD_BYTES)
    client.sendall(data)
    space = memoryview(bytearray(RECORD_BYTES + 10))
    assert receive(stream, space) == len(space)
    assert space == data[: len(space)]
    rest = memoryview(bytearray(1 << 20))
    assert receive(stream, rest) == RECORD_BYTES - 10


def test_the_end_follows_all_data(pair: Pair) -> None:
    stream, client = pair
    client.sendall(bytes(RECORD_BYTES))
    client.shutdown(socket.SHUT_RDWR)
    space = memoryview(bytearray(1 << 20))
    assert receive(stream, space) == RECORD_BYTES
    assert receive(stream, space) == 0

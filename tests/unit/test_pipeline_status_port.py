"""A job's status port: silent connections keep nobody out."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from contextlib import suppress

import pytest
from prometheus_client import CollectorRegistry

from ottla_pipeline.status_port import CONNECTIONS_MAX, StatusPort


@pytest.fixture
def port() -> Iterator[int]:
    served = StatusPort("127.0.0.1", 0, lambda: {"phase": "running"}, CollectorRegistry())
    try:
        yield served.port
    finally:
        served.close()


def get(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as response:
        body: bytes = response.read()
        return body


def test_the_port_answers_with_status_and_health(port: int) -> None:
    assert get(port, "/status") == b'{"phase": "running"}'
    assert get(port, "/healthz") == b"ok\n"


@pytest.mark.parametrize("sent", [b"", b"GET /sta"])
def test_silent_connections_are_closed_for_new_ones(port: int, sent: bytes) -> None:
    silent = []
    for _ in range(2 * CONNECTIONS_MAX):
        silent.append(socket.create_connection(("127.0.0.1", port), timeout=60))
        silent[-1].sendall(sent)
    try:
        for _ in range(3):
            assert get(port, "/healthz") == b"ok\n"
        for oldest in silent[:CONNECTIONS_MAX]:
            with suppress(ConnectionResetError):
                assert oldest.recv(1) == b""
    finally:
        for connection in silent:
            connection.close()

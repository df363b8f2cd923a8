"""Free TCP ports on loopback, and polling of conditions."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import cycle, islice
from typing import Final

_PORTS: Final = range(10_000, 20_000)
"""Below the kernel's ephemeral ports (Linux: from 32768), so that a port stays free while its broker is
down."""


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free now. All ports of the range are returned once before any is repeated, so that
    concurrent callers rarely collide. OTTLA_PORTS=FIRST-LAST sets the range, for processes that start
    servers concurrently."""
    ports, order = _order(os.environ.get("OTTLA_PORTS"))
    for port in islice(order, len(ports)):
        if not port_in_use(port, host):
            return port
    raise OSError(f"no port of {ports.start} to {ports.stop - 1} is free on {host}")


@cache
def _order(wanted: str | None) -> tuple[range, Iterator[int]]:
    """(range of ports, endless random order of them) for FIRST-LAST, or for the default range."""
    first, _, last = wanted.partition("-") if wanted else ("", "", "")
    ports = range(int(first), int(last) + 1) if last else _PORTS
    return ports, cycle(random.sample(ports, len(ports)))


def port_in_use(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
        return False


def wait_until(condition: Callable[[], bool], *, timeout_s: float, poll_s: float = 0.05) -> bool:
    """Poll until the condition holds; returns False after the time-out."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(poll_s)
    return True

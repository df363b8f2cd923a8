"""Free TCP ports on loopback, and waiting for one to answer."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import cycle, islice
from typing import Final

_OURS: Final = range(10_000, 20_000)
"""Below those that the kernel hands out by itself (Linux: from 32768 on), to servers that want any port and
to every client's end of a connection: a port of ours stays free while a broker is down, too."""


def free_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago, and that hardly anybody takes before you do: each comes up once
    before any comes again. Processes that start servers side by side do best with a range each: OTTLA_PORTS
    says FIRST-LAST."""
    ours, order = _order(os.environ.get("OTTLA_PORTS"))
    for port in islice(order, len(ours)):
        if not port_in_use(port, host):
            return port
    raise OSError(f"no port of {ours.start} to {ours.stop - 1} is free on {host}")


@cache
def _order(wanted: str | None) -> tuple[range, Iterator[int]]:
    """The ports of FIRST-LAST, or all of ours, and the order in which they are tried."""
    first, _, last = wanted.partition("-") if wanted else ("", "", "")
    ours = range(int(first), int(last) + 1) if last else _OURS
    return ours, cycle(random.sample(ours, len(ours)))


def port_in_use(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
        return False


def wait_until(condition: Callable[[], bool], *, timeout_s: float, poll_s: float = 0.05) -> bool:
    """Poll until the condition holds; False when the time is over."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(poll_s)
    return True

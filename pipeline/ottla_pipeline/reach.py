"""Whether any broker answers, asked before Spark is started: its connector tries for three minutes.

Called by the jobs' commands. A TCP connection is all that is asked for, so that it holds for every listener.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable

TIMEOUT_S = 5.0


class Unreachable(Exception):
    """No broker of the bootstrap list can be connected to; the message says why, address by address."""


def check(bootstrap: str, timeout_s: float = TIMEOUT_S) -> None:
    """Connect to the first of `HOST:PORT,…` that can be connected to. Raises Unreachable."""
    reasons = []
    for host, port in _addresses(bootstrap):
        try:
            socket.create_connection((host, port), timeout_s).close()
            return
        except OSError as error:
            reasons.append(f"{host}:{port}: {error.strerror or error}")
    raise Unreachable(f"no broker answers ({'; '.join(reasons)}); is the cluster up?")


def _addresses(bootstrap: str) -> Iterable[tuple[str, int]]:
    for part in bootstrap.split(","):
        host, _, port = part.strip().rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise Unreachable(f"bootstrap {bootstrap}: must be HOST:PORT[,HOST:PORT…]")
        # `NAME://`, which Kafka's clients accept too, and brackets around IPv6.
        yield host.rpartition("://")[2].strip("[]"), int(port)

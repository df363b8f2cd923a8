"""The clocks and random numbers of the client library: what it takes from outside besides the event loop.

Used by client, wire and security, where they make the objects that draw times or numbers. Applications pass
nothing; a simulation sets `environment` in the context in which it runs a client or a broker. Tasks and
callbacks inherit the context. Code of the event loop uses the loop's clock (`loop.time`).
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Environment:
    """By default that of this machine."""

    wall_ms: Callable[[], int] = _wall_ms
    """Ms since 1970."""
    monotonic_s: Callable[[], float] = time.monotonic
    """Seconds of a clock that never steps."""
    random: random.Random = field(default_factory=random.SystemRandom)
    """Numbers that are fit for secrets."""
    new_socket: Callable[[int, int, int], socket.socket] = socket.socket
    """Makes a socket of a family, a type and a protocol, for `loop.sock_connect`."""


SYSTEM: Final = Environment()
environment: Final[ContextVar[Environment]] = ContextVar("environment", default=SYSTEM)
"""The environment of the running code."""

"""The ports of a broker: everything outside the process that its packages reach.

The packages server, controller, coordinators, replication, metadata, storage and quotas call the operating
system only through these interfaces, which the assembly passes in; `make lint` enforces it. The adapters for
the operating system are here, beside their interfaces. `ottla.simulation` has those for simulated
machines.

The asyncio event loop is a port as well: tasks, timers, the monotonic clock of time-outs (`loop.time`),
threads (`asyncio.to_thread`) and outgoing connections (`loop.create_connection`) belong to the running loop,
which a simulation replaces.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from ottla.ports.files import OS_FILES, Files
from ottla.ports.network import Network, OsNetwork
from ottla.ports.threads import RunParallel, run_in_threads

if TYPE_CHECKING:
    from ottla.ports.workers import Workers


class Clock(Protocol):
    """The time. Durations are measured with the monotonic clock; the wall clock may step."""

    def wall_ms(self) -> int:
        """Ms since 1970."""

    def monotonic_ms(self) -> int:
        """Ms of a clock that never steps; it shows the wall time at the start plus what has passed since."""

    def monotonic_s(self) -> float:
        """Seconds of the same kind of clock, with an arbitrary origin."""

    def cpu_s(self) -> float:
        """CPU time of the calling thread."""


class OsClock:
    """The clocks of this machine."""

    def __init__(self) -> None:
        self._origin_ns = time.time_ns() - time.monotonic_ns()
        self.monotonic_s = time.monotonic
        self.cpu_s = time.thread_time

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return (self._origin_ns + time.monotonic_ns()) // 1_000_000


def random_uuid(source: random.Random) -> UUID:
    """A random UUID (version 4): never 0 or 1, which Kafka's protocol reserves."""
    return UUID(int=source.getrandbits(128), version=4)


OS_RANDOM: Final = random.SystemRandom()
"""The operating system's source of random numbers, which is fit for secrets."""


@dataclass(frozen=True)
class Ports:
    """What one broker is given; the defaults are this machine's."""

    clock: Clock = field(default_factory=OsClock)
    random: random.Random = OS_RANDOM
    """The source of random numbers, ids and secrets."""
    files: Files = OS_FILES
    run_parallel: RunParallel = run_in_threads
    network: Network = field(default_factory=OsNetwork)
    workers: Workers = field(default_factory=lambda: _os_workers())


def _os_workers() -> Workers:
    from ottla.ports.workers import OsWorkers  # not imported by worker processes: it takes time

    return OsWorkers()

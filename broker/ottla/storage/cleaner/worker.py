"""The process that cleans logs, started by the broker (`ottla.server.logs.cleaner_process`).

It reads jobs from standard input and answers on standard output (`messages`). It keeps no state between jobs,
and changes only `.cleaned` files and the counters of the shared throttler: it may be killed at any time. It
ends with its input, and with the broker, however that ends. It runs with a lower priority than the broker.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable

from ottla.ports.files import OS_FILES
from ottla.protocol.errors import KafkaError
from ottla.storage.cleaner import cleaner
from ottla.storage.cleaner.messages import (
    Abort,
    Aborted,
    Answer,
    Cleaned,
    Continue,
    Done,
    Failed,
    Job,
    Order,
    decode,
    encode,
)
from ottla.storage.cleaner.offset_map import ENTRY_BYTES, OffsetMap
from ottla.storage.cleaner.throttler import Throttler

_NICENESS = 10
_PR_SET_PDEATHSIG = 1
_PAUSE_S_MAX = 1.0
"""The throttler is consulted again after at most this pause: the rate may have changed."""


class _InputClosed(Exception):
    """The broker has closed the input."""


class _JobAborted(Exception):
    """The broker has aborted the job."""


class OrderReader:
    """Reads the broker's orders, with or without waiting."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        self._rest = b""
        self._lines: deque[bytes] = deque()

    def next(self, timeout_s: float | None) -> Order | None:
        """The next order; None if none arrives within `timeout_s` (None waits without limit). Raises
        _InputClosed."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._lines:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._poll.poll(None if left_s is None else left_s * 1000):
                return None
            data = os.read(self._fd, 1 << 16)
            if not data:
                raise _InputClosed
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines.extend(lines)
        order: Order = decode(self._lines.popleft())
        return order


class Worker:
    """Executes jobs; `answer` sends the results."""

    def __init__(self, orders: OrderReader, answer: Callable[[Answer], None], throttle: Throttler) -> None:
        self._orders = orders
        self._answer = answer
        self._throttle = throttle

    def run(self) -> None:
        """Execute jobs until the input ends."""
        with contextlib.suppress(_InputClosed):
            while True:
                order = self._orders.next(None)
                if isinstance(order, Job):
                    self._answer(self._execute(order))

    def _execute(self, job: Job) -> Answer:
        try:
            return self._clean(job)
        except (_JobAborted, FileNotFoundError):
            return Aborted()
        except OSError as problem:
            return Failed(f"{job.directory}: {problem}", problem.errno)
        except (cleaner.LogCleaningError, KafkaError) as problem:
            return Failed(f"{job.directory}: {problem}")
        except (AssertionError, ValueError, IndexError, MemoryError) as problem:
            return Failed(f"{job.directory}: {problem!r}")

    def _clean(self, job: Job) -> Done:
        began = time.monotonic()
        offsets = OffsetMap(map_bytes(job))
        indexed = cleaner.build_map(OS_FILES, job, offsets, self._moved)
        mapped = time.monotonic()
        counts = cleaner.clean(OS_FILES, job, offsets, indexed.end_offset, self._moved, self._finished)
        return Done(
            indexed.end_offset,
            counts,
            indexed.bytes_read,
            offsets.size * ENTRY_BYTES / job.map_bytes,
            elapsed_ms=int((time.monotonic() - began) * 1000),
            index_elapsed_ms=int((mapped - began) * 1000),
        )

    def _finished(self, bases: list[int], size: int) -> None:
        """Report a cleaned segment, and wait until the broker has replaced its sources."""
        self._answer(Cleaned(bases, size))
        while not isinstance(self._next_order(None), Continue):
            pass

    def _moved(self, size: int) -> None:
        self._next_order(0.0)
        delay_s = self._throttle.delay_s(size, time.monotonic())
        while delay_s > 0:
            self._next_order(min(delay_s, _PAUSE_S_MAX))
            delay_s = self._throttle.delay_s(0, time.monotonic())

    def _next_order(self, timeout_s: float | None) -> Order | None:
        """The next order, if one arrives within `timeout_s`. Raises _JobAborted for an Abort."""
        order = self._orders.next(timeout_s)
        if isinstance(order, Abort):
            raise _JobAborted
        return order


def map_bytes(job: Job) -> int:
    """The size of the map: as configured, but not larger than needed, as its entries soon touch each of its
    pages."""
    if job.load_factor <= 0:
        return job.map_bytes
    records_max = job.upper_bound - job.first_dirty
    return min(job.map_bytes, ENTRY_BYTES * (int(records_max / job.load_factor) + 2))


def _die_with_parent(parent: int) -> None:
    """Let the system kill this process when `parent` dies: it must not write to logs that a new broker
    opens."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)


def main() -> None:
    _die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the broker, which ends this process in order
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    output = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of print() must not be taken for an answer

    def answer(message: Answer) -> None:
        data = encode(message)
        while data:
            data = data[os.write(output, data) :]

    with contextlib.suppress(BrokenPipeError):
        Worker(OrderReader(sys.stdin.fileno()), answer, Throttler(int(sys.argv[2]))).run()


if __name__ == "__main__":
    main()

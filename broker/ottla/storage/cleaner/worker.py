"""The process that cleans logs, started by `server.cleaner_process`.

It takes one job after another from its standard input and answers on its standard output (`job`). It holds no
state between jobs, and changes nothing but `.cleaned` files and the counts of the throttle that all workers
share: it may be killed at any time. It ends with its input, and with the broker, however that ends.

It is nicer to others than the broker is: where both share a core, the broker goes first.
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
from ottla.storage.cleaner.throttler import Throttle

_NICENESS = 10
_PR_SET_PDEATHSIG = 1
_PAUSE_S_MAX = 1.0
"""After so long a pause it is asked again whether it is over: the rate may be another."""


class _Ended(Exception):
    """The broker has closed our input."""


class _GivenUp(Exception):
    """The broker wants no more of this job."""


class Orders:
    """The lines that come in, waited for or not."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        self._rest = b""
        self._lines: deque[bytes] = deque()

    def next(self, timeout_s: float | None) -> Order | None:
        """The next order, if it comes within so many seconds; None waits for ever. Raises _Ended."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._lines:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._poll.poll(None if left_s is None else left_s * 1000):
                return None
            data = os.read(self._fd, 1 << 16)
            if not data:
                raise _Ended
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines.extend(lines)
        order: Order = decode(self._lines.popleft())
        return order


class Worker:
    """Does jobs; `answer` sends what there is to tell."""

    def __init__(self, orders: Orders, answer: Callable[[Answer], None], throttle: Throttle) -> None:
        self._orders = orders
        self._answer = answer
        self._throttle = throttle

    def run(self) -> None:
        """Until the input ends."""
        with contextlib.suppress(_Ended):
            while True:
                order = self._orders.next(None)
                if isinstance(order, Job):
                    self._answer(self._outcome(order))

    def _outcome(self, job: Job) -> Answer:
        try:
            return self._do(job)
        except (_GivenUp, FileNotFoundError):
            return Aborted()
        except OSError as problem:
            return Failed(f"{job.directory}: {problem}", problem.errno)
        except (cleaner.Uncleanable, KafkaError) as problem:
            return Failed(f"{job.directory}: {problem}")
        except (AssertionError, ValueError, IndexError, MemoryError) as problem:
            return Failed(f"{job.directory}: {problem!r}")

    def _do(self, job: Job) -> Done:
        began = time.monotonic()
        offsets = OffsetMap(map_bytes(job))
        indexed = cleaner.build_map(job, offsets, self._moved)
        mapped = time.monotonic()
        counts = cleaner.clean(job, offsets, indexed.end_offset, self._moved, self._finished)
        return Done(
            indexed.end_offset,
            counts,
            indexed.bytes_read,
            offsets.size * ENTRY_BYTES / job.map_bytes,
            elapsed_ms=int((time.monotonic() - began) * 1000),
            index_elapsed_ms=int((mapped - began) * 1000),
        )

    def _finished(self, bases: list[int], size: int) -> None:
        """Wait until the broker has put the segment in place."""
        self._answer(Cleaned(bases, size))
        while not isinstance(self._heed(None), Continue):
            pass

    def _moved(self, size: int) -> None:
        self._heed(0.0)
        delay_s = self._throttle.delay_s(size, time.monotonic())
        while delay_s > 0:
            self._heed(min(delay_s, _PAUSE_S_MAX))
            delay_s = self._throttle.delay_s(0, time.monotonic())

    def _heed(self, timeout_s: float | None) -> Order | None:
        """Take an order, if one comes in time. Raises _GivenUp when it is to give up."""
        order = self._orders.next(timeout_s)
        if isinstance(order, Abort):
            raise _GivenUp
        return order


def map_bytes(job: Job) -> int:
    """What the map may take, and no more than it can need: entries lie all over it, and so each page of it is
    soon in memory."""
    if job.load_factor <= 0:
        return job.map_bytes
    records_max = job.upper_bound - job.first_dirty
    return min(job.map_bytes, ENTRY_BYTES * (int(records_max / job.load_factor) + 2))


def _die_with(parent: int) -> None:
    """Have the system end us when `parent` is gone: nobody is to write to logs that a new broker opens."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)


def main() -> None:
    _die_with(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the broker, which ends us in order
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    output = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever prints must not be taken for an answer

    def answer(message: Answer) -> None:
        data = encode(message)
        while data:
            data = data[os.write(output, data) :]

    with contextlib.suppress(BrokenPipeError):
        Worker(Orders(sys.stdin.fileno()), answer, Throttle(int(sys.argv[2]))).run()


if __name__ == "__main__":
    main()

"""The worker process of the log cleaner, seen from the broker: messages to it and from it.

Used by `log_cleaner`, in a thread of its own, for all of it blocks; `end` alone may be called from elsewhere.
The process is started with the first message, and costs nothing before. It ends when it is told to, and by
itself when the thread that started it is gone.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from contextlib import suppress

from ottla.storage.cleaner.messages import Answer, Order, decode, encode
from ottla.storage.cleaner.throttler import Throttler


class ProcessDied(Exception):
    """There will be no answer; the message says how it ended."""


class CleanerProcess:
    """See the module."""

    def __init__(self, throttle: Throttler) -> None:
        self._throttle = throttle
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._mutex = threading.Lock()
        self._ended = False

    @property
    def pid(self) -> int | None:
        process = self._process
        return None if process is None else process.pid

    def send(self, order: Order) -> None:
        """Raises ProcessDied, and OSError where none can be started."""
        process = self._started()
        assert process.stdin is not None
        try:
            process.stdin.write(encode(order))
            process.stdin.flush()
        except OSError as problem:
            raise self._death() from problem

    def answer(self, timeout_s: float) -> Answer | None:
        """The next answer; None if there is none for so many seconds. Raises ProcessDied."""
        assert self._process is not None
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        poll = select.poll()  # select.select knows no descriptors beyond 1023
        poll.register(fd, select.POLLIN)
        while b"\n" not in self._rest:
            if not poll.poll(timeout_s * 1000):
                return None
            data = os.read(fd, 1 << 16)
            if not data:
                raise self._death()
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        answer: Answer = decode(line)
        return answer

    def stop(self) -> None:
        """Have it end, and wait until it has. It leaves nothing but `.cleaned` files."""
        with self._mutex:
            process, self._process = self._process, None
            self._rest = b""
        if process is not None:
            process.kill()
            with suppress(OSError):  # what it was not told yet
                process.communicate()

    def end(self) -> None:
        """Have it end for good, and whoever waits for it hear of that. From any thread."""
        with self._mutex:
            self._ended = True
            if self._process is not None:
                self._process.kill()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._mutex:
            if self._ended:
                raise ProcessDied("it was ended")
            if self._process is None:
                fd = self._throttle.fd
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "ottla.storage.cleaner.worker", str(os.getpid()), str(fd)],
                    pass_fds=[fd],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            return self._process

    def _death(self) -> ProcessDied:
        process = self._process
        self.stop()
        return ProcessDied(f"exit status {process.returncode if process is not None else None}")

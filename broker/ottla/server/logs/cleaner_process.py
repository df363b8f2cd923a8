"""The worker process of the log cleaner: starting and stopping it, and messages to and from it.

Used by `cleaner_thread` in its thread, because all calls block; only `shut_down` may be called from any
thread. The process starts with the first message. It ends when it is stopped, and by itself when the thread
that started it has ended.
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
    """The process has ended; the message has its exit status."""


class CleanerProcess:
    """See the module."""

    def __init__(self, throttle: Throttler) -> None:
        self._throttle = throttle
        self._process: subprocess.Popen[bytes] | None = None
        self._received = b""
        self._mutex = threading.Lock()
        self._shut_down = False

    @property
    def pid(self) -> int | None:
        process = self._process
        return None if process is None else process.pid

    def send(self, order: Order) -> None:
        """Send a message; start the process if needed. Raises ProcessDied, and OSError if it cannot start."""
        process = self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(encode(order))
            process.stdin.flush()
        except OSError as problem:
            raise self._stop_dead() from problem

    def receive(self, timeout_s: float) -> Answer | None:
        """The next message of the process; None after `timeout_s`. Raises ProcessDied."""
        assert self._process is not None
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        poll = select.poll()  # select.select supports no descriptors above 1023
        poll.register(fd, select.POLLIN)
        while b"\n" not in self._received:
            if not poll.poll(timeout_s * 1000):
                return None
            data = os.read(fd, 1 << 16)
            if not data:
                raise self._stop_dead()
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        answer: Answer = decode(line)
        return answer

    def stop(self) -> None:
        """Kill the process and wait for its end. Only `.cleaned` files may be left."""
        with self._mutex:
            process, self._process = self._process, None
            self._received = b""
        if process is not None:
            process.kill()
            with suppress(OSError):  # buffered messages cannot be written
                process.communicate()

    def shut_down(self) -> None:
        """Kill the process for good; pending calls raise ProcessDied. From any thread."""
        with self._mutex:
            self._shut_down = True
            if self._process is not None:
                self._process.kill()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._mutex:
            if self._shut_down:
                raise ProcessDied("it was shut down")
            if self._process is None:
                fd = self._throttle.fd
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "ottla.storage.cleaner.worker", str(os.getpid()), str(fd)],
                    pass_fds=[fd],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            return self._process

    def _stop_dead(self) -> ProcessDied:
        process = self._process
        self.stop()
        return ProcessDied(f"exit status {process.returncode if process is not None else None}")

"""Child processes with a log file and a pid file; free TCP ports on loopback, and polling of conditions.

Used by the embedded ZooKeeper, `BrokerProcess` and the operator's drivers. Invariants: a child dies with its
parent (PR_SET_PDEATHSIG), runs in its own session so that Ctrl-C reaches only the parent, and writes its
output to a log file, whose last lines are part of the error when it fails to start.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None, use_errno=True)


class StartFailed(Exception):
    """A child process did not start; the message has the end of its log."""


class ChildProcess:
    """One child process with a log file and a pid file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        pid_file: Path | None = None,
        folder: Path | None = None,
        watches_parent: bool = False,
    ) -> None:
        """`folder`: its working directory. `watches_parent`: the child itself ends with its parent
        process; the kernel's signal is sent when the thread that called `start` ends, which may be
        earlier."""
        self._folder = folder
        self._preexec = None if watches_parent else _die_with_parent
        self.name = name
        self.command = list(command)
        self.log = log
        self.pid_file = pid_file
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert not self.running, f"{self.name} runs already"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self._folder,
                preexec_fn=self._preexec,
            )
        if self.pid_file is not None:
            self.pid_file.write_text(f"{self._process.pid}\n")

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.running else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs or before the first start; negative: the signal that ended it."""
        return None if self._process is None else self._process.poll()

    def terminate(self) -> None:
        """Send SIGTERM; returns at once."""
        self.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        if self._process is not None and self.running:
            self._process.send_signal(number)

    def stop(self, timeout_s: float) -> bool:
        """SIGTERM, wait, SIGKILL after the time-out. Returns whether it ended in time."""
        if self._process is None:
            return True
        self.terminate()
        try:
            self._process.wait(timeout_s)
            return True
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        finally:
            self._forget()

    def kill(self) -> None:
        """SIGKILL and wait for the exit."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget()

    @property
    def has_group(self) -> bool:
        """Whether the process, or one that it started, exists: it leads a process group."""
        if self._process is None:
            return False
        try:
            os.killpg(self._process.pid, 0)
        except (ProcessLookupError, PermissionError):  # the number may be another's by now
            return False
        return True

    def kill_group(self) -> None:
        """SIGKILL to the process, if it runs still, and to those that it started; waits for its exit."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self.kill()

    def _forget(self) -> None:
        if self.pid_file is not None:
            self.pid_file.unlink(missing_ok=True)

    def log_tail(self, lines: int = 15) -> str:
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        os._exit(1)


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

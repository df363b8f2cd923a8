"""The cluster of the demo: `ottla up` as a child process.

Called by `demo.run`. The child is in a session of its own, so that Ctrl-C reaches the demo only, which stops
the child. If the demo dies, the child ends, too.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from ottla.local.processes import ChildProcess, port_in_use

RESOURCES = Path(__file__).with_name("cluster")
BROKERS = 3
READY = re.compile(r"^ready bootstrap=(\S+) zookeeper=(\S+)", re.MULTILINE)
START_S = 240.0
STOP_S = 45.0


class UpFailed(Exception):
    """`ottla up` ended or was not ready in time; the message has the end of its log."""


def choose_port(
    wanted: int | None,
    default: int = 9092,
    in_use: Callable[[int], bool] = port_in_use,
    *,
    count: int = BROKERS,
) -> int:
    """The first of `count` consecutive ports: `wanted`, or the next free ones from `default` on."""
    if wanted is not None:
        return wanted
    port = default
    while any(in_use(port + each) for each in range(count)):
        port += count
        if port + count > 65_535:
            raise UpFailed(f"no {count} consecutive ports are free from {default} on")
    return port


class Up:
    """The process of `ottla up`; `bootstrap` is set when it is ready. `console_port`: with the console."""

    def __init__(self, data: Path, port: int, log: Path, *, console_port: int | None = None) -> None:
        self.bootstrap = ""
        command = [sys.executable, "-m", "ottla.cli.main", "up", "--files", str(RESOURCES)]
        command += ["--data", str(data), "--port", str(port)]
        if console_port is not None:
            command += ["--console-port", str(console_port)]
        self._child = ChildProcess("ottla up", command, log=log)

    @property
    def running(self) -> bool:
        return self._child.running

    def __enter__(self) -> Self:
        self._child.start()
        try:
            self._wait()
        except BaseException:
            self._child.stop(STOP_S)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.stop(STOP_S)

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        while (found := READY.search(self._child.log.read_text(errors="replace"))) is None:
            if not self._child.running:
                raise UpFailed(
                    f"ottla up ended with status {self._child.exit_code}:\n{self._child.log_tail()}"
                )
            if time.monotonic() > deadline:
                raise UpFailed(f"ottla up was not ready after {START_S:.0f} s:\n{self._child.log_tail()}")
            time.sleep(0.1)
        self.bootstrap = found[1]

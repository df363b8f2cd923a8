"""A broker as a child process with its own folder.

Used by the operator's local platform (`ottla up`) and the cluster tests. The folder has `server.properties`,
`broker.log`, `broker.pid` and, in `data/`, the log directory.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ottla.local.processes import ChildProcess, StartFailed, wait_until


class BrokerProcess:
    """One `ottla broker` on this machine."""

    def __init__(
        self,
        broker_id: int,
        directory: Path,
        port: int,
        *,
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
    ) -> None:
        """`prefix` is put before the command (nsenter, say)."""
        self.broker_id = broker_id
        self.directory = directory
        self.host = host
        self.port = port
        self._process = ChildProcess(
            f"broker {broker_id}",
            [
                *prefix,
                sys.executable,
                "-m",
                "ottla.cli.main",
                "broker",
                "--config",
                str(self.properties_file),
            ],
            log=directory / "broker.log",
            pid_file=directory / "broker.pid",
        )

    @property
    def properties_file(self) -> Path:
        return self.directory / "server.properties"

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    def write_properties(self, zookeeper_connect: str, settings: Mapping[str, str]) -> None:
        """Write server.properties with the broker's own settings, then the given ones."""
        own = {
            "broker.id": str(self.broker_id),
            "listeners": f"PLAINTEXT://{self.host}:{self.port}",
            "zookeeper.connect": zookeeper_connect,
            "log.dirs": str(self.data_dir.resolve()),
        }
        self.directory.mkdir(parents=True, exist_ok=True)
        lines = [f"{name}={escaped(value)}" for name, value in {**own, **settings}.items()]
        self.properties_file.write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        """Start the process and return at once; `accepts_connections` says when it serves."""
        self._process.start()

    def start_and_wait(self, timeout_s: float = 120) -> None:
        """Start and wait until it serves; raises StartFailed with the end of its log."""
        self.start()
        came_up = wait_until(lambda: not self.running or self.accepts_connections(), timeout_s=timeout_s)
        if not came_up or not self.running:
            self.kill()
            raise StartFailed(f"broker {self.broker_id} did not come up:\n{self.log_tail()}")

    def accepts_connections(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=1):
                return True
        except OSError:
            return False

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.running

    @property
    def exit_code(self) -> int | None:
        return self._process.exit_code

    def terminate(self) -> None:
        """SIGTERM: a controlled shutdown begins; returns at once."""
        self._process.terminate()

    def signal(self, number: int) -> None:
        self._process.signal(number)

    def stop(self, timeout_s: float = 30) -> bool:
        """Controlled shutdown, SIGKILL after the time-out. Returns whether it stopped in time."""
        return self._process.stop(timeout_s)

    def kill(self) -> None:
        """SIGKILL, which simulates a crash."""
        self._process.kill()

    def log_tail(self, lines: int = 15) -> str:
        return self._process.log_tail(lines)


def escaped(value: str) -> str:
    """The value escaped for a Java properties file."""
    return value.replace("\\", "\\\\")

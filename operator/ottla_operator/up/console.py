"""The web console of `ottla up --console-port`: `ottla console` as a child process, over a listener.

Called while the cluster serves clients, with the properties that they connect with now. The process is
started again when they change. It reads conditions and Events from the data folder. One that has ended by
itself (its port is in use) is reported and not started again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ottla.local.brokers import escaped
from ottla.local.processes import ChildProcess
from ottla_operator.platform.processes import write_atomically

STOP_S: Final = 5.0
NO_LISTENER: Final = (
    "note: no console: it needs a listener with authentication scram-sha-512, or one without authentication"
)


class ConsoleProcess:
    """See the module."""

    def __init__(self, data: Path, port: int) -> None:
        self._data = data.absolute()
        self._config = (data / "console.properties").absolute()
        self._log = data / "console.log"
        self._port = port
        self._child: ChildProcess | None = None
        self._followed: tuple[str, Mapping[str, str]] | None = None

    def follow(self, name: str, properties: Mapping[str, str]) -> str | None:
        """Run with these client properties. Returns a line to print after a change; None without one."""
        if (name, properties) == self._followed:
            if self._child is None or self._child.running:
                return None
            ended, self._child = self._child, None
            return f"note: the console ended with status {ended.exit_code}: see {self._log}"
        self.stop()
        self._followed = (name, properties)
        if not properties:
            return NO_LISTENER
        text = "".join(f"{key}={escaped(value)}\n" for key, value in properties.items())
        write_atomically(self._config, text.encode())
        command = [
            sys.executable,
            "-m",
            "ottla.cli.main",
            "console",
            "--name",
            name,
            "--port",
            str(self._port),
            "--up",
            str(self._data),
        ]
        child = ChildProcess("console", [*command, "--command-config", str(self._config)], log=self._log)
        child.start()
        self._child = child
        return f"console=http://127.0.0.1:{self._port}/ log={self._log}"

    def stop(self) -> None:
        """Stop the process, if it runs."""
        if self._child is not None:
            self._child.stop(timeout_s=STOP_S)
            self._child = None

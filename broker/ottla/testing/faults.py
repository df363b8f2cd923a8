"""Faults of a DevBroker: the client of the broker's control socket.

Used by ottla.testing.broker; the broker's side is ottla.dev.control and ottla.dev.faults.
"""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

_TIMEOUT_S = 10.0


class ControlSocket:
    """Sends commands to the control socket, each over a new connection, so that a broker may be restarted."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def send_command(self, **order: Any) -> dict[str, Any]:
        """Send a command and return the response. Raises ValueError for an invalid command, OSError
        without a broker."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_TIMEOUT_S)
            connection.connect(str(self._path))
            connection.sendall(json.dumps(order).encode() + b"\n")
            with connection.makefile("rb") as answers:
                answer: dict[str, Any] = json.loads(answers.readline() or b"{}")
        if "problem" in answer:
            raise ValueError(answer["problem"])
        return answer


class Fault:
    """An active fault, until it has applied `times` times, it is healed, or the `with` block ends."""

    def __init__(self, control: ControlSocket, order: dict[str, Any]) -> None:
        self._control = control
        self._id = int(control.send_command(do="fault", **order)["id"])

    @property
    def hits(self) -> int:
        """The number of requests that it has applied to; 0 after `heal`."""
        return int(self._control.send_command(do="hits", id=self._id)["hits"])

    def heal(self) -> None:
        self._control.send_command(do="heal", id=self._id)

    def __enter__(self) -> Fault:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # the broker is down, and the fault with it
            self.heal()

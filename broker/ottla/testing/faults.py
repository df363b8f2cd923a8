"""What goes wrong on purpose, as a test sees it: orders to the broker's control socket.

Called by ottla.testing.broker; what the broker does with them is ottla.dev.faults.
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
    """One order a connection: a broker that was killed and came back is asked as before."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def order(self, **order: Any) -> dict[str, Any]:
        """Its answer. Raises ValueError for an order that cannot be carried out, OSError without a broker."""
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
    """One thing that goes wrong, until its times are over, it is healed, or the `with` block ends."""

    def __init__(self, control: ControlSocket, order: dict[str, Any]) -> None:
        self._control = control
        self._id = int(control.order(do="fault", **order)["id"])

    @property
    def hits(self) -> int:
        """How many requests have met it so far; 0 after it was healed."""
        return int(self._control.order(do="hits", id=self._id)["hits"])

    def heal(self) -> None:
        self._control.order(do="heal", id=self._id)

    def __enter__(self) -> Fault:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # the broker is gone, and the fault with it
            self.heal()

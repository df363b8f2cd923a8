"""Event loops with a time of their own: no test waits, and none depends on how busy the machine is.

`run_in_virtual_time` is for what has no real sockets and no threads; `StoppedClock` may have both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from ottla.simulation.loop import Process, SimulatedLoop

T = TypeVar("T")


class StoppedClock(asyncio.SelectorEventLoop):
    """A clock that the scenario sets."""

    now = 1000.0

    def time(self) -> float:
        return self.now


def run_in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """Run it on the loop of the simulation. What no callback or task has handled fails it too."""
    problems: list[dict[str, Any]] = []

    def keep(process: Process | None, context: dict[str, Any]) -> None:
        problems.append(context)

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimulatedLoop)
        loop.on_problem = keep
        result = runner.run(work)
    assert problems == []
    return result

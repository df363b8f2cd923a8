"""Event loops with a time of their own: no test waits, and none depends on how busy the machine is.

`run_in_virtual_time` is for what has no real sockets and no threads; `StoppedClock` may have both.
`slowdown` is for tests of CPU time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from ottla.simulation.loop import Process, SimulatedLoop

T = TypeVar("T")
REFERENCE_S = 0.045
"""CPU time of `slowdown`'s work on the machine that budgets of CPU time are meant for, otherwise idle."""


def slowdown() -> float:
    """How many times as long as on that machine this one takes now, at least 1: a CPU whose other thread is
    busy, or whose caches others use, takes more CPU time for the same work."""
    began_s = time.process_time()
    for _ in range(3):
        rows = sorted((number * 7919 % 65_537, str(number)) for number in range(20_000))
        assert len({text: number for number, text in rows}) == len(rows)
    return max(1.0, (time.process_time() - began_s) / REFERENCE_S)


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

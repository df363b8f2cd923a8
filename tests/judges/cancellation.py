"""Cancels a coroutine at its first await, its second, and so on to its last: `every_await`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any

STEPS_MAX = 400


class _Counted:
    """Awaits `work`, and cancels its task at the `at`-th await."""

    def __init__(self, work: Awaitable[Any], at: int) -> None:
        self._work = work
        self._at = at
        self.reached = False

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        task = asyncio.current_task()
        assert task is not None
        count = 0
        step: Callable[[], Any] = lambda: next(steps)  # noqa: E731
        while True:
            try:
                waits_for = step()
            except StopIteration as done:
                return done.value
            count += 1
            if count == self._at:
                self.reached = True
                asyncio.get_running_loop().call_soon(task.cancel)
            try:
                value = yield waits_for
            except BaseException as problem:  # CancelledError among others
                step = _throwing(steps, problem)
            else:
                step = _sending(steps, value)


def _throwing(steps: Generator[Any, Any, Any], problem: BaseException) -> Callable[[], Any]:
    return lambda: steps.throw(problem)


def _sending(steps: Generator[Any, Any, Any], value: Any) -> Callable[[], Any]:
    return lambda: steps.send(value)


async def every_await(work: Callable[[int], Awaitable[Any]]) -> AsyncIterator[int]:
    """Yields the number of the await at which `work(number)` was cancelled, for each await that it has.

    `work` that is not cancelled may end in any way; cancelled `work` must raise CancelledError.
    """
    for at in range(1, STEPS_MAX):
        counted = _Counted(work(at), at)

        async def run(counted: _Counted = counted) -> None:
            await counted

        task = asyncio.ensure_future(run())
        await asyncio.wait({task}, timeout=60)
        assert task.done(), f"cancelled at await {at}, it does not end"
        if not counted.reached:
            task.result()
            return
        if not task.cancelled() and (problem := task.exception()) is not None:
            raise AssertionError(f"cancelled at await {at}, it raises {problem!r}") from problem
        yield at
    raise AssertionError(f"it has not ended within {STEPS_MAX} awaits")

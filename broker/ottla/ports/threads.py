"""Threads for blocking work on many items, such as the recovery of logs at startup."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class RunParallel(Protocol):
    """Calls `work` for each item, in at most `threads` threads; returns their results in order. Raises the
    first error, when no call runs any more."""

    def __call__(
        self, work: Callable[[Item], Result], items: Iterable[Item], threads: int, /
    ) -> list[Result]: ...


def run_in_threads(work: Callable[[Item], Result], items: Iterable[Item], threads: int, /) -> list[Result]:
    """The RunParallel of the operating system's threads."""
    rest = enumerate(list(items))
    results: dict[int, Result] = {}

    def run_some() -> None:
        # One Future for each of thousands of items would fragment the memory.
        for number, item in rest:
            results[number] = work(item)

    with ThreadPoolExecutor(threads) as pool:
        for running in [pool.submit(run_some) for _ in range(threads)]:
            running.result()
    return [results[number] for number in range(len(results))]


def run_inline(work: Callable[[Item], Result], items: Iterable[Item], threads: int, /) -> list[Result]:
    """The RunParallel without threads: its calls have a fixed order."""
    return [work(item) for item in items]

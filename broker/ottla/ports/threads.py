"""Threads for blocking work on many items, such as the recovery of logs at startup."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class RunParallel(Protocol):
    """Calls `work` for each item, in at most `threads` threads; returns the results in any order. Raises the
    first error, after the calls that run at that time."""

    def __call__(
        self, work: Callable[[Item], Result], items: Iterable[Item], threads: int, /
    ) -> list[Result]: ...


def run_in_threads(work: Callable[[Item], Result], items: Iterable[Item], threads: int, /) -> list[Result]:
    """The RunParallel of the operating system's threads."""
    rest = iter(list(items))
    results: list[Result] = []

    def run_some() -> None:
        # One Future for each of thousands of items would fragment the memory.
        for item in rest:
            results.append(work(item))  # noqa: PERF401 (other threads append, too)

    with ThreadPoolExecutor(threads) as pool:
        for running in [pool.submit(run_some) for _ in range(threads)]:
            running.result()
    return results


def run_inline(work: Callable[[Item], Result], items: Iterable[Item], threads: int, /) -> list[Result]:
    """A RunParallel without threads, for one that runs in a fixed order."""
    return [work(item) for item in items]

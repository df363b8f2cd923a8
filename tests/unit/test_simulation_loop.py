"""The event loop of the simulation: virtual time, and processes that are killed and paused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from typing import Any

import pytest

from ottla.simulation.loop import Deadlock, Process, SimulatedLoop


@pytest.fixture
def loop() -> Iterator[SimulatedLoop]:
    with closing(SimulatedLoop()) as loop:
        yield loop


def test_an_hour_passes_at_once_and_timers_fire_in_order(loop: SimulatedLoop) -> None:
    seen: list[tuple[str, float]] = []

    async def scenario() -> None:
        for name, at in (("late", 3600.0), ("early", 1.0), ("early too", 1.0), ("never", 2.0)):
            timer = loop.call_at(at, lambda name=name: seen.append((name, loop.time())))
            if name == "never":
                timer.cancel()
        loop.call_soon(lambda: seen.append(("now", loop.time())))
        await asyncio.sleep(3600)

    began = time.monotonic()
    loop.run(scenario())
    assert time.monotonic() - began < 60
    assert seen == [("now", 0.0), ("early", 1.0), ("early too", 1.0), ("late", 3600.0)]


def test_time_stands_still_while_callbacks_run(loop: SimulatedLoop) -> None:
    async def scenario() -> None:
        began = loop.time()
        for _ in range(1000):
            await asyncio.sleep(0)
        assert loop.time() == began
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await loop.create_future()
        assert loop.time() == began + 5

    loop.run(scenario())


def test_a_killed_process_runs_nothing_more_not_even_its_finally_blocks(loop: SimulatedLoop) -> None:
    seen: list[str] = []

    async def work(name: str) -> None:
        try:
            while True:
                seen.append(name)
                await asyncio.sleep(1)
        finally:
            seen.append(f"{name} ended")

    async def scenario() -> None:
        victim, survivor = Process(loop, "victim"), Process(loop, "survivor")
        victim.create_task(work("victim"))
        survivor.create_task(work("survivor"))
        await asyncio.sleep(1.5)
        victim.kill()
        seen.clear()
        await asyncio.sleep(2)
        assert seen == ["survivor", "survivor"]
        survivor.kill()
        await asyncio.sleep(5)
        assert seen == ["survivor", "survivor"]

    loop.run(scenario())


def test_finally_blocks_of_the_killed_run_at_the_end_and_find_the_loop() -> None:
    """Without a running loop, asyncio.gather would make one that nothing closes."""
    found: list[asyncio.AbstractEventLoop] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            found.append(asyncio.get_running_loop())

    with closing(SimulatedLoop()) as loop:
        victim = Process(loop, "victim")

        async def scenario() -> None:
            victim.create_task(work())
            await asyncio.sleep(1)
            victim.kill()

        loop.run(scenario())
    assert found == [loop]


def test_tasks_and_timers_belong_to_the_process_that_made_them(loop: SimulatedLoop) -> None:
    seen: list[str] = []

    async def child() -> None:
        await asyncio.sleep(1)
        seen.append("child")

    async def parent() -> None:
        children.append(loop.create_task(child()))
        loop.call_later(1, lambda: seen.append("timer"))

    children: list[asyncio.Task[None]] = []

    async def scenario() -> None:
        process = Process(loop, "process")
        await process.create_task(parent())
        process.kill()
        await asyncio.sleep(10)
        assert seen == []
        assert not children[0].done()

    loop.run(scenario())


def test_a_paused_process_continues_with_what_was_due(loop: SimulatedLoop) -> None:
    seen: list[float] = []

    async def work() -> None:
        while True:
            await asyncio.sleep(1)
            seen.append(loop.time())

    async def scenario() -> None:
        process = Process(loop, "process")
        process.create_task(work())
        await asyncio.sleep(2.5)
        process.pause()
        await asyncio.sleep(10)
        assert seen == [1.0, 2.0]
        process.resume()
        await asyncio.sleep(1.5)
        assert seen == [1.0, 2.0, 12.5, 13.5]
        process.pause()
        process.kill()
        process.resume()
        await asyncio.sleep(5)
        assert seen == [1.0, 2.0, 12.5, 13.5]

    loop.run(scenario())


def test_work_of_an_executor_takes_virtual_time(loop: SimulatedLoop) -> None:
    loop.execution_delay_s = lambda: 0.25

    async def scenario() -> None:
        assert await loop.run_in_executor(None, lambda: 6 * 7) == 42
        assert loop.time() == 0.25
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, lambda: 1 // 0)

    loop.run(scenario())


def test_a_scenario_that_waits_for_nothing_is_a_deadlock(loop: SimulatedLoop) -> None:
    async def scenario() -> None:
        await loop.create_future()

    with pytest.raises(Deadlock):
        loop.run(scenario())


def test_an_exception_in_a_callback_is_a_problem_of_its_process(loop: SimulatedLoop) -> None:
    problems: list[tuple[str | None, str]] = []

    def on_problem(process: Process | None, context: dict[str, Any]) -> None:
        problems.append((None if process is None else process.name, repr(context["exception"])))

    loop.on_problem = on_problem

    def fail() -> None:
        raise ValueError("mistake")

    async def in_process() -> None:
        loop.call_soon(fail)

    async def scenario() -> None:
        loop.call_soon(fail)
        await Process(loop, "broker").create_task(in_process())
        await asyncio.sleep(0)

    loop.run(scenario())
    assert problems == [(None, "ValueError('mistake')"), ("broker", "ValueError('mistake')")]


def test_what_the_simulation_raises_in_a_callback_ends_the_run(loop: SimulatedLoop) -> None:
    def on_problem(process: Process | None, context: dict[str, Any]) -> None:
        raise context["exception"]

    loop.on_problem = on_problem
    fail: Callable[[], object] = lambda: 1 // 0  # noqa: E731
    scenario: Coroutine[Any, Any, None] = asyncio.sleep(10)
    loop.call_later(1, fail)
    with pytest.raises(ZeroDivisionError):
        loop.run(scenario)

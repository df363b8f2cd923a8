"""Deadlines of the coordinators: one timer of the event loop for all, cheap to move."""

from __future__ import annotations

import asyncio

from ottla.coordinators.effects import Timer, TimerKind
from ottla.coordinators.interfaces import LoopScheduler
from ottla.coordinators.timers import GroupTimers
from tests.worlds.simulated_coordinators import VirtualTime, scenario


def session(name: str) -> Timer:
    return Timer(TimerKind.SESSION, "g", name)


@scenario
async def test_deadlines_pass_in_order_and_once() -> None:
    time, fired = VirtualTime(), list[str]()
    deadlines = GroupTimers(time, lambda timer: fired.append(timer.member_id))
    deadlines.set(session("late"), 300)
    deadlines.set(session("soon"), 100)
    deadlines.set(session("never"), 200)
    deadlines.cancel(session("never"))
    await time.advance(99)
    assert fired == []
    await time.advance(1)
    assert fired == ["soon"]
    await time.advance(1_000)
    assert fired == ["soon", "late"]
    assert len(deadlines) == 0


@scenario
async def test_deadlines_move_both_ways() -> None:
    time, fired = VirtualTime(), list[tuple[str, int]]()
    deadlines = GroupTimers(time, lambda timer: fired.append((timer.member_id, time.now_ms())))
    deadlines.set(session("later"), 100)
    deadlines.set(session("sooner"), 1_000)
    await time.advance(50)
    deadlines.set(session("later"), 100)
    deadlines.set(session("sooner"), 10)
    await time.advance(2_000)
    assert fired == [("sooner", 60), ("later", 150)]


@scenario
async def test_a_timer_that_was_cancelled_and_set_again_has_its_new_deadline() -> None:
    time, fired = VirtualTime(), list[int]()
    deadlines = GroupTimers(time, lambda timer: fired.append(time.now_ms()))
    deadlines.set(session("x"), 100)
    deadlines.cancel(session("x"))
    deadlines.set(session("x"), 200)
    await time.advance(1_000)
    assert fired == [200]


@scenario
async def test_callbacks_may_set_timers() -> None:
    time, fired = VirtualTime(), list[int]()

    def fire(timer: Timer) -> None:
        fired.append(time.now_ms())
        if len(fired) < 3:
            deadlines.set(timer, 10)

    deadlines = GroupTimers(time, fire)
    deadlines.set(session("x"), 10)
    await time.advance(1_000)
    assert fired == [10, 20, 30]


@scenario
async def test_ten_thousand_heartbeats_cost_one_loop_timer() -> None:
    time = VirtualTime()
    deadlines = GroupTimers(time, lambda timer: None)
    for _ in range(10_000):
        deadlines.set(session("x"), 10_000)
    assert len(deadlines._heap) == 1


@scenario
async def test_timers_fire_on_a_real_event_loop() -> None:
    done: asyncio.Future[Timer] = asyncio.get_running_loop().create_future()
    deadlines = GroupTimers(LoopScheduler(), done.set_result)
    deadlines.set(session("x"), 5)
    assert await asyncio.wait_for(done, 60) == session("x")

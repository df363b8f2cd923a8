"""Tests of asyncio applications against a simulated cluster: in virtual time, over many seeds, under faults.

    @simulated(seeds=range(200), faults=Faults(kill=0.1, kill_application=0.2))
    async def test_each_order_is_billed_once(cluster):
        await cluster.create_topic("orders", partitions=3)
        books = Books()
        cluster.application("billing", lambda: bill(cluster.bootstrap_servers, books))
        ...
        await cluster.until(lambda: len(books.bills) == 10)

`simulated` makes a pytest test of a coroutine function, which pytest runs once for each seed
(`ottla.pytest`); `simulate` runs one seed without pytest. docs/guides/testing.md describes both,
docs/explanation/simulation.md what is simulated.
"""

from __future__ import annotations

import functools
import gc
import inspect
import logging
import os
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ottla.simulation.cluster import Cluster, Event
from ottla.simulation.faults import Fault
from ottla.simulation.loop import CURRENT, Deadlock, Livelock
from ottla.simulation.runner import collect_killed, remove_faults
from ottla.testing.simulated_cluster import (
    ALL_FAULTS,
    Application,
    ConditionNotMet,
    Faults,
    SimulatedCluster,
    is_library,
    planned,
)

__all__ = [
    "ALL_FAULTS",
    "Application",
    "ConditionNotMet",
    "Faults",
    "SimulatedCluster",
    "SimulationFailed",
    "simulate",
    "simulated",
]

SHOWN_EVENTS_MAX: Final = 40
SHOWN_COLUMNS_MAX: Final = 160
SHRINK_S: Final = 10.0
"""Real time for the search for fewer faults, once for each failing test."""

Body = Callable[[SimulatedCluster], Coroutine[Any, Any, object]]


class SimulationFailed(AssertionError):
    """A simulated test has not ended in time, or has left an error that nothing handled."""


@dataclass(frozen=True)
class Outcome:
    """What came of one run."""

    seed: int
    problem: BaseException | None
    trace: str
    """A digest of everything that travelled over the network, with its time."""
    faults: tuple[Fault, ...]
    timeline: tuple[Event, ...]

    @property
    def passed(self) -> bool:
        return self.problem is None


@dataclass(frozen=True)
class Simulation:
    """A test and how it is run."""

    test: Body
    brokers: int = 3
    faults: Faults | None = None
    settings: Mapping[str, str] | None = None
    timeout_s: float = 300.0

    def run(self, seed: int, faults: tuple[Fault, ...] | None = None) -> Outcome:
        """One run. `faults`: instead of those that the seed chooses."""
        state = random.getstate()
        random.seed(f"{seed} test")  # for applications that use the module's functions
        try:
            return self._run(seed, faults)
        finally:
            random.setstate(state)
            collect_killed()

    def _run(self, seed: int, faults: tuple[Fault, ...] | None) -> Outcome:
        few = {name: str(min(count, self.brokers)) for name, count in _REPLICAS.items()}
        cluster = Cluster(seed, brokers=self.brokers, settings={**few, **(self.settings or {})})
        chosen: tuple[Fault, ...] = ()
        problem: BaseException | None = None

        async def scenario() -> None:
            nonlocal chosen
            await cluster.start()
            simulated = SimulatedCluster(cluster)
            if faults is not None:
                chosen = faults
            elif self.faults is not None:
                chosen = planned(cluster, self.faults)
            seconds = self.faults.seconds if self.faults is not None else 0.0
            try:
                await simulated.execute(self.test(simulated), chosen, seconds, self.timeout_s)
            except TimeoutError:
                tasks = "\n  ".join(simulated.waiting_tasks())
                raise SimulationFailed(
                    f"the test has not ended after {self.timeout_s:g} virtual seconds; what waits:\n  {tasks}"
                ) from None
            gc.collect()  # reports the exceptions of tasks that were never awaited
            if cluster.failures:
                raise cluster.failures[0]
            if cluster.problems:
                raise SimulationFailed(f"nothing handled an error: {cluster.problems[0]}")

        handler = _TimelineHandler(cluster)
        logging.getLogger().addHandler(handler)
        try:
            cluster.run(scenario())
        except (KeyboardInterrupt, SystemExit):
            raise
        except (Deadlock, Livelock) as error:
            problem = SimulationFailed(f"{type(error).__name__}: {error}")
        except BaseException as error:  # pytest's outcomes are no Exceptions
            problem = error
        finally:
            logging.getLogger().removeHandler(handler)
        return Outcome(seed, problem, cluster.trace, chosen, tuple(cluster.timeline))

    def shrink(self, outcome: Outcome, budget_s: float = SHRINK_S) -> Outcome:
        """The failing run with the fewest faults that fails in the same way."""
        best = outcome
        kind = type(outcome.problem)

        def fails(faults: tuple[Fault, ...]) -> bool:
            nonlocal best
            attempt = self.run(outcome.seed, faults)
            if type(attempt.problem) is not kind:
                return False
            best = attempt
            return True

        remove_faults(outcome.faults, fails, budget_s)
        return best


_REPLICAS: Final[Mapping[str, int]] = {
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
}
"""Settings that count brokers, for a cluster of three or more."""


class _TimelineHandler(logging.Handler):
    """Adds what applications log to the timeline. The cluster has a handler for Ottla's loggers."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster

    def emit(self, record: logging.LogRecord) -> None:
        process = CURRENT.get()
        if process is not None and process.alive and not record.name.startswith("ottla."):
            self._cluster.note(process.name, f"{record.levelname.lower()}: {record.getMessage()}")


def simulate(
    test: Body,
    seed: int,
    *,
    brokers: int = 3,
    faults: Faults | None = None,
    settings: Mapping[str, str] | None = None,
    timeout_s: float = 300.0,
) -> Outcome:
    """Run a test with one seed. Raises what it raises, with the end of the timeline as a note, or
    SimulationFailed."""
    __tracebackhide__ = True
    simulation = Simulation(test, brokers, faults, settings, timeout_s)
    outcome = simulation.run(seed)
    if outcome.problem is not None:
        raise _explained(simulation.shrink(outcome), f"simulate(…, {seed})")
    return outcome


def simulated(
    *,
    seeds: Sequence[int] = range(100),
    brokers: int = 3,
    faults: Faults | None = ALL_FAULTS,
    settings: Mapping[str, str] | None = None,
    timeout_s: float = 300.0,
) -> Callable[[Callable[..., Coroutine[Any, Any, object]]], Callable[..., None]]:
    """Make a pytest test of a coroutine function with a parameter `cluster` (SimulatedCluster). It runs once
    for each seed; its other parameters are fixtures.

    `faults`: their kinds and rates; None: no faults. `settings`: of the brokers, as in server.properties,
    beside the short times of the simulation. `timeout_s`: the virtual time within which the test must end.
    """

    def decorate(function: Callable[..., Coroutine[Any, Any, object]]) -> Callable[..., None]:
        signature = inspect.signature(function)
        if "cluster" not in signature.parameters or not inspect.iscoroutinefunction(function):
            raise TypeError(
                f"{function.__qualname__} must be a coroutine function with a parameter `cluster`"
            )
        shown = False

        @functools.wraps(function)
        def run(*args: Any, ottla_seed: int, **fixtures: Any) -> None:
            __tracebackhide__ = True
            nonlocal shown

            def test(cluster: SimulatedCluster) -> Coroutine[Any, Any, object]:
                return function(*args, cluster=cluster, **fixtures)

            simulation = Simulation(test, brokers, faults, settings, timeout_s)
            outcome = simulation.run(ottla_seed)
            if outcome.problem is None:
                return
            command = f"pytest {_node(function)} --ottla-seed {ottla_seed}"
            if shown:
                outcome.problem.add_note(f"seed {ottla_seed} fails, too: {command}")
                raise outcome.problem.with_traceback(_own_frames(outcome.problem))
            shown = True
            raise _explained(simulation.shrink(outcome), command)

        others = [each for name, each in signature.parameters.items() if name != "cluster"]
        seed = inspect.Parameter("ottla_seed", inspect.Parameter.KEYWORD_ONLY)
        run.__signature__ = signature.replace(parameters=[*others, seed])  # type: ignore[attr-defined]
        run.ottla_seeds = seeds  # type: ignore[attr-defined]
        return run

    return decorate


def _node(function: Callable[..., object]) -> str:
    """The test's name for pytest's command line."""
    path = inspect.getsourcefile(function) or "?"
    return "::".join([os.path.relpath(path), *function.__qualname__.split(".")])


def _explained(outcome: Outcome, command: str) -> BaseException:
    """The error of a failing run, with the seed, the faults and the end of the timeline as a note."""
    problem = outcome.problem
    assert problem is not None
    events = [event for event in outcome.timeline if not _is_noise(event)]
    count = len(outcome.faults)
    lines = [f"seed {outcome.seed} fails, with {count} fault{'' if count == 1 else 's'}. The timeline:"]
    if len(events) > SHOWN_EVENTS_MAX:
        lines.append(f"… {len(events) - SHOWN_EVENTS_MAX} earlier events")
    lines += [_shorten(str(event)) for event in events[-SHOWN_EVENTS_MAX:]]
    lines.append(f"to reproduce: {command}")
    problem.add_note("\n".join(lines))
    return problem.with_traceback(_own_frames(problem))


def _shorten(text: str) -> str:
    return text if len(text) <= SHOWN_COLUMNS_MAX else text[: SHOWN_COLUMNS_MAX - 1] + "…"


def _is_noise(event: Event) -> bool:
    """What brokers and clients log about their normal work."""
    return not event.is_fault and event.text.startswith("info: ") and "broker-" in event.who


def _own_frames(problem: BaseException) -> Any:
    """The traceback from the first frame that is the user's; all of it if there is none."""
    found = problem.__traceback__
    while found is not None and is_library(found.tb_frame.f_code.co_filename):
        found = found.tb_next
    return found or problem.__traceback__

"""The operator's process: reconciliations as in `kubernetes.controller`, killed and started again.

A new process has a new `Reconciler` and a new `KafkaAdmin`: what it knows is in the resources' statuses and
in the cluster.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, TypeVar

from ottla.simulation.cluster import Cluster, Violation
from ottla.simulation.loop import Process
from ottla_operator.platform.interfaces import Environment, NoDrivers, NoSecrets
from ottla_operator.platform.kafka import KafkaAdmin
from ottla_operator.reconcile import Reconciler
from ottla_operator.simulation.platform import SimulatedPlatform
from ottla_operator.simulation.rebalances import SimulatedLoads
from ottla_operator.simulation.resources import SimulatedStore, TimelineRecorder
from ottla_operator.step_executor import ReconcileResult

BUSY_S: Final = 1.0
UNCONVERGED_S: Final = 3.0
RESYNC_S: Final = 30.0
RECONCILE_TIMEOUT_S: Final = 300.0

Lifetime = Callable[[int], int | None]
"""After how many awaits the n-th process (from 1) is killed; None: never."""

T = TypeVar("T")


class SimulatedOperator:
    """See the module."""

    def __init__(self, cluster: Cluster, platform: SimulatedPlatform, store: SimulatedStore) -> None:
        self._cluster = cluster
        self._platform = platform
        self._store = store
        self._random = cluster.random("operator")
        self._process: Process | None = None
        self.lifetime: Lifetime = lambda process: None
        self.loads_at_once = False
        """Whether a new process knows the loads at once."""
        self.processes = 0
        self.reconciles = 0
        """Reconciliations that have ended."""
        self.began_s = 0.0
        """When the last of them began."""
        self.result: ReconcileResult | None = None
        """Of the last of them."""
        self.awaits = 0
        """Of the longest reconciliation."""

    def start(self) -> None:
        """Start a process; its kind of death follows from `lifetime`."""
        cluster = self._cluster
        self.processes += 1
        process = self._process = cluster.client(f"operator-{self.processes}")
        self._store.changed = asyncio.Event()
        awaits = self.lifetime(self.processes)
        work = self._live()
        if awaits is not None:
            work = _limited(work, awaits, lambda: self.kill(process))
        process.create_task(work, name=process.name).add_done_callback(cluster.watch)

    def kill(self, process: Process | None = None) -> None:
        """SIGKILL; another process follows soon."""
        process = process or self._process
        if process is None or not process.alive:
            return
        cluster = self._cluster
        cluster.note("operator", "is killed", is_fault=True)
        process.kill()
        cluster.network.process_died(process)
        cluster.loop.call_later(
            0.1 + self._random.random(), self.start, context=cluster.network.context.copy()
        )

    def stop_kills(self) -> None:
        """Replace the operator by a process that is not killed."""
        self.lifetime = lambda process: None
        self.kill()

    async def _live(self) -> None:
        cluster = self._cluster
        environment = Environment(
            self._platform,
            KafkaAdmin(),
            self._store,
            NoSecrets(),
            NoDrivers(),
            cluster.clock.wall_ms,
            TimelineRecorder(cluster),
            cluster.random(f"operator {self.processes}").randbytes,
            loads=SimulatedLoads(cluster, at_once=self.loads_at_once),
            compute=_at_once,
        )
        reconciler = Reconciler(environment)
        before: list[str] = []
        changed = self._store.changed
        while True:
            changed.clear()
            began_s = cluster.loop.now
            try:
                async with asyncio.timeout(RECONCILE_TIMEOUT_S):
                    result = await reconciler.reconcile()
            except TimeoutError:
                raise Violation("the operator's reconciliation does not end") from None
            if "InternalError" in result.failures:
                raise Violation(f"the operator failed in one of {result.steps}: see its last Events")
            self.reconciles += 1
            self.began_s, self.result = began_s, result
            pause_s = UNCONVERGED_S
            if not result.idle and result.steps != before:
                pause_s = BUSY_S
            elif result.idle and result.converged:
                pause_s = RESYNC_S
            before = result.steps
            try:
                async with asyncio.timeout(pause_s):
                    await changed.wait()
            except TimeoutError:
                pass


async def _at_once(work: Callable[[], T]) -> T:
    """The interface `Compute` without a thread."""
    return work()


async def _limited(work: Coroutine[Any, Any, None], awaits: int, die: Callable[[], None]) -> None:
    """Await the work, and die at the given await, when what is awaited has begun."""
    await _steps(work, awaits, die)


@types.coroutine
def _steps(
    work: Coroutine[Any, Any, None], awaits: int, die: Callable[[], None]
) -> Generator[Any, Any, None]:
    problem: BaseException | None = None
    while True:
        try:
            waited = work.send(None) if problem is None else work.throw(problem)
        except StopIteration:
            return
        awaits -= 1
        if awaits < 0:
            die()
        try:
            yield waited
            problem = None
        except BaseException as raised:
            problem = raised

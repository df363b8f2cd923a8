"""The simulated cluster of a test: its topics and records, the applications on it, and the faults of both.

Made by `ottla.testing.simulation`, which passes it to the test. The test runs in a process of its own, which
no fault kills or pauses. An application runs in another one, and is started again after a kill. Its Python
objects are gone then, as with a real process; objects of the test stand for what survives: databases, other
services.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

import ottla.client
from ottla.client import AdminClient, Consumer
from ottla.client.admin import NewTopic
from ottla.client.core.types import ConsumerRecord
from ottla.client.errors import ClientError, TopicAlreadyExistsError
from ottla.simulation.cluster import Cluster
from ottla.simulation.faults import Fault, FaultInjector, plan, varied
from ottla.simulation.loop import Process
from ottla.simulation.runner import until_whole

T = TypeVar("T")

_LIBRARIES: Final = (
    str(Path(asyncio.__file__).parent),
    str(Path(ottla.client.__file__).parent),
    str(Path(__file__).parents[1]),
)

RESTART_S: Final = 1.0
"""How long a supervisor waits before it starts an application again that has failed."""
REQUESTS_S: Final = 180.0
"""How long the cluster's own requests are repeated: longer than any fault lasts."""

_KINDS: Final[Mapping[str, Mapping[str, float]]] = {
    "kill": {"kill": 0.6, "kill in a write": 0.4},
    "kill_all": {"kill all": 1.0},
    "restart": {"roll": 1.0},
    "pause": {"pause": 1.0},
    "power": {"power": 1.0},
    "disk": {"disk": 0.5, "disk errors": 0.25, "full disk": 0.25},
    "cut": {
        "cut off": 0.2,
        "cut one way": 0.2,
        "cut pair": 0.2,
        "cut from ZooKeeper": 0.2,
        "cut from clients": 0.2,
    },
    "slow": {"slow links": 1.0},
    "reset": {"resets": 1.0},
    "zookeeper": {"session": 0.4, "outage": 0.2, "lost answers": 0.4},
    "clock": {"clock step": 1.0},
    "kill_application": {"kill application": 1.0},
    "pause_application": {"pause application": 1.0},
    "cut_application": {"cut application": 1.0},
}
"""Kind of fault -> the kinds of the simulation with their shares."""
_OF_SEVERAL_BROKERS: Final = frozenset({"cut pair"})


class ConditionNotMet(AssertionError):
    """A condition did not become true in time."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """How many faults of each kind begin in a virtual second, on average.

    The seed multiplies each rate by 0, 1 or 3, so that a run has some kinds and not others. Each fault takes
    0.02 to 15 s, short ones more often. Faults overlap. They keep to what Kafka promises: no acknowledged
    record is lost with acks=all.
    """

    seconds: float = 20.0
    """Faults begin from the start of the test for so long; then all end, and what is down starts."""

    kill: float = 0.0
    """SIGKILL of a broker, also in the middle of a write."""
    kill_all: float = 0.0
    """SIGKILL of all brokers."""
    restart: float = 0.0
    """A rolling restart of all brokers, in order."""
    pause: float = 0.0
    """A broker stands still (SIGSTOP)."""
    power: float = 0.0
    """A broker's machine loses its power, and what was not synced."""
    disk: float = 0.0
    """A broker's disk is lost, returns errors, or is full."""
    cut: float = 0.0
    """The network is cut: a broker from all, one way, from another, from ZooKeeper, or from applications."""
    slow: float = 0.0
    """The links of a broker to the others and to ZooKeeper have delays of up to 2 s."""
    reset: float = 0.0
    """Connections of a broker are reset."""
    zookeeper: float = 0.0
    """A broker's session expires, ZooKeeper is away, or its answers are lost."""
    clock: float = 0.0
    """The wall clock of a broker's machine steps by up to a minute."""
    kill_application: float = 0.0
    """SIGKILL of an application, and a restart."""
    pause_application: float = 0.0
    """An application stands still."""
    cut_application: float = 0.0
    """The network between an application and all brokers is cut."""

    def rates(self, brokers: int) -> dict[str, float]:
        """The rates of the simulation's kinds."""
        found = {}
        for field in fields(self):
            for kind, share in _KINDS.get(field.name, {}).items():
                rate = share * getattr(self, field.name)
                if rate and (brokers > 1 or kind not in _OF_SEVERAL_BROKERS):
                    found[kind] = rate
        return found


ALL_FAULTS: Final = Faults(
    kill=0.1,
    kill_all=0.01,
    restart=0.015,
    pause=0.05,
    power=0.03,
    disk=0.03,
    cut=0.1,
    slow=0.04,
    reset=0.06,
    zookeeper=0.06,
    clock=0.03,
    kill_application=0.1,
    pause_application=0.05,
    cut_application=0.05,
)
"""Every kind, about as often as in the simulation's own runs."""


class Application:
    """A coroutine in a process of its own, which is started again after a kill.

    When the coroutine returns, the application has finished. When it raises, the test fails, unless the
    error is one after which it restarts.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        main: Callable[[], Awaitable[object]],
        restart_on: tuple[type[Exception], ...],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self.name = name
        self.starts = 0
        self.finished = False
        """It has returned, or has been stopped."""
        self.result: object = None
        """What it has returned."""
        self.process: Process
        self._cluster = cluster
        self._main = main
        self._restart_on = restart_on
        self._on_failed = on_failed
        self._restart: asyncio.TimerHandle | None = None
        self._begin()

    def _begin(self) -> None:
        self.starts += 1
        name = self.name if self.starts == 1 else f"{self.name}.{self.starts}"
        self.process = self._cluster.client(name)
        self._cluster.note(name, "starts")

        async def run() -> object:
            return await self._main()

        self._task = self.process.create_task(run(), name=name)
        self._task.add_done_callback(self._on_done, context=self._cluster.network.context)

    def _on_done(self, task: asyncio.Task[object]) -> None:
        name = self.process.name
        self._end_process()
        if task.cancelled():
            self.finished = True
            self._cluster.note(name, "is stopped")
            return
        problem = task.exception()
        if problem is None:
            self.finished = True
            self.result = task.result()
            self._cluster.note(name, "has finished")
            return
        self._cluster.note(name, f"has failed: {problem!r}")
        if isinstance(problem, self._restart_on):
            self._begin_later(RESTART_S)
        else:
            self._on_failed(problem)

    def _end_process(self) -> None:
        self.process.kill()
        self._cluster.network.process_died(self.process)

    def _begin_later(self, delay_s: float) -> None:
        self._restart = self._cluster.loop.call_later(
            delay_s, self.start, context=self._cluster.network.context
        )

    def kill(self, restart_s: float | None = RESTART_S) -> None:
        """SIGKILL: nothing of it runs again, not even `finally`. None: it stays down until `start`."""
        if self.process.alive:
            self._cluster.note(self.process.name, "is killed", is_fault=True)
            self._end_process()
            if restart_s is not None:
                self._begin_later(restart_s)

    def start(self) -> None:
        """Start it at once, if it is down and has not finished."""
        if self._restart is not None:
            self._restart.cancel()
            self._restart = None
        if not self.process.alive and not self.finished:
            # In the simulation's context: the process of the caller must not be its owner.
            self._cluster.network.context.copy().run(self._begin)

    def pause(self, duration_s: float) -> None:
        """Let it stand still."""
        process = self.process
        if process.alive and not process.paused:
            self._cluster.note(process.name, f"is paused for {duration_s:.2f} s", is_fault=True)
            process.pause()
            self._cluster.loop.call_later(duration_s, process.resume, context=self._cluster.network.context)

    async def stop(self) -> None:
        """Cancel its coroutine, as `asyncio.run` does after SIGINT, and wait for its end."""
        if self._restart is not None:
            self._restart.cancel()
            self._restart = None
        self.process.resume()
        if self.process.alive:
            self._task.cancel()
        while self.process.alive:
            await asyncio.sleep(0.01)
        self.finished = True


class SimulatedCluster:
    """See the module. All times are virtual seconds."""

    def __init__(self, cluster: Cluster) -> None:
        self.simulation: Final = cluster
        """The cluster of `ottla.simulation`: for what this class does not offer. Its API changes."""
        self.applications: dict[str, Application] = {}
        self._injector = FaultInjector(cluster)
        self._ends = asyncio.Event()
        self._failed: asyncio.Future[None] = cluster.loop.create_future()
        self._test = cluster.client("test")

    @property
    def seed(self) -> int:
        return self.simulation.seed

    @property
    def bootstrap_servers(self) -> str:
        """All brokers, for `bootstrap_servers` of clients."""
        return self.simulation.bootstrap

    def time(self) -> float:
        """Seconds since the cluster was made; the event loop's clock."""
        return self.simulation.loop.now

    def wall_time(self) -> float:
        """Seconds since 1970 by the clock of the applications' machines: pass it instead of `time.time`."""
        return self.simulation.clock.wall_ms() / 1000

    def random(self, purpose: str) -> Random:
        """Random numbers that follow from the seed, of their own for each purpose."""
        return self.simulation.random(f"test {purpose}")

    def note(self, text: str) -> None:
        """Add a line to the timeline, which is shown when the test fails."""
        self.simulation.note("test", text)

    # --- applications ---

    def application(
        self,
        name: str,
        main: Callable[[], Awaitable[object]],
        *,
        restart_on: tuple[type[Exception], ...] = (),
    ) -> Application:
        """Start the coroutine of `main()` in a process of its own. `restart_on`: errors after which a
        supervisor starts it again."""
        assert name not in self.applications, f"there is an application {name} already"
        started = self.simulation.network.context.copy().run(
            Application, self.simulation, name, main, restart_on, self._on_failed
        )
        self.applications[name] = started
        return started

    def _on_failed(self, problem: BaseException) -> None:
        if not self._failed.done():
            self._failed.set_exception(problem)

    async def run(self, work: Coroutine[Any, Any, T], name: str = "client") -> T:
        """Run a coroutine to its end, in a process of its own that no fault kills or pauses."""
        return await self.simulation.in_process(name, work)

    async def until(
        self,
        condition: Callable[[], object | Awaitable[object]],
        timeout_s: float = 120.0,
        interval_s: float = 0.05,
    ) -> None:
        """Wait until the condition, a function or a coroutine function, is true. Raises ConditionNotMet."""
        __tracebackhide__ = True
        deadline = self.time() + timeout_s
        while True:
            found = condition()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return
            if self.time() >= deadline:
                raise ConditionNotMet(f"not true after {timeout_s:g} virtual seconds: {_describe(condition)}")
            await asyncio.sleep(interval_s)

    # --- topics and records ---

    async def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic with a replica on each of up to three brokers; repeated while faults prevent it."""
        topic = NewTopic(name, partitions, min(3, len(self.simulation.machines)), dict(config or {}))

        async def create() -> None:
            async with AdminClient(bootstrap_servers=self.bootstrap_servers) as admin:
                try:
                    await admin.create_topics([topic])
                except TopicAlreadyExistsError:
                    return  # an attempt whose answer was lost

        await self._repeat(create)

    async def records(self, topic: str, *, isolation_level: str = "read_uncommitted") -> list[ConsumerRecord]:
        """All records of a topic, ordered by partition and offset; repeated while faults prevent it."""
        return await self._repeat(lambda: self._read(topic, isolation_level))

    async def _read(self, topic: str, isolation_level: str) -> list[ConsumerRecord]:
        found = []
        async with Consumer(
            bootstrap_servers=self.bootstrap_servers,
            auto_offset_reset="earliest",
            isolation_level=isolation_level,
        ) as consumer:
            partitions = [(topic, number) for number in await consumer.partitions_for(topic)]
            consumer.assign(partitions)
            ends = await consumer.end_offsets(partitions)
            while any([await consumer.position(tp) < end for tp, end in ends.items()]):
                for records in (await consumer.poll(1.0)).values():
                    found += records
        return sorted(found, key=lambda record: (record.partition, record.offset))

    async def _repeat(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        deadline = self.time() + REQUESTS_S
        while True:
            try:
                return await self.run(work(), "observer")
            except ClientError:
                if self.time() >= deadline:
                    raise
                await asyncio.sleep(0.5)

    # --- faults ---

    async def heal(self) -> None:
        """End all faults now, start what is down, and wait until every replica is in sync."""
        self._ends.set()
        await until_whole(self.simulation)

    async def inject(self, faults: Sequence[Fault], seconds: float) -> None:
        """For the harness: execute faults, and end them after their time or at `heal`; until cancelled."""
        for fault in faults:
            if await self._healed_before(fault.at_s):
                break
            if fault.kind.endswith(" application"):
                self._disturb(fault)
            else:
                self._injector.execute(fault)
        if faults:
            await self._healed_before(seconds)
        for application in self.applications.values():
            application.process.resume()
            application.start()
        self._injector.end()
        await self._injector.supervise()

    async def _healed_before(self, at_s: float) -> bool:
        try:
            async with asyncio.timeout_at(at_s):
                await self._ends.wait()
        except TimeoutError:
            return False
        return True

    def _disturb(self, fault: Fault) -> None:
        """A fault of an application."""
        running = [each for each in self.applications.values() if each.process.runs]
        if not running:
            return
        application = running[fault.choice % len(running)]
        if fault.kind == "kill application":
            application.kill(fault.duration_s)
        elif fault.kind == "pause application":
            application.pause(fault.duration_s)
        else:
            cluster, name = self.simulation, application.process.name
            cluster.note(name, f"is cut off for {fault.duration_s:.2f} s", is_fault=True)
            restore = cluster.isolate([name], [machine.host for machine in cluster.machines.values()])
            cluster.loop.call_later(fault.duration_s, restore)

    # --- for the harness ---

    async def execute(
        self,
        test: Coroutine[Any, Any, object],
        faults: Sequence[Fault],
        seconds: float,
        timeout_s: float,
    ) -> None:
        """Run a test to its end. Raises what it or an application raises, and TimeoutError."""
        body = self._test.create_task(test, name="test")
        injecting = asyncio.ensure_future(self.inject(faults, seconds))
        waiting: set[asyncio.Future[Any]] = {body, self._failed, injecting}
        done, _ = await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        injecting.cancel()
        if self._failed.done():
            self._failed.result()
        for each in done:
            each.result()
        if not done:
            raise TimeoutError

    def waiting_tasks(self) -> list[str]:
        """Where the tasks of the test and of the applications wait."""
        processes = [self._test, *(each.process for each in self.applications.values())]
        return [
            f"{process.name}: task {task.get_name()}, {_place(task)}"
            for process in processes
            if process.alive
            for task in sorted(process.tasks, key=lambda task: task.get_name())
            if not task.done() and not _is_library(task)
        ]


def planned(cluster: Cluster, faults: Faults) -> tuple[Fault, ...]:
    """The faults of a run, as its seed chooses them."""
    source = cluster.random("faults")
    brokers = len(cluster.machines)
    return tuple(
        plan(source, brokers, cluster.loop.now, faults.seconds, varied(source, faults.rates(brokers)))
    )


def is_library(path: str) -> bool:
    """Whether a source file is asyncio's or one of Ottla's packages, and not the user's."""
    return path.startswith(_LIBRARIES)


def _describe(condition: Callable[[], object]) -> str:
    try:
        return " ".join(inspect.getsource(condition).split())
    except (OSError, TypeError):
        return repr(condition)


def _frames(task: asyncio.Task[Any]) -> list[tuple[str, int, str]]:
    """The frames of a suspended task, outermost first: file, line, function."""
    found = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return found


def _is_library(task: asyncio.Task[Any]) -> bool:
    frames = _frames(task)
    return bool(frames) and is_library(frames[0][0]) and not any(not is_library(f[0]) for f in frames)


def _place(task: asyncio.Task[Any]) -> str:
    own = [frame for frame in _frames(task) if not is_library(frame[0])]
    return " > ".join(f"{name} ({path}:{line})" for path, line, name in own) or "not started"

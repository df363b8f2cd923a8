"""A whole cluster in one thread and in virtual time: machines with disks, a network, ZooKeeper, and real
brokers.

    cluster = Cluster(seed=7)
    cluster.run(scenario(cluster))

The brokers are `ottla.server.assembly.broker.Broker`, as they ship; only their ports differ. All that happens
follows from the seed. A scenario, its clients and the faults are tasks of the simulation or of its processes.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import struct
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

from ottla.client import AdminClient
from ottla.client.errors import ClientError
from ottla.environment import Environment, environment
from ottla.metadata import znodes
from ottla.metadata.config import BrokerConfig
from ottla.metadata.store import StoreError
from ottla.ports import Ports
from ottla.ports.threads import run_inline
from ottla.ports.workers import LoopWorkers
from ottla.protocol.errors import KafkaError
from ottla.replication.manager import ReplicaManager
from ottla.server.assembly.broker import Broker, StartupError
from ottla.simulation.disk import ProcessFiles, SimulatedDisk
from ottla.simulation.ensemble import HOST, Ensemble, EnsembleStore
from ottla.simulation.loop import CURRENT, Process, SimulatedLoop
from ottla.simulation.network import SimulatedNetwork

T = TypeVar("T")

WALL_START_MS: Final = 1_700_000_000_000
PORT: Final = 9092
_FRAME: Final = struct.Struct("<QIH")
"""Of the trace: when, CRC, to which host."""
BURST_S: Final = 0.002
"""The longest time between two requests of a burst."""
TRACE_TAIL_BYTES: Final = 1 << 16
RESTART_S: Final = 1.0
"""How long a supervisor waits before it starts a broker again that has ended by itself."""

EXPECTED: Final = (StoreError, OSError, KafkaError, ClientError)
"""Errors that faults cause, and that brokers may log with their stack traces. Others are mistakes."""

SETTINGS: Final[Mapping[str, str]] = {
    "zookeeper.session.timeout.ms": "4000",
    "replica.lag.time.max.ms": "1500",
    "replica.fetch.backoff.ms": "200",
    "replica.fetch.max.bytes": "4096",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.segment.bytes": "65536",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "2000",
    "group.initial.rebalance.delay.ms": "100",
    "auto.create.topics.enable": "false",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "log.segment.bytes": "32768",
    "log.index.interval.bytes": "1024",
    "log.cleaner.backoff.ms": "2000",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.retention.check.interval.ms": "5000",
    "log.segment.delete.delay.ms": "3000",
    "controlled.shutdown.retry.backoff.ms": "500",
    "auto.leader.rebalance.enable": "true",
    "leader.imbalance.check.interval.seconds": "10",
}
"""Shorter times and smaller files than Kafka's defaults, so that more happens in a minute."""


_decode_topic = lru_cache(1 << 10)(znodes.decode_topic)
_decode_partition_state = lru_cache(1 << 12)(znodes.decode_partition_state)


class Violation(Exception):
    """An invariant does not hold; the message says which, where and how."""


class SimulatedClock:
    """The clocks of one machine: virtual time, with a wall clock that may step."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.wall_offset_ms = 0
        self.monotonic_s = loop.time

    def wall_ms(self) -> int:
        return WALL_START_MS + self.wall_offset_ms + int(self._loop.now * 1000)

    def monotonic_ms(self) -> int:
        return WALL_START_MS + int(self._loop.now * 1000)

    def cpu_s(self) -> float:
        return 0.0


@dataclass(frozen=True)
class Event:
    """One line of the timeline."""

    at_s: float
    who: str
    text: str
    is_fault: bool = False

    def __str__(self) -> str:
        return f"{self.at_s:10.4f}  {self.who:<12} {self.text}"


class Machine:
    """A machine with a disk, on which one broker runs, or none."""

    def __init__(self, cluster: Cluster, broker_id: int, starts: int = 0) -> None:
        """`starts`: those of earlier machines with the same broker id."""
        self.id = broker_id
        self.host = f"broker-{broker_id}"
        self.log_dir = Path(f"/data-{broker_id}")
        self.clock = SimulatedClock(cluster.loop)
        self.disk = SimulatedDisk(
            cluster.loop, cluster.random(f"disk {broker_id} {starts}"), self.clock.wall_ms
        )
        self.disk.on_kill = lambda: cluster.kill(broker_id)
        self.process: Process | None = None
        self.files: ProcessFiles | None = None
        self.broker: Broker | None = None
        self.starts = starts
        self.started_s = 0.0
        """When the broker was started last."""
        self.settings: Mapping[str, str] = {}
        """Settings of this broker, besides those of all brokers."""
        self.is_stopping = False
        """A controlled shutdown has begun."""
        self.has_flipped_bit = False
        """The disk returns wrong records, until it is replaced."""
        self.wanted = True
        """A supervisor starts the broker again when it ends."""

    @property
    def is_running(self) -> bool:
        """The broker's process is alive; it may still be starting, or be paused."""
        return self.process is not None and self.process.alive

    @property
    def replicas(self) -> ReplicaManager | None:
        """Those of a running broker, also one that stops or has lost its session: it may respond."""
        replication = getattr(self.broker, "replication", None) if self.is_running else None
        return None if replication is None else replication.replicas

    @property
    def is_serving(self) -> bool:
        """The broker has started."""
        return self.is_running and self.broker is not None and self.broker.phase == "ready"


class Cluster:
    """See the module."""

    def __init__(self, seed: int, *, brokers: int = 3, settings: Mapping[str, str] | None = None) -> None:
        self.seed = seed
        self.loop = SimulatedLoop()
        self.settings = {**SETTINGS, **(settings or {})}
        self.timeline: list[Event] = []
        self.problems: list[str] = []
        """What must not happen in any process: exceptions that nothing handled."""
        self.failures: list[BaseException] = []
        """What tasks of workloads have raised; the monitor raises the first one."""
        self.network = SimulatedNetwork(self.loop, self.random("network"))
        self.clock = SimulatedClock(self.loop)
        self.ensemble = Ensemble(self.loop, self.network, self.random("ensemble"), self.clock.wall_ms)
        self.ensemble.on_expired = lambda session: self.note(HOST, f"session {session.id} has ended")
        self.machines = {broker_id: Machine(self, broker_id) for broker_id in range(brokers)}
        delays = self.random("workers")
        self.slow_disks: dict[str, float] = {}
        """By host, how much longer the work of threads takes at most, in seconds."""

        def execution_delay_s() -> float:
            process = CURRENT.get()
            slow_s = 0.0 if process is None else self.slow_disks.get(process.name, 0.0)
            return 0.0002 + (0.003 + slow_s) * delays.random()

        self.loop.execution_delay_s = execution_delay_s
        self.loop.on_problem = self._on_problem
        self._starts_of_removed: dict[int, int] = {}
        self._read_at_write = -1
        self._topics: dict[str, znodes.TopicAssignment] = {}
        self._states: list[tuple[tuple[str, int], znodes.PartitionState]] = []
        self._trace = hashlib.blake2b(digest_size=16)
        self._trace_tail = bytearray()
        """What the digest lacks yet."""
        self._host_numbers: dict[str, int] = {}
        self.network.trace = self._record
        self.frames = 0
        self.workloads = 1
        """How many run at the same time."""
        self.is_administered = False
        """A workload moves replicas, and knows which."""
        self.burst_share = 0.75
        """The share of a client's requests that follow at once on the one before."""
        self.clients: dict[str, Process] = {}
        self.bit_flips = 0
        """How many bits have flipped so far."""
        self.client_clocks: dict[str, SimulatedClock] = {}
        """By the client's name: its processes run on one machine."""
        self.trace_lines: list[str] | None = None
        """What the trace digests, if a caller sets a list."""

    async def think(self, source: Random, mean_s: float) -> None:
        """Let the time pass that a client takes between two requests: bursts, and pauses between them. The
        workloads of a run share its load."""
        if source.random() < self.burst_share:
            await asyncio.sleep(BURST_S * source.random())
        else:
            await asyncio.sleep(mean_s * self.workloads / (1 - self.burst_share) * 2 * source.random())

    def random(self, purpose: str) -> Random:
        """A source of randomness of its own: what one part draws does not change what another part draws."""
        return Random(f"{self.seed} {purpose}")

    @property
    def trace(self) -> str:
        """A digest of everything that travelled, with its time."""
        self._trace.update(self._trace_tail)
        self._trace_tail.clear()
        return self._trace.hexdigest()

    def _record(self, now: float, host: str, crc: int) -> None:
        self.frames += 1
        if self.trace_lines is not None:
            self.trace_lines.append(f"{now:.9f} {host} {crc:08x}")
        self._trace_tail += _FRAME.pack(
            int(now * 1e9), crc, self._host_numbers.setdefault(host, len(self._host_numbers))
        )
        if len(self._trace_tail) >= TRACE_TAIL_BYTES:
            self._trace.update(self._trace_tail)
            self._trace_tail.clear()

    def note(self, who: str, text: str, *, is_fault: bool = False) -> None:
        """Add an event to the timeline."""
        self.timeline.append(Event(self.loop.now, who, text, is_fault))

    def _on_problem(self, process: Process | None, context: dict[str, Any]) -> None:
        problem = context.get("exception")
        if problem is None:
            return
        name = "simulation" if process is None else process.name
        text = f"{context.get('message')}: {problem!r}"
        self.note(name, text)
        if isinstance(problem, Violation):
            self.failures.append(problem)
            return
        if (
            process is None
            and isinstance(context.get("future"), asyncio.Future)
            and not isinstance(context["future"], asyncio.Task)
        ):
            return  # of a process that is not known, and may have been killed
        trace = "".join(traceback.format_exception(problem))
        self.problems.append(f"{self.loop.now:.4f} {name}: {text}\n{trace}")

    def watch(self, task: asyncio.Task[Any]) -> None:
        """A done callback for tasks of workloads: end the run at once if the task has failed."""
        problem = None if task.cancelled() else task.exception()
        if problem is not None:
            self.failures.append(problem)

    # --- life ---

    def run(self, scenario: Coroutine[Any, Any, T]) -> T:
        """Run a scenario to its end, in virtual time."""
        handler = _TimelineHandler(self)
        root = logging.getLogger("ottla")
        level, propagate = root.level, root.propagate
        root.addHandler(handler)
        root.setLevel(logging.INFO)
        root.propagate = False
        try:
            return self.loop.run(scenario)
        finally:
            handler.cluster = None
            self._end()
            root.removeHandler(handler)
            root.setLevel(level)
            root.propagate = propagate

    def _end(self) -> None:
        """Kill what still runs."""
        processes = [machine.process for machine in self.machines.values()]
        for process in [*processes, *self.clients.values()]:
            if process is not None:
                process.kill()
        self.loop.on_problem = lambda process, context: None
        self.loop.close()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{machine.host}:{PORT}" for machine in self.machines.values())

    def client(self, name: str) -> Process:
        """A process for an application."""
        clock = self.client_clocks.setdefault(name, SimulatedClock(self.loop))
        process = self._new_process(name, clock.wall_ms, self.random(f"client {name}"))
        self.clients[name] = process
        return process

    def _new_process(self, name: str, wall_ms: Callable[[], int], source: Random) -> Process:
        process = Process(self.loop, name)
        process.set(
            environment, Environment(wall_ms, self.loop.time, source, new_socket=self.network.new_socket)
        )
        return process

    async def in_process(self, name: str, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in a process of its own."""
        return await self.client(name).create_task(work)

    async def admin(self, work: Callable[[AdminClient], Coroutine[Any, Any, T]]) -> T:
        """Run administrative requests in a process of their own."""

        async def run() -> T:
            async with AdminClient(bootstrap_servers=self.bootstrap) as admin:
                return await work(admin)

        return await self.in_process("admin", run())

    async def start(self) -> None:
        """Start all brokers, and wait until they serve."""
        for broker_id in self.machines:
            self.start_broker(broker_id)
        while not all(machine.is_serving for machine in self.machines.values()):
            await asyncio.sleep(0.05)

    # --- brokers ---

    def start_broker(self, broker_id: int) -> None:
        """Start the broker of a machine whose process has ended."""
        machine = self.machines[broker_id]
        assert not machine.is_running
        machine.starts += 1
        machine.started_s = self.loop.now
        machine.is_stopping = False
        self.network.power_on(machine.host)
        source = self.random(f"broker {broker_id} start {machine.starts}")
        process = machine.process = self._new_process(machine.host, machine.clock.wall_ms, source)
        files = machine.files = ProcessFiles(machine.disk, process)
        config = BrokerConfig.from_properties(
            {
                "broker.id": str(broker_id),
                "listeners": f"PLAINTEXT://{machine.host}:{PORT}",
                "zookeeper.connect": HOST,
                "log.dirs": str(machine.log_dir),
                **self.settings,
                **machine.settings,
            }
        )
        ports = Ports(
            clock=machine.clock,
            random=source,
            files=files,
            network=self.network.for_host(machine.host),
            run_parallel=run_inline,
            workers=LoopWorkers(files),
        )
        store = EnsembleStore(self.ensemble, machine.host, config.get_int("zookeeper.session.timeout.ms"))
        machine.broker = Broker(config, store=store, ports=ports)
        self.note(machine.host, "starts")
        process.create_task(self._live(machine, machine.broker, process), name=f"{machine.host} main")

    async def _live(self, machine: Machine, broker: Broker, process: Process) -> None:
        """What `ottla broker` does."""
        try:
            await broker.start()
            self.note(machine.host, "serves")
            await broker.wait_failed()
            self.note(machine.host, "has failed")
        except StartupError as problem:
            self.note(machine.host, f"cannot start: {problem}")
        try:
            await broker.stop()
        finally:
            self._exit(machine, process)

    def _exit(self, machine: Machine, process: Process) -> None:
        """The process ends by itself."""
        self._end_process(machine, process)
        if machine.wanted:
            self.loop.call_later(RESTART_S, self._restart, machine, context=self.network.context)

    def _restart(self, machine: Machine) -> None:
        if machine.wanted and not machine.is_running and self.machines.get(machine.id) is machine:
            self.start_broker(machine.id)

    def _end_process(self, machine: Machine, process: Process) -> None:
        if process.alive:
            process.kill()
            self.network.process_died(process)
            assert machine.files is not None
            machine.files.release_locks()

    def add_broker(
        self,
        broker_id: int | None = None,
        settings: Mapping[str, str] | None = None,
        disk: SimulatedDisk | None = None,
    ) -> int:
        """Add a machine and start its broker. Returns the broker's id. `disk`: that of a removed machine with
        the same broker id, instead of an empty one."""
        if broker_id is None:
            broker_id = max(self.machines, default=-1) + 1
        assert broker_id not in self.machines
        starts = self._starts_of_removed.get(broker_id, 0)
        machine = self.machines[broker_id] = Machine(self, broker_id, starts)
        machine.settings = settings or {}
        if disk is not None:
            machine.disk = disk
        self.note(machine.host, "joins")
        self.start_broker(broker_id)
        return broker_id

    def remove_broker(self, broker_id: int) -> None:
        """Remove a machine with its disk; its broker has been stopped before, or is killed now."""
        machine = self.machines[broker_id]
        machine.wanted = False
        if machine.process is not None:
            self._end_process(machine, machine.process)
        self.network.power_off(machine.host)
        self._starts_of_removed[broker_id] = machine.starts
        del self.machines[broker_id]
        self.note(machine.host, "leaves")

    def kill(self, broker_id: int) -> None:
        """SIGKILL: nothing of the process runs again; what it wrote stays in the page cache."""
        machine = self.machines[broker_id]
        if machine.process is not None and machine.process.alive:
            self.note(machine.host, "is killed", is_fault=True)
            self._end_process(machine, machine.process)
            machine.disk.kill_after = -1

    def lose_power(self, broker_id: int) -> None:
        """The machine is gone, with what was not synced to its disk."""
        machine = self.machines[broker_id]
        self.note(machine.host, "loses its power", is_fault=True)
        if machine.process is not None and machine.process.alive:
            machine.process.kill()
        self.network.power_off(machine.host)
        machine.disk.lose_power()
        machine.disk.kill_after = -1

    def lose_disk(self, broker_id: int) -> None:
        """The machine is replaced by one with an empty disk."""
        machine = self.machines[broker_id]
        self.note(machine.host, "loses its disk", is_fault=True)
        if machine.process is not None and machine.process.alive:
            machine.process.kill()
        self.network.power_off(machine.host)
        machine.disk.wipe()
        machine.disk.kill_after = -1
        machine.has_flipped_bit = False

    def pause(self, broker_id: int) -> None:
        machine = self.machines[broker_id]
        if machine.process is not None and machine.process.alive:
            self.note(machine.host, "is paused", is_fault=True)
            machine.process.pause()

    def resume(self, broker_id: int) -> None:
        machine = self.machines[broker_id]
        if machine.process is not None and machine.process.paused:
            self.note(machine.host, "is resumed", is_fault=True)
            machine.process.resume()

    async def stop_broker(self, broker_id: int) -> None:
        """A controlled shutdown, as by SIGTERM."""
        machine = self.machines[broker_id]
        process, broker = machine.process, machine.broker
        if process is None or not process.alive or broker is None:
            return
        self.note(machine.host, "begins a controlled shutdown", is_fault=True)
        machine.is_stopping = True
        done = process.create_task(broker.stop(), name=f"{machine.host} stop")
        while process.alive and not done.done():
            await asyncio.sleep(0.02)
        self._end_process(machine, process)

    # --- what ZooKeeper holds ---

    def topics(self) -> Mapping[str, znodes.TopicAssignment]:
        """The topics with their replicas."""
        self._read_topics()
        return self._topics

    def partition_states(self) -> Sequence[tuple[tuple[str, int], znodes.PartitionState]]:
        """The states of all partitions."""
        self._read_topics()
        return self._states

    def _read_topics(self) -> None:
        """Read again what ZooKeeper holds, after a write."""
        tree = self.ensemble.tree
        if self._read_at_write == tree.writes:
            return
        self._read_at_write = tree.writes
        node = tree.find(znodes.TOPICS)
        self._topics, self._states = {}, []
        for topic in sorted(node.children) if node is not None else ():
            stored = tree.find(znodes.topic_path(topic))
            if stored is None or not stored.data:
                continue
            assignment = self._topics[topic] = _decode_topic(topic, stored.data)
            for partition in sorted(assignment.partitions):
                stored = tree.find(znodes.state_path(topic, partition))
                if stored is not None:
                    state = _decode_partition_state(topic, partition, stored.data)
                    self._states.append(((topic, partition), state))

    def clock_spread_s(self) -> float:
        """By how much the wall clocks of the machines differ: what one broker stamps, another one judges."""
        offsets_ms = [machine.clock.wall_offset_ms for machine in self.machines.values()]
        return float(max(offsets_ms) - min(offsets_ms)) / 1000

    # --- the network ---

    def isolate(self, hosts: list[str], others: list[str], *, both_ways: bool = True) -> Callable[[], None]:
        """Cut the network between two groups of hosts. Returns what restores it."""
        pairs = [(a, b) for a in hosts for b in others]
        if both_ways:
            pairs += [(b, a) for a, b in pairs]
        for source, destination in pairs:
            self.network.block(source, destination)

        def restore() -> None:
            for source, destination in pairs:
                self.network.unblock(source, destination)

        return restore


class _TimelineHandler(logging.Handler):
    """Adds what the brokers log to the timeline, and unexpected errors to the problems."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.cluster: Cluster | None = cluster
        """None at the end of the run."""

    def emit(self, record: logging.LogRecord) -> None:
        cluster = self.cluster
        process = CURRENT.get()
        if cluster is None or (process is not None and not process.alive):
            return
        name = "simulation" if process is None else process.name
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            problem = record.exc_info[1]
            text += f": {problem!r}"
            if not isinstance(problem, EXPECTED):
                trace = "".join(traceback.format_exception(problem))
                cluster.problems.append(f"{cluster.loop.now:.4f} {name}: {text}\n{trace}")
        cluster.note(name, f"{record.levelname.lower()}: {text}")

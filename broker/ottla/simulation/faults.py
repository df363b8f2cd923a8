"""Faults: a plan that follows from the seed, and its execution against a cluster.

A plan is a list of `Fault`s, so that a failing run can be shrunk: fewer faults, the same seed. Faults may
overlap. Destructive faults (power, disks) keep to what Kafka promises: a committed record is lost only with
every in-sync replica that holds it. So at most one machine at a time is *damaged*, from the loss until it is
in sync again, and meanwhile another one, which has everything, is *spared*: no fault touches it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Final

from ottla.client import AdminClient
from ottla.client.errors import ClientError
from ottla.metadata import znodes
from ottla.protocol.api import ApiKey
from ottla.protocol.records import RECORD_BATCH_OVERHEAD, iter_batches
from ottla.protocol.topics import INTERNAL_TOPICS
from ottla.simulation.cluster import PORT, Cluster, Machine
from ottla.simulation.ensemble import HOST
from ottla.simulation.network import USUAL_DELAY_S, USUAL_JITTER_S, Side

RATES: Final[Mapping[str, float]] = {
    "kill": 0.08,
    "kill in a write": 0.08,
    "kill all": 0.015,
    "power": 0.03,
    "disk": 0.015,
    "bit flip": 0.03,
    "pause": 0.06,
    "cut off": 0.04,
    "cut one way": 0.04,
    "cut pair": 0.04,
    "cut from ZooKeeper": 0.04,
    "cut from clients": 0.02,
    "slow links": 0.04,
    "resets": 0.06,
    "session": 0.06,
    "outage": 0.02,
    "lost answers": 0.04,
    "disk errors": 0.02,
    "full disk": 0.02,
    "clock step": 0.03,
    "client clock step": 0.03,
    "cache misses": 0.05,
    "slow disk": 0.04,
    "roll": 0.015,
    "leader moves": 0.05,
    "controller moves": 0.04,
    "at a request": 0.15,
}
"""How many faults of each kind begin in a virtual second."""

REQUESTS: Final = (
    ApiKey.LEADER_AND_ISR,
    ApiKey.LEADER_AND_ISR,
    ApiKey.STOP_REPLICA,
    ApiKey.UPDATE_METADATA,
    ApiKey.ALTER_PARTITION,
    ApiKey.ALTER_PARTITION,
    ApiKey.ALTER_PARTITION,
    ApiKey.CONTROLLED_SHUTDOWN,
    ApiKey.FETCH,
    ApiKey.PRODUCE,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.END_TXN,
)
"""The requests at which something happens."""
FREQUENT: Final = (ApiKey.FETCH, ApiKey.PRODUCE)
HEARD_S: Final = 2.0
"""ZooKeeper has heard so recently of a broker that reaches it."""


@dataclass(frozen=True)
class Fault:
    """One fault: when it begins, its kind, its broker, how long it lasts, and a number for its further
    choices."""

    at_s: float
    kind: str
    broker: int
    duration_s: float
    choice: int

    def __str__(self) -> str:
        return f"{self.at_s:.3f} s: {self.kind}, broker {self.broker}, {self.duration_s:.2f} s"


def plan(
    source: random.Random, brokers: int, begin_s: float, end_s: float, rates: Mapping[str, float]
) -> list[Fault]:
    """The faults of a run, in the order of their beginning."""
    total = sum(rates.values())
    kinds = list(rates)
    faults = []
    at_s = begin_s
    while total > 0:
        at_s += source.expovariate(total)
        if at_s >= end_s:
            break
        kind = source.choices(kinds, list(rates.values()))[0]
        duration_s = min(source.choice((0.1, 1.0, 5.0)) * (0.2 + source.expovariate(1.0)), 15.0)
        faults.append(Fault(at_s, kind, source.randrange(brokers), duration_s, source.getrandbits(32)))
    return faults


def varied(source: random.Random, rates: Mapping[str, float]) -> dict[str, float]:
    """The rates of one run. Not all kinds are in each run: some faults show only without others."""
    return {kind: rate * source.choice((0.0, 1.0, 3.0)) for kind, rate in rates.items()}


def _kinds_of(data: bytes | bytearray | memoryview) -> set[int]:
    """The API keys of the requests in what a client writes."""
    kinds, at = set(), 0
    while at + 6 <= len(data):
        kinds.add(int.from_bytes(data[at + 4 : at + 6]))
        at += 4 + int.from_bytes(data[at : at + 4])
    return kinds


@dataclass
class FaultInjector:
    """Executes a plan. Belongs to the simulation."""

    cluster: Cluster
    is_durable: bool = False
    """Brokers sync each batch (flush.messages=1), so that power may be lost everywhere."""
    damaged: dict[int, float] = field(default_factory=dict)
    """Brokers that lost data, with the time of their loss."""
    spared: int | None = None
    """The broker that no fault touches while another one is damaged."""
    executed: list[Fault] = field(default_factory=list)
    _undo: list[Callable[[], None]] = field(default_factory=list)
    _restarts: dict[int, asyncio.TimerHandle] = field(default_factory=dict)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _ended: bool = False
    _committed: dict[tuple[str, int], int] = field(default_factory=dict)

    async def run(self, faults: list[Fault]) -> None:
        """Execute the plan, from now on: the times are relative."""
        began_s = self.cluster.loop.now
        for fault in faults:
            await asyncio.sleep(max(0.0, began_s + fault.at_s - self.cluster.loop.now))
            self.execute(fault)

    def execute(self, fault: Fault) -> None:
        cluster, broker_id = self.cluster, fault.broker
        machine = cluster.machines.get(broker_id)
        if machine is None:
            return
        self._forget_repaired()
        if broker_id == self.spared or machine.has_flipped_bit:
            return
        self.executed.append(fault)
        source = random.Random(fault.choice)
        method = getattr(self, "_" + fault.kind.lower().replace(" ", "_"))
        method(fault, machine, source)

    # --- processes and machines ---

    def _start_later(self, broker_id: int, delay_s: float) -> None:
        timer = self._restarts.pop(broker_id, None)
        if timer is not None:
            timer.cancel()

        def start() -> None:
            machine = self.cluster.machines.get(broker_id)
            if machine is not None and machine.wanted and not machine.is_running:
                self.cluster.start_broker(broker_id)

        self._restarts[broker_id] = self.cluster.loop.call_later(delay_s, start)

    def _kill(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        if machine.is_running:
            self.cluster.kill(machine.id)
            self._start_later(machine.id, fault.duration_s)

    def _kill_in_a_write(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        if not machine.is_running:
            return
        machine.disk.kill_after = source.randint(1, 40)
        loses_power = source.random() < 0.3
        machine.disk.on_kill = lambda: self._killed_in_write(
            machine, fault.duration_s, loses_power=loses_power
        )

    def _killed_in_write(self, machine: Machine, delay_s: float, *, loses_power: bool) -> None:
        if self.cluster.machines.get(machine.id) is not machine:
            return
        self.cluster.note(machine.host, "is in the middle of a write", is_fault=True)
        if loses_power and (self.is_durable or self._damage(machine.id)):
            self.cluster.lose_power(machine.id)
        else:
            self.cluster.kill(machine.id)
        self._start_later(machine.id, delay_s)

    def _kill_all(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        for each in self.cluster.machines.values():
            if each.is_running and not self._is_kept(each):
                self.cluster.kill(each.id)
                self._start_later(each.id, fault.duration_s * source.random())

    def _power(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        if self.is_durable:
            for each in self.cluster.machines.values() if source.random() < 0.3 else (machine,):
                if each.is_running and not self._is_kept(each):
                    self.cluster.lose_power(each.id)
                    self._start_later(each.id, fault.duration_s * source.random())
        elif machine.is_running and self._damage(machine.id):
            self.cluster.lose_power(machine.id)
            self._start_later(machine.id, fault.duration_s)

    def _disk(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        if machine.is_running and self._damage(machine.id):
            self.cluster.lose_disk(machine.id)
            self._start_later(machine.id, fault.duration_s)

    def _bit_flip(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        """Flip a bit of the records in a sealed segment; replace the disk later."""
        if not self._is_sound(machine):
            return
        place = self._find_records(machine, source)
        if place is not None and self._damage(machine.id):
            machine.has_flipped_bit = True
            self.cluster.bit_flips += 1
            machine.disk.kill_after = -1
            path, position = place
            self.cluster.note(machine.host, f"has a flipped bit in {path}, byte {position}", is_fault=True)
            machine.disk.flip_bit(path, position, source.randrange(8))
            self.cluster.loop.call_later(2.0 + fault.duration_s, self._replace_disk, machine)

    def _find_records(self, machine: Machine, source: random.Random) -> tuple[str, int] | None:
        """The file and the position of a byte in the records of a batch in a sealed segment, all of it below
        the high watermark."""
        assert machine.broker is not None
        paths = [
            f"{partition.log.directory}/{segment.base_offset:020d}.log"
            for partition in machine.broker.replication.replicas.partitions()
            if partition.topic not in INTERNAL_TOPICS and not partition.log.config.compacts
            for segment, following in pairwise(partition.log.segments)
            if following.base_offset <= min(partition.high_watermark, partition.log.recovery_point)
        ]
        if not paths:
            return None
        path = source.choice(paths)
        file = machine.disk.names.get(path)
        batches = [] if file is None else list(iter_batches(memoryview(bytes(file.data))))
        if not batches:
            return None
        at, header = source.choice(batches)
        return path, source.randrange(at + RECORD_BATCH_OVERHEAD, at + header.size)

    def _replace_disk(self, machine: Machine) -> None:
        """Replace a disk with a flipped bit, once the spared broker has all records; after the faults any
        other one may have them, since replicas may have moved."""
        if not machine.has_flipped_bit or self.cluster.machines.get(machine.id) is not machine:
            return
        whole = {
            each.id
            for each in self.cluster.machines.values()
            if each is not machine
            and (self._ended or each.id == self.spared)
            and each.is_serving
            and each.process is not None
            and each.process.runs
        }
        states = self.cluster.partition_states()
        if all(whole & set(state.isr) for _, state in states if machine.id in state.isr) and not any(
            self._proposes_without(machine, broker) for broker in whole
        ):
            self.damaged[machine.id] = self.cluster.loop.now
            self.cluster.lose_disk(machine.id)
            self._start_later(machine.id, 0.5)
        else:
            self.cluster.loop.call_later(0.5, self._replace_disk, machine)

    def _damage(self, broker_id: int) -> bool:
        """Whether a broker may lose data now; it is damaged then, and another one is spared, which has all
        records."""
        if self.damaged:
            return False
        states = self.cluster.partition_states()
        for machine in self.cluster.machines.values():
            if (
                machine.id != broker_id
                and self._is_sound(machine)
                and all(machine.id in state.isr for _, state in states if broker_id in state.isr)
                and not self._proposes_without(self.cluster.machines[broker_id], machine.id)
            ):
                self.spared = machine.id
                self._committed.clear()
                for (topic, number), _ in states:
                    self._committed_end(topic, number)
                machine.disk.kill_after = -1
                self.cluster.note(
                    machine.host, f"is spared while broker {broker_id} is damaged", is_fault=True
                )
                self.damaged[broker_id] = self.cluster.loop.now
                return True
        return False

    def _proposes_without(self, machine: Machine, broker_id: int) -> bool:
        """Whether the machine, as a leader, has proposed an ISR without this broker. The proposal may be in
        flight, and the controller accept it when the leader is gone."""
        replicas = machine.replicas
        return replicas is not None and any(
            partition.in_sync.change is not None and broker_id not in partition.in_sync.change.proposed
            for partition in replicas.partitions()
        )

    def _is_sound(self, machine: Machine) -> bool:
        """A broker works, and reaches all others and ZooKeeper, which know that it is there."""
        broker, process, disk, network = machine.broker, machine.process, machine.disk, self.cluster.network
        if broker is None or process is None or not process.runs or machine.is_stopping:
            return False
        session = self.cluster.ensemble.sessions.get(broker.store.session_id)
        if session is None or session.heard_at + HEARD_S < self.cluster.loop.now:
            return False
        others = [*self._others(machine), HOST]
        links = [network.link(machine.host, other) for other in others]
        links += [network.link(other, machine.host) for other in others]
        return (
            machine.is_serving
            and disk.fail_rate == 0
            and disk.capacity is None
            and disk.kill_after < 0
            and not any(link.blocked or link.delay_s > USUAL_DELAY_S for link in links)
        )

    def _is_kept(self, machine: Machine) -> bool:
        """No fault touches it now."""
        return machine.id == self.spared or machine.has_flipped_bit

    def _forget_repaired(self) -> None:
        """A damaged broker is whole again once it serves and each of its replicas is in the ISR."""
        for broker_id, since_s in list(self.damaged.items()):
            machine = self.cluster.machines.get(broker_id)
            if machine is None:
                del self.damaged[broker_id]
                self.spared = None
                continue
            if machine.has_flipped_bit or not machine.is_serving or self.cluster.loop.now - since_s < 1.0:
                continue
            assert machine.broker is not None
            replicas = machine.broker.replication.replicas
            topics = self.cluster.topics()
            if all(
                broker_id in state.isr
                and (partition := replicas.find(topic, number)) is not None
                and partition.log.log_end_offset >= self._committed_end(topic, number)
                for (topic, number), state in self.cluster.partition_states()
                if broker_id in topics[topic].partitions[number]
            ):
                del self.damaged[broker_id]
                self.spared = None

    def _committed_end(self, topic: str, number: int) -> int:
        """The highest high watermark of a partition that was seen, now or when the broker was damaged."""
        key = (topic, number)
        for machine in self.cluster.machines.values():
            if machine.is_serving and machine.broker is not None:
                partition = machine.broker.replication.replicas.find(topic, number)
                if partition is not None and partition.high_watermark > self._committed.get(key, 0):
                    self._committed[key] = partition.high_watermark
        return self._committed.get(key, 0)

    def _pause(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        if machine.is_running:
            process = machine.process
            assert process is not None
            self.cluster.pause(machine.id)
            self._later(fault.duration_s, process.resume)

    def _roll(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        async def roll() -> None:
            for each in list(self.cluster.machines.values()):
                if self.cluster.machines.get(each.id) is not each:
                    continue
                if each.is_serving and not self._is_kept(each) and not self._ended:
                    await self.cluster.stop_broker(each.id)
                    self._start_later(each.id, 0.2)
                    await asyncio.sleep(3.0)

        self._tasks.append(self.cluster.loop.create_task(roll()))

    def _leader_moves(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        """Partitions change their leaders several times, at once one after the other, while all replicas stay
        in the ISR; a broker may be cut off from another one or from all meanwhile, so that they learn of one
        another's records and elections late. Not where a workload moves replicas itself."""
        topics = sorted(self.cluster.topics())
        if not topics or self.cluster.is_administered:
            return
        topic = source.choice(topics)
        self.cluster.note(topic, "changes its leaders", is_fault=True)
        if source.random() < 0.5:
            longer = replace(fault, duration_s=max(fault.duration_s, 2.0))
            others = self._others(machine)
            self._cut(longer, [machine.host], others if source.random() < 0.5 else [source.choice(others)])

        async def move(admin: AdminClient) -> None:
            for _ in range(source.randint(1, 6)):
                assignment = self.cluster.topics().get(topic)
                if assignment is None or self._ended:
                    return
                orders = {
                    (topic, number): source.sample(replicas, len(replicas))
                    for number, replicas in assignment.partitions.items()
                    if not assignment.adding.get(number) and not assignment.removing.get(number)
                }
                with contextlib.suppress(ClientError):
                    await admin.alter_partition_reassignments(orders)
                    await admin.elect_preferred_leaders(list(orders))
                # Producers find the new leader after some 0.1 s.
                await asyncio.sleep(source.choice((0.0, 0.02, 0.3, 1.0)))

        self._tasks.append(self.cluster.loop.create_task(self.cluster.admin(move)))

    def _controller_moves(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        """Another broker becomes the controller, while the former one has its session, and requests on their
        way."""
        self.cluster.note(HOST, "/controller is deleted", is_fault=True)
        self.cluster.ensemble.delete(znodes.CONTROLLER)

    # --- the network ---

    def _at_a_request(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        """The next request of a kind is late, or its response, or the connection breaks after it, or one of
        both sides is killed. Meanwhile the sender may not learn what changes in ZooKeeper, or another broker
        may lose its power and maybe not reach the sender when it is back, or the controller and the leaders
        may change."""
        watching = self.cluster.network.on_write
        kind, earlier = source.choice(REQUESTS), source.choice((0, 0, 1, 3))
        what = source.choice(("late", "late", "late", "late answer", "reset", "kill sender", "kill receiver"))
        delay_s = source.choice((0.3, 2.0, 6.0)) * (0.5 + source.random())
        kill_s = source.choice((0.0, 0.001, 0.01))
        besides = source.choice(("", "", "store", "power", "power and cut", "controller"))
        if besides == "power and cut":
            # A broker that has lost its power registers again once its former session has ended.
            delay_s = 4.0 + 5.0 * source.random()

        def on_write(side: Side, data: bytes | bytearray | memoryview) -> None:
            nonlocal earlier
            hosts = (side.host, side.peer.host)
            if side.peer.address[1] != PORT or kind not in _kinds_of(data):
                return
            if kind in FREQUENT and machine.host not in hosts:
                return
            if earlier:
                earlier -= 1
                return
            undo()
            text = f"{kind.name} from {side.host}: {what}" + f" by {delay_s:.1f} s" * what.startswith("late")
            self.cluster.note(side.peer.host, text, is_fault=True)
            match what:
                case "late":
                    side.out.hold(delay_s)
                case "late answer":
                    side.peer.out.hold(delay_s)
                case "reset":
                    self._soon(side.receive_reset)
                case _:
                    host = hosts[what == "kill receiver"]
                    self._soon(self._kill_host, host, fault.duration_s, after_s=kill_s)
            short = replace(fault, duration_s=min(fault.duration_s, 2.0))
            third = [each for each in self.cluster.machines.values() if each.host not in hosts]
            victim = source.choice(third) if third else machine
            if besides == "store":
                self._soon(partial(self._cut, short, [HOST], [side.host], both_ways=False))
            elif besides == "controller" and not self._is_kept(machine):
                self._soon(self._controller_moves, fault, machine, source)
                self._soon(self._leader_moves, short, machine, source, after_s=delay_s * source.random() / 2)
            elif besides and not self._is_kept(victim):
                if besides == "power and cut" and victim.host != side.host:
                    longer = replace(fault, duration_s=delay_s + 2.0)
                    self._soon(self._cut, longer, [victim.host], [side.host])
                    short = replace(fault, duration_s=0.1)
                self._soon(self._power, short, victim, source, after_s=0.05)

        def undo() -> None:
            if on_write in watching:
                watching.remove(on_write)

        watching.append(on_write)
        self._later(20.0, undo)

    def _soon(self, act: Callable[..., None], *args: object, after_s: float = 0.0) -> None:
        """Call in the simulation, after what runs now."""
        self.cluster.loop.call_later(after_s, act, *args, context=self.cluster.network.context)

    def _kill_host(self, host: str, delay_s: float) -> None:
        for machine in self.cluster.machines.values():
            if machine.host == host and machine.is_running and not self._is_kept(machine):
                self.cluster.kill(machine.id)
                self._start_later(machine.id, delay_s)

    def _later(self, delay_s: float, undo: Callable[[], None]) -> None:
        """Undo a fault after its time, or when all faults end."""

        def once() -> None:
            if undo in self._undo:
                self._undo.remove(undo)
                undo()

        self._undo.append(undo)
        self.cluster.loop.call_later(delay_s, once)

    def _cut(self, fault: Fault, hosts: list[str], others: list[str], *, both_ways: bool = True) -> None:
        arrow = "<->" if both_ways else "->"
        self.cluster.note("network", f"cut {' '.join(hosts)} {arrow} {' '.join(others)}", is_fault=True)
        restore = self.cluster.isolate(hosts, others, both_ways=both_ways)

        def undo() -> None:
            self.cluster.note(
                "network", f"restored {' '.join(hosts)} {arrow} {' '.join(others)}", is_fault=True
            )
            restore()

        self._later(fault.duration_s, undo)

    def _others(self, machine: Machine) -> list[str]:
        return [each.host for each in self.cluster.machines.values() if each is not machine]

    def _cut_off(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        self._cut(fault, [machine.host], [*self._others(machine), HOST])

    def _cut_one_way(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        others = [*self._others(machine), HOST]
        if source.random() < 0.5:
            self._cut(fault, [machine.host], others, both_ways=False)
        else:
            self._cut(fault, others, [machine.host], both_ways=False)

    def _cut_pair(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        self._cut(
            fault, [machine.host], [source.choice(self._others(machine))], both_ways=source.random() < 0.7
        )

    def _cut_from_zookeeper(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        self._cut(fault, [machine.host], [HOST], both_ways=source.random() < 0.7)

    def _cut_from_clients(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        self._cut(fault, [machine.host], list(self.cluster.clients))

    def _slow_links(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        network = self.cluster.network
        delay_s = source.choice((0.02, 0.2, 1.0))
        self.cluster.note(machine.host, f"has slow links: {delay_s} s", is_fault=True)
        links = [network.link(machine.host, other) for other in [*self._others(machine), HOST]]
        links += [network.link(other, machine.host) for other in [*self._others(machine), HOST]]
        for link in links:
            link.delay_s, link.jitter_s = delay_s, delay_s

        def undo() -> None:
            for link in links:
                link.delay_s, link.jitter_s = USUAL_DELAY_S, USUAL_JITTER_S

        self._later(fault.duration_s, undo)

    def _resets(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        self.cluster.note(machine.host, "has its connections reset", is_fault=True)
        share = source.choice((0.3, 1.0))
        self.cluster.network.reset_connections(
            lambda a, b: machine.host in (a, b) and source.random() < share
        )

    # --- ZooKeeper ---

    def _session(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        store = None if machine.broker is None or not machine.is_running else machine.broker.store
        session = None if store is None else self.cluster.ensemble.sessions.get(store.session_id)
        if session is not None:
            self.cluster.note(machine.host, "has its session expired", is_fault=True)
            self.cluster.ensemble.expire(session)

    def _outage(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        ensemble = self.cluster.ensemble
        if ensemble.available:
            self.cluster.note(HOST, "is away", is_fault=True)
            ensemble.set_available(False)

            def undo() -> None:
                self.cluster.note(HOST, "is back", is_fault=True)
                ensemble.set_available(True)

            self._later(fault.duration_s, undo)

    def _lost_answers(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        ensemble = self.cluster.ensemble
        ensemble.break_before_rate = source.choice((0.0, 0.1, 0.3))
        ensemble.break_after_rate = source.choice((0.1, 0.3))
        self.cluster.note(HOST, "loses answers", is_fault=True)

        def undo() -> None:
            ensemble.break_before_rate = ensemble.break_after_rate = 0.0

        self._later(fault.duration_s, undo)

    # --- disks and clocks ---

    def _disk_errors(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        self.cluster.note(machine.host, "has disk errors", is_fault=True)
        disk = machine.disk
        disk.fail_rate = source.choice((0.01, 0.3, 1.0))

        def undo() -> None:
            disk.fail_rate = 0.0

        self._later(fault.duration_s, undo)

    def _full_disk(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        self.cluster.note(machine.host, "has a full disk", is_fault=True)
        disk = machine.disk
        disk.capacity = disk.used + source.choice((0, 100, 5000))

        def undo() -> None:
            disk.capacity = None

        self._later(fault.duration_s, undo)

    def _clock_step(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        step_ms = source.choice((-60_000, -1_000, 1_000, 60_000))
        self.cluster.note(machine.host, f"has its clock stepped by {step_ms} ms", is_fault=True)
        machine.clock.wall_offset_ms += step_ms

    def _client_clock_step(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        names = [name for name, process in self.cluster.clients.items() if process.alive]
        if names:
            name, step_ms = source.choice(names), source.choice((-60_000, -1_000, 1_000, 60_000))
            self.cluster.note(name, f"has its clock stepped by {step_ms} ms", is_fault=True)
            self.cluster.client_clocks[name].wall_offset_ms += step_ms

    def _cache_misses(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        machine.disk.miss_rate = source.choice((0.05, 0.5))

        def undo() -> None:
            machine.disk.miss_rate = 0.0

        self._later(fault.duration_s, undo)

    def _slow_disk(self, fault: Fault, machine: Machine, source: random.Random) -> None:
        """Threads take long, and reads are left to them: flushes are late, and coordinators load slowly."""
        slow_s = source.choice((0.05, 0.3, 1.0))
        self.cluster.note(machine.host, f"has a slow disk: {slow_s} s", is_fault=True)
        self.cluster.slow_disks[machine.host] = slow_s
        machine.disk.miss_rate = source.choice((0.1, 1.0))

        def undo() -> None:
            machine.disk.miss_rate = 0.0
            self.cluster.slow_disks.pop(machine.host, None)

        self._later(fault.duration_s, undo)

    # --- the end ---

    def end(self) -> None:
        """End all faults."""
        self._ended = True
        while self._undo:
            self._undo.pop()()
        self.cluster.network.heal()
        for timer in self._restarts.values():
            timer.cancel()
        for machine in self.cluster.machines.values():
            machine.disk.kill_after = -1
            if machine.process is not None:
                machine.process.resume()
        self.cluster.note("simulation", "all faults have ended")

    async def supervise(self) -> None:
        """Start every broker that is down, until cancelled; also those whose stop has begun and takes
        time."""
        while True:
            for machine in self.cluster.machines.values():
                if machine.wanted and not machine.is_running:
                    self.cluster.start_broker(machine.id)
            await asyncio.sleep(1.0)

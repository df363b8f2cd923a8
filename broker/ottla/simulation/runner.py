"""Runs of the simulation: a seed gives settings, workloads and faults; a failing run is shrunk to fewer
faults.

`simulate(seed)` is one run. `ottla.simulation.__main__` is the command: one seed with its timeline, or many
seeds on several cores with a summary.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from ottla.simulation.cluster import Cluster, Event, Violation
from ottla.simulation.faults import RATES, Fault, FaultInjector, plan, varied
from ottla.simulation.final_checks import check_files
from ottla.simulation.invariants import Monitor
from ottla.simulation.loop import Deadlock, Livelock, frozen, unheard
from ottla.simulation.workloads import Workload
from ottla.simulation.workloads.acks_one import AcksOne
from ottla.simulation.workloads.append import Append
from ottla.simulation.workloads.changes import Changes
from ottla.simulation.workloads.compaction import Compaction
from ottla.simulation.workloads.groups import Groups
from ottla.simulation.workloads.list_append import ListAppend
from ottla.simulation.workloads.old_formats import OldFormats
from ottla.simulation.workloads.quotas import Quotas
from ottla.simulation.workloads.raw_client import RawClient
from ottla.simulation.workloads.retention import Retention
from ottla.simulation.workloads.transactions import Transactions

BROKERS: Final = 3
BEGIN_S: Final = 3.0
WHOLE_AGAIN_S: Final = 90.0
"""Virtual time within which the cluster must be whole again after the last fault has ended."""
AGREED_S: Final = 30.0
"""Virtual time within which all brokers have the metadata of ZooKeeper, when there are no faults."""
DURABLE: Final = {"log.flush.interval.messages": "1"}
"""Settings with which each batch is synced, so that power may be lost everywhere."""


@dataclass(frozen=True)
class Plan:
    """What a run does besides what its seed decides."""

    seed: int
    seconds: float = 60.0
    rates: Mapping[str, float] = field(default_factory=lambda: RATES)
    faults: tuple[Fault, ...] | None = None
    """Instead of those that follow from the seed and the rates."""
    workloads: tuple[str, ...] = ()
    """Names of workloads, instead of those that the seed chooses."""
    available: Mapping[str, Callable[[], Workload]] = field(default_factory=lambda: WORKLOADS)


@dataclass(frozen=True)
class Result:
    """What came of a run."""

    seed: int
    violation: str
    """Empty if there was none."""
    trace: str
    faults: tuple[Fault, ...]
    timeline: tuple[Event, ...]
    virtual_s: float
    real_s: float
    frames: int

    @property
    def passed(self) -> bool:
        return not self.violation


def simulate(run: Plan) -> Result:
    """One run, in this thread."""
    with separate_run():
        return _simulate(run)


@contextmanager
def separate_run() -> Iterator[None]:
    """A run within this, whose objects are all local to a function, leaves nothing behind."""
    with frozen():
        try:
            yield
        finally:
            collect_killed()


def collect_killed() -> None:
    """After a run: the coroutines of killed processes run their `finally` blocks when they are collected.
    Here this has no effect."""
    with unheard():
        gc.collect()


def _simulate(run: Plan) -> Result:
    choices = random.Random(f"{run.seed} run")
    is_durable = choices.random() < 0.25
    cluster = Cluster(run.seed, brokers=BROKERS, settings=DURABLE if is_durable else {})
    faults = planned_faults(run) if run.faults is None else run.faults
    names = run.workloads or _choose_workloads(choices, list(run.available))
    workloads = [run.available[name]() for name in names]
    cluster.note(
        "simulation", f"seed {run.seed}: {', '.join(names)}; {len(faults)} faults; durable: {is_durable}"
    )
    scenario = run_workloads(cluster, faults, workloads, run.seconds, is_durable=is_durable)
    return execute(cluster, scenario, faults)


def execute(cluster: Cluster, scenario: Coroutine[Any, Any, None], faults: tuple[Fault, ...]) -> Result:
    """Run a scenario, and return what came of it."""
    began = time.perf_counter()
    violation = ""
    try:
        cluster.run(scenario)
    except (Violation, Deadlock, Livelock) as problem:
        violation = f"{type(problem).__name__}: {problem}"
    except Exception:
        violation = f"the simulation failed: {traceback.format_exc()}"
    return Result(
        cluster.seed,
        violation,
        cluster.trace,
        faults,
        tuple(cluster.timeline),
        cluster.loop.now,
        time.perf_counter() - began,
        cluster.frames,
    )


def planned_faults(run: Plan, brokers: int = BROKERS) -> tuple[Fault, ...]:
    """The faults that follow from the seed and the rates."""
    source = random.Random(f"{run.seed} faults")
    return tuple(plan(source, brokers, BEGIN_S, run.seconds, varied(source, run.rates)))


WORKLOADS: Final[Mapping[str, Callable[[], Workload]]] = {
    "acks-one": AcksOne,
    "append": Append,
    "changes": Changes,
    "compaction": Compaction,
    "groups": Groups,
    "list-append": ListAppend,
    "old-formats": OldFormats,
    "quotas": Quotas,
    "raw-client": RawClient,
    "retention": Retention,
    "transactions": Transactions,
}


def _choose_workloads(source: random.Random, names: list[str]) -> tuple[str, ...]:
    """One to three workloads at a time."""
    return tuple(source.sample(names, min(len(names), source.randint(1, 3))))


async def run_workloads(
    cluster: Cluster,
    faults: Sequence[Fault],
    workloads: Sequence[Workload],
    seconds: float,
    *,
    is_durable: bool,
    whole_again_s: float = WHOLE_AGAIN_S,
    on_faults_ended: Callable[[], None] = lambda: None,
) -> None:
    """Start a cluster, run workloads and faults, and wait until the cluster is whole. Raises Violation."""
    cluster.workloads = len(workloads)
    await cluster.start()
    for workload in workloads:
        await workload.prepare(cluster)
    monitor = Monitor(cluster)
    injector = FaultInjector(cluster, is_durable)

    async def work() -> None:
        for workload in workloads:
            await workload.run()
        await injector.run(list(faults))
        await asyncio.sleep(max(0.0, seconds - cluster.loop.now))
        injector.end()
        supervisor = asyncio.ensure_future(injector.supervise())
        on_faults_ended()
        await until_whole(cluster, whole_again_s)
        supervisor.cancel()
        for workload in workloads:
            await workload.finish()
        await _until_nothing(partial(_disagreeing, cluster), cluster, AGREED_S, "metadata agree")
        monitor.check()
        await check_files(cluster)
        monitor.check()

    await monitor.during(work())


async def until_whole(cluster: Cluster, whole_again_s: float = WHOLE_AGAIN_S) -> None:
    """Wait until every broker serves and every replica is in sync. Raises Violation."""
    await _until_nothing(partial(_lacking, cluster), cluster, whole_again_s, "liveness")
    cluster.note("simulation", "the cluster is whole")


async def _until_nothing(
    lacking: Callable[[], list[str]], cluster: Cluster, seconds: float, invariant: str
) -> None:
    """Wait until nothing is lacking. Raises Violation."""
    deadline = cluster.loop.now + seconds
    while found := lacking():
        if cluster.loop.now > deadline:
            raise Violation(f"{invariant}: after {seconds:.0f} s without faults: {'; '.join(found)}")
        await asyncio.sleep(0.25)


def _lacking(cluster: Cluster) -> list[str]:
    lacking = [
        f"{machine.host} does not serve"
        for machine in cluster.machines.values()
        if machine.wanted and (machine.is_stopping or not machine.is_serving)
    ]
    lacking += [
        f"{each.host} has a flipped bit" for each in cluster.machines.values() if each.has_flipped_bit
    ]
    topics = cluster.topics()
    states = dict(cluster.partition_states())
    for topic, assignment in topics.items():
        for partition, replicas in assignment.partitions.items():
            if assignment.adding.get(partition) or assignment.removing.get(partition):
                lacking.append(f"{topic}-{partition} is being reassigned: {assignment}")
            state = states.get((topic, partition))
            if state is None:
                lacking.append(f"{topic}-{partition} has no state")
            elif set(state.isr) != set(replicas) or state.leader not in replicas:
                lacking.append(f"{topic}-{partition} has leader {state.leader} and ISR {state.isr}")
    return lacking


def _disagreeing(cluster: Cluster) -> list[str]:
    """Where the metadata and the replicas of a broker differ from what ZooKeeper has."""
    topics, states = cluster.topics(), dict(cluster.partition_states())
    found = []
    for machine in cluster.machines.values():
        if not machine.wanted:
            continue
        if machine.broker is None or not machine.is_serving:
            found.append(f"{machine.host} does not serve")
            continue
        replication = machine.broker.replication
        cache, replicas = replication.cache, replication.replicas
        known = {name for name in cache.topics() if cache.partitions(name)}
        alive = {each.id for each in cluster.machines.values() if each.wanted}
        if cache.alive() != alive or known != set(topics):
            found.append(f"{machine.host} knows brokers {sorted(cache.alive())}, topics {sorted(known)}")
        for (topic, number), state in states.items():
            assigned = topics[topic].partitions[number]
            there = cache.partition(topic, number)
            wanted = (state.leader, state.leader_epoch, set(state.isr), assigned)
            if there is None or (there.leader, there.leader_epoch, set(there.isr), there.replicas) != wanted:
                found.append(f"{machine.host} knows {there}, and ZooKeeper has {state}")
            replica = replicas.find(topic, number)
            if (replica is not None) != (machine.id in assigned):
                found.append(f"{machine.host} has {replica!r}; the replicas are {assigned}")
            elif replica is not None and (
                (replica.leader_id, replica.leader_epoch, replica.replicas)
                != (state.leader, state.leader_epoch, assigned)
                or (replica.is_leader and set(replica.isr) != set(state.isr))
            ):
                found.append(f"{machine.host} has {replica!r} with ISR {sorted(replica.isr)}: {state}")
    return found


def outcome_of(run: Plan) -> tuple[int, str, str, float]:
    """Seed, violation, trace and virtual seconds of a run: what a soak keeps of it."""
    result = simulate(run)
    return result.seed, result.violation, result.trace, result.virtual_s


def shrink(
    run: Plan, result: Result, budget_s: float = 120.0, simulate: Callable[[Plan], Result] = simulate
) -> Result:
    """Remove faults as long as the run still fails in the same way; the smallest failing run."""
    kind = result.violation.split(":")[0:2]
    best = result

    def fails(faults: tuple[Fault, ...]) -> bool:
        nonlocal best
        attempt = simulate(replace(run, faults=faults))
        if attempt.passed or attempt.violation.split(":")[0:2] != kind:
            return False
        best = attempt
        return True

    remove_faults(result.faults, fails, budget_s)
    return best


def remove_faults(
    faults: tuple[Fault, ...], fails: Callable[[tuple[Fault, ...]], bool], budget_s: float
) -> tuple[Fault, ...]:
    """Remove faults, by halves and then singly, as long as the rest `fails` and the real time lasts."""
    deadline = time.perf_counter() + budget_s
    size = max(1, len(faults) // 2)
    while size >= 1 and time.perf_counter() < deadline:
        at, removed = 0, False
        while at < len(faults) and time.perf_counter() < deadline:
            fewer = faults[:at] + faults[at + size :]
            if fails(fewer):
                faults, removed = fewer, True
            else:
                at += size
        if not removed or size > 1:
            size = size // 2 if size > 1 else 0 if not removed else 1
    return faults

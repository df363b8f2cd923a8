"""Runs of the operator: what a user asks of it while faults and the append workload go on, and what must
hold.

`OperatorWorkload` is a workload of `ottla.simulation`: it has the operator start the brokers, changes the
resources, and at the end waits until the operator has converged. Checked, besides what `platform` checks: the
cluster is as asked, the operator converges within `CONVERGED_S` after the last fault, and reconciliations of
a converged cluster do nothing.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ottla.simulation.cluster import Cluster, Violation
from ottla.simulation.runner import (
    DURABLE,
    Plan,
    Result,
    execute,
    planned_faults,
    run_workloads,
    separate_run,
)
from ottla.simulation.workloads.append import Append
from ottla_operator.planning.revision import RESTART
from ottla_operator.reconcile import is_ready
from ottla_operator.resources import AnyResource
from ottla_operator.resources.common import (
    FENCE_ANNOTATION,
    HIBERNATE_ANNOTATION,
    REBALANCE_ANNOTATION,
    REMOVE_IDS_ANNOTATION,
    RESTART_ANNOTATION,
)
from ottla_operator.simulation.operator import Lifetime, SimulatedOperator
from ottla_operator.simulation.platform import SimulatedPlatform
from ottla_operator.simulation.rebalances import Answers, Rebalances, check_throttles
from ottla_operator.simulation.resources import SimulatedStore

CONVERGED_S: Final = 300.0
TOPIC: Final = "append"
PARTITIONS: Final = 3
SKEWED: Final = "skewed"
"""The topic whose partitions have very different loads."""
BROKERS_MAX: Final = 4
"""Faults hit these; those of brokers that do not exist have no effect."""


@dataclass(frozen=True)
class Pool:
    """A BrokerPool. `rack`: of all its brokers; `remove`: its annotation with the ids to remove."""

    replicas: int
    rack: str | None = None
    remove: str = ""


@dataclass(frozen=True)
class Change:
    """What a user changes, at a share of the run's time."""

    at: float
    replicas: int | None = None
    config: Mapping[str, str] | None = None
    factor: int | None = None
    annotations: Mapping[str, str] | None = None
    """All annotations of the BrokerCluster from now on."""
    pools: Mapping[str, Pool | None] = field(default_factory=dict)
    """BrokerPools that are applied; None: deleted."""


@dataclass(frozen=True)
class Scenario:
    """What a user does in a run."""

    changes: tuple[Change, ...]
    factor: int = 3
    """The topic's replication factor at first."""
    spec: Mapping[str, object] = field(default_factory=dict)
    """More of the BrokerCluster's spec."""
    replicas: int = 3
    """The brokers of the cluster's own pool at first."""
    pools: Mapping[str, Pool] = field(default_factory=dict)
    """The BrokerPools at first."""
    of_pools: tuple[int, ...] | None = ()
    """The brokers of BrokerPools at the end; None: any ids."""
    faulty: tuple[int, ...] = (0, 1, 2, 3)
    """The brokers that faults hit, as many as BROKERS_MAX."""
    by_load: bool = False
    """The brokers have skewed loads, and rebalances are judged."""
    answers: Answers = ""
    """What the user does about proposals."""


def _by_load(*changes: Change, mode: str, replicas: int = 4, answers: Answers = "") -> Scenario:
    rebalance = {"mode": mode, "window": "5s", "replicationThrottle": "100k", "concurrentPartitions": 3}
    spec = {"rebalance": rebalance}
    return Scenario(changes, spec=spec, replicas=replicas, by_load=True, answers=answers)


_TRANSITIONAL: Final = frozenset({"Rolling", "Scaling", "ReplicasChanging"})
"""Conditions that are False in a converged state; all others are True."""
_SETTING: Final = "replica.fetch.wait.max.ms"
_THREADS: Final = "num.recovery.threads.per.data.dir"
"""Changes without a restart, in several steps."""
SCENARIOS: Final = {
    "scale": Scenario((Change(0.15, replicas=4), Change(0.55, replicas=3))),
    "roll": Scenario((Change(0.15, config={_SETTING: "400"}),)),
    "factor": Scenario((Change(0.15, factor=3),), factor=2),
    "rebalance": Scenario((Change(0.15, replicas=4),)),
    "rolls": Scenario(tuple(Change(share / 8, config={_SETTING: str(400 + share)}) for share in range(1, 7))),
    "scale and roll": Scenario((Change(0.1, replicas=4), Change(0.3, replicas=3, config={_SETTING: "400"}))),
    "factor and roll": Scenario((Change(0.1, factor=3), Change(0.2, config={_SETTING: "400"})), factor=2),
    "hibernate": Scenario(
        (Change(0.15, annotations={HIBERNATE_ANNOTATION: "true"}), Change(0.5, annotations={}))
    ),
    "hibernate and roll": Scenario(
        (
            Change(0.1, annotations={HIBERNATE_ANNOTATION: "true"}, config={_SETTING: "400"}),
            Change(0.3, annotations={}, replicas=4),
            Change(0.6, replicas=3),
        )
    ),
    "fence": Scenario((Change(0.15, annotations={FENCE_ANNOTATION: "1"}), Change(0.5, annotations={}))),
    "fence and roll": Scenario(
        (
            Change(0.1, annotations={FENCE_ANNOTATION: "2"}),
            Change(0.3, config={_SETTING: "400"}),
            Change(0.5, annotations={FENCE_ANNOTATION: "0"}),
            Change(0.7, annotations={}),
        )
    ),
    "threads": Scenario((Change(0.15, config={_THREADS: "9"}), Change(0.5, config={_THREADS: "1"}))),
    "restart": Scenario((Change(0.15, annotations={RESTART_ANNOTATION: "one"}), Change(0.6, annotations={}))),
    "throttled": Scenario(
        (Change(0.15, replicas=4), Change(0.6, replicas=3)),
        spec={"rebalance": {"replicationThrottle": "20k"}},
    ),
    "pool": Scenario(
        (Change(0.15, pools={"a": Pool(2)}), Change(0.55, pools={"a": Pool(1)})),
        of_pools=(1000,),
        faulty=(0, 1, 1000, 1001),
    ),
    "any broker leaves": Scenario(
        (Change(0.15, pools={"a": Pool(2, remove="[1001]")}), Change(0.55, replicas=2)),
        pools={"a": Pool(3)},
        of_pools=(1000, 1002),
        faulty=(0, 1000, 1001, 1002),
    ),
    "pool to pool": Scenario(
        (Change(0.2, pools={"a": Pool(0), "b": Pool(3)}),),
        replicas=0,
        pools={"a": Pool(3)},
        of_pools=(1003, 1004, 1005),
        faulty=(1000, 1001, 1003, 1004),
    ),
    "own pool to pool": Scenario(
        (Change(0.2, replicas=0, pools={"a": Pool(3)}),),
        of_pools=(1000, 1001, 1002),
        faulty=(0, 2, 1000, 1001),
    ),
    "pool deleted": Scenario(
        (Change(0.1, pools={"a": Pool(2)}), Change(0.5, pools={"a": None})), faulty=(0, 1, 1000, 1001)
    ),
    "pool deleted and again": Scenario(
        (
            Change(0.1, pools={"a": None}),
            Change(0.2, pools={"b": Pool(1), "a": Pool(1)}),
            Change(0.6, pools={"b": None}),
        ),
        pools={"a": Pool(2)},
        of_pools=None,
        faulty=(0, 1, 1000, 1001),
    ),
    "pool and roll": Scenario(
        (
            Change(0.1, pools={"a": Pool(2, rack="x")}),
            Change(0.3, pools={"a": Pool(2, rack="y")}, config={_SETTING: "400"}),
            Change(0.6, pools={"a": Pool(1, rack="y", remove="[1000]")}),
        ),
        of_pools=(1001,),
        faulty=(0, 1, 1000, 1001),
    ),
    "load": _by_load(mode="Auto"),
    "load and scale": _by_load(Change(0.2, replicas=4), Change(0.6, replicas=3), mode="Auto", replicas=3),
    "load and roll": _by_load(
        Change(0.15, replicas=4), Change(0.3, config={_SETTING: "400"}), mode="Auto", replicas=3
    ),
    "load approved": _by_load(mode="OnApproval", answers="approves"),
    "load cancelled": _by_load(mode="OnApproval", answers="cancels"),
    "load approved and scale": _by_load(
        Change(0.15, replicas=4), Change(0.5, replicas=3), mode="OnApproval", replicas=3, answers="cancels"
    ),
}


class OperatorWorkload:
    """See the module."""

    def __init__(
        self, scenario: Scenario, seconds: float, lifetime: Lifetime, *, restarts: bool, faultless: bool
    ) -> None:
        self._scenario = scenario
        self._seconds = seconds
        self._lifetime = lifetime
        self._restarts = restarts
        self._faultless = faultless
        self._replicas, self._factor = scenario.replicas, scenario.factor
        self._pools: dict[str, Pool] = {}
        self._config: dict[str, str] = {}
        self._annotations: Mapping[str, str] = {}
        self._rebalance = ""
        self._rebalances: Rebalances | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def prepare(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._store = SimulatedStore()
        self._platform = SimulatedPlatform(cluster, restarts=self._restarts)
        self.operator = SimulatedOperator(cluster, self._platform, self._store)
        self._tasks.append(cluster.loop.create_task(self._platform.watch()))
        self.operator.loads_at_once = True
        self._apply_cluster()
        self._apply_pools(self._scenario.pools)
        self.operator.start()
        await self._converge(lambda: len(cluster.machines) == self._brokers())

    def _apply_cluster(self) -> None:
        delete = self._cluster.random("volumes").random() < 0.5
        spec: dict[str, object] = {
            "replicas": self._replicas,
            "config": self._config,
            "storage": {"deleteClaim": delete},
            **self._scenario.spec,
        }
        answer = {REBALANCE_ANNOTATION: self._rebalance} if self._rebalance else {}
        self._store.apply("BrokerCluster", "demo", spec, {**self._annotations, **answer})

    def _apply_pools(self, pools: Mapping[str, Pool | None]) -> None:
        for name, pool in pools.items():
            if pool is None:
                self._pools.pop(name)
                self._store.delete("BrokerPool", name)
                continue
            self._pools[name] = pool
            delete = self._cluster.random("volumes").random() < 0.5
            spec: dict[str, object] = {
                "clusterRef": {"name": "demo"},
                "replicas": pool.replicas,
                "storage": {"deleteClaim": delete},
                **({} if pool.rack is None else {"rack": pool.rack}),
            }
            annotations = {REMOVE_IDS_ANNOTATION: pool.remove} if pool.remove else {}
            self._store.apply("BrokerPool", name, spec, annotations)

    def _brokers(self) -> int:
        """How many brokers are asked for."""
        return self._replicas + sum(pool.replicas for pool in self._pools.values())

    def _apply_topic(self) -> None:
        spec = {
            "clusterRef": {"name": "demo"},
            "partitions": PARTITIONS,
            "replicas": self._factor,
            "adopt": True,
        }
        self._store.apply("Topic", TOPIC, spec)
        if self._scenario.by_load:
            skewed = {"clusterRef": {"name": "demo"}, "partitions": 8, "replicas": self._factor}
            self._store.apply("Topic", SKEWED, skewed)

    def _annotate(self, rebalance: str) -> None:
        """Answer a proposal of the operator."""
        self._cluster.note("user", rebalance)
        self._rebalance = rebalance
        self._apply_cluster()

    async def run(self) -> None:
        self._apply_topic()
        if self._scenario.by_load:
            self.operator.loads_at_once = self._cluster.random("loads").random() < 0.5
            self._rebalances = Rebalances(
                self._cluster,
                self._store,
                self._scenario.answers,
                self._annotate,
                self._platform.below_min_isr,
                faultless=self._faultless,
            )
            for work in (self._rebalances.watch(), self._rebalances.answer()):
                task = self._cluster.loop.create_task(work)
                task.add_done_callback(self._cluster.watch)
                self._tasks.append(task)
        self.operator.lifetime = self._lifetime
        self.operator.kill()
        self._tasks.append(self._cluster.loop.create_task(self._change()))

    async def _change(self) -> None:
        for change in self._scenario.changes:
            await asyncio.sleep(max(0.0, change.at * self._seconds - self._cluster.loop.now))
            self._cluster.note("user", f"asks for {change}")
            self._config.update(change.config or {})
            if change.annotations is not None:
                self._annotations = change.annotations
            self._apply_pools(change.pools)
            if change.factor is None:
                self._replicas = self._replicas if change.replicas is None else change.replicas
                self._apply_cluster()
            else:
                self._factor = change.factor
                self._apply_topic()

    async def finish(self) -> None:
        await self._converge(lambda: self._rebalances is None or self._rebalances.done)
        self._check()
        await self._check_idle()
        cluster = self._cluster
        for task in self._tasks:
            task.cancel()
        cluster.note(
            "simulation",
            f"operator: {self.operator.processes} processes, {self.operator.reconciles} reconciliations",
        )

    async def _converge(self, holds: Callable[[], bool]) -> None:
        """Wait for a reconciliation that does nothing, begun from now on, with all resources Ready."""
        began_s = self._cluster.loop.now
        while True:
            result = self.operator.result
            if (
                result is not None
                and self.operator.began_s >= began_s
                and result.idle
                and all(_is_converged(resource) for resource in self._store.stored.values())
                and holds()
            ):
                return
            if self._cluster.loop.now > began_s + CONVERGED_S:
                raise Violation(f"the operator converges: not within {CONVERGED_S:.0f} s: {self._state()}")
            await asyncio.sleep(0.5)

    def _state(self) -> str:
        """The conditions of the resources, and the last steps."""
        found = [
            f"{key}: {condition.type} {condition.status} {condition.reason} {condition.message}"
            for key, resource in self._store.stored.items()
            for condition in resource.status.conditions
        ]
        steps = self.operator.result.steps if self.operator.result is not None else []
        return "; ".join([*found, f"last steps: {steps}"])

    def _check(self) -> None:
        cluster = self._cluster
        of_pools = self._scenario.of_pools
        if of_pools is None:
            of_pools = tuple(b for b, pod in sorted(self._platform.pods.items()) if pod.pool)
        brokers = [*range(self._replicas), *of_pools]
        if len(brokers) != self._brokers():
            raise Violation(f"the cluster is as asked: brokers {brokers}, not {self._brokers()}")
        if sorted(cluster.machines) != brokers:
            raise Violation(f"the cluster is as asked: brokers {sorted(cluster.machines)}, not {brokers}")
        for machine in cluster.machines.values():
            settings = {**machine.settings, **self._dynamic()}
            differing = {n: v for n, v in self._config.items() if settings.get(n) != v}
            pool = self._pools.get(self._platform.pods[machine.id].pool)
            if (None if pool is None else pool.rack) != settings.get("broker.rack"):
                raise Violation(f"the cluster is as asked: {machine.host} is in another rack than {pool}")
            if differing:
                raise Violation(f"the cluster is as asked: {machine.host} runs without {differing}")
        # A request that is removed soon may not have been seen.
        restarts = {pod.launch.static.get(RESTART, "") for pod in self._platform.pods.values()}
        requested = self._annotations.get(RESTART_ANNOTATION, "")
        if len(restarts) > 1 or (requested and restarts != {requested}):
            raise Violation(f"the cluster is as asked: {restarts} of brokers, {requested!r} requested")
        replicas = cluster.topics()[TOPIC].partitions
        if any(len(each) != self._factor for each in replicas.values()):
            raise Violation(f"the cluster is as asked: {TOPIC} has {replicas}, not {self._factor} replicas")
        holding = {
            each for topic in cluster.topics().values() for r in topic.partitions.values() for each in r
        }
        if holding != set(brokers):
            raise Violation(f"the cluster is as asked: brokers {sorted(holding)} hold replicas, of {brokers}")
        check_throttles(cluster)
        if self._rebalances is not None:
            self._rebalances.check()

    def _dynamic(self) -> Mapping[str, str]:
        """The settings of all brokers in ZooKeeper."""
        node = self._cluster.ensemble.tree.find("/config/brokers/<default>")
        stored = json.loads(node.data)["config"] if node is not None and node.data else {}
        return {name: str(value) for name, value in stored.items()}

    async def _check_idle(self) -> None:
        """Reconciliations of a converged cluster do nothing, by this operator and by another one."""
        for _ in range(2):
            reconciles, writes = self.operator.reconciles, self._store.writes
            self._store.changed.set()
            await asyncio.sleep(5.0)
            result = self.operator.result
            assert result is not None
            if self.operator.reconciles == reconciles:
                raise Violation("the operator reconciles when a resource changes")
            if result.steps or self._store.writes != writes:
                raise Violation(
                    f"a converged cluster stays as it is: the operator executed {result.steps} and wrote "
                    f"{self._store.writes - writes} statuses"
                )
            self.operator.kill()
            await self._converge(lambda: True)


def _is_converged(resource: AnyResource) -> bool:
    """Whether the resource is Ready, and nothing else about it is expected to change."""
    return is_ready(resource) and all(
        condition.status == ("False" if condition.type in _TRANSITIONAL else "True")
        for condition in resource.status.conditions
    )


def one_await_more(process: int) -> int:
    """Each process is killed one await later than the one before: at each step of a reconciliation."""
    return process


def later_steps(process: int) -> int:
    """Each process gets through about one reconciliation, and is killed at another await than the others."""
    return 40 + 7 * process % 130


def lifetimes(source: random.Random) -> Lifetime:
    """Operators that are killed after few or many awaits, or live for long."""
    longest = source.choice((10, 40, 150))

    def lifetime(process: int) -> int | None:
        return source.randint(1, longest) if source.random() < 0.8 else 1000

    return lifetime


def simulate(run: Plan, lifetime: Lifetime | None = None) -> Result:
    """One run, in this thread. The plan's workloads are names of scenarios; `lifetime`: instead of what the
    seed chooses."""
    with separate_run():
        return _simulate(run, lifetime)


def _simulate(run: Plan, lifetime: Lifetime | None) -> Result:
    choices = random.Random(f"{run.seed} operator run")
    chosen = choices.choice(run.workloads or tuple(SCENARIOS))
    scenario = SCENARIOS[chosen]
    is_durable = choices.random() < 0.25
    cluster = Cluster(run.seed, brokers=0, settings=DURABLE if is_durable else {})
    planned = planned_faults(run, BROKERS_MAX)
    hitting = tuple(replace(fault, broker=scenario.faulty[fault.broker]) for fault in planned)
    faults = hitting if run.faults is None else run.faults
    lifetime = lifetime or lifetimes(cluster.random("lifetimes"))
    operator = OperatorWorkload(
        scenario, run.seconds, lifetime, restarts=choices.random() < 0.5, faultless=not faults
    )
    append = Append(topic=TOPIC, partitions=PARTITIONS, replication_factor=scenario.factor, rate=20.0)
    cluster.note("simulation", f"seed {run.seed}: {chosen}; {len(faults)} faults; durable: {is_durable}")
    work = run_workloads(
        cluster,
        faults,
        [operator, append],
        run.seconds,
        is_durable=is_durable,
        whole_again_s=CONVERGED_S,
        on_faults_ended=lambda: operator.operator.stop_kills(),
    )
    return execute(cluster, work, faults)


def outcome_of(run: Plan) -> tuple[int, str, str, float]:
    """One run for a worker process: seed, violation, trace and virtual seconds."""
    result = simulate(run)
    return result.seed, result.violation, result.trace, result.virtual_s

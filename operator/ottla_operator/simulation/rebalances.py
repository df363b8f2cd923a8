"""Rebalances by load in the simulation: the loads, the user who answers proposals, and what must hold.

The load of a partition follows from its number, so that a few partitions are much heavier than the others.
Checked: a rebalance that ends as Completed has moved each partition as proposed; one that is cancelled leaves
each partition at its old or its new replicas; while one goes on without faults, no partition is below its
min.insync.replicas; at the end the goals are met where the status says so, and no throttle is left.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection
from typing import Final, Literal

from ottla.simulation.cluster import Cluster, Violation
from ottla_operator.planning.load_model import BrokerCapacity, LoadModel
from ottla_operator.planning.observed import ClusterLoad, KafkaState, PartitionKey, PartitionLoad
from ottla_operator.planning.placement import Changes
from ottla_operator.planning.rebalance import judge
from ottla_operator.planning.rebalance_goals import Goal
from ottla_operator.planning.rebalance_run import moves_of, thresholds_of
from ottla_operator.planning.throttle import RATES
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.rebalance import RebalanceStatus
from ottla_operator.resources.settings import THROTTLED_REPLICAS
from ottla_operator.simulation.resources import LATENCY_S, SimulatedStore

Answers = Literal["", "approves", "cancels"]
"""What the user does about proposals: nothing; approves each of them; cancels some first."""

_DISK: Final = 10**12
_FRESH_MS: Final = 2000
_POLL_S: Final = 0.1
_CANCELLED_MAX: Final = 2


def load_of(key: PartitionKey) -> PartitionLoad:
    """Partition n has (n + 1)² times the load of the first one."""
    weight = (key[1] + 1) ** 2
    return PartitionLoad(1e6 * weight, 2e6 * weight, 10**9 * weight)


class SimulatedLoads:
    """The interface `Loads` of one process of the operator. `at_once`: the window has passed when it starts;
    else, as in reality, loads are in its memory."""

    def __init__(self, cluster: Cluster, *, at_once: bool) -> None:
        self._clock = cluster.clock
        self._began_ms = 0 if at_once else cluster.clock.wall_ms()
        self._measured_ms = 0

    async def observe(
        self, brokers: Collection[int], kafka: KafkaState, now_ms: int, window_ms: int
    ) -> ClusterLoad:
        await asyncio.sleep(LATENCY_S)
        missing = sorted(kafka.brokers - set(brokers))
        if missing:
            return ClusterLoad(problem=f"the metrics of broker {missing[0]}: no answer")
        fresh = now_ms - self._measured_ms >= _FRESH_MS
        if fresh:
            self._measured_ms = now_ms
        loads = {partition.key: load_of(partition.key) for partition in kafka.partitions()}
        disks = dict.fromkeys(brokers, _DISK)
        return ClusterLoad(loads, disks, now_ms - self._began_ms, fresh=fresh)


class Rebalances:
    """See the module. `faultless`: the run has no faults besides the deaths of the operator."""

    def __init__(
        self,
        cluster: Cluster,
        store: SimulatedStore,
        answers: Answers,
        annotate: Callable[[str], None],
        below_min_isr: Callable[[], str],
        *,
        faultless: bool,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._answers = answers
        self._annotate = annotate
        self._faultless = faultless
        self._below_min_isr = below_min_isr
        self._random = cluster.random("rebalances")
        self._moves: Changes = {}
        self._before: Changes = {}
        self._running = self._answered = ""
        self._cancelled = 0
        self.results: list[str] = []
        """Of the rebalances that have ended."""

    def _status(self) -> RebalanceStatus | None:
        resource = self._store.stored["BrokerCluster/demo"]
        assert isinstance(resource, BrokerCluster)
        return resource.status.rebalance

    def _replicas(self) -> Changes:
        return {
            (name, number): tuple(replicas)
            for name, topic in self._cluster.topics().items()
            for number, replicas in topic.partitions.items()
        }

    async def watch(self) -> None:
        """Follow the rebalances and judge them, until cancelled."""
        while True:
            status = self._status()
            if status is not None:
                self._follow(status)
            await asyncio.sleep(_POLL_S)

    def _follow(self, status: RebalanceStatus) -> None:
        last = status.last
        if self._running and last is not None and last.id == self._running:
            self._running = ""
            self.results.append(last.result)
            self._judge(last.result, last.id)
        if status.progress is None or status.proposal is None:
            return
        if self._running != status.proposal.id:
            self._running = status.proposal.id
            self._moves, self._before = moves_of(status.proposal), self._replicas()
        problem = self._below_min_isr() if self._faultless else ""
        if problem:
            raise Violation(f"a rebalance keeps min.insync.replicas: {problem}")

    def _judge(self, result: str, id_: str) -> None:
        now = self._replicas()
        for key, proposed in self._moves.items():
            if now[key] == proposed or (result != "Completed" and set(now[key]) == set(self._before[key])):
                continue
            raise Violation(
                f"a rebalance moves what it proposed: {id_} is {result}, and {key[0]}-{key[1]} was on "
                f"{self._before[key]}, was to be on {proposed} and is on {now[key]}"
            )

    async def answer(self) -> None:
        """Approve or cancel each proposal some time after it was made, until cancelled."""
        while self._answers:
            await asyncio.sleep(_POLL_S)
            status = self._status()
            proposal = status.proposal if status is not None else None
            if proposal is None or proposal.id == self._answered:
                continue
            self._answered = proposal.id
            await asyncio.sleep(2 * self._random.random())
            cancels = self._answers == "cancels" and self._cancelled < _CANCELLED_MAX
            if not cancels or self._random.random() < 0.7:
                self._annotate(f"approve:{proposal.id}")
                await asyncio.sleep(3 * self._random.random())
            if cancels:
                self._cancelled += 1
                self._annotate(f"cancel:{proposal.id}")

    @property
    def done(self) -> bool:
        """Whether one rebalance has been completed, and none goes on."""
        return "Completed" in self.results and not self._running

    def check(self) -> None:
        """What must hold at the end, when the operator has converged."""
        resource, status = self._store.stored["BrokerCluster/demo"], self._status()
        assert isinstance(resource, BrokerCluster)
        if status is None or status.phase != "Balanced" or status.message:
            return
        spec, model = resource.spec.rebalance, self._model()
        unmet = [each.goal for each in judge(model, list(Goal), thresholds_of(spec)) if not each.met]
        if unmet:
            raise Violation(f"a balanced cluster meets its goals: {unmet} are not met by {self._replicas()}")

    def _model(self) -> LoadModel:
        replicas = self._replicas()
        brokers = {
            machine.id: BrokerCapacity(rack=machine.settings.get("broker.rack"), disk=_DISK)
            for machine in self._cluster.machines.values()
        }
        return LoadModel(replicas, {key: load_of(key) for key in replicas}, brokers)


def check_throttles(cluster: Cluster) -> None:
    """No replication throttle is left by the operator."""
    tree = cluster.ensemble.tree
    nodes = {"/config/brokers/<default>": RATES}
    nodes |= {f"/config/topics/{topic}": THROTTLED_REPLICAS for topic in cluster.topics()}
    for path, names in nodes.items():
        node = tree.find(path)
        stored = json.loads(node.data)["config"] if node is not None and node.data else {}
        left = {name: stored[name] for name in names if stored.get(name)}
        if left:
            raise Violation(f"throttles are removed after the last move: {path} has {left}")

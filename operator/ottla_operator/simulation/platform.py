"""The `Platform` of a simulated cluster: brokers are machines, volumes are their disks.

It outlives the operator, as a kubelet and the API server do: it starts a broker again that has ended by
itself, and (with `restarts`) one that was stopped for a restart. It also judges the operator: a stop, a
removal or a launch that must not happen is a Violation. The operator acts on what it has observed, which may
be outdated while faults go on; so an action is wrong only if it was wrong all the time since a little before
its reconciliation has begun.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.simulation.cluster import PORT, Cluster, Machine, Violation
from ottla.simulation.disk import SimulatedDisk
from ottla.simulation.ensemble import HOST
from ottla_operator.planning.fencing import fenced_brokers
from ottla_operator.planning.observed import BrokerInstance, BrokerRunState, ZooKeeperState
from ottla_operator.planning.revision import PerBroker
from ottla_operator.platform.interfaces import Address, BrokerLaunch, Ensured, StepFailed
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.cluster import PoolBrokers
from ottla_operator.resources.cluster_status import ListenerStatus
from ottla_operator.resources.pool import FIRST_ID
from ottla_operator.simulation.resources import LATENCY_S

GRACE_S: Final = 60.0
"""How long a controlled shutdown may take before the process is killed."""
OUTDATED_S: Final = 0.5
"""What the controller describes may have been true so long ago at most."""
WATCH_S: Final = 0.25
STABLE_MS: Final = 60_000
"""After so long a broker that is ready has recovered from its crashes."""


@dataclass(slots=True)
class Pod:
    """A broker as the platform keeps it."""

    launch: BrokerLaunch
    started_at_ms: int
    pool: str = ""
    delete_volume: bool = False
    stopping: bool = False
    """The operator has asked for its stop."""
    after: BrokerLaunch | None = None
    returning: bool = False
    """The operator has stopped it for a restart, and it has not served since."""
    starts: int = 0
    """Those of the machine that are counted in `crashes`."""
    crashes: int = 0
    ready_since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class _Partition:
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    min_isr: int


_Truth = dict[tuple[str, int], _Partition]


class SimulatedPlatform:
    """See the module. `restarts`: it starts a broker again with its next launch, as Kubernetes does."""

    def __init__(self, cluster: Cluster, *, restarts: bool) -> None:
        self._cluster = cluster
        self._restarts = restarts
        self.pods: dict[int, Pod] = {}
        self._volumes: dict[int, SimulatedDisk] = {}
        """Of removed brokers."""
        self._pools_of_volumes: dict[int, str] = {}
        self._truths: deque[tuple[float, _Truth]] = deque()
        self._observed_s = 0.0
        self._rests = False
        self._random = cluster.random("platform")

    # --- what runs without the operator ---

    async def watch(self) -> None:
        """Remember what was true, and follow the brokers' states, until cancelled."""
        while True:
            self._remember()
            for broker, pod in self.pods.items():
                self._follow(self._cluster.machines[broker], pod)
            await asyncio.sleep(WATCH_S)

    def _follow(self, machine: Machine, pod: Pod) -> None:
        now_ms = self._cluster.clock.wall_ms()
        if machine.starts > pod.starts:
            pod.crashes += machine.starts - pod.starts - (1 if pod.starts == 0 else 0)
            pod.starts = machine.starts
        process = machine.process
        if machine.is_serving and process is not None and process.runs:
            pod.returning = pod.returning and pod.stopping
            if pod.ready_since_ms is None:
                pod.ready_since_ms = now_ms
            elif now_ms - pod.ready_since_ms > STABLE_MS:
                pod.crashes = 0
        else:
            pod.ready_since_ms = None

    def _remember(self) -> None:
        now = self._cluster.loop.now
        self._truths.append((now, self._truth()))
        while self._truths[0][0] < min(self._observed_s, now) - OUTDATED_S:
            self._truths.popleft()

    def _truth(self) -> _Truth:
        cluster = self._cluster
        topics = cluster.topics()
        return {
            key: _Partition(topics[key[0]].partitions[key[1]], state.isr, self._min_isr(key[0]))
            for key, state in cluster.partition_states()
        }

    def _min_isr(self, topic: str) -> int:
        node = self._cluster.ensemble.tree.find(f"/config/topics/{topic}")
        config = json.loads(node.data)["config"] if node is not None and node.data else {}
        return int(config.get("min.insync.replicas", self._cluster.settings["min.insync.replicas"]))

    def below_min_isr(self) -> str:
        """A partition that has fewer replicas in sync than its min.insync.replicas, or ""."""
        for (topic, number), partition in self._truth().items():
            if len(partition.isr) < min(partition.min_isr, len(partition.replicas)):
                return f"{topic}-{number} has ISR {partition.isr} of {partition.replicas}"
        return ""

    def _in_simulation(self, work: Callable[[], None]) -> None:
        self._cluster.network.context.copy().run(work)

    # --- the interface ---

    async def observe(self, cluster: BrokerCluster) -> tuple[ZooKeeperState, dict[int, BrokerInstance]]:
        self._observed_s = self._cluster.loop.now
        await asyncio.sleep(LATENCY_S)
        found = {broker: self._instance(broker, pod) for broker, pod in sorted(self.pods.items())}
        return ZooKeeperState(not self._rests, HOST), found

    def _instance(self, broker: int, pod: Pod) -> BrokerInstance:
        machine = self._cluster.machines[broker]
        self._follow(machine, pod)
        state: BrokerRunState
        if pod.stopping:
            state = "Stopping" if machine.is_running else "Stopped"
        elif not machine.is_running:
            state = "Crashed"
        else:
            state = "Running" if machine.is_serving else "Starting"
        return BrokerInstance(
            id=broker,
            state=state,
            ready=state == "Running" and pod.ready_since_ms is not None,
            config_hash=pod.launch.config_hash,
            settings=pod.launch.static,
            ready_since_ms=pod.ready_since_ms,
            started_at_ms=pod.started_at_ms,
            crashes=pod.crashes,
            rack=pod.launch.static.get("broker.rack"),
            pool=pod.pool,
            delete_volume=pod.delete_volume,
            name=machine.host,
        )

    def kept_volumes(self) -> Mapping[int, str]:
        return {b: pool for b, pool in self._pools_of_volumes.items() if b >= FIRST_ID}

    def addresses(self, cluster: BrokerCluster, brokers: Collection[int]) -> Sequence[Address]:
        return [(f"broker-{broker}", PORT) for broker in sorted(brokers)]

    def bootstrap(self, cluster: BrokerCluster) -> str:
        return ",".join(f"broker-{broker}:{PORT}" for broker in cluster.broker_ids)

    def listeners(self, cluster: BrokerCluster) -> Sequence[ListenerStatus]:
        return ()

    def traits(self, cluster: BrokerCluster) -> Mapping[str, str]:
        return {}

    def restart_request(self) -> str:
        return ""

    async def ensure_children(
        self,
        cluster: BrokerCluster,
        launches: PerBroker[BrokerLaunch],
        *,
        under_replicated: bool,
        hold_servers: bool = False,
    ) -> Ensured:
        return Ensured()

    async def ensure_zookeeper(self, cluster: BrokerCluster) -> None:
        self._rests = False

    async def stop_zookeeper(self, cluster: BrokerCluster) -> None:
        if cluster.hibernates and not any(machine.is_running for machine in self._cluster.machines.values()):
            self._rests = True
        else:
            self._accuse("the operator stops ZooKeeper of a cluster that is neither deleted nor hibernates")

    async def start_broker(self, cluster: BrokerCluster, broker: int, launch: BrokerLaunch | None) -> None:
        await asyncio.sleep(LATENCY_S)
        pool = cluster.pool_of(broker)
        self._in_simulation(lambda: self._start(broker, launch, pool))
        await asyncio.sleep(LATENCY_S)

    def _start(self, broker: int, launch: BrokerLaunch | None, pool: PoolBrokers | None = None) -> None:
        cluster, pod = self._cluster, self.pods.get(broker)
        now_ms = cluster.clock.wall_ms()
        if pod is None:
            assert launch is not None, f"broker {broker} has no previous launch configuration"
            assert (pool is None) == (broker < FIRST_ID), f"broker {broker} is started for {pool}"
            self.pods[broker] = Pod(launch, now_ms)
            owner = self._pools_of_volumes.pop(broker, None)
            if owner is not None and pool is not None and owner != pool.name:
                self._accuse(f"broker {broker} of pool {pool.name} gets the volume of pool {owner}")
            if pool is not None:
                self.pods[broker].pool = pool.name
                self.pods[broker].delete_volume = pool.spec.storage.delete_claim
            cluster.add_broker(broker, launch.properties, self._volumes.pop(broker, None))
            return
        machine = cluster.machines[broker]
        if machine.is_running:
            return
        if launch is not None and launch != pod.launch:
            pod.launch, pod.crashes = launch, 0
        machine.settings = pod.launch.properties
        if pod.stopping:
            pod.stopping, pod.after, pod.started_at_ms = False, None, now_ms
            machine.wanted = True
            cluster.start_broker(broker)
            if self._random.random() < 0.4:
                self._hold_back(broker)
        # Otherwise it has crashed, and is started again in any case when its back-off ends.

    def _hold_back(self, broker: int) -> None:
        """Have a broker that was restarted catch up late with one of the others: it is ready before it is in
        the ISRs."""
        cluster = self._cluster
        others = [each.host for each in cluster.machines.values() if each.id != broker]
        if not others:
            return
        other = self._random.choice(others)
        cluster.note("network", f"cut broker-{broker} <-> {other}", is_fault=True)
        restore = cluster.isolate([f"broker-{broker}"], [other])
        cluster.loop.call_later(1.0 + 5.0 * self._random.random(), restore)

    async def stop_broker(
        self, cluster: BrokerCluster, broker: int, after: BrokerLaunch | None = None
    ) -> None:
        await asyncio.sleep(LATENCY_S)
        fenced, _ = fenced_brokers(cluster.metadata.annotations, cluster.broker_ids)
        if broker in fenced:
            after = None
        self._in_simulation(lambda: self._begin_stop(broker, after, fenced, hibernates=cluster.hibernates))
        await asyncio.sleep(LATENCY_S)

    def _begin_stop(
        self, broker: int, after: BrokerLaunch | None, fenced: Collection[int], *, hibernates: bool
    ) -> None:
        pod, machine = self.pods[broker], self._cluster.machines[broker]
        if pod.stopping:
            return
        if not hibernates:
            self._check_stop(broker, fenced)
        pod.stopping, pod.returning, pod.after = True, after is not None, after
        machine.wanted = False
        self._cluster.loop.create_task(self._stop(machine, pod), context=self._cluster.network.context.copy())

    async def _stop(self, machine: Machine, pod: Pod) -> None:
        cluster, process = self._cluster, machine.process

        def kill() -> None:
            if process is not None and process.alive and machine.process is process:
                cluster.kill(machine.id)

        timer = cluster.loop.call_later(GRACE_S, kill)
        await cluster.stop_broker(machine.id)
        timer.cancel()
        # A broker that was starting is not told to stop.
        kill()
        if self._restarts and pod.after is not None and pod.stopping:
            self._start(machine.id, pod.after)

    async def remove_broker(self, cluster: BrokerCluster, broker: int, *, delete_volume: bool) -> None:
        await asyncio.sleep(LATENCY_S)
        self._in_simulation(lambda: self._remove(broker, delete_volume))
        await asyncio.sleep(LATENCY_S)

    def _remove(self, broker: int, delete_volume: bool) -> None:
        machine = self._cluster.machines.get(broker)
        if machine is None:
            return
        if machine.is_running:
            raise StepFailed("StillRunning", f"broker {broker} is still running")
        self._judge(
            f"broker {broker} is removed",
            lambda truth: [
                f"it has a replica of {topic}-{number}"
                for (topic, number), partition in truth.items()
                if broker in partition.replicas
            ],
        )
        self._cluster.remove_broker(broker)
        pool = self.pods.pop(broker).pool
        if not delete_volume:
            self._volumes[broker], self._pools_of_volumes[broker] = machine.disk, pool

    async def replace_broker(self, cluster: BrokerCluster, broker: int) -> None:
        raise StepFailed("NotSupported", f"broker {broker}: volumes are not replaced")

    # --- judging the operator ---

    def _check_stop(self, broker: int, fenced: Collection[int]) -> None:
        going = {other for other, pod in self.pods.items() if pod.stopping or pod.returning}
        going -= {broker, *fenced}
        if going:
            self._accuse(
                f"the operator stops one broker at a time: it stops {broker} while brokers {sorted(going)} "
                f"are not back"
            )

        if self._cluster.ensemble.tree.find(f"/brokers/ids/{broker}") is None:
            return  # it is not registered and leads nothing: its restart makes nothing unavailable

        def wrong(truth: _Truth) -> list[str]:
            return [
                f"{topic}-{number} has ISR {partition.isr} and min.insync.replicas {partition.min_isr}"
                for (topic, number), partition in truth.items()
                if broker in partition.isr
                and len(partition.replicas) > partition.min_isr
                and len(partition.isr) - 1 < partition.min_isr
            ]

        self._judge(f"broker {broker} is stopped", wrong)

    def _judge(self, what: str, wrong: Callable[[_Truth], list[str]]) -> None:
        self._remember()
        problems: list[str] = []
        for _, truth in self._truths:
            problems = wrong(truth)
            if not problems:
                return
        self._accuse(f"the operator keeps min.insync.replicas: {what}, and {problems[0]}")

    def _accuse(self, what: str) -> None:
        """End the run: an exception alone would be a failed step of the operator."""
        self._cluster.failures.append(Violation(what))

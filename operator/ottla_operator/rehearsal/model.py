"""A model of a cluster in virtual time: brokers, topics and their replicas, as the operator observes them.

Implements the interfaces `Platform` and `Kafka` without any effect outside. Brokers take time to stop, to
start and to catch up; leaders are elected as Kafka does. Made by `rehearsal` from an observed cluster, and by
the operator's tests, which also break it; what the operator must not do is collected in `violations`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ottla.security.acls import AclBinding
from ottla_operator.planning.observed import (
    AccessState,
    BrokerInstance,
    BrokerRunState,
    GroupState,
    KafkaState,
    LogDir,
    PartitionKey,
    PartitionState,
    QuotaEntity,
    TopicState,
    VolumeLoss,
    ZooKeeperServer,
    ZooKeeperState,
    partition_name,
)
from ottla_operator.planning.revision import PerBroker
from ottla_operator.planning.steps import (
    AlterBrokerSettings,
    AlterQuota,
    AlterTopicConfig,
    CancelReassign,
    CreateAcls,
    CreatePartitions,
    CreateTopic,
    DeleteAcls,
    DeleteScramCredential,
    DeleteTopic,
    ElectPreferredLeaders,
    KafkaStep,
    MoveReplicas,
    Reassign,
    ResetOffsets,
    SetScramCredential,
)
from ottla_operator.planning.volumes import log_dir_name, volume_of, volumes_of
from ottla_operator.platform.interfaces import Address, BrokerLaunch, Ensured, StepFailed
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.cluster_status import ListenerStatus

_MIN_ISR: Final = "min.insync.replicas"


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things take, in milliseconds."""

    start: int = 3_000
    """From a broker's start until it serves."""
    stop: int = 1_000
    catch_up: int = 2_000
    """From there until its replicas are in sync."""
    move: int = 2_500
    """The move of a replica, besides its bytes."""
    server: int = 15_000
    """The restart of a ZooKeeper server."""
    bytes_per_s: float = 0.0
    """What a broker receives while replicas move; 0: they have no bytes."""


@dataclass
class SimulatedBroker:
    """The process of a broker with its launch configuration."""

    id: int
    launch: BrokerLaunch
    state: BrokerRunState = "Starting"
    changes_at_ms: int | None = None
    started_at_ms: int = 0
    ready_since_ms: int | None = None
    rack: str | None = None
    crashes: int = 0
    pool: str = ""
    delete_volume: bool = False
    after: BrokerLaunch | None = None
    """Of one that is being stopped: the launch that it is stopped for."""

    @property
    def up(self) -> bool:
        return self.ready_since_ms is not None and self.state in ("Running", "Stopping")


@dataclass
class SimulatedPartition:
    """Replicas, ISR and leader, with the reassignment in flight."""

    replicas: list[int]
    isr: list[int]
    leader: int
    joins_at_ms: dict[int, int] = field(default_factory=dict)
    target: list[int] | None = None


@dataclass
class SimulatedTopic:
    """Partitions and settings of a topic."""

    topic_id: str
    partitions: list[SimulatedPartition]
    config: dict[str, str]
    internal: bool = False


class SimulatedCluster:
    """Brokers, topics and the clock; implements the Platform interface. `restarts`: the platform starts a
    broker again that was stopped to be restarted, as Kubernetes does."""

    def __init__(
        self,
        *,
        broken_hashes: Collection[str] = (),
        racks: Mapping[int, str] | None = None,
        timing: Timing = Timing(),
        restarts: bool = False,
    ) -> None:
        self.timing = timing
        self.restarts = restarts
        self.min_isr_default = 1
        """Of topics and of dynamic settings without one."""
        self.sizes: dict[PartitionKey, int] = {}
        """Bytes of a replica."""
        self.moved_bytes = 0
        self.placed: dict[tuple[int, PartitionKey], int] = {}
        """The volumes of replicas, by broker and partition. Others are on any of their brokers'."""
        self._moving: dict[tuple[int, PartitionKey], tuple[int, int]] = {}
        """Replicas that move between volumes of their broker: the new volume, and when they are there."""
        self.servers: list[ZooKeeperServer] = []
        self.servers_revision = ""
        self.server_back_at_ms: int | None = None
        self.on_tick: Callable[[], None] = lambda: None
        """Called whenever something may have changed."""
        self.lost: set[int] = set()
        """Brokers whose machines are gone: they do not come back."""
        self._receiving_until_ms: dict[int, int] = {}
        self.now_ms = 1_700_000_000_000
        self.zookeeper = False
        self.brokers: dict[int, SimulatedBroker] = {}
        self.topics: dict[str, SimulatedTopic] = {}
        self.groups: dict[str, GroupState] = {}
        self.settings: dict[str, str | None] = {}
        self.controller = -1
        self.broken_hashes = set(broken_hashes)
        self.racks = dict(racks or {})
        self.violations: list[str] = []
        self.log: list[str] = []
        self.max_unavailable = 0
        self.broker_traits: dict[str, str] = {}
        self.restart_requested = ""
        self.quotas: dict[QuotaEntity, dict[str, float]] = {}
        self.scram: dict[str, tuple[int, str]] = {}
        """Iterations and password by user."""
        self.acls: set[AclBinding] | None = None
        """None: there is no authorizer."""
        self.describes_access = True
        self.losses: dict[int, VolumeLoss] = {}
        self.kept: dict[int, str] = {}
        self.step_failures: dict[type, StepFailed] = {}
        self._ids = itertools.count(1)

    # ---- time

    def advance(self, ms: int) -> None:
        """Let virtual time pass."""
        until = self.now_ms + ms
        while self.now_ms < until:
            self.now_ms = min(until, self.now_ms + 250)
            self._tick()

    def _tick(self) -> None:
        for broker in self.brokers.values():
            if broker.changes_at_ms is None or broker.changes_at_ms > self.now_ms:
                continue
            if broker.state == "Starting" and self._has_no_volume(broker.id):
                continue
            broker.changes_at_ms = None
            if broker.state == "Starting":
                if broker.launch.config_hash in self.broken_hashes:
                    broker.state = "Crashed"
                    broker.crashes += 1
                else:
                    broker.state, broker.ready_since_ms = "Running", self.now_ms
                    self._joined(broker.id)
            elif broker.state == "Stopping":
                broker.state = "Stopped"
                self._left(broker.id)
                if broker.after is not None:
                    self._check_volumes(broker.id, broker.after)
                    broker.launch, broker.after = broker.after, None
                    if self.restarts:
                        broker.state, broker.started_at_ms = "Starting", self.now_ms
                        broker.changes_at_ms = self._ready_at_ms(broker.id)
        live = self.live()
        if self.controller not in live:
            self.controller = min(live, default=-1)
        for topic in self.topics.values():
            for partition in topic.partitions:
                self._progress(partition, live)
        self.on_tick()

    def next_change_ms(self) -> int | None:
        """When something changes by itself; None: nothing does."""
        times = [b.changes_at_ms for b in self.brokers.values() if b.changes_at_ms is not None]
        live = self.live()
        for topic in self.topics.values():
            for partition in topic.partitions:
                times += [at for broker, at in partition.joins_at_ms.items() if broker in live]
        times += [at for _, at in self._moving.values()]
        times += [self.server_back_at_ms] if self.server_back_at_ms is not None else []
        return min((at for at in times if at > self.now_ms), default=None)

    def advance_to(self, at_ms: int) -> None:
        """Let time pass, from change to change."""
        while self.now_ms < at_ms:
            next_ms = self.next_change_ms()
            self.now_ms = min(at_ms, next_ms) if next_ms is not None else at_ms
            self._tick()

    def min_isr(self, topic: SimulatedTopic) -> int:
        """The effective min.insync.replicas."""
        value = topic.config.get(_MIN_ISR) or self.settings.get(_MIN_ISR)
        return int(value) if value else self.min_isr_default

    def _ready_at_ms(self, broker: int) -> int | None:
        return None if broker in self.lost else self.now_ms + self.timing.start

    def _has_no_volume(self, broker: int) -> bool:
        loss = self.losses.get(broker)
        return loss is not None and loss.kind == "Gone"

    def live(self) -> set[int]:
        return {broker.id for broker in self.brokers.values() if broker.up}

    def _progress(self, partition: SimulatedPartition, live: set[int]) -> None:
        for broker, at_ms in list(partition.joins_at_ms.items()):
            if broker in live and at_ms <= self.now_ms and partition.leader in live:
                del partition.joins_at_ms[broker]
                if broker in partition.replicas and broker not in partition.isr:
                    partition.isr.append(broker)
        if partition.leader not in live:
            partition.leader = next((b for b in partition.replicas if b in partition.isr and b in live), -1)
        if partition.target is not None and all(broker in partition.isr for broker in partition.target):
            partition.replicas = partition.target
            partition.isr = [broker for broker in partition.isr if broker in partition.target]
            if partition.leader not in partition.target:
                partition.leader = next((b for b in partition.target if b in live), -1)
            partition.target = None

    def _joined(self, broker: int) -> None:
        for topic in self.topics.values():
            for partition in topic.partitions:
                if broker in partition.replicas and broker not in partition.isr:
                    partition.joins_at_ms[broker] = self.now_ms + self.timing.catch_up

    def _left(self, broker: int) -> None:
        self.brokers[broker].ready_since_ms = None
        for topic in self.topics.values():
            for partition in topic.partitions:
                partition.joins_at_ms.pop(broker, None)
                if broker in partition.isr and len(partition.isr) > 1:
                    partition.isr.remove(broker)
                if partition.leader == broker:
                    live = self.live() - {broker}
                    partition.leader = next(
                        (b for b in partition.replicas if b in partition.isr and b in live), -1
                    )

    def crash(self, broker: int) -> None:
        """End the broker's process at once."""
        self.brokers[broker].state = "Crashed"
        self.brokers[broker].changes_at_ms = None
        self._left(broker)
        self._tick()

    # ---- the Platform interface

    async def observe(self, cluster: BrokerCluster) -> tuple[ZooKeeperState, dict[int, BrokerInstance]]:
        instances = {
            broker.id: BrokerInstance(
                id=broker.id,
                state=broker.state,
                ready=broker.up and broker.state == "Running",
                config_hash=broker.launch.config_hash,
                settings=broker.launch.static,
                ready_since_ms=broker.ready_since_ms,
                started_at_ms=broker.started_at_ms,
                crashes=broker.crashes,
                rack=broker.rack,
                pool=broker.pool,
                delete_volume=broker.delete_volume,
                volume_loss=self.losses.get(broker.id),
                process_started=broker.id not in self.lost,
                message="its machine is gone" if broker.id in self.lost else "",
            )
            for broker in self.brokers.values()
        }
        zookeeper = ZooKeeperState(
            self.zookeeper, "zk:2181", revision=self.servers_revision, servers=tuple(self.servers)
        )
        return zookeeper, instances

    def kept_volumes(self) -> Mapping[int, str]:
        return self.kept

    def addresses(self, cluster: BrokerCluster, brokers: Collection[int]) -> Sequence[Address]:
        return [("host", 9092 + broker) for broker in sorted(brokers)]

    def bootstrap(self, cluster: BrokerCluster) -> str:
        addresses = self.addresses(cluster, cluster.broker_ids)
        return ",".join(f"{host}:{port}" for host, port in addresses)

    def listeners(self, cluster: BrokerCluster) -> Sequence[ListenerStatus]:
        return ()

    def traits(self, cluster: BrokerCluster) -> Mapping[str, str]:
        return self.broker_traits

    def restart_request(self) -> str:
        return self.restart_requested

    async def ensure_children(
        self,
        cluster: BrokerCluster,
        launches: PerBroker[BrokerLaunch],
        *,
        under_replicated: bool,
        hold_servers: bool = False,
    ) -> Ensured:
        ensured = Ensured()
        if self.server_back_at_ms is not None:
            if self.server_back_at_ms > self.now_ms:
                return ensured
            self.server_back_at_ms = None
            self.servers = [
                replace(server, ready=True, restarts=server.waiting_for != "" and server.restarts)
                for server in self.servers
            ]
        due = [s for s in self.servers if s.waiting_for and (s.urgent or not hold_servers)]
        if due and cluster.may_roll_to(self.servers_revision):
            # The leader last.
            going = min(due, key=lambda server: (server.role == "leader", server.id))
            updated = replace(
                going, waiting_for="", ready=False, revision=self.servers_revision, restarts=True
            )
            self.servers = [updated if server is going else server for server in self.servers]
            self.server_back_at_ms = self.now_ms + self.timing.server
            ensured.steps.append(f"replace pod {going.name}")
        return ensured

    async def ensure_zookeeper(self, cluster: BrokerCluster) -> None:
        self.zookeeper = True

    async def stop_zookeeper(self, cluster: BrokerCluster) -> None:
        assert not any(broker.up for broker in self.brokers.values()), "ZooKeeper outlives the brokers"
        self.zookeeper = False

    async def start_broker(self, cluster: BrokerCluster, broker: int, launch: BrokerLaunch | None) -> None:
        known = self.brokers.get(broker)
        assert known is None or known.state in ("Stopped", "Crashed"), f"broker {broker} is {known}"
        if launch is None:
            assert known is not None
            launch = known.launch
        if known is not None:
            self._check_volumes(broker, launch)
        self.log.append(f"start {broker} {launch.config_hash}")
        pool = cluster.pool_of(broker)
        self.brokers[broker] = SimulatedBroker(
            broker,
            launch,
            changes_at_ms=self._ready_at_ms(broker),
            started_at_ms=self.now_ms,
            rack=self.racks.get(broker, launch.static.get("broker.rack")),
            pool=pool.name if pool is not None else known.pool if known is not None else "",
            delete_volume=pool is not None and pool.spec.storage.delete_claim,
            crashes=known.crashes if known and known.launch.config_hash == launch.config_hash else 0,
        )

    async def stop_broker(
        self, cluster: BrokerCluster, broker: int, after: BrokerLaunch | None = None
    ) -> None:
        known = self.brokers[broker]
        if known.state not in ("Running", "Starting"):
            return
        self.log.append(f"stop {broker}")
        self.check_stop(broker)
        known.after = after
        known.state, known.changes_at_ms = "Stopping", self.now_ms + self.timing.stop
        down = [b.id for b in self.brokers.values() if not (b.up and b.state == "Running")]
        self.max_unavailable = max(self.max_unavailable, len(down))

    def check_stop(self, broker: int) -> None:
        """Record a violation when stopping the broker takes a partition below its min ISR."""
        going = {b.id for b in self.brokers.values() if b.state != "Running"} | {broker}
        for name, topic in self.topics.items():
            min_isr = self.min_isr(topic)
            for number, partition in enumerate(topic.partitions):
                if broker not in partition.isr or len(partition.replicas) <= min_isr:
                    continue
                left = [b for b in partition.isr if b not in going]
                if len(left) < min_isr:
                    self.violations.append(f"stopping {broker} leaves {name}-{number} with ISR {left}")

    async def remove_broker(self, cluster: BrokerCluster, broker: int, *, delete_volume: bool) -> None:
        for name, topic in self.topics.items():
            for number, partition in enumerate(topic.partitions):
                if broker in partition.replicas:
                    self.violations.append(f"broker {broker} is removed with a replica of {name}-{number}")
        self.log.append(f"remove {broker}")
        del self.brokers[broker]

    async def replace_broker(self, cluster: BrokerCluster, broker: int) -> None:
        """Its logs are lost: a partition without another replica in sync has lost its records."""
        self.log.append(f"replace {broker}")
        loss, known = self.losses.pop(broker), self.brokers[broker]
        in_service = self.live() - {broker}
        for name, topic in self.topics.items():
            for number, partition in enumerate(topic.partitions):
                alone = broker in partition.isr and not in_service & set(partition.isr)
                hopeless = loss.kind == "Gone" and partition.replicas == [broker]
                if alone and loss.kind != "Forced" and not hopeless:
                    self.violations.append(f"replacing {broker} loses {name}-{number}")
        if known.state in ("Running", "Starting"):
            self.check_stop(broker)
            known.state, known.changes_at_ms = "Stopping", self.now_ms + self.timing.stop
        else:
            known.state, known.changes_at_ms = "Stopped", None
        down = [b.id for b in self.brokers.values() if not (b.up and b.state == "Running")]
        self.max_unavailable = max(self.max_unavailable, len(down))

    def _check_volumes(self, broker: int, launch: BrokerLaunch) -> None:
        """Record a violation when the broker starts without a volume that has replicas."""
        gone = {*volumes_of(self.brokers[broker].launch.static)} - {*volumes_of(launch.static)}
        for key in self._held(broker) if gone else ():
            if self._volume(broker, key) in gone:
                self.violations.append(f"broker {broker} starts without the volume of {partition_name(key)}")

    def _held(self, broker: int) -> list[PartitionKey]:
        return [
            (name, number)
            for name, topic in self.topics.items()
            for number, partition in enumerate(topic.partitions)
            if broker in partition.replicas
        ]

    def _volume(self, broker: int, key: PartitionKey) -> int:
        """The volume of a replica."""
        at = self._moving.get((broker, key))
        if at is not None and at[1] <= self.now_ms:
            self.placed[broker, key] = self._moving.pop((broker, key))[0]
        volumes = volumes_of(self.brokers[broker].launch.static)
        return self.placed.setdefault((broker, key), volumes[key[1] % len(volumes)])

    def _move(self, step: MoveReplicas) -> None:
        for key, path in step.log_dirs.items():
            volume = volume_of(path)
            assert volume is not None, f"{path} is a log directory"
            self._moving[step.broker, key] = (volume, self._arrival_ms(step.broker, key))

    def _log_dirs(self) -> dict[int, tuple[LogDir, ...]]:
        found = {}
        for broker in sorted(self.live()):
            replicas: dict[int, dict[PartitionKey, int]] = {}
            futures: dict[int, dict[PartitionKey, int]] = {}
            for key in self._held(broker):
                replicas.setdefault(self._volume(broker, key), {})[key] = self.sizes.get(key, 0)
                if (broker, key) in self._moving:
                    futures.setdefault(self._moving[broker, key][0], {})[key] = 0
            found[broker] = tuple(
                LogDir(f"/{log_dir_name(volume)}", replicas.get(volume, {}), futures.get(volume, {}))
                for volume in volumes_of(self.brokers[broker].launch.static)
            )
        return found

    # ---- for SimulatedKafka

    def describe_access(self) -> AccessState:
        scram = {user: {"SCRAM-SHA-512": iterations} for user, (iterations, _) in self.scram.items()}
        if self.acls is None:
            return AccessState(scram, None)
        principals = {acl.entry.principal for acl in self.acls}
        of = {who: frozenset(a for a in self.acls if a.entry.principal == who) for who in principals}
        return AccessState(scram, of)

    def describe(
        self, groups: Collection[str], *, access: bool = False, log_dirs: bool = False
    ) -> KafkaState:
        live = self.live()
        if not live:
            return KafkaState(problem="no broker is running")
        topics = {
            name: TopicState(
                name,
                topic.topic_id,
                tuple(_state(name, number, p) for number, p in enumerate(topic.partitions)),
                dict(topic.config),
                self.min_isr(topic),
                topic.internal,
            )
            for name, topic in self.topics.items()
        }
        found = {group: self.groups.get(group, GroupState(group, "Dead", lags={})) for group in groups}
        return KafkaState(
            True,
            "cluster-id",
            self.controller,
            frozenset(live),
            topics,
            found,
            settings=dict(self.settings),
            quotas={entity: dict(limits) for entity, limits in self.quotas.items()},
            access=self.describe_access() if access and self.describes_access else None,
            log_dirs=self._log_dirs() if log_dirs else {},
        )

    def execute(self, step: KafkaStep) -> None:
        self.log.append(str(step))
        if type(step) in self.step_failures:
            raise self.step_failures[type(step)]
        match step:
            case CreateTopic():
                self.create_topic(step.topic, step.partitions, step.replicas, step.config, step.assignment)
            case AlterTopicConfig():
                config = self.topics[step.topic].config
                config.update(step.set_)
                for name in step.delete:
                    config.pop(name, None)
            case AlterBrokerSettings():
                self.settings.update(step.set_)
                for name in step.delete:
                    self.settings.pop(name, None)
            case ResetOffsets():
                group = self.groups[step.group]
                self.groups[step.group] = replace(group, offsets={**(group.offsets or {}), **step.offsets})
            case AlterQuota():
                limits = {**self.quotas.get(step.entity, {}), **step.set_}
                left = {name: value for name, value in limits.items() if name not in step.delete}
                self.quotas[step.entity] = left
            case SetScramCredential():
                self.scram[step.user] = (step.iterations, step.password)
            case DeleteScramCredential():
                del self.scram[step.user]
            case CreateAcls():
                assert self.acls is not None
                self.acls |= set(step.bindings)
            case DeleteAcls():
                assert self.acls is not None
                self.acls -= set(step.bindings)
            case CreatePartitions():
                self._grow(step)
            case DeleteTopic():
                del self.topics[step.topic]
            case Reassign():
                self._reassign(step)
            case MoveReplicas():
                self._move(step)
            case CancelReassign():
                for name, number in step.partitions:
                    self._cancel(self.topics[name].partitions[number])
            case ElectPreferredLeaders():
                for name, number in step.partitions:
                    partition = self.topics[name].partitions[number]
                    if partition.replicas[0] in partition.isr:
                        partition.leader = partition.replicas[0]
            case _:
                raise StepFailed("NotSupported", str(step))

    def create_topic(
        self,
        name: str,
        partitions: int,
        factor: int,
        config: Mapping[str, str] | None = None,
        assignment: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        live = sorted(self.live())
        assert factor <= len(live), f"{name}: {factor} replicas on {len(live)} brokers"
        placed: Iterable[Sequence[int]] = (
            assignment.values()
            if assignment
            else ([live[(p + r) % len(live)] for r in range(factor)] for p in range(partitions))
        )
        made = [SimulatedPartition(list(r), list(r), r[0]) for r in placed]
        self.topics[name] = SimulatedTopic(f"id-{next(self._ids)}", made, dict(config or {}))

    def _grow(self, step: CreatePartitions) -> None:
        topic, live = self.topics[step.topic], sorted(self.live())
        factor = len(topic.partitions[0].replicas)
        if len(live) < factor:
            raise StepFailed("KafkaError", "INVALID_REPLICATION_FACTOR")
        new = step.assignment or [
            tuple(live[(p + r) % len(live)] for r in range(factor))
            for p in range(step.total - len(topic.partitions))
        ]
        topic.partitions += [SimulatedPartition(list(r), list(r), r[0]) for r in new]
        assert len(topic.partitions) == step.total

    def _reassign(self, step: Reassign) -> None:
        for (name, number), target in step.assignment.items():
            partition = self.topics[name].partitions[number]
            if len(set(target)) < len(target) or not set(target) <= self.live() | set(partition.replicas):
                self.violations.append(f"{name}-{number} is reassigned to {target}, live are {self.live()}")
            partition.target = list(target)
            for broker in target:
                if broker not in partition.replicas:
                    partition.replicas.append(broker)
                    partition.joins_at_ms[broker] = self._arrival_ms(broker, (name, number))
            self._progress(partition, self.live())

    def _arrival_ms(self, broker: int, key: PartitionKey) -> int:
        """When a replica that moves to the broker is in sync there."""
        size, rate = self.sizes.get(key, 0), self.timing.bytes_per_s
        self.moved_bytes += size
        begin_ms = max(self.now_ms, self._receiving_until_ms.get(broker, 0))
        self._receiving_until_ms[broker] = begin_ms + (int(1000 * size / rate) if rate else 0)
        return self._receiving_until_ms[broker] + self.timing.move

    def _cancel(self, partition: SimulatedPartition) -> None:
        if partition.target is not None:
            added = [b for b in partition.replicas if b in partition.joins_at_ms and b not in partition.isr]
            partition.replicas = [b for b in partition.replicas if b not in added]
            partition.joins_at_ms = {b: t for b, t in partition.joins_at_ms.items() if b not in added}
            partition.target = None


class SimulatedKafka:
    """The Kafka interface (Admin API) of a simulated cluster."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster

    async def observe(
        self,
        brokers: Sequence[Address],
        groups: Collection[str],
        *,
        access: bool = False,
        log_dirs: bool = False,
    ) -> KafkaState:
        return self._cluster.describe(groups, access=access, log_dirs=log_dirs)

    async def execute(self, step: KafkaStep) -> None:
        self._cluster.execute(step)


def _state(name: str, number: int, partition: SimulatedPartition) -> PartitionState:
    target = partition.target if partition.target is not None else partition.replicas
    in_sync_or_old = [b for b in partition.replicas if b not in partition.joins_at_ms or b in partition.isr]
    adding = tuple(b for b in target if b not in in_sync_or_old) if partition.target is not None else ()
    removing = tuple(b for b in partition.replicas if b not in target)
    ordered = [*target, *removing]
    return PartitionState(
        name, number, partition.leader, tuple(ordered), tuple(partition.isr), adding, removing
    )

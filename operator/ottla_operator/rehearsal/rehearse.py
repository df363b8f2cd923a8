"""Rehearses a change: the operator's own reconciliation over a model of the observed cluster, to its end.

Called by `kubectl ottla plan` and `ottla up --plan` with a `Situation`: what was observed, and the resources
after the change. The steps are those of the reconciler, in its order; times are assumptions and measurements
(`Timing`), which the report names. With `fail`, the rehearsal is repeated, and that broker is lost for good
at the moment in which this hurts most.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from ottla_operator.conditions import find, is_true
from ottla_operator.planning.observed import (
    GroupQuery,
    KafkaState,
    Observed,
    PartitionKey,
    partition_name,
)
from ottla_operator.planning.recovery import RecoveryOutcome
from ottla_operator.planning.revision import PerBroker
from ottla_operator.planning.steps import KafkaStep
from ottla_operator.planning.volumes import volume_of
from ottla_operator.platform.interfaces import (
    Address,
    BrokerLaunch,
    Ensured,
    Environment,
    InvolvedObject,
    Kafka,
    NoDrivers,
    NoSecrets,
    Platform,
    Recorder,
    StepFailed,
    Store,
)
from ottla_operator.reconcile import Reconciler
from ottla_operator.rehearsal.model import (
    SimulatedBroker,
    SimulatedCluster,
    SimulatedKafka,
    SimulatedPartition,
    SimulatedTopic,
    Timing,
)
from ottla_operator.resources import AnyResource, BrokerCluster, ConsumerGroup, Pipeline, User
from ottla_operator.resources.common import Status

T = TypeVar("T")

NOT_REHEARSED: Final = (User, ConsumerGroup, Pipeline)
"""Kinds whose steps need Secrets, offsets or drivers; they restart no broker and move no replica."""

_STEP_MS: Final = 1_000
_IDLE_MS: Final = 3_000
_STUCK_MS: Final = 20 * 60_000
"""So long without a step and without a change, the operator waits for good; it is beyond a roll's timeout."""
_RECONCILES_MAX: Final = 5_000


@dataclass(frozen=True, slots=True)
class Situation:
    """What a rehearsal begins with."""

    observed: Observed
    resources: Sequence[AnyResource]
    """The resources after the change: the BrokerCluster, and those that refer to it."""
    timing: Timing = field(default_factory=Timing)
    traits: Callable[[BrokerCluster], Mapping[str, str]] = lambda cluster: {}
    restart_request: str = ""
    sizes: Mapping[PartitionKey, int] = field(default_factory=dict)
    kept_volumes: Mapping[int, str] = field(default_factory=dict)
    children: Sequence[str] = ()
    """What the first reconciliation does to the objects around the brokers."""
    restarts: bool = True
    """The platform starts brokers again itself."""

    @property
    def cluster(self) -> BrokerCluster:
        return next(each for each in self.resources if isinstance(each, BrokerCluster))


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the operator."""

    number: int
    at_ms: int
    """Since the change."""
    kind: str
    """As the reason of its Event."""
    resource: str
    text: str


@dataclass(frozen=True, slots=True)
class Health:
    """The partitions that are not as they should be."""

    at_min: frozenset[PartitionKey] = frozenset()
    """As many replicas in sync as min.insync.replicas requires: none can be spared."""
    under_min: frozenset[PartitionKey] = frozenset()
    offline: frozenset[PartitionKey] = frozenset()

    @property
    def severity(self) -> tuple[int, int]:
        return len(self.offline), len(self.under_min)


@dataclass(frozen=True, slots=True)
class Moment:
    """A state of the model during the rehearsal."""

    tick: int
    at_ms: int
    steps: int
    """How many steps were executed before."""
    health: Health


@dataclass(slots=True)
class Rehearsal:
    """What has happened in one rehearsal."""

    steps: list[Step] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """Warning Events of the operator."""
    duration_ms: int = 0
    converged: bool = False
    waiting: list[str] = field(default_factory=list)
    """Why it has not converged: what brokers and resources wait for at the end."""
    begin: Health = field(default_factory=Health)
    at_min: dict[PartitionKey, int] = field(default_factory=dict)
    """Partitions that come to stand at min.insync.replicas, with the number of the first step before it."""
    under_min: dict[PartitionKey, int] = field(default_factory=dict)
    offline: dict[PartitionKey, int] = field(default_factory=dict)
    new_leaders: dict[PartitionKey, set[int]] = field(default_factory=dict)
    """Partitions whose leader changes, with the brokers that led them."""
    restarted: list[int] = field(default_factory=list)
    moved_bytes: int = 0
    worst: Moment | None = None
    """When the loss of the watched broker would hurt most, with the health after it."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of a broker during a change, at the moment in which it hurts most."""

    broker: int
    moment: Moment
    after: Step | None
    """The last step before it."""
    waiting: Sequence[str]
    """What the operator waits for; empty when it completes the change without the broker."""
    rest: Sequence[Step]
    """What it does after the loss."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one reconciliation observes, and what it would do to the objects around the brokers."""

    observed: Observed
    children: Sequence[str]
    problems: Sequence[str]


def look(platform: Platform, kafka: KafkaState, resources: Sequence[AnyResource], now_ms: int) -> Look:
    """Reconcile once over a platform that keeps what it writes to itself. Raises StepFailed."""
    children: list[str] = []
    problems: list[str] = []

    def note(resource: str, kind: str, text: str, warning: bool) -> None:
        if warning:
            problems.append(f"{kind}: {text}")
        elif kind == "Applied":
            children.append(text)

    environment = _environment(
        _Looking(platform), _Described(kafka), _Store(resources), lambda: now_ms, _Recorder(note)
    )
    observed = asyncio.run(Reconciler(environment).reconcile()).observed
    if observed is None:
        raise StepFailed("NotObserved", "; ".join(problems) or "the brokers cannot be observed")
    return Look(observed, children, problems)


def rehearse(situation: Situation, watched: int | None = None) -> Rehearsal:
    """Run the change to its end. `watched`: the broker whose loss is to be rehearsed next."""
    return asyncio.run(_Run(situation, watched=watched).run())


def rehearse_loss(situation: Situation, broker: int, moment: Moment) -> Loss:
    """Run the change again, and lose the broker at the worst moment of the undisturbed run."""
    run = _Run(situation, lost=(broker, moment))
    rehearsal = asyncio.run(run.run())
    done = [step for step in rehearsal.steps if step.number <= moment.steps]
    rest = rehearsal.steps[len(done) :]
    return Loss(broker, moment, done[-1] if done else None, rehearsal.waiting, rest)


def model_of(situation: Situation) -> SimulatedCluster:
    """The model of the observed cluster."""
    observed, kafka = situation.observed, situation.observed.kafka
    model = SimulatedCluster(racks=_racks(situation), timing=situation.timing, restarts=situation.restarts)
    model.now_ms = observed.now_ms
    model.zookeeper = observed.zookeeper.running
    model.servers = list(observed.zookeeper.servers)
    model.servers_revision = observed.zookeeper.revision
    model.controller = kafka.controller_id
    model.restart_requested = situation.restart_request
    model.settings = dict(kafka.settings)
    model.quotas = {entity: dict(limits) for entity, limits in (kafka.quotas or {}).items()}
    model.groups = dict(kafka.groups)
    model.kept = dict(situation.kept_volumes)
    model.sizes = dict(situation.sizes)
    model.placed = {
        (broker, key): volume
        for broker, directories in kafka.log_dirs.items()
        for directory in directories
        if (volume := volume_of(directory.path)) is not None
        for key in directory.replicas
    }
    for broker, each in observed.brokers.items():
        serves = observed.in_service(broker)
        starting = not serves and each.state in ("Starting", "Running", "Stopping")
        model.brokers[broker] = SimulatedBroker(
            broker,
            BrokerLaunch(each.config_hash, each.settings, {}),
            state="Running" if serves else "Starting" if starting else each.state,
            changes_at_ms=observed.now_ms + situation.timing.start if starting else None,
            started_at_ms=each.started_at_ms or 0,
            ready_since_ms=(each.ready_since_ms or 0) if serves else None,
            rack=each.rack,
            crashes=each.crashes,
            pool=each.pool,
            delete_volume=each.delete_volume,
        )
    own = _default_min_isr(situation)
    model.min_isr_default = own
    for name, topic in kafka.topics.items():
        partitions = [
            SimulatedPartition(
                list(each.replicas),
                list(each.isr),
                each.leader,
                {
                    broker: observed.now_ms + situation.timing.catch_up
                    for broker in each.replicas
                    if broker not in each.isr
                },
                list(each.target_replicas) if each.reassigning else None,
            )
            for each in topic.partitions
        ]
        model.topics[name] = SimulatedTopic(topic.topic_id, partitions, dict(topic.config), topic.internal)
    return model


def _racks(situation: Situation) -> dict[int, str]:
    """The rack of each broker. A new one comes where the fewest are, as the default topology spread
    constraints have it."""
    brokers = situation.observed.brokers
    racks = {broker: each.rack for broker, each in brokers.items() if each.rack is not None}
    if not racks:
        return {}
    counts = Counter(racks.values())
    for broker in situation.cluster.broker_ids:
        if broker not in brokers:
            racks[broker] = min(counts, key=lambda rack: (counts[rack], rack))
            counts[racks[broker]] += 1
    return racks


def _default_min_isr(situation: Situation) -> int:
    """min.insync.replicas of topics that do not set it."""
    name = "min.insync.replicas"
    for topic in situation.observed.kafka.topics.values():
        if name not in topic.config and not topic.internal:
            return topic.min_isr
    return int(str(situation.cluster.spec.config.get(name, "1")))


class _Run:
    """One rehearsal."""

    def __init__(
        self, situation: Situation, watched: int | None = None, lost: tuple[int, Moment] | None = None
    ) -> None:
        self._situation = situation
        self._watched = watched
        self._lost = lost
        """The broker to lose, and when."""
        self._model = model_of(situation)
        self._store = _Store(situation.resources)
        self._result = Rehearsal()
        self._begun_ms = self._model.now_ms
        self._leaders: dict[PartitionKey, int] = {}
        self._ticks = 0

    async def run(self) -> Rehearsal:
        model, result = self._model, self._result
        platform = _Platform(model, self._situation)
        reconciler = Reconciler(
            _environment(
                platform, SimulatedKafka(model), self._store, lambda: model.now_ms, _Recorder(self._record)
            )
        )
        result.begin = health_of(model)
        model.on_tick = self._tick
        self._leaders = leaders_of(model)
        self._tick()
        last_ms = self._begun_ms
        for _ in range(_RECONCILES_MAX):
            before = len(result.steps)
            now_ms = model.now_ms
            reconciled = await reconciler.reconcile()
            self._tick()
            acted = len(result.steps) > before
            change_ms = model.next_change_ms()
            if acted:
                last_ms = model.now_ms
                model.advance_to(now_ms + _STEP_MS)
                continue
            if reconciled.due_ms is not None and change_ms is None:
                model.advance_to(max(reconciled.due_ms, now_ms + 1))
                last_ms = model.now_ms
                continue
            if reconciled.idle and reconciled.converged and change_ms is None:
                result.converged = True
                break
            if change_ms is not None:
                model.advance_to(max(change_ms, now_ms + 1))
                last_ms = model.now_ms
            else:
                model.advance_to(now_ms + _IDLE_MS)
                if model.now_ms - last_ms > _STUCK_MS:
                    break
        if not result.converged:
            result.waiting = self._obstacles()
        result.duration_ms = last_ms - self._begun_ms
        result.moved_bytes = model.moved_bytes
        return result

    # ---- observing the model

    def _record(self, resource: str, kind: str, text: str, warning: bool) -> None:
        if warning:
            if f"{kind}: {text}" not in self._result.warnings:
                self._result.warnings.append(f"{kind}: {text}")
            return
        same = self._result.steps[-1] if self._result.steps else None
        if same is not None and (same.kind, same.resource, same.text) == (kind, resource, text):
            return
        at_ms = self._model.now_ms - self._begun_ms
        self._result.steps.append(Step(len(self._result.steps) + 1, at_ms, kind, resource, text))

    def _tick(self) -> None:
        model, result = self._model, self._result
        self._ticks += 1
        steps = len(result.steps)
        leaders = leaders_of(model)
        for key, leader in leaders.items():
            before = self._leaders.get(key)
            if before is not None and before != leader and before >= 0:
                result.new_leaders.setdefault(key, set()).add(before)
        self._leaders = leaders
        health = health_of(model)
        for found, known in (
            (health.at_min - result.begin.at_min, result.at_min),
            (health.under_min - result.begin.under_min, result.under_min),
            (health.offline - result.begin.offline, result.offline),
        ):
            for key in found:
                known.setdefault(key, steps)
        if self._watched is not None:
            self._watch(self._watched, steps)
        if self._lost is not None and self._ticks == self._lost[1].tick:
            self._lose(self._lost[0])

    def _watch(self, broker: int, steps: int) -> None:
        health = health_of(self._model, without=broker)
        if self._result.worst is None or health.severity > self._result.worst.health.severity:
            at_ms = self._model.now_ms - self._begun_ms
            self._result.worst = Moment(self._ticks, at_ms, steps, health)

    def _lose(self, broker: int) -> None:
        if broker in self._model.brokers:
            self._model.lost.add(broker)
            self._model.crash(broker)

    def _obstacles(self) -> list[str]:
        """What is not as it should be at the end."""
        found: list[str] = []
        for resource in self._store.stored.values():
            status = resource.status
            ready = find(status.conditions, "Ready")
            if ready is not None and ready.status != "True":
                found.append(f"{resource.key}: {ready.reason}: {ready.message}")
            for type_ in ("Rolling", "Scaling"):
                condition = find(status.conditions, type_)
                if is_true(status.conditions, type_) and condition is not None:
                    found.append(f"{resource.key}: {condition.message}")
        return list(dict.fromkeys(found))


def leaders_of(model: SimulatedCluster) -> dict[PartitionKey, int]:
    return {
        (name, number): partition.leader
        for name, topic in model.topics.items()
        for number, partition in enumerate(topic.partitions)
    }


def health_of(model: SimulatedCluster, without: int | None = None) -> Health:
    """The health of the partitions; `without`: if that broker was lost."""
    live = model.live() - {without}
    at_min, under, offline = set(), set(), set()
    for name, topic in model.topics.items():
        min_isr = model.min_isr(topic)
        for number, partition in enumerate(topic.partitions):
            in_sync = sum(broker in live for broker in partition.isr)
            key = (name, number)
            if not in_sync:
                offline.add(key)
            if in_sync < min(min_isr, len(partition.replicas)):
                under.add(key)
            elif in_sync == min_isr < len(partition.replicas):
                at_min.add(key)
    return Health(frozenset(at_min), frozenset(under), frozenset(offline))


def names(keys: Sequence[PartitionKey] | frozenset[PartitionKey], shown: int = 6) -> str:
    """`orders-0, orders-1 and 7 more`"""
    found = [partition_name(key) for key in sorted(keys)]
    more = f" and {len(found) - shown} more" if len(found) > shown else ""
    return ", ".join(found[:shown]) + more


# ---- the operator's environment


def _environment(
    platform: Platform, kafka: Kafka, store: Store, clock_ms: Callable[[], int], recorder: Recorder
) -> Environment:
    return Environment(
        *(platform, kafka, store, NoSecrets(), NoDrivers(), clock_ms, recorder),
        random_bytes=bytes,
        compute=_compute,
        recoveries=_Recovery(clock_ms),
    )


class _Platform:
    """The model, and what the first reconciliation does to the objects around the brokers."""

    def __init__(self, model: SimulatedCluster, situation: Situation) -> None:
        self._children = list(situation.children)
        self.traits = situation.traits
        self._model = model
        self.observe = model.observe
        self.kept_volumes = model.kept_volumes
        self.addresses = model.addresses
        self.bootstrap = model.bootstrap
        self.listeners = model.listeners
        self.restart_request = model.restart_request
        self.ensure_zookeeper = model.ensure_zookeeper
        self.stop_zookeeper = model.stop_zookeeper
        self.start_broker = model.start_broker
        self.stop_broker = model.stop_broker
        self.remove_broker = model.remove_broker
        self.replace_broker = model.replace_broker

    async def ensure_children(
        self,
        cluster: BrokerCluster,
        launches: PerBroker[BrokerLaunch],
        *,
        under_replicated: bool,
        hold_servers: bool = False,
    ) -> Ensured:
        ensured = await self._model.ensure_children(
            cluster, launches, under_replicated=under_replicated, hold_servers=hold_servers
        )
        ensured.steps[:0], self._children = self._children, []
        return ensured


class _Looking:
    """A platform on which no broker is started or stopped."""

    def __init__(self, platform: Platform) -> None:
        self.observe = platform.observe
        self.kept_volumes = platform.kept_volumes
        self.addresses = platform.addresses
        self.bootstrap = platform.bootstrap
        self.listeners = platform.listeners
        self.traits = platform.traits
        self.restart_request = platform.restart_request
        self.ensure_children = platform.ensure_children

    async def ensure_zookeeper(self, cluster: BrokerCluster) -> None: ...

    async def stop_zookeeper(self, cluster: BrokerCluster) -> None: ...

    async def start_broker(
        self, cluster: BrokerCluster, broker: int, launch: BrokerLaunch | None
    ) -> None: ...

    async def stop_broker(
        self, cluster: BrokerCluster, broker: int, after: BrokerLaunch | None = None
    ) -> None: ...

    async def remove_broker(self, cluster: BrokerCluster, broker: int, *, delete_volume: bool) -> None: ...

    async def replace_broker(self, cluster: BrokerCluster, broker: int) -> None: ...


@dataclass(frozen=True, slots=True)
class _Described:
    """The Admin API of a cluster that was described before."""

    state: KafkaState

    async def observe(
        self,
        brokers: Sequence[Address],
        groups: Mapping[str, GroupQuery],
        *,
        access: bool = False,
        log_dirs: bool = False,
    ) -> KafkaState:
        return self.state

    async def execute(self, step: KafkaStep) -> None: ...


class _Recovery:
    """The recovery from a backup, which is not read: each attempt succeeds at once."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._ended: RecoveryOutcome | None = None

    running = False

    def outcome(self) -> RecoveryOutcome | None:
        ended, self._ended = self._ended, None
        return ended

    def begin(self, cluster: BrokerCluster, source: str) -> None:
        spec = cluster.spec.bootstrap.recovery
        assert spec is not None
        at_ms, message = self._clock_ms(), "its content is not read by a plan"
        self._ended = RecoveryOutcome(at_ms, source or spec.source, message, restored=bool(source))


class _Store:
    """The resources in memory."""

    def __init__(self, resources: Sequence[AnyResource]) -> None:
        self.stored = {each.key: each for each in resources if not isinstance(each, NOT_REHEARSED)}

    async def resources(self) -> Sequence[AnyResource]:
        return list(self.stored.values())

    def withheld(self) -> Sequence[str]:
        return ()

    async def update_status(self, resource: AnyResource, status: Status) -> None:
        self.stored[resource.key] = self.stored[resource.key].model_copy(update={"status": status})

    async def release(self, resource: AnyResource) -> None:
        del self.stored[resource.key]


@dataclass(frozen=True, slots=True)
class _Recorder:
    note: Callable[[str, str, str, bool], None]

    def record(self, resource: InvolvedObject, reason: str, message: str, *, warning: bool = False) -> None:
        self.note(resource.key, reason, message, warning)


async def _compute(work: Callable[[], T], /) -> T:
    return work()

"""Plans a BrokerCluster: its next steps, conditions and status, from its spec and the observed state.

Called by `reconcile`. The order: ZooKeeper, stopped brokers, brokers with lost volumes, preferred leader
election, the roll, scale-down, requested reassignments, scale-up. The operator does not start a roll and a
reassignment at the same time; those in flight go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ottla_operator.conditions import Finding, no, unknown
from ottla_operator.planning.cluster_status import Decisions, findings_of, hibernation_status, status_of
from ottla_operator.planning.fencing import Fencing, fenced_brokers, plan_fencing
from ottla_operator.planning.holds import NO_HOLDS, POOL_PAUSED, Holds
from ottla_operator.planning.observed import Observed, PartitionKey
from ottla_operator.planning.placement import Changes, Racks
from ottla_operator.planning.quotas import plan_defaults
from ottla_operator.planning.reassign_requests import ReassignRequest, emptied_by, plan_request, request_of
from ottla_operator.planning.rebalance_run import Answer, Run, drain_moves, finding_of, plan_run
from ottla_operator.planning.replacement import Replacement, plan_replacement
from ottla_operator.planning.revision import (
    PerBroker,
    Revision,
    Upgrade,
    combined_hash,
    is_requested_only,
    is_urgent,
    restart_reasons,
)
from ottla_operator.planning.rolling import Roll, plan_roll
from ottla_operator.planning.scaling import (
    SCALE_DOWN,
    SCALE_UP,
    Members,
    Scaling,
    deletes_volume,
    members_of,
    plan_scale_down,
    plan_scale_up,
)
from ottla_operator.planning.settings import OwnedSettings, plan_settings
from ottla_operator.planning.steps import (
    AlterBrokerSettings,
    CancelReassign,
    ClusterStep,
    ElectPreferredLeaders,
    EnsureZooKeeper,
    MoveReplicas,
    RemoveBroker,
    ReplaceBroker,
    StartBroker,
    StopBroker,
    StopZooKeeper,
)
from ottla_operator.planning.throttle import RATES
from ottla_operator.planning.volumes import Emptying, plan_emptying
from ottla_operator.resources import BrokerCluster, BrokerClusterStatus
from ottla_operator.resources.cluster_status import ReassignRequestStatus
from ottla_operator.resources.settings import next_value


@dataclass(frozen=True, slots=True)
class Placement:
    """The brokers as the planner of topics sees them."""

    usable: bool = False
    """The cluster is reachable: topics can be observed and changed."""
    may_hold: Racks = field(default_factory=dict)
    closed: frozenset[int] = frozenset()
    cordoned: frozenset[int] = frozenset()
    coming: tuple[int, ...] = ()
    """Brokers that are starting; the creation of topics waits for them."""

    @property
    def taking(self) -> list[int]:
        """The brokers that get new replicas now."""
        return [broker for broker in self.may_hold if broker not in self.closed]


@dataclass(frozen=True, slots=True)
class EventRecord:
    """A Kubernetes Event to record that neither a step nor a condition causes."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The plan of a BrokerCluster, with what the planners of topics need."""

    steps: tuple[ClusterStep, ...]
    findings: tuple[Finding, ...]
    status: BrokerClusterStatus
    placement: Placement
    deletion_complete: bool = False
    """Of a deletion: no broker and no ZooKeeper is left."""
    moves: Changes = field(default_factory=dict)
    """All planned reassignments, including later batches."""
    event_records: tuple[EventRecord, ...] = ()
    waiting: Mapping[int, str] = field(default_factory=dict)
    """What brokers that leave wait for."""


# The creation of topics does not wait for a broker that takes longer than this to start.
COMING_MS_MAX = 60_000


def plan_cluster(
    cluster: BrokerCluster,
    observed: Observed,
    targets: PerBroker[Revision],
    upgrade: Upgrade | None = None,
    *,
    restarts: Sequence[str] = (),
    proposed: Answer | None = None,
    quota_owns_default_client: bool = False,
    holds: Holds = NO_HOLDS,
) -> ClusterPlan:
    """`upgrade`: the version that `targets` were computed for. `restarts`: the requested restarts, as
    recorded in the status. `proposed`: the rebalance that was computed just now.
    `quota_owns_default_client`: a Quota resource sets the limits of the default client. `holds`: why no
    restart may begin."""
    if cluster.metadata.deleting:
        return _plan_deletion(cluster, observed)
    spec = cluster.spec
    request = request_of(cluster.metadata.annotations, cluster.broker_ids)
    _, fence_problem = fenced_brokers(cluster.metadata.annotations, cluster.broker_ids)
    members = cluster_members(cluster, observed)
    if cluster.hibernates:
        return _plan_hibernation(cluster, observed, restarts)
    # A requested restart is approved by the request, unless it brings other changes with it.
    approved = cluster.may_roll_to(combined_hash(targets)) or all(
        is_requested_only(targets.of(broker), instance.config_hash, instance.settings)
        for broker, instance in observed.brokers.items()
        if broker in members.working
    )
    emptying = plan_emptying(cluster, observed, targets, members.working)
    active = [broker for broker in members.working if not cluster.is_paused(broker)]
    roll = plan_roll(
        observed,
        {broker: targets.of(broker).hash for broker in members.working},
        spec.rolling_update,
        approved=approved,
        fenced=members.fenced,
        hold=holds.brokers,
        urgent=[
            b for b, i in observed.brokers.items() if is_urgent(targets.of(b), i.config_hash, i.settings)
        ],
        emptying=emptying.waiting,
        paused=[broker for broker in members.working if cluster.is_paused(broker)],
    )
    roll = _until_caught_up(cluster, observed, combined_hash(targets), roll, members)
    scaling, asked = Scaling(), cluster.status.reassign_request
    run = Run(Scaling(), cluster.status.rebalance)
    replacement, fencing = Replacement(), Fencing()
    defaults = plan_defaults(cluster, observed, elsewhere=quota_owns_default_client)
    settings = _settings(cluster, observed, targets.default.live)
    steps: list[ClusterStep] = []
    if not observed.zookeeper.running:
        steps.append(EnsureZooKeeper())
    else:
        replacement = plan_replacement(observed, active, spec.rolling_update, roll.bounce)
        fencing = plan_fencing(cluster.metadata.annotations, observed, members, roll.bounce)
        steps += _starts(observed, members, targets, roll, emptying)
        steps += replacement.steps
        steps += [*(_alterations(settings) if settings.recorded else ()), *defaults.steps]
        scaling, asked, run = _scaling(cluster, observed, members, roll, request, proposed)
        elect = _elections(observed, members) if spec.rolling_update.elect_preferred_leaders else ()
        if elect:
            steps.append(ElectPreferredLeaders(elect))
        steps += [*emptying.steps, *fencing.steps, *_bounces(observed, targets, roll)]
        steps += scaling.steps
        steps = [step for step in steps if step in fencing.steps or not _is_of_paused(cluster, step)]
    altered: list[ClusterStep] = [*_alterations(settings), *defaults.due]
    decided = Decisions(
        members, targets, roll, scaling, replacement, fencing, altered, upgrade or Upgrade(), request, holds
    )
    more = {
        "handled_restarts": list(restarts),
        "default_quotas": defaults.record,
        "reassign_request": asked,
        "rebalance": run.status,
        "managed_settings": settings.managed,
        "unmanaged_settings": settings.unmanaged,
    }
    balanced = finding_of(cluster, run.status)
    return ClusterPlan(
        steps=tuple(steps),
        findings=(*findings_of(cluster, observed, decided), *([balanced] if balanced is not None else [])),
        status=status_of(cluster, observed, decided).model_copy(update=more),
        placement=_placement(observed, members),
        moves=scaling.changes,
        waiting=scaling.waiting,
        event_records=(
            *_event_records(cluster.status.reassign_request, asked, fence_problem),
            *(EventRecord(reason, message) for reason, message in run.events),
        ),
    )


def cluster_members(cluster: BrokerCluster, observed: Observed) -> Members:
    """The brokers of the cluster, by its spec and its annotations."""
    annotations, brokers = cluster.metadata.annotations, cluster.broker_ids
    fenced, _ = fenced_brokers(annotations, brokers)
    return members_of(brokers, observed, emptied_by(request_of(annotations, brokers)), fenced)


def _event_records(
    before: ReassignRequestStatus | None, now: ReassignRequestStatus | None, fence_problem: str
) -> tuple[EventRecord, ...]:
    """An Event for the end of a requested reassignment, once, and one for a wrong list of brokers."""
    wrong = (EventRecord("FenceRefused", fence_problem, warning=True),) if fence_problem else ()
    if now is None or now.phase not in ("Completed", "Refused"):
        return wrong
    if before is not None and (before.id, before.phase) == (now.id, now.phase):
        return wrong
    message = f"request {now.id}: {now.message}"
    return (*wrong, EventRecord(f"Reassign{now.phase}", message, warning=now.phase == "Refused"))


def _until_caught_up(
    cluster: BrokerCluster, observed: Observed, target_hash: str, roll: Roll, members: Members
) -> Roll:
    """The roll, continued after its last bounce until that broker is in the ISR of all its partitions."""
    before = cluster.status.rollout
    if not roll.done or before is None or before.target_hash != target_hash:
        return roll
    for partition in observed.kafka.partitions():
        lagging = [b for b in partition.origin_replicas if b not in partition.isr and b in members.working]
        if lagging:
            waiting = {lagging[0]: f"itself to rejoin the ISR of {partition.name}"}
            return Roll((), waiting, roll.updated, roll.total)
    return roll


def _plan_deletion(cluster: BrokerCluster, observed: Observed) -> ClusterPlan:
    """Stop and remove all brokers, then ZooKeeper. `deleteClaim` decides about volumes. Topics and clients
    do not delay it."""
    steps: list[ClusterStep] = []
    for broker, instance in sorted(observed.brokers.items()):
        if instance.state in ("Running", "Starting"):
            steps.append(StopBroker(broker, "the cluster is deleted"))
        elif instance.state in ("Stopped", "Crashed"):
            steps.append(RemoveBroker(broker, delete_volume=deletes_volume(cluster, instance)))
    if not observed.brokers and observed.zookeeper.running:
        steps.append(StopZooKeeper())
    message = (
        f"{len(observed.brokers)} brokers are still to be removed"
        if observed.brokers
        else "all brokers are removed"
    )
    return ClusterPlan(
        steps=tuple(steps),
        findings=(no("Ready", "Deleting", message), no("Available", "Deleting", message)),
        status=cluster.status,
        placement=Placement(),
        deletion_complete=not observed.brokers and not observed.zookeeper.running,
    )


def _plan_hibernation(cluster: BrokerCluster, observed: Observed, restarts: Sequence[str]) -> ClusterPlan:
    """Stop all brokers at the same time, then ZooKeeper. Volumes and all other objects are kept."""
    working = {b: i for b, i in observed.brokers.items() if i.state not in ("Stopped", "Crashed")}
    steps: list[ClusterStep] = [
        StopBroker(broker, "the cluster hibernates")
        for broker, instance in sorted(working.items())
        if instance.state != "Stopping"
    ]
    stops_zookeeper = cluster.spec.zookeeper.connect is None and observed.zookeeper.running
    if not working and stops_zookeeper:
        steps.append(StopZooKeeper())
    rest = f"{len(working)} brokers are still to be stopped" if working else "all brokers are stopped"
    reason = "Hibernating" if working or stops_zookeeper else "Hibernated"
    message = f"an annotation lets the cluster hibernate: {rest}, their data is kept"
    return ClusterPlan(
        steps=tuple(steps),
        findings=(
            no("Ready", reason, message),
            no("Available", reason, message),
            unknown("FullyReplicated", reason),
            unknown("ConfigApplied", reason),
            no("Rolling", "NotRolling"),
            no("Scaling", "NotScaling"),
        ),
        status=hibernation_status(cluster, observed, restarts),
        placement=Placement(),
    )


def _starts(
    observed: Observed, members: Members, targets: PerBroker[Revision], roll: Roll, emptying: Emptying
) -> list[ClusterStep]:
    """A broker that the operator has stopped starts on the newest revision, unless that has come since and
    lacks a volume, which may hold replicas."""
    steps: list[ClusterStep] = []
    for broker in members.working:
        instance = observed.brokers.get(broker)
        if instance is None:
            steps.append(StartBroker(broker))
        elif instance.state in ("Stopped", "Crashed"):
            current = instance.config_hash in ("", targets.of(broker).hash)
            due = broker in roll.bounce or (instance.stopped_by_us and broker not in emptying.waiting)
            steps.append(StartBroker(broker, on_target=current or due))
    # A broker that leaves must run until it is drained: it may have the only replica of a partition.
    needed = (broker for broker in members.surplus if observed.kafka.holding(broker))
    idle = (broker for broker in needed if observed.brokers[broker].state in ("Stopped", "Crashed"))
    return [*steps, *(StartBroker(broker, on_target=False) for broker in idle)]


def _settings(cluster: BrokerCluster, observed: Observed, live: Mapping[str, str]) -> OwnedSettings:
    """The dynamic broker settings that are due, without the operator's replication throttle
    (`planning.throttle`)."""
    status = cluster.status
    if not observed.kafka.has_controller:
        wanted = live if cluster.metadata.acted_upon else {}
        return OwnedSettings(sorted({*status.managed_settings, *wanted}), status.unmanaged_settings)
    throttled = status.throttle is not None and status.throttle.rate is not None
    current = {n: v for n, v in observed.kafka.settings.items() if not (throttled and n in RATES)}
    due = plan_settings(live, current, status.managed_settings, cluster.metadata)
    of_files = {n: v for broker in observed.brokers.values() for n, v in broker.settings.items()}
    values: dict[str, str | None] = {**due.changed, **dict.fromkeys(due.deleted, None)}
    now = {name: next_value(name, value, current, of_files) for name, value in values.items()}
    return replace(
        due,
        changed={name: value for name, value in now.items() if value is not None},
        deleted=tuple(name for name, value in now.items() if value is None),
    )


def _alterations(settings: OwnedSettings) -> list[AlterBrokerSettings]:
    return [AlterBrokerSettings(settings.changed, settings.deleted)] if settings.is_due else []


def _bounces(observed: Observed, targets: PerBroker[Revision], roll: Roll) -> list[ClusterStep]:
    steps: list[ClusterStep] = []
    for broker in roll.bounce:
        instance = observed.brokers[broker]
        if instance.state in ("Running", "Starting"):
            reasons = restart_reasons(targets.of(broker), instance.config_hash, instance.settings)
            steps.append(StopBroker(broker, f"rolling restart: {', '.join(reasons)}", bounce=True))
    return steps


def _scaling(
    cluster: BrokerCluster,
    observed: Observed,
    members: Members,
    roll: Roll,
    request: ReassignRequest | None,
    proposed: Answer | None,
) -> tuple[Scaling, ReassignRequestStatus | None, Run]:
    """The drain or rebalance to do now, and the statuses of the requested reassignment and of the rebalance
    by load. All wait for a roll, so that only one of them affects the ISRs at a time."""
    busy = "the rolling restart" if not roll.rests else "the scale-down" if members.surplus else ""
    moves = partial(drain_moves, cluster, observed, members)
    asked: ReassignRequestStatus | None = None
    moving, growing = Scaling(), Scaling()
    if request is not None:
        before_it = cluster.status.reassign_request
        moving, asked = plan_request(request, before_it, observed, members, busy, moves)
    if roll.rests and not members.surplus and observed.kafka.has_controller and _grows_by_number(cluster):
        before = cluster.status.reassignment
        ongoing = before is not None and before.reason == SCALE_UP
        growing = plan_scale_up(observed, members, ongoing=ongoing)
    waits = busy or ("the requested reassignment" if moving.reason else "")
    waits = waits or ("the scale-up" if growing.reason else "")
    run = plan_run(cluster, observed, members, waits, proposed)
    if any(isinstance(step, CancelReassign) for step in run.scaling.steps):
        return run.scaling, asked, run
    if members.surplus and all(cluster.is_paused(broker) for broker in members.surplus):
        message = f"waiting for {POOL_PAUSED.message}"
        return (
            Scaling(reason=SCALE_DOWN, message=message, waiting=dict.fromkeys(members.surplus, message)),
            asked,
            run,
        )
    if members.surplus:
        scaling = plan_scale_down(cluster, observed, members, moves)
        if not roll.rests and cluster.spec.scale_down.policy != "Force":
            scaling = Scaling(
                (), scaling.reason, scaling.remaining, "waiting for the rolling restart", "", scaling.waiting
            )
        return scaling, asked, run
    chosen = next((each for each in (moving, growing, run.scaling) if each.reason), Scaling())
    if not chosen.reason:
        chosen = next((each for each in (moving, growing) if each.blocked), Scaling())
    return chosen, asked, run


def _is_of_paused(cluster: BrokerCluster, step: ClusterStep) -> bool:
    """Whether the step is of a broker in a BrokerPool that is paused."""
    of_broker = StartBroker | StopBroker | RemoveBroker | ReplaceBroker | MoveReplicas
    return isinstance(step, of_broker) and cluster.is_paused(step.broker)


def _grows_by_number(cluster: BrokerCluster) -> bool:
    """Whether new brokers get replicas by their number, and not by load."""
    spec, status = cluster.spec.rebalance, cluster.status.rebalance
    by_load = spec.mode == "Auto" and "ScaleUp" in spec.triggers
    in_progress = status is not None and status.progress is not None
    return spec.on_scale_up and not by_load and not in_progress


def _elections(observed: Observed, members: Members) -> tuple[PartitionKey, ...]:
    """Partitions whose preferred replica is in sync, registered and not the leader."""
    if any(not observed.in_service(broker) for broker in members.working):
        return ()
    return tuple(
        partition.key
        for partition in observed.kafka.partitions()
        if not partition.reassigning
        and partition.leader >= 0
        and partition.leader != partition.target_replicas[0]
        and partition.target_replicas[0] in partition.isr
        and partition.target_replicas[0] in observed.kafka.brokers
        and partition.target_replicas[0] not in members.surplus
    )


def _placement(observed: Observed, members: Members) -> Placement:
    kafka = observed.kafka
    coming = []
    for broker in members.working:
        instance = observed.brokers.get(broker)
        late = (
            instance is not None
            and instance.started_at_ms is not None
            and observed.now_ms - instance.started_at_ms > COMING_MS_MAX
        )
        if not observed.in_service(broker) and not late and (instance is None or instance.state != "Crashed"):
            coming.append(broker)
    return Placement(
        usable=kafka.has_controller,
        may_hold=members.may_hold(observed),
        closed=members.closed(observed),
        cordoned=frozenset(members.surplus) | members.emptied,
        coming=tuple(coming),
    )

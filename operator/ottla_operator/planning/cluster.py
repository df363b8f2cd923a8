"""BrokerCluster: from its spec and what was observed to the next steps, its conditions and its status.

Called by `reconcile` on every pass. The order of things: ZooKeeper, brokers that do not run, leaders back to
where they belong, the roll, brokers that leave, replicas onto brokers that came. A roll and a reassignment of
ours are not begun at the same time; what is in flight may go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ottla_operator.conditions import Finding, iso_time, no, unknown, yes
from ottla_operator.planning.observed import Observed, PartitionKey
from ottla_operator.planning.placement import Racks
from ottla_operator.planning.quotas import default_steps
from ottla_operator.planning.revision import Revision, restart_reasons
from ottla_operator.planning.rolling import Roll, plan_roll
from ottla_operator.planning.scaling import (
    SCALE_UP,
    Members,
    Scaling,
    members_of,
    plan_scale_down,
    plan_scale_up,
)
from ottla_operator.planning.settings import difference
from ottla_operator.planning.steps import (
    AlterBrokerSettings,
    ClusterStep,
    ElectPreferredLeaders,
    EnsureZooKeeper,
    RemoveBroker,
    StartBroker,
    StopBroker,
    StopZooKeeper,
)
from ottla_operator.resources import BrokerCluster, BrokerClusterStatus
from ottla_operator.resources.cluster import BrokerStatus, ReassignmentStatus, RolloutStatus
from ottla_operator.resources.common import APPROVE_ANNOTATION
from ottla_operator.resources.settings import is_live_setting


@dataclass(frozen=True, slots=True)
class Placement:
    """What the topics' planner must know of the brokers."""

    usable: bool = False
    """Topics can be looked at and changed."""
    may_hold: Racks = field(default_factory=dict)
    closed: frozenset[int] = frozenset()
    cordoned: frozenset[int] = frozenset()
    coming: tuple[int, ...] = ()
    """Brokers that are about to be in service; new topics wait for them."""

    @property
    def taking(self) -> list[int]:
        return [broker for broker in self.may_hold if broker not in self.closed]


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    steps: tuple[ClusterStep, ...]
    findings: tuple[Finding, ...]
    status: BrokerClusterStatus
    placement: Placement
    done: bool = False
    """Of a deletion: nothing is left."""


# A broker that takes longer than this to come up no longer holds up the creation of topics.
COMING_MS_MAX = 60_000


def plan_cluster(cluster: BrokerCluster, observed: Observed, target: Revision) -> ClusterPlan:
    if cluster.metadata.deleting:
        return _plan_deletion(cluster, observed)
    spec = cluster.spec
    members = members_of(spec, observed)
    approved = (
        spec.rolling_update.strategy == "Auto"
        or cluster.metadata.annotations.get(APPROVE_ANNOTATION) == target.hash
    )
    roll = plan_roll(observed, members.desired, target.hash, spec.rolling_update, approved=approved)
    roll = _until_caught_up(cluster, observed, target, roll)
    scaling = Scaling()
    settings = [*_settings(observed, target), *default_steps(cluster, observed)]
    steps: list[ClusterStep] = []
    if not observed.zookeeper.running:
        steps.append(EnsureZooKeeper())
    else:
        steps += _starts(observed, members, target, roll)
        steps += settings
        scaling = _scaling(cluster, observed, members, roll)
        elect = _elections(observed, members) if spec.rolling_update.elect_preferred_leaders else ()
        if elect:
            steps.append(ElectPreferredLeaders(elect))
        steps += _bounces(observed, target, roll)
        steps += scaling.steps
    status = _status(cluster, observed, members, target, roll, scaling)
    return ClusterPlan(
        steps=tuple(steps),
        findings=tuple(_findings(cluster, observed, members, target, roll, scaling, settings)),
        status=status,
        placement=_placement(observed, members),
    )


def _until_caught_up(cluster: BrokerCluster, observed: Observed, target: Revision, roll: Roll) -> Roll:
    """A roll that has bounced its last broker ends when that one is in every ISR again."""
    before = cluster.status.rollout
    if not roll.done or before is None or before.target_hash != target.hash:
        return roll
    for partition in observed.kafka.partitions():
        lagging = [
            b for b in partition.settled_replicas if b not in partition.isr and b < cluster.spec.replicas
        ]
        if lagging:
            waiting = {lagging[0]: f"itself to catch up on {partition.name}"}
            return Roll((), waiting, roll.updated, roll.total)
    return roll


def _plan_deletion(cluster: BrokerCluster, observed: Observed) -> ClusterPlan:
    """Stop all, then let go of all; volumes go by `deleteClaim`. Waits for no topic and no client."""
    steps: list[ClusterStep] = []
    for broker, instance in sorted(observed.brokers.items()):
        if instance.state in ("Running", "Starting"):
            steps.append(StopBroker(broker, "the cluster is deleted"))
        elif instance.state in ("Stopped", "Crashed"):
            steps.append(RemoveBroker(broker, delete_volume=cluster.spec.storage.delete_claim))
    if not observed.brokers and observed.zookeeper.running:
        steps.append(StopZooKeeper())
    message = f"{len(observed.brokers)} brokers are left" if observed.brokers else "nothing is left"
    return ClusterPlan(
        steps=tuple(steps),
        findings=(no("Ready", "Deleting", message), no("Available", "Deleting", message)),
        status=cluster.status,
        placement=Placement(),
        done=not observed.brokers and not observed.zookeeper.running,
    )


def _starts(observed: Observed, members: Members, target: Revision, roll: Roll) -> list[ClusterStep]:
    steps: list[ClusterStep] = []
    for broker in members.desired:
        instance = observed.brokers.get(broker)
        if instance is None:
            steps.append(StartBroker(broker))
        elif instance.state in ("Stopped", "Crashed"):
            current = instance.config_hash in ("", target.hash)
            due = broker in roll.bounce or instance.stopped_by_us
            steps.append(StartBroker(broker, on_target=current or due))
    # One that leaves may be the only one to have some replica: it has to run to be drained.
    needed = (broker for broker in members.surplus if observed.kafka.holding(broker))
    idle = (broker for broker in needed if observed.brokers[broker].state in ("Stopped", "Crashed"))
    return [*steps, *(StartBroker(broker, on_target=False) for broker in idle)]


def _settings(observed: Observed, target: Revision) -> list[ClusterStep]:
    """What brokers take while they run. A rate that somebody throttles replicas with is not ours to undo."""
    if not observed.kafka.settled:
        return []
    current = {name: value for name, value in observed.kafka.settings.items() if is_live_setting(name)}
    changed, deleted = difference(target.live, current)
    return [AlterBrokerSettings(changed, tuple(deleted))] if changed or deleted else []


def _bounces(observed: Observed, target: Revision, roll: Roll) -> list[ClusterStep]:
    steps: list[ClusterStep] = []
    for broker in roll.bounce:
        instance = observed.brokers[broker]
        if instance.state in ("Running", "Starting"):
            reasons = restart_reasons(target, instance.config_hash, instance.settings)
            steps.append(StopBroker(broker, f"bounce, because {', '.join(reasons)}", bounce=True))
    return steps


def _scaling(cluster: BrokerCluster, observed: Observed, members: Members, roll: Roll) -> Scaling:
    """A drain or a rebalance; it waits for a roll, so that no two things unsettle replicas at once."""
    if members.surplus:
        scaling = plan_scale_down(cluster.spec, observed, members)
        if not roll.done and cluster.spec.scale_down.policy != "Force":
            return Scaling((), scaling.reason, scaling.remaining, "waits for the roll", "", scaling.waiting)
        return scaling
    if not roll.done or not cluster.spec.rebalance.on_scale_up or not observed.kafka.settled:
        return Scaling()
    before = cluster.status.reassignment
    return plan_scale_up(observed, members, ongoing=before is not None and before.reason == SCALE_UP)


def _elections(observed: Observed, members: Members) -> tuple[PartitionKey, ...]:
    """Partitions whose preferred leader is in sync and settled, and not the leader."""
    if any(not observed.in_service(broker) for broker in members.desired):
        return ()
    return tuple(
        partition.key
        for partition in observed.kafka.partitions()
        if not partition.reassigning
        and partition.leader >= 0
        and partition.leader != partition.target[0]
        and partition.target[0] in partition.isr
        and partition.target[0] in observed.kafka.brokers
        and partition.target[0] not in members.surplus
    )


def _placement(observed: Observed, members: Members) -> Placement:
    kafka = observed.kafka
    coming = []
    for broker in members.desired:
        instance = observed.brokers.get(broker)
        late = (
            instance is not None
            and instance.started_at_ms is not None
            and observed.now_ms - instance.started_at_ms > COMING_MS_MAX
        )
        if not observed.in_service(broker) and not late and (instance is None or instance.state != "Crashed"):
            coming.append(broker)
    return Placement(
        usable=kafka.settled,
        may_hold=members.may_hold(observed),
        closed=members.closed(observed),
        cordoned=frozenset(members.surplus),
        coming=tuple(coming),
    )


def _under_min_isr(observed: Observed) -> int:
    return sum(
        len(partition.isr) < min(topic.min_isr, len(partition.target))
        for topic, partition in observed.kafka.with_topic()
    )


def _status(
    cluster: BrokerCluster,
    observed: Observed,
    members: Members,
    target: Revision,
    roll: Roll,
    scaling: Scaling,
) -> BrokerClusterStatus:
    kafka, before = observed.kafka, cluster.status
    now = iso_time(observed.now_ms)
    ready = [broker for broker in members.desired if observed.in_service(broker)]
    rollout = None
    if not roll.done:
        old = before.rollout if before.rollout and before.rollout.target_hash == target.hash else None
        rollout = RolloutStatus(
            id=old.id if old else f"roll-{target.hash}-{observed.now_ms // 1000}",
            target_hash=target.hash,
            updated=roll.updated,
            total=roll.total,
            started_at=old.started_at if old else now,
        )
    reassignment = None
    if scaling.reason and scaling.remaining:
        running = before.reassignment
        old_move = running if running and running.reason == scaling.reason else None
        total = max(old_move.total if old_move else 0, scaling.remaining)
        reassignment = ReassignmentStatus(
            id=old_move.id if old_move else f"{scaling.reason.lower()}-{observed.now_ms // 1000}",
            reason=scaling.reason,
            moved=total - scaling.remaining,
            total=total,
            started_at=old_move.started_at if old_move else now,
        )
    elif (
        before.reassignment is not None
        and before.reassignment.reason == SCALE_UP
        and (not kafka.settled or not roll.done or len(ready) < len(members.desired))
    ):
        # It cannot go on now; forgotten, it would not be taken up again.
        reassignment = before.reassignment
    return BrokerClusterStatus(
        replicas=len(observed.brokers),
        ready_replicas=len(ready),
        selector=f"ottla.dev/cluster={cluster.metadata.name},ottla.dev/component=broker",
        cluster_id=kafka.cluster_id or before.cluster_id,
        controller_id=kafka.controller_id,
        version=cluster.spec.version or "3.9",
        bootstrap_servers=before.bootstrap_servers,
        under_replicated_partitions=sum(partition.under_replicated for partition in kafka.partitions()),
        under_min_isr_partitions=_under_min_isr(observed),
        offline_partitions=sum(partition.leader < 0 for partition in kafka.partitions()),
        brokers=_broker_statuses(observed, members, target, roll, scaling),
        rollout=rollout,
        reassignment=reassignment,
    )


def _broker_statuses(
    observed: Observed, members: Members, target: Revision, roll: Roll, scaling: Scaling
) -> list[BrokerStatus]:
    statuses = []
    for broker in (*members.desired, *members.surplus):
        instance = observed.brokers.get(broker)
        if instance is None:
            statuses.append(BrokerStatus(id=broker, state="Missing"))
            continue
        state: str = instance.state
        if broker in members.surplus and state == "Running":
            state = "Draining"
        elif state == "Running" and not observed.in_service(broker):
            state = "NotReady"
        reasons = (
            restart_reasons(target, instance.config_hash, instance.settings)
            if broker in members.desired and instance.config_hash
            else []
        )
        waiting = roll.waiting.get(broker) or scaling.waiting.get(broker) or instance.message
        statuses.append(
            BrokerStatus(
                id=broker,
                pod_name=instance.name,
                ready=observed.in_service(broker),
                state=state,
                config_hash=instance.config_hash,
                restart_reasons=reasons,
                waiting_for=waiting,
            )
        )
    return statuses


def _findings(
    cluster: BrokerCluster,
    observed: Observed,
    members: Members,
    target: Revision,
    roll: Roll,
    scaling: Scaling,
    settings: Sequence[ClusterStep],
) -> list[Finding]:
    kafka = observed.kafka
    offline = [partition.name for partition in kafka.partitions() if partition.leader < 0]
    lagging = [partition.name for partition in kafka.partitions() if partition.under_replicated]
    not_ready = [broker for broker in members.desired if not observed.in_service(broker)]
    ready = _ready(cluster, observed, members, roll, scaling, not_ready, offline)
    if settings and ready.status == "True":
        ready = no("Ready", "Configuring", "; ".join(map(str, settings)))
    findings = [ready]
    if not kafka.settled:
        reason = "NoController" if kafka.reachable else "Unreachable"
        findings.append(no("Available", reason, kafka.problem))
        findings.append(unknown("FullyReplicated", reason))
    else:
        findings.append(
            no("Available", "PartitionsOffline", f"{_some(offline)} without a leader")
            if offline
            else yes("Available", "AllPartitionsOnline")
        )
        findings.append(
            no("FullyReplicated", "UnderReplicated", f"{_some(lagging)} under-replicated")
            if lagging
            else yes("FullyReplicated", "AllInSync")
        )
    stale = roll.total - roll.updated
    findings.append(
        no("ConfigApplied", "Outdated", f"{stale} of {roll.total} brokers are not on revision {target.hash}")
        if stale
        else no("ConfigApplied", "Applying", "; ".join(map(str, settings)))
        if settings
        else yes("ConfigApplied", "UpToDate", f"revision {target.hash}")
    )
    if roll.stalled:
        findings.append(no("Rolling", "Stalled", roll.stalled))
    elif not roll.done:
        findings.append(yes("Rolling", "Rolling", _roll_progress(roll)))
    else:
        findings.append(no("Rolling", "NotRolling"))
    if scaling.blocked:
        findings.append(no("Scaling", f"{scaling.reason or 'Rebalance'}Blocked", scaling.blocked))
    elif scaling.reason:
        findings.append(yes("Scaling", scaling.reason, scaling.message))
    else:
        findings.append(no("Scaling", "NotScaling"))
    return findings


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    return f"1 partition ({shown}) is" if len(names) == 1 else f"{len(names)} partitions ({shown}) are"


def _roll_progress(roll: Roll) -> str:
    progress = f"{roll.updated} of {roll.total} brokers are updated"
    if roll.bounce:
        return f"{progress}; bouncing broker {', '.join(map(str, roll.bounce))}"
    broker, reason = next(iter(sorted(roll.waiting.items())))
    return f"{progress}; broker {broker} waits for {reason}"


def _ready(
    cluster: BrokerCluster,
    observed: Observed,
    members: Members,
    roll: Roll,
    scaling: Scaling,
    not_ready: list[int],
    offline: list[str],
) -> Finding:
    if not observed.zookeeper.running:
        return no("Ready", "ZooKeeperNotReady", observed.zookeeper.message or "ZooKeeper is starting")
    if roll.stalled:
        return no("Ready", "RollStalled", roll.stalled)
    if not roll.done:
        return no("Ready", "Rolling", _roll_progress(roll))
    if not_ready:
        wanted = cluster.spec.replicas
        message = f"{wanted - len(not_ready)} of {wanted} brokers are ready"
        reasons = [
            f"broker {broker}: {observed.brokers[broker].message}"
            for broker in not_ready
            if broker in observed.brokers and observed.brokers[broker].message
        ]
        return no("Ready", "BrokersNotReady", "; ".join([message, *reasons]))
    if not observed.kafka.settled:
        return no(
            "Ready", "NoController" if observed.kafka.reachable else "Unreachable", observed.kafka.problem
        )
    if scaling.blocked:
        return no("Ready", f"{scaling.reason or 'Rebalance'}Blocked", scaling.blocked)
    if scaling.reason:
        return no("Ready", scaling.reason, scaling.message)
    if offline:
        return no("Ready", "PartitionsOffline", f"{_some(offline)} without a leader")
    return yes("Ready", "AllBrokersReady", f"{cluster.spec.replicas} brokers are ready")

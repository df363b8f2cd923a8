"""BrokerCluster: from its spec and what was observed to the next steps, its conditions and its status.

Called by `reconcile` on every pass. The order of things: ZooKeeper, brokers that do not run, brokers whose
volume is lost, leaders back to where they belong, the roll, brokers that leave, what a person asked to move,
replicas onto brokers that came. A roll and a reassignment of ours are not begun at the same time; what is in
flight may go on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla_operator.conditions import Finding, no
from ottla_operator.planning.cluster_status import Decisions, findings_of, status_of
from ottla_operator.planning.observed import Observed, PartitionKey
from ottla_operator.planning.placement import Racks
from ottla_operator.planning.quotas import plan_defaults
from ottla_operator.planning.rebalance import Changes
from ottla_operator.planning.replacing import Replacing, plan_replacement
from ottla_operator.planning.requests import Request, emptied_by, plan_request, request_of
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
from ottla_operator.planning.settings import OwnedSettings, plan_settings
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
from ottla_operator.planning.throttle import RATES
from ottla_operator.planning.versions import Upgrade
from ottla_operator.resources import BrokerCluster, BrokerClusterStatus
from ottla_operator.resources.cluster import ReassignRequestStatus
from ottla_operator.resources.common import APPROVE_ANNOTATION


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
class News:
    """What is worth an Event, although it is neither a step nor a condition."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    steps: tuple[ClusterStep, ...]
    findings: tuple[Finding, ...]
    status: BrokerClusterStatus
    placement: Placement
    done: bool = False
    """Of a deletion: nothing is left."""
    moves: Changes = field(default_factory=dict)
    """All reassignments to come, those of later batches too."""
    news: tuple[News, ...] = ()


# A broker that takes longer than this to come up no longer holds up the creation of topics.
COMING_MS_MAX = 60_000


def plan_cluster(
    cluster: BrokerCluster,
    observed: Observed,
    target: Revision,
    upgrade: Upgrade | None = None,
    *,
    default_client_elsewhere: bool = False,
) -> ClusterPlan:
    """`upgrade`: the version that `target` was made for; `default_client_elsewhere`: a Quota is for it."""
    if cluster.metadata.deleting:
        return _plan_deletion(cluster, observed)
    spec = cluster.spec
    request = request_of(cluster.metadata.annotations, spec.replicas)
    members = members_of(spec, observed, emptied_by(request))
    approved = (
        spec.rolling_update.strategy == "Auto"
        or cluster.metadata.annotations.get(APPROVE_ANNOTATION) == target.hash
    )
    roll = plan_roll(observed, members.desired, target.hash, spec.rolling_update, approved=approved)
    roll = _until_caught_up(cluster, observed, target, roll)
    scaling, asked = Scaling(), cluster.status.reassign_request
    replacing = Replacing()
    defaults = plan_defaults(cluster, observed, elsewhere=default_client_elsewhere)
    settings = _settings(cluster, observed, target)
    steps: list[ClusterStep] = []
    if not observed.zookeeper.running:
        steps.append(EnsureZooKeeper())
    else:
        replacing = plan_replacement(observed, members.desired, spec.rolling_update, roll.bounce)
        steps += _starts(observed, members, target, roll)
        steps += replacing.steps
        steps += [*(_alterations(settings) if settings.recorded else ()), *defaults.steps]
        scaling, asked = _scaling(cluster, observed, members, roll, request)
        elect = _elections(observed, members) if spec.rolling_update.elect_preferred_leaders else ()
        if elect:
            steps.append(ElectPreferredLeaders(elect))
        steps += _bounces(observed, target, roll)
        steps += scaling.steps
    altered: list[ClusterStep] = [*_alterations(settings), *defaults.due]
    decided = Decisions(members, target, roll, scaling, replacing, altered, upgrade or Upgrade(), request)
    more = {
        "default_quotas": defaults.record,
        "reassign_request": asked,
        "managed_settings": settings.managed,
        "unmanaged_settings": settings.unmanaged,
    }
    return ClusterPlan(
        steps=tuple(steps),
        findings=tuple(findings_of(cluster, observed, decided)),
        status=status_of(cluster, observed, decided).model_copy(update=more),
        placement=_placement(observed, members),
        moves=scaling.changes,
        news=_news(cluster.status.reassign_request, asked),
    )


def _news(before: ReassignRequestStatus | None, now: ReassignRequestStatus | None) -> tuple[News, ...]:
    """The end of what a person asked for, once."""
    if now is None or now.phase not in ("Completed", "Refused"):
        return ()
    if before is not None and (before.id, before.phase) == (now.id, now.phase):
        return ()
    message = f"request {now.id}: {now.message}"
    return (News(f"Reassign{now.phase}", message, warning=now.phase == "Refused"),)


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


def _settings(cluster: BrokerCluster, observed: Observed, target: Revision) -> OwnedSettings:
    """What brokers take while they run. The rates of our own throttle are `planning.throttle`'s."""
    status = cluster.status
    if not observed.kafka.settled:
        wanted = target.live if cluster.metadata.acted_upon else {}
        return OwnedSettings(sorted({*status.managed_settings, *wanted}), status.unmanaged_settings)
    throttled = status.throttle is not None and status.throttle.rate is not None
    current = {n: v for n, v in observed.kafka.settings.items() if not (throttled and n in RATES)}
    return plan_settings(target.live, current, status.managed_settings, cluster.metadata)


def _alterations(settings: OwnedSettings) -> list[AlterBrokerSettings]:
    return [AlterBrokerSettings(settings.changed, settings.deleted)] if settings.is_due else []


def _bounces(observed: Observed, target: Revision, roll: Roll) -> list[ClusterStep]:
    steps: list[ClusterStep] = []
    for broker in roll.bounce:
        instance = observed.brokers[broker]
        if instance.state in ("Running", "Starting"):
            reasons = restart_reasons(target, instance.config_hash, instance.settings)
            steps.append(StopBroker(broker, f"bounce, because {', '.join(reasons)}", bounce=True))
    return steps


def _scaling(
    cluster: BrokerCluster, observed: Observed, members: Members, roll: Roll, request: Request | None
) -> tuple[Scaling, ReassignRequestStatus | None]:
    """A drain or a rebalance, and what became of a person's request for one. It waits for a roll, so that no
    two things unsettle replicas at once."""
    busy = "the roll" if not roll.done else "the brokers that leave" if members.surplus else ""
    asked: ReassignRequestStatus | None = None
    moving = Scaling()
    if request is not None:
        moving, asked = plan_request(request, cluster.status.reassign_request, observed, members, busy)
    if members.surplus:
        scaling = plan_scale_down(cluster.spec, observed, members)
        if not roll.done and cluster.spec.scale_down.policy != "Force":
            scaling = Scaling(
                (), scaling.reason, scaling.remaining, "waits for the roll", "", scaling.waiting
            )
        return scaling, asked
    if moving.reason:
        return moving, asked
    if not roll.done or not cluster.spec.rebalance.on_scale_up or not observed.kafka.settled:
        return Scaling(), asked
    before = cluster.status.reassignment
    return plan_scale_up(observed, members, ongoing=before is not None and before.reason == SCALE_UP), asked


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
        cordoned=frozenset(members.surplus) | members.emptied,
        coming=tuple(coming),
    )

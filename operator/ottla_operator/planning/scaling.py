"""Scale-up and scale-down: which brokers stay, which leave, and the reassignments that this needs.

Called by `planning.cluster`. Up: brokers are started first; with `onScaleUp`, replicas are then moved onto
them. Down: the brokers that leave are cordoned and all replicas moved off them, onto new brokers too if some
are starting. Only a broker without replicas is stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from ottla_operator.planning.observed import BrokerInstance, Observed, PartitionKey
from ottla_operator.planning.placement import (
    BATCH_PARTITIONS,
    Changes,
    Racks,
    Unplaceable,
    balance,
    batch,
)
from ottla_operator.planning.steps import ClusterStep, Reassign, RemoveBroker, StopBroker
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.common import parse_duration_ms
from ottla_operator.resources.pool import FIRST_ID

SCALE_UP, SCALE_DOWN = "ScaleUp", "ScaleDown"


@dataclass(frozen=True, slots=True)
class Members:
    """The brokers of a cluster, by whether they are to stay."""

    desired: tuple[int, ...]
    surplus: tuple[int, ...]
    """Brokers of the operator that are to leave: cordoned."""
    foreign: tuple[int, ...]
    """Registered brokers that the operator does not run, such as Java brokers during a migration."""
    emptied: frozenset[int] = frozenset()
    """Desired brokers that must hold no replicas, as the annotation `ottla.dev/reassign` requests."""
    fenced: frozenset[int] = frozenset()
    """Desired brokers that must not run (`planning.fencing`)."""

    @property
    def working(self) -> tuple[int, ...]:
        """The desired brokers that should be in service."""
        return tuple(broker for broker in self.desired if broker not in self.fenced)

    def may_hold(self, observed: Observed) -> Racks:
        """The brokers that may hold replicas, with their racks."""
        racks: dict[int, str | None] = {
            broker: observed.brokers[broker].rack if broker in observed.brokers else None
            for broker in self.desired
            if broker not in self.emptied
        }
        return {**racks, **dict.fromkeys(self.foreign)}

    def closed(self, observed: Observed) -> frozenset[int]:
        """Brokers of `may_hold` that get no new replicas now: not in service, or foreign."""
        out = (broker for broker in self.desired if not observed.in_service(broker))
        return frozenset((*out, *self.foreign))


def members_of(
    brokers: Collection[int],
    observed: Observed,
    emptied: Collection[int] = frozenset(),
    fenced: Collection[int] = frozenset(),
) -> Members:
    """The cluster's brokers. `brokers`: the ids of all that it is to have; `emptied`, `fenced`: as users
    ask."""
    desired = tuple(sorted(brokers))
    surplus = tuple(sorted(broker for broker in observed.brokers if broker not in brokers))
    known = {*desired, *observed.brokers}
    foreign = tuple(sorted(observed.kafka.brokers - known))
    return Members(desired, surplus, foreign, frozenset(emptied) & {*desired}, frozenset(fenced) & {*desired})


@dataclass(frozen=True, slots=True)
class Scaling:
    """The decision of one reconciliation. `remaining` counts the partitions to move, including those in
    flight."""

    steps: tuple[ClusterStep, ...] = ()
    reason: str = ""
    """SCALE_UP, SCALE_DOWN, a request's reason, or "" when no move is planned."""
    remaining: int = 0
    message: str = ""
    blocked: str = ""
    waiting: dict[int, str] = field(default_factory=dict)
    changes: Changes = field(default_factory=dict)
    """All planned moves, including later batches."""


def target_assignment(observed: Observed) -> dict[PartitionKey, tuple[int, ...]]:
    """Every partition's replicas after the reassignments in flight."""
    return {partition.key: partition.target_replicas for partition in observed.kafka.partitions()}


def next_batch(observed: Observed, changes: Changes, reason: str) -> tuple[ClusterStep, ...]:
    """A step with as many moves as BATCH_PARTITIONS allows besides those in flight."""
    in_flight = [p.key for p in observed.kafka.reassigning if p.key not in changes]
    room = BATCH_PARTITIONS - len(in_flight)
    if not changes or room <= 0:
        return ()
    return (Reassign(batch(changes, room), reason),)


def plan_scale_up(observed: Observed, members: Members, ongoing: bool) -> Scaling:
    """Move replicas onto the brokers that have none. `ongoing`: it has begun, and continues until all are
    balanced."""
    if any(not observed.in_service(broker) for broker in members.desired):
        return Scaling()
    assignment = target_assignment(observed)
    holders = {broker for replicas in assignment.values() for broker in replicas}
    empty = [b for b in members.desired if b not in holders and b not in members.emptied]
    if not ongoing and (not empty or not assignment):
        return Scaling()
    try:
        changes = balance(assignment, members.may_hold(observed), members.closed(observed))
    except Unplaceable as error:
        return Scaling(blocked=str(error))
    in_flight = [partition for partition in observed.kafka.reassigning if partition.key not in changes]
    if not ongoing and not any(broker in empty for replicas in changes.values() for broker in replicas):
        return Scaling()
    remaining = len(changes) + len(in_flight)
    if not remaining:
        return Scaling()
    return Scaling(
        steps=next_batch(observed, changes, "onto the new brokers"),
        reason=SCALE_UP,
        remaining=remaining,
        message=f"moving replicas onto the new brokers: {remaining} partitions to move",
        changes=changes,
    )


def plan_scale_down(
    cluster: BrokerCluster, observed: Observed, members: Members, moves: Callable[[], Changes]
) -> Scaling:
    """Drain and stop the surplus brokers, by `spec.scaleDown.policy`. `moves`: those that the drain needs;
    raises Unplaceable."""
    if not members.surplus:
        return Scaling()
    policy = cluster.spec.scale_down.policy
    if policy == "Force" and members.desired:
        return Scaling(
            _stop(cluster, observed, members.surplus),
            SCALE_DOWN,
            message="stopping brokers with their replicas (policy Force)",
        )
    if not observed.kafka.has_controller:
        return Scaling(
            (),
            SCALE_DOWN,
            message="waiting for the cluster to become reachable",
        )
    held = {broker: len(observed.kafka.holding(broker)) for broker in members.surplus}
    waiting = {broker: f"{count} replicas to move off" for broker, count in held.items() if count}
    free = [broker for broker in members.surplus if not held[broker]]
    steps = _stop(cluster, observed, _next_to_stop(members.surplus, free))
    if policy == "Block" and waiting:
        names = ", ".join(f"broker {broker} holds {held[broker]} replicas" for broker in waiting)
        return Scaling(steps, SCALE_DOWN, blocked=f"scaleDown.policy is Block, and {names}", waiting=waiting)
    coming = _coming(cluster, observed, members) if waiting else []
    if coming:
        message = f"waiting for broker {coming[0]}, which is starting and may take replicas"
        return Scaling(steps, SCALE_DOWN, message=message, waiting=waiting)
    try:
        changes = moves()
    except Unplaceable as error:
        return Scaling(steps, SCALE_DOWN, blocked=str(error), waiting=waiting)
    in_flight = [partition for partition in observed.kafka.reassigning if partition.key not in changes]
    leaving_names = ", ".join(str(broker) for broker in members.surplus)
    remaining = len(changes) + len(in_flight)
    return Scaling(
        steps=(*next_batch(observed, changes, f"off broker {leaving_names}"), *steps),
        reason=SCALE_DOWN,
        remaining=remaining,
        message=f"draining broker {leaving_names}: {remaining} partitions to move"
        if remaining
        else f"stopping broker {leaving_names}",
        waiting=waiting,
        changes=changes,
    )


def _next_to_stop(surplus: Sequence[int], free: Collection[int]) -> list[int]:
    """The next of the `free` brokers to stop: the highest id. In the cluster's own pool none goes before a
    higher one, since its brokers are 0 to n - 1."""
    own = [broker for broker in surplus if broker < FIRST_ID]
    leaving = [
        broker
        for broker in free
        if broker >= FIRST_ID or all(other in free for other in own if other > broker)
    ]
    return sorted(leaving)[-1:]


def _coming(cluster: BrokerCluster, observed: Observed, members: Members) -> list[int]:
    """New brokers that are starting: when brokers of one pool leave and others come in another one, each
    replica moves once, to its new place."""
    timeout_ms = parse_duration_ms(cluster.spec.rolling_update.timeout)
    holders = {broker for partition in observed.kafka.partitions() for broker in partition.replicas}
    coming = []
    for broker in members.working:
        instance = observed.brokers.get(broker)
        if broker in holders or broker in members.emptied or observed.in_service(broker):
            continue
        since = instance.started_at_ms if instance is not None else None
        late = since is not None and observed.now_ms - since > timeout_ms
        if not late and (instance is None or instance.state != "Crashed"):
            coming.append(broker)
    return coming


def _stop(cluster: BrokerCluster, observed: Observed, brokers: Collection[int]) -> tuple[ClusterStep, ...]:
    """Stop the brokers that run, remove those that are stopped."""
    steps: list[ClusterStep] = []
    for broker in sorted(brokers, reverse=True):
        instance = observed.brokers[broker]
        if instance.state in ("Running", "Starting"):
            steps.append(StopBroker(broker, "scaled down"))
        elif instance.state in ("Stopped", "Crashed"):
            steps.append(RemoveBroker(broker, delete_volume=deletes_volume(cluster, instance)))
    return tuple(steps)


def deletes_volume(cluster: BrokerCluster, broker: BrokerInstance) -> bool:
    """Whether a removed broker's volume is deleted, too: `deleteClaim` of its pool."""
    pool = cluster.pool_of(broker.id)
    if pool is not None:
        return pool.spec.storage.delete_claim
    return broker.delete_volume if broker.id >= FIRST_ID else cluster.spec.storage.delete_claim

"""Scaling: which brokers stay, which leave, and the reassignments in between.

Called by `planning.cluster`. Up: brokers first, then, with `onScaleUp`, replicas onto the empty ones. Down:
the last ordinals are cordoned, every replica is moved off them, and only brokers that hold none are
stopped; a replica that lands there in the meantime is moved off first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from ottla_operator.planning.observed import Observed, PartitionKey
from ottla_operator.planning.placement import Racks, Unplaceable
from ottla_operator.planning.rebalance import BATCH_PARTITIONS, Changes, balance, batch, drain
from ottla_operator.planning.steps import ClusterStep, Reassign, RemoveBroker, StopBroker
from ottla_operator.resources.cluster import BrokerClusterSpec

SCALE_UP, SCALE_DOWN = "ScaleUp", "ScaleDown"


@dataclass(frozen=True, slots=True)
class Members:
    """The brokers of a cluster by what is to become of them."""

    desired: tuple[int, ...]
    surplus: tuple[int, ...]
    """Ours, and to leave: cordoned."""
    foreign: tuple[int, ...]
    """Registered, and not run by us (a Java broker of a cluster that is being moved): left alone."""
    emptied: frozenset[int] = frozenset()
    """Desired, and to hold nothing for now: somebody asked for it."""

    def may_hold(self, observed: Observed) -> Racks:
        """Brokers that may keep replicas, with their racks."""
        racks: dict[int, str | None] = {
            broker: observed.brokers[broker].rack if broker in observed.brokers else None
            for broker in self.desired
            if broker not in self.emptied
        }
        return {**racks, **dict.fromkeys(self.foreign)}

    def closed(self, observed: Observed) -> frozenset[int]:
        """Those of them that get no new replicas now: not in service, or not ours."""
        out = (broker for broker in self.desired if not observed.in_service(broker))
        return frozenset((*out, *self.foreign))


def members_of(
    spec: BrokerClusterSpec, observed: Observed, emptied: Collection[int] = frozenset()
) -> Members:
    desired = tuple(range(spec.replicas))
    surplus = tuple(sorted(broker for broker in observed.brokers if broker >= spec.replicas))
    known = {*desired, *observed.brokers}
    foreign = tuple(sorted(observed.kafka.brokers - known))
    return Members(desired, surplus, foreign, frozenset(emptied) & frozenset(desired))


@dataclass(frozen=True, slots=True)
class Scaling:
    """The decision of one pass. `remaining` counts partitions still to be moved, in flight included."""

    steps: tuple[ClusterStep, ...] = ()
    reason: str = ""
    """SCALE_UP, SCALE_DOWN, or "" when nothing is under way."""
    remaining: int = 0
    message: str = ""
    blocked: str = ""
    waiting: dict[int, str] = field(default_factory=dict)
    changes: Changes = field(default_factory=dict)
    """All moves to come, those of later batches too."""


def target_assignment(observed: Observed) -> dict[PartitionKey, tuple[int, ...]]:
    """Every partition's replicas as they will be once the reassignments in flight are over."""
    return {partition.key: partition.target for partition in observed.kafka.partitions()}


def next_batch(observed: Observed, changes: Changes, reason: str) -> tuple[ClusterStep, ...]:
    """As many moves as there is room for beside those in flight."""
    in_flight = [p.key for p in observed.kafka.reassigning if p.key not in changes]
    room = BATCH_PARTITIONS - len(in_flight)
    if not changes or room <= 0:
        return ()
    return (Reassign(batch(changes, room), reason),)


def plan_scale_up(observed: Observed, members: Members, ongoing: bool) -> Scaling:
    """Replicas onto the brokers that have none; `ongoing`: it was begun, and goes on until all is even."""
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
        message=f"{remaining} partitions are to be moved",
        changes=changes,
    )


def plan_scale_down(spec: BrokerClusterSpec, observed: Observed, members: Members) -> Scaling:
    """The way out of the surplus brokers, by policy."""
    if not members.surplus:
        return Scaling()
    policy = spec.scale_down.policy
    if policy == "Force":
        return Scaling(
            _stop(spec, observed, members.surplus), SCALE_DOWN, message="stopping brokers by force"
        )
    if not observed.kafka.settled:
        return Scaling((), SCALE_DOWN, message="the cluster must be reachable to see what they hold")
    held = {broker: len(observed.kafka.holding(broker)) for broker in members.surplus}
    waiting = {broker: f"{count} replicas to move off" for broker, count in held.items() if count}
    free = [broker for broker in members.surplus if not held[broker]]
    # From the last ordinal down, and never past one that still holds something.
    leaving = [broker for broker in free if all(other in free for other in members.surplus if other > broker)]
    steps = _stop(spec, observed, leaving[-1:])
    if policy == "Block" and waiting:
        names = ", ".join(f"broker {broker} holds {held[broker]} replicas" for broker in waiting)
        return Scaling(steps, SCALE_DOWN, blocked=f"policy Block: {names}", waiting=waiting)
    assignment = target_assignment(observed)
    try:
        changes = drain(assignment, members.may_hold(observed), members.closed(observed))
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


def _stop(spec: BrokerClusterSpec, observed: Observed, brokers: Collection[int]) -> tuple[ClusterStep, ...]:
    """Stop the brokers that run, remove those that are stopped."""
    steps: list[ClusterStep] = []
    for broker in sorted(brokers, reverse=True):
        state = observed.brokers[broker].state
        if state in ("Running", "Starting"):
            steps.append(StopBroker(broker, "scaled down"))
        elif state in ("Stopped", "Crashed"):
            steps.append(RemoveBroker(broker, delete_volume=spec.storage.delete_claim))
    return tuple(steps)

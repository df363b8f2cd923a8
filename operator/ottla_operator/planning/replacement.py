"""Replaces lost volumes of brokers, and those that a user gives up: which one now, and why others wait.

One pure function, `plan_replacement`, called by `planning.cluster`. A broker that starts empty under its id
fetches its replicas from the others, so no data is lost while each of its partitions has another replica in
sync. The rules:

1. `ottla.dev/delete-pod-and-pvc: force` is executed without conditions.
2. A broker in service is replaced only when it could be bounced: no other is down, no partition falls below
   its min ISR and no roll is in progress; and only when the other replicas of its partitions are in sync.
3. A broker out of service is replaced when the controller has removed it from the ISRs (otherwise it would
   return as a replica in sync with an empty log), and each of its partitions has another replica in sync and
   in service.
4. A partition without one waits for an administrator, who may elect an unclean leader or set `force`; unless
   the volume is deleted and the partition had no other replica.
5. An unreachable volume, whose node has left, is waited for during `rollingUpdate.timeout`.

Invariant (tested by property): without force, no step removes the last replica in sync of a partition whose
volume may still be available, or that has other replicas.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from ottla_operator.planning.observed import BrokerInstance, Observed, VolumeLoss
from ottla_operator.planning.rolling import blocking_partition
from ottla_operator.planning.steps import ClusterStep, ReplaceBroker
from ottla_operator.resources.cluster import RollingUpdate
from ottla_operator.resources.common import DELETE_VOLUME_ANNOTATION, parse_duration_ms

# Kinds are listed at different moments: a pod may be observed before its claim.
SEEN_MS_MIN = 30_000


@dataclass(frozen=True, slots=True)
class Replacement:
    """The decision of one reconciliation."""

    steps: tuple[ClusterStep, ...] = ()
    waiting: dict[int, str] = field(default_factory=dict)
    blocked: str = ""
    """What an administrator has to decide."""

    @property
    def message(self) -> str:
        if self.steps:
            return "; ".join(map(str, self.steps))
        return "; ".join(f"broker {broker} waits for {reason}" for broker, reason in self.waiting.items())


def plan_replacement(
    observed: Observed, members: Collection[int], policy: RollingUpdate, bouncing: Collection[int] = ()
) -> Replacement:
    """Decide over the brokers `members`. `bouncing`: those that a roll stops in this reconciliation."""
    steps: list[ClusterStep] = []
    waiting: dict[int, str] = {}
    blocked: list[str] = []
    going: list[int] = []

    def rank(broker: int) -> tuple[bool, bool, int]:
        """Forced replacements first, since the decisions about the others depend on them."""
        instance = observed.brokers.get(broker)
        loss = instance.volume_loss if instance is not None else None
        return loss is None or loss.kind != "Forced", observed.in_service(broker), broker

    for broker in sorted(members, key=rank):
        instance = observed.brokers.get(broker)
        loss = instance.volume_loss if instance is not None else None
        if instance is None or loss is None or _too_new(observed, instance, loss):
            continue
        if instance.state == "Stopping":
            waiting[broker] = "itself: it is stopping, and starts again with an empty volume"
            going.append(broker)
            continue
        reason, needs_decision = _obstacle(observed, members, instance, loss, policy, {*going, *bouncing})
        if reason:
            waiting[broker] = reason
            if needs_decision:
                blocked.append(
                    f"the volume of broker {broker} must be replaced ({loss.reason}), but {reason}"
                )
            continue
        going.append(broker)
        steps.append(ReplaceBroker(broker, loss.reason))
    return Replacement(tuple(steps), waiting, "; ".join(blocked))


def _too_new(observed: Observed, instance: BrokerInstance, loss: VolumeLoss) -> bool:
    since = instance.started_at_ms
    return loss.kind == "Gone" and since is not None and observed.now_ms - since < SEEN_MS_MIN


def _obstacle(
    observed: Observed,
    members: Collection[int],
    instance: BrokerInstance,
    loss: VolumeLoss,
    policy: RollingUpdate,
    going: Collection[int],
) -> tuple[str, bool]:
    """(what the broker waits for or "", whether an administrator has to decide)."""
    broker = instance.id
    if loss.kind == "Forced":
        return "", False
    waited_ms = observed.now_ms - (instance.started_at_ms or 0)
    if loss.kind == "Unreachable" and waited_ms < parse_duration_ms(policy.timeout):
        return f"its volume to become reachable within {policy.timeout}: {loss.reason}", False
    if not observed.kafka.has_controller:
        if loss.kind == "Gone" and _all_gone(observed, members):
            return "", False
        return "a controller to be elected, which lists the replicas on the broker", False
    if observed.in_service(broker):
        down = [b for b in sorted(members) if b != broker and not observed.in_service(b)]
        for other in (*sorted(going), *down):
            return f"broker {other}, which is down", False
        blocking = blocking_partition(observed, broker) or _catching_up(observed, broker)
        if blocking:
            return blocking, False
    elif broker in observed.kafka.brokers:
        return "its ZooKeeper session to expire, so that the controller removes it from the ISRs", False
    return _would_be_lost(observed, broker, going, gone=loss.kind == "Gone")


def _all_gone(observed: Observed, members: Collection[int]) -> bool:
    losses = (observed.brokers[b].volume_loss if b in observed.brokers else None for b in members)
    return all(loss is not None and loss.kind == "Gone" for loss in losses)


def _catching_up(observed: Observed, broker: int) -> str:
    """A replica in sync is not removed while another one of its partition is catching up."""
    for partition in observed.kafka.holding(broker):
        for other in partition.origin_replicas:
            if other != broker and other not in partition.isr:
                return f"broker {other} to rejoin the ISR of {partition.name}"
    return ""


def _would_be_lost(
    observed: Observed, broker: int, going: Collection[int], *, gone: bool
) -> tuple[str, bool]:
    for partition in observed.kafka.holding(broker):
        in_sync = [other for other in partition.isr if other != broker]
        if any(observed.in_service(other) and other not in going for other in in_sync):
            continue
        if in_sync:
            return (
                f"broker {in_sync[0]}: it has a replica of {partition.name} in sync, and is not in service",
                False,
            )
        if broker in partition.adding or (gone and set(partition.replicas) == {broker}):
            continue
        force = f"{DELETE_VOLUME_ANNOTATION}: force"
        return f"{partition.name} would be lost: no other replica is in sync; {force} accepts the loss", True
    return "", False

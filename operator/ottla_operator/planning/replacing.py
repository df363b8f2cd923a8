"""Brokers whose volume is lost, or to be given up: which may come back empty now, and why others wait.

One pure function, `plan_replacement`, called by `planning.cluster`. A broker that comes back empty under its
id fetches everything from the others, so nothing is lost while each of its partitions has another replica in
sync. The rules:

1. What `ottla.dev/delete-pod-and-pvc: force` asks for is done.
2. A broker in service goes only when it could be bounced: no other is down, no partition falls below its min
   ISR, and no roll is under way; nor while another replica of what it holds is catching up.
3. One that is out of service goes when the cluster has noticed (else it would come back as a replica in sync
   with an empty log), and when each of its partitions has another replica in sync and in service.
4. A partition without one waits for a human, who may elect an unclean leader or say `force`; but where the
   volume is gone and the partition was nowhere else, there is nothing to wait for.
5. A volume that cannot be reached, for its node has left, is given `rollingUpdate.timeout` to come back.

Invariant (tested by property): without force, no step takes the last replica in sync of a partition that is
on a volume that may still be had, or that others have a copy of.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from ottla_operator.planning.observed import BrokerInstance, Observed, VolumeLoss
from ottla_operator.planning.rolling import blocking_partition
from ottla_operator.planning.steps import ClusterStep, ReplaceBroker
from ottla_operator.resources.cluster import RollingUpdate
from ottla_operator.resources.common import DELETE_VOLUME_ANNOTATION, parse_duration_ms

# Lists are of different moments: a pod may be seen before the claim that was made for it.
SEEN_MS_MIN = 30_000


@dataclass(frozen=True, slots=True)
class Replacing:
    steps: tuple[ClusterStep, ...] = ()
    waiting: dict[int, str] = field(default_factory=dict)
    blocked: str = ""
    """What a human has to decide."""

    @property
    def message(self) -> str:
        if self.steps:
            return "; ".join(map(str, self.steps))
        return "; ".join(f"broker {broker} waits for {reason}" for broker, reason in self.waiting.items())


def plan_replacement(
    observed: Observed, members: Collection[int], policy: RollingUpdate, bouncing: Collection[int] = ()
) -> Replacing:
    """Decide over the brokers `members`; `bouncing`: those that a roll takes down in this pass."""
    steps: list[ClusterStep] = []
    waiting: dict[int, str] = {}
    blocked: list[str] = []
    going: list[int] = []

    def rank(broker: int) -> tuple[bool, bool, int]:
        """What goes in any case first: the others must know of it."""
        instance = observed.brokers.get(broker)
        loss = instance.volume_loss if instance is not None else None
        return loss is None or loss.kind != "Forced", observed.in_service(broker), broker

    for broker in sorted(members, key=rank):
        instance = observed.brokers.get(broker)
        loss = instance.volume_loss if instance is not None else None
        if instance is None or loss is None or _too_new(observed, instance, loss):
            continue
        if instance.state == "Stopping":
            waiting[broker] = "itself: it is stopping, to come back with an empty volume"
            going.append(broker)
            continue
        reason, human = _obstacle(observed, members, instance, loss, policy, {*going, *bouncing})
        if reason:
            waiting[broker] = reason
            if human:
                blocked.append(f"broker {broker} is to be replaced ({loss.reason}), but {reason}")
            continue
        going.append(broker)
        steps.append(ReplaceBroker(broker, loss.reason))
    return Replacing(tuple(steps), waiting, "; ".join(blocked))


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
    """(what the broker waits for or "", whether a human has to decide)."""
    broker = instance.id
    if loss.kind == "Forced":
        return "", False
    waited_ms = observed.now_ms - (instance.started_at_ms or 0)
    if loss.kind == "Unreachable" and waited_ms < parse_duration_ms(policy.timeout):
        return f"its volume to come back within {policy.timeout}: {loss.reason}", False
    if not observed.kafka.settled:
        if loss.kind == "Gone" and _all_gone(observed, members):
            return "", False
        return "a controller: none is in office to say what the broker holds", False
    if observed.in_service(broker):
        down = [b for b in sorted(members) if b != broker and not observed.in_service(b)]
        for other in (*sorted(going), *down):
            return f"broker {other}, which is down", False
        blocking = blocking_partition(observed, broker) or _catching_up(observed, broker)
        if blocking:
            return blocking, False
    elif broker in observed.kafka.brokers:
        return "the cluster to notice that it is down", False
    return _would_be_lost(observed, broker, going, gone=loss.kind == "Gone")


def _all_gone(observed: Observed, members: Collection[int]) -> bool:
    losses = (observed.brokers[b].volume_loss if b in observed.brokers else None for b in members)
    return all(loss is not None and loss.kind == "Gone" for loss in losses)


def _catching_up(observed: Observed, broker: int) -> str:
    """A copy that is sound is not given up while another one is not whole."""
    for partition in observed.kafka.holding(broker):
        for other in partition.settled_replicas:
            if other != broker and other not in partition.isr:
                return f"broker {other} to catch up on {partition.name}"
    return ""


def _would_be_lost(
    observed: Observed, broker: int, going: Collection[int], *, gone: bool
) -> tuple[str, bool]:
    for partition in observed.kafka.holding(broker):
        in_sync = [other for other in partition.isr if other != broker]
        if any(observed.in_service(other) and other not in going for other in in_sync):
            continue
        if in_sync:
            return f"broker {in_sync[0]}: it has {partition.name} in sync, and is not in service", False
        if broker in partition.adding or (gone and set(partition.replicas) == {broker}):
            continue
        force = f"{DELETE_VOLUME_ANNOTATION}: force"
        return f"{partition.name} would be lost: no other replica is in sync; {force} gives it up", True
    return "", False

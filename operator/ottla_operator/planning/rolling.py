"""The rolling restart: which broker to restart (bounce) next, and why each of the others waits.

One pure function, `plan_roll`, called by `planning.cluster`. The rules, in the order in which they apply:

1. While a bounced broker does not come up on the new revision, no other is bounced: the cluster stays
   available on the old one.
2. Brokers on the old revision that are not in service are bounced first: this makes nothing unavailable. A
   broker that is starting may be recovering its logs, and is left alone for up to `timeout`, unless its
   process has not started (no node, no image).
3. Then those in service, by id, the controller last. Such a broker is bounced only when
   a. all brokers that are down are in its rack and fewer than `maxUnavailablePerRack` (without racks: none is
      down), and no broker is fenced;
   b. the brokers bounced before have been ready for `minReadySeconds` and are in all ISRs again, and no
      ZooKeeper server is being restarted;
   c. every partition with a replica on it keeps `min.insync.replicas` without it and without the others
      bounced in the same step. A partition with replication factor <= min ISR is exempt, as long as another
      replica is in sync.

A broker whose volumes must be empty first (`planning.volumes`) is left out meanwhile, and the others do not
wait for it. While restarts are held (`planning.holds`), rules 2 and 3 apply to urgent ones only, and to
brokers that the operator has stopped already, or that cannot come up on the old revision.

Invariant (tested by property): the brokers bounced in one step never take a partition below its min ISR, and
never make more than `maxUnavailablePerRack` brokers of one rack, or brokers of two racks, unavailable.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from ottla_operator.planning.holds import POOL_PAUSED, Hold
from ottla_operator.planning.observed import BrokerInstance, Observed, PartitionState, TopicState
from ottla_operator.resources.cluster import RollingUpdate
from ottla_operator.resources.common import parse_duration_ms

# One crash may be accidental; two in a row are attributed to the revision.
CRASHES_MAX = 2


@dataclass(frozen=True, slots=True)
class Roll:
    """The decision of one reconciliation. `bounce` may be empty while brokers wait."""

    bounce: tuple[int, ...] = ()
    waiting: Mapping[int, str] = field(default_factory=dict)
    """For each broker that still has to be bounced: what it waits for."""
    updated: int = 0
    total: int = 0
    stalled: str = ""
    """Why the roll has stopped: a bounced broker did not come up within the timeout."""
    hold: Hold | None = None
    """Why no other broker may be bounced now, when all that have begun are back."""

    @property
    def done(self) -> bool:
        return not self.bounce and not self.waiting

    @property
    def rests(self) -> bool:
        """Whether no broker is being bounced, nor will be before the hold ends."""
        return self.done or self.hold is not None


def plan_roll(
    observed: Observed,
    targets: Mapping[int, str],
    policy: RollingUpdate,
    *,
    approved: bool = True,
    fenced: Collection[int] = (),
    hold: Hold | None = None,
    urgent: Collection[int] = (),
    emptying: Mapping[int, str] | None = None,
    paused: Collection[int] = (),
) -> Roll:
    """Decide over the brokers in `targets`, which are all desired, with the revision that each should run.
    `approved`: the strategy allows the roll; `fenced`: other brokers, which are down on purpose; `hold`: why
    only the brokers `urgent` may begin; `emptying`: what brokers wait for whose volumes must be empty
    first; `paused`: brokers that must not restart, in BrokerPools that are paused."""
    members = sorted(targets)
    stale = [b for b in members if b in observed.brokers and observed.brokers[b].config_hash != targets[b]]
    total = len(members)
    if not stale:
        return Roll(updated=total, total=total)
    updated = total - len(stale)
    # Without brokers that have not been started yet.
    bounced = [b for b in members if b not in stale and b in observed.brokers]

    def all_waiting(reason: str, stalled: str = "") -> Roll:
        return Roll((), dict.fromkeys(stale, reason), updated, total, stalled)

    if not approved:
        return all_waiting("approval of the rollout")
    not_back = [b for b in bounced if not observed.in_service(b)]
    if not_back:
        return all_waiting(*_not_back(observed, not_back[0], targets[not_back[0]], policy))
    left = {broker: POOL_PAUSED.message for broker in stale if broker in paused}
    stale = [b for b in stale if b not in left]
    full = {broker: reason for broker, reason in (emptying or {}).items() if broker in stale}
    stale = [b for b in stale if b not in full]
    held = dict[int, str]()
    if hold is not None:
        held = {b: hold.message for b in stale if b not in urgent and not _is_due(observed, b, policy)}
        stale = [b for b in stale if b not in held]
    if not stale:
        rests = hold if held else POOL_PAUSED if left and not full else None
        return Roll((), {**left, **full, **held}, updated, total, hold=rests)
    out = [b for b in stale if not observed.in_service(b)]
    reason = _waiting_for_bounced(observed, bounced, policy)
    if fenced:
        reason = f"broker {min(fenced)}, which is fenced"
    if not observed.kafka.has_controller:
        reason = "a controller to be elected"
    if observed.zookeeper.restarting is not None:
        reason = f"ZooKeeper server {observed.zookeeper.restarting}, which is being restarted"
    if out:
        roll = _roll_unready(observed, stale, out, policy, updated, total)
    elif reason:
        roll = all_waiting(reason)
    else:
        roll = _roll_ready(observed, members, stale, policy, updated, total)
    return replace(roll, waiting={**left, **full, **held, **roll.waiting})


def _not_back(observed: Observed, broker: int, target_hash: str, policy: RollingUpdate) -> tuple[str, str]:
    """(what all other brokers wait for, why the roll has stalled or "")."""
    instance = observed.brokers[broker]
    detail = f": {instance.message}" if instance.message else ""
    reason = f"broker {broker}, which is {_word(observed, instance)} on revision {target_hash}{detail}"
    late = _late(observed, instance, policy)
    failed = late or instance.crashes >= CRASHES_MAX
    stalled = f"broker {broker} does not come up on revision {target_hash}{detail}" if failed else ""
    return reason, stalled


def _is_due(observed: Observed, broker: int, policy: RollingUpdate) -> bool:
    """Whether the restart has begun already, or the broker cannot come up without it."""
    instance = observed.brokers[broker]
    if observed.in_service(broker):
        return False
    return instance.stopped_by_us or instance.crashes >= CRASHES_MAX or _late(observed, instance, policy)


def _late(observed: Observed, instance: BrokerInstance, policy: RollingUpdate) -> bool:
    started_ms = instance.started_at_ms
    return started_ms is not None and observed.now_ms - started_ms > parse_duration_ms(policy.timeout)


def _word(observed: Observed, instance: BrokerInstance) -> str:
    if instance.state != "Running":
        return instance.state.lower()
    return "not registered yet" if instance.ready else "not ready yet"


def _roll_unready(
    observed: Observed, stale: list[int], out: list[int], policy: RollingUpdate, updated: int, total: int
) -> Roll:
    """Bounce one broker that is out of service; all others wait for it. One that the operator has stopped
    is first."""
    out = sorted(out, key=lambda broker: (not observed.brokers[broker].stopped_by_us, broker))
    waiting: dict[int, str] = {}
    for broker in out:
        instance = observed.brokers[broker]
        in_transition = instance.state == "Stopping" or (
            instance.state == "Starting" and instance.process_started
        )
        if in_transition and not _late(observed, instance, policy):
            detail = f": {instance.message}" if instance.message else ""
            waiting[broker] = f"itself: it is {instance.state.lower()}{detail}"
    # A broker in transition may be the first on the new revision: no other is bounced before it has come up.
    going = out[0] if not waiting or observed.brokers[out[0]].stopped_by_us else None
    first = going if going is not None else next(iter(waiting))
    for broker in stale:
        if broker != going:
            waiting.setdefault(broker, f"broker {first}, which is not in service")
    return Roll((going,) if going is not None else (), waiting, updated, total)


def _waiting_for_bounced(observed: Observed, bounced: list[int], policy: RollingUpdate) -> str:
    """What to wait for until the brokers bounced before are ready and in sync, or ""."""
    for broker in bounced:
        ready_since = observed.brokers[broker].ready_since_ms
        wait_ms = policy.min_ready_seconds * 1000
        if ready_since is not None and observed.now_ms - ready_since < wait_ms:
            return f"broker {broker} to be ready for {policy.min_ready_seconds} s"
    for partition in observed.kafka.partitions():
        for broker in bounced:
            if broker in partition.origin_replicas and broker not in partition.isr:
                return f"broker {broker} to rejoin the ISR of {partition.name}"
    return ""


def _roll_ready(
    observed: Observed,
    members: Collection[int],
    stale: list[int],
    policy: RollingUpdate,
    updated: int,
    total: int,
) -> Roll:
    controller = observed.kafka.controller_id
    order = sorted(stale, key=lambda broker: (broker == controller, broker))
    down = {broker for broker in members if not observed.in_service(broker)}
    going: list[int] = []
    waiting: dict[int, str] = {}
    for broker in order:
        reason = ""
        if broker == controller and any(other not in going for other in stale if other != broker):
            reason = "all other brokers: it is the controller"
        reason = (
            reason
            or _rack_limit(observed, broker, down, going, policy)
            or blocking_partition(observed, broker, going)
        )
        if reason:
            waiting[broker] = reason
        else:
            going.append(broker)
    return Roll(tuple(going), waiting, updated, total)


def _rack_limit(
    observed: Observed, broker: int, down: Collection[int], going: Collection[int], policy: RollingUpdate
) -> str:
    """Why the broker may not be down together with those that are down or about to be bounced; or ""."""
    out = sorted({*down, *going})
    rack = observed.brokers[broker].rack
    for other in out:
        instance = observed.brokers.get(other)
        if rack is None or instance is None or instance.rack != rack:
            return f"broker {other}, which is {'being restarted' if other in going else 'down'}"
    if len(out) >= policy.max_unavailable_per_rack:
        return f"broker {out[0]}: {len(out)} brokers of rack {rack} are down"
    return ""


def blocking_partition(observed: Observed, broker: int, going: Collection[int] = ()) -> str:
    """A description of the first partition that would be unavailable without the broker and those in
    `going`, or ""."""
    down = {other for other in observed.brokers if not observed.in_service(other)}
    gone = {broker, *going, *down}
    for topic, partition in observed.kafka.with_topic():
        if broker not in partition.replicas:
            continue
        problem = _cannot_spare(topic, partition, broker, gone)
        if problem:
            return problem
    return ""


def _cannot_spare(topic: TopicState, partition: PartitionState, broker: int, gone: set[int]) -> str:
    left = [other for other in partition.isr if other not in gone]
    # During a reassignment all replicas count, including those being added and removed.
    factor = len(partition.replicas)
    if factor <= topic.min_isr:
        # It cannot keep its min ISR, but it must not go offline.
        if factor > 1 and not left and broker in partition.isr:
            return f"{partition.name}: it has the only replica in sync"
        return ""
    if len(left) < topic.min_isr:
        return (
            f"{partition.name}: {len(left)} replicas would be left in sync, "
            f"min.insync.replicas is {topic.min_isr}"
        )
    return ""

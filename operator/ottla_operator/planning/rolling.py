"""Which broker to bounce next, and why each of the others waits.

One pure function, `plan_roll`, called by `planning.cluster` on every pass. The rules, in the order in which
they are asked (reference/operator.md, "Rolling bounce"):

1. A broker bounced before that does not come up on the new revision holds all others: the cluster stays
   available on the old one.
2. Brokers on the old revision that are not in service go first: bouncing them takes nothing away. One that
   is starting is left to finish, for it may be recovering its logs, unless that takes longer than `timeout`;
   one that has no node or no image yet has nothing to finish.
3. Then those in service, by id, the controller last. Such a broker goes only when
   a. brokers that are down are of its own rack and fewer than `maxUnavailablePerRack` (without racks: none
      is down);
   b. brokers bounced before have been ready for `minReadySeconds` and are in every ISR again;
   c. every partition with a replica on it keeps `min.insync.replicas` without it and without the others that
      are going. Where replication factor <= min ISR it cannot, and is exempt, as long as another
      replica is in sync.

Invariant (tested by property): what goes in one step never takes a partition below its min ISR, and never
makes more than `maxUnavailablePerRack` brokers of one rack, or brokers of two racks, unavailable.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ottla_operator.planning.observed import BrokerInstance, Observed, PartitionState, TopicState
from ottla_operator.resources.cluster import RollingUpdate
from ottla_operator.resources.common import parse_duration_ms

# One crash may be chance; a second one in a row is the revision's.
CRASHES_MAX = 2


@dataclass(frozen=True, slots=True)
class Roll:
    """The decision of one pass. `bounce` may be empty while brokers wait."""

    bounce: tuple[int, ...] = ()
    waiting: Mapping[int, str] = field(default_factory=dict)
    """For each broker that still has to be bounced: what it waits for."""
    updated: int = 0
    total: int = 0
    stalled: str = ""
    """Set when a bounced broker is not back within the timeout; the roll does not go on by itself."""

    @property
    def done(self) -> bool:
        return not self.bounce and not self.waiting


def plan_roll(
    observed: Observed,
    members: Collection[int],
    target_hash: str,
    policy: RollingUpdate,
    *,
    approved: bool = True,
) -> Roll:
    """Decide over the brokers `members`, which are all desired. `approved`: the strategy lets it begin."""
    stale = [
        b for b in sorted(members) if b in observed.brokers and observed.brokers[b].config_hash != target_hash
    ]
    total = len(members)
    if not stale:
        return Roll(updated=total, total=total)
    updated = total - len(stale)
    # Without those that are yet to be started for the first time.
    bounced = [b for b in sorted(members) if b not in stale and b in observed.brokers]

    def held(reason: str, stalled: str = "") -> Roll:
        return Roll((), dict.fromkeys(stale, reason), updated, total, stalled)

    if not approved:
        return held("approval of the rollout")
    not_back = [b for b in bounced if not observed.in_service(b)]
    if not_back:
        return held(*_not_back(observed, not_back[0], target_hash, policy))
    out = [b for b in stale if not observed.in_service(b)]
    if out:
        return _roll_unready(observed, stale, out, policy, updated, total)
    settling = _settling(observed, bounced, policy)
    if not observed.kafka.settled:
        settling = "a controller: none is in office"
    if settling:
        return held(settling)
    return _roll_ready(observed, members, stale, policy, updated, total)


def _not_back(observed: Observed, broker: int, target_hash: str, policy: RollingUpdate) -> tuple[str, str]:
    """(what all others wait for, why the roll is stalled or "")."""
    instance = observed.brokers[broker]
    detail = f": {instance.message}" if instance.message else ""
    reason = f"broker {broker}, which is {_word(observed, instance)} on revision {target_hash}{detail}"
    late = _late(observed, instance, policy)
    stuck = late or instance.crashes >= CRASHES_MAX
    stalled = f"broker {broker} does not come up on revision {target_hash}{detail}" if stuck else ""
    return reason, stalled


def _late(observed: Observed, instance: BrokerInstance, policy: RollingUpdate) -> bool:
    started_ms = instance.started_at_ms
    return started_ms is not None and observed.now_ms - started_ms > parse_duration_ms(policy.timeout)


def _word(observed: Observed, instance: BrokerInstance) -> str:
    if instance.state != "Running":
        return instance.state.lower()
    return "not registered yet" if instance.ready else "not answering yet"


def _roll_unready(
    observed: Observed, stale: list[int], out: list[int], policy: RollingUpdate, updated: int, total: int
) -> Roll:
    """One that is out of service goes; all others wait for it. One that was stopped for this is due first."""
    out = sorted(out, key=lambda broker: (not observed.brokers[broker].stopped_by_us, broker))
    waiting: dict[int, str] = {}
    for broker in out:
        instance = observed.brokers[broker]
        on_its_way = instance.state == "Stopping" or (instance.state == "Starting" and instance.begun)
        if on_its_way and not _late(observed, instance, policy):
            waiting[broker] = f"itself: it is {instance.state.lower()}"
    # One on its way may be the first on the new revision: no other follows before it is seen to come up.
    going = out[0] if not waiting or observed.brokers[out[0]].stopped_by_us else None
    first = going if going is not None else next(iter(waiting))
    for broker in stale:
        if broker != going:
            waiting.setdefault(broker, f"broker {first}, which is not in service")
    return Roll((going,) if going is not None else (), waiting, updated, total)


def _settling(observed: Observed, bounced: list[int], policy: RollingUpdate) -> str:
    """What the brokers bounced before are still doing, or ""."""
    for broker in bounced:
        ready_since = observed.brokers[broker].ready_since_ms
        wait_ms = policy.min_ready_seconds * 1000
        if ready_since is not None and observed.now_ms - ready_since < wait_ms:
            return f"broker {broker} to be ready for {policy.min_ready_seconds} s"
    for partition in observed.kafka.partitions():
        for broker in bounced:
            if broker in partition.settled_replicas and broker not in partition.isr:
                return f"broker {broker} to catch up on {partition.name}"
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
            reason = "all others: it is the controller"
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
    """Why the broker may not be down together with those that are, or are about to be; or ""."""
    out = sorted({*down, *going})
    rack = observed.brokers[broker].rack
    for other in out:
        instance = observed.brokers.get(other)
        if rack is None or instance is None or instance.rack != rack:
            return f"broker {other}, which is {'being bounced' if other in going else 'down'}"
    if len(out) >= policy.max_unavailable_per_rack:
        return f"broker {out[0]}: {len(out)} of rack {rack} are down already"
    return ""


def blocking_partition(observed: Observed, broker: int, going: Collection[int] = ()) -> str:
    """The first partition that cannot spare the broker (with those going too), in words, or ""."""
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
    # While it is reassigned all its replicas count: it may have more to lose than in the end.
    factor = len(partition.replicas)
    if factor <= topic.min_isr:
        # It cannot keep its min ISR; at least it need not go offline.
        if factor > 1 and not left and broker in partition.isr:
            return f"{partition.name}, of which it has the only replica in sync"
        return ""
    if len(left) < topic.min_isr:
        return (
            f"{partition.name}: {len(left)} replicas would stay in sync, "
            f"min.insync.replicas is {topic.min_isr}"
        )
    return ""

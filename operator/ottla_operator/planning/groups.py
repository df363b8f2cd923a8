"""Plans ConsumerGroup resources: a group's state and lag in the status, and the reset of its offsets.

Called by `reconcile`. A resource creates no group. The only change of offsets is a reset that the spec
requests, once per `requestId`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla_operator.conditions import Finding, iso_time, no, unknown, yes
from ottla_operator.planning.observed import GroupQuery, GroupState, Observed, PartitionKey, partition_name
from ottla_operator.planning.steps import DeleteGroup, ResetOffsets, ResourcePlan
from ottla_operator.resources import ConsumerGroup, ConsumerGroupStatus
from ottla_operator.resources.group import LastReset, OffsetReset, TopicLag


def plan_group(group: ConsumerGroup, observed: Observed, usable: bool) -> ResourcePlan[ConsumerGroupStatus]:
    """`usable`: the cluster has a controller that responds."""
    state = observed.kafka.groups.get(group.group_id)
    if group.metadata.deleting:
        return _plan_deletion(group, observed, usable)
    if not usable or state is None:
        reason, message = "ClusterNotReady", "the cluster is not reachable: the group cannot be observed"
        unseen = (no("Ready", reason, message), unknown("LagWithinLimit", reason))
        return ResourcePlan(group, unseen, group.status, keep_status=True)
    if state.state == "Dead":
        ready = yes(
            "Ready", "NoSuchGroup", f"group {group.group_id} does not exist yet: no client has joined it"
        )
    elif group.spec.offsets_storage == "zookeeper":
        ready = yes("Ready", "Observed", "the group commits to ZooKeeper; its members are not observed")
    else:
        ready = yes("Ready", "Observed", f"{state.state}, {state.members} members")
    lags = state.lags
    total = sum(lags.values()) if lags is not None else group.status.total_lag
    reset = plan_reset(group, state, observed.now_ms)
    status = ConsumerGroupStatus(
        state=state.state,
        members=state.members,
        coordinator=state.coordinator,
        total_lag=total,
        topics=[TopicLag(name=name, lag=lag) for name, lag in sorted(lags.items())]
        if lags is not None
        else group.status.topics,
        last_reset=reset.last,
    )
    status_when_done = (
        status.model_copy(update={"last_reset": reset.last_when_done}) if reset.last_when_done else None
    )
    findings = (ready, _lag_finding(group, lags, total), *reset.findings)
    return ResourcePlan(group, findings, status, reset.steps, status_when_done=status_when_done)


def _lag_finding(group: ConsumerGroup, lags: object, total: int) -> Finding:
    limit = group.spec.max_lag
    if lags is None:
        return unknown("LagWithinLimit", "NotObserved", "the group's offsets could not be read")
    if limit is None:
        return yes("LagWithinLimit", "NoLimit", f"{total} records behind")
    if total <= limit:
        return yes("LagWithinLimit", "WithinLimit", f"{total} records behind, at most {limit} are allowed")
    return no("LagWithinLimit", "LagTooHigh", f"{total} records behind, more than spec.maxLag of {limit}")


def _plan_deletion(
    group: ConsumerGroup, observed: Observed, usable: bool
) -> ResourcePlan[ConsumerGroupStatus]:
    findings = (no("Ready", "Deleting", "the resource is being deleted"),)
    if group.spec.deletion_policy == "Retain" or not group.metadata.managed:
        return ResourcePlan(group, findings, group.status, deletion_complete=True)
    state = observed.kafka.groups.get(group.group_id)
    if not usable or state is None:
        return ResourcePlan(group, findings, group.status)
    if state.state == "Dead":
        return ResourcePlan(group, findings, group.status, deletion_complete=True)
    if state.state != "Empty":
        message = f"the group has {state.members} members; its offsets are deleted when all have left"
        return ResourcePlan(group, (no("Ready", "Deleting", message),), group.status)
    return ResourcePlan(group, findings, group.status, (DeleteGroup(group.group_id),))


# ---- resets of offsets
#
# The offsets are computed and written to the status first, and committed from there in a later
# reconciliation: an operator that is killed in between commits the same offsets again, and shifts nothing
# twice. The coordinator rejects a commit for a group with members, so that a reset does not affect an active
# consumer. With `whenActive: Live`, the step removes the members, which join again and read from the new
# offsets.

CONDITION = "OffsetsReset"
_WITHOUT_MEMBERS = ("Empty", "Dead")


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """The plan for the requested reset of a group's offsets."""

    findings: tuple[Finding, ...] = ()
    last: LastReset | None = None
    """The reset's status."""
    steps: tuple[ResetOffsets, ...] = ()
    last_when_done: LastReset | None = None
    """The reset's status after the steps have succeeded."""


def query_of(group: ConsumerGroup) -> GroupQuery:
    """What to observe of the group besides its lag."""
    reset = pending(group)
    if group.spec.offsets_storage == "zookeeper":
        return GroupQuery(in_zookeeper=True)
    if reset is None or group.metadata.deleting:
        return GroupQuery()
    return GroupQuery(tuple(reset.topics), reset.value if reset.to == "timestamp" else None)


def pending(group: ConsumerGroup) -> OffsetReset | None:
    """The requested reset that has not ended; None: there is none."""
    reset, last = group.spec.offset_reset, group.status.last_reset
    if reset is None or (
        last is not None and last.request_id == reset.request_id and last.phase != "Pending"
    ):
        return None
    return reset


def plan_reset(group: ConsumerGroup, state: GroupState, now_ms: int) -> ResetPlan:
    """The next phase of the requested reset."""
    wanted, last = group.spec.offset_reset, group.status.last_reset
    if wanted is None:
        return ResetPlan(last=last)
    reset = pending(group)
    if reset is None:
        assert last is not None
        return ResetPlan((_over(last),), last)
    if state.positions is None:
        return ResetPlan(
            (no(CONDITION, "NotObserved", _of(reset, "the offsets could not be read yet")),), last
        )
    missing = [topic for topic in reset.topics if not any(key[0] == topic for key in state.positions.ends)]
    if missing:
        return _failed(reset, f"topic {missing[0]} does not exist", now_ms)
    idle = state.state in _WITHOUT_MEMBERS
    live = reset.when_active == "Live"
    if not idle and not live and not reset.dry_run:
        if reset.when_active == "Fail":
            return _failed(reset, f"the group has {state.members} members", now_ms)
        message = f"waiting for the group's {state.members} members to leave"
        waiting = LastReset(request_id=reset.request_id, phase="Pending")
        return ResetPlan((no(CONDITION, "GroupActive", _of(reset, message)),), waiting)
    chosen = last if last is not None and last.request_id == reset.request_id and last.after else None
    if chosen is None or reset.dry_run:
        return _choose(reset, state, now_ms)
    offsets = {_key(name): offset for name, offset in chosen.after.items()}
    step = ResetOffsets(group.group_id, offsets, live)
    finding = no(CONDITION, "Resetting", _of(reset, f"{len(chosen.after)} partitions"))
    done = chosen.model_copy(update={"phase": "Done", "completed_at": iso_time(now_ms)})
    return ResetPlan((finding,), chosen, (step,), done)


def targets(reset: OffsetReset, state: GroupState) -> dict[PartitionKey, int]:
    """The requested offsets. An offset out of range becomes the nearest one in range; a partition without
    a committed offset cannot be shifted and is left out."""
    positions = state.positions
    assert positions is not None
    offsets, value = state.offsets or {}, reset.value or 0
    chosen = {}
    for key, end in sorted(positions.ends.items()):
        start = positions.starts.get(key, end)
        if reset.to == "earliest":
            chosen[key] = start
        elif reset.to == "latest":
            chosen[key] = end
        elif reset.to == "timestamp":
            # No record is as late as that: the end offset.
            chosen[key] = positions.at_time.get(key, end)
        elif reset.to == "offset":
            chosen[key] = min(max(value, start), end)
        elif key in offsets:
            chosen[key] = min(max(offsets[key] + value, start), end)
    return chosen


def _choose(reset: OffsetReset, state: GroupState, now_ms: int) -> ResetPlan:
    after = {partition_name(key): offset for key, offset in targets(reset, state).items()}
    offsets = state.offsets or {}
    before = {partition_name(key): offset for key, offset in offsets.items() if partition_name(key) in after}
    if not after:
        return _failed(reset, "the group has no committed offset to shift", now_ms)
    last = LastReset(
        request_id=reset.request_id,
        phase="DryRun" if reset.dry_run else "Pending",
        before=before,
        after=after,
        completed_at=iso_time(now_ms) if reset.dry_run else "",
    )
    if reset.dry_run:
        return ResetPlan((_over(last),), last)
    return ResetPlan((no(CONDITION, "Resetting", _of(reset, f"{len(after)} partitions")),), last)


def _failed(reset: OffsetReset, message: str, now_ms: int) -> ResetPlan:
    last = LastReset(
        request_id=reset.request_id, phase="Failed", completed_at=iso_time(now_ms), message=message
    )
    return ResetPlan((_over(last),), last)


def _over(last: LastReset) -> Finding:
    request = f"request {last.request_id}"
    match last.phase:
        case "Failed":
            return no(CONDITION, "Failed", f"{request}: {last.message}; a new one needs a new requestId")
        case "DryRun":
            return yes(CONDITION, "DryRun", f"{request}: {len(last.after)} partitions would be reset")
        case _:
            return yes(CONDITION, "Done", f"{request}: {len(last.after)} partitions are reset")


def _of(reset: OffsetReset, message: str) -> str:
    return f"request {reset.request_id}: {message}"


def _key(name: str) -> PartitionKey:
    topic, _, partition = name.rpartition("-")
    return topic, int(partition)

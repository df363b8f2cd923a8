"""Plans ConsumerGroup resources: a group's state and lag in the status. They observe, and create no group.

Called by `reconcile`. The only change of offsets is a reset that the spec requests
(`planning.offset_resets`).
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla_operator.conditions import Finding, no, unknown, yes
from ottla_operator.planning.observed import Observed
from ottla_operator.planning.offset_resets import plan_reset
from ottla_operator.planning.steps import DeleteGroup, ResourceStep
from ottla_operator.resources import ConsumerGroup, ConsumerGroupStatus
from ottla_operator.resources.group import TopicLag


@dataclass(frozen=True, slots=True)
class GroupPlan:
    findings: tuple[Finding, ...]
    status: ConsumerGroupStatus
    steps: tuple[ResourceStep, ...] = ()
    deletion_complete: bool = False
    keep_status: bool = False
    """The cluster cannot be observed: the status of the current generation stays."""
    status_when_done: ConsumerGroupStatus | None = None
    """The status after the steps have succeeded."""


def plan_group(group: ConsumerGroup, observed: Observed, usable: bool) -> GroupPlan:
    """`usable`: the cluster has a controller that responds."""
    state = observed.kafka.groups.get(group.group_id)
    if group.metadata.deleting:
        return _plan_deletion(group, observed, usable)
    if not usable or state is None:
        reason, message = "ClusterNotReady", "the cluster is not reachable: the group cannot be observed"
        unseen = (no("Ready", reason, message), unknown("LagWithinLimit", reason))
        return GroupPlan(unseen, group.status, keep_status=True)
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
    return GroupPlan(findings, status, reset.steps, status_when_done=status_when_done)


def _lag_finding(group: ConsumerGroup, lags: object, total: int) -> Finding:
    limit = group.spec.max_lag
    if lags is None:
        return unknown("LagWithinLimit", "NotObserved", "the group's offsets could not be read")
    if limit is None:
        return yes("LagWithinLimit", "NoLimit", f"{total} records behind")
    if total <= limit:
        return yes("LagWithinLimit", "WithinLimit", f"{total} records behind, at most {limit} are allowed")
    return no("LagWithinLimit", "LagTooHigh", f"{total} records behind, more than spec.maxLag of {limit}")


def _plan_deletion(group: ConsumerGroup, observed: Observed, usable: bool) -> GroupPlan:
    findings = (no("Ready", "Deleting", "the resource is being deleted"),)
    if group.spec.deletion_policy == "Retain" or not group.metadata.managed:
        return GroupPlan(findings, group.status, deletion_complete=True)
    state = observed.kafka.groups.get(group.group_id)
    if not usable or state is None:
        return GroupPlan(findings, group.status)
    if state.state == "Dead":
        return GroupPlan(findings, group.status, deletion_complete=True)
    if state.state != "Empty":
        message = f"the group has {state.members} members; its offsets are deleted when all have left"
        return GroupPlan((no("Ready", "Deleting", message),), group.status)
    return GroupPlan(findings, group.status, (DeleteGroup(group.group_id),))

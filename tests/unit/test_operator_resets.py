"""Resets of a group's offsets: the target offsets, their record in the status, and the commit."""

from __future__ import annotations

from typing import Any

import pytest

from ottla_operator.planning.groups import plan_reset, query_of, targets
from ottla_operator.planning.observed import GroupQuery, GroupState, Positions
from ottla_operator.planning.steps import ResetOffsets
from ottla_operator.resources import ConsumerGroup
from ottla_operator.resources.group import OffsetReset
from ottla_operator.resources.loading import parse_resource
from tests.worlds.operator_simulation import OperatorSimulation

NOW_MS = 1_700_000_000_000
POSITIONS = Positions(
    starts={("t", 0): 10, ("t", 1): 0}, ends={("t", 0): 100, ("t", 1): 50}, at_time={("t", 0): 42}
)


def a_group(reset: dict[str, Any] | None, last: dict[str, Any] | None = None) -> ConsumerGroup:
    spec: dict[str, Any] = {"clusterRef": {"name": "demo"}}
    if reset is not None:
        spec["offsetReset"] = {"requestId": "1", "topics": ["t"], **reset}
    status = {"lastReset": last} if last is not None else {}
    group, problems = parse_resource("ConsumerGroup", {"name": "readers"}, spec, status)
    assert not problems
    assert isinstance(group, ConsumerGroup)
    return group


def a_state(state: str = "Empty", **more: Any) -> GroupState:
    offsets = {("t", 0): 60, ("other", 0): 5}
    return GroupState(
        "readers", state, members=2, **{"lags": {}, "offsets": offsets, "positions": POSITIONS, **more}
    )


@pytest.mark.parametrize(
    ("to", "value", "chosen"),
    [
        ("earliest", None, {("t", 0): 10, ("t", 1): 0}),
        ("latest", None, {("t", 0): 100, ("t", 1): 50}),
        ("timestamp", 1, {("t", 0): 42, ("t", 1): 50}),
        ("offset", 20, {("t", 0): 20, ("t", 1): 20}),
        ("offset", 1, {("t", 0): 10, ("t", 1): 1}),
        ("offset", 70, {("t", 0): 70, ("t", 1): 50}),
        ("shiftBy", -20, {("t", 0): 40}),
        ("shiftBy", -200, {("t", 0): 10}),
        ("shiftBy", 200, {("t", 0): 100}),
    ],
)
def test_an_offset_out_of_range_becomes_the_nearest_in_range(
    to: Any, value: int | None, chosen: dict[Any, int]
) -> None:
    reset = OffsetReset(request_id="1", topics=["t"], to=to, value=value)
    assert targets(reset, a_state()) == chosen


def test_target_offsets_are_recorded_in_the_status_before_they_are_committed() -> None:
    first = plan_reset(a_group({"to": "shiftBy", "value": -20}), a_state(), NOW_MS)
    assert first.steps == ()
    assert first.last is not None
    assert (first.last.phase, first.last.before, first.last.after) == ("Pending", {"t-0": 60}, {"t-0": 40})


def test_the_recorded_offsets_are_committed_even_if_offsets_have_changed() -> None:
    last = {"requestId": "1", "phase": "Pending", "before": {"t-0": 60}, "after": {"t-0": 40}}
    group = a_group({"to": "shiftBy", "value": -20}, last)
    plan = plan_reset(group, a_state(offsets={("t", 0): 40}), NOW_MS)
    assert plan.steps == (ResetOffsets("readers", {("t", 0): 40}),)
    assert plan.last_when_done is not None
    assert plan.last_when_done.phase == "Done"


@pytest.mark.parametrize("phase", ["Done", "Failed", "DryRun"])
def test_a_reset_is_done_once_per_request_id(phase: str) -> None:
    group = a_group({"to": "earliest"}, {"requestId": "1", "phase": phase, "after": {"t-0": 10}})
    assert plan_reset(group, a_state(), NOW_MS).steps == ()
    assert query_of(group) == GroupQuery()


def test_a_new_request_id_is_a_new_reset() -> None:
    group = a_group({"to": "earliest", "requestId": "2"}, {"requestId": "1", "phase": "Done"})
    plan = plan_reset(group, a_state(), NOW_MS)
    assert plan.last is not None
    assert (plan.last.request_id, plan.last.phase) == ("2", "Pending")


def test_a_reset_waits_for_the_members_of_the_group_to_leave() -> None:
    last = {"requestId": "1", "phase": "Pending", "after": {"t-0": 40}}
    plan = plan_reset(a_group({"to": "earliest"}, last), a_state("Stable"), NOW_MS)
    assert plan.steps == ()
    assert [finding.reason for finding in plan.findings] == ["GroupActive"]
    assert plan.last is not None
    assert plan.last.after == {}, "they are computed again once the members have left"


def test_when_active_fail_fails_the_reset_of_an_active_group() -> None:
    plan = plan_reset(a_group({"to": "earliest", "whenActive": "Fail"}), a_state("Stable"), NOW_MS)
    assert plan.last is not None
    assert (plan.last.phase, plan.last.message) == ("Failed", "the group has 2 members")


def test_when_active_live_resets_an_active_group() -> None:
    reset = {"to": "shiftBy", "value": -20, "whenActive": "Live"}
    first = plan_reset(a_group(reset), a_state("Stable"), NOW_MS)
    assert first.steps == ()
    assert first.last is not None
    then = plan_reset(a_group(reset, first.last.model_dump(by_alias=True)), a_state("Stable"), NOW_MS)
    assert then.steps == (ResetOffsets("readers", {("t", 0): 40}, live=True),)
    assert then.last_when_done is not None
    assert then.last_when_done.phase == "Done"


def test_a_dry_run_reports_the_offsets_also_of_an_active_group() -> None:
    plan = plan_reset(a_group({"to": "latest", "dryRun": True}), a_state("Stable"), NOW_MS)
    assert plan.steps == ()
    assert plan.last is not None
    assert (plan.last.phase, plan.last.after) == ("DryRun", {"t-0": 100, "t-1": 50})


def test_a_topic_that_does_not_exist_fails_the_request() -> None:
    plan = plan_reset(a_group({"to": "latest", "topics": ["t", "nope"]}), a_state(), NOW_MS)
    assert plan.last is not None
    assert plan.last.message == "topic nope does not exist"


def test_a_reset_waits_until_offsets_can_be_read() -> None:
    plan = plan_reset(a_group({"to": "latest"}), a_state(positions=None), NOW_MS)
    assert (plan.steps, plan.last) == ((), None)
    assert [finding.reason for finding in plan.findings] == ["NotObserved"]


def test_only_a_reset_to_a_timestamp_queries_offsets_by_time() -> None:
    assert query_of(a_group({"to": "timestamp", "value": 7})) == GroupQuery(("t",), 7)
    assert query_of(a_group({"to": "offset", "value": 7})) == GroupQuery(("t",), None)
    assert query_of(a_group(None)) == GroupQuery()


def test_a_reset_is_planned_recorded_and_committed() -> None:
    sim = OperatorSimulation()
    sim.apply_cluster()
    sim.reconcile_until_ready()
    sim.cluster.groups["readers"] = a_state()
    spec = {
        "clusterRef": {"name": "demo"},
        "offsetReset": {"requestId": "1", "topics": ["t"], "to": "earliest"},
    }
    sim.apply("ConsumerGroup", "readers", spec)
    for _ in range(4):
        sim.reconcile()
    assert sim.condition("ConsumerGroup/readers", "OffsetsReset")[:2] == ("True", "Done")
    assert sim.cluster.groups["readers"].offsets == {("t", 0): 10, ("t", 1): 0, ("other", 0): 5}
    committed = [line for line in sim.cluster.log if "reset the offsets" in line]
    assert len(committed) == 1

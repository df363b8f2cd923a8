"""The reset of a group's offsets: the plan by tables, the wizard over a cluster in memory."""

from __future__ import annotations

import html
import json
import logging
import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from ottla.client import errors
from ottla.client.admin_types import GroupDescription, GroupMember, Node, TopicPartition
from ottla_console.pages.resets.plan import (
    Change,
    Invalid,
    Plan,
    Rule,
    Target,
    blockers,
    edited,
    numbers_of,
    plan_from,
    plan_of,
    rule_of,
    selected,
)
from tests.worlds.console_cluster import FakeCluster

ORIGIN = {"origin": "http://127.0.0.1"}
NOW_MS = 1_780_000_000_000
TP = TopicPartition("orders", 0)
START, END = 100, 1000


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, None),
        ({"to": "earliest"}, Rule(Target.EARLIEST)),
        ({"to": "time", "time.value": "2026-05-28T20:26:40"}, Rule(Target.TIME, NOW_MS)),
        ({"to": "time", "time.value": "2026-05-28T22:26:40+02:00"}, Rule(Target.TIME, NOW_MS)),
        (
            {"to": "duration", "duration.value": "1", "duration.unit": "h"},
            Rule(Target.DURATION, NOW_MS - 3_600_000),
        ),
        ({"to": "duration", "duration.value": "999999999", "duration.unit": "d"}, Rule(Target.DURATION, 0)),
        ({"to": "shift", "shift.value": "-50"}, Rule(Target.SHIFT, -50)),
        ({"to": "offset", "offset.value": "7"}, Rule(Target.OFFSET, 7)),
    ],
)
def test_the_form_becomes_a_rule(params: dict[str, str], expected: Rule | None) -> None:
    assert rule_of(params, NOW_MS) == expected


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"to": "yesterday"}, "is no target"),
        ({"to": "time", "time.value": "noon"}, "a date and a time"),
        ({"to": "duration", "duration.value": "-1"}, "a whole number from 0"),
        ({"to": "shift", "shift.value": ""}, "a whole number"),
        ({"to": "offset", "offset.value": "-1"}, "a whole number from 0"),
        ({"to": "offset", "offset.value": str(2**63)}, "a whole number"),
    ],
)
def test_a_choice_that_is_not_valid_says_what_is_allowed(params: dict[str, str], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        rule_of(params, NOW_MS)


@pytest.mark.parametrize(
    ("text", "expected"), [("", None), ("0", {0}), ("0, 2,5-7", {0, 2, 5, 6, 7}), (" 3-3 ", {3})]
)
def test_partitions_are_numbers_and_ranges(text: str, expected: set[int] | None) -> None:
    assert numbers_of(text) == expected


@pytest.mark.parametrize("text", ["x", "3-1", "1-", "-1", "0-99999999", "1,,2"])
def test_other_texts_are_no_partitions(text: str) -> None:
    with pytest.raises(Invalid, match="no partitions"):
        numbers_of(text)


def test_a_selection_has_all_partitions_of_a_topic_or_those_named() -> None:
    known = {"a": [0, 1, 2], "b": [0]}
    only = {"a": "0,2"}
    found = selected(["b", "a", "a"], lambda topic: only.get(topic, ""), known)
    assert found == [("a", 0), ("a", 2), ("b", 0)]
    with pytest.raises(Invalid, match="no partition 3"):
        selected(["a"], lambda _: "3", known)
    with pytest.raises(Invalid, match="no topic c"):
        selected(["c"], lambda _: "", known)
    with pytest.raises(Invalid, match="at least one topic"):
        selected([], lambda _: "", known)


@pytest.mark.parametrize(
    ("rule", "committed", "at_time", "after", "note"),
    [
        (Rule(Target.EARLIEST), 500, None, START, ""),
        (Rule(Target.LATEST), 500, None, END, ""),
        (Rule(Target.CURRENT), 500, None, 500, ""),
        (Rule(Target.CURRENT), None, None, END, "nothing is committed"),
        (Rule(Target.CURRENT), 5, None, START, "first offset"),
        (Rule(Target.OFFSET, 700), 500, None, 700, ""),
        (Rule(Target.OFFSET, 7), 500, None, START, "first offset"),
        (Rule(Target.OFFSET, 7000), 500, None, END, "end offset"),
        (Rule(Target.SHIFT, -50), 500, None, 450, ""),
        (Rule(Target.SHIFT, -5000), 500, None, START, "first offset"),
        (Rule(Target.SHIFT, 5000), 500, None, END, "end offset"),
        (Rule(Target.SHIFT, 1), None, None, None, "no committed offset"),
        (Rule(Target.TIME, NOW_MS), 500, 640, 640, ""),
        (Rule(Target.DURATION, NOW_MS), 500, None, END, "no record is as late"),
    ],
)
def test_a_partition_gets_the_offset_that_kafkas_tool_gives(
    rule: Rule, committed: int | None, at_time: int | None, after: int | None, note: str
) -> None:
    before = {} if committed is None else {TP: committed}
    times = {} if at_time is None else {TP: at_time}
    (change,) = plan_of(rule, [TP], {TP: START}, {TP: END}, before, times).changes
    assert (change.before, change.after) == (committed, after)
    assert note in change.note
    assert bool(note) == bool(change.note)


def test_a_partition_without_a_leader_blocks_the_reset() -> None:
    plan = plan_of(Rule(Target.EARLIEST), [TP], {}, {}, {TP: 5}, {})
    assert [each.after for each in plan.blocked] == [None]


def test_a_plan_counts_the_records_that_are_read_again_and_those_that_are_skipped() -> None:
    plan = Plan(
        (Change("a", 0, 10, 4), Change("a", 1, 10, 10), Change("a", 2, 10, 15), Change("a", 3, None, 3))
    )
    assert (plan.again, plan.skipped, plan.moved) == (6, 5, 3)
    assert plan_from(plan.text).changes == plan.changes


@pytest.mark.parametrize("text", ["", "[]", "{}", '[["a", 0, 1, -4]]', '[["a", 0, 1, "5"]]', '[["a", 0]]'])
def test_a_plan_that_the_console_has_not_made_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        plan_from(text)


def test_fields_of_the_form_replace_the_offsets_of_the_plan() -> None:
    plan = Plan((Change("a", 0, 10, 4), Change("a", 1, 10, 4)))
    assert edited(plan, {"after:1:a": " 9 "}) == {("a", 0): 4, ("a", 1): 9}
    with pytest.raises(Invalid, match="a-1"):
        edited(plan, {"after:1:a": "x"})


def test_the_members_of_an_active_group_must_stop() -> None:
    members = (GroupMember("id-1", None, "web", "10.0.0.1", (TP,)), GroupMember("id-2", "s", "web", "h", ()))
    node = Node(0, "b", 9092)
    found = blockers(GroupDescription("g", "Stable", members, node))
    assert [(each.client, each.member, each.topics) for each in found] == [
        ("web", "id-1", ("orders",)),
        ("web", "s", ()),
    ]
    assert blockers(GroupDescription("g", "Empty", (), node)) == ()


# --- the wizard ---


def fields(page: str) -> dict[str, str]:
    """The fields of the form that applies a plan."""
    found = re.findall(r'<input[^>]*?name="([^"]+)" value="([^"]*)"', page)
    kept = ("csrf", "id", "plan")
    return {
        html.unescape(name): html.unescape(value)
        for name, value in found
        if name in kept or name.startswith("after:")
    }


def idle() -> FakeCluster:
    cluster = FakeCluster()
    cluster.idle.add("group-0000")
    return cluster


def preview(browser: TestClient, target: str = "to=earliest", topic: str = "topic-00000") -> Any:
    return browser.get(f"/c/test/group/reset?id=group-0000&topic={topic}&{target}")


def test_a_preview_shows_before_and_after_and_changes_nothing() -> None:
    cluster = idle()
    with cluster.console(writes=True) as browser:
        page = preview(browser, "to=shift&shift.value=-90")
        assert page.status_code == 200
        assert "270 records are read again" in page.text
        assert json.loads(fields(page.text)["plan"]) == [["topic-00000", p, 990, 900] for p in range(3)]
        assert "alter_group_offsets" not in cluster.calls


def test_an_applied_plan_is_committed_and_audited(caplog: pytest.LogCaptureFixture) -> None:
    cluster = idle()
    with cluster.console(writes=True) as browser:
        data = fields(preview(browser).text)
        with caplog.at_level(logging.INFO, logger="ottla_console.audit"):
            done = browser.post("/c/test/group/reset", data={**data, "do": "apply"}, headers=ORIGIN)
    assert (done.status_code, done.headers["location"]) == (303, "/c/test/group?id=group-0000")
    offsets = cluster.committed["group-0000"]
    assert [offsets[TopicPartition("topic-00000", p)] for p in range(3)] == [0, 0, 0]
    assert offsets[TopicPartition("topic-00001", 0)] == 990
    (line,) = [r.getMessage() for r in caplog.records if r.name == "ottla_console.audit"]
    assert "action=group.reset resource=group-0000 outcome=done partitions=3 again=2970 skipped=0" in line, (
        line
    )


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        ({"after:0:topic-00000": "10"}, "The offsets were edited"),
        ({"after:0:topic-00000": "5000"}, "not in the log"),
        ({"do": "preview"}, "This is the state now"),
    ],
)
def test_what_differs_from_the_preview_is_shown_again(edit: dict[str, str], says: str) -> None:
    cluster = idle()
    with cluster.console(writes=True) as browser:
        data = {**fields(preview(browser).text), "do": "apply", **edit}
        again = browser.post("/c/test/group/reset", data=data, headers=ORIGIN)
    assert again.status_code == 200
    assert says in again.text
    assert "alter_group_offsets" not in cluster.calls


def test_offsets_that_were_committed_since_the_preview_are_shown_first() -> None:
    cluster = idle()
    with cluster.console(writes=True) as browser:
        data = {**fields(preview(browser).text), "do": "apply"}
        cluster.committed["group-0000"][TopicPartition("topic-00000", 1)] = 995
        again = browser.post("/c/test/group/reset", data=data, headers=ORIGIN)
        assert "has committed other offsets since" in again.text
        done = browser.post("/c/test/group/reset", data={**fields(again.text), "do": "apply"}, headers=ORIGIN)
        assert done.status_code == 303


def test_a_group_with_members_is_refused_and_they_are_named() -> None:
    cluster = FakeCluster()
    with cluster.console(writes=True) as browser:
        page = preview(browser).text
        assert "The group is Stable: a reset must wait" in page
        assert "client-1" in page
        assert 'value="apply"' not in page
        refused = browser.post("/c/test/group/reset", data={**fields(page), "do": "apply"}, headers=ORIGIN)
        assert "its members must stop first" in refused.text
    assert "alter_group_offsets" not in cluster.calls


def test_a_member_that_joins_meanwhile_is_the_brokers_refusal() -> None:
    cluster = idle()
    cluster.fail["alter_group_offsets"] = errors.UnknownMemberIdError()
    with cluster.console(writes=True) as browser:
        data = {**fields(preview(browser).text), "do": "apply"}
        refused = browser.post("/c/test/group/reset", data=data, headers=ORIGIN)
    assert refused.status_code == 502
    assert "UNKNOWN_MEMBER_ID" in refused.text


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (errors.GroupAuthorizationFailedError(), "lacks Read on the group group-0000"),
        (errors.TopicAuthorizationFailedError(), "lacks Read on the topic topic-00000"),
    ],
)
def test_the_right_that_a_reset_lacks_is_named(error: Exception, says: str) -> None:
    cluster = idle()
    cluster.fail["alter_group_offsets"] = error
    with cluster.console(writes=True) as browser:
        data = {**fields(preview(browser).text), "do": "apply"}
        refused = browser.post("/c/test/group/reset", data=data, headers=ORIGIN)
    assert says in refused.text


def test_without_writes_there_is_a_preview_and_no_button() -> None:
    cluster = idle()
    with cluster.console() as browser:
        page = preview(browser).text
        assert "990" in page
        assert "The console is read-only" in page
        assert 'value="apply"' not in page
        refused = browser.post("/c/test/group/reset", data={**fields(page), "do": "apply"}, headers=ORIGIN)
        assert refused.status_code == 403


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("to=offset&offset.value=x&topic=topic-00000", "must be a whole number"),
        ("to=earliest&topic=topic-00000&only:topic-00000=9", "has no partition 9"),
        ("to=earliest", "choose at least one topic"),
        ("to=earliest&other=absent", "the topic absent"),
    ],
)
def test_a_form_that_is_not_valid_is_shown_again(query: str, says: str) -> None:
    with idle().console(writes=True) as browser:
        page = browser.get(f"/c/test/group/reset?id=group-0000&{query}")
    assert page.status_code == 400
    assert says in page.text


def test_offsets_and_groups_are_deleted_after_a_confirmation() -> None:
    cluster = idle()
    with cluster.console(writes=True) as browser:
        data = fields(browser.get("/c/test/group/delete?id=group-0000").text)
        topic = {"id": "group-0000", "topic": "topic-00001"}
        browser.post("/c/test/group/delete-offsets", data={**data, **topic}, headers=ORIGIN)
        assert {tp.topic for tp in cluster.committed["group-0000"]} == {"topic-00000"}
        assert "The offsets of group-0000 in topic-00001 are deleted" in browser.get("/c/test/groups").text
        for confirm in ("", "group-0001"):
            browser.post("/c/test/group/delete", data={**data, "confirm": confirm}, headers=ORIGIN)
            assert "group-0000" in cluster.groups
        browser.post("/c/test/group/delete", data={**data, "confirm": "group-0000"}, headers=ORIGIN)
        assert "group-0000" not in cluster.groups


def test_a_missing_right_to_delete_is_named() -> None:
    cluster = idle()
    cluster.fail["delete_group"] = errors.GroupAuthorizationFailedError()
    with cluster.console(writes=True) as browser:
        data = {**fields(browser.get("/c/test/group/delete?id=group-0000").text), "confirm": "group-0000"}
        browser.post("/c/test/group/delete", data=data, headers=ORIGIN)
        assert "lacks Delete on the group group-0000" in browser.get("/c/test/groups").text

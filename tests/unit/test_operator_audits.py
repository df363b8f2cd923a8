"""The condition Complete of Topics, by what audit jobs tell of them, over a cluster in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from operator_cluster import World

from ottla_operator.conditions import find
from ottla_operator.planning.audits import Audits
from ottla_operator.planning.observed import AuditedTopic, AuditResult, DifferingWindow, JobProgress
from ottla_operator.platform.processes import progress_of
from ottla_operator.resources import TopicStatus
from ottla_operator.resources.topic import TopicAudit, TopicAuditWindow

KEY = "Topic/orders"
AT_MS = 1_763_840_040_000
AT = "2025-11-22T19:34:00Z"
COMPLETE = AuditedTopic(complete_until_ms=AT_MS)
LOSS = AuditedTopic(AT_MS, False, 2, 17, 1, (DifferingWindow(AT_MS, "lake", "missing", 12, 0),))


def audit_of(world: World) -> TopicAudit | None:
    status = world.status(KEY)
    assert isinstance(status, TopicStatus)
    return status.audit


def verdict(world: World) -> str | None:
    """The condition's status; None without the condition."""
    status = world.status(KEY)
    condition = find(status.conditions, "Complete")
    return None if condition is None else condition.status


def tell(
    world: World, topics: dict[str, AuditedTopic] | None, problem: str = "", pipeline: str = "audit"
) -> None:
    """What the driver of an audit answers from now on; None: nothing."""
    driver = world.drivers.running[f"Pipeline/{pipeline}"]
    progress = None if topics is None else JobProgress("app", 0, True, audit=AuditResult(topics, problem))
    world.drivers.running[f"Pipeline/{pipeline}"] = replace(driver, progress=progress)
    world.step()


def run_audit(world: World, name: str = "audit", **spec: object) -> None:
    given = {"clusterRef": {"name": "demo"}, "job": "audit", "storage": {"size": "1Gi"}, **spec}
    world.apply("Pipeline", name, given)
    world.settle()


@pytest.fixture
def world() -> World:
    world = World()
    world.brokers(1)
    world.topic("orders", replicas=1)
    run_audit(world)
    return world


def test_a_topic_without_an_audit_has_no_condition(world: World) -> None:
    assert verdict(world) is None
    tell(world, {"payments": COMPLETE})
    assert verdict(world) is None
    assert audit_of(world) is None
    assert world.condition(KEY)[0] == "True"


@pytest.mark.parametrize(
    ("audited", "problem", "status", "reason", "said"),
    [
        (COMPLETE, "", "True", "Complete", "up to status.audit.completeUntil"),
        (
            LOSS,
            "",
            "False",
            "Missing",
            f"17 records are missing in 2 windows of tiers (lake from {AT}: missing)",
        ),
        (replace(LOSS, missing=0), "", "False", "Duplicated", "1 records are duplicated in 2 windows"),
        (replace(LOSS, missing=0, duplicated=0), "", "Unknown", "NotReported", "did not report"),
        (
            COMPLETE,
            "3 audit events of p were lost",
            "Unknown",
            "AuditProblem",
            "3 audit events of p were lost",
        ),
        (LOSS, "3 audit events of p were lost", "False", "Missing", "17 records"),
        (AuditedTopic(), "", "Unknown", "Pending", "has not read all tiers"),
        (replace(COMPLETE, late=True), "", "Unknown", "Pending", "has not read all tiers"),
    ],
)
def test_the_condition_says_what_the_audit_found(
    world: World, audited: AuditedTopic, problem: str, status: str, reason: str, said: str
) -> None:
    tell(world, {"orders": audited}, problem)
    found = world.condition(KEY, "Complete")
    assert found[:2] == (status, reason)
    assert said in found[2]


def test_the_status_has_the_missing_counts_and_the_windows(world: World) -> None:
    tell(world, {"orders": LOSS})
    assert audit_of(world) == TopicAudit(
        pipeline="audit",
        complete_until=AT,
        missing=17,
        duplicated=1,
        differing_windows=2,
        windows=[TopicAuditWindow(start=AT, tier="lake", status="missing", missing=12)],
    )
    tell(world, {"orders": COMPLETE})
    assert audit_of(world) == TopicAudit(pipeline="audit", complete_until=AT)


def test_a_status_is_not_written_for_each_window(world: World) -> None:
    tell(world, {"orders": COMPLETE})
    for ms, told in ((9_999, AT), (10_000, "2025-11-22T19:34:10Z"), (5_000, AT)):
        tell(world, {"orders": AuditedTopic(AT_MS + ms)})
        audit = audit_of(world)
        assert audit is not None
        assert audit.complete_until == (told if ms != 5_000 else "2025-11-22T19:34:05Z")


def test_an_audit_that_does_not_answer_leaves_its_last_result_and_no_verdict(world: World) -> None:
    tell(world, {"orders": LOSS})
    before = audit_of(world)
    tell(world, None)
    assert world.condition(KEY, "Complete") == (
        "Unknown",
        "AuditNotRunning",
        "the driver of Pipeline audit does not respond",
    )
    assert audit_of(world) == before
    tell(world, {"orders": COMPLETE})
    assert world.condition(KEY, "Complete")[0] == "True"
    tell(world, {})
    assert verdict(world) is None, "the audit no longer names it"
    tell(world, {"orders": COMPLETE})
    world.store.delete("Pipeline/audit")
    world.settle()
    assert verdict(world) is None
    assert audit_of(world) is None


def test_of_several_audits_the_worst_is_told(world: World) -> None:
    run_audit(world, "eu")
    tell(world, {"orders": COMPLETE})
    tell(world, {"orders": LOSS}, pipeline="eu")
    assert world.condition(KEY, "Complete")[:2] == ("False", "Missing")
    audit = audit_of(world)
    assert audit is not None
    assert audit.pipeline == "eu"
    tell(world, {"orders": AuditedTopic()}, pipeline="eu")
    assert world.condition(KEY, "Complete")[:2] == ("Unknown", "Pending")
    tell(world, {"orders": COMPLETE}, pipeline="eu")
    assert world.condition(KEY, "Complete")[:2] == ("True", "Complete")


def test_other_jobs_are_no_audits(world: World) -> None:
    world.apply(
        "Pipeline", "lake", {"clusterRef": {"name": "demo"}, "job": "lake", "storage": {"size": "1Gi"}}
    )
    world.settle()
    pipelines = [r for r in world.store.kept.values() if r.kind == "Pipeline"]
    assert Audits.of(pipelines, world.drivers.running).names == {"audit"}  # type: ignore[arg-type]


def test_what_a_job_tells_of_its_audit_is_taken_with_care() -> None:
    window = {"start": AT_MS, "tier": "lake", "status": "missing", "missing": 12, "duplicated": 0}
    topic: dict[str, Any] = {
        "completeUntil": AT_MS,
        "late": False,
        "differing": 2,
        "missing": 17,
        "duplicated": 1,
        "windows": [window, 3],
    }
    details = {"audit": {"name": "n", "problems": ["p", "q"], "topics": {"orders": topic, "x": 3, "y": {}}}}
    progress = progress_of({"details": details})
    assert progress is not None
    assert progress.audit == AuditResult({"orders": LOSS, "y": AuditedTopic()}, "p")
    for other in (None, [], {"audit": 1}, {"audit": {"topics": []}}, {"verdict": "complete"}):
        assert progress_of({"details": other}) == JobProgress()

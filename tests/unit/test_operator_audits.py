"""The condition Complete of Topics, from the reports of audit jobs, over a simulated cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ottla_operator.conditions import find
from ottla_operator.planning.audits import Audits
from ottla_operator.planning.observed import AuditedTopic, AuditResult, DifferingWindow, JobProgress
from ottla_operator.platform.processes import progress_of
from ottla_operator.resources import TopicStatus
from ottla_operator.resources.topic import TopicAudit, TopicAuditWindow
from tests.worlds.operator_simulation import OperatorSimulation

KEY = "Topic/orders"
AT_MS = 1_763_840_040_000
AT = "2025-11-22T19:34:00Z"
COMPLETE = AuditedTopic(complete_until_ms=AT_MS)
LOSS = AuditedTopic(AT_MS, False, 2, 17, 1, (DifferingWindow(AT_MS, "lake", "missing", 12, 0),))


def audit_of(sim: OperatorSimulation) -> TopicAudit | None:
    status = sim.status(KEY)
    assert isinstance(status, TopicStatus)
    return status.audit


def condition_status(sim: OperatorSimulation) -> str | None:
    """The condition's status; None without the condition."""
    status = sim.status(KEY)
    condition = find(status.conditions, "Complete")
    return None if condition is None else condition.status


def set_report(
    sim: OperatorSimulation,
    topics: dict[str, AuditedTopic] | None,
    problem: str = "",
    pipeline: str = "audit",
) -> None:
    """Set the status response of an audit's driver; None: it does not respond."""
    driver = sim.drivers.running[f"Pipeline/{pipeline}"]
    progress = None if topics is None else JobProgress("app", 0, True, audit=AuditResult(topics, problem))
    sim.drivers.running[f"Pipeline/{pipeline}"] = replace(driver, progress=progress)
    sim.reconcile()


def run_audit(sim: OperatorSimulation, name: str = "audit", **spec: object) -> None:
    given = {"clusterRef": {"name": "demo"}, "job": "audit", "storage": {"size": "1Gi"}, **spec}
    sim.apply("Pipeline", name, given)
    sim.reconcile_until_ready()


@pytest.fixture
def sim() -> OperatorSimulation:
    sim = OperatorSimulation()
    sim.apply_cluster(1)
    sim.apply_topic("orders", replicas=1)
    run_audit(sim)
    return sim


def test_a_topic_without_an_audit_has_no_condition(sim: OperatorSimulation) -> None:
    assert condition_status(sim) is None
    set_report(sim, {"payments": COMPLETE})
    assert condition_status(sim) is None
    assert audit_of(sim) is None
    assert sim.condition(KEY)[0] == "True"


@pytest.mark.parametrize(
    ("audited", "problem", "status", "reason", "message"),
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
def test_the_condition_complete_reports_the_result_of_the_audit(
    sim: OperatorSimulation, audited: AuditedTopic, problem: str, status: str, reason: str, message: str
) -> None:
    set_report(sim, {"orders": audited}, problem)
    found = sim.condition(KEY, "Complete")
    assert found[:2] == (status, reason)
    assert message in found[2]


def test_the_status_has_the_missing_counts_and_the_windows(sim: OperatorSimulation) -> None:
    set_report(sim, {"orders": LOSS})
    assert audit_of(sim) == TopicAudit(
        pipeline="audit",
        complete_until=AT,
        missing=17,
        duplicated=1,
        differing_windows=2,
        windows=[TopicAuditWindow(start=AT, tier="lake", status="missing", missing=12)],
    )
    set_report(sim, {"orders": COMPLETE})
    assert audit_of(sim) == TopicAudit(pipeline="audit", complete_until=AT)


def test_the_status_is_written_at_most_every_ten_seconds(sim: OperatorSimulation) -> None:
    set_report(sim, {"orders": COMPLETE})
    for ms, expected in ((9_999, AT), (10_000, "2025-11-22T19:34:10Z"), (5_000, AT)):
        set_report(sim, {"orders": AuditedTopic(AT_MS + ms)})
        audit = audit_of(sim)
        assert audit is not None
        assert audit.complete_until == (expected if ms != 5_000 else "2025-11-22T19:34:05Z")


def test_an_audit_that_does_not_respond_keeps_its_last_result_and_makes_the_condition_unknown(
    sim: OperatorSimulation,
) -> None:
    set_report(sim, {"orders": LOSS})
    before = audit_of(sim)
    set_report(sim, None)
    assert sim.condition(KEY, "Complete") == (
        "Unknown",
        "AuditNotRunning",
        "the driver of Pipeline audit does not respond",
    )
    assert audit_of(sim) == before
    set_report(sim, {"orders": COMPLETE})
    assert sim.condition(KEY, "Complete")[0] == "True"
    set_report(sim, {})
    assert condition_status(sim) is None, "the audit no longer names it"
    set_report(sim, {"orders": COMPLETE})
    sim.store.delete("Pipeline/audit")
    sim.reconcile_until_ready()
    assert condition_status(sim) is None
    assert audit_of(sim) is None


def test_the_worst_result_of_several_audits_is_reported(sim: OperatorSimulation) -> None:
    run_audit(sim, "eu")
    set_report(sim, {"orders": COMPLETE})
    set_report(sim, {"orders": LOSS}, pipeline="eu")
    assert sim.condition(KEY, "Complete")[:2] == ("False", "Missing")
    audit = audit_of(sim)
    assert audit is not None
    assert audit.pipeline == "eu"
    set_report(sim, {"orders": AuditedTopic()}, pipeline="eu")
    assert sim.condition(KEY, "Complete")[:2] == ("Unknown", "Pending")
    set_report(sim, {"orders": COMPLETE}, pipeline="eu")
    assert sim.condition(KEY, "Complete")[:2] == ("True", "Complete")


def test_other_jobs_do_not_count_as_audits(sim: OperatorSimulation) -> None:
    sim.apply("Pipeline", "lake", {"clusterRef": {"name": "demo"}, "job": "lake", "storage": {"size": "1Gi"}})
    sim.reconcile_until_ready()
    pipelines = [r for r in sim.store.stored.values() if r.kind == "Pipeline"]
    assert Audits.of(pipelines, sim.drivers.running).names == {"audit"}  # type: ignore[arg-type]


def test_an_audit_report_with_invalid_fields_is_parsed_without_errors() -> None:
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

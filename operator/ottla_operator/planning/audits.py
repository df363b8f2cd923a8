"""The condition Complete of a Topic: the result of the audit jobs of its cluster.

Called by `reconcile` with the progress of the Pipelines' drivers. Pure. A Topic that no audit job covers has
no such condition. Invariant: True and False are current results of a running job; while no job runs, the last
result stays in `status.audit` and the condition is Unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ottla_operator.conditions import Finding, iso_time, no, parse_iso_time, unknown, yes
from ottla_operator.planning.observed import AuditedTopic, AuditResult, DriverInstance
from ottla_operator.planning.steps import ResourcePlan
from ottla_operator.resources import Pipeline, Topic, TopicStatus
from ottla_operator.resources.topic import TopicAudit, TopicAuditWindow

JOB: Final = "audit"
_STATUS_INTERVAL_MS: Final = 10_000
"""`completeUntil` advances with every window: the status is written at most this often for it."""
_NAMED_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Audits:
    """The names of a cluster's audit Pipelines, and the results of the running ones by name."""

    names: frozenset[str] = frozenset()
    results: Mapping[str, AuditResult] = field(default_factory=dict)

    @classmethod
    def of(cls, pipelines: Iterable[Pipeline], drivers: Mapping[str, DriverInstance]) -> Audits:
        """The audits among a cluster's Pipelines, from the progress of their drivers."""
        names, results = set(), {}
        for pipeline in pipelines:
            if pipeline.spec.job != JOB or pipeline.metadata.deleting:
                continue
            names.add(pipeline.metadata.name)
            progress = drivers.get(pipeline.key, DriverInstance()).progress
            if progress is not None and progress.audit is not None:
                results[pipeline.metadata.name] = progress.audit
        return cls(frozenset(names), results)


def with_audit(plan: ResourcePlan[TopicStatus], topic: Topic, audits: Audits) -> ResourcePlan[TopicStatus]:
    """The plan of an existing topic with the condition Complete and `status.audit` added."""
    if plan.keep_status or plan.deletion_complete or topic.metadata.deleting or not plan.status.topic_id:
        return plan
    finding, audit = _verdict(topic.topic_name, topic.status, audits)
    status = plan.status.model_copy(update={"audit": audit})
    return replace(plan, findings=(*plan.findings, finding) if finding else plan.findings, status=status)


def _verdict(name: str, status: TopicStatus, audits: Audits) -> tuple[Finding | None, TopicAudit | None]:
    found = [
        (_finding(result.topics[name], result.problem), pipeline, result.topics[name])
        for pipeline, result in sorted(audits.results.items())
        if name in result.topics
    ]
    if found:
        finding, pipeline, audited = min(
            found, key=lambda each: ("False", "Unknown", "True").index(each[0].status)
        )
        return finding, _audit_status(pipeline, audited, status.audit)
    before = status.audit
    if before is not None and before.pipeline in audits.names - audits.results.keys():
        return unknown(
            "Complete", "AuditNotRunning", f"the driver of Pipeline {before.pipeline} does not respond"
        ), before
    return None, None


def _finding(audited: AuditedTopic, problem: str) -> Finding:
    named = "; ".join(
        f"{window.tier} from {iso_time(window.start_ms)}: {window.status}"
        for window in audited.windows[:_NAMED_MAX]
    )
    in_windows = f"in {audited.differing} windows of tiers ({named})"
    if audited.missing:
        return no("Complete", "Missing", f"{audited.missing} records are missing {in_windows}")
    if audited.duplicated:
        return no("Complete", "Duplicated", f"{audited.duplicated} records are duplicated {in_windows}")
    if audited.differing:
        message = f"producers did not report all their records, or a report was lost, {in_windows}"
        return unknown("Complete", "NotReported", message)
    if problem:
        return unknown("Complete", "AuditProblem", problem)
    if audited.complete_until_ms is None or audited.late:
        return unknown("Complete", "Pending", "the audit has not read all tiers up to the latest windows yet")
    message = "every tier holds all records acknowledged up to status.audit.completeUntil"
    return yes("Complete", "Complete", message)


def _audit_status(pipeline: str, audited: AuditedTopic, before: TopicAudit | None) -> TopicAudit:
    until_ms = audited.complete_until_ms
    audit = TopicAudit(
        pipeline=pipeline,
        complete_until=None if until_ms is None else iso_time(until_ms),
        missing=audited.missing,
        duplicated=audited.duplicated,
        differing_windows=audited.differing,
        windows=[
            TopicAuditWindow(
                start=iso_time(window.start_ms),
                tier=window.tier,
                status=window.status,
                missing=window.missing,
                duplicated=window.duplicated,
            )
            for window in audited.windows
        ],
    )
    if before is None or until_ms is None or not before.complete_until:
        return audit
    if audit.model_copy(update={"complete_until": before.complete_until}) != before:
        return audit
    return before if 0 <= until_ms - parse_iso_time(before.complete_until) < _STATUS_INTERVAL_MS else audit

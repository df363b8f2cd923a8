"""The view models of the jobs of the pipeline, and of a topic's completeness. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ottla.client.admin_types import TopicDescription
from ottla_console.cluster.collecting import merged
from ottla_console.cluster.jobs import Job, TopicAudit, job_of_group
from ottla_console.cluster.problems import Kind, Problem
from ottla_console.cluster.resources import State
from ottla_console.cluster.snapshot import Part, Snapshot
from ottla_console.views import formats
from ottla_console.views.charts import Values
from ottla_console.views.tables import Column, Query, Table, table_of

ERROR_MAX: Final = 500
"""Characters of a job's error."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job in the list."""

    job: Job
    lag: int | None
    """By its consumer group, which the brokers know at any time; else as it says itself."""
    has_group: bool
    topics: tuple[str, ...]
    """That it reads."""
    lags: Values
    ended_ms: int | None
    """Since its last batch."""


COLUMNS: Final[tuple[Column[JobRow], ...]] = (
    Column("name", "Pipeline", lambda row: row.job.name.casefold()),
    Column("kind", "Job", lambda row: row.job.kind),
    Column("state", "State", lambda row: (not row.job.failing, row.job.state)),
    Column("topics", "Topics", lambda row: len(row.topics)),
    Column("batch", "Last batch", lambda row: row.ended_ms, numeric=True, hint="Since its end"),
    Column("lag", "Lag", lambda row: row.lag, numeric=True, hint="Records that the job has not processed"),
    Column("trend", "Lag over time"),
)


@dataclass(frozen=True, slots=True)
class Pipelines:
    """What the page shows."""

    table: Table[JobRow]
    known: bool
    failing: tuple[Problem, ...]
    problems: tuple[Problem, ...]


def pipelines_of(
    snapshot: Snapshot,
    jobs: Part[tuple[Job, ...]],
    resources: Part[State] | None,
    now_ms: int,
    query: Query,
) -> Pipelines:
    """Jobs by their status, and by their consumer groups alone where no status is known. A job that
    Kubernetes and a status port know is there once, as the port says it."""
    known = {(each.kind, each.name): each for each in _of_resources(resources)}
    known |= {(each.kind, each.name): each for each in jobs.value or ()}
    taken = {each.group for each in known.values()}
    for group in snapshot.known_groups:
        found = job_of_group(group)
        if found is not None and group not in taken:
            known.setdefault((found.kind, found.name), found)
    rows = [_row(each, snapshot, now_ms) for each in known.values()]
    table = table_of(
        rows,
        COLUMNS,
        query,
        text=lambda row: f"{row.job.name} {row.job.kind} {' '.join(row.topics)}",
        default_sort="lag",
        descending=True,
    )
    failing = tuple(
        Problem(Kind.FAILED, f"the pipeline {each.name}", (each.error or each.state)[:ERROR_MAX])
        for each in sorted(known.values(), key=lambda each: each.name)
        if each.failing
    )
    of_resources = () if resources is None else resources.problems
    problems = merged(jobs.problems, of_resources, snapshot.groups.problems)
    return Pipelines(table, snapshot.groups.value is not None, failing, problems)


def _of_resources(resources: Part[State] | None) -> tuple[Job, ...]:
    return () if resources is None or resources.value is None else resources.value.jobs


def _row(job: Job, snapshot: Snapshot, now_ms: int) -> JobRow:
    lag = snapshot.group_lags.get(job.group)
    topics = snapshot.group_topics.get(job.group, {})
    return JobRow(
        job,
        lag.records if lag is not None else job.lag,
        job.group in snapshot.known_groups,
        tuple(sorted(topics, key=lambda topic: (-topics[topic].records, topic))),
        snapshot.history.group_lag(job.group),
        max(0, now_ms - job.batch_ended_ms) if job.batch_ended_ms >= 0 else None,
    )


@dataclass(frozen=True, slots=True)
class AuditView:
    """What one audit says."""

    audit: TopicAudit
    verdict: str
    """In a sentence."""
    level: str
    """ok, warn or alarm."""
    behind_ms: int | None
    """Since the time until which all is complete."""


@dataclass(frozen=True, slots=True)
class Completeness:
    """The tab of a topic."""

    name: str
    internal: bool
    exists: bool
    audits: tuple[AuditView, ...]
    """The worst first."""
    known: bool
    problems: tuple[Problem, ...]


def completeness_of(
    name: str,
    topic: TopicDescription | None,
    jobs: Part[tuple[Job, ...]],
    resources: Part[State] | None,
    now_ms: int,
) -> Completeness:
    found = {}
    if resources is not None and resources.value is not None and (on := resources.value.audits.get(name)):
        found[on.job] = on
    for job in jobs.value or ():
        if job.audits is not None and name in job.audits:
            found[job.name] = job.audits[name]
    audits = [_audit(each, now_ms) for each in found.values()] if topic is not None else []
    levels = ("alarm", "warn", "ok")
    audits.sort(key=lambda each: (levels.index(each.level), each.audit.job))
    return Completeness(
        name,
        topic is not None and topic.internal,
        topic is not None,
        tuple(audits),
        jobs.collected and (resources is None or resources.collected),
        merged(jobs.problems, () if resources is None else resources.problems),
    )


def _audit(audit: TopicAudit, now_ms: int) -> AuditView:
    until_ms = audit.complete_until_ms
    behind_ms = max(0, now_ms - until_ms) if until_ms >= 0 else None
    parts = [
        f"{formats.count(value, 'record')} {'is' if value == 1 else 'are'} {what}"
        for value, what in ((audit.missing, "missing"), (audit.duplicated, "duplicated"))
        if value
    ]
    if parts:
        where = formats.count(audit.differing, "window")
        return AuditView(audit, f"{' and '.join(parts)}, in {where}.", "alarm", behind_ms)
    if audit.differing:
        text = f"It is not known whether {formats.count(audit.differing, 'window')} of tiers are complete: "
        return AuditView(audit, text + "a producer has not reported all of its records.", "warn", behind_ms)
    if audit.problems:
        return AuditView(audit, "The audit has problems.", "warn", behind_ms)
    if until_ms < 0:
        return AuditView(audit, "No window has ended yet.", "warn", behind_ms)
    if audit.late:
        text = "Nothing is missing, but some tier is read later than its grace allows."
        return AuditView(audit, text, "warn", behind_ms)
    return AuditView(audit, "Every tier has all records that were acknowledged.", "ok", behind_ms)

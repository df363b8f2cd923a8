"""The jobs of the pipeline: what `/status` of `ottla-pipeline` and Pipelines on Kubernetes say of them.

`Jobs` reads the configured status ports when a page asks, the same for all principals; `resources` has those
on Kubernetes. The rest is pure. Documents come from elsewhere: what is missing or of another type counts as
not given, and a document without a job is a problem.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from ottla.security import https
from ottla_console.cluster.collecting import end
from ottla_console.cluster.identity_provider import Fetch
from ottla_console.cluster.problems import Kind, Problem
from ottla_console.cluster.snapshot import Part

Object: TypeAlias = Mapping[str, Any]

FRESH_S: Final = 4.0
"""A state that is younger is not read again."""
REQUEST_S: Final = 3.0
WINDOWS_MAX: Final = 100
_GROUP: Final = re.compile(r"ottla-(audit|lake|mirror|python|windows)-(.+)")
"""The consumer group by which a job publishes its progress, unless its configuration names another."""


@dataclass(frozen=True, slots=True)
class Window:
    """A window of time in which a tier differs from what producers have reported."""

    start_ms: int
    tier: str
    status: str
    missing: int
    duplicated: int


@dataclass(frozen=True, slots=True)
class TopicAudit:
    """What an audit says of a topic."""

    job: str
    complete_until_ms: int
    """Every tier has all records that were acknowledged until then; -1: not known."""
    late: bool
    """Some tier is read later than it may be."""
    differing: int
    missing: int
    duplicated: int
    windows: tuple[Window, ...]
    """The first ones that differ."""
    problems: tuple[str, ...] = ()
    """Of the audit."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job of the pipeline."""

    name: str
    kind: str
    """lake, audit, mirror, windows, python …"""
    state: str
    source: str
    """Where this is known from: a URL, `Pipeline lake`, or `its consumer group`."""
    group: str
    """By which it publishes its progress."""
    lag: int | None = None
    """In records, at its last batch."""
    records: int | None = None
    """Of all batches since its start."""
    late_rows: int = 0
    batch: int | None = None
    batch_records: int = 0
    batch_ms: int = -1
    batch_ended_ms: int = -1
    application: str = ""
    """Spark's id."""
    error: str = ""
    audits: Mapping[str, TopicAudit] | None = None
    """By topic, of an audit."""

    @property
    def failing(self) -> bool:
        return bool(self.error) or self.state in ("Failed", "Failing")


def job_of(document: object, source: str) -> Job:
    """From `/status`. Raises ValueError."""
    if not isinstance(document, dict) or not _text(document, "job") or not _text(document, "name"):
        raise ValueError("its /status is not that of a job of ottla-pipeline")
    name, kind = _text(document, "name"), _text(document, "job")
    details = document.get("details")
    audit = details.get("audit") if isinstance(details, dict) else None
    job = Job(
        name,
        kind,
        _text(document, "state") or "unknown",
        source,
        group_of(kind, name),
        _number(document, "lag"),
        _number(document, "records"),
        _number(document, "lateRows") or 0,
        application=_text(document, "applicationId"),
        error=_text(document, "error"),
        audits=audits_of(name, audit) if isinstance(audit, dict) else None,
    )
    return with_batch(job, document.get("lastBatch"))


def group_of(kind: str, name: str) -> str:
    """The consumer group of a job by default."""
    return f"ottla-{kind}-{name}"


def job_of_group(group: str) -> Job | None:
    """The job that publishes its progress by this group; None if it is a group of another kind."""
    found = _GROUP.fullmatch(group)
    return Job(found[2], found[1], "", "its consumer group", group) if found else None


def with_batch(job: Job, batch: object) -> Job:
    """The job with the last batch of a status."""
    if not isinstance(batch, dict):
        return job
    return replace(
        job,
        batch=_number(batch, "id"),
        batch_records=_number(batch, "records") or 0,
        batch_ms=-1 if (took := _number(batch, "durationMs")) is None else took,
        batch_ended_ms=instant_ms(batch.get("endedAt")),
    )


def audits_of(job: str, details: Object) -> dict[str, TopicAudit]:
    """By topic, from `details.audit`."""
    problems = tuple(str(each) for each in details.get("problems") or ())
    topics = details.get("topics")
    if not isinstance(topics, dict):
        return {}
    return {
        str(name): TopicAudit(
            job,
            -1 if (until := _number(each, "completeUntil")) is None else until,
            each.get("late") is True,
            _number(each, "differing") or 0,
            _number(each, "missing") or 0,
            _number(each, "duplicated") or 0,
            windows_of(each.get("windows")),
            problems,
        )
        for name, each in topics.items()
        if isinstance(each, dict)
    }


def windows_of(listed: object) -> tuple[Window, ...]:
    """Windows of a topic's audit; their start in epoch ms or in ISO 8601."""
    rows = listed if isinstance(listed, list) else []
    return tuple(
        Window(
            start if (start := _number(each, "start")) is not None else instant_ms(each.get("start")),
            _text(each, "tier"),
            _text(each, "status"),
            _number(each, "missing") or 0,
            _number(each, "duplicated") or 0,
        )
        for each in rows[:WINDOWS_MAX]
        if isinstance(each, dict)
    )


def instant_ms(text: object) -> int:
    """Epoch ms of a time in ISO 8601, in UTC if it has no zone; -1 without one."""
    try:
        found = datetime.fromisoformat(str(text)) if text else None
        if found is None:
            return -1
        return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        return -1


def _text(document: Object, name: str) -> str:
    value = document.get(name)
    return value if isinstance(value, str) else ""


def _number(document: Object, name: str) -> int | None:
    value = document.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


class Jobs:
    """The jobs behind the status ports of one cluster, read again when a page asks and they are not fresh."""

    def __init__(
        self,
        urls: Sequence[str],
        fetch: Fetch,
        now_ms: Callable[[], int],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._urls = urls
        self._fetch = fetch
        self._now_ms = now_ms
        self._monotonic_s = monotonic_s
        self._read_s = float("-inf")
        self._part: Part[tuple[Job, ...]] = Part()
        self._task: asyncio.Task[None] | None = None

    async def state(self, wait_s: float) -> Part[tuple[Job, ...]]:
        """The newest state; waits a moment if there is none yet."""
        if self._task is None and self._monotonic_s() - self._read_s >= FRESH_S:
            self._task = asyncio.get_running_loop().create_task(self._read())
        if self._task is not None and not self._part.collected:
            await asyncio.wait([self._task], timeout=wait_s)
        return self._part

    async def close(self) -> None:
        await end(self._task)

    async def _read(self) -> None:
        found = await asyncio.gather(*map(self._job, self._urls))
        jobs = tuple(each for each in found if isinstance(each, Job))
        problems = tuple(each for each in found if isinstance(each, Problem))
        self._part = Part(jobs, problems, self._now_ms())
        self._read_s = self._monotonic_s()
        self._task = None

    async def _job(self, url: str) -> Job | Problem:
        def call() -> bytes:
            return self._fetch(f"{url.rstrip('/')}/status", options={}, timeout_s=REQUEST_S)

        try:
            return job_of(json.loads(await asyncio.to_thread(call)), url)
        except https.HttpProblem as error:
            reason = f"Its status port does not respond: {error}"
            return Problem(
                Kind.UNREACHABLE, f"the job at {url}", reason, "It has ended, or the URL is another one."
            )
        except (ValueError, RecursionError) as error:
            return Problem(Kind.FAILED, f"the job at {url}", str(error))

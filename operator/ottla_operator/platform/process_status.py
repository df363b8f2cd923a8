"""The status of processes: a driver's progress from its status port, and the cause of an exit from its log.

Used by every platform. A driver that does not respond in time has no progress; this is not an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import aiohttp

from ottla_operator.planning.observed import (
    AuditedTopic,
    AuditResult,
    BatchProgress,
    DifferingWindow,
    JobProgress,
)

_TIMEOUT_S: Final = 3.0


async def fetch_progress(addresses: Mapping[str, str]) -> dict[str, JobProgress]:
    """The progress of the drivers at `HOST:PORT` that responded, by key. GETs /status of each."""
    if not addresses:
        return {}
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        answers = await asyncio.gather(*(_fetch(session, address) for address in addresses.values()))
    found = zip(addresses, answers, strict=True)
    return {key: progress for key, progress in found if progress is not None}


async def _fetch(session: aiohttp.ClientSession, address: str) -> JobProgress | None:
    try:
        async with session.get(f"http://{address}/status") as answer:
            return progress_of(await answer.json(content_type=None)) if answer.status == 200 else None
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return None


def progress_of(content: object) -> JobProgress | None:
    """The progress in a /status response; None when it has another format."""
    if not isinstance(content, dict):
        return None
    batch = content.get("lastBatch")
    lag = content.get("lag")
    details = content.get("details")
    return JobProgress(
        application_id=_text(content.get("applicationId")),
        lag=lag if _is_number(lag) else None,
        caught_up=content.get("caughtUp") is True,
        last_batch=_batch(batch) if isinstance(batch, dict) else None,
        error=_text(content.get("error")),
        audit=_audit(details.get("audit")) if isinstance(details, dict) else None,
    )


def _audit(content: object) -> AuditResult | None:
    if not isinstance(content, dict) or not isinstance(content.get("topics"), dict):
        return None
    problems = content.get("problems")
    return AuditResult(
        {topic: _topic(each) for topic, each in content["topics"].items() if isinstance(each, dict)},
        _text(problems[0]) if isinstance(problems, list) and problems else "",
    )


def _topic(content: Mapping[str, Any]) -> AuditedTopic:
    until, windows = content.get("completeUntil"), content.get("windows")
    return AuditedTopic(
        complete_until_ms=until if _is_number(until) else None,
        late=content.get("late") is True,
        differing=_count(content.get("differing")),
        missing=_count(content.get("missing")),
        duplicated=_count(content.get("duplicated")),
        windows=tuple(
            DifferingWindow(
                _count(each.get("start")),
                _text(each.get("tier")),
                _text(each.get("status")),
                _count(each.get("missing")),
                _count(each.get("duplicated")),
            )
            for each in (windows if isinstance(windows, list) else ())
            if isinstance(each, dict)
        ),
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _batch(content: Mapping[str, Any]) -> BatchProgress | None:
    numbers = [content.get(key) for key in ("id", "records", "durationMs")]
    if not all(_is_number(number) for number in numbers):
        return None
    id_, records, duration_ms = (int(number) for number in numbers if number is not None)
    return BatchProgress(id_, records, duration_ms, _text(content.get("endedAt")))


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def exit_message(log_tail: str) -> str:
    """The most likely cause of an exit: the last log line above INFO, or else the last line."""
    lines = [line.strip() for line in log_tail.splitlines() if line.strip()]
    candidates = [line for line in lines if " INFO " not in line] or lines
    return candidates[-1].rpartition(" ERROR ")[2].strip() if candidates else ""

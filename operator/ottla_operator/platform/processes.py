"""Processes of brokers and drivers: progress of drivers, causes of exits, restarts, termination.

`fetch_progress` and `exit_message` are used by every platform, the rest by that of local processes. A driver
that does not respond in time has no progress; this is not an error.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, TypeGuard

import aiohttp

from ottla_operator.planning.observed import (
    AuditedTopic,
    AuditResult,
    BatchProgress,
    DifferingWindow,
    JobProgress,
)

log = logging.getLogger(__name__)

_TIMEOUT_S: Final = 3.0

# ---- progress of drivers


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
    return value if _is_number(value) else 0


def _batch(content: Mapping[str, Any]) -> BatchProgress | None:
    numbers = [content.get(key) for key in ("id", "records", "durationMs")]
    if not all(_is_number(number) for number in numbers):
        return None
    id_, records, duration_ms = (int(number) for number in numbers if number is not None)
    return BatchProgress(id_, records, duration_ms, _text(content.get("endedAt")))


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


# ---- causes of exits


def exit_message(log_tail: str) -> str:
    """The most likely cause of an exit: the last log line above INFO, or else the last line."""
    lines = [line.strip() for line in log_tail.splitlines() if line.strip()]
    candidates = [line for line in lines if " INFO " not in line] or lines
    return candidates[-1].rpartition(" ERROR ")[2].strip() if candidates else ""


def exit_description(code: int | None, cause: Callable[[], str]) -> str:
    """How a local process ended; `cause` returns the part of its log that explains it, or ""."""
    if code is None or code < 0:
        return f"was killed by signal {-(code or 0)}"
    message = cause()
    return f"ended with code {code}" + (f": {message}" if message else "")


# ---- local processes


class Process(Protocol):
    """A local process of a broker or a driver."""

    @property
    def running(self) -> bool: ...

    def terminate(self) -> None:
        """Send SIGTERM; returns at once."""
        ...

    def stop(self, timeout_s: float) -> object:
        """Reap the process; one that still runs after the time-out is killed."""
        ...


def crash_back_off_ms(crashes: int, first_ms: int, longest_ms: int) -> int:
    """How long to wait with a restart after so many consecutive crashes: doubles with each of them."""
    return min(first_ms << min(max(0, crashes - 1), 10), longest_ms)


async def terminate_all(processes: Mapping[str, Process], grace_s: float) -> None:
    """Terminate the processes, given by name for the log; those that still run after `grace_s` are killed."""
    for process in processes.values():
        process.terminate()
    try:
        async with asyncio.timeout(grace_s):
            # The exit of a child process raises no event and is polled.
            while any(process.running for process in processes.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    except TimeoutError:
        for name, process in processes.items():
            if process.running:
                log.warning("%s did not stop within %.0f s: killed", name, grace_s)
    for process in processes.values():
        process.stop(0)


def write_atomically(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file atomically; its folder is created if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.tmp")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    partial.replace(path)

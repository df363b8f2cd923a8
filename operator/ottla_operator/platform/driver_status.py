"""What a pipeline's driver tells of its job at `/status`. Used by every platform.

A driver that does not answer, or not in time, is one of which nothing is known: never an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import aiohttp

from ottla_operator.planning.observed import BatchProgress, JobProgress

_TIMEOUT_S: Final = 3.0


async def ask(addresses: Mapping[str, str]) -> dict[str, JobProgress]:
    """By key, of those `HOST:PORT` that answered."""
    if not addresses:
        return {}
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        answers = await asyncio.gather(*(_ask(session, address) for address in addresses.values()))
    found = zip(addresses, answers, strict=True)
    return {key: progress for key, progress in found if progress is not None}


async def _ask(session: aiohttp.ClientSession, address: str) -> JobProgress | None:
    try:
        async with session.get(f"http://{address}/status") as answer:
            return progress_of(await answer.json(content_type=None)) if answer.status == 200 else None
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return None


def progress_of(content: object) -> JobProgress | None:
    """None when it is not what a job tells."""
    if not isinstance(content, dict):
        return None
    batch = content.get("lastBatch")
    lag = content.get("lag")
    return JobProgress(
        application_id=_text(content.get("applicationId")),
        lag=lag if _is_number(lag) else None,
        caught_up=content.get("caughtUp") is True,
        last_batch=_batch(batch) if isinstance(batch, dict) else None,
        error=_text(content.get("error")),
    )


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

"""The audit's result by topic, for `/status`: the operator makes the condition Complete of a Topic of it.

Called by `watching`. Pure. Of each topic, with times in epoch ms:

    {"completeUntil": 1763840040000, "late": false, "differing": 1, "missing": 17, "duplicated": 0,
     "windows": [{"start": 1763840040000, "tier": "lake", "status": "missing", "missing": 17,
                  "duplicated": 0}]}

`completeUntil` is the end of the last window of which, as of all before, every tier holds all that was
acknowledged; null before there is one. It is `late` when it is LATE_MS further behind than tiers may be.
`differing` counts windows of tiers; `windows` are the first that differ, WINDOWS_MAX at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ottla_pipeline.completeness.pages import Found
from ottla_pipeline.completeness.verdicts import COMPLETE, Row, TierRule

WINDOWS_MAX: Final = 10
LATE_MS: Final = 120_000


def details(found: Found, named: Iterable[str], rules: Mapping[str, TierRule]) -> dict[str, Any]:
    """`named` are topics that the job names, which are there without windows, too."""
    rows: dict[str, list[Row]] = {topic: [] for topic in named}
    for row in found.rows:
        rows.setdefault(row.topic, []).append(row)
    topics = {topic: _topic(topic, each, found, rules) for topic, each in sorted(rows.items())}
    return {"name": found.name, "problems": list(found.problems), "topics": topics}


def _topic(topic: str, rows: list[Row], found: Found, rules: Mapping[str, TierRule]) -> dict[str, Any]:
    differing = [row for row in rows if row.differs]
    until_ms = _complete_until_ms(topic, rows, found, rules)
    grace_ms = max((rule.grace_ms for rule in rules.values() if rule.covers(topic)), default=0)
    late_ms = found.at_ms - grace_ms - 2 * found.window_ms - LATE_MS
    return {
        "completeUntil": until_ms,
        "late": until_ms is None or until_ms < late_ms,
        "differing": len(differing),
        "missing": sum(row.missing for row in differing),
        "duplicated": sum(row.duplicated for row in differing),
        "windows": [
            {
                "start": row.start_ms,
                "tier": row.tier,
                "status": row.status,
                "missing": row.missing,
                "duplicated": row.duplicated,
            }
            for row in differing[:WINDOWS_MAX]
        ],
    }


def _complete_until_ms(
    topic: str, rows: list[Row], found: Found, rules: Mapping[str, TierRule]
) -> int | None:
    """What no producer has reported yet is not in the rows: a window counts once every tier, with the audit
    events, was read beyond its grace."""
    settled = [found.horizons_ms[tier] - rule.grace_ms for tier, rule in rules.items() if rule.covers(topic)]
    if not settled:
        return None
    until_ms = min(settled)
    until_ms = min(
        [until_ms - until_ms % found.window_ms, *(r.start_ms for r in rows if r.status != COMPLETE)]
    )
    return until_ms if until_ms > 0 else None

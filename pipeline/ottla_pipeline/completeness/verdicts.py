"""The verdict on each window and tier: complete, missing, duplicated, pending or unknown.

Called by the auditor. Pure, except for two updates of the ledger: the time at which a window was first found
complete, and the reduction of a complete window to sums.

For each window, tier and producer:

    missing          acknowledged numbers that the tier lacks
    duplicated       records beyond the first of their number, also where a loss offsets them in the sum
    unacknowledged   numbers in the tier that were not acknowledged; no error
    unreported       records of a producer that has not reported the window
    rejected         records in the tier that the application found invalid

A verdict on missing records is pending until the tier and the audit events have been read up to `grace`
after the window's end. It is unknown if a producer was killed before its last report (its windows stay
open), or if an audit event was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ottla_pipeline.completeness.ledger import EVENTS, CompletedWindow, Ledger, ProducerEntry, Sums, Window

COMPLETE: Final = "complete"
PENDING: Final = "pending"
MISSING: Final = "missing"
DUPLICATED: Final = "duplicated"
UNKNOWN: Final = "unknown"
BOTH: Final = "missing, duplicated"
STATUSES: Final = (COMPLETE, PENDING, MISSING, DUPLICATED, BOTH, UNKNOWN)
SAMPLES: Final = 5


@dataclass(frozen=True, slots=True)
class TierRule:
    """How a tier is evaluated. `reads` selects the topics that it should hold (None: all). With
    `copies_allowed`, for applications that process at least once, duplicates are counted and are no
    difference."""

    grace_ms: int
    reads: Callable[[str], bool] | None = None
    copies_allowed: bool = False

    def covers(self, topic: str) -> bool:
        return self.reads is None or self.reads(topic)


@dataclass(frozen=True, slots=True)
class WindowVerdict:
    """The verdict on one window in one tier. `samples` name the first missing records; `completed_ms` is
    the time at which the window was first found complete, else None."""

    topic: str
    start_ms: int
    tier: str
    status: str
    acknowledged: int
    counted: int
    missing: int = 0
    duplicated: int = 0
    unacknowledged: int = 0
    unreported: int = 0
    completed_ms: int | None = None
    samples: tuple[str, ...] = ()
    rejected: int = 0

    @property
    def differs(self) -> bool:
        return self.status not in (COMPLETE, PENDING)


@dataclass(slots=True)
class _Sum:
    """The sum over the producers of a window in one tier. `open` if one of them may still report."""

    acknowledged: int = 0
    counted: int = 0
    missing: int = 0
    duplicated: int = 0
    unacknowledged: int = 0
    unreported: int = 0
    open: bool = False

    def add(self, entry: ProducerEntry, tier: str) -> None:
        seen, counts = entry.seen(tier), entry.counts
        self.counted += seen.count
        self.duplicated += seen.duplicated
        if counts is None:
            self.unreported += seen.distinct
            self.open = True
            return
        self.acknowledged += counts.acknowledged
        self.open = self.open or not counts.closed
        # Without a list of numbers this is an estimate from the counts: at least so many are missing.
        held = (
            seen.count_within(counts.numbers)
            if counts.numbers is not None
            else min(seen.distinct, counts.acknowledged)
        )
        self.missing += counts.acknowledged - held
        self.unacknowledged += seen.distinct - held


def evaluate(ledger: Ledger, rules: Mapping[str, TierRule], now_ms: int) -> list[WindowVerdict]:
    """The verdicts on every window in every tier that should hold it, ordered by topic, time and tier.
    `now_ms` is stored as the completion time of windows that are complete now."""
    rows: list[WindowVerdict] = []
    for (topic, start_ms), window in sorted(ledger.windows.items()):
        end_ms = start_ms + ledger.window_ms
        wanted = [tier for tier in ledger.tiers if rules[tier].covers(topic)]
        is_final = {tier: ledger.horizon_ms(tier) >= end_ms + rules[tier].grace_ms for tier in wanted}
        found = [_row(topic, start_ms, tier, window, is_final[tier], rules[tier], now_ms) for tier in wanted]
        over = bool(found) and all(is_final.values()) and all(row.status == COMPLETE for row in found)
        if over and window.entries and not any(entry.replayable() for entry in window.entries.values()):
            sums = {row.tier: Sums(row.counted, row.duplicated, row.unacknowledged) for row in found}
            window.folded = CompletedWindow(
                [*(window.folded.producers if window.folded else ()), *window.entries],
                found[0].acknowledged,
                {tier: sums.get(tier) or Sums(0, 0, 0) for tier in ledger.tiers},
            )
            window.entries.clear()
        rows += found
    return rows


def _row(
    topic: str, start_ms: int, tier: str, window: Window, is_final: bool, rule: TierRule, now_ms: int
) -> WindowVerdict:
    total = _Sum()
    if window.folded is not None:
        sums = window.folded.tiers[tier]
        total = _Sum(
            window.folded.acknowledged,
            sums.counted,
            duplicated=sums.duplicated,
            unacknowledged=sums.unacknowledged,
        )
    for entry in window.entries.values():
        total.add(entry, tier)
    if total.missing == 0 and not total.open:
        window.completed_ms.setdefault(tier, now_ms)
    return WindowVerdict(
        topic,
        start_ms,
        tier,
        _status(total, is_final, rule),
        total.acknowledged,
        total.counted,
        total.missing,
        total.duplicated,
        total.unacknowledged,
        total.unreported,
        window.completed_ms.get(tier),
        _samples(window, tier) if total.missing and is_final else (),
        window.rejected.get(tier, 0),
    )


def _status(total: _Sum, is_final: bool, rule: TierRule) -> str:
    if not is_final and (total.missing or total.open):
        return PENDING
    duplicated = total.duplicated and not rule.copies_allowed
    if total.missing:
        return BOTH if duplicated else MISSING
    if duplicated:
        return DUPLICATED
    return UNKNOWN if total.open else COMPLETE


def _samples(window: Window, tier: str) -> tuple[str, ...]:
    found: list[str] = []
    for name, entry in sorted(window.entries.items()):
        if entry.counts is not None and entry.counts.numbers is not None and len(found) < SAMPLES:
            seen = entry.seen(tier)
            lacking = seen.missing(entry.counts.numbers, SAMPLES - len(found))
            found += [f"{name} number {number}" for number in lacking]
    return tuple(found)


def problems(ledger: Ledger) -> list[str]:
    """Problems that prevent a verdict, apart from the windows: one line each."""
    found = []
    for name, client in sorted(ledger.clients.items()):
        if gaps := client.gaps():
            found.append(f"{gaps:,} audit events of {name} were published but not read")
        if client.window_ms != ledger.window_ms:
            found.append(
                f"{name} counts in windows of {client.window_ms} ms, this job in windows of "
                f"{ledger.window_ms} ms: its reports were ignored"
            )
    if ledger.unreadable_events:
        found.append(f"{ledger.unreadable_events:,} records of the audit topic are not audit events")
    for tier, count in sorted(ledger.late.items()):
        found.append(f"{count:,} records in {tier} belong to windows that are no longer kept")
    return found


def silent_clients(ledger: Ledger, after_ms: int) -> list[str]:
    """Clients without a final report that have published nothing for `after_ms`: killed or disconnected."""
    until_ms = ledger.horizons_ms.get(EVENTS, 0) - after_ms
    return sorted(
        name
        for name, client in ledger.clients.items()
        if not client.final and client.published_at_ms < until_ms
    )


def verdict(rows: Sequence[WindowVerdict], problems_found: Sequence[str]) -> str:
    """The overall verdict: the worst of all."""
    found = {row.status for row in rows}
    for status in (BOTH, MISSING, DUPLICATED):
        if status in found:
            return status if {MISSING, DUPLICATED} - found else BOTH
    if UNKNOWN in found or problems_found:
        return UNKNOWN
    return PENDING if PENDING in found else COMPLETE

"""The verdict and the report of the job `compare`, from the copies of each id in each tier."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from rich.console import Console

from ottla_pipeline.completeness.comparison import (
    MANIFEST,
    NOT_PRODUCED,
    TIERS,
    UNKNOWN_START_MS,
    ComparisonReport,
    Difference,
    verdicts_of,
)
from ottla_pipeline.completeness.ledger import CountRow

DAY_MS = 86_400_000
FIRST = 1_356_998_400_000
"""2013-01-01."""
Copies = tuple[int, int, int]
"""Of one id: in the manifest, in the brokers and in the lake."""
WHOLE: Sequence[Copies] = [(1, 1, 1)] * 5


def report(windows: Mapping[tuple[str, int], Sequence[Copies]], **more: Any) -> ComparisonReport:
    """The comparison of these ids, by topic and start of the window."""
    counts: dict[str, list[CountRow]] = {tier: [] for tier in TIERS}
    for (topic, start_ms), ids in windows.items():
        for producer in (MANIFEST, NOT_PRODUCED):
            own = [copies for copies in ids if (copies[0] > 0) == (producer == MANIFEST)]
            for at, tier in enumerate(TIERS):
                bits = sum(1 << number for number, copies in enumerate(own) if copies[at])
                if bits:
                    held = sum(copies[at] for copies in own)
                    counts[tier].append(CountRow(topic, producer, start_ms, 0, bits, held))
    return ComparisonReport("1 day", verdicts_of(counts, DAY_MS), **more)


def test_an_audit_passes_when_every_event_is_held_once_by_both() -> None:
    found = report({("a", FIRST): WHOLE})
    assert found.passed
    assert not found.windows(differing=True)


@pytest.mark.parametrize(
    ("ids", "tier", "counts"),
    [
        ([*WHOLE[1:], (1, 0, 1)], "brokers", {"held": 4, "missing": 1, "duplicated": 0, "unexpected": 0}),
        ([*WHOLE[1:], (1, 1, 0)], "lake", {"held": 4, "missing": 1, "duplicated": 0, "unexpected": 0}),
        ([*WHOLE[1:], (1, 1, 2)], "lake", {"held": 6, "missing": 0, "duplicated": 1, "unexpected": 0}),
        ([*WHOLE[1:], (1, 2, 1)], "brokers", {"held": 6, "missing": 0, "duplicated": 1, "unexpected": 0}),
        ([*WHOLE, (0, 1, 0)], "brokers", {"held": 6, "missing": 0, "duplicated": 0, "unexpected": 1}),
        ([*WHOLE, (0, 0, 1)], "lake", {"held": 6, "missing": 0, "duplicated": 0, "unexpected": 1}),
        ([*WHOLE, (0, 0, 3)], "lake", {"held": 8, "missing": 0, "duplicated": 2, "unexpected": 1}),
        ([*WHOLE[1:], (2, 1, 1)], "lake", {"held": 5, "missing": 0, "duplicated": 0, "unexpected": 0}),
    ],
)
def test_an_audit_fails_on_any_difference_in_any_window(
    ids: Sequence[Copies], tier: str, counts: dict[str, int]
) -> None:
    found = report({("a", FIRST): WHOLE, ("a", FIRST + DAY_MS): ids})
    assert not found.passed
    (bad,) = found.windows(differing=True)
    assert (bad["topic"], bad["start"]) == ("a", "2013-01-02T00:00:00Z")
    assert bad[tier] == counts
    assert (bad["produced"], bad["repeated"]) == (5, sum(max(0, copies[0] - 1) for copies in ids))


def test_a_loss_in_one_window_is_not_made_up_for_by_a_copy_in_another() -> None:
    lost, doubled = [*WHOLE[1:], (1, 0, 1)], [*WHOLE[1:], (1, 2, 1)]
    found = report({("a", FIRST): lost, ("a", FIRST + DAY_MS): doubled})
    total = found.by_topic()["a"]["brokers"]
    assert (total["held"], total["missing"], total["duplicated"]) == (10, 1, 1)
    assert not found.passed


def test_windows_before_1970_and_events_without_a_time_count() -> None:
    found = report({("a", UNKNOWN_START_MS): [(1, 0, 0)], ("a", -DAY_MS): [(1, 1, 0)]})
    assert [window["start"] for window in found.windows()] == ["1969-12-31T00:00:00Z", "unknown"]
    assert found.total()["brokers"] == {"held": 1, "missing": 1, "duplicated": 0, "unexpected": 0}
    assert found.total()["lake"]["missing"] == 2


def test_the_report_tells_sums_windows_and_samples() -> None:
    lost = [*WHOLE[1:], (1, 1, 0)]
    samples = [Difference("b", "id-17", 1, 1, 0)]
    found = report({("a", FIRST): WHOLE, ("b", FIRST): lost}, samples=samples, without_id=2)
    told = json.loads(found.to_json())
    assert told["passed"] is False
    assert told["total"]["produced"] == 10
    assert told["topics"]["b"]["lake"] == {"held": 4, "missing": 1, "duplicated": 0, "unexpected": 0}
    assert told["differences"] == [{"topic": "b", "id": "id-17", "produced": 1, "brokers": 1, "lake": 0}]
    assert told["broker_records_without_id"] == 2
    assert len(told["windows"]) == 2
    console = Console(width=140, file=io.StringIO(), record=True)
    for table in found.tables():
        console.print(table)
    text = console.export_text()
    assert "id-17" in text
    assert "2013-01-01T00:00:00Z" in text

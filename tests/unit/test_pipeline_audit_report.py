"""The audit's verdict and report, from counts."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from ottla_pipeline.completeness.comparison import (
    ComparisonReport,
    Counts,
    Difference,
    TierCounts,
    WindowCounts,
)


def window(topic: str, start: str, counts: Counts) -> WindowCounts:
    return WindowCounts(topic, start, counts)


def whole(count: int) -> Counts:
    return Counts(count, 0, TierCounts(held=count), TierCounts(held=count))


def test_an_audit_passes_when_every_event_is_held_once_by_both() -> None:
    report = ComparisonReport("1 day", [window("a", "2013-01-01T00:00:00Z", whole(5))])
    assert report.passed
    assert not report.differing()


@pytest.mark.parametrize(
    "counts",
    [
        Counts(5, 0, TierCounts(held=4, missing=1), TierCounts(held=5)),
        Counts(5, 0, TierCounts(held=5), TierCounts(held=4, missing=1)),
        Counts(5, 0, TierCounts(held=5), TierCounts(held=6, duplicated=1)),
        Counts(5, 0, TierCounts(held=6, duplicated=1), TierCounts(held=5)),
        Counts(5, 0, TierCounts(held=6, unexpected=1), TierCounts(held=5)),
        Counts(5, 0, TierCounts(held=5), TierCounts(held=6, unexpected=1)),
        Counts(5, 1, TierCounts(held=5), TierCounts(held=5)),
    ],
)
def test_an_audit_fails_on_any_difference_in_any_window(counts: Counts) -> None:
    bad = window("a", "2013-01-02T00:00:00Z", counts)
    report = ComparisonReport("1 day", [window("a", "2013-01-01T00:00:00Z", whole(5)), bad])
    assert not report.passed
    assert report.differing() == [bad]


def test_a_loss_in_one_window_is_not_made_up_for_by_a_copy_in_another() -> None:
    lost = Counts(5, 0, TierCounts(held=4, missing=1), TierCounts(held=5))
    doubled = Counts(5, 0, TierCounts(held=6, duplicated=1), TierCounts(held=5))
    report = ComparisonReport("1 day", [window("a", "1", lost), window("a", "2", doubled)])
    total = report.by_topic()["a"].brokers
    assert (total.held, total.missing, total.duplicated) == (10, 1, 1)
    assert not report.passed


def test_the_report_tells_sums_windows_and_samples() -> None:
    lost = Counts(5, 0, TierCounts(held=5), TierCounts(held=4, missing=1))
    windows = [window("a", "2013-01-01T00:00:00Z", whole(5)), window("b", "2013-01-01T00:00:00Z", lost)]
    report = ComparisonReport("1 day", windows, [Difference("b", "id-17", 1, 1, 0)], without_id=2)
    told = json.loads(report.to_json())
    assert told["passed"] is False
    assert told["total"]["produced"] == 10
    assert told["topics"]["b"]["lake"] == {"held": 4, "missing": 1, "duplicated": 0, "unexpected": 0}
    assert told["differences"] == [{"topic": "b", "id": "id-17", "produced": 1, "brokers": 1, "lake": 0}]
    assert told["broker_records_without_id"] == 2
    assert len(told["windows"]) == 2
    console = Console(width=140, file=io.StringIO(), record=True)
    for table in report.tables():
        console.print(table)
    text = console.export_text()
    assert "id-17" in text
    assert "2013-01-01T00:00:00Z" in text

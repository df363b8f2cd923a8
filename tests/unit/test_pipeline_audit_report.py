"""The audit's verdict and report, from counts."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from ottla_pipeline.tally import Difference, Report, Tally, Tier, Window


def window(topic: str, start: str, tally: Tally) -> Window:
    return Window(topic, start, tally)


def whole(count: int) -> Tally:
    return Tally(count, 0, Tier(held=count), Tier(held=count))


def test_an_audit_passes_when_every_event_is_held_once_by_both() -> None:
    report = Report("1 day", [window("a", "2013-01-01T00:00:00Z", whole(5))])
    assert report.passed
    assert not report.differing()


@pytest.mark.parametrize(
    "tally",
    [
        Tally(5, 0, Tier(held=4, missing=1), Tier(held=5)),
        Tally(5, 0, Tier(held=5), Tier(held=4, missing=1)),
        Tally(5, 0, Tier(held=5), Tier(held=6, duplicated=1)),
        Tally(5, 0, Tier(held=6, duplicated=1), Tier(held=5)),
        Tally(5, 0, Tier(held=6, unexpected=1), Tier(held=5)),
        Tally(5, 0, Tier(held=5), Tier(held=6, unexpected=1)),
        Tally(5, 1, Tier(held=5), Tier(held=5)),
    ],
)
def test_an_audit_fails_on_any_difference_in_any_window(tally: Tally) -> None:
    bad = window("a", "2013-01-02T00:00:00Z", tally)
    report = Report("1 day", [window("a", "2013-01-01T00:00:00Z", whole(5)), bad])
    assert not report.passed
    assert report.differing() == [bad]


def test_a_loss_in_one_window_is_not_made_up_for_by_a_copy_in_another() -> None:
    lost = Tally(5, 0, Tier(held=4, missing=1), Tier(held=5))
    doubled = Tally(5, 0, Tier(held=6, duplicated=1), Tier(held=5))
    report = Report("1 day", [window("a", "1", lost), window("a", "2", doubled)])
    total = report.by_topic()["a"].brokers
    assert (total.held, total.missing, total.duplicated) == (10, 1, 1)
    assert not report.passed


def test_the_report_tells_sums_windows_and_samples() -> None:
    lost = Tally(5, 0, Tier(held=5), Tier(held=4, missing=1))
    windows = [window("a", "2013-01-01T00:00:00Z", whole(5)), window("b", "2013-01-01T00:00:00Z", lost)]
    report = Report("1 day", windows, [Difference("b", "id-17", 1, 1, 0)], without_id=2)
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

"""The audit's report, and its configuration's errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from ottla_pipeline.completeness import report
from ottla_pipeline.completeness.auditor import caught_up_ms
from ottla_pipeline.completeness.config import AuditConfig, interval_ms
from ottla_pipeline.completeness.report import AuditMetrics, AuditResult
from ottla_pipeline.completeness.verdicts import TierRule, WindowVerdict
from ottla_pipeline.config.common import ConfigError, validate

WHOLE = WindowVerdict("orders", 60_000, "brokers", "complete", 10, 10, completed_ms=125_000)
LOSS = WindowVerdict("orders", 60_000, "lake", "missing", 10, 9, missing=1, samples=("web-<17>/1 number 7",))
FOUND = AuditResult(
    name="orders",
    at_ms=200_000,
    window_ms=60_000,
    verdict="missing",
    rows=[WHOLE, LOSS],
    problems=["1 audit events of p were published but not read"],
    silent=["web-9/1"],
    horizons_ms={"brokers": 180_000, "lake": 0},
    unaudited={"lake": {"orders": 3}},
    producers=2,
)


def test_the_report_is_written_whole_for_programs_and_for_people(tmp_path: Path) -> None:
    report.write(FOUND, tmp_path / "report")
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == ["report.html", "report.json"]
    told = json.loads((tmp_path / "report" / "report.json").read_text())
    assert told["verdict"] == "missing"
    assert told["tiers"]["lake"]["missing"] == 1
    assert told["tiers"]["lake"]["windows"]["missing"] == 1
    assert told["tiers"]["lake"]["read_until"] is None
    assert [window["lag_ms"] for window in told["windows"]] == [5_000, None]
    page = (tmp_path / "report" / "report.html").read_text()
    assert page.count("<svg") == 2
    assert "web-&lt;17&gt;/1 number 7" in page
    assert "web-9/1" in page


def test_a_page_is_drawn_without_windows_and_with_more_than_it_shows() -> None:
    assert "<svg" not in report.html(replace(FOUND, rows=[]))
    many = [replace(WHOLE, start_ms=60_000 * number) for number in range(700)]
    page = report.html(replace(FOUND, rows=[*many, LOSS]))
    assert "201 windows without a difference" in page
    assert "number 7" in page, "what differs is always shown"


def test_the_line_tells_what_differs() -> None:
    assert FOUND.line() == "missing: brokers 10 of 10; lake 9 of 10, 1 missing"
    pending = replace(FOUND, verdict="pending", rows=[WHOLE, replace(LOSS, status="pending", samples=())])
    assert pending.line() == "pending: brokers 10 of 10; lake 9 of 10, 1 not read yet"


def test_prometheus_gets_records_and_windows() -> None:
    registry = CollectorRegistry()
    registry.register(AuditMetrics(lambda: FOUND))
    text = generate_latest(registry).decode()
    assert 'ottla_audit_records{kind="missing",tier="lake"} 1.0' in text
    assert 'ottla_audit_windows{status="complete",tier="brokers"} 1.0' in text
    assert 'ottla_audit_read_until_seconds{tier="brokers"} 180.0' in text
    assert "ottla_audit_problems 1.0" in text


def test_a_page_is_drawn_anew_when_it_would_tell_something_else_or_is_old() -> None:
    later = replace(FOUND, at_ms=FOUND.at_ms + 5_000)
    assert not later.differs_from(FOUND, 30)
    assert replace(later, rows=[WHOLE]).differs_from(FOUND, 30)
    assert replace(FOUND, at_ms=FOUND.at_ms + 30_000).differs_from(FOUND, 30)


RULES = {
    "brokers": TierRule(1_000),
    "lake": TierRule(60_000),
    "billing": TierRule(0, lambda topic: topic == "b"),
}


def by_topic_of(
    rows: list[WindowVerdict], horizons_ms: dict[str, int], named: tuple[str, ...] = ()
) -> dict[str, Any]:
    found = replace(FOUND, rows=rows, horizons_ms=horizons_ms)
    told: dict[str, Any] = json.loads(json.dumps(report.topic_details(found, named, RULES)))
    topics: dict[str, Any] = told["topics"]
    return topics


def test_a_topic_is_complete_until_every_tier_that_reads_it_was_read_beyond_its_grace() -> None:
    read = {"brokers": 400_000, "lake": 370_000, "billing": 100_000}
    told = by_topic_of([replace(WHOLE, start_ms=240_000)], read, ("orders", "b"))
    assert told["orders"] == {
        "completeUntil": 300_000,
        "late": False,
        "differing": 0,
        "missing": 0,
        "duplicated": 0,
        "windows": [],
    }
    assert told["b"]["completeUntil"] == 60_000, "without a window, and billing reads it"
    unread = by_topic_of([], {**read, "lake": 0}, ("a",))["a"]
    assert (unread["completeUntil"], unread["late"]) == (None, True)


@pytest.mark.parametrize(("read_ms", "late"), [(3_960_000, False), (3_960_001, True)])
def test_a_topic_is_late_when_tiers_are_read_no_further(read_ms: int, late: bool) -> None:
    at_ms = read_ms + report.LATE_MS
    rows = [replace(WHOLE, start_ms=3_780_000, status="pending")]
    found = replace(FOUND, at_ms=at_ms, rows=rows, horizons_ms=dict.fromkeys(RULES, at_ms))
    assert report.topic_details(found, (), RULES)["topics"]["orders"]["late"] is late


def test_a_topic_is_complete_until_its_first_window_that_is_not() -> None:
    read = dict.fromkeys(RULES, 3_600_000)
    late = replace(LOSS, start_ms=180_000, status="pending", missing=1)
    told = by_topic_of([WHOLE, replace(LOSS, start_ms=120_000, missing=2), late], read)["orders"]
    assert (told["completeUntil"], told["late"], told["differing"], told["missing"]) == (120_000, False, 1, 2)
    assert told["windows"] == [
        {"start": 120_000, "tier": "lake", "status": "missing", "missing": 2, "duplicated": 0}
    ]
    many = [replace(LOSS, start_ms=60_000 * number) for number in range(30)]
    told = by_topic_of(many, read)["orders"]
    assert (told["differing"], told["missing"], len(told["windows"])) == (30, 30, report.WINDOWS_MAX)


def source(description: str, end: Any, latest: Any) -> dict[str, Any]:
    return {"description": description, "endOffset": end, "latestOffset": latest}


@pytest.mark.parametrize(
    ("sources", "at_ms"),
    [
        ([source("KafkaV2[Subscribe[a]]", {"a": {"0": 5}}, {"a": {"0": 5}})], 1_500),
        ([source("KafkaV2[Subscribe[a]]", {"a": {"0": 4}}, {"a": {"0": 5}})], None),
        ([source("DeltaSource[file:/lake]", {"reservoirVersion": 4}, None)], 1_500),
    ],
)
def test_a_batch_tells_up_to_when_its_source_was_read(sources: list[Any], at_ms: int | None) -> None:
    progress = {"timestamp": "1970-01-01T00:00:01.500Z", "sources": sources}
    assert caught_up_ms(progress) == at_ms


GOOD: dict[str, Any] = {
    "name": "orders",
    "kafka": {"bootstrap": "localhost:9092"},
    "checkpoint": "/c",
    "topics": {"topics": ["orders"]},
    "tiers": [{"name": "brokers"}, {"name": "lake", "delta": ["/l"], "grace": "10 minutes"}],
}


def test_a_configuration_is_read_with_its_defaults() -> None:
    config = validate(GOOD, AuditConfig, "audit.yaml")
    assert (config.window_ms, config.audit_topic) == (60_000, "ottla.audit")
    assert {name: rule.grace_ms for name, rule in config.rules().items()} == {
        "brokers": 60_000,
        "lake": 600_000,
    }
    assert interval_ms("7 days") == 7 * 86_400_000


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"tiers": []}, "audit.yaml: tiers: "),
        ({"tiers": [{"name": "a"}, {"name": "a"}]}, "two are named 'a'"),
        ({"tiers": [{"name": "a", "delta": ["/l"], "topicPrefix": "eu."}]}, "a lake or an application"),
        ({"tiers": [{"name": "a", "application": "b", "delta": ["/l"]}]}, "a lake or an application"),
        ({"tiers": [{"name": "a", "exactlyOnce": True}]}, "tiers.0: topics and exactlyOnce are an"),
        ({"tiers": [{"name": "a", "deadLetters": ["/l"]}]}, "tiers.0: deadLetters are a lake's"),
        ({"tiers": [{"name": "a", "grace": "soon"}]}, "tiers.0.grace: must be a number and a unit"),
        ({"window": "1m"}, "window: must be a number and a unit"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused_with_its_path(
    change: dict[str, Any], what: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        validate(GOOD | change, AuditConfig, "audit.yaml")
    assert what in str(refused.value)

"""Deletion policies: what becomes of what they name, also while records are written and truncated."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ottla.metadata.broker_config_table import BUILT_IN_POLICIES
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.log_manager import LogManager
from ottla.storage.retention import BUILT_IN, LogFacts, SegmentFacts, deletable_segments
from tests.worlds.storage_logs import NOW_MS, append, open_log

DOCS = Path(__file__).parents[2] / "docs/explanation/storage.md"
DAY_MS = 24 * 60 * 60 * 1000


class Names:
    """A policy that names what `choose` makes of the log, and keeps what it was given."""

    def __init__(self, choose: Callable[[LogFacts], Iterable[Any]]) -> None:
        self._choose = choose
        self.seen: list[LogFacts] = []

    def deletable(self, log: LogFacts) -> Iterable[int]:
        self.seen.append(log)
        return self._choose(log)


def names(*offsets: Any) -> Names:
    return Names(lambda log: offsets)


def failing(log: LogFacts) -> Iterable[int]:
    yield 0
    raise RuntimeError("out of order")


def config(policies: str, **settings: Any) -> LogConfig:
    return LogConfig(segment_bytes=1000, ottla_deletion_policies=policies, **settings)


def facts(config: LogConfig, *bases: int) -> LogFacts:
    return LogFacts("events", 0, [SegmentFacts(base, 10, 0) for base in bases], config, NOW_MS)


def filled(directory: Path, config: LogConfig) -> Log:
    log = open_log(directory, config)
    for number in range(50):
        append(log, f"value {number}", timestamp=NOW_MS + number)
    assert len(log.segments) > 3
    return log


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_a_segment_goes_when_one_policy_names_it_and_all_before_it_go() -> None:
    log = facts(config("a,b"), 0, 5, 9, 12)
    assert len(deletable_segments(log, {"a": names(0, 9), "b": names(5)}, log_start_offset=0)) == 3
    assert len(deletable_segments(log, {"a": names(9, 5), "b": names(12)}, log_start_offset=0)) == 0


def test_a_policy_sees_what_is_not_deleted_anyway() -> None:
    policy = names(5)
    assert len(deletable_segments(facts(config("a"), 0, 5, 9), {"a": policy}, log_start_offset=7)) == 2
    assert [s.base_offset for s in policy.seen[0].segments] == [5, 9]


def test_policies_are_not_asked_where_cleanup_policy_has_no_delete() -> None:
    policy = names(0)
    log = facts(config("a", cleanup_policy="compact"), 0, 5)
    assert len(deletable_segments(log, {"a": policy}, log_start_offset=0)) == 0
    assert policy.seen == []


def test_a_policy_that_fails_or_is_missing_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    policies = {"bad": Names(failing), "not iterable": Names(lambda log: None), "good": names(0)}  # type: ignore[arg-type, return-value]
    log = facts(config("missing,bad,not iterable,good"), 0, 5)
    assert len(deletable_segments(log, policies, log_start_offset=0)) == 1
    assert "events-0: this broker has no deletion policy 'missing'" in caplog.text
    assert "deletion policy bad failed on events-0" in caplog.text
    assert "out of order" in caplog.text
    assert "deletion policy not iterable failed on events-0" in caplog.text


def test_an_offset_where_no_segment_begins_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    log = facts(config("a"), 0, 5)
    with caplog.at_level(logging.ERROR):
        assert len(deletable_segments(log, {"a": names(0, 3, "5")}, log_start_offset=0)) == 1
    assert "deletion policy a named '5', 3, where no segment of events-0 begins" in caplog.text


def test_a_log_deletes_what_its_policy_names_up_to_the_high_watermark(tmp_path: Path) -> None:
    everything = Names(lambda log: [segment.base_offset for segment in log.segments])
    log = filled(tmp_path, config("mine"))
    second = bases(log)[1]
    assert log.delete_old_segments(now_ms=NOW_MS, high_watermark=second, policies={"mine": everything}) == 1
    assert (log.log_start_offset, bases(log)[0]) == (second, second)
    seen = everything.seen[0]
    assert (seen.topic, seen.partition, seen.now_ms, seen.config) == ("events", 0, NOW_MS, log.config)
    assert seen.segments[0].largest_timestamp == NOW_MS + second - 1
    # All of them: the active one is rolled first, as in Kafka, and an empty one stays.
    log.delete_old_segments(now_ms=NOW_MS, high_watermark=50, policies={"mine": everything})
    assert (log.log_start_offset, log.log_end_offset, log.size, bases(log)) == (50, 50, 0, [50])
    assert log.delete_old_segments(now_ms=NOW_MS, high_watermark=50, policies={"mine": everything}) == 0


def test_records_written_while_a_policy_decides_stay(tmp_path: Path) -> None:
    """The policy has not seen it."""

    def slow(facts: LogFacts) -> list[int]:
        append(log, "late", timestamp=NOW_MS)
        return [segment.base_offset for segment in facts.segments]

    log = filled(tmp_path, config("mine"))
    active = bases(log)[-1]
    log.delete_old_segments(now_ms=NOW_MS, high_watermark=100, policies={"mine": Names(slow)})
    assert bases(log)[0] == active
    assert log.log_end_offset > 50


def test_a_truncation_while_a_policy_decides_puts_deletion_off(tmp_path: Path) -> None:
    def truncated(facts: LogFacts) -> list[int]:
        log.truncate_to(45)
        return [0]

    log = filled(tmp_path, config("mine"))
    assert log.delete_old_segments(now_ms=NOW_MS, high_watermark=45, policies={"mine": Names(truncated)}) == 0
    assert log.delete_old_segments(now_ms=NOW_MS, high_watermark=45, policies={"mine": names(0)}) == 1


def test_appends_do_not_wait_for_a_policy(tmp_path: Path) -> None:
    def held(facts: LogFacts) -> list[int]:
        assert not log._local.lock._is_owned()  # type: ignore[attr-defined]
        return []

    log = filled(tmp_path, config("mine"))
    policy = Names(held)
    log.delete_old_segments(now_ms=NOW_MS, high_watermark=50, policies={"mine": policy})
    assert policy.seen


def test_a_policy_that_fails_on_one_log_leaves_the_others_their_turn(tmp_path: Path) -> None:
    def choose(facts: LogFacts) -> list[int]:
        if facts.topic == "bad":
            raise RuntimeError
        return [0]

    logs = LogManager([tmp_path], 1, "c1")
    logs.load(NOW_MS)
    logs.maintenance.deletion_policies = {**BUILT_IN, "mine": Names(choose)}
    for topic in ("bad", "good"):
        log = logs.get_or_create(topic, 0, config("mine"), NOW_MS)
        for number in range(50):
            append(log, f"value {number}")
    assert logs.cleanup(NOW_MS, {("bad", 0): 50, ("good", 0): 50}) == 1
    logs.close(NOW_MS)


def test_the_settings_know_the_policies_that_every_broker_has() -> None:
    assert set(BUILT_IN) == set(BUILT_IN_POLICIES)
    assert LogConfig().deletion_policies == list(BUILT_IN_POLICIES)


@pytest.mark.parametrize(
    ("now", "days", "opening"),
    [
        ("2023-11-15T12:00", 1, "2023-11-15T08:00"),  # a Wednesday
        ("2023-11-15T07:59", 1, "2023-11-14T08:00"),
        ("2023-11-15T12:00", 3, "2023-11-13T08:00"),
        ("2023-11-15T12:00", 4, "2023-11-10T08:00"),
        ("2023-11-19T12:00", 2, "2023-11-16T08:00"),  # a Sunday
    ],
)
def test_the_example_in_the_documentation_keeps_business_days(now: str, days: int, opening: str) -> None:
    (code,) = re.findall(r"```python\n(.+?)```", DOCS.read_text(), re.DOTALL)
    module: dict[str, Any] = {}
    exec(code, module)
    policy = module["BusinessDays"]()
    policy.configure({})
    now_ms, first_ms = (
        int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000) for text in (now, opening)
    )
    segments = [SegmentFacts(0, 1, first_ms - 1), SegmentFacts(5, 1, first_ms), SegmentFacts(9, 0, now_ms)]
    log = LogFacts("events", 0, segments, config("b", retention_ms=days * DAY_MS), now_ms)
    assert list(policy.deletable(log)) == [0]
    assert list(policy.deletable(log._replace(config=config("b", retention_ms=-1)))) == []
    policy.close()

"""Which log is cleaned, how far, and in which group_segments."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.server.logs.cleaner_thread import Throttler
from ottla.storage.cleaner.planning import (
    CleanableSegment,
    LogToClean,
    SourceSegment,
    first_dirty_offset,
    group_segments,
    log_to_clean,
    measure_log,
)
from ottla.storage.log_config import LogConfig
from tests.worlds.cleaner_logs import NOW_MS, end_transaction, open_log, put, seal

HOUR_MS = 3600 * 1000
COMPACT = LogConfig(cleanup_policy="compact")


def pieces(*sizes: int, age_ms: int = HOUR_MS) -> list[CleanableSegment]:
    """Segments of ten offsets each, the older the sooner."""
    count = len(sizes)
    return [
        CleanableSegment(at * 10, size, NOW_MS - (count - 1 - at) * age_ms, NOW_MS - (count - at) * age_ms)
        for at, size in enumerate(sizes)
    ]


def dirt(
    found: list[CleanableSegment], config: LogConfig = COMPACT, *, first_dirty: int = 0, stable: int = 1000
) -> LogToClean:
    return measure_log(found, config, first_dirty=first_dirty, last_stable_offset=stable, now_ms=NOW_MS)


def test_all_but_the_active_segment_may_be_cleaned() -> None:
    assert dirt(pieces(100, 100, 100)) == LogToClean(0, 20, 0, 200, 0)
    assert dirt(pieces(100)).cleanable_bytes == 0


def test_the_dirty_ratio_is_the_dirty_part_of_the_log() -> None:
    found = dirt(pieces(100, 100, 100, 100, 100), first_dirty=30)
    assert (found.clean_bytes, found.cleanable_bytes, found.ratio) == (300, 100, 0.25)
    assert not found.is_due(COMPACT)
    assert found.is_due(LogConfig(min_cleanable_dirty_ratio=0.2))
    assert not found.is_due(LogConfig(min_cleanable_dirty_ratio=0.25))


def test_cleaning_ends_where_the_segment_of_the_last_stable_offset_begins() -> None:
    assert dirt(pieces(100, 100, 100), stable=19).first_uncleanable == 10
    assert dirt(pieces(100, 100, 100), stable=10).first_uncleanable == 10
    assert dirt(pieces(100, 100, 100), stable=9).cleanable_bytes == 0


def test_young_records_are_left_alone() -> None:
    config = LogConfig(min_compaction_lag_ms=2 * HOUR_MS)
    assert dirt(pieces(100, 100, 100, 100), config).first_uncleanable == 20
    # From the first young one on, whatever comes behind it.
    found = pieces(100, 100, 100, 100)
    found[1] = found[1]._replace(largest_timestamp=NOW_MS)
    assert dirt(found, config).first_uncleanable == 10


def test_a_log_is_due_when_something_has_waited_too_long() -> None:
    found = pieces(900, 10, 10)
    lag = LogConfig(max_compaction_lag_ms=HOUR_MS, min_cleanable_dirty_ratio=0.9)
    waited = dirt(found, lag, first_dirty=10)
    assert waited.ratio < 0.02
    assert waited.delay_ms == HOUR_MS
    assert waited.is_due(lag)
    patient = LogConfig(max_compaction_lag_ms=3 * HOUR_MS, min_cleanable_dirty_ratio=0.9)
    assert dirt(found, patient, first_dirty=10).delay_ms == 0
    assert not dirt(found, patient, first_dirty=10).is_due(patient)
    # Nothing is to be done about what may not be cleaned yet.
    assert not dirt(found, lag, first_dirty=10, stable=10).is_due(lag)


@pytest.mark.parametrize(("checkpoint", "expected"), [(None, 5), (4, 5), (5, 5), (17, 17), (20, 20), (21, 5)])
def test_a_checkpoint_outside_of_the_log_counts_for_nothing(checkpoint: int | None, expected: int) -> None:
    assert first_dirty_offset(checkpoint, log_start_offset=5, log_end_offset=20) == expected


class TestGroups:
    def sources(self, *sizes: int) -> list[SourceSegment]:
        return [SourceSegment(at * 10, size, 8, 12) for at, size in enumerate(sizes)]

    def grouped(self, found: list[SourceSegment], **limits: int) -> list[list[int]]:
        defaults = {"segment_bytes": 100, "index_bytes": 1000, "end_offset": 10 * len(found)}
        made = group_segments(found, **{**defaults, **limits})
        assert [each for group in made for each in group] == found
        return [[source.size for source in group] for group in made]

    def test_neighbours_that_fit_into_one_segment_are_grouped(self) -> None:
        assert self.grouped(self.sources(50, 50, 50, 10, 40, 100, 1)) == [[50, 50], [50, 10, 40], [100], [1]]

    def test_a_segment_that_is_too_large_is_alone(self) -> None:
        assert self.grouped(self.sources(500, 1, 500)) == [[500], [1], [500]]

    def test_indexes_have_limits_too(self) -> None:
        assert self.grouped(self.sources(1, 1, 1, 1), index_bytes=24) == [[1, 1], [1, 1]]

    def test_offsets_stay_within_reach_of_the_first(self) -> None:
        far = [SourceSegment(0, 1, 8, 12), SourceSegment(10, 1, 8, 12), SourceSegment(2**31, 1, 8, 12)]
        assert self.grouped(far, end_offset=2**31 + 1) == [[1, 1], [1]]
        assert self.grouped(far[:2], end_offset=2**31 + 1) == [[1], [1]]
        assert self.grouped(far[:2], end_offset=2**31) == [[1, 1]]


class TestOfALog:
    def test_an_open_transaction_holds_cleaning_up(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        put(log, ("a", "1"))
        seal(log)
        put(log, ("a", "2"), producer=(5, 0), transactional=True)
        seal(log)
        put(log, ("a", "3"))
        seal(log)
        assert log_to_clean(log, log.last_stable_offset(3), NOW_MS).first_uncleanable == 1
        end_transaction(log, (5, 0), commit=True)
        assert log_to_clean(log, log.last_stable_offset(4), NOW_MS).first_uncleanable == 3

    def test_a_policy_knows_the_age_of_segments_after_a_restart(self, tmp_path: Path) -> None:
        config = LogConfig(
            cleanup_policy="compact",
            max_compaction_lag_ms=HOUR_MS,
            min_compaction_lag_ms=HOUR_MS // 2,
            segment_bytes=400,
        )
        log = open_log(tmp_path, config)
        put(log, ("a", "1"), timestamp=NOW_MS - 2 * HOUR_MS)
        seal(log)
        put(log, ("a", "2"), timestamp=NOW_MS - HOUR_MS // 4)
        seal(log)
        log.close(NOW_MS)
        log = open_log(tmp_path, config)
        found = log_to_clean(log, 2, NOW_MS)
        assert found.delay_ms == HOUR_MS
        assert found.first_uncleanable == 1


def test_a_throttle_waits_until_its_rate_is_met() -> None:
    throttle = Throttler(1000.0, 0.0)
    assert throttle.delay_s(100, 0.01) == 0  # so little is let through
    assert throttle.delay_s(400, 0.02) == pytest.approx(0.48)
    assert throttle.delay_s(0, 0.4) == pytest.approx(0.1)
    assert throttle.delay_s(0, 0.5) == 0
    assert throttle.delay_s(300, 0.6) == 0
    assert throttle.delay_s(1, 0.6) == pytest.approx(0.201)
    throttle.bytes_per_s = float("inf")
    assert throttle.delay_s(10**12, 0.61) == 0


def test_a_throttle_lets_through_all_of_its_rate_after_a_pause() -> None:
    throttle = Throttler(1000.0, 0.0)
    assert throttle.delay_s(400, 0.1) == pytest.approx(0.3)
    assert throttle.delay_s(400, 0.1) == pytest.approx(0.7)
    assert throttle.delay_s(0, 0.4) == pytest.approx(0.4)
    assert throttle.delay_s(0, 0.8) == 0
    assert throttle.delay_s(600, 1.5) == 0
    throttle.delay_s(1000, 1.6)
    throttle.bytes_per_s = 10_000.0
    assert throttle.delay_s(0, 1.7) == 0

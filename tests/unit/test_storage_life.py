"""A log's life: rolling, truncation, retention, leader epochs, deletion."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.ports.files import OS_FILES
from ottla.protocol.errors import KafkaError
from ottla.storage.leader_epochs import LeaderEpochFileCache
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.log_manager import LogManager
from ottla.storage.log_segments import LogSegments
from ottla.storage.retention import (
    BUILT_IN,
    LogFacts,
    SegmentFacts,
    deletable_segments,
    within_high_watermark,
)
from tests.worlds.storage_logs import NOW_MS, append, batch, contents, open_log, values

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=100)


def filled(directory: Path, count: int = 50, config: LogConfig = SMALL) -> Log:
    log = open_log(directory, config)
    for number in range(count):
        append(log, f"value {number}", timestamp=NOW_MS + number)
    return log


class TestRolling:
    def test_a_segment_is_rolled_by_its_size(self, tmp_path: Path) -> None:
        log = filled(tmp_path)
        assert len(log.segments) > 3
        sizes = [path.stat().st_size for path in (tmp_path / "events-0").glob("*.log")]
        assert max(sizes) <= 1000

    def test_a_segment_is_rolled_by_the_records_time(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, LogConfig(segment_ms=100))
        append(log, "a", timestamp=NOW_MS)
        append(log, "b", timestamp=NOW_MS + 100)
        assert len(log.segments) == 1
        append(log, "c", timestamp=NOW_MS + 101)
        assert len(log.segments) == 2

    def test_a_segment_is_rolled_by_the_clock_where_records_have_no_time(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, LogConfig(segment_ms=100))
        append(log, "a", timestamp=-1, now_ms=NOW_MS)
        append(log, "b", timestamp=-1, now_ms=NOW_MS + 100)
        assert len(log.segments) == 1
        append(log, "c", timestamp=-1, now_ms=NOW_MS + 101)
        assert len(log.segments) == 2

    def test_segments_are_rolled_by_time_with_a_random_jitter(self, tmp_path: Path) -> None:
        """segment.jitter.ms spreads the rolls of logs that were made at once."""
        config = LogConfig(segment_ms=10_000, segment_jitter_ms=4000)
        ages = set()
        for number in range(20):
            log = open_log(tmp_path / str(number), config)
            for segment in range(3):
                start = NOW_MS + segment * 20_000
                append(log, "first", timestamp=start)
                count = len(log.segments)
                ages.add(next(ms for ms in range(5900, 10_002, 50) if _rolls(log, count, start + ms)))
                log.roll(NOW_MS)
        assert min(ages) > 6000
        assert max(ages) <= 10_050
        assert len(ages) > 2

    def test_a_compacted_logs_in_time_to_be_compacted(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, LogConfig(cleanup_policy="compact", max_compaction_lag_ms=50))
        append(log, "a", timestamp=NOW_MS)
        append(log, "b", timestamp=NOW_MS + 51)
        assert len(log.segments) == 2

    def test_a_preallocated_file_is_cut_to_what_it_holds(self, tmp_path: Path) -> None:
        config = LogConfig(segment_bytes=1000, preallocate=True)
        log = filled(tmp_path, 40, config)
        *sealed, active = sorted((tmp_path / "events-0").glob("*.log"))
        assert len(sealed) > 1
        assert max(path.stat().st_size for path in sealed) < 1000
        assert active.stat().st_size == 1000
        assert log.size < 1000 * len(log.segments)
        everything = [f"value {number}" for number in range(40)]
        assert values(open_log(tmp_path, config, clean=False)) == everything
        log = open_log(tmp_path, config)
        log.close(NOW_MS)
        assert active.stat().st_size < 1000
        assert values(open_log(tmp_path, config)) == everything

    def test_a_segment_is_rolled_when_its_index_is_full(self, tmp_path: Path) -> None:
        log = filled(tmp_path, config=LogConfig(index_interval_bytes=1, segment_index_bytes=8 * 6))
        assert len(log.segments) > 5
        assert len(contents(log)) == 50

    def test_a_segment_is_rolled_when_offsets_do_not_fit_into_its_index(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        append(log, "a")
        far = 2**31
        log.append_as_follower(batch("b", base_offset=far), now_ms=NOW_MS)
        assert len(log.segments) == 2
        assert contents(log) == [(0, "a"), (far, "b")]

    def test_an_empty_segment_is_not_rolled(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        log.roll(NOW_MS)
        assert len(log.segments) == 1


def _rolls(log: Log, count: int, timestamp: int) -> bool:
    append(log, "v", timestamp=timestamp)
    return len(log.segments) > count


class TestTruncation:
    @pytest.mark.parametrize("offset", range(0, 51, 3))
    def test_a_truncated_log_keeps_a_prefix_and_accepts_appends(self, tmp_path: Path, offset: int) -> None:
        log = filled(tmp_path)
        assert log.truncate_to(offset) == (offset < 50)
        expected = [f"value {number}" for number in range(min(offset, 50))]
        assert values(log) == expected
        assert append(log, "next") == len(expected)
        log.close(NOW_MS)
        assert values(open_log(tmp_path, SMALL)) == [*expected, "next"]

    def test_a_truncation_within_a_batch_removes_the_batch(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        append(log, "a", "b", "c")
        append(log, "d", "e", "f")
        log.truncate_to(4)
        assert values(log) == ["a", "b", "c"]
        assert log.log_end_offset == 3

    def test_a_truncation_within_the_batch_of_the_log_start_empties_the_log(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        append(log, "a", "b", "c")
        append(log, "d", "e", "f")
        log.maybe_increment_log_start_offset(4)
        log.truncate_to(5)
        assert values(log) == []
        assert (log.log_start_offset, log.log_end_offset) == (4, 4)

    def test_an_append_after_a_truncation_within_a_batch_leaves_no_gap(self, tmp_path: Path) -> None:
        """A leader whose log begins in the middle of a batch tells a follower to truncate there."""
        leader, follower = open_log(tmp_path / "leader"), open_log(tmp_path / "follower")
        for log in (leader, follower):
            append(log, "a", "b", "c")
            append(log, "d", "e", "f")
        follower.truncate_to(4)
        batches = leader.read(follower.log_end_offset, 1000, up_to=6).to_bytes()
        follower.append_as_follower(batches, now_ms=NOW_MS)
        assert values(follower) == ["a", "b", "c", "d", "e", "f"]

    def test_an_epoch_that_left_nothing_is_forgotten_even_if_nothing_is_cut(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        append(log, "a", epoch=1)
        log.assign_epoch_start(5, 1)
        assert not log.truncate_to(3)
        assert log.latest_epoch == 1

    def test_the_recovery_point_comes_along(self, tmp_path: Path) -> None:
        log = filled(tmp_path)
        log.flush()
        log.truncate_to(10)
        # The cut file is not synced yet: it counts as not flushed from its start.
        assert log.recovery_point == log.segments[-1].base_offset <= 10

    def test_timestamps_of_what_is_gone_are_forgotten(self, tmp_path: Path) -> None:
        log = filled(tmp_path)
        log.truncate_to(20)
        assert log.max_timestamp() == (19, NOW_MS + 19, 0)
        assert log.offset_for_timestamp(NOW_MS + 20) is None

    def test_timestamps_of_what_is_kept_are_remembered(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        for timestamp in (5, 9, 7, 8):
            append(log, "v", timestamp=NOW_MS + timestamp)
        log.truncate_to(3)
        assert log.max_timestamp() == (1, NOW_MS + 9, 0)
        log.truncate_to(1)
        assert log.max_timestamp() == (0, NOW_MS + 5, 0)
        log.truncate_to(0)
        assert log.max_timestamp() is None

    def test_a_follower_that_is_out_of_range_begins_anew(self, tmp_path: Path) -> None:
        log = filled(tmp_path)
        log.truncate_fully_and_start_at(1000)
        assert (log.log_start_offset, log.log_end_offset, log.latest_epoch) == (1000, 1000, None)
        assert append(log, "a") == 1000
        assert len(list((tmp_path / "events-0").glob("*.log"))) == 1


class TestRetention:
    def test_retention_by_time_deletes_the_oldest_segments(self, tmp_path: Path) -> None:
        log = filled(tmp_path)
        log.config = LogConfig(segment_bytes=1000, retention_ms=1000)
        assert log.delete_old_segments(now_ms=NOW_MS + 1000, high_watermark=50) == 0
        count = len(log.segments)
        deleted = log.delete_old_segments(now_ms=NOW_MS + 1030, high_watermark=50)
        assert 0 < deleted < count
        assert log.log_start_offset > 0
        assert contents(log)[0] == (log.log_start_offset, f"value {log.log_start_offset}")

    def test_a_deletion_does_not_disturb_a_look_up_by_time(self, tmp_path: Path) -> None:
        """Retention runs in a thread: a lookup may have begun on the segments that go."""
        filled(tmp_path).close(NOW_MS)
        log = open_log(tmp_path, LogConfig(segment_bytes=1000, retention_ms=1000))  # no index is read yet
        segments = log.segments
        log.delete_old_segments(now_ms=NOW_MS + 5000, high_watermark=50)
        assert LogSegments(segments).offset_for_timestamp(NOW_MS + 7, 0) == (7, NOW_MS + 7, 0)

    def test_everything_goes_when_all_is_too_old_and_the_log_goes_on(self, tmp_path: Path) -> None:
        log = filled(tmp_path)
        log.config = LogConfig(segment_bytes=1000, retention_ms=1000)
        log.delete_old_segments(now_ms=NOW_MS + 5000, high_watermark=50)
        assert (log.log_start_offset, log.log_end_offset, log.size) == (50, 50, 0)
        assert append(log, "a") == 50
        log.close(NOW_MS)
        assert contents(open_log(tmp_path)) == [(50, "a")]

    def test_retention_by_size_keeps_as_much_as_is_allowed(self, tmp_path: Path) -> None:
        log = filled(tmp_path)
        log.config = LogConfig(retention_bytes=2000)
        log.delete_old_segments(now_ms=NOW_MS, high_watermark=50)
        assert 2000 <= log.size < 3000

    def test_nothing_at_or_beyond_the_high_watermark_goes(self, tmp_path: Path) -> None:
        log = filled(tmp_path)
        log.config = LogConfig(retention_ms=1000)
        log.delete_old_segments(now_ms=NOW_MS + 5000, high_watermark=20)
        assert log.log_start_offset <= 20
        assert ("value 20") in values(log)

    def test_segments_below_the_start_offset_are_deleted_from_a_compacted_log_too(
        self, tmp_path: Path
    ) -> None:
        log = filled(tmp_path)
        log.config = LogConfig(cleanup_policy="compact", retention_ms=1)
        assert log.delete_old_segments(now_ms=NOW_MS + 5000, high_watermark=50) == 0
        log.maybe_increment_log_start_offset(30)
        assert log.delete_old_segments(now_ms=NOW_MS + 5000, high_watermark=50) > 0
        assert log.log_start_offset == 30

    def test_an_empty_active_segment_stays(self) -> None:
        facts = [SegmentFacts(0, 10, 0), SegmentFacts(5, 0, 0)]
        assert within_high_watermark(facts, high_watermark=5, log_end_offset=5) == 1
        assert within_high_watermark(facts[:1], high_watermark=5, log_end_offset=5) == 1

    @pytest.mark.parametrize(
        "config", [LogConfig(retention_ms=-1), LogConfig(retention_ms=-1, retention_bytes=-1)]
    )
    def test_without_limits_no_segment_is_deleted(self, config: LogConfig) -> None:
        facts = LogFacts("events", 0, [SegmentFacts(0, 10, 0), SegmentFacts(5, 10, 0)], config, 10**15)
        assert not deletable_segments(facts, BUILT_IN, log_start_offset=0)


class TestLeaderEpochs:
    def test_an_epoch_ends_where_the_next_begins(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        append(log, "a", "b", epoch=1)
        append(log, "c", epoch=1)
        append(log, "d", epoch=4)
        assert log.end_offset_for_epoch(1) == (1, 3)
        assert log.end_offset_for_epoch(2) == (1, 3)
        assert log.end_offset_for_epoch(4) == (4, 4)
        assert log.end_offset_for_epoch(5) == (-1, -1)
        assert log.end_offset_for_epoch(0) == (0, 0)
        assert log.end_offset_for_epoch(-1) == (-1, -1)
        assert [log.epoch_at(offset) for offset in range(4)] == [1, 1, 1, 4]

    def test_a_leader_may_note_its_epoch_before_it_writes(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        append(log, "a", epoch=1)
        log.assign_epoch_start(3, 1)
        assert log.end_offset_for_epoch(1) == (1, 1)
        assert log.latest_epoch == 3

    def test_a_new_entry_wins_over_what_contradicts_it(self, tmp_path: Path) -> None:
        epochs = LeaderEpochFileCache(OS_FILES, tmp_path)
        for epoch, start in [(1, 0), (2, 10), (3, 20)]:
            epochs.assign(epoch, start)
        epochs.assign(4, 10)
        assert epochs.entries() == [(1, 0), (4, 10)]
        epochs.assign(4, 15)
        assert epochs.entries() == [(1, 0), (4, 10)]

    def test_epochs_are_truncated_from_both_ends(self, tmp_path: Path) -> None:
        epochs = LeaderEpochFileCache(OS_FILES, tmp_path)
        for epoch, start in [(1, 0), (2, 10), (3, 20), (5, 30)]:
            epochs.assign(epoch, start)
        epochs.truncate_from_end(30)
        assert epochs.entries() == [(1, 0), (2, 10), (3, 20)]
        epochs.truncate_from_start(15)
        assert epochs.entries() == [(2, 15), (3, 20)]
        epochs.write()
        assert LeaderEpochFileCache(OS_FILES, tmp_path).entries() == [(2, 15), (3, 20)]

    def test_the_file_of_epochs_is_kafkas(self, tmp_path: Path) -> None:
        epochs = LeaderEpochFileCache(OS_FILES, tmp_path)
        epochs.assign(0, 0)
        epochs.assign(7, 120)
        epochs.write()
        assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n2\n0 0\n7 120\n"

    def test_the_file_is_written_later_and_synced_with_the_log(self, tmp_path: Path) -> None:
        """Whoever comes to lead thousands of partitions at once must not wait for the disk for each."""
        logs = LogManager([tmp_path], 1, "cluster")
        logs.load(NOW_MS)
        log = logs.get_or_create("events", 0, LogConfig(), NOW_MS)
        file = log.directory / "leader-epoch-checkpoint"
        log.assign_epoch_start(3, 0)
        assert not logs.has_deferred_tasks(NOW_MS), "it has left nothing in the log"
        append(log, "a", epoch=5)
        assert not file.exists()
        log.flush()
        assert file.read_text() == "0\n1\n5 0\n", "no later than the records that it speaks of"
        append(log, "b", epoch=6)
        log.flush()
        log.truncate_to(1)
        assert logs.has_deferred_tasks(NOW_MS)
        logs.run_deferred_tasks(NOW_MS)
        assert file.read_text() == "0\n1\n5 0\n"
        log.assign_epoch_start(6, 1)
        logs.close(NOW_MS)
        assert file.read_text() == "0\n2\n5 0\n6 1\n"

    def test_truncating_the_log_truncates_its_epochs(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        append(log, "a", epoch=1)
        append(log, "b", epoch=2)
        log.truncate_to(1)
        assert log.latest_epoch == 1
        assert log.epoch_start(2) is None


class TestDurability:
    def test_flushing_moves_the_recovery_point(self, tmp_path: Path) -> None:
        log = filled(tmp_path)
        assert log.recovery_point == 0
        log.flush(include_active=False)
        assert 0 < log.recovery_point < 50
        log.flush()
        assert log.recovery_point == 50

    def test_flush_messages_counts_what_a_follower_appends(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, LogConfig(flush_messages=3))
        log.append_as_follower(batch("a", "b"), now_ms=NOW_MS)
        assert log.recovery_point == 0
        log.append_as_follower(batch("c", base_offset=2), now_ms=NOW_MS)
        assert log.recovery_point == 3

    def test_flush_messages_flushes_at_once(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, LogConfig(flush_messages=2))
        append(log, "a")
        assert log.recovery_point == 0
        append(log, "b")
        assert log.recovery_point == 2

    def test_deleting_removes_the_directory(self, tmp_path: Path) -> None:
        log = filled(tmp_path)
        read = log.read(0, 100, up_to=50)
        renamed = log.rename_for_deletion()
        assert renamed is not None
        OS_FILES.rmtree(renamed)
        assert not list(tmp_path.iterdir())
        assert read.to_bytes()
        with pytest.raises(KafkaError):
            append(log, "a")

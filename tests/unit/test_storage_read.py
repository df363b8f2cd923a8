"""Reading: whole batches from the wanted offset on, never beyond a bound, across segments."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import decode_records, iter_batches
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from tests.worlds.storage_logs import NOW_MS, append, batch, contents, open_log, values

SMALL = LogConfig(segment_bytes=2000, index_interval_bytes=200)


def filled(directory: Path, batches: int = 100, config: LogConfig = SMALL) -> Log:
    """Two records a batch, several segments, several index entries each."""
    log = open_log(directory, config)
    for number in range(batches):
        append(log, f"a{number}", f"b{number}", timestamp=NOW_MS + number)
    return log


def first_offset_read(log: Log, offset: int, up_to: int | None = None) -> int:
    end = log.log_end_offset if up_to is None else up_to
    return decode_records(log.read(offset, 1 << 20, up_to=end).to_bytes())[0].offset


@pytest.mark.parametrize("reopened", [False, True])
def test_every_offset_is_found(tmp_path: Path, reopened: bool) -> None:
    log = filled(tmp_path)
    if reopened:
        log.close(NOW_MS)
        log = open_log(tmp_path, SMALL)
    for offset in range(log.log_end_offset):
        assert first_offset_read(log, offset) == offset - offset % 2


def test_nothing_at_or_beyond_the_bound_is_returned(tmp_path: Path) -> None:
    log = filled(tmp_path)
    for bound in range(0, log.log_end_offset + 1, 7):
        for offset in range(0, bound, 5):
            read = log.read(offset, 1 << 20, up_to=bound)
            offsets = [record.offset for record in decode_records(read.to_bytes())]
            assert all(found < bound for found in offsets)
            assert read.size == len(read.to_bytes())


def test_reading_on_from_segment_to_segment_gives_everything(tmp_path: Path) -> None:
    log = filled(tmp_path)
    assert len(log.segments) > 3
    assert len(contents(log)) == 200


def test_a_read_ends_at_its_size_even_within_a_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(3):
        append(log, "x" * 100)
    size = len(batch("x" * 100))
    data = log.read(0, 2 * size + 10, up_to=3).to_bytes()
    assert len(data) == 2 * size + 10
    assert len(list(iter_batches(data))) == 2


def test_the_first_batch_is_whole_however_large_when_one_is_needed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, "x" * 1000)
    append(log, "y")
    assert [r.offset for r in decode_records(log.read(0, 10, up_to=2).to_bytes())] == [0]
    assert log.read(0, 10, up_to=2, min_one=False).size == 0
    assert log.read(0, 0, up_to=2).size > 1000


def test_the_end_of_the_log_is_empty_and_beyond_it_is_an_error(tmp_path: Path) -> None:
    log = filled(tmp_path, 3)
    assert log.read(6, 100, up_to=6).size == 0
    assert log.read(4, 100, up_to=2).size == 0
    with pytest.raises(KafkaError) as caught:
        log.read(7, 100, up_to=6)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    log.maybe_increment_log_start_offset(2)
    with pytest.raises(KafkaError):
        log.read(1, 100, up_to=6)
    assert first_offset_read(log, 2) == 2


def test_a_read_stays_readable_after_its_segment_is_deleted(tmp_path: Path) -> None:
    log = filled(tmp_path)
    read = log.read(0, 1 << 20, up_to=200)
    before = read.to_bytes()
    log.maybe_increment_log_start_offset(log.log_end_offset)
    assert log.delete_old_segments(now_ms=NOW_MS, high_watermark=200) > 0
    assert read.to_bytes() == before


def test_an_offset_that_was_compacted_away_at_a_segments_end_is_read_from_the_next(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, "a")
    log.roll(NOW_MS, base_offset=10)
    log.append_as_follower(batch("b", base_offset=10), now_ms=NOW_MS)
    assert first_offset_read(log, 5) == 10
    assert values(log) == ["a", "b"]


class TestTimestamps:
    @pytest.mark.parametrize("reopened", [False, True])
    def test_the_first_record_at_or_after_a_time_is_found(self, tmp_path: Path, reopened: bool) -> None:
        log = filled(tmp_path)
        if reopened:
            log.close(NOW_MS)
            log = open_log(tmp_path, SMALL)
        assert log.offset_for_timestamp(0) == (0, NOW_MS, 0)
        for number in range(100):
            assert log.offset_for_timestamp(NOW_MS + number) == (2 * number, NOW_MS + number, 0)
        assert log.offset_for_timestamp(NOW_MS + 100) is None
        assert log.max_timestamp() == (198, NOW_MS + 99, 0)

    def test_times_out_of_order_are_found_too(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, SMALL)
        times = [(number * 37) % 101 for number in range(100)]
        for time in times:
            append(log, "v", timestamp=time)
        for wanted in range(101):
            first = next((at for at, time in enumerate(times) if time >= wanted), None)
            found = log.offset_for_timestamp(wanted)
            assert (found and found[0]) == first, wanted

    def test_records_below_the_start_offset_are_not_found(self, tmp_path: Path) -> None:
        log = filled(tmp_path)
        log.maybe_increment_log_start_offset(51)
        assert log.offset_for_timestamp(NOW_MS) == (51, NOW_MS + 25, 0)

    def test_an_empty_log_has_no_times(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        assert log.offset_for_timestamp(0) is None
        assert log.max_timestamp() is None

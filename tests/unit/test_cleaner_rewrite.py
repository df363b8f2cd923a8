"""What a cleaning leaves of a log: the last record of each key, tombstones and markers for their time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.protocol.compression import Codec
from ottla.protocol.records import DELETE_HORIZON_FLAG, BatchHeader, decode_batch, parse_batch_header
from ottla.storage.cleaner.cleaner import LogCleaningError
from ottla.storage.log import Log
from tests.worlds.cleaner_logs import (
    NOW_MS,
    batches,
    clean,
    end_transaction,
    in_memory_place,
    open_log,
    put,
    records,
    seal,
    survivors,
)

DAY_MS = 24 * 60 * 60 * 1000


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    yield from in_memory_place(tmp_path)


def headers(log: Log) -> list[BatchHeader]:
    return [parse_batch_header(batch) for batch in batches(log)]


def values(log: Log) -> list[tuple[int, str, str | None]]:
    return [(o, (k or b"").decode(), None if v is None else v.decode()) for o, k, v in records(log)]


@pytest.mark.parametrize("codec", list(Codec))
def test_the_last_record_of_each_key_stays_where_it_was(in_memory: Path, codec: Codec) -> None:
    log = open_log(in_memory)
    for number in range(60):
        put(log, *((f"key-{(number * 7 + at) % 11}", f"{number}.{at}") for at in range(3)), codec=codec)
    seal(log)
    written = records(log)
    assert len(log.segments) > 5
    clean(log)
    assert records(log) == survivors(written, log.log_end_offset)
    assert len(records(log)) == 11
    assert log.log_end_offset == 180
    assert log.first_dirty_offset == 180
    assert all(header.attributes & 7 == codec for header in headers(log) if header.record_count)


def test_the_active_segment_is_never_touched(in_memory: Path) -> None:
    log = open_log(in_memory)
    for number in range(30):
        put(log, ("k", f"{number}"))
    active = log.segments[-1]
    before = log.read(active.base_offset, 1 << 20, up_to=log.log_end_offset).to_bytes()
    clean(log)
    assert log.segments[-1] is active
    assert log.read(active.base_offset, 1 << 20, up_to=log.log_end_offset).to_bytes() == before
    assert len(before) > 100
    # What is in the active segment is not known to supersede anything yet.
    assert values(log)[0] == (active.base_offset - 1, "k", f"{active.base_offset - 1}")


def test_a_batch_that_loses_nothing_is_kept_byte_for_byte(in_memory: Path) -> None:
    log = open_log(in_memory)
    put(log, ("a", "1" * 50), ("b", "2" * 50), codec=Codec.ZSTD)
    put(log, ("c", "3" * 50), codec=Codec.GZIP)
    seal(log)
    before = batches(log)
    clean(log)
    assert batches(log) == before


def test_small_segments_become_one(in_memory: Path) -> None:
    log = open_log(in_memory)
    for number in range(100):
        put(log, (f"key-{number % 3}", f"{number}"))
    seal(log)
    clean(log)
    # The first pass merges what fits together at its old size, later ones what is left of it.
    for _ in range(10):
        clean(log)
    assert len(log.segments) == 2
    assert [segment.base_offset for segment in log.segments] == [0, 100]


def test_a_map_too_small_for_all_keys_cleans_in_several_passes(in_memory: Path) -> None:
    log = open_log(in_memory)
    for number in range(120):
        put(log, (f"key-{number % 40}", f"{number}"))
    seal(log)
    written = records(log)
    passes = 0
    while log.first_dirty_offset != log.log_end_offset:
        before = log.first_dirty_offset or 0
        clean(log, map_entries=20)
        assert (log.first_dirty_offset or 0) > before
        assert records(log) == survivors(written, log.first_dirty_offset or 0) or passes
        passes += 1
    assert passes > 3
    kept = {key: offset for offset, key, _ in records(log)}
    assert kept == {key: offset for offset, key, _ in written}


def test_a_record_beyond_what_the_map_has_seen_is_kept(in_memory: Path) -> None:
    log = open_log(in_memory)
    put(log, ("a", "1"), ("b", "1"), ("c", "1"), ("a", "2"))
    seal(log)
    clean(log, map_entries=3)  # room for two keys at a load of 0.9
    assert log.first_dirty_offset == 2
    assert [offset for offset, _, _ in values(log)] == [0, 1, 2, 3]


class TestTombstones:
    def test_one_stays_until_its_delete_horizon(self, in_memory: Path) -> None:
        log = open_log(in_memory)
        put(log, ("a", "1"), ("b", "1"), timestamp=NOW_MS - 5000)
        put(log, ("a", None), ("c", "1"), timestamp=NOW_MS - 4000)
        put(log, ("z", "1"))
        seal(log)
        clean(log)
        assert values(log) == [(1, "b", "1"), (2, "a", None), (3, "c", "1"), (4, "z", "1")]
        stamped = headers(log)[1]
        assert stamped.attributes & DELETE_HORIZON_FLAG
        assert stamped.base_timestamp == NOW_MS + DAY_MS
        # Its records have the timestamps that they had.
        assert [record.timestamp for record in decode_batch(batches(log)[1])] == [NOW_MS - 4000] * 2
        assert stamped.max_timestamp == NOW_MS - 4000

        clean(log, now_ms=NOW_MS + DAY_MS - 1)
        assert (2, "a", None) in values(log)
        assert headers(log)[1] == stamped  # stamped once for all
        clean(log, now_ms=NOW_MS + DAY_MS)
        assert values(log) == [(1, "b", "1"), (3, "c", "1"), (4, "z", "1")]
        assert [r.timestamp for r in decode_batch(batches(log)[1])] == [NOW_MS - 4000]

    @pytest.mark.parametrize("codec", list(Codec))
    def test_the_horizon_is_stamped_in_compressed_batches_too(self, in_memory: Path, codec: Codec) -> None:
        log = open_log(in_memory)
        put(log, *((f"key-{at}", None if at % 2 else "v" * 40) for at in range(8)), codec=codec)
        seal(log)
        before = records(log)
        clean(log)
        assert records(log) == before
        (header,) = headers(log)
        assert header.attributes & DELETE_HORIZON_FLAG
        assert header.attributes & 7 == codec
        assert {record.timestamp for record in decode_batch(batches(log)[0])} == {NOW_MS}

    def test_a_later_value_removes_it(self, in_memory: Path) -> None:
        log = open_log(in_memory)
        put(log, ("a", None))
        put(log, ("a", "1"))
        seal(log)
        clean(log)
        assert values(log) == [(1, "a", "1")]


class TestProducers:
    def test_the_last_batch_of_a_producer_stays_though_empty(self, in_memory: Path) -> None:
        log = open_log(in_memory)
        put(log, ("a", "1"), producer=(7, 0))
        put(log, ("a", "2"), ("b", "1"), producer=(7, 0))
        put(log, ("a", "3"), ("b", "2"))
        seal(log)
        clean(log)
        assert values(log) == [(3, "a", "3"), (4, "b", "2")]
        empty = headers(log)[0]
        assert (empty.base_offset, empty.last_offset, empty.record_count) == (1, 2, 0)
        assert (empty.producer_id, empty.producer_epoch, empty.base_sequence, empty.last_sequence) == (
            7,
            0,
            1,
            2,
        )
        assert empty.max_timestamp == NOW_MS
        assert empty.base_timestamp == -1
        log.close(NOW_MS)

        for path in log.directory.glob("*.snapshot"):
            path.unlink()
        again = open_log(in_memory, clean=False)
        entry = again.producers.get(7)
        assert entry is not None
        assert entry.last_sequence == 2
        # It goes once the producer has written again.
        put(again, ("c", "1"), producer=(7, 0))
        seal(again)
        clean(again)
        assert [header.record_count for header in headers(again)] == [2, 1]

    def test_the_last_batch_of_the_range_stays_though_empty(self, in_memory: Path) -> None:
        log = open_log(in_memory)
        put(log, ("a", "1"))
        put(log, ("b", "1"), ("a", None))
        seal(log)
        log.first_dirty_offset = None
        clean(log)
        clean(log, now_ms=NOW_MS + 2 * DAY_MS)
        put(log, ("b", "2"))
        seal(log)
        clean(log, now_ms=NOW_MS + 3 * DAY_MS)
        assert values(log) == [(3, "b", "2")]

    def test_an_empty_batch_keeps_the_last_offset_of_a_log_without_records(self, in_memory: Path) -> None:
        log = open_log(in_memory)
        put(log, ("a", "1"))
        put(log, ("a", None))
        seal(log)
        clean(log)
        clean(log, now_ms=NOW_MS + DAY_MS)
        (header,) = headers(log)
        assert (header.base_offset, header.last_offset, header.record_count) == (1, 1, 0)
        log.close(NOW_MS)
        assert open_log(in_memory, clean=False).log_end_offset == 2


class TestTransactions:
    def test_aborted_records_go_at_once_and_their_marker_in_the_end(self, in_memory: Path) -> None:
        log = open_log(in_memory)
        put(log, ("a", "1"))
        put(log, ("a", "2"), ("b", "1"), producer=(5, 0), transactional=True)
        marker = end_transaction(log, (5, 0), commit=False)
        put(log, ("c", "1"), producer=(5, 0), transactional=True)
        end_transaction(log, (5, 0), commit=True)
        put(log, ("d", "1"))
        seal(log)
        clean(log)
        # An aborted record supersedes nothing.
        assert values(log) == [(0, "a", "1"), (4, "c", "1"), (6, "d", "1")]
        assert [header.base_offset for header in headers(log) if header.is_control] == [marker, 5]
        assert [each.last_offset for each in log.collect_aborted_transactions(0, 7)] == [marker]

        clean(log)  # nothing of it is left: from now on the marker waits
        horizon = next(header for header in headers(log) if header.base_offset == marker)
        assert horizon.attributes & DELETE_HORIZON_FLAG
        assert horizon.base_timestamp == NOW_MS + DAY_MS
        assert horizon.record_count == 1
        assert log.collect_aborted_transactions(0, 7) == []
        clean(log, now_ms=NOW_MS + DAY_MS - 1)
        assert marker in [header.base_offset for header in headers(log)]
        clean(log, now_ms=NOW_MS + DAY_MS)
        assert [header.base_offset for header in headers(log) if header.is_control] == [5]

    def test_a_commit_marker_stays_with_its_records(self, in_memory: Path) -> None:
        log = open_log(in_memory)
        put(log, ("a", "1"), producer=(5, 0), transactional=True)
        marker = end_transaction(log, (5, 0), commit=True)
        put(log, ("b", "1"))
        put(log, ("x", "1"), producer=(5, 0))
        seal(log)
        for day in range(4):
            clean(log, now_ms=NOW_MS + day * DAY_MS)
        assert [header.base_offset for header in headers(log)] == [0, marker, 2, 3]
        assert not headers(log)[1].attributes & DELETE_HORIZON_FLAG
        put(log, ("a", "2"))
        put(log, ("z", "1"))
        seal(log)
        clean(log, now_ms=NOW_MS + 4 * DAY_MS)
        clean(log, now_ms=NOW_MS + 5 * DAY_MS)
        assert marker in [header.base_offset for header in headers(log)]
        clean(log, now_ms=NOW_MS + 6 * DAY_MS)
        assert [header.base_offset for header in headers(log)] == [2, 3, 4, 5]

    def test_the_marker_may_lie_beyond_what_is_cleaned(self, in_memory: Path) -> None:
        log = open_log(in_memory)
        put(log, ("a", "1"))
        put(log, ("a", "2"), producer=(5, 0), transactional=True)
        seal(log)
        end_transaction(log, (5, 0), commit=False)
        clean(log)
        assert values(log) == [(0, "a", "1")]
        assert [each.last_offset for each in log.collect_aborted_transactions(0, 7)] == [2]

    def test_a_producer_of_markers_alone_keeps_the_last(self, in_memory: Path) -> None:
        log = open_log(in_memory)
        marker = end_transaction(log, (5, 3), commit=False)
        put(log, ("a", "1"))
        seal(log)
        clean(log)
        clean(log, now_ms=NOW_MS + DAY_MS)
        header = headers(log)[0]
        assert (header.base_offset, header.record_count, header.producer_epoch) == (marker, 0, 3)
        clean(log, now_ms=NOW_MS + 3 * DAY_MS)
        assert headers(log)[0] == header


def test_a_flipped_bit_makes_a_log_uncleanable(in_memory: Path) -> None:
    log = open_log(in_memory)
    for number in range(10):
        put(log, ("k", f"{number}" * 40))
    seal(log)
    path = log.segments[0].file.path
    data = bytearray(path.read_bytes())
    data[100] ^= 4
    path.write_bytes(data)
    with pytest.raises(LogCleaningError, match="checksum"):
        clean(log)


@pytest.mark.parametrize("entry", [b"\x00\x00\x00\x09", b"\x80\x00\x00\x00", b"\x7f\x00\x00\x00"])
def test_an_index_that_points_nowhere_makes_none_uncleanable(in_memory: Path, entry: bytes) -> None:
    log = open_log(in_memory)
    while len(log.segments) < 3:
        put(log, ("a", "x"))
    seal(log)
    first = log.segments[1]
    written = records(log)
    log.first_dirty_offset = first.base_offset + 3
    first.write_indexes()
    with first.offset_index.path.open("r+b") as file:
        file.seek(4)
        file.write(entry)
    clean(log)
    assert records(log) == [written[-1]]


def test_the_indexes_of_a_cleaned_segment_find_what_is_left(in_memory: Path) -> None:
    log = open_log(in_memory)
    for number in range(200):
        put(log, (f"key-{number % 50}", f"{number}" * 9), timestamp=NOW_MS + number)
    seal(log)
    clean(log)
    for _ in range(3):
        clean(log)
    left = [offset for offset, _, _ in records(log)]
    assert left == list(range(150, 200))
    for offset in range(200):
        found = log.read(offset, 1, up_to=200).to_bytes()
        assert parse_batch_header(found).last_offset >= offset
        assert parse_batch_header(found).base_offset == max(offset, 150)
        assert log.offset_for_timestamp(NOW_MS + offset) == (max(offset, 150), NOW_MS + max(offset, 150), 0)
    log.close(NOW_MS)
    again = open_log(in_memory)
    assert [offset for offset, _, _ in records(again)] == left
    assert again.offset_for_timestamp(NOW_MS + 170) == (170, NOW_MS + 170, 0)

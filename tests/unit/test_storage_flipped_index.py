"""A bit flips in an index: readers find what is there all the same, and the index is made anew."""

from __future__ import annotations

import shutil
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ottla.protocol.errors import KafkaError
from ottla.protocol.records import ControlType, build_control_batch, iter_batches
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.log_manager import LogManager
from tests.worlds.cleaner_logs import in_memory_place
from tests.worlds.storage_logs import NOW_MS, append, contents

pytestmark = pytest.mark.budget(3)  # all bits, one by one

CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=100, file_delete_delay_ms=0)
RECORDS = 60


def filled(path: Path) -> None:
    logs = LogManager([path], 1, "c1")
    logs.load(NOW_MS)
    log = logs.get_or_create("events", 0, CONFIG, NOW_MS)
    for n in range(RECORDS):
        append(log, f"v{n}", timestamp=NOW_MS + n)
    assert len(log.segments) > 2
    logs.close(NOW_MS)


def opened(path: Path) -> tuple[LogManager, Log]:
    """After a clean shutdown: nothing is verified."""
    logs = LogManager([path], 1, "c1", {"segment.bytes": "2000", "index.interval.bytes": "100"})
    logs.load(NOW_MS)
    log = logs.get("events", 0)
    assert log is not None
    return logs, log


def flip(file: Path, position: int, mask: int) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= mask
    file.write_bytes(content)


@pytest.mark.parametrize("entry", [1, 4])
@pytest.mark.parametrize("mask", [0x01, 0x08, 0x40])
def test_a_position_that_is_wrong_misleads_nobody(tmp_path: Path, entry: int, mask: int) -> None:
    filled(tmp_path)
    index = min(tmp_path.glob("events-0/*.index"))
    times = index.with_suffix(".timeindex")
    good, good_times = index.read_bytes(), times.read_bytes()
    assert len(good) // 8 > 5
    flip(index, entry * 8 + 7, mask)
    logs, log = opened(tmp_path)
    for offset in range(RECORDS):
        read = log.read(offset, 1, up_to=RECORDS)
        assert struct.unpack_from(">q", read.to_bytes())[0] == offset
    assert contents(log) == [(n, f"v{n}") for n in range(RECORDS)]
    logs.run_deferred_tasks(NOW_MS)
    assert index.read_bytes() == good
    assert times.read_bytes() == good_times
    assert contents(log) == [(n, f"v{n}") for n in range(RECORDS)]
    assert [log.offset_for_timestamp(NOW_MS + n) for n in range(RECORDS)] == [
        (n, NOW_MS + n, 0) for n in range(RECORDS)
    ]
    assert not logs.has_deferred_tasks(NOW_MS)
    logs.close(NOW_MS)


def test_the_index_of_a_damaged_log_stays_for_what_it_still_finds(tmp_path: Path) -> None:
    filled(tmp_path)
    index = min(tmp_path.glob("events-0/*.index"))
    last = struct.unpack(">ii", index.read_bytes()[-8:])
    before = index.read_bytes()
    log_file = index.with_suffix(".log")
    second = struct.unpack(">ii", before[8:16])
    flip(log_file, second[1] + 8, 0x80)  # a batch of negative length
    logs, log = opened(tmp_path)
    with pytest.raises(KafkaError):
        log.read(second[0], 1, up_to=RECORDS)
    logs.run_deferred_tasks(NOW_MS)
    assert index.read_bytes() == before
    found = log.read(last[0], 1, up_to=RECORDS)
    assert struct.unpack_from(">q", found.to_bytes())[0] == last[0]
    logs.close(NOW_MS)


def test_a_timestamp_of_a_damaged_batch_does_not_get_into_the_index(tmp_path: Path) -> None:
    filled(tmp_path)
    index = min(tmp_path.glob("events-0/*.index"))
    times = index.with_suffix(".timeindex")
    before, times_before = index.read_bytes(), times.read_bytes()
    second = struct.unpack(">ii", before[8:16])
    flip(index.with_suffix(".log"), second[1] + 40, 0x10)  # its max timestamp
    logs, log = opened(tmp_path)
    log.offset_for_timestamp(NOW_MS + second[0])
    assert log.segments[0].index_is_suspect
    logs.run_deferred_tasks(NOW_MS)
    assert (index.read_bytes(), times.read_bytes()) == (before, times_before)
    flip(index.with_suffix(".log"), second[1] + 40, 0x10)
    assert log.max_timestamp() == (RECORDS - 1, NOW_MS + RECORDS - 1, 0)
    logs.close(NOW_MS)


BIT_STEP = 23
"""Of all bits of an index so many are passed over from one that is flipped to the next."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield from in_memory_place(tmp_path_factory.mktemp("flipped"))


class Answers(NamedTuple):
    """All that readers may ask of a log."""

    batches: list[int]
    by_time: list[Any]
    highest: Any
    end: int


def all_answers(log: Log) -> Answers:
    end = log.log_end_offset
    return Answers(
        [struct.unpack_from(">q", log.read(offset, 1, up_to=end).to_bytes())[0] for offset in range(end)],
        [log.offset_for_timestamp(NOW_MS + ms) for ms in range(-1, end + 1)],
        log.max_timestamp(),
        end,
    )


def with_transactions(path: Path) -> Answers:
    """Three segments of records, of which some are of two producers that abort most of their transactions."""
    logs = LogManager([path], 1, "c1", {"segment.bytes": "2000", "index.interval.bytes": "100"})
    logs.load(NOW_MS)
    log = logs.get_or_create("events", 0, logs.config_for({}), NOW_MS)
    sent = Counter[int]()

    def put(producer: int) -> None:
        append(
            log,
            f"v{log.log_end_offset}",
            timestamp=NOW_MS + log.log_end_offset,
            producer=(producer, 0, sent[producer]),
            transactional=True,
        )
        sent[producer] += 1

    def end(producer: int, how: ControlType) -> None:
        marker = build_control_batch(
            how,
            producer_id=producer,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=NOW_MS + log.log_end_offset,
        )
        log.append_as_leader(marker, leader_epoch=0, now_ms=NOW_MS, client=False)

    for turn in range(13):
        append(log, f"v{log.log_end_offset}", timestamp=NOW_MS + log.log_end_offset)
        put(1)
        put(2)
        end(1, ControlType.COMMIT if turn % 3 == 0 else ControlType.ABORT)
        put(2)
        if turn % 2:
            end(2, ControlType.ABORT)
    assert len(log.segments) == 3
    found = all_answers(log)
    logs.close(NOW_MS)
    return found


def untold(log: Log, wanted: dict[int, set[tuple[int, int]]]) -> list[int]:
    """The offsets of reads that a read_committed reader is not told all of what was aborted."""
    return [
        offset
        for offset, transactions in wanted.items()
        if not transactions
        <= set(log.aborted_transactions(offset, log.read(offset, 300, up_to=log.log_end_offset)))
    ]


def aborted_by_read(log: Log) -> dict[int, set[tuple[int, int]]]:
    found = {}
    for offset in range(log.log_end_offset):
        read = log.read(offset, 300, up_to=log.log_end_offset)
        last = max(header.base_offset for _, header in iter_batches(read.to_bytes()))
        between = log.collect_aborted_transactions(offset, last + 1)
        found[offset] = {(each.producer_id, each.first_offset) for each in between}
    return found


@pytest.mark.parametrize("segment", [0, -1], ids=["sealed", "active"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_no_bit_of_an_index_makes_readers_miss_what_is_there(place: Path, suffix: str, segment: int) -> None:
    """After a clean shutdown, so that nothing is verified; and retention deletes nothing that is young."""
    good = place / f"{suffix}{segment}"
    wanted = with_transactions(good)
    logs, log = opened(good)
    aborted = aborted_by_read(log)
    assert all_answers(log) == wanted
    assert untold(log, aborted) == []
    assert any(aborted.values())
    logs.close(NOW_MS)
    file = sorted(good.glob(f"events-0/*{suffix}"))[segment]
    content = file.read_bytes()
    assert len(content) >= 34
    for bit in range(0, 8 * len(content), BIT_STEP):
        if suffix == ".txnindex" and bit // 8 % 34 == 17:
            continue  # another first offset, which may be that of the same producer's next batch
        path = shutil.copytree(good, place / "flipped")
        flip(path / "events-0" / file.name, bit // 8, 1 << bit % 8)
        logs, log = opened(path)
        where = f"byte {bit // 8}, bit {bit % 8}"
        assert all_answers(log) == wanted, where
        assert untold(log, aborted) == [], where
        log.config = LogConfig(retention_ms=wanted.end + 1)
        assert log.delete_old_segments(now_ms=NOW_MS + wanted.end, high_watermark=wanted.end) == 0, where
        logs.run_deferred_tasks(NOW_MS)
        assert all_answers(log) == wanted, where
        assert not any(each.index_is_suspect for each in log.segments), where
        assert logs.online_dirs(), where
        logs.close(NOW_MS)
        shutil.rmtree(path)


def test_a_bit_of_a_log_that_its_indexes_contradict_costs_no_other_batch(place: Path) -> None:
    """It is not cut for that at a clean start, as if the indexes were wrong, nor deleted by retention."""
    good = place / "good"
    wanted = with_transactions(good)
    file = min(good.glob("events-0/*.log"))
    *_, last = iter_batches(file.read_bytes())
    for bit in range(0, 8 * 61, 3):
        path = shutil.copytree(good, place / "flipped")
        flip(path / "events-0" / file.name, last[0] + bit // 8, 1 << bit % 8)
        size = sum(each.stat().st_size for each in path.glob("events-0/*.log"))
        logs, log = opened(path)
        log.config = LogConfig(retention_ms=wanted.end + 1)
        assert log.delete_old_segments(now_ms=NOW_MS + wanted.end, high_watermark=wanted.end) == 0
        assert (log.size, log.log_end_offset) == (size, wanted.end)
        logs.close(NOW_MS)
        shutil.rmtree(path)


def test_the_active_segments_index_is_made_anew_while_it_is_written_to(tmp_path: Path) -> None:
    filled(tmp_path)
    index = max(tmp_path.glob("events-0/*.index"))
    flip(index, 7, 0x40)
    logs, log = opened(tmp_path)
    first = log.segments[-1].base_offset
    for offset in range(first, RECORDS):
        assert struct.unpack_from(">q", log.read(offset, 1, up_to=RECORDS).to_bytes())[0] == offset
    assert log.segments[-1].index_is_suspect
    append(log, f"v{RECORDS}", timestamp=NOW_MS + RECORDS)
    logs.run_deferred_tasks(NOW_MS)
    assert not log.segments[-1].index_is_suspect
    append(log, f"v{RECORDS + 1}", timestamp=NOW_MS + RECORDS + 1)
    assert contents(log) == [(n, f"v{n}") for n in range(RECORDS + 2)]
    logs.close(NOW_MS)
    entries = list(struct.iter_unpack(">ii", index.read_bytes()))
    batches = {
        header.last_offset - first: at for at, header in iter_batches(index.with_suffix(".log").read_bytes())
    }
    assert len(entries) > 2
    assert all(batches[offset] == position for offset, position in entries)

"""A bit flips in an index: readers find their batches all the same, and the index is made anew."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from storage_logs import NOW_MS, append, contents

from ottla.protocol.errors import KafkaError
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.manager import LogManager

CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=100, file_delete_delay_ms=0)
RECORDS = 60


def filled(path: Path) -> None:
    logs = LogManager([path], 1, "c1")
    logs.load(NOW_MS)
    log = logs.get_or_create("events", 0, CONFIG, NOW_MS)
    for n in range(RECORDS):
        append(log, f"v{n}", timestamp=NOW_MS + n)
    assert log.segment_count > 2
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
    logs.tend(NOW_MS)
    assert index.read_bytes() == good
    assert times.read_bytes() == good_times
    assert contents(log) == [(n, f"v{n}") for n in range(RECORDS)]
    assert [log.offset_for_timestamp(NOW_MS + n) for n in range(RECORDS)] == [
        (n, NOW_MS + n, 0) for n in range(RECORDS)
    ]
    assert not logs.has_chores(NOW_MS)
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
    logs.tend(NOW_MS)
    assert index.read_bytes() == before
    found = log.read(last[0], 1, up_to=RECORDS)
    assert struct.unpack_from(">q", found.to_bytes())[0] == last[0]
    logs.close(NOW_MS)

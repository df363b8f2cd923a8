"""The offset map: a dict, in 24 bytes an entry."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ottla.ports.files import OS_FILES
from ottla.storage.cleaner import cleaner
from ottla.storage.cleaner.cleaner import map_bytes
from ottla.storage.cleaner.offset_map import ENTRY_BYTES, OffsetMap
from tests.worlds.cleaner_logs import job_for, open_log, put, run_steps


def test_an_offset_map_holds_what_a_dict_holds() -> None:
    chance = random.Random(7)
    offsets = OffsetMap(24 * 1000)
    expected: dict[bytes, int] = {}
    for offset in range(5000):
        key = f"key-{chance.randrange(950)}".encode()
        offsets.put(key, offset)
        expected[key] = offset
    assert {key: offsets.get(key) for key in expected} == expected
    assert offsets.size == len(expected)
    assert offsets.size / offsets.slots == len(expected) / 1000
    assert offsets.latest_offset == 4999
    assert all(offsets.get(f"other-{number}".encode()) == -1 for number in range(500))


def test_an_offset_map_can_be_filled_to_the_last_entry() -> None:
    offsets = OffsetMap(24 * 50 + 23)
    assert offsets.slots == 50
    for number in range(50):
        offsets.put(b"%d" % number, number)
    assert [offsets.get(b"%d" % number) for number in range(50)] == list(range(50))
    assert offsets.get(b"none of them") == -1
    offsets.put(b"7", 1000)
    assert offsets.get(b"7") == 1000
    with pytest.raises(ValueError, match="taken"):
        offsets.put(b"one more", 1001)


def test_offset_0_and_the_empty_key_can_be_stored() -> None:
    offsets = OffsetMap(24 * 3)
    assert offsets.get(b"") == -1
    offsets.put(b"", 0)
    assert offsets.get(b"") == 0
    assert offsets.get(b"\0") == -1


def test_a_cleared_map_is_empty() -> None:
    offsets = OffsetMap(24 * 3)
    offsets.put(b"a", 1)
    offsets.clear()
    assert offsets.get(b"a") == -1
    assert (offsets.size, offsets.latest_offset) == (0, -1)


def test_its_memory_is_bounded() -> None:
    offsets = OffsetMap(1 << 20)
    assert offsets.slots == (1 << 20) // ENTRY_BYTES
    assert len(offsets._table) <= 1 << 20
    with pytest.raises(ValueError, match="hold no entry"):
        OffsetMap(ENTRY_BYTES - 1)


def test_a_worker_takes_no_more_memory_than_its_job_needs(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(50):
        put(log, (f"{number}", "v"))
    job, _ = job_for(log, map_entries=1_000_000)
    memory = map_bytes(job)
    assert memory < 24 * 60
    offsets = OffsetMap(memory)
    assert run_steps(cleaner.build_map(OS_FILES, job, offsets)) == job.upper_bound, "every key had room"
    assert offsets.size == job.upper_bound
    job.load_factor = 0.0
    with pytest.raises(cleaner.LogCleaningError, match="no room"):
        run_steps(cleaner.build_map(OS_FILES, job, OffsetMap(map_bytes(job))))

"""After a crash a log ends in its last whole batch, with indexes to match, and goes on from there."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from pathlib import Path

import pytest

from ottla.ports.files import OS_FILES, OsFiles
from ottla.protocol.errors import KafkaError
from ottla.storage.checkpoints import RECOVERY_POINT_FILE
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.log_loader import UnsupportedMessageFormat
from tests.legacy_messages import message
from tests.worlds.storage_logs import NOW_MS, append, contents, open_log, values

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=100)


def segment_files(directory: Path, suffix: str = ".log") -> list[Path]:
    return sorted((directory / "events-0").glob("*" + suffix))


def crash(log: Log) -> None:
    """What a killed process leaves: files as written so far, nothing closed."""


def test_a_tail_torn_at_any_byte_of_the_last_batch_costs_that_batch_only(tmp_path: Path) -> None:
    log = open_log(tmp_path / "origin")
    append(log, "a", "b")
    append(log, "c")
    whole = log.size
    append(log, "torn")
    crash(log)
    for cut in range(whole, log.size):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(tmp_path / "origin", tmp_path / "copy")
        os.truncate(segment_files(tmp_path / "copy")[0], cut)
        recovered = open_log(tmp_path / "copy", clean=False)
        assert recovered.log_end_offset == 3
        assert recovered.size == whole
        assert append(recovered, "d") == 3
        assert values(recovered) == ["a", "b", "c", "d"]


def test_every_damaged_byte_behind_the_checksum_ends_the_log_before_its_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, "a")
    whole = log.size
    append(log, "b")
    path = segment_files(tmp_path)[0]
    good = path.read_bytes()
    for at in [*range(whole + 8, whole + 12), *range(whole + 16, len(good), 3)]:
        damaged = bytearray(good)
        damaged[at] ^= 0x40
        path.write_bytes(damaged)
        assert values(open_log(tmp_path, clean=False)) == ["a"], at
        path.write_bytes(good)


def test_records_that_were_truncated_are_removed_again_after_a_power_loss(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL)
    for number in range(6):
        append(log, f"first {number}")
    log.flush()
    path = segment_files(tmp_path)[0]
    unsynced = path.read_bytes()
    log.truncate_to(3)
    log.roll(NOW_MS)
    append(log, "second 3")
    recovery_point = log.recovery_point
    crash(log)
    path.write_bytes(unsynced)
    recovered = open_log(tmp_path, SMALL, clean=False, recovery_point=recovery_point)
    assert values(recovered) == ["first 0", "first 1", "first 2", "second 3"]
    assert [segment.base_offset for segment in recovered.segments] == [0, 3]


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("has_rolled", [False, True])
def test_a_truncation_first_lowers_the_recovery_point_that_a_crash_leaves(
    tmp_path: Path, is_whole: bool, has_rolled: bool
) -> None:
    """A broker that was killed right after a truncation trusted what had replaced the data (found by seed
    167 of the simulation)."""
    log = open_log(tmp_path, SMALL)
    for number in range(6):
        append(log, f"first {number}")
    log.flush()
    log_dir = log._local.log_dir
    log_dir.write_offsets(RECOVERY_POINT_FILE, {("events", 0): log.recovery_point, ("other", 1): 7})
    log.durable_to = log.recovery_point
    if has_rolled:
        log.roll(NOW_MS)
    if is_whole:
        log.truncate_fully_and_start_at(4)
    else:
        log.truncate_to(3)
    assert log_dir.read_offsets(RECOVERY_POINT_FILE) == {("events", 0): 4 if is_whole else 0, ("other", 1): 7}
    assert log.recovery_point <= 4


@pytest.mark.parametrize("is_late", [False, True])
def test_a_sealed_segment_whose_records_were_flushed_before_is_recovered(
    tmp_path: Path, is_late: bool
) -> None:
    """Sealing adds an entry to the time index, which a power loss would take (found by a seed
    of the simulation). Kafka's roll does not flush it if all records are flushed."""
    log = open_log(tmp_path)
    append(log, "a")
    append(log, "b", timestamp=NOW_MS + 1)
    flush = log._local.begin_flush(log.log_end_offset) if is_late else None
    log.flush()
    log.roll(NOW_MS)
    if flush is not None:
        log._local.complete_flush(flush)
    recovery_point = log.recovery_point
    crash(log)
    os.truncate(tmp_path / "events-0/00000000000000000000.timeindex", 0)
    recovered = open_log(tmp_path, clean=False, recovery_point=recovery_point)
    assert recovered.segments[0].time_index.last() == (NOW_MS + 1, 1)
    recovered.flush_sealed()
    assert recovered.recovery_point == 2


def test_a_sealed_segment_that_ends_at_an_older_recovery_point_gets_its_time_index_back(
    tmp_path: Path,
) -> None:
    """The checkpoint has the recovery point of before the roll (found by a seed of the simulation)."""
    log = open_log(tmp_path)
    append(log, "a")
    append(log, "b", timestamp=NOW_MS + 1)
    log.flush()
    recovery_point = log.recovery_point
    log.roll(NOW_MS)
    crash(log)
    os.truncate(tmp_path / "events-0/00000000000000000000.timeindex", 0)
    recovered = open_log(tmp_path, clean=False, recovery_point=recovery_point)
    assert recovered.offset_for_timestamp(NOW_MS + 1) == (1, NOW_MS + 1, 0)
    assert recovered.segments[0].time_index.last() == (NOW_MS + 1, 1)


def test_zeros_after_the_last_batch_are_cut_off(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, "a")
    crash(log)
    with segment_files(tmp_path)[0].open("ab") as file:
        file.write(b"\0" * 5000)
    assert values(open_log(tmp_path, clean=False)) == ["a"]


def test_segments_after_a_damaged_one_are_removed(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL)
    for number in range(50):
        append(log, f"value {number}")
    crash(log)
    paths = segment_files(tmp_path)
    assert len(paths) > 3
    os.truncate(paths[1], paths[1].stat().st_size - 1)
    recovered = open_log(tmp_path, SMALL, clean=False)
    assert segment_files(tmp_path) == paths[:2]
    assert [offset for offset, _ in contents(recovered)] == list(range(recovered.log_end_offset))
    append(recovered, "next")


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("recovery_point", [None, 0])
def test_segments_after_a_power_loss_took_the_end_of_one_are_removed(
    tmp_path: Path, kept: int, policy: str, recovery_point: int | None
) -> None:
    """Kafka keeps them, behind a gap. In a compacted log the gap may be the cleaner's before the recovery
    point."""
    log = open_log(tmp_path)
    append(log, "a")
    size = log.size
    append(log, "b")
    log.roll(NOW_MS)
    append(log, "c")
    crash(log)
    os.truncate(segment_files(tmp_path)[0], kept * size)
    config = LogConfig(cleanup_policy=policy)
    recovered = open_log(tmp_path, config, clean=False, recovery_point=recovery_point)
    may_be_cleaned = policy == "compact" and recovery_point is None
    assert values(recovered) == ["a"][:kept] + (["c"] if may_be_cleaned else [])
    assert recovered.log_end_offset == (3 if may_be_cleaned else kept)


def test_records_that_are_deleted_need_not_be_there_after_a_power_loss(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL)
    append(log, "deleted")
    log.roll(NOW_MS)
    append(log, "kept")
    crash(log)
    os.truncate(segment_files(tmp_path)[0], 0)
    recovered = open_log(tmp_path, SMALL, clean=False, log_start_offset=1)
    assert values(recovered) == ["kept"]


def test_segments_before_the_recovery_point_are_not_verified(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL)
    for number in range(50):
        append(log, f"value {number}")
    log.flush()
    assert log.recovery_point == 50
    crash(log)
    path = segment_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert open_log(tmp_path, SMALL, clean=False, recovery_point=50).log_end_offset == 50
    assert open_log(tmp_path, SMALL, clean=False, recovery_point=0).log_end_offset < 50


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        *itertools.product([".index", ".timeindex"], ["missing", "odd length", "zeros"]),
        (".index", "beyond the log"),
    ],
)
def test_an_index_that_cannot_be_right_is_made_anew(
    tmp_path: Path, suffix: str, damage: str, clean: bool
) -> None:
    log = open_log(tmp_path, SMALL)
    for number in range(50):
        append(log, f"value {number}", timestamp=NOW_MS + number)
    log.close(NOW_MS)
    path = segment_files(tmp_path, suffix)[1]
    good = path.read_bytes()
    match damage:
        case "missing":
            path.unlink()
        case "odd length":
            path.write_bytes(good + b"\1")
        case "zeros":
            path.write_bytes(good + b"\0" * 240)
        case "beyond the log":
            path.write_bytes(good[:-4] + b"\x7f\xff\xff\xff")
    log = open_log(tmp_path, SMALL, clean=clean, recovery_point=50)
    assert [value for _, value in contents(log)] == [f"value {number}" for number in range(50)]
    log.close(NOW_MS)
    assert path.read_bytes() == good


def test_a_recovery_that_fails_leaves_no_empty_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recovery point could not be read, and then the log; at the next start both can."""
    log = open_log(tmp_path, SMALL)
    for number in range(50):
        append(log, f"value {number}", timestamp=NOW_MS + number)
    log.close(NOW_MS)
    made = {path.name: path.read_bytes() for path in (tmp_path / "events-0").iterdir()}
    real = os.pread

    def broken(fd: int, length: int, position: int) -> bytes:
        if length > 1000:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, length, position)

    with monkeypatch.context() as patch:
        patch.setattr(OsFiles, "pread", staticmethod(broken))
        with pytest.raises(OSError, match="Input/output"):
            open_log(tmp_path, SMALL, clean=False)
    log = open_log(tmp_path, SMALL, clean=False, recovery_point=50)
    log.close(NOW_MS)
    assert {path.name: path.read_bytes() for path in (tmp_path / "events-0").iterdir()} == made


def test_rebuilt_indexes_are_those_that_appending_made(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL)
    for number in range(60):
        append(log, "v" * (number % 17), timestamp=NOW_MS + (number * 7) % 50)
    log.close(NOW_MS)
    made = {path.name: path.read_bytes() for path in (tmp_path / "events-0").iterdir()}
    for path in [*segment_files(tmp_path, ".index"), *segment_files(tmp_path, ".timeindex")]:
        path.unlink()
    log = open_log(tmp_path, SMALL, clean=False)
    log.close(NOW_MS)
    rebuilt = {path.name: path.read_bytes() for path in (tmp_path / "events-0").iterdir()}
    assert rebuilt == made


@pytest.mark.parametrize("written", ["nothing", "the first", "all"])
def test_leader_epochs_are_found_again(tmp_path: Path, written: str) -> None:
    """The file is written a little later than the batches."""
    log = open_log(tmp_path)
    append(log, "a", epoch=2)
    if written != "nothing":
        log.write_epochs()
    append(log, "b", epoch=5)
    if written == "all":
        log.write_epochs()
    crash(log)
    recovered = open_log(tmp_path, clean=False)
    assert recovered.latest_epoch == 5
    assert recovered.epoch_start(2) == 0
    assert recovered.epoch_start(5) == 1


def test_the_epoch_of_a_leader_without_batches_gives_way_to_those_of_the_batches(tmp_path: Path) -> None:
    """The file was written before batches of an earlier epoch than that came from another leader."""
    log = open_log(tmp_path)
    append(log, "a", epoch=2)
    log.assign_epoch_start(5, 1)
    log.write_epochs()
    log.truncate_to(1)
    append(log, "b", epoch=2)
    append(log, "c", epoch=3)
    crash(log)
    assert open_log(tmp_path, clean=False).epochs() == [(2, 0), (3, 2)]


def test_epochs_of_a_torn_tail_are_dropped(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, "a", epoch=2)
    append(log, "b", epoch=5)
    crash(log)
    path = segment_files(tmp_path)[0]
    os.truncate(path, path.stat().st_size - 1)
    assert open_log(tmp_path, clean=False).latest_epoch == 2


def test_a_log_that_ends_below_its_start_offset_begins_anew_there(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, "a")
    crash(log)
    again = open_log(tmp_path, clean=False, log_start_offset=40)
    assert (again.log_start_offset, again.log_end_offset) == (40, 40)
    assert append(again, "b") == 40
    again.close(NOW_MS)
    assert contents(open_log(tmp_path, log_start_offset=40)) == [(40, "b")]


def test_a_clean_log_that_does_not_end_in_a_whole_batch_is_verified_all_the_same(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, "a")
    append(log, "b")
    log.close(NOW_MS)
    path = segment_files(tmp_path)[0]
    os.truncate(path, path.stat().st_size - 5)
    assert values(open_log(tmp_path, clean=True)) == ["a"]


def test_a_failed_write_leaves_no_part_of_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)
    append(log, "a")
    size = log.size
    with monkeypatch.context() as patch:
        real = os.pwritev

        def short(fd: int, buffers: tuple[bytes, bytes], offset: int) -> int:
            return real(fd, (b"".join(buffers)[:30],), offset)

        def full(fd: int, data: bytes, offset: int) -> int:
            raise OSError(28, "No space left on device")

        patch.setattr(OsFiles, "pwritev", staticmethod(short))
        patch.setattr(OsFiles, "pwrite", staticmethod(full))
        with pytest.raises(KafkaError):
            append(log, "b")
    assert log.size == size
    assert segment_files(tmp_path)[0].stat().st_size == size
    assert append(log, "c") == 1
    assert values(log) == ["a", "c"]


def test_leftovers_of_deletions_are_removed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, "a")
    log.close(NOW_MS)
    directory = tmp_path / "events-0"
    leftovers = ["00000000000000000000.log.deleted", "00000000000000000005.index", "x.tmp", "y.cleaned"]
    for name in leftovers:
        (directory / name).write_bytes(b"x")
    assert values(open_log(tmp_path)) == ["a"]
    assert not [name for name in leftovers if (directory / name).exists()]


def test_files_that_this_version_cannot_open_are_refused_and_stay(tmp_path: Path) -> None:
    directory = tmp_path / "events-0"
    directory.mkdir()
    old = directory / "00000000000000000000.log"
    old.write_bytes(message(1, 0, b"k", b"v") * 5)
    with pytest.raises(UnsupportedMessageFormat, match="format v1"):
        open_log(tmp_path, clean=False)
    assert old.read_bytes() == message(1, 0, b"k", b"v") * 5


def compacted_segment(directory: Path) -> bytes:
    """What compaction makes of `filled`'s first two segments: one, from offset 0."""
    log = open_log(directory, LogConfig())
    append(log, "only", "these")
    log.close(NOW_MS)
    return segment_files(directory)[0].read_bytes()


def filled_with_swap(directory: Path) -> tuple[Log, Path, list[Path]]:
    log = open_log(directory / "origin", SMALL)
    for number in range(50):
        append(log, f"value {number}")
    log.close(NOW_MS)
    swap = directory / "origin" / "events-0" / "00000000000000000000.log.swap"
    swap.write_bytes(compacted_segment(directory / "other"))
    swap.with_name("00000000000000000000.index.swap").write_bytes(b"")
    return log, swap, segment_files(directory / "origin")


@pytest.mark.parametrize("clean", [True, False])
def test_a_swap_of_compacted_segments_is_finished(tmp_path: Path, clean: bool) -> None:
    _, swap, paths = filled_with_swap(tmp_path)
    log = open_log(tmp_path / "origin", SMALL, clean=clean, recovery_point=50)
    next_base = int(paths[1].stem)
    assert contents(log)[:3] == [(0, "only"), (1, "these"), (next_base, f"value {next_base}")]
    assert log.log_end_offset == 50
    assert not swap.exists()


def test_a_swap_that_is_finished_survives_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is synced after the renames. Otherwise the swap would have to be finished again, and
    beside `.cleaned` files of the next cleaning it would be undone (found by a seed of the simulation)."""
    _, swap, _ = filled_with_swap(tmp_path)
    synced: list[tuple[str, bool]] = []
    fsync = os.fsync

    def recording(fd: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{fd}"), swap.exists()))
        fsync(fd)

    monkeypatch.setattr(type(OS_FILES), "fsync", lambda self, fd: recording(fd))
    open_log(tmp_path / "origin", SMALL, recovery_point=50)
    assert (str(swap.parent), False) in synced


def test_a_swap_that_was_not_ready_is_undone(tmp_path: Path) -> None:
    _, swap, _ = filled_with_swap(tmp_path)
    swap.with_name("00000000000000000000.log.cleaned").write_bytes(b"")
    assert values(open_log(tmp_path / "origin", SMALL)) == [f"value {number}" for number in range(50)]
    assert not list(swap.parent.glob("*.swap"))
    assert not list(swap.parent.glob("*.cleaned"))


@pytest.mark.parametrize("text", ["", "7\n0\n", "0\n9\n0 0\n", "garbage"])
def test_a_damaged_epoch_checkpoint_is_learnt_anew(tmp_path: Path, text: str) -> None:
    log = open_log(tmp_path)
    append(log, "a", epoch=2)
    append(log, "b", epoch=5)
    log.close(NOW_MS)
    path = tmp_path / "events-0" / "leader-epoch-checkpoint"
    good = path.read_text()
    path.write_text(text)
    assert open_log(tmp_path).latest_epoch == 5
    assert path.read_text() == good


def test_a_damaged_epoch_checkpoint_of_an_empty_log_is_written_anew(tmp_path: Path) -> None:
    open_log(tmp_path).close(NOW_MS)
    path = tmp_path / "events-0" / "leader-epoch-checkpoint"
    path.write_bytes(b"\0" * 8)
    open_log(tmp_path).close(NOW_MS)
    assert path.read_text() == "0\n0\n"


def test_epochs_of_records_whose_deletion_is_forgotten_are_found_again(tmp_path: Path) -> None:
    """After DeleteRecords the epochs were written, and the log start offset was not."""
    log = open_log(tmp_path)
    for epoch in (2, 2, 5, 7):
        append(log, "a", epoch=epoch)
    log.close(NOW_MS)
    path = tmp_path / "events-0" / "leader-epoch-checkpoint"
    good = path.read_text()
    for text in ("0\n1\n7 3\n", "0\n1\n9 4\n", "0\n2\n5 2\n7 3\n", "0\n1\n2 1\n"):
        path.write_text(text)
        log = open_log(tmp_path, clean=True)
        assert [log.epoch_start(epoch) for epoch in (2, 5, 7)] == [0, 2, 3] or text.endswith("2 1\n")
        assert log.epoch_start(2) == 0
        log.close(NOW_MS)
    path.write_text("0\n1\n7 3\n")
    open_log(tmp_path, clean=True).close(NOW_MS)
    assert path.read_text() == good


@pytest.mark.parametrize("damaged", range(4))
def test_epochs_are_found_again_where_only_one_segment_is_recovered(tmp_path: Path, damaged: int) -> None:
    """The log start offset is forgotten, and a power loss took the index of one segment."""
    log = open_log(tmp_path)
    for epoch in (2, 5, 7, 9):
        append(log, "a", epoch=epoch)
        log.roll(NOW_MS)
    log.flush()
    log.close(NOW_MS)
    (tmp_path / "events-0" / "leader-epoch-checkpoint").write_text("0\n1\n9 3\n")
    segment_files(tmp_path, ".index")[damaged].unlink()
    recovered = open_log(tmp_path, clean=False, recovery_point=4)
    assert [recovered.epoch_start(epoch) for epoch in (2, 5, 7, 9)] == [0, 1, 2, 3]


def test_deleted_records_do_not_raise_the_recovery_point_into_a_segment(tmp_path: Path) -> None:
    """A crash may forget that they are deleted, and a power loss takes what is not synced."""
    log = open_log(tmp_path, SMALL)
    for number in range(50):
        append(log, f"value {number}")
    segment = log.segments[2]
    assert log.maybe_increment_log_start_offset(segment.base_offset + 1)
    assert log.delete_old_segments(now_ms=NOW_MS, high_watermark=50, policies={}) == 2
    assert log.segments[0] is segment
    assert log.recovery_point == segment.base_offset

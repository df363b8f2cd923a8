"""Several log directories: whose is what, what happens to the others when one fails, and logs that move."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from ottla.ports.files import OS_FILES, OsFiles
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage.checkpoints import read_offsets
from ottla.storage.future_log import FutureLog
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.log_dir import LogDirProblem, read_properties
from ottla.storage.log_manager import LogManager
from tests.worlds.storage_logs import NOW_MS, append, batch, values


def manager(*log_dirs: Path, load: bool = True) -> LogManager:
    logs = LogManager(list(log_dirs), 1, "c1", {"file.delete.delay.ms": "0"})
    if load:
        logs.load(NOW_MS)
    return logs


@pytest.fixture
def dirs(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "a", tmp_path / "b"


def make(logs: LogManager, partition: int, log_dir: Path) -> Log:
    """events-N in that directory."""
    logs.set_preferred_log_dir("events", partition, logs.log_dir(str(log_dir)))
    return logs.get_or_create("events", partition, LogConfig(), NOW_MS)


def break_directory(log_dir: Path) -> None:
    """What is open stays open; no file in it is found by its name any more."""
    log_dir.rename(log_dir.with_name(log_dir.name + ".away"))
    log_dir.write_text("no directory")


def mend_directory(log_dir: Path) -> None:
    log_dir.unlink()
    log_dir.with_name(log_dir.name + ".away").rename(log_dir)


def code_of(refused: pytest.ExceptionInfo[KafkaError]) -> ErrorCode:
    return refused.value.code


# --- whose is what ------------------------------------------------------------------------------------


def test_a_new_log_goes_where_the_fewest_are(dirs: tuple[Path, Path]) -> None:
    logs = manager(*dirs)
    for partition in range(3):
        make(logs, partition, dirs[1])
    for partition in range(3, 8):
        logs.get_or_create("events", partition, LogConfig(), NOW_MS)
    assert [len(list(path.glob("events-*"))) for path in dirs] == [4, 4]


def test_a_partition_in_two_directories_is_refused(dirs: tuple[Path, Path]) -> None:
    logs = manager(*dirs)
    make(logs, 0, dirs[0])
    logs.close(NOW_MS)
    shutil.copytree(dirs[0] / "events-0", dirs[1] / "events-0")
    with pytest.raises(LogDirProblem, match=r"events-0 is in two log directories: .*/a/events-0 and .*/b/"):
        manager(*dirs)
    shutil.rmtree(dirs[1] / "events-0")
    manager(*dirs).close(NOW_MS)


def test_one_directory_under_two_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(LogDirProblem):
        manager(tmp_path / "a", tmp_path / "b")


def test_directories_with_the_same_id_are_refused(dirs: tuple[Path, Path]) -> None:
    manager(*dirs).close(NOW_MS)
    for path in dirs:
        with (path / "meta.properties").open("a") as file:
            file.write("directory.id=gCpDJgRlS2CBCpxoP2VMsQ\n")
    with pytest.raises(LogDirProblem, match=r"the same directory\.id"):
        manager(*dirs)


def test_unknown_entries_of_meta_properties_stay(dirs: tuple[Path, Path]) -> None:
    dirs[0].mkdir()
    (dirs[0] / "meta.properties").write_text("#of old\nbroker.id=1\ndirectory.id=gCpDJgRlS2CBCpxoP2VMsQ\n")
    manager(*dirs).close(NOW_MS)
    assert read_properties(OS_FILES, dirs[0] / "meta.properties") == {
        "broker.id": "1",
        "directory.id": "gCpDJgRlS2CBCpxoP2VMsQ",
        "version": "0",
        "cluster.id": "c1",
    }


def test_each_directory_keeps_the_checkpoints_of_its_own_logs(dirs: tuple[Path, Path]) -> None:
    logs = manager(*dirs)
    for partition, path in enumerate(dirs):
        append(make(logs, partition, path), "a")
    logs.write_high_watermarks({("events", 0): 1, ("events", 1): 1})
    logs.close(NOW_MS)
    for partition, path in enumerate(dirs):
        for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
            assert read_offsets(OS_FILES, path / name) == {("events", partition): 1}


# --- a directory that fails ---------------------------------------------------------------------------


def test_a_directory_that_fails_takes_only_its_own_logs_out_of_use(
    dirs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = manager(*dirs)
    failed: list[Path] = []
    logs.registry.on_dir_failed = failed.append
    first, second, other = make(logs, 0, dirs[0]), make(logs, 1, dirs[0]), make(logs, 2, dirs[1])
    append(first, "a")
    with monkeypatch.context() as patch:

        def full(fd: int, buffers: object, offset: int) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(OsFiles, "pwritev", staticmethod(full))
        with pytest.raises(KafkaError) as refused:
            append(first, "lost")
        assert code_of(refused) is ErrorCode.KAFKA_STORAGE_ERROR
    assert failed == [dirs[0]]
    with pytest.raises(KafkaError) as refused:
        append(second, "too late")
    assert code_of(refused) is ErrorCode.KAFKA_STORAGE_ERROR
    append(other, "b")
    logs.take_offline(dirs[0])
    assert list(logs.logs()) == [("events", 2)]
    assert make(logs, 3, dirs[1]).directory.parent == dirs[1]
    logs.write_checkpoints()
    logs.close(NOW_MS)
    assert not (dirs[0] / ".kafka_cleanshutdown").exists()
    assert (dirs[1] / ".kafka_cleanshutdown").exists()

    again = manager(*dirs)
    found = again.get("events", 0)
    assert found is not None
    assert values(found) == ["a"]
    again.close(NOW_MS)


def test_a_lack_of_descriptors_or_memory_is_not_the_directorys_fault(
    dirs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = manager(*dirs)
    log = make(logs, 0, dirs[0])
    append(log, "a")

    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", none_left)
        with pytest.raises(KafkaError) as refused:
            log.roll(NOW_MS)
        assert code_of(refused) is ErrorCode.KAFKA_STORAGE_ERROR
    append(log, "b")
    log.roll(NOW_MS)
    assert values(log) == ["a", "b"]


def test_a_checkpoint_that_cannot_be_written_fails_its_directory(dirs: tuple[Path, Path]) -> None:
    logs = manager(*dirs)
    failed: list[Path] = []
    logs.registry.on_dir_failed = failed.append
    make(logs, 0, dirs[0])
    make(logs, 1, dirs[1])
    break_directory(dirs[0])
    logs.write_high_watermarks({("events", 0): 0, ("events", 1): 0})
    assert failed == [dirs[0]]
    assert read_offsets(OS_FILES, dirs[1] / "replication-offset-checkpoint") == {("events", 1): 0}


def test_a_start_goes_on_without_a_directory_that_cannot_be_used(dirs: tuple[Path, Path]) -> None:
    logs = manager(*dirs)
    append(make(logs, 0, dirs[0]), "a")
    append(make(logs, 1, dirs[1]), "b")
    logs.close(NOW_MS)
    break_directory(dirs[0])
    logs = manager(*dirs)
    assert list(logs.logs()) == [("events", 1)]
    with pytest.raises(KafkaError) as refused:
        logs.get_or_create("events", 0, LogConfig(), NOW_MS, is_new=False)
    assert code_of(refused) is ErrorCode.KAFKA_STORAGE_ERROR, "it may be in the other"
    assert logs.get_or_create("new", 0, LogConfig(), NOW_MS).directory == dirs[1] / "new-0"
    logs.close(NOW_MS)

    mend_directory(dirs[0])
    again = manager(*dirs)
    assert {key: values(log) for key, log in again.logs().items()} == {
        ("events", 0): ["a"],
        ("events", 1): ["b"],
        ("new", 0): [],
    }
    again.close(NOW_MS)


def test_a_log_that_cannot_be_read_at_the_start_fails_its_directory(
    dirs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = manager(*dirs)
    append(make(logs, 0, dirs[0]), "a")
    append(make(logs, 1, dirs[0]), "b")
    append(make(logs, 2, dirs[1]), "c")
    logs.close(NOW_MS)
    real = os.open

    def broken(path: object, *arguments: int, **others: int) -> int:
        if str(path).endswith("events-1/00000000000000000000.log"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, *arguments, **others)  # type: ignore[call-overload,no-any-return]

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", broken)
        logs = manager(*dirs)
    assert list(logs.logs()) == [("events", 2)]
    logs.close(NOW_MS)
    assert len(manager(*dirs).logs()) == 3


def test_no_directory_that_can_be_used_is_no_start(dirs: tuple[Path, Path]) -> None:
    for path in dirs:
        path.write_text("no directory")
    with pytest.raises(LogDirProblem, match=r"none of the log directories can be used: .*/a: .*; .*/b: "):
        manager(*dirs)


def test_a_directory_that_fails_while_a_log_is_made_is_passed_over(dirs: tuple[Path, Path]) -> None:
    logs = manager(*dirs)
    failed: list[Path] = []
    logs.registry.on_dir_failed = failed.append
    break_directory(dirs[0])
    assert logs.get_or_create("events", 0, LogConfig(), NOW_MS).directory == dirs[1] / "events-0"
    assert failed == [dirs[0]]


# --- logs that move -----------------------------------------------------------------------------------


def begin_move(logs: LogManager, partition: int, target: Path) -> FutureLog:
    source = logs.get("events", partition)
    assert source is not None
    logs.set_preferred_log_dir("events", partition, logs.log_dir(str(target)))
    return FutureLog(source, logs.create_future_log("events", partition, NOW_MS))


def copy_all(move: FutureLog, max_bytes: int = 1 << 20) -> None:
    for _ in range(10_000):
        move.append(move.read_next(max_bytes), NOW_MS)
        if not move.lag:
            return
    raise AssertionError("it never caught up")


def finish(logs: LogManager, move: FutureLog, partition: int = 0) -> Log:
    assert move.catch_up(1 << 20, NOW_MS)
    old = move.source.log_dir
    log = logs.replace_current_with_future("events", partition)
    logs.checkpoint_dirs(old, log.log_dir)
    return log


def test_a_log_moves_with_all_that_it_knows(dirs: tuple[Path, Path]) -> None:
    logs = manager(*dirs)
    source = make(logs, 0, dirs[0])
    for n in range(20):
        append(source, f"v{n}", epoch=n // 7, producer=(5, 0, n))
    source.maybe_increment_log_start_offset(3)
    source.assign_epoch_start(9, 20)
    move = begin_move(logs, 0, dirs[1])
    assert [path.name for path in dirs[1].glob("events-0.*-future")] == [move.log.directory.name]
    copy_all(move, max_bytes=200)
    append(source, "late", epoch=9, producer=(5, 0, 20))
    moved = finish(logs, move)

    assert logs.get("events", 0) is moved
    assert logs.future_log("events", 0) is None
    assert moved.directory == dirs[1] / "events-0"
    assert (moved.log_start_offset, moved.log_end_offset) == (3, 21)
    assert values(moved) == [f"v{n}" for n in range(3, 20)] + ["late"]
    assert moved.epochs()[1:] == [(1, 7), (2, 14), (9, 20)]
    assert moved.latest_epoch == 9
    retry = moved.append_as_leader(batch("late", producer=(5, 0, 20)), leader_epoch=9, now_ms=NOW_MS)
    assert retry.duplicate, "it knows its producers"
    append(moved, "after", epoch=9, producer=(5, 0, 21))
    moved.roll(NOW_MS)
    logs.run_deferred_tasks(NOW_MS)
    assert not list(dirs[0].glob("events-0*"))
    logs.close(NOW_MS)

    found = manager(*dirs).get("events", 0)
    assert found is not None
    assert (found.directory.parent, found.log_start_offset, values(found)[-1]) == (dirs[1], 3, "after")


def test_a_truncation_while_a_log_moves_applies_to_both_copies(dirs: tuple[Path, Path]) -> None:
    logs = manager(*dirs)
    source = make(logs, 0, dirs[0])
    for n in range(10):
        append(source, f"old{n}", epoch=0)
    move = begin_move(logs, 0, dirs[1])
    copy_all(move)
    source.truncate_to(4)
    for n in range(8):
        append(source, f"new{n}", epoch=2)
    assert not move.catch_up(1 << 20, NOW_MS), "the two have parted"
    copy_all(move)
    moved = finish(logs, move)
    assert values(moved) == [f"old{n}" for n in range(4)] + [f"new{n}" for n in range(8)]
    assert moved.epochs() == [(0, 0), (2, 4)]


def test_a_log_that_starts_over_while_it_moves_starts_over_in_both(dirs: tuple[Path, Path]) -> None:
    logs = manager(*dirs)
    source = make(logs, 0, dirs[0])
    append(source, "a", "b")
    move = begin_move(logs, 0, dirs[1])
    copy_all(move)
    source.truncate_fully_and_start_at(100)
    append(source, "c", epoch=3)
    copy_all(move)
    moved = finish(logs, move)
    assert (moved.log_start_offset, moved.log_end_offset, values(moved)) == (100, 101, ["c"])


def test_much_that_is_missing_is_not_copied_on_the_spot(dirs: tuple[Path, Path]) -> None:
    logs = manager(*dirs)
    source = make(logs, 0, dirs[0])
    value = "x" * 100_000
    for _ in range((1 << 20) // 100_000 + 2):
        append(source, value)
    move = begin_move(logs, 0, dirs[1])
    move.append(None, NOW_MS)
    assert not move.catch_up(1 << 20, NOW_MS)
    assert move.catch_up(1 << 20, NOW_MS), "what is left is little"


def test_a_move_goes_on_after_a_restart(dirs: tuple[Path, Path]) -> None:
    logs = manager(*dirs)
    source = make(logs, 0, dirs[0])
    for n in range(50):
        append(source, f"v{n}")
    move = begin_move(logs, 0, dirs[1])
    move.append(None, NOW_MS)
    move.append(move.read_next(1000), NOW_MS)
    copied = move.log.log_end_offset
    assert 0 < copied < 50
    logs.close(NOW_MS)

    again = manager(*dirs)
    source, future = again.get("events", 0), again.future_log("events", 0)
    assert source is not None
    assert future is not None
    assert future.log_end_offset == copied
    move = FutureLog(source, future)
    move.append(None, NOW_MS)
    assert future.log_end_offset == copied, "what was copied is not copied again"
    copy_all(move)
    assert values(finish(again, move)) == [f"v{n}" for n in range(50)]


def test_a_move_that_is_called_off_leaves_the_log_where_it_is(dirs: tuple[Path, Path]) -> None:
    logs = manager(*dirs)
    source = make(logs, 0, dirs[0])
    append(source, "a")
    move = begin_move(logs, 0, dirs[1])
    copy_all(move)
    logs.delete_future_log("events", 0)
    logs.run_deferred_tasks(NOW_MS)
    assert not list(dirs[1].glob("events-0*"))
    assert logs.get("events", 0) is source
    append(source, "b")
    assert values(source) == ["a", "b"]


def test_a_topic_that_is_deleted_takes_what_was_copied_with_it(dirs: tuple[Path, Path]) -> None:
    logs = manager(*dirs)
    append(make(logs, 0, dirs[0]), "a")
    copy_all(begin_move(logs, 0, dirs[1]))
    logs.delete("events", 0)
    logs.run_deferred_tasks(NOW_MS)
    for path in dirs:
        assert not list(path.glob("events-0*"))


def test_a_target_that_fails_costs_only_the_move(dirs: tuple[Path, Path]) -> None:
    logs = manager(*dirs)
    source = make(logs, 0, dirs[0])
    append(source, "a")
    move = begin_move(logs, 0, dirs[1])
    copy_all(move)
    assert move.catch_up(1 << 20, NOW_MS)
    break_directory(dirs[1])
    with pytest.raises(KafkaError) as refused:
        logs.replace_current_with_future("events", 0)
    assert code_of(refused) is ErrorCode.KAFKA_STORAGE_ERROR
    logs.take_offline(dirs[1])
    assert logs.future_log("events", 0) is None
    assert logs.get("events", 0) is source
    append(source, "b")
    assert values(source) == ["a", "b"]

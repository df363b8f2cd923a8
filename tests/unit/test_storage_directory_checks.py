"""A data directory verified without a broker: a healthy one gives no finding, and every damage gives one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import UUID

import pytest
from click.testing import CliRunner

from ottla.cli.main import main
from ottla.ports.files import OS_FILES
from ottla.protocol.records import ControlType, build_control_batch
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.log_dir import write_topic_id
from ottla.storage.log_dir_checks import check_log_dirs
from ottla.storage.log_manager import LogManager
from ottla.storage.segment_checks import Finding
from tests.worlds.storage_logs import NOW_MS, append, batch

CONFIG = LogConfig(segment_bytes=3000, index_interval_bytes=200, file_delete_delay_ms=0)


def write(log: Log, *values: str, producer: tuple[int, int, int], transactional: bool, epoch: int) -> None:
    data = batch(
        *values, producer=producer, transactional=transactional, timestamp=NOW_MS + log.log_end_offset % 7
    )
    log.append_as_leader(data, leader_epoch=epoch, now_ms=NOW_MS)


def end_transaction(log: Log, kind: ControlType, producer_id: int, epoch: int) -> None:
    marker = build_control_batch(
        kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=1, timestamp=NOW_MS
    )
    log.append_as_leader(marker, leader_epoch=epoch, now_ms=NOW_MS, client=False)


def fill(log: Log) -> None:
    """Segments with plain batches, and with transactions of two producers at once, in three leader epochs."""
    sequence = {7: 0, 8: 0}
    for number in range(120):
        epoch = number // 40
        producer_id = 7 if number % 3 else 8
        write(
            log,
            *[f"value {number}"] * (1 + number % 3),
            producer=(producer_id, 0, sequence[producer_id]),
            transactional=True,
            epoch=epoch,
        )
        sequence[producer_id] += 1 + number % 3
        if number % 20 == 9:
            end_transaction(log, ControlType.ABORT, 7, epoch)
        if number % 20 == 19:
            end_transaction(log, ControlType.COMMIT, 7, epoch)
            end_transaction(log, ControlType.ABORT, 8, epoch)


def make(directory: Path, *, clean: bool = True) -> Path:
    """The directory of a broker that was stopped, in order or while it wrote."""
    logs = LogManager([directory], 1, "c1")
    logs.load(NOW_MS)
    fill(logs.get_or_create("orders", 0, CONFIG, NOW_MS))
    plain = logs.get_or_create("orders", 1, CONFIG, NOW_MS)
    for number in range(100):
        append(plain, f"value {number}", timestamp=NOW_MS + number)
    trimmed = logs.get_or_create("trimmed", 0, CONFIG, NOW_MS)
    for number in range(100):
        append(trimmed, f"value {number}", timestamp=NOW_MS + number)
    trimmed.maybe_increment_log_start_offset(60)
    trimmed.delete_old_segments(now_ms=NOW_MS, high_watermark=100)
    logs.get_or_create("empty", 0, CONFIG, NOW_MS)
    ends = {key: log.log_end_offset for key, log in logs.logs().items()}
    logs.write_high_watermarks(ends)
    logs.write_start_offsets()
    logs.run_deferred_tasks(1 << 62)
    if clean:
        logs.close(NOW_MS)
    else:
        plain.flush()
        logs.write_checkpoints()
        append(plain, "not flushed")
        for log_dir in logs.registry.dirs.values():
            log_dir.unlock()
    return directory


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("healthy") / "data")


@pytest.fixture
def directory(healthy: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(healthy, tmp_path / "data"))


def findings_in(directories: Sequence[Path]) -> list[Finding]:
    return check_log_dirs(OS_FILES, directories)


def found(directory: Path) -> list[str]:
    return [str(finding) for finding in findings_in([directory])]


def test_nothing_is_found_in_a_healthy_directory(healthy: Path) -> None:
    assert found(healthy) == []


def test_nothing_but_notes_after_a_crash(tmp_path: Path) -> None:
    directory = make(tmp_path / "data", clean=False)
    assert [finding for finding in findings_in([directory]) if finding.is_error] == []


def flipped(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1 << at % 8
    return bytes(changed)


def damages(data: bytes) -> dict[str, bytes | None]:
    """What may become of a file: None is a file that is gone."""
    positions = sorted({len(data) * part // 6 for part in range(6)}) if data else []
    changes: dict[str, bytes | None] = {f"flip {at}": flipped(data, at) for at in positions}
    if len(data) > 1:
        changes |= {"cut in half": data[: len(data) // 2], "cut by one": data[:-1]}
    return {**changes, "gone": None, "longer": data + b"xxx"}


UNSEEN = {
    # Who owns the directory is what the file says; a broker compares that with its own settings.
    "meta.properties": lambda change: change != "gone",
    # Nothing depends on the lock's content; without the file of a clean shutdown there was none.
    ".lock": lambda change: True,
    ".kafka_cleanshutdown": lambda change: True,
    # One of two entries is gone, and no longer stretch is without one than the segment's first.
    f"{241:020}.index": lambda change: change == "cut in half",
}


@pytest.mark.budget(3)  # each file of a directory, damaged in each way
def test_every_damage_is_found_and_named(directory: Path) -> None:
    missed = []
    for path in sorted(directory.rglob("*")):
        if path.is_dir() or path.parent.name in ("orders-1", "trimmed-0", "empty-0"):
            continue
        data = path.read_bytes()
        for change, content in damages(data).items():
            path.unlink() if content is None else path.write_bytes(content)
            stem = path.name.partition(".")[0]
            where = [finding for finding in findings_in([directory]) if stem in finding.path.name]
            if not where and not UNSEEN.get(path.name, lambda change: False)(change):
                missed.append((path.name, change, found(directory)))
        path.write_bytes(data)
    assert missed == [], [m[:2] for m in missed]
    assert found(directory) == []


def is_named(directory: Path, told: str) -> bool:
    """Whether a line ends so, and is an error."""
    return any(finding.is_error and str(finding).endswith(told) for finding in findings_in([directory]))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda d: shutil.rmtree(d / "orders-1"), "orders-1: the partition has no directory"),
        (
            lambda d: (d / "orders-1").rename(d / "orders-one"),
            "orders-one: not the name of a partition's directory",
        ),
        (
            lambda d: shutil.copytree(d / "orders-1", d / "copy-0"),
            "recovery-point-offset-checkpoint: copy-0 is missing",
        ),
        (
            lambda d: [path.unlink() for path in (d / "orders-1").glob("*39.*")],
            "offset 39: the offsets up to 76 are missing, and the log is not known to be compacted",
        ),
        (
            lambda d: [path.unlink() for path in (d / "orders-1").glob("*00.*")],
            "leader-epoch-checkpoint: offset 0: epoch 0 begins before the first segment, 39",
        ),
        (
            lambda d: [path.unlink() for path in (d / "orders-1").glob("*77.*")],
            "recovery-point-offset-checkpoint: orders-1: 100 is beyond the log end offset, 77",
        ),
        (lambda d: (d / "orders-1" / "0.log").write_bytes(b""), "not the name of a file of a log"),
        (lambda d: [path.unlink() for path in (d / "empty-0").iterdir()], "empty-0: there is no segment"),
        (
            lambda d: (d / "orders-0" / f"{0:020}.log").unlink(),
            f"{0:020}.index: there is no {0:020}.log",
        ),
    ],
)
def test_missing_and_superfluous_files_are_named(
    directory: Path, damage: Callable[[Path], object], told: str
) -> None:
    damage(directory)
    assert is_named(directory, told), found(directory)


def test_a_file_of_an_unfinished_operation_is_a_note(directory: Path) -> None:
    for name in (f"{'a' * 32}-delete", f"{'a' * 32}-stray"):
        shutil.copytree(directory / "orders-1", directory / f"gone-0.{name}")
    shutil.copytree(directory / "orders-1", directory / f"moving-0.{'b' * 32}-future")
    (directory / "orders-1" / f"{0:020}.log.deleted").write_bytes(b"")
    (directory / "notes.txt").write_text("mine")
    findings = findings_in([directory])
    assert [finding for finding in findings if finding.is_error] == []
    assert [finding.problem for finding in findings] == [
        "a deleted log; a broker's start removes it",
        "a stray log, which no broker opens",
        "a future log: the partition is moving to this directory",
        "not the name of a file of a broker",
        "a leftover file; the next start of a broker removes it or completes its rename",
    ]


def test_a_future_log_is_verified_too(directory: Path) -> None:
    future = directory / f"moving-0.{'b' * 32}-future"
    shutil.copytree(directory / "orders-1", future)
    log = future / f"{39:020}.log"
    log.write_bytes(flipped(log.read_bytes(), 70))
    assert is_named(directory, "offset 39: byte 0: the checksum is wrong")


def test_one_partition_in_two_directories_is_found(directory: Path, tmp_path: Path) -> None:
    other = make(tmp_path / "other")
    problems = [finding.problem for finding in findings_in([directory, other])]
    assert f"{directory / 'orders-0'} is a log of the same partition" in problems


def torn(directory: Path, content: bytes) -> list[Finding]:
    with (directory / "orders-1" / f"{77:020}.log").open("ab") as file:
        file.write(content)
    return [finding for finding in findings_in([directory]) if finding.path.suffix == ".log"]


def test_a_torn_end_is_a_note_after_a_crash_only(directory: Path, tmp_path: Path) -> None:
    """Recovery cuts it off; after a clean shutdown nothing may be torn."""
    part = batch("never whole", base_offset=100)[:-3]
    (finding,) = torn(directory, part)
    assert finding.is_error
    crashed = make(tmp_path / "crashed", clean=False)
    part = batch("never whole", base_offset=101)[:-3]
    (finding,) = torn(crashed, part)
    assert (finding.at, finding.is_error) == ("offset 101", False)
    assert finding.problem.endswith("its header says 80; recovery truncates the log here")


def test_a_start_offset_that_retention_has_passed_is_a_note_after_a_crash_only(
    directory: Path, tmp_path: Path
) -> None:
    crashed = make(tmp_path / "crashed", clean=False)
    for place, is_error in ((directory, True), (crashed, False)):
        (place / "log-start-offset-checkpoint").write_text("0\n1\ntrimmed 0 7\n")
        findings = [f for f in findings_in([place]) if f.problem == "7 is before the first segment, 39"]
        assert [finding.is_error for finding in findings] == [is_error]


def test_damage_before_the_recovery_point_is_an_error_after_a_crash_too(tmp_path: Path) -> None:
    crashed = make(tmp_path / "crashed", clean=False)
    log = crashed / "orders-1" / f"{77:020}.log"
    log.write_bytes(flipped(log.read_bytes(), 70))
    assert is_named(crashed, f"{log}: offset 77: byte 0: the checksum is wrong"), found(crashed)
    log.write_bytes(log.read_bytes()[:40])
    assert is_named(crashed, f"{log}: offset 77: byte 0: 40 bytes are not a complete batch"), found(crashed)


def test_a_partitions_folder_is_verified_alone(directory: Path) -> None:
    folder = directory / "orders-0"
    assert found(folder) == []
    (folder / "leader-epoch-checkpoint").unlink()
    assert is_named(folder, "leader-epoch-checkpoint: offset 0: leader epoch 0 of the log is missing")


def test_the_command_prints_a_line_for_each_finding_and_changes_nothing(directory: Path) -> None:
    def state() -> dict[Path, tuple[int, bytes]]:
        files = (path for path in directory.rglob("*") if path.is_file())
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    assert CliRunner().invoke(main, ["log", "check", str(directory)]).output == ""
    index = directory / "orders-0" / f"{0:020}.index"
    index.write_bytes(index.read_bytes()[:-3])
    before = state()
    result = CliRunner().invoke(main, ["log", "check", str(directory)])
    assert result.exit_code == 1
    assert result.output == f"{index}: 77 bytes are not whole entries of 8\n"
    assert state() == before


def test_a_directory_that_a_broker_has_open_is_told(directory: Path) -> None:
    """What it has not written yet is no error."""
    logs = LogManager([directory], 1, "c1")
    logs.load(NOW_MS)
    try:
        log = logs.get("orders", 1)
        assert log is not None
        append(log, "not checkpointed", epoch=5)
        command = [sys.executable, "-m", "ottla.cli.main", "log", "check", str(directory)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    finally:
        logs.close(NOW_MS)
    assert (done.returncode, done.stderr) == (
        0,
        f"{directory}: a broker has it open and may write to it during the check\n",
    )
    assert all(": note: " in line for line in done.stdout.splitlines()), done.stdout


def test_a_partition_with_the_id_of_another_topic_is_found(directory: Path) -> None:
    for partition, topic_id in enumerate((UUID(int=1), UUID(int=2))):
        write_topic_id(OS_FILES, directory / f"orders-{partition}", topic_id)
    assert is_named(directory, "orders-1: its topic id is not that of orders-0")


def test_a_time_index_may_begin_with_timestamp_0(tmp_path: Path) -> None:
    logs = LogManager([tmp_path], 1, "c1")
    logs.load(NOW_MS)
    append(logs.get_or_create("orders", 0, CONFIG, NOW_MS), "value", timestamp=0)
    logs.write_high_watermarks({("orders", 0): 1})
    logs.close(NOW_MS)
    assert found(tmp_path) == []

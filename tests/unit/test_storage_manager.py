"""The log manager: ownership of the directories, what survives a restart, maintenance tasks."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import pytest

from ottla.ports.files import OS_FILES
from ottla.storage.checkpoints import MalformedCheckpoint, read_offsets
from ottla.storage.log_config import LogConfig
from ottla.storage.log_dir import (
    LogDirProblem,
    decode_topic_id,
    encode_topic_id,
    parse_partition_directory,
    read_properties,
    read_topic_id,
)
from ottla.storage.log_manager import LogManager
from tests.worlds.storage_logs import NOW_MS, append, values


def manager(*log_dirs: Path, broker_id: int = 1, cluster_id: str = "c1", **defaults: str) -> LogManager:
    names = {name.replace("_", "."): value for name, value in defaults.items()}
    loaded = LogManager(list(log_dirs), broker_id, cluster_id, names)
    loaded.load(NOW_MS, {})
    return loaded


def test_logs_and_offsets_are_there_after_a_clean_restart(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    log = logs.get_or_create("events", 3, LogConfig(), NOW_MS)
    append(log, "a")
    append(log, "b")
    log.maybe_increment_log_start_offset(1)
    topic_id = uuid.uuid4()
    log.topic_id = topic_id
    logs.write_high_watermarks({("events", 3): 2, ("elsewhere", 0): 5})
    logs.close(NOW_MS)
    assert (tmp_path / ".kafka_cleanshutdown").exists()

    again = manager(tmp_path)
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    found = again.get("events", 3)
    assert found is not None
    assert (found.log_start_offset, found.log_end_offset, found.recovery_point) == (1, 2, 2)
    assert found.topic_id == topic_id
    assert again.read_high_watermarks() == {("events", 3): 2}
    assert list(again.logs()) == [("events", 3)]
    again.close(NOW_MS)


def test_a_topics_id_is_on_disk_before_its_first_batch(tmp_path: Path) -> None:
    """And else a little later: whoever makes thousands of partitions must not wait for the disk for each."""
    logs = manager(tmp_path)
    busy, idle = (logs.get_or_create("events", number, LogConfig(), NOW_MS) for number in range(2))
    for log in (busy, idle):
        log.topic_id = uuid.UUID(int=7)
        assert read_topic_id(OS_FILES, log.directory) is None
    append(busy, "a")
    assert read_topic_id(OS_FILES, busy.directory) == uuid.UUID(int=7)
    assert read_topic_id(OS_FILES, idle.directory) is None
    assert logs.has_deferred_tasks(NOW_MS)
    logs.run_deferred_tasks(NOW_MS)
    assert read_topic_id(OS_FILES, idle.directory) == uuid.UUID(int=7)
    logs.close(NOW_MS)


def test_after_a_crash_the_torn_tail_is_cut(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    append(logs.get_or_create("events", 0, LogConfig(), NOW_MS), "a")
    logs.write_checkpoints()
    with (tmp_path / "events-0" / "00000000000000000000.log").open("ab") as file:
        file.write(b"torn")
    logs._release_locks()  # what the system does for a dead process
    log = manager(tmp_path).get("events", 0)
    assert log is not None
    assert values(log) == ["a"]


def test_overrides_and_defaults_make_a_topics_configuration(tmp_path: Path) -> None:
    logs = manager(tmp_path, retention_ms="5", min_insync_replicas="2")
    config = logs.config_for({"retention.ms": "7", "unclean.leader.election.enable": "true", "x": "y"})
    assert (config.retention_ms, config.min_insync_replicas, config.segment_bytes) == (7, 2, 1 << 30)
    assert config.unclean_leader_election_enable
    logs.get_or_create("events", 0, config)
    logs.close(NOW_MS)
    again = LogManager([tmp_path], 1, "c1", {"retention.ms": "5"})
    again.load(NOW_MS, {"events": {"cleanup.policy": "compact"}})
    log = again.get("events", 0)
    assert log is not None
    assert (log.config.cleanup_policy, log.config.retention_ms) == ("compact", 5)


@pytest.mark.parametrize(
    ("other", "named"), [({"broker_id": 2}, "broker.id=1"), ({"cluster_id": "c2"}, "cluster.id=c1")]
)
def test_a_directory_of_another_broker_or_cluster_is_refused(
    tmp_path: Path, other: dict[str, object], named: str
) -> None:
    manager(tmp_path).close(NOW_MS)
    with pytest.raises(LogDirProblem, match=named):
        manager(tmp_path, **other)  # type: ignore[arg-type]
    manager(tmp_path).close(NOW_MS)


def test_meta_properties_are_kafkas(tmp_path: Path) -> None:
    manager(tmp_path).close(NOW_MS)
    assert read_properties(OS_FILES, tmp_path / "meta.properties") == {
        "version": "0",
        "broker.id": "1",
        "cluster.id": "c1",
    }


def test_a_directory_that_is_in_use_is_refused(tmp_path: Path) -> None:
    running = manager(tmp_path)
    with pytest.raises(LogDirProblem, match="held by another broker"):
        manager(tmp_path)
    running.close(NOW_MS)
    manager(tmp_path).close(NOW_MS)


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogDirProblem, match="file"):
        manager(tmp_path / "file")


def test_partitions_are_spread_over_directories(tmp_path: Path) -> None:
    logs = manager(tmp_path / "a", tmp_path / "b")
    for partition in range(6):
        logs.get_or_create("events", partition, LogConfig())
    assert len(list((tmp_path / "a").glob("events-*"))) == 3
    logs.write_high_watermarks({("events", partition): 0 for partition in range(6)})
    assert len(read_offsets(OS_FILES, tmp_path / "b" / "replication-offset-checkpoint")) == 3
    logs.close(NOW_MS)
    assert len(manager(tmp_path / "a", tmp_path / "b").logs()) == 6


def test_deleting_removes_a_log_and_what_was_noted_of_it(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    append(logs.get_or_create("events", 0, LogConfig()), "a")
    append(logs.get_or_create("events", 1, LogConfig()), "a")
    logs.write_high_watermarks({("events", 0): 1, ("events", 1): 1})
    logs.delete("events", 0)
    logs.delete("never", 0)
    assert logs.get("events", 0) is None
    assert not (tmp_path / "events-0").exists()
    logs.run_deferred_tasks(NOW_MS)
    logs.run_deferred_tasks(NOW_MS + 59_999)
    assert list(tmp_path.glob("events-0*-delete"))
    assert logs.has_deferred_tasks(NOW_MS + 60_000)
    logs.run_deferred_tasks(NOW_MS + 60_000)
    assert not list(tmp_path.glob("events-0*"))
    assert not logs.has_deferred_tasks(NOW_MS + 60_000)
    logs.write_checkpoints()
    assert list(read_offsets(OS_FILES, tmp_path / "recovery-point-offset-checkpoint")) == [("events", 1)]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_log_under_a_deleted_ones_name_inherits_nothing(tmp_path: Path, restarted: bool) -> None:
    logs = manager(tmp_path)
    old = logs.get_or_create("events", 0, LogConfig())
    append(old, "a", "b")
    old.flush()
    old.maybe_increment_log_start_offset(1)
    logs.write_checkpoints()
    logs.write_high_watermarks({("events", 0): 2})
    logs.delete("events", 0)
    if restarted:
        logs._release_locks()
        logs = manager(tmp_path)
    assert logs.get_or_create("events", 0, LogConfig()).log_end_offset == 0
    assert ("events", 0) not in logs.read_high_watermarks()
    logs._release_locks()  # what the system does for a dead process
    log = manager(tmp_path).get("events", 0)
    assert log is not None
    assert (log.log_start_offset, log.recovery_point) == (0, 0)


def test_a_deletion_that_a_crash_interrupted_is_finished(tmp_path: Path) -> None:
    doomed = tmp_path / f"events-0.{uuid.uuid4().hex}-delete"
    doomed.mkdir()
    (doomed / "00000000000000000000.log").write_bytes(b"")
    logs = manager(tmp_path, file_delete_delay_ms="0")
    assert logs.logs() == {}
    logs.run_deferred_tasks(NOW_MS)
    assert not doomed.exists()


def test_cleanup_applies_retention_where_the_high_watermark_is_known(tmp_path: Path) -> None:
    logs = manager(tmp_path, retention_ms="10")
    for partition in range(2):
        log = logs.get_or_create("events", partition, logs.config_for({}))
        append(log, "a", timestamp=NOW_MS, producer=(7, 0, 0))
    assert logs.cleanup(NOW_MS + 11, {("events", 0): 1}) == 1
    first, second = logs.get("events", 0), logs.get("events", 1)
    assert first is not None
    assert second is not None
    assert (first.log_start_offset, second.log_start_offset) == (1, 0)
    logs.cleanup(NOW_MS + 24 * 3600 * 1000, {})
    assert len(second.producers) == 0


def test_cleanup_leaves_compacted_logs_and_those_being_cleaned_to_the_cleaner(tmp_path: Path) -> None:
    logs = manager(tmp_path, retention_ms="10")
    for name, policy in (("plain", "delete"), ("both", "compact,delete"), ("changed", "delete")):
        config = logs.config_for({"cleanup.policy": policy})
        append(logs.get_or_create(name, 0, config), "a", timestamp=NOW_MS)
    assert logs.maintenance.try_lock_for_cleaning(("changed", 0))
    assert not logs.maintenance.try_lock_for_cleaning(("changed", 0))
    known = {(name, 0): 1 for name in ("plain", "both", "changed")}
    assert logs.cleanup(NOW_MS + 11, known) == 1
    assert {name: log.log_start_offset for (name, _), log in logs.logs().items()} == {
        "plain": 1,
        "both": 0,
        "changed": 0,
    }
    logs.maintenance.unlock_for_cleaning(("changed", 0))
    assert logs.cleanup(NOW_MS + 11, known) == 1


def test_flush_ms_is_kept(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    log = logs.get_or_create("events", 0, LogConfig(flush_ms=1000))
    lazy = logs.get_or_create("events", 1, LogConfig())
    append(log, "a")
    append(lazy, "a")
    logs.flush_due(NOW_MS)
    assert (log.recovery_point, lazy.recovery_point) == (1, 0)
    append(log, "b")
    logs.flush_due(NOW_MS + 999)
    assert log.recovery_point == 1
    logs.flush_due(NOW_MS + 1000)
    assert log.recovery_point == 2


def test_flush_ms_counts_from_the_start(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    log = logs.get_or_create("events", 0, LogConfig(flush_ms=1000), NOW_MS)
    append(log, "a")
    logs.flush_due(NOW_MS + 999)
    assert log.recovery_point == 0
    logs.flush_due(NOW_MS + 1000)
    assert log.recovery_point == 1


def test_the_files_of_deleted_segments_go_after_their_delay(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    config = LogConfig(segment_bytes=200, retention_ms=10, file_delete_delay_ms=500)
    log = logs.get_or_create("events", 0, config)
    for number in range(5):
        append(log, f"{number}" * 20, timestamp=NOW_MS)
    logs.run_deferred_tasks(NOW_MS)
    assert log.recovery_point == 4, "what is sealed is soon flushed"
    assert logs.cleanup(NOW_MS + 11, {("events", 0): 5}) == 3
    log.truncate_fully_and_start_at(3)
    doomed = sorted((tmp_path / "events-0").glob("*.log.deleted"))
    assert len(doomed) == 4
    logs.run_deferred_tasks(NOW_MS)
    assert not logs.has_deferred_tasks(NOW_MS + 499)
    logs.run_deferred_tasks(NOW_MS + 499)
    assert all(path.exists() for path in doomed)
    logs.run_deferred_tasks(NOW_MS + 500)
    assert not list((tmp_path / "events-0").glob("*.deleted"))
    assert not logs.has_deferred_tasks(NOW_MS + 10**9)


def test_a_truncation_writes_the_lowered_recovery_point_once(tmp_path: Path) -> None:
    """Otherwise, after a crash, the broker would trust what is written there next, and a cut that a power
    loss has undone."""
    logs = manager(tmp_path)
    log = logs.get_or_create("events", 0, LogConfig())
    append(log, "a", "b", "c")
    append(log, "d")
    log.flush()
    logs.write_checkpoints()
    log.truncate_to(3)
    assert read_offsets(OS_FILES, tmp_path / "recovery-point-offset-checkpoint") == {("events", 0): 0}
    assert not logs.has_deferred_tasks(NOW_MS)


def test_only_log_starts_that_the_files_do_not_show_are_checkpointed(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    for partition in range(2):
        append(logs.get_or_create("events", partition, LogConfig()), "a", "b")
    log = logs.get("events", 1)
    assert log is not None
    log.maybe_increment_log_start_offset(1)
    logs.write_start_offsets()
    assert read_offsets(OS_FILES, tmp_path / "log-start-offset-checkpoint") == {("events", 1): 1}


def test_a_log_that_fails_in_maintenance_does_not_stop_that_of_other_directories(tmp_path: Path) -> None:
    logs = manager(tmp_path / "a", tmp_path / "b", tmp_path / "c", retention_ms="10", flush_ms="5")
    for partition in range(3):
        append(logs.get_or_create("events", partition, logs.config_for({})), "a", timestamp=NOW_MS)
    first, last = logs.get("events", 0), logs.get("events", 2)
    assert first is not None
    assert last is not None
    shutil.rmtree(first.directory)
    first.directory.write_text("no folder any more")
    assert logs.cleanup(NOW_MS + 11, {("events", partition): 1 for partition in range(3)}) == 2
    append(last, "b")
    logs.flush_due(NOW_MS + 11)
    assert last.recovery_point == 2
    append(last, "c")
    last.roll(NOW_MS)
    logs.write_checkpoints()
    assert last.recovery_point == 3
    recovery_points = last.directory.parent / "recovery-point-offset-checkpoint"
    assert read_offsets(OS_FILES, recovery_points) == {("events", 2): 3}


@pytest.mark.parametrize(
    "data", [b"1\n0\n", b"0\n2\nevents 0 5\n", b"0\nx\n", b"0\n1\nevents 0\n", b"0\n1\n\xe5vents 0 5\n"]
)
def test_a_damaged_checkpoint_is_noticed_and_costs_no_data(tmp_path: Path, data: bytes) -> None:
    logs = manager(tmp_path)
    append(logs.get_or_create("events", 0, LogConfig()), "a")
    logs.close(NOW_MS)
    path = tmp_path / "recovery-point-offset-checkpoint"
    path.write_bytes(data)
    with pytest.raises(MalformedCheckpoint):
        read_offsets(OS_FILES, path)
    log = manager(tmp_path).get("events", 0)
    assert log is not None
    assert values(log) == ["a"]


def test_the_checkpoint_files_are_kafkas(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    append(logs.get_or_create("my-topic", 12, LogConfig()), "a")
    logs.write_high_watermarks({("my-topic", 12): 1})
    assert (tmp_path / "replication-offset-checkpoint").read_text() == "0\n1\nmy-topic 12 1\n"


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("events-0", ("events", 0)),
        ("a-b-12", ("a-b", 12)),
        ("events", None),
        ("events-x", None),
        ("events-0.0123-delete", None),
        ("events-0.0123-future", None),
    ],
)
def test_directories_of_partitions_are_known_by_name(name: str, parsed: tuple[str, int] | None) -> None:
    assert parse_partition_directory(name) == parsed


def test_topic_ids_are_written_as_kafka_writes_them() -> None:
    topic_id = uuid.UUID("6f1d7c1e-0d4a-4b2b-9a64-5d2f3c1b0a99")
    assert encode_topic_id(topic_id) == "bx18Hg1KSyuaZF0vPBsKmQ"
    assert decode_topic_id("bx18Hg1KSyuaZF0vPBsKmQ") == topic_id

"""Checks log directories offline: every log in them, and the files that list logs. Reads only.

Called by `ottla log check`. Findings are errors or notes: the problem of a note is repaired at a broker's
start, or ignored by brokers. While a broker has a directory open, data that it has not written yet counts as
after a crash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ottla.ports.files import Files, is_directory, opened, read_file
from ottla.protocol.topics import INTERNAL_TOPICS
from ottla.storage.checkpoints import (
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    MalformedCheckpoint,
    TopicPartition,
    read_offsets,
)
from ottla.storage.cleaner.planning import CHECKPOINT_FILE as CLEANER_FILE
from ottla.storage.log_checks import CheckedLog, check_form, check_log
from ottla.storage.log_dir import (
    CLEAN_SHUTDOWN_FILE,
    DELETE_SUFFIX,
    FUTURE_SUFFIX,
    LOCK_FILE,
    META_PROPERTIES_FILE,
    STRAY_SUFFIX,
    LogDirProblem,
    parse_future_directory,
    parse_partition_directory,
    read_properties,
    read_topic_id,
)
from ottla.storage.segment_checks import Finding, Findings
from ottla.storage.segment_files import LOG_SUFFIX

CHECKPOINTS = (RECOVERY_POINT_FILE, LOG_START_FILE, REPLICATION_FILE, CLEANER_FILE)
_OTHER_FILES = (META_PROPERTIES_FILE, LOCK_FILE, CLEAN_SHUTDOWN_FILE)
_FOREIGN_DIRECTORIES = ("remote-log-index-cache", "lost+found")
"""Directories of Kafka's tiered storage and of file systems."""

Offsets = Mapping[TopicPartition, int]


def is_open(files: Files, log_dir: Path) -> bool:
    """Whether a broker, of Apache Kafka or Ottla, has the directory open."""
    try:
        with opened(files, log_dir / LOCK_FILE) as fd:
            return files.is_locked(fd)
    except FileNotFoundError:
        return False


def check_log_dirs(files: Files, log_dirs: Sequence[Path]) -> list[Finding]:
    """The problems of one broker's log directories, or of directories of single logs."""
    findings = Findings()
    directories: dict[TopicPartition, Path] = {}
    for log_dir in log_dirs:
        if any(name.endswith(LOG_SUFFIX) for name in files.listdir(log_dir)):
            _check_single(files, log_dir, findings)
            continue
        for key, log in _check_log_dir(files, log_dir, findings).items():
            other = directories.setdefault(key, log.directory)
            if other != log.directory:
                findings.add(log.directory, f"{other} is a log of the same partition")
    return findings.all()


def _check_single(files: Files, directory: Path, findings: Findings) -> None:
    """Check one log's directory, with the entries of its log directory's checkpoint files."""
    log_dir = directory.absolute().parent
    key = parse_partition_directory(directory.absolute().name)
    checkpoints = _read_checkpoints(files, log_dir, Findings())
    log = _log(directory, key, checkpoints, is_clean=_is_clean(files, log_dir))
    _check_log(files, log, findings)
    if key is not None:
        _check_offsets(files, log_dir, {key: log}, checkpoints, findings, is_whole=False)


def _is_clean(files: Files, log_dir: Path) -> bool:
    return files.exists(log_dir / CLEAN_SHUTDOWN_FILE) and not is_open(files, log_dir)


def _check_log_dir(files: Files, log_dir: Path, findings: Findings) -> dict[TopicPartition, CheckedLog]:
    is_clean = _is_clean(files, log_dir)
    checkpoints = _read_checkpoints(files, log_dir, findings)
    _check_meta_properties(files, log_dir, findings)
    _check_clean_shutdown(files, log_dir / CLEAN_SHUTDOWN_FILE, findings)
    logs: dict[TopicPartition, CheckedLog] = {}
    for name in files.listdir(log_dir):
        path = log_dir / name
        if not is_directory(files, path):
            if path.name.endswith(".tmp"):
                findings.add(path, "left over from an interrupted write", is_error=False)
            elif path.name not in (*_OTHER_FILES, *CHECKPOINTS):
                findings.add(path, "not the name of a file of a broker", is_error=False)
            continue
        key = parse_partition_directory(path.name)
        if key is not None:
            logs[key] = log = _log(path, key, checkpoints, is_clean=is_clean)
            _check_log(files, log, findings)
        else:
            _check_other_directory(files, path, findings, is_clean=is_clean)
    _check_offsets(files, log_dir, logs, checkpoints, findings, is_whole=True)
    _check_topic_ids(files, logs, findings)
    return logs


def _check_other_directory(files: Files, path: Path, findings: Findings, *, is_clean: bool) -> None:
    if path.name.endswith(DELETE_SUFFIX):
        findings.add(path, "a deleted log; a broker's start removes it", is_error=False)
    elif path.name.endswith(STRAY_SUFFIX):
        findings.add(path, "a stray log, which no broker opens", is_error=False)
    elif path.name.endswith(FUTURE_SUFFIX) and parse_future_directory(path.name) is not None:
        findings.add(path, "a future log: the partition is moving to this directory", is_error=False)
        _check_log(files, CheckedLog(path, is_clean=is_clean), findings)
    elif path.name not in _FOREIGN_DIRECTORIES:
        findings.add(path, "not the name of a partition's directory")


def _log(
    directory: Path, key: TopicPartition | None, checkpoints: Mapping[str, Offsets | None], *, is_clean: bool
) -> CheckedLog:
    recovery_points, cleaned = checkpoints[RECOVERY_POINT_FILE] or {}, checkpoints[CLEANER_FILE] or {}
    return CheckedLog(
        directory,
        is_clean,
        recovery_point=0 if key is None else recovery_points.get(key, 0),
        is_compacted=key is not None and (key in cleaned or key[0] in INTERNAL_TOPICS),
    )


def _check_log(files: Files, log: CheckedLog, findings: Findings) -> None:
    try:
        check_log(files, log, findings)
    except OSError as problem:
        path = Path(problem.filename) if problem.filename else log.directory
        # A broker that has the directory open may have removed the file meanwhile.
        is_error = log.is_clean or not isinstance(problem, FileNotFoundError)
        findings.add(path, f"cannot be read: {problem.strerror or problem}", is_error=is_error)


# --- files that name logs ------------------------------------------------------------------------


def _read_checkpoints(files: Files, log_dir: Path, findings: Findings) -> dict[str, Offsets | None]:
    """The offsets in each checkpoint file; None if it cannot be read."""
    found: dict[str, Offsets | None] = {}
    for name in CHECKPOINTS:
        path = log_dir / name
        found[name] = None
        try:
            found[name] = offsets = read_offsets(files, path)
            lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
            check_form(files, path, lines, findings)
        except MalformedCheckpoint as problem:
            findings.add(path, str(problem).removeprefix(f"{path}: "))
        except OSError as problem:
            findings.add(path, f"cannot be read: {problem.strerror or problem}")
    return found


def _check_meta_properties(files: Files, log_dir: Path, findings: Findings) -> None:
    path = log_dir / META_PROPERTIES_FILE
    try:
        properties = read_properties(files, path)
    except FileNotFoundError:
        findings.add(path, "the file is missing: the directory belongs to no broker")
        return
    except OSError as problem:
        findings.add(path, f"cannot be read: {problem.strerror or problem}")
        return
    version = properties.get("version")
    if version not in ("0", "1"):
        findings.add(path, f"version {version} is not known: 0 is ZooKeeper mode, 1 KRaft")
    for name in ("broker.id" if version == "0" else "node.id", "cluster.id"):
        if version in ("0", "1") and not properties.get(name):
            findings.add(path, f"{name} is missing")
    broker_id = properties.get("broker.id", "0")
    if not broker_id.isdigit():
        findings.add(path, f"broker.id={broker_id} is not a number")


def _check_clean_shutdown(files: Files, path: Path, findings: Findings) -> None:
    """Check .kafka_cleanshutdown: empty, as before Kafka 3.7, or with the broker epoch (KIP-966)."""
    try:
        content = read_file(files, path)
        if content and not isinstance(json.loads(content)["brokerEpoch"], int):
            raise ValueError
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError):
        findings.add(path, "not a JSON object with a brokerEpoch", is_error=False)


def _check_offsets(
    files: Files,
    log_dir: Path,
    logs: Mapping[TopicPartition, CheckedLog],
    checkpoints: Mapping[str, Offsets | None],
    findings: Findings,
    *,
    is_whole: bool,
) -> None:
    """Compare the checkpointed offsets with the logs. `is_whole`: `logs` are all logs of the directory."""
    is_clean = _is_clean(files, log_dir)
    for name, offsets in checkpoints.items():
        path = log_dir / name
        if is_whole and not offsets and offsets is not None and logs:
            # Kafka creates all of them, empty, when it starts.
            if name in (RECOVERY_POINT_FILE, REPLICATION_FILE):
                findings.add(path, "the file is missing, or empty", is_error=is_clean)
            continue
        for key, offset in (offsets or {}).items():
            log = logs.get(key)
            if log is not None:
                _check_offset(path, name, log, offset, findings)
            elif is_whole:
                at = f"{key[0]}-{key[1]}"
                findings.add(path, "the partition has no directory", at=at, is_error=is_clean)
    starts = checkpoints[LOG_START_FILE]
    for key, log in logs.items() if starts is not None else ():
        _check_start(log_dir / LOG_START_FILE, log, (starts or {}).get(key), findings)
    known = checkpoints[RECOVERY_POINT_FILE]
    if is_whole and is_clean and known:
        for key, log in logs.items():
            if key not in known:
                findings.add(log_dir / RECOVERY_POINT_FILE, f"{log.directory.name} is missing")


def _check_offset(path: Path, name: str, log: CheckedLog, offset: int, findings: Findings) -> None:
    if log.first_offset is None:
        return
    at = log.directory.name
    if offset > log.end_offset:
        # Data before a recovery point is on disk; other offsets may be ahead of the log after a crash.
        is_error = log.is_clean or name == RECOVERY_POINT_FILE
        findings.add(
            path, f"{offset} is beyond the log end offset, {log.end_offset}", at=at, is_error=is_error
        )
    elif offset < 0 or (name == LOG_START_FILE and offset < log.first_offset):
        # Segments may have been deleted since the file was written.
        is_error = log.is_clean or offset < 0
        findings.add(
            path, f"{offset} is before the first segment, {log.first_offset}", at=at, is_error=is_error
        )
    elif name == RECOVERY_POINT_FILE and log.is_clean and offset < log.end_offset:
        findings.add(path, f"{offset} is before the log end offset, {log.end_offset}", at=at, is_error=False)


def _check_start(path: Path, log: CheckedLog, start: int | None, findings: Findings) -> None:
    """Compare the log start offset with the start of the first leader epoch, which is truncated there."""
    first = log.first_epoch_offset
    if first is None or log.first_offset is None or log.is_compacted or not log.is_clean:
        return
    start = max(start or 0, log.first_offset)
    if start != first and start < log.end_offset:
        problem = f"the log starts at {start}, and its first leader epoch at {first}"
        findings.add(path, problem, at=log.directory.name, is_error=False)


def _check_topic_ids(files: Files, logs: Mapping[TopicPartition, CheckedLog], findings: Findings) -> None:
    first: dict[str, CheckedLog] = {}
    for (topic, _), log in logs.items():
        try:
            topic_id = read_topic_id(files, log.directory)
            if topic_id is None:
                continue
            other = first.setdefault(topic, log)
            if read_topic_id(files, other.directory) != topic_id:
                findings.add(log.directory, f"its topic id is not that of {other.directory.name}")
        except (LogDirProblem, OSError):
            continue

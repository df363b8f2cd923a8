"""Checks one partition's log offline: its segments, the files beside them, and their consistency. Reads only.

Called by `log_dir_checks`. Problems that a broker repairs when it starts after a crash (`log_loader`) are
notes, not errors: an incomplete batch at the log's end, indexes and snapshots of segments that were not
flushed, leader epochs that were not written yet.

Not detected: changed bits without a contradiction, such as a batch's offset in a compacted log, which may
have gaps.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from ottla.ports.files import Files, read_file
from ottla.protocol.errors import KafkaError
from ottla.protocol.records import BatchHeader, ControlType, decode_batch, parse_control_record
from ottla.storage.checkpoints import MalformedCheckpoint
from ottla.storage.indexes import AbortedTransaction
from ottla.storage.leader_epochs import CHECKPOINT_FILE, read_epochs
from ottla.storage.log_dir import PARTITION_METADATA_FILE, LogDirProblem, read_topic_id
from ottla.storage.producer_state_manager import CorruptSnapshot, decode_snapshot
from ottla.storage.segment_checks import Batch, Findings, SegmentContents, read_batches, viewed
from ottla.storage.segment_files import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_name,
)

_BESIDE_LOGS = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
_LEFTOVERS = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, ".tmp")


@dataclass
class CheckedLog:
    """The facts of a log; `check_log` adds those that it reads."""

    directory: Path
    is_clean: bool
    """Whether the broker closed the log in order."""
    recovery_point: int = 0
    """Segments that end before it are flushed."""
    is_compacted: bool = False
    """Whether offsets may have gaps."""
    first_offset: int | None = None
    """The base offset of the first segment; None without segments."""
    end_offset: int = 0
    first_epoch_offset: int | None = None
    """The start offset of the first leader epoch, as a rule the log start offset."""


@dataclass
class _Progress:
    """The facts of the batches that were read so far."""

    end_offset: int
    gaps: list[tuple[Path, int, int]] = field(default_factory=list)
    """(file, first missing offset, end offset)."""
    open_transactions: dict[int, int] = field(default_factory=dict)
    """First offsets by producer id."""
    segments_with_producers: list[int] = field(default_factory=list)
    """Base offsets of the segments after a batch with a producer id."""
    has_producers: bool = False
    epoch_unknown: tuple[Path, int, int] | None = None
    """(file, offset, epoch) of the first batch whose epoch is missing in the checkpoint."""


def check_log(files: Files, log: CheckedLog, findings: Findings) -> None:
    """Check the directory, and complete `log`. Raises OSError."""
    directory = log.directory
    names = files.listdir(directory)
    bases = _check_names(log, names, findings)
    try:
        read_topic_id(files, directory)
    except LogDirProblem as problem:
        path = directory / PARTITION_METADATA_FILE
        findings.add(path, str(problem).removeprefix(f"{path} "))
    if not bases:
        findings.add(directory, "there is no segment", is_error=log.is_clean)
        return
    log.first_offset = bases[0]
    epochs = _read_epochs(files, log, findings)
    progress = _Progress(bases[0])
    for at, base in enumerate(bases):
        next_base = bases[at + 1] if at + 1 < len(bases) else None
        _check_segment(files, log, base, next_base, progress, epochs, findings)
    log.end_offset = progress.end_offset
    _check_gaps(log, progress, findings)
    _check_epochs(log, epochs, progress, findings)
    _check_snapshots(files, log, names, bases, progress, findings)


def _check_names(log: CheckedLog, names: list[str], findings: Findings) -> list[int]:
    """The base offsets of the segments."""
    bases = []
    for name in names:
        stem, dot, rest = name.partition(".")
        suffix = dot + rest
        path = log.directory / name
        is_numbered = len(stem) == 20 and stem.isdigit()
        if name in (PARTITION_METADATA_FILE, CHECKPOINT_FILE):
            continue
        if name.endswith(_LEFTOVERS):
            findings.add(
                path,
                "a leftover file; the next start of a broker removes it or completes its rename",
                is_error=False,
            )
        elif is_numbered and suffix == LOG_SUFFIX:
            bases.append(int(stem))
        elif is_numbered and suffix in _BESIDE_LOGS:
            if f"{stem}{LOG_SUFFIX}" not in names:
                findings.add(path, f"there is no {stem}{LOG_SUFFIX}", is_error=log.is_clean)
        elif not (is_numbered and suffix == SNAPSHOT_SUFFIX):
            findings.add(path, "not the name of a file of a log")
    return bases


# --- segments ------------------------------------------------------------------------------------


def _check_segment(
    files: Files,
    log: CheckedLog,
    base: int,
    next_base: int | None,
    progress: _Progress,
    epochs: list[tuple[int, int]] | None,
    findings: Findings,
) -> None:
    path = log.directory / (segment_name(base) + LOG_SUFFIX)
    contents = SegmentContents(files, base)
    if base > progress.end_offset:
        progress.gaps.append((path, progress.end_offset, base))
    progress.end_offset = max(progress.end_offset, base)
    if progress.has_producers:
        progress.segments_with_producers.append(base)
    damaged: list[Batch] = []
    with viewed(files, path) as data:
        for batch in read_batches(data):
            if batch.problem is not None:
                damaged.append(batch)
            if batch.header is None:
                break
            if batch.problem is not None:
                # The checksum does not cover the base offset, which is plausible if it is the expected one.
                if batch.header.base_offset == progress.end_offset:
                    progress.end_offset = batch.header.next_offset
                contents.add_batch(batch.position, batch.header)
                continue
            _check_batch(log, path, batch.position, batch.header, next_base, progress, epochs, findings)
            if batch.header.producer_id >= 0:
                progress.has_producers = True
                _add_transaction(data, batch.position, batch.header, contents, log, progress)
            contents.add_batch(batch.position, batch.header)
    is_whole = not damaged
    _report_damage(log, path, damaged, contents, next_base, progress, findings)
    is_trusted = log.is_clean or (next_base is not None and next_base <= log.recovery_point)
    is_sealed = is_whole and (next_base is not None or log.is_clean) and is_trusted
    contents.check_offset_index(
        path.with_suffix(INDEX_SUFFIX), findings, is_sealed=is_sealed, is_error=is_trusted
    )
    contents.check_time_index(
        path.with_suffix(TIME_INDEX_SUFFIX), findings, is_sealed=is_sealed, is_error=is_trusted
    )
    if is_whole:
        contents.check_transaction_index(path.with_suffix(TXN_INDEX_SUFFIX), findings, is_error=is_trusted)


def _check_batch(
    log: CheckedLog,
    path: Path,
    position: int,
    header: BatchHeader,
    next_base: int | None,
    progress: _Progress,
    epochs: list[tuple[int, int]] | None,
    findings: Findings,
) -> None:
    at = f"offset {header.base_offset}"
    if header.base_offset < progress.end_offset:
        problem = f"at byte {position} after offset {progress.end_offset - 1}: offsets do not ascend"
        findings.add(path, problem, at=at, kind="offsets that do not ascend")
    elif header.base_offset > progress.end_offset:
        progress.gaps.append((path, progress.end_offset, header.base_offset))
    if next_base is not None and header.last_offset >= next_base:
        problem = f"ends at {header.last_offset}, where the next segment begins at {next_base}"
        findings.add(path, problem, at=at, kind="offsets of the next segment")
    if 0 <= header.record_count <= header.last_offset_delta:
        log.is_compacted = True  # only the cleaner removes records from batches
    progress.end_offset = max(progress.end_offset, header.next_offset)
    epoch = header.partition_leader_epoch
    if epochs is None or (epochs and header.base_offset < epochs[0][1]) or (epoch < 0 and not epochs):
        return
    known = bisect_right(epochs, header.base_offset, key=lambda entry: entry[1]) - 1
    if known < 0 or epochs[known][0] < epoch:
        progress.epoch_unknown = progress.epoch_unknown or (path, header.base_offset, epoch)
    elif epochs[known][0] != epoch:
        problem = f"leader epoch {epoch}, where {CHECKPOINT_FILE} has {epochs[known][0]}"
        findings.add(path, problem, at=at, kind="leader epochs")


def _add_transaction(
    data: memoryview,
    position: int,
    header: BatchHeader,
    contents: SegmentContents,
    log: CheckedLog,
    progress: _Progress,
) -> None:
    """Record the transaction index entry that an abort marker requires: as in Kafka, the first offset of the
    producer's transaction, and that of the oldest transaction that is open after the marker."""
    producer_id = header.producer_id
    if not header.is_control:
        if header.is_transactional:
            progress.open_transactions.setdefault(producer_id, header.base_offset)
        return
    first_offset = progress.open_transactions.pop(producer_id, None)
    try:
        markers = [parse_control_record(record) for record in decode_batch(data, position)]
    except KafkaError:
        return
    if not any(marker.type == ControlType.ABORT for marker in markers):
        return
    is_known = first_offset is not None and log.first_offset == 0 and not log.is_compacted
    if is_known and first_offset is not None:
        stable = min(progress.open_transactions.values(), default=header.last_offset + 1)
        contents.aborted[header.last_offset] = AbortedTransaction(
            producer_id, first_offset, header.last_offset, stable
        )
    else:
        # The transaction may have begun before the log start, or have no records in this log.
        contents.aborted[header.last_offset] = None


def _report_damage(
    log: CheckedLog,
    path: Path,
    damaged: list[Batch],
    contents: SegmentContents,
    next_base: int | None,
    progress: _Progress,
    findings: Findings,
) -> None:
    for batch in damaged:
        is_end = batch.header is None or batch.position + batch.header.size >= contents.size
        offset = progress.end_offset if batch.header is None else batch.header.base_offset
        is_torn = batch.is_torn or (is_end and batch.header is not None)
        # After the recovery point nothing is flushed: recovery truncates the log there.
        is_repairable = not log.is_clean and next_base is None and is_torn and offset >= log.recovery_point
        problem = f"byte {batch.position}: {batch.problem}"
        if is_repairable:
            problem += "; recovery truncates the log here"
        findings.add(path, problem, at=f"offset {offset}", kind="damaged batches", is_error=not is_repairable)


def _check_gaps(log: CheckedLog, progress: _Progress, findings: Findings) -> None:
    if log.is_compacted:
        return
    for path, start, end in progress.gaps:
        problem = f"the offsets up to {end - 1} are missing, and the log is not known to be compacted"
        findings.add(path, problem, at=f"offset {start}", kind="missing offsets")


# --- other files --------------------------------------------------------------------------------


def _read_epochs(files: Files, log: CheckedLog, findings: Findings) -> list[tuple[int, int]] | None:
    """The entries of the leader epoch checkpoint; None if it cannot be read."""
    path = log.directory / CHECKPOINT_FILE
    try:
        entries = read_epochs(files, log.directory)
    except MalformedCheckpoint as problem:
        findings.add(path, str(problem).removeprefix(f"{path}: "))
        return None
    for before, after in pairwise(entries):
        if after[0] <= before[0] or after[1] <= before[1]:
            findings.add(path, f"epoch {after[0]} from {after[1]} follows epoch {before[0]} from {before[1]}")
            return None
    check_form(files, path, [f"{epoch} {start}" for epoch, start in entries], findings)
    log.first_epoch_offset = entries[0][1] if entries else None
    return entries


def check_form(files: Files, path: Path, entries: list[str], findings: Findings) -> None:
    """Report a checkpoint file that has more than its entries."""
    expected = "\n".join(["0", str(len(entries)), *entries, ""]).encode()
    if files.exists(path) and read_file(files, path) not in (b"", expected):
        findings.add(path, "its content differs from what a broker writes for its entries")


def _check_epochs(
    log: CheckedLog, epochs: list[tuple[int, int]] | None, progress: _Progress, findings: Findings
) -> None:
    path = log.directory / CHECKPOINT_FILE
    if epochs is None:
        return
    if progress.epoch_unknown is not None:
        _, offset, epoch = progress.epoch_unknown
        is_error = log.is_clean or offset < log.recovery_point
        problem = f"leader epoch {epoch} of the log is missing"
        findings.add(path, problem, at=f"offset {offset}", is_error=is_error)
    if epochs and epochs[-1][1] > log.end_offset:
        problem = f"epoch {epochs[-1][0]} begins after the log end offset, {log.end_offset}"
        findings.add(path, problem, at=f"offset {epochs[-1][1]}", is_error=log.is_clean)
    if epochs and log.first_offset is not None and epochs[0][1] < log.first_offset:
        problem = f"epoch {epochs[0][0]} begins before the first segment, {log.first_offset}"
        findings.add(path, problem, at=f"offset {epochs[0][1]}", is_error=log.is_clean)


def _check_snapshots(
    files: Files,
    log: CheckedLog,
    names: list[str],
    bases: list[int],
    progress: _Progress,
    findings: Findings,
) -> None:
    offsets = set()
    for name in names:
        stem, dot, rest = name.partition(".")
        if dot + rest != SNAPSHOT_SUFFIX or not stem.isdigit():
            continue
        path, offset = log.directory / name, int(stem)
        offsets.add(offset)
        is_error = log.is_clean or offset <= log.recovery_point
        try:
            producers = decode_snapshot(read_file(files, path))
        except CorruptSnapshot as problem:
            findings.add(path, str(problem), is_error=is_error)
            continue
        if offset > log.end_offset:
            findings.add(path, f"the log ends at {log.end_offset}", is_error=log.is_clean)
        for producer_id, entry in producers.items():
            if entry.batches and entry.batches[-1].last_offset >= offset:
                problem_text = (
                    f"producer {producer_id} wrote {entry.batches[-1].last_offset}, after the snapshot"
                )
                findings.add(path, problem_text, kind="producers after the snapshot", is_error=is_error)
    expected = {*progress.segments_with_producers, *([log.end_offset] if progress.has_producers else [])}
    for offset in sorted(expected - offsets) if log.is_clean else ():
        path = log.directory / f"{segment_name(offset)}{SNAPSHOT_SUFFIX}"
        findings.add(
            path, "the file is missing; a start or a truncation reads the log instead", is_error=False
        )

"""`ottla log`: describes, dumps and verifies the files of log directories, without a broker.

Never writes. Of a file that a broker is writing to, the complete batches are shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ottla.cli.log_files import (
    TABLE_COLUMNS,
    DumpOptions,
    Row,
    base_offset_of,
    batch_rows,
    plain_name,
    rows_of,
    time_text,
)
from ottla.cli.log_records import Content, by_classes, find_decoder, offsets_content, transactions_content
from ottla.cli.output import as_json, show, table
from ottla.ports.files import OS_FILES
from ottla.protocol.records import Record
from ottla.storage.checkpoints import MalformedCheckpoint
from ottla.storage.indexes import CorruptIndex, OffsetIndex, TimeIndex
from ottla.storage.log_dir import LogDirProblem
from ottla.storage.log_dir_checks import check_log_dirs, is_open
from ottla.storage.producer_state_manager import CorruptSnapshot
from ottla.storage.segment_checks import Findings, SegmentContents, read_batches, viewed
from ottla.storage.segment_files import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_name,
)

_OUTPUT = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
_DAMAGED = 1
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_INDEXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


@click.group("log", short_help="Read and verify log directories, without a broker.")
def log_() -> None:
    """Files of a partition's log (a folder such as data/orders-0) and of a log directory."""


@log_.command()
@click.argument("folder", type=_FOLDER)
@_OUTPUT
def describe(folder: Path, output: str) -> None:
    """List the segments of a partition's FOLDER: offsets, times, sizes.

    Exit code 1: a segment has bytes that are not a complete batch with a valid checksum.
    """
    rows = [_summary(path) for path in sorted(folder.glob(f"*{LOG_SUFFIX}"))]
    show(rows, output, nothing="no segments here")
    if any(row["damaged_at"] is not None for row in rows):
        raise SystemExit(_DAMAGED)


@log_.command()
@click.argument("files", type=_FILE, nargs=-1, required=True)
@click.option("--records", "--print-data-log", is_flag=True, help="Print records with keys and values.")
@click.option("--deep-iteration", is_flag=True, help="Print records without keys and values.")
@click.option("--skip-record-metadata", is_flag=True, help="Print only keys and values of records.")
@click.option("--offsets-decoder", is_flag=True, help="Decode records of __consumer_offsets.")
@click.option("--transaction-log-decoder", is_flag=True, help="Decode records of __transaction_state.")
@click.option(
    "--key-decoder-class", metavar="NAME", help="string, integer, long, default (base64), or module:function."
)
@click.option("--value-decoder-class", metavar="NAME", help="The same for values.")
@click.option("--max-bytes", type=click.IntRange(1), help="Read at most this part of a log.")
@click.option("--index-sanity-check", is_flag=True, help="Only run a broker's check at opening an index.")
@click.option("--verify-index-only", is_flag=True, help="Only compare indexes with their logs.")
@_OUTPUT
def dump(
    files: tuple[Path, ...],
    records: bool,
    deep_iteration: bool,
    skip_record_metadata: bool,
    offsets_decoder: bool,
    transaction_log_decoder: bool,
    key_decoder_class: str | None,
    value_decoder_class: str | None,
    max_bytes: int | None,
    index_sanity_check: bool,
    verify_index_only: bool,
    output: str,
) -> None:
    """Print FILES of all kinds that a broker writes: segments (.log, .index, .timeindex, .txnindex,
    .snapshot), leader-epoch-checkpoint, the other checkpoints, meta.properties and partition.metadata.

    Options are those of kafka-dump-log; a decoder implies --print-data-log. Exit code 1: a log has bytes
    after its last complete batch, or a wrong checksum; a file is corrupt; an index is wrong.
    """
    if index_sanity_check or verify_index_only:
        _verify_indexes(files, output, only_sanity=index_sanity_check)
        return
    content: Callable[[Record], Content] | None = None
    if offsets_decoder or transaction_log_decoder:
        content = offsets_content if offsets_decoder else transactions_content
    elif records or key_decoder_class or value_decoder_class:
        try:
            key, value = (find_decoder(name or "string") for name in (key_decoder_class, value_decoder_class))
        except ValueError as unknown:
            raise click.UsageError(str(unknown)) from unknown
        content = by_classes(key, value)
    is_deep = deep_iteration or content is not None
    wanted = DumpOptions(is_deep and not skip_record_metadata, content, max_bytes)
    dumped: dict[str, list[Row]] = {}
    problems: list[str] = []
    for file in files:
        if len(files) > 1 and output == "table":
            click.echo(f"{file}:")
        rows, problem = _dump(file, wanted)
        dumped[str(file)] = rows
        if output == "table":
            _show_rows(rows)
        if problem is not None:
            problems.append(problem)
    if output == "json":
        as_json(dumped if len(files) > 1 else next(iter(dumped.values())))
    for problem in problems:
        click.echo(problem, err=True)
    if problems:
        raise SystemExit(_DAMAGED)


def _dump(file: Path, wanted: DumpOptions) -> tuple[list[Row], str | None]:
    """The rows of a file, and its problem or None."""
    if Path(plain_name(file)).suffix != LOG_SUFFIX:
        try:
            return rows_of(file), None
        except (CorruptIndex, CorruptSnapshot, LogDirProblem, MalformedCheckpoint) as damaged:
            return [], f"{file.name}: {str(damaged).removeprefix(f'{file}: ')}"
        except ValueError as unknown:
            if plain_name(file).endswith(_INDEXES):
                return [], f"{file.name}: {unknown}"
            raise click.UsageError(str(unknown)) from unknown
    rows, damage = [], None
    for row, problem in batch_rows(file, wanted):
        if "first_offset" in row or "offset" in row:
            rows.append(row)
        if problem is not None and damage is None:
            damage = (
                f"{file.name}: no whole batch with the right checksum at byte {row['position']} ({problem})"
            )
    return rows, damage


def _show_rows(rows: list[Row]) -> None:
    shown = [
        {name: value for name, value in row.items() if name in TABLE_COLUMNS or "checksum_ok" not in row}
        for row in rows
    ]
    if not any("batch" in row for row in rows):
        show(shown, "table", nothing="nothing in it")
        return
    for row, whole in zip(shown, rows, strict=True):
        click.echo("  ".join(f"{name}={value}" for name, value in row.items() if value is not None))
        if whole.get("batch"):
            table([{name: _cell(value) for name, value in each.items()} for each in whole["batch"]])


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value


def _verify_indexes(files: tuple[Path, ...], output: str, *, only_sanity: bool) -> None:
    findings = Findings()
    for file in files:
        kind = Path(plain_name(file)).suffix
        if kind not in _INDEXES:
            raise click.UsageError(f"{file.name} is not an index: {', '.join(_INDEXES)}")
        if only_sanity:
            _check_sanity(file, kind, findings)
        else:
            _check_against_log(file, kind, findings)
    found = findings.all()
    if output == "json":
        as_json([{"file": str(f.path), "at": f.at, "problem": f.problem, "error": f.is_error} for f in found])
    else:
        for finding in found:
            click.echo(finding)
        wrong = {finding.path for finding in found if finding.is_error}
        for file in files:
            if file not in wrong:
                click.echo(f"{file}: passed")
    if any(finding.is_error for finding in found):
        raise SystemExit(_DAMAGED)


def _check_sanity(file: Path, kind: str, findings: Findings) -> None:
    try:
        if kind == TXN_INDEX_SUFFIX:
            rows_of(file)
        else:
            index = OffsetIndex if kind == INDEX_SUFFIX else TimeIndex
            index(OS_FILES, file, base_offset_of(file), file.stat().st_size).attach()
    except (CorruptIndex, ValueError) as problem:
        findings.add(file, str(problem).removeprefix(f"{file}: "))


def _check_against_log(file: Path, kind: str, findings: Findings) -> None:
    log = file.with_name(segment_name(base_offset_of(file)) + LOG_SUFFIX)
    contents = SegmentContents(OS_FILES, base_offset_of(file))
    try:
        with viewed(OS_FILES, log) as data:
            for batch in read_batches(data):
                if batch.header is not None:
                    contents.add_batch(batch.position, batch.header)
    except FileNotFoundError:
        findings.add(file, f"there is no {log.name} to compare it with")
        return
    if kind == INDEX_SUFFIX:
        contents.check_offset_index(file, findings, is_sealed=False, is_error=True)
    elif kind == TIME_INDEX_SUFFIX:
        contents.check_time_index(file, findings, is_sealed=False, is_error=True)
    else:
        raise click.UsageError(f"{file.name}: `ottla log check` compares transaction indexes with logs")


@log_.command()
@click.argument("folders", type=_FOLDER, nargs=-1, required=True)
@_OUTPUT
def check(folders: tuple[Path, ...], output: str) -> None:
    """Verify all FOLDERS of a broker's log.dirs, or a partition's folder: batches with their checksums and
    offsets, indexes, snapshots, epochs and checkpoints against the logs, and the names of files and folders.

    Prints a line for each finding: file, position, problem. A `note` is harmless or is repaired at a broker's
    start, as an incomplete batch at the end of a log after a crash. Exit code 1: there is another finding.
    """
    for folder in folders:
        if is_open(OS_FILES, folder):
            click.echo(f"{folder}: a broker has it open and may write to it during the check", err=True)
    found = check_log_dirs(OS_FILES, folders)
    if output == "json":
        as_json([{"file": str(f.path), "at": f.at, "problem": f.problem, "error": f.is_error} for f in found])
    else:
        for finding in found:
            click.echo(finding)
    if any(finding.is_error for finding in found):
        raise SystemExit(_DAMAGED)


def _summary(path: Path) -> dict[str, Any]:
    with viewed(OS_FILES, path) as data:
        batches = list(read_batches(data))
        headers = [batch.header for batch in batches if batch.header is not None]
        return {
            "base_offset": int(path.stem),
            "next_offset": headers[-1].next_offset if headers else int(path.stem),
            "batches": len(headers),
            "records": sum(header.record_count for header in headers),
            "bytes": len(data),
            "first_time": time_text(
                min((h.base_timestamp for h in headers if h.base_timestamp >= 0), default=-1)
            ),
            "last_time": time_text(max((h.max_timestamp for h in headers), default=-1)),
            "damaged_at": next((batch.position for batch in batches if batch.problem is not None), None),
        }

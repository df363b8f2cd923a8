"""`ottla log`: the files of a partition, looked at without a broker.

Reads only. A file that a broker is writing to is shown as far as it is whole.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ottla.cli.output import as_json, show, table
from ottla.protocol.records import BatchHeader, decode_batch, iter_batches, verify_crc
from ottla.storage.segment_files import LOG_SUFFIX

_OUTPUT = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
_DAMAGED = 1


@click.group("log", short_help="Look into log segments, without a broker.")
def log_() -> None:
    """The files of a partition's log (a folder such as data/orders-0)."""


@log_.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@_OUTPUT
def describe(folder: Path, output: str) -> None:
    """The segments of a partition's FOLDER: offsets, times, sizes.

    Exit code 1: a segment has bytes that are no whole batch with the right checksum.
    """
    rows = [_summary(path) for path in sorted(folder.glob(f"*{LOG_SUFFIX}"))]
    show(rows, output, nothing="no segments here")
    if any(row["damaged_at"] is not None for row in rows):
        raise SystemExit(_DAMAGED)


@log_.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--records", is_flag=True, help="The records too, not only the batches.")
@_OUTPUT
def dump(file: Path, records: bool, output: str) -> None:
    """The batches of a segment FILE (….log), in order.

    Exit code 1: behind the last whole batch are other bytes, or a checksum is wrong.
    """
    if file.suffix != LOG_SUFFIX:
        raise click.UsageError(f"{file.name} is no segment: its name must end in {LOG_SUFFIX}")
    with _mapped(file) as data:
        rows, damaged_at = [], _damage(data)
        for position, header in iter_batches(data):
            row = _batch(data, position, header)
            if records and row["checksum_ok"]:
                row["batch"] = [_record(record) for record in decode_batch(data, position)]
            rows.append(row)
    if output == "json":
        as_json(rows)
    elif not records:
        show(rows, output, nothing="an empty segment")
    else:
        for row in rows:
            found = row.pop("batch", [])
            click.echo("  ".join(f"{name}={value}" for name, value in row.items() if value is not None))
            if found:
                table(found)
    if damaged_at is not None:
        click.echo(f"{file.name}: no whole batch with the right checksum at byte {damaged_at}", err=True)
        raise SystemExit(_DAMAGED)


@contextmanager
def _mapped(path: Path) -> Iterator[memoryview]:
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            yield memoryview(b"")
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data, memoryview(data) as view:
            yield view


def _damage(data: memoryview) -> int | None:
    """Where the first bytes are that are not a whole batch with the right checksum; None when all is well."""
    end = 0
    for position, header in iter_batches(data):
        if not verify_crc(data, position, header):
            return position
        end = position + header.size
    # Zeros: a file made longer in advance.
    return end if any(data[end : end + 4096]) else None


def _summary(path: Path) -> dict[str, Any]:
    with _mapped(path) as data:
        headers = [header for _, header in iter_batches(data)]
        return {
            "base_offset": int(path.stem),
            "next_offset": headers[-1].next_offset if headers else int(path.stem),
            "batches": len(headers),
            "records": sum(header.record_count for header in headers),
            "bytes": len(data),
            "first_time": _time(
                min((h.base_timestamp for h in headers if h.base_timestamp >= 0), default=-1)
            ),
            "last_time": _time(max((h.max_timestamp for h in headers), default=-1)),
            "damaged_at": _damage(data),
        }


def _batch(data: memoryview, position: int, header: BatchHeader) -> dict[str, Any]:
    producer = None
    if header.has_producer_id:
        producer = f"{header.producer_id}/{header.producer_epoch} from {header.base_sequence}"
    return {
        "position": position,
        "first_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "bytes": header.size,
        "last_time": _time(header.max_timestamp),
        "epoch": header.partition_leader_epoch,
        "codec": header.codec.name.lower(),
        "producer": producer,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "checksum_ok": verify_crc(data, position, header),
    }


def _record(record: Any) -> dict[str, Any]:
    return {
        "offset": record.offset,
        "time": _time(record.timestamp),
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [f"{name}={_text(value)}" for name, value in record.headers],
    }


def _time(timestamp_ms: int) -> str | None:
    if timestamp_ms < 0:
        return None
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)  # some producers count in microseconds


def _text(data: bytes | None) -> str | None:
    return None if data is None else bytes(data).decode(errors="backslashreplace")

"""`ottla produce`: lines of standard input, or of files, become records.

Written with acks of all in-sync replicas and without duplicates (`client.writer`); it ends when all is there.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from ottla.cli.output import done
from ottla.cli.session import Session, talks_to_a_cluster
from ottla.client.writer import NewRecord, Writer
from ottla.protocol.compression import Codec

_READ_BYTES = 256 * 1024


@click.command(short_help="Write lines to a topic.")
@click.argument("topic")
@click.argument("files", nargs=-1, type=click.File("rb"))
@click.option("--key-separator", metavar="TEXT", help="What stands before its first occurrence is the key.")
@click.option("--partition", type=click.IntRange(min=0), help="All to this one. Default: by key.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header of each record.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json: each line is an object with value, and perhaps key, headers, partition, timestamp (ms).",
)
@click.option(
    "--compression",
    type=click.Choice([codec.name.lower() for codec in Codec]),
    default="none",
    show_default=True,
)
@talks_to_a_cluster
def produce(
    session: Session,
    topic: str,
    files: tuple[IO[bytes], ...],
    key_separator: str | None,
    partition: int | None,
    headers: tuple[str, ...],
    form: str,
    compression: str,
) -> None:
    """Write each line of the FILES, or of standard input, to TOPIC as a record.

    Returns when all in-sync replicas have all of them. What comes slowly is written as it comes.
    """
    common = [(name, value.encode()) for name, _, value in (header.partition("=") for header in headers)]
    separator = key_separator.encode() if key_separator else None

    def parse(line: bytes) -> NewRecord:
        now_ms = time.time_ns() // 1_000_000
        if form == "json":
            return _from_json(line, now_ms, partition, common)
        key, found, value = line.partition(separator) if separator else (b"", b"", line)
        if separator and not found:
            raise ValueError(f"no '{key_separator}' in it")
        return NewRecord(value, key if found else None, now_ms, common, partition)

    async def work() -> int:
        brokers = session.brokers()
        try:
            writer = Writer(brokers, topic, codec=Codec[compression.upper()])
            await writer.open()
            if partition is not None and partition >= writer.partitions:
                raise click.ClickException(f"{topic} has partitions 0 to {writer.partitions - 1}")
            count = 0
            columns = (SpinnerColumn(), TextColumn("{task.completed:,} records written"))
            console = Console(stderr=True)
            with Progress(
                *columns, console=console, transient=True, disable=not console.is_terminal
            ) as progress:
                task = progress.add_task("", total=None)
                for batch in _batches(files or (sys.stdin.buffer,), parse):
                    await writer.write(batch)
                    count += len(batch)
                    progress.update(task, completed=count)
            return count
        finally:
            await brokers.close()

    count = session.run(work())
    done(f"{count:,} records written to {topic}", session.output, topic=topic, records=count)


def _from_json(
    line: bytes, now_ms: int, partition: int | None, headers: list[tuple[str, bytes]]
) -> NewRecord:
    try:
        entry = json.loads(line)
        own = [(str(name), str(value).encode()) for name, value in entry.get("headers", {}).items()]
        return NewRecord(
            _bytes(entry["value"]),
            _bytes(entry.get("key")),
            int(entry.get("timestamp", now_ms)),
            [*headers, *own],
            entry.get("partition", partition),
        )
    except KeyError:
        raise ValueError("an object without a value") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"not such an object: {error}") from None


def _bytes(value: Any) -> bytes | None:
    """Text as it is; null as null; any other JSON as its text."""
    if value is None:
        return None
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode()


def _batches(files: Iterable[IO[bytes]], parse: Callable[[bytes], NewRecord]) -> Iterator[list[NewRecord]]:
    """What each read brings, as records: a pipe that gives little at a time is not waited for.

    At a line that is no record, what stands before it comes first, and then click.ClickException.
    """
    for file in files:
        name, number = getattr(file, "name", "<stdin>"), 0
        for lines in _lines(file):
            records = []
            for line in lines:
                number += 1
                try:
                    records.append(parse(line))
                except ValueError as error:
                    yield records
                    raise click.ClickException(
                        f"{name}, line {number}: {error}; the lines before it are written"
                    ) from None
            yield records


def _lines(file: Any) -> Iterator[list[bytes]]:
    """The whole lines of each read, without their ends."""
    rest = b""
    while chunk := file.read1(_READ_BYTES):
        *whole, rest = (rest + chunk).split(b"\n")
        if whole:
            yield [line.removesuffix(b"\r") for line in whole]
    if rest:
        yield [rest]

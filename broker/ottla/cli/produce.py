"""`ottla produce`: lines of standard input, or of files, become records.

Written by the client's producer, with acks of all in-sync replicas and without duplicates; it ends when all
is there. This thread reads, and the producer's own writes meanwhile: a pipe that says nothing holds nothing
up.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any, Final, Self

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from ottla.cli.output import done
from ottla.cli.session import Refused, Session, talks_to_a_cluster
from ottla.client.blocking import Producer
from ottla.client.core.types import ProducerRecord
from ottla.protocol.compression import Codec

_READ_BYTES: Final = 256 * 1024
_BATCH_BYTES: Final = 256 * 1024
_LINGER_MS: Final = 5


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
    described = session.admin(lambda admin: admin.describe_topics([topic])).get(topic)
    if described is None:
        raise Refused(f"there is no topic '{topic}'")
    last = len(described.partitions) - 1
    if partition is not None and partition > last:
        raise Refused(f"{topic} has partitions 0 to {last}, not {partition}")

    def parse(line: bytes) -> ProducerRecord:
        now_ms = time.time_ns() // 1_000_000
        if form == "json":
            record = _from_json(line, topic, now_ms, partition, common)
        else:
            key, found, value = line.partition(separator) if separator else (b"", b"", line)
            if separator and not found:
                raise ValueError(f"no '{key_separator}' in it")
            record = ProducerRecord(topic, value, key if found else None, partition, now_ms, common)
        if record.partition is not None and not 0 <= record.partition <= last:
            raise ValueError(f"{topic} has partitions 0 to {last}, not {record.partition}")
        return record

    timeout_ms = int(session.timeout_s * 1000)
    settings = {
        **session.client(),
        "compression.type": compression,
        "batch.size": _BATCH_BYTES,
        "linger.ms": _LINGER_MS,
        "delivery.timeout.ms": timeout_ms + _LINGER_MS,
        "max.block.ms": timeout_ms,
    }
    with session.telling(), _Writer(settings) as writer:
        for records in _batches(files or (sys.stdin.buffer,), parse):
            writer.write(records)
    done(f"{writer.count:,} records written to {topic}", session.output, topic=topic, records=writer.count)


class _Writer:
    """Writes records, and shows how many are there. At its end all of them are, or what hindered it is
    raised."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self.count = 0
        self._failed: list[BaseException] = []
        self._producer = Producer(settings)
        console = Console(stderr=True)
        columns = (SpinnerColumn(), TextColumn("{task.completed:,} records written"))
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> Self:
        self._producer.start()
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._producer.flush()
            self._check()
        finally:
            self._progress.stop()
            self._producer.stop()

    def write(self, records: Iterable[ProducerRecord]) -> None:
        for topic, value, key, partition, timestamp_ms, headers in records:
            self._producer.send_nowait(
                topic,
                value,
                key,
                partition=partition,
                timestamp_ms=timestamp_ms,
                headers=headers,
                on_delivery=self._told,
            )
        self._check()
        self._progress.update(self._task, completed=self.count)

    def _told(self, metadata: object, error: BaseException | None) -> None:
        """In the producer's thread."""
        if error is None:
            self.count += 1
        else:
            self._failed.append(error)

    def _check(self) -> None:
        if self._failed:
            raise self._failed[0]


def _from_json(
    line: bytes, topic: str, now_ms: int, partition: int | None, headers: list[tuple[str, bytes]]
) -> ProducerRecord:
    try:
        entry = json.loads(line)
        own = [(str(name), str(value).encode()) for name, value in entry.get("headers", {}).items()]
        to = entry.get("partition", partition)
        return ProducerRecord(
            topic,
            _bytes(entry["value"]),
            _bytes(entry.get("key")),
            None if to is None else int(to),
            int(entry.get("timestamp", now_ms)),
            [*headers, *own],
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


def _batches(
    files: Iterable[IO[bytes]], parse: Callable[[bytes], ProducerRecord]
) -> Iterator[list[ProducerRecord]]:
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

"""`ottla produce`: writes lines, JSON, CSV or whole files as records.

Uses the client's idempotent producer with acks=all, and ends when all records are acknowledged. The main
thread reads and the producer's thread sends, so that slow input does not delay records. At invalid input, the
records before it are written, and the error has the line.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, Final, Self

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from ottla.cli.output import done
from ottla.cli.record_values import (
    WRITE_FORMATS,
    registry_client,
    registry_options,
    schema_writer,
    writer,
)
from ottla.cli.session import (
    Refused,
    Session,
    cluster_command,
    complete_topics,
    key_values,
)
from ottla.client.blocking import Producer
from ottla.client.core.types import ProducerRecord
from ottla.client.errors import SerializationError
from ottla.protocol.compression import Codec

_READ_BYTES: Final = 256 * 1024
_BATCH_BYTES: Final = 256 * 1024
_LINGER_MS: Final = 5
_COLUMNS: Final = ("key", "value", "partition", "timestamp", "headers")
_IGNORED: Final = ("topic", "offset")
"""Columns and fields of `ottla consume` that are ignored."""

Encode = Callable[[Any], bytes | None]
Header = tuple[str, bytes | None]


@click.command(short_help="Write lines, JSON, CSV or files to a topic.")
@click.argument("topic", shell_complete=complete_topics)
@click.argument("files", nargs=-1, type=click.File("rb"))
@click.option("--key-separator", metavar="TEXT", help="The separator of key and value in a line.")
@click.option(
    "--partition", type=click.IntRange(min=0), help="The partition of all records. Default: by key."
)
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header of each record.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "csv", "file"]),
    default="text",
    show_default=True,
    help="json: each line is an object with value, optionally key, headers, partition, timestamp (ms), "
    "as from `ottla consume -o json`. csv: the first line has these columns. file: each file is a value.",
)
@click.option("--null", metavar="TEXT", help="The text of a null key or value in text or CSV.")
@click.option("--key-format", type=click.Choice(WRITE_FORMATS), default="text", show_default=True)
@click.option("--value-format", type=click.Choice(WRITE_FORMATS), default="text", show_default=True)
@click.option("--key-schema", metavar="FILE|latest|id:N", help="Encode JSON keys with this schema.")
@click.option(
    "--value-schema",
    metavar="FILE|latest|id:N",
    help="Encode JSON values with this schema: a file to register (.avsc, .json, .proto), or a known one.",
)
@click.option(
    "--value-message", metavar="NAME", help="The message of a Protobuf schema. Default: the first one."
)
@registry_options
@click.option(
    "--compression",
    type=click.Choice([codec.name.lower() for codec in Codec]),
    default="none",
    show_default=True,
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="The maximum of records per second.",
)
@click.option("--skip-errors", is_flag=True, help="Skip invalid lines; exit 1 at the end.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of the producer.")
@cluster_command
def produce(
    session: Session,
    topic: str,
    files: tuple[IO[bytes], ...],
    key_separator: str | None,
    partition: int | None,
    headers: tuple[str, ...],
    form: str,
    null: str | None,
    key_format: str,
    value_format: str,
    key_schema: str | None,
    value_schema: str | None,
    value_message: str | None,
    registry: str | None,
    registry_options: tuple[str, ...],
    compression: str,
    rate: float | None,
    skip_errors: bool,
    settings: tuple[str, ...],
) -> None:
    """Write the FILES, or standard input, to TOPIC: each line is a record.

    Ends when all in-sync replicas have all records. Slow input is sent without waiting for more.
    """
    if key_separator is not None and form != "text":
        raise click.UsageError("--key-separator requires --format text")
    client = registry_client(registry, key_values(registry_options, "--registry-option"))

    def encoder(schema: str | None, form: str, *, is_key: bool) -> Encode:
        if schema is None:
            return _encoder(form)
        message = None if is_key else value_message
        return schema_writer(schema, topic, client, is_key=is_key, message=message)

    common = [(name, value.encode()) for name, value in key_values(headers, "--header").items()]
    builder = _RecordBuilder(
        topic,
        partition,
        common,
        None if null is None else null.encode(),
        key_separator.encode() if key_separator else None,
        encoder(key_schema, key_format, is_key=True),
        encoder(value_schema, value_format, is_key=False),
        json_keys=key_schema is not None,
        json_values=value_schema is not None,
    )
    described = session.admin(lambda admin: admin.describe_topics([topic])).get(topic)
    if described is None:
        raise Refused(f"there is no topic '{topic}'")
    builder.last = len(described.partitions) - 1
    if partition is not None and partition > builder.last:
        raise Refused(f"{topic} has partitions 0 to {builder.last}, not {partition}")
    timeout_ms = int(session.timeout_s * 1000)
    given = {
        **session.client(),
        "compression.type": compression,
        "batch.size": _BATCH_BYTES,
        "linger.ms": _LINGER_MS,
        "delivery.timeout.ms": timeout_ms + _LINGER_MS,
        "max.block.ms": timeout_ms,
        **key_values(settings, "--set"),
    }
    problems = 0
    with session.translated_errors(), _Writer(given, rate) as written:
        for found in _records(files or (sys.stdin.buffer,), form, builder):
            if not isinstance(found, _InputError):
                written.write(found)
            elif skip_errors:
                problems += 1
                click.echo(str(found), err=True)
            else:
                raise click.ClickException(f"{found}; the lines before it are written")
    done(f"{written.count:,} records written to {topic}", session.output, topic=topic, records=written.count)
    if problems:
        raise click.ClickException(f"{problems} lines were no records")


@dataclass
class _RecordBuilder:
    """Builds records from input. Methods raise ValueError or SerializationError for invalid input."""

    topic: str
    partition: int | None
    headers: Sequence[Header]
    null: bytes | None
    separator: bytes | None
    encode_key: Encode
    encode_value: Encode
    json_keys: bool
    json_values: bool
    last: int = 0
    """The highest partition number."""

    def of_line(self, line: bytes) -> ProducerRecord:
        if self.separator is None:
            return self._record(None, self._text(line, self.encode_value, self.json_values))
        key, separator, value = line.partition(self.separator)
        if not separator:
            raise ValueError(f"no '{self.separator.decode()}' in it")
        return self._record(
            self._text(key, self.encode_key, self.json_keys),
            self._text(value, self.encode_value, self.json_values),
        )

    def of_file(self, data: bytes) -> ProducerRecord:
        return self._record(None, self._text(data, self.encode_value, self.json_values))

    def of_json(self, line: bytes) -> ProducerRecord:
        entry = json.loads(line)
        if not isinstance(entry, dict) or "value" not in entry:
            raise ValueError("not an object with a value")
        if unknown := sorted(set(entry) - {*_COLUMNS, *_IGNORED}):
            raise ValueError(f"field {unknown[0]} is not known; allowed: {', '.join(_COLUMNS)}")
        return self._record(
            self._json(entry.get("key"), self.encode_key, self.json_keys),
            self._json(entry["value"], self.encode_value, self.json_values),
            entry.get("partition"),
            entry.get("timestamp"),
            entry.get("headers"),
        )

    def of_row(self, row: Mapping[str, str]) -> ProducerRecord:
        key = row.get("key") or None  # `ottla consume` writes a null key as an empty field
        headers = row.get("headers")
        return self._record(
            None if key is None else self._text(key.encode(), self.encode_key, self.json_keys),
            self._text(row["value"].encode(), self.encode_value, self.json_values),
            row.get("partition") or None,
            row.get("timestamp") or None,
            json.loads(headers) if headers else None,
        )

    def _text(self, data: bytes, encode: Encode, as_json: bool) -> bytes | None:
        if data == self.null:
            return None
        return encode(json.loads(data) if as_json else data)

    @staticmethod
    def _json(value: Any, encode: Encode, as_json: bool) -> bytes | None:
        """Strings unchanged, null as null, any other JSON value as its JSON text."""
        if as_json or value is None:
            return None if value is None else encode(value)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return encode(text.encode())

    def _record(
        self,
        key: bytes | None,
        value: bytes | None,
        partition: Any = None,
        timestamp: Any = None,
        headers: Any = None,
    ) -> ProducerRecord:
        to = self.partition if partition is None else _number("partition", partition)
        if to is not None and to > self.last:
            raise ValueError(f"{self.topic} has partitions 0 to {self.last}, not {to}")
        at_ms = int(time.time() * 1000) if timestamp is None else _number("timestamp", timestamp)
        return ProducerRecord(self.topic, value, key, to, at_ms, [*self.headers, *_headers(headers)])


def _number(name: str, value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if number < 0:
        raise ValueError(f"{name}: {value!r} is not a whole number from 0")
    return number


def _headers(given: Any) -> list[Header]:
    """Headers from an object, or from a list of pairs, which may repeat a name."""
    pairs = [] if given is None else list(given.items()) if isinstance(given, dict) else given
    try:
        return [
            (str(name), None if value is None else value.encode() if isinstance(value, str) else
             json.dumps(value, ensure_ascii=False).encode())
            for name, value in pairs
        ]  # fmt: skip
    except (TypeError, ValueError):
        raise ValueError(f"headers: {given!r} is neither an object nor a list of pairs") from None


def _encoder(form: str) -> Encode:
    if form == "text":
        return lambda data: data
    write = writer(form)
    return lambda data: write(data.decode())


class _Writer:
    """Sends records and shows the number of acknowledged ones. The end of the context waits for all of
    them, and raises the first error."""

    def __init__(self, settings: Mapping[str, object], rate: float | None) -> None:
        """`rate`: the maximum of records per second."""
        self.count = 0
        self._rate = rate
        self._sent = 0
        self._began = time.perf_counter()
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
            self._wait_for_rate()
            self._producer.send_nowait(
                topic,
                value,
                key,
                partition=partition,
                timestamp_ms=timestamp_ms,
                headers=headers,
                on_delivery=self._on_delivery,
            )
        self._check()
        self._progress.update(self._task, completed=self.count)

    def _wait_for_rate(self) -> None:
        if self._rate is not None:
            early = self._began + self._sent / self._rate - time.perf_counter()
            if early > 0:
                time.sleep(early)
        self._sent += 1

    def _on_delivery(self, metadata: object, error: BaseException | None) -> None:
        """The delivery callback; called in the producer's thread."""
        if error is None:
            self.count += 1
        else:
            self._failed.append(error)

    def _check(self) -> None:
        if self._failed:
            raise self._failed[0]


class _InputError(str):
    """An error in the input, with its position."""


def _records(
    files: Iterable[IO[bytes]], form: str, builder: _RecordBuilder
) -> Iterator[list[ProducerRecord] | _InputError]:
    """The records of each read: a slow pipe yields small lists instead of delaying records."""
    for file in files:
        name = getattr(file, "name", "<stdin>")
        if form == "file":
            yield _try_build(partial(builder.of_file, file.read()), name)
        elif form == "csv":
            yield from _rows(file, name, builder)
        else:
            yield from _of_lines(file, name, builder.of_json if form == "json" else builder.of_line)


def _of_lines(
    file: IO[bytes], name: str, parse: Callable[[bytes], ProducerRecord]
) -> Iterator[list[ProducerRecord] | _InputError]:
    number = 0
    for lines in _lines(file):
        records: list[ProducerRecord] = []
        for line in lines:
            number += 1
            try:
                records.append(parse(line))
            except (ValueError, RecursionError, SerializationError) as error:
                yield records
                yield _InputError(f"{name}, line {number}: {error}")
                records = []
        yield records


def _rows(
    file: IO[bytes], name: str, builder: _RecordBuilder
) -> Iterator[list[ProducerRecord] | _InputError]:
    """Records from CSV (RFC 4180) with column names in the first row."""
    rows = csv.reader((line.decode() + "\n" for lines in _lines(file) for line in lines), strict=True)
    columns: list[str] | None = None
    while True:
        try:
            row = next(rows, None)
        except (csv.Error, UnicodeDecodeError) as error:
            raise click.ClickException(
                f"{name}, line {rows.line_num + 1}: {error}; the lines before it are written"
            ) from None
        if row is None:
            return
        if columns is None:
            columns = row
            if "value" not in row or set(row) - {*_COLUMNS, *_IGNORED} or len(set(row)) < len(row):
                raise click.ClickException(
                    f"{name}, line 1: columns {','.join(row)}; must be value, and of {', '.join(_COLUMNS)}"
                )
        elif row:
            yield _try_build(partial(_of_row, builder, columns, row), f"{name}, line {rows.line_num}")


def _of_row(builder: _RecordBuilder, columns: list[str], row: list[str]) -> ProducerRecord:
    if len(row) != len(columns):
        raise ValueError(f"{len(row)} fields for {len(columns)} columns")
    return builder.of_row(dict(zip(columns, row, strict=True)))


def _try_build(make: Callable[[], ProducerRecord], where: str) -> list[ProducerRecord] | _InputError:
    try:
        return [make()]
    except (ValueError, RecursionError, SerializationError) as error:
        return _InputError(f"{where}: {error}")


def _lines(file: Any) -> Iterator[list[bytes]]:
    """The complete lines of each read, without line ends."""
    rest = b""
    while chunk := file.read1(_READ_BYTES):
        *whole, rest = (rest + chunk).split(b"\n")
        if whole:
            yield [line.removesuffix(b"\r") for line in whole]
    if rest:
        yield [rest]

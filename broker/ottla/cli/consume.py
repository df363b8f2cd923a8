"""`ottla consume`: records of a topic, one line each, to standard output."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

import click

from ottla.cli.session import Refused, Session, talks_to_a_cluster
from ottla.client.admin import AdminClient
from ottla.client.consumer import Consumer
from ottla.client.core.types import ConsumerRecord, TopicPartition

_POLL_S: Final = 0.5
_RECORDS_MAX: Final = 5_000
_WAIT_MS: Final = 500


@click.command(short_help="Read a topic.")
@click.argument("topic")
@click.option(
    "--from",
    "start",
    default="latest",
    show_default=True,
    metavar="earliest|latest|OFFSET|-N",
    help="Where to begin: -N is the last N of each partition.",
)
@click.option("--partition", "only", type=click.IntRange(min=0), multiple=True, help="Only these.")
@click.option("-n", "--max", "count_max", type=click.IntRange(min=1), help="End after that many records.")
@click.option("--until-end", is_flag=True, help="End where the topic ends now.")
@click.option("--key-separator", metavar="TEXT", help="Print the key, and this, before the value.")
@talks_to_a_cluster
def consume(
    session: Session,
    topic: str,
    start: str,
    only: tuple[int, ...],
    count_max: int | None,
    until_end: bool,
    key_separator: str | None,
) -> None:
    """Print the records of TOPIC, from the end on as they come, until Ctrl-C.

    With `-o json` a record is an object on a line of its own; bytes that are no UTF-8 show as \\xNN.
    """
    _check_start(start)
    positions, ends = session.admin(lambda admin: _positions(admin, topic, start, only))
    if until_end:
        positions = {p: offset for p, offset in positions.items() if offset < ends.get(p, 0)}

    async def work() -> None:
        left = {TopicPartition(topic, partition): offset for partition, offset in positions.items()}
        printed = 0
        wait_ms = min(_WAIT_MS, int(session.timeout_s * 500))
        async with Consumer(
            session.client(), auto_offset_reset="none", fetch_max_wait_ms=wait_ms
        ) as consumer:
            consumer.assign(left)
            for tp, offset in left.items():
                consumer.seek(tp, offset)
            while left:
                for tp, records in (await consumer.poll(_POLL_S, _RECORDS_MAX)).items():
                    for record in records:
                        if until_end and record.offset >= ends[tp.partition]:
                            break
                        _print(record, session.output, key_separator)
                        printed += 1
                        if printed == count_max:
                            return
                sys.stdout.flush()
                if until_end:
                    for tp in list(left):
                        if await consumer.position(tp) >= ends[tp.partition]:
                            del left[tp]
                            consumer.pause(tp)

    try:
        session.run(work())
    except (KeyboardInterrupt, BrokenPipeError):
        # Ctrl-C is how a reader without an end ends; `| head` is the other way.
        sys.stderr.close()


def _check_start(start: str) -> None:
    if start not in ("earliest", "latest") and not start.removeprefix("-").isdigit():
        raise click.UsageError(f"--from {start}: must be earliest, latest, an offset or -N")


async def _positions(
    admin: AdminClient, topic: str, start: str, only: tuple[int, ...]
) -> tuple[dict[int, int], dict[int, int]]:
    """Where to begin, and where the partitions end now."""
    described = (await admin.describe_topics([topic])).get(topic)
    if described is None:
        raise Refused(f"there is no topic '{topic}'")
    partitions = [p.partition for p in described.partitions if not only or p.partition in only]
    if missing := sorted(set(only) - set(partitions)):
        raise Refused(f"{topic} has no partition {missing[0]}")
    asked = [TopicPartition(topic, p) for p in partitions]
    ends = {tp.partition: offset for tp, offset in (await admin.end_offsets(asked)).items()}
    starts = {tp.partition: offset for tp, offset in (await admin.start_offsets(asked)).items()}
    if len(ends) < len(partitions) or len(starts) < len(partitions):
        raise Refused(f"some partitions of {topic} have no leader: see `ottla topics describe {topic}`")
    if start == "earliest":
        return starts, ends
    if start == "latest":
        return dict(ends), ends
    wanted = int(start)
    if start.startswith("-"):
        return {p: max(starts[p], end + wanted) for p, end in ends.items()}, ends
    return dict.fromkeys(partitions, wanted), ends


def _print(record: ConsumerRecord, output: str, key_separator: str | None) -> None:
    if output == "json":
        entry: dict[str, Any] = {
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "key": _text(record.key),
            "value": _text(record.value),
            "headers": [[name, _text(value)] for name, value in record.headers],
        }
        sys.stdout.write(json.dumps(entry, ensure_ascii=False) + "\n")
        return
    if key_separator is not None:
        sys.stdout.buffer.write((record.key or b"") + key_separator.encode())
    sys.stdout.buffer.write((record.value or b"") + b"\n")


def _text(data: bytes | None) -> str | None:
    return None if data is None else bytes(data).decode(errors="backslashreplace")

"""`ottla groups reset`: which offsets are asked for, in the forms of kafka-consumer-groups --reset-offsets.

Called by `groups`. What the options mean is computed here from a `Reset` and the positions of a cluster.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from ottla.cli.session import Refused
from ottla.client.admin import AdminClient
from ottla.client.admin_types import TopicPartition

EARLIEST, LATEST, CURRENT = "earliest", "latest", "current"
_DURATION = re.compile(
    r"P(?=.)(?:(?P<days>\d+)D)?(?:T(?=.)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?"
    r"(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE,
)
"""What java.time.Duration.parse takes, without signs."""

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Reset:
    """One way to choose offsets; one of the fields is set."""

    to: str | int | datetime | None = None
    """EARLIEST, LATEST, CURRENT, an offset, or a time with its zone."""
    shift_by: int | None = None
    from_file: Offsets | None = None


# -- what was asked for ----------------------------------------------------------------------------------


def parse_reset(
    group: str, to: str | None, by_duration: str | None, shift_by: int | None, from_file: Path | None
) -> Reset:
    """Raises UsageError."""
    given = [each for each in (to, by_duration, shift_by, from_file) if each is not None]
    if len(given) != 1:
        raise click.UsageError("exactly one of --to, --by-duration, --shift-by and --from-file is needed")
    if to is not None:
        return Reset(_target(to))
    if by_duration is not None:
        return Reset(datetime.now(UTC) - _duration(by_duration))
    if from_file is not None:
        return Reset(from_file=_read(group, from_file))
    return Reset(shift_by=shift_by)


def _target(text: str) -> str | int | datetime:
    if text in (EARLIEST, LATEST, CURRENT):
        return text
    if text.isdigit():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"--to {text}: must be earliest, latest, current, an offset or an ISO 8601 time"
        ) from None
    # Kafka's tool takes a time without a zone for UTC.
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise click.UsageError(f"--by-duration {text}: must be an ISO 8601 duration, as P1DT2H30M or PT45S")
    return timedelta(**{unit: float(count) for unit, count in found.groupdict(default="0").items()})


def _read(group: str, path: Path) -> dict[TopicPartition, int]:
    """Lines of topic,partition,offset; or group,topic,partition,offset, of which those of other groups are
    skipped."""
    found: dict[TopicPartition, int] = {}
    with path.open(newline="") as lines:
        for number, row in enumerate(csv.reader(lines), 1):
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            if len(cells) == 4 and cells[0] != group:
                continue
            if len(cells) not in (3, 4) or not (cells[-2].isdigit() and cells[-1].isdigit()):
                raise click.UsageError(
                    f"{path}, line {number}: must be TOPIC,PARTITION,OFFSET or GROUP,TOPIC,PARTITION,OFFSET"
                )
            found[TopicPartition(cells[-3], int(cells[-2]))] = int(cells[-1])
    if not found:
        raise click.UsageError(f"{path} has no offsets for group '{group}'")
    return found


def parse_topic(text: str) -> tuple[str, frozenset[int]]:
    """`TOPIC` or `TOPIC:0,2`; no partitions stand for all of them."""
    name, colon, numbers = text.partition(":")
    parts = numbers.split(",") if colon else []
    if not name or not all(part.isdigit() for part in parts):
        raise click.UsageError(f"{text}: must be TOPIC or TOPIC:PARTITION,PARTITION")
    return name, frozenset(map(int, parts))


async def partitions_of(
    admin: AdminClient, topics: Iterable[tuple[str, frozenset[int]]]
) -> list[TopicPartition]:
    """Raises Refused for a topic or a partition that does not exist."""
    wanted = list(topics)
    described = await admin.describe_topics([name for name, _ in wanted])
    found: list[TopicPartition] = []
    for name, only in wanted:
        if name not in described:
            raise Refused(f"there is no topic '{name}'")
        known = [p.partition for p in described[name].partitions]
        if missing := only.difference(known):
            raise Refused(f"topic '{name}' has no partition {min(missing)}")
        found += [TopicPartition(name, number) for number in known if not only or number in only]
    return list(dict.fromkeys(found))


# -- what comes of it ------------------------------------------------------------------------------------


async def new_offsets(
    admin: AdminClient, reset: Reset, partitions: Iterable[TopicPartition], committed: Offsets
) -> dict[TopicPartition, int]:
    """An offset for each of the partitions (for those of the file, if there is one). One that does not exist,
    any more or yet, becomes the nearest that does. Raises Refused."""
    wanted = list(reset.from_file if reset.from_file is not None else partitions)
    starts, ends = await admin.start_offsets(wanted), await admin.end_offsets(wanted)
    at_time: Offsets = {}
    if isinstance(reset.to, datetime):
        at_time = await admin.offsets_for_time(wanted, int(reset.to.timestamp() * 1000))
    for tp in wanted:
        if tp not in starts or tp not in ends:
            raise Refused(f"partition {tp.partition} of '{tp.topic}' does not exist or has no leader")
    return {tp: chosen(reset, tp, starts[tp], ends[tp], committed.get(tp), at_time) for tp in wanted}


def chosen(
    reset: Reset, tp: TopicPartition, start: int, end: int, committed: int | None, at_time: Offsets
) -> int:
    if reset.from_file is not None:
        offset = reset.from_file[tp]
    elif reset.shift_by is not None:
        if committed is None:
            raise Refused(f"partition {tp.partition} of '{tp.topic}' has no committed offset to shift")
        offset = committed + reset.shift_by
    elif isinstance(reset.to, datetime):
        offset = at_time.get(tp, end)  # Nothing as late as that: the end.
    elif isinstance(reset.to, int):
        offset = reset.to
    elif reset.to == CURRENT:
        offset = end if committed is None else committed
    else:
        offset = start if reset.to == EARLIEST else end
    return min(max(offset, start), end)


def write_csv(offsets: Offsets) -> None:
    """As --from-file reads it, here and in Kafka's tool."""
    csv.writer(sys.stdout, lineterminator="\n").writerows(
        (*tp, offset) for tp, offset in sorted(offsets.items())
    )

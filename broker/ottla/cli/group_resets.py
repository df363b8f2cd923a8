"""The offsets of `ottla groups reset`, by the options of kafka-consumer-groups --reset-offsets.

Called by `groups`. Parses the options into a `Reset`, and computes new offsets from it and the partitions'
offsets.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
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
"""The format of java.time.Duration.parse, without signs."""

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Reset:
    """A rule for new offsets; exactly one field is set."""

    to: str | int | datetime | None = None
    """EARLIEST, LATEST, CURRENT, an offset, or a time with its zone."""
    shift_by: int | None = None
    from_file: Offsets | None = None


# -- options ---------------------------------------------------------------------------------------------


def parse_reset(
    group: str | None, to: str | None, by_duration: str | None, shift_by: int | None, from_file: Path | None
) -> Callable[[str], Reset]:
    """A function from a group to its Reset. `group`: the only group; None: several. Raises UsageError; the
    function raises Refused for a group that is not in the file."""
    given = [each for each in (to, by_duration, shift_by, from_file) if each is not None]
    if len(given) != 1:
        raise click.UsageError("exactly one of --to, --by-duration, --shift-by and --from-file is needed")
    if from_file is not None:
        return _reset_from(from_file, group)
    if to is not None:
        reset = Reset(_target(to))
    elif by_duration is not None:
        reset = Reset(datetime.now(UTC) - _duration(by_duration))
    else:
        reset = Reset(shift_by=shift_by)
    return lambda _: reset


def _reset_from(path: Path, group: str | None) -> Callable[[str], Reset]:
    by_group = _read(group, path)

    def of_group(name: str) -> Reset:
        if name not in by_group:
            raise Refused(f"{path} has no offsets for group '{name}'")
        return Reset(from_file=by_group[name])

    if group is not None and group not in by_group:
        raise click.UsageError(f"{path} has no offsets for group '{group}'")
    return of_group


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
    # A time without a zone is UTC, as in Kafka's tool.
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise click.UsageError(f"--by-duration {text}: must be an ISO 8601 duration, as P1DT2H30M or PT45S")
    return timedelta(**{unit: float(count) for unit, count in found.groupdict(default="0").items()})


def _read(group: str | None, path: Path) -> dict[str, dict[TopicPartition, int]]:
    """Lines of topic,partition,offset, for the only group; or group,topic,partition,offset, of which those of
    other groups than the only one are skipped. Raises UsageError."""
    form = "GROUP,TOPIC,PARTITION,OFFSET" if group is None else "[GROUP,]TOPIC,PARTITION,OFFSET"
    lengths = (4,) if group is None else (3, 4)
    found: defaultdict[str, dict[TopicPartition, int]] = defaultdict(dict)
    with path.open(newline="") as lines:
        for number, row in enumerate(csv.reader(lines), 1):
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            if len(cells) == 4 and group not in (None, cells[0]):
                continue
            if len(cells) not in lengths or not (cells[-2].isdigit() and cells[-1].isdigit()):
                raise click.UsageError(f"{path}, line {number}: must be {form}")
            name = group if group is not None else cells[0]
            found[name][TopicPartition(cells[-3], int(cells[-2]))] = int(cells[-1])
    return dict(found)


def parse_topic(text: str) -> tuple[str, frozenset[int]]:
    """`TOPIC` or `TOPIC:0,2` as (topic, partitions); no partitions: all of them."""
    name, colon, numbers = text.partition(":")
    parts = numbers.split(",") if colon else []
    if not name or not all(part.isdigit() for part in parts):
        raise click.UsageError(f"{text}: must be TOPIC or TOPIC:PARTITION,PARTITION")
    return name, frozenset(map(int, parts))


async def partitions_of(
    admin: AdminClient, topics: Iterable[tuple[str, frozenset[int]]]
) -> list[TopicPartition]:
    """The given partitions, or all of a topic. Raises Refused for a topic or a partition that does not
    exist."""
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


# -- new offsets -----------------------------------------------------------------------------------------


async def new_offsets(
    admin: AdminClient, reset: Reset, partitions: Iterable[TopicPartition], committed: Offsets
) -> dict[TopicPartition, int]:
    """The new offset of each partition (of the file's, if there is one). An offset out of range becomes
    the nearest one in range. Raises Refused."""
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
        offset = at_time.get(tp, end)  # no record is as late as that: the end offset
    elif isinstance(reset.to, int):
        offset = reset.to
    elif reset.to == CURRENT:
        offset = end if committed is None else committed
    else:
        offset = start if reset.to == EARLIEST else end
    return min(max(offset, start), end)


def write_csv(offsets: Mapping[str, Offsets], *, with_group: bool) -> None:
    """Print offsets in the format of --from-file, here and in Kafka's tool. `with_group`: with a column
    of groups."""
    csv.writer(sys.stdout, lineterminator="\n").writerows(
        (*((group,) if with_group else ()), *tp, offset)
        for group, of_group in sorted(offsets.items())
        for tp, offset in sorted(of_group.items())
    )

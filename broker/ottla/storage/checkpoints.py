"""Kafka's checkpoint files of offsets per partition, format version 0.

    0
    <number of entries>
    <topic> <partition> <offset>

Used by the log manager for recovery-point-offset-checkpoint, log-start-offset-checkpoint and
replication-offset-checkpoint. Leader epochs have a file of their own kind (`epochs`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from ottla.protocol.topic_names import is_legal_topic_name
from ottla.storage.files import write_atomically

logger = logging.getLogger(__name__)

RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
LOG_START_FILE = "log-start-offset-checkpoint"
REPLICATION_FILE = "replication-offset-checkpoint"

TopicPartition = tuple[str, int]
Entry = TypeVar("Entry")


class MalformedCheckpoint(Exception):
    """A checkpoint file that is not what it should be; the message names file and line."""


def read_entries(path: str | Path, parse: Callable[[list[str]], Entry]) -> list[Entry]:
    """The entries of a version 0 checkpoint; none where there is no file (or an empty one)."""
    try:
        with open(path, "rb", buffering=0) as file:
            lines = file.read().decode("utf-8").split("\n")
    except FileNotFoundError:
        return []
    except UnicodeDecodeError as problem:
        raise MalformedCheckpoint(f"{path}: {problem}") from problem
    if lines == [""]:
        return []
    try:
        if int(lines[0]) != 0:
            raise MalformedCheckpoint(f"{path}: version {lines[0]!r} is not known; expected 0")
        count = int(lines[1])
        entries = [parse(line.split(" ")) for line in lines[2 : 2 + count]]
        if len(entries) != count:
            raise MalformedCheckpoint(f"{path}: {count} entries announced, {len(entries)} found")
    except (ValueError, IndexError) as problem:
        raise MalformedCheckpoint(f"{path}: {problem}") from problem
    return entries


def write_entries(path: Path, lines: Iterable[str], *, sync: bool = True) -> None:
    entries = list(lines)
    write_atomically(path, "\n".join(["0", str(len(entries)), *entries, ""]), sync=sync)


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """Raises MalformedCheckpoint. Entries of what cannot be a topic are left out."""
    offsets = dict(read_entries(path, _parse_offset))
    for key in [key for key in offsets if not is_legal_topic_name(key[0])]:
        logger.warning("%s names %r, which no topic can be called: ignored", path, key[0])
        del offsets[key]
    return offsets


def write_offsets(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    write_entries(path, (f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()))


def _parse_offset(words: list[str]) -> tuple[TopicPartition, int]:
    topic, partition, offset = words
    return (sys.intern(topic), int(partition)), int(offset)

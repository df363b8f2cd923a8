"""Kafka's checkpoint files of offsets per partition, format version 0.

    0
    <number of entries>
    <topic> <partition> <offset>

Used for recovery-point-offset-checkpoint, log-start-offset-checkpoint, replication-offset-checkpoint and
cleaner-offset-checkpoint. The leader epoch checkpoint has the same form with other entries (`leader_epochs`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from ottla.ports.files import Files, read_file, write_atomically
from ottla.protocol.topics import is_legal_topic_name

logger = logging.getLogger(__name__)

RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
LOG_START_FILE = "log-start-offset-checkpoint"
REPLICATION_FILE = "replication-offset-checkpoint"

TopicPartition = tuple[str, int]
Entry = TypeVar("Entry")


class MalformedCheckpoint(Exception):
    """A checkpoint file is invalid; the message names the file and the problem."""


def read_entries(files: Files, path: str | Path, parse: Callable[[list[str]], Entry]) -> list[Entry]:
    """The entries of a version 0 checkpoint file; none if it is missing or empty."""
    try:
        lines = read_file(files, path).decode("utf-8").split("\n")
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


def write_entries(files: Files, path: Path, lines: Iterable[str], *, sync: bool = True) -> None:
    entries = list(lines)
    write_atomically(files, path, "\n".join(["0", str(len(entries)), *entries, ""]), sync=sync)


def read_offsets(files: Files, path: Path) -> dict[TopicPartition, int]:
    """The offsets in a checkpoint file. Entries with an invalid topic name are ignored. Raises
    MalformedCheckpoint."""
    offsets = dict(read_entries(files, path, _parse_offset))
    for key in [key for key in offsets if not is_legal_topic_name(key[0])]:
        logger.warning("%s: ignoring the invalid topic name %r", path, key[0])
        del offsets[key]
    return offsets


def write_offsets(files: Files, path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    lines = (f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items())
    write_entries(files, path, lines)


def _parse_offset(words: list[str]) -> tuple[TopicPartition, int]:
    topic, partition, offset = words
    return (sys.intern(topic), int(partition)), int(offset)

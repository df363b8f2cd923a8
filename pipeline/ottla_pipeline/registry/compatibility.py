"""Compatibility levels: which earlier versions a schema is held against, and which has to read which.

Called by `decisions`. The rules of a format are `formats`'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ottla_pipeline.registry import formats
from ottla_pipeline.registry.errors import Refused
from ottla_pipeline.registry.formats import Parsed
from ottla_pipeline.registry.records import Entry


class Level(NamedTuple):
    """`reads_old`: who has the new schema can read what was written with the old; `read_by_old`: the
    reverse."""

    reads_old: bool
    read_by_old: bool
    all_versions: bool


LEVELS: Final = {
    "BACKWARD": Level(True, False, False),
    "BACKWARD_TRANSITIVE": Level(True, False, True),
    "FORWARD": Level(False, True, False),
    "FORWARD_TRANSITIVE": Level(False, True, True),
    "FULL": Level(True, True, False),
    "FULL_TRANSITIVE": Level(True, True, True),
    "NONE": Level(False, False, False),
}


def problems(name: str, new: Parsed, earlier: Sequence[Entry], parse: Callable[[Entry], Parsed]) -> list[str]:
    """Why `new` may not follow `earlier` (ascending), as the messages of an answer; empty when it may.

    With the level's TRANSITIVE form it is held against all of them, without against the last.
    """
    level = LEVELS[name]
    if not earlier or not (level.reads_old or level.read_by_old):
        return []
    for entry in reversed(earlier if level.all_versions else earlier[-1:]):
        found = _against(level, new, entry, parse)
        if found:
            old = [f"{{oldSchemaVersion: {entry.version}}}", f"{{oldSchema: '{entry.text}'}}"]
            return [*found, *old, f"{{compatibility: '{name}'}}"]
    return []


def _against(level: Level, new: Parsed, entry: Entry, parse: Callable[[Entry], Parsed]) -> list[str]:
    if entry.type != new.type:
        return [f"{{errorType:'SCHEMA_TYPE', description:'it is {new.type}, the old schema {entry.type}'}}"]
    try:
        old = parse(entry)
    except Refused as error:
        return [f"{{errorType:'OLD_SCHEMA', description:'the old schema cannot be read: {error}'}}"]
    found: dict[str, None] = {}
    pairs = [(new, old, "new", "old")] * level.reads_old + [(old, new, "old", "new")] * level.read_by_old
    for reader, writer, reads, wrote in pairs:
        for each in formats.unreadable(reader, writer):
            detail = f"{each.detail} (reader: the {reads} schema, writer: the {wrote} one)"
            found[f"{{errorType:'{each.kind}', description:'at {each.path}: {detail}'}}"] = None
    return list(found)

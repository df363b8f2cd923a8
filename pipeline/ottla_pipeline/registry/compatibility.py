"""Compatibility levels: which earlier versions a schema is held against, and which has to read which.

Called by `checks`. The rules of a format are `formats`'.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla_pipeline.registry import formats
from ottla_pipeline.registry.formats import InvalidSchema, Parsed


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
POLICIES: Final = ("STRICT", "LENIENT")


def needs(name: str) -> bool:
    """Whether a level asks for anything."""
    level = LEVELS[name]
    return level.reads_old or level.read_by_old


def problems(level: Level, new: Parsed, old: Parsed | InvalidSchema | str, *, lenient: bool) -> list[str]:
    """Why `new` may not follow `old`, as the messages of an answer; empty when it may. `old` is a type where
    it is of another one."""
    if isinstance(old, str):
        return [f"{{errorType:'SCHEMA_TYPE', description:'it is {new.type}, the old schema {old}'}}"]
    if isinstance(old, InvalidSchema):
        return [f"{{errorType:'OLD_SCHEMA', description:'the old schema cannot be read: {old}'}}"]
    found: dict[str, None] = {}
    pairs = [(new, old, "new", "old")] * level.reads_old + [(old, new, "old", "new")] * level.read_by_old
    for reader, writer, reads, wrote in pairs:
        for each in formats.unreadable(reader, writer, lenient=lenient):
            detail = f"{each.detail} (reader: the {reads} schema, writer: the {wrote} one)"
            found[f"{{errorType:'{each.kind}', description:'at {each.path}: {detail}'}}"] = None
    return list(found)

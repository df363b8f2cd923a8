"""Checks of schemas as jobs: parsing, compatibility, other forms of a text. Pure, and possibly slow.

Made by `schemas`, which names what a decision has to know; performed by `worker` in a process of its own,
since the texts are clients': a regular expression, a deep nesting or a great choice of branches may take any
time. Jobs are tuples of texts: hashable, and the same on both sides.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final, NamedTuple

from ottla_pipeline.registry import formats
from ottla_pipeline.registry.formats import InvalidSchema, Parsed

PARSED_MAX: Final = 1000


class Source(NamedTuple):
    """A schema with the texts of what it refers to, by name, from the bottom up."""

    type: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


class Parse(NamedTuple):
    """The result is the canonical text."""

    source: Source
    normalize: bool = False


class Render(NamedTuple):
    """The result is the text in another form."""

    source: Source
    form: str


class Earlier(NamedTuple):
    """A version that a schema follows; `source` is None where something that it refers to is gone."""

    version: int
    text: str
    type: str
    source: Source | None


class Compare(NamedTuple):
    """The result are the messages that say why `new` may not follow `earlier` (ascending)."""

    level: str
    new: Source
    earlier: tuple[Earlier, ...]
    lenient: bool = False


class Invalid(NamedTuple):
    """The result of a job whose schema is none."""

    reason: str


Job = Parse | Render | Compare
Result = str | tuple[str, ...] | Invalid


class Checker:
    """Performs jobs, with a memory of the last schemas."""

    def __init__(self) -> None:
        self._parsed: OrderedDict[tuple[Source, bool], Parsed] = OrderedDict()

    def perform(self, job: Job) -> Result:
        try:
            match job:
                case Parse(source, normalize):
                    return self._parse(source, normalize).text
                case Render(source, form):
                    return formats.render(self._parse(source), form)
                case Compare():
                    return tuple(self._problems(job))
        except InvalidSchema as error:
            return Invalid(str(error))
        except RecursionError:
            return Invalid("nested too deeply")

    def _problems(self, job: Compare) -> list[str]:
        level = LEVELS[job.level]
        new = self._parse(job.new)
        for each in reversed(job.earlier if level.all_versions else job.earlier[-1:]):
            old: Parsed | InvalidSchema | str
            if each.type != new.type:
                old = each.type
            elif each.source is None:
                old = InvalidSchema("what it refers to is not there")
            else:
                try:
                    old = self._parse(each.source)
                except InvalidSchema as error:
                    old = error
            found = incompatibilities(level, new, old, lenient=job.lenient)
            if found:
                where = [f"{{oldSchemaVersion: {each.version}}}", f"{{oldSchema: '{each.text}'}}"]
                return [*found, *where, f"{{compatibility: '{job.level}'}}"]
        return []

    def _parse(self, source: Source, normalize: bool = False) -> Parsed:
        key = (source, normalize)
        found = self._parsed.get(key)
        if found is None:
            references = dict(source.references)
            found = formats.parse(source.type, source.text, references, normalize=normalize)
            self._parsed[key] = found
            if len(self._parsed) > PARSED_MAX:
                self._parsed.popitem(last=False)
        self._parsed.move_to_end(key)
        return found


def weight(job: Job) -> int:
    """About how many bytes a job keeps that nothing else keeps: the texts that clients sent."""
    return len((job.new if isinstance(job, Compare) else job.source).text)


def as_job(kind: str, fields: tuple[Any, ...]) -> Job:
    """A job from its class's name and its fields."""
    classes: dict[str, type[Job]] = {"Parse": Parse, "Render": Render, "Compare": Compare}
    return classes[kind](*fields)


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


def is_checked(name: str) -> bool:
    """Whether a level asks for anything."""
    level = LEVELS[name]
    return level.reads_old or level.read_by_old


def incompatibilities(
    level: Level, new: Parsed, old: Parsed | InvalidSchema | str, *, lenient: bool
) -> list[str]:
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

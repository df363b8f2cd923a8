"""Schema checks as jobs: parsing, compatibility, other forms of a text. Pure, and possibly slow.

`schemas` creates the jobs that a decision needs; `worker` performs them in a process of its own, because
the texts are clients': a regular expression, deep nesting or many branches may take unlimited time. Jobs
are tuples of texts: hashable, and the same on both sides. The compatibility levels are here, too: which
earlier versions a schema is compared with, and which one must read the other.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final, NamedTuple

from ottla_pipeline.registry import formats
from ottla_pipeline.registry.formats import InvalidSchema, Parsed

PARSED_MAX: Final = 1000


class Source(NamedTuple):
    """A schema with the texts of its references, by name, dependencies first."""

    type: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


class Parse(NamedTuple):
    """A job whose result is the canonical text."""

    source: Source
    normalize: bool = False


class Render(NamedTuple):
    """A job whose result is the text in another form."""

    source: Source
    form: str


class Earlier(NamedTuple):
    """An earlier version; `source` is None if one of its references no longer exists."""

    version: int
    text: str
    type: str
    source: Source | None


class Compare(NamedTuple):
    """A job whose result are the incompatibilities of `new` with `earlier` (ascending), as messages."""

    level: str
    new: Source
    earlier: tuple[Earlier, ...]
    lenient: bool = False


class Invalid(NamedTuple):
    """The result of a job whose schema is invalid."""

    reason: str


Job = Parse | Render | Compare
Result = str | tuple[str, ...] | Invalid


class Checker:
    """Performs jobs, with a cache of parsed schemas."""

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
                old = InvalidSchema("one of its references does not exist")
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
    """The approximate size in bytes of a cached job: the texts that clients sent."""
    return len((job.new if isinstance(job, Compare) else job.source).text)


def as_job(kind: str, fields: tuple[Any, ...]) -> Job:
    """Creates a job from its class name and fields."""
    classes: dict[str, type[Job]] = {"Parse": Parse, "Render": Render, "Compare": Compare}
    return classes[kind](*fields)


class Level(NamedTuple):
    """A compatibility level. `reads_old`: a reader with the new schema can read data of the old one;
    `read_by_old`: the reverse."""

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
    """Whether a level requires any compatibility."""
    level = LEVELS[name]
    return level.reads_old or level.read_by_old


def incompatibilities(
    level: Level, new: Parsed, old: Parsed | InvalidSchema | str, *, lenient: bool
) -> list[str]:
    """Why `new` is incompatible with `old`, as messages of the response; empty if it is compatible. `old`
    is a type name if its type differs."""
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

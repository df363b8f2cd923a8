"""Schema checks as jobs: parsing, compatibility, other forms of a text, for all formats. Pure, possibly slow.

`schemas` creates the jobs that a decision needs; `worker` performs them in a process of its own, because
the texts are clients': a regular expression, deep nesting or many branches may take unlimited time. Jobs
are tuples of texts: hashable, and the same on both sides. The compatibility levels are here, too: which
earlier versions a schema is compared with, and which one must read the other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ottla_pipeline.registry.formats import (
    Incompatibility,
    InvalidSchema,
    ParsedSchema,
    avro_schema,
    json_schema,
    proto_schema,
)

PARSED_MAX: Final = 1000
TYPES: Final = (json_schema.TYPE, proto_schema.TYPE, avro_schema.TYPE)
FORMS: Final = {proto_schema.TYPE: (proto_schema.SERIALIZED,)}
"""The forms of a text beside the canonical one, by type."""
_PARSE: Final = {
    avro_schema.TYPE: avro_schema.parse,
    json_schema.TYPE: json_schema.parse,
    proto_schema.TYPE: proto_schema.parse,
}
_UNREADABLE: Final = {
    avro_schema.TYPE: avro_schema.unreadable,
    proto_schema.TYPE: proto_schema.unreadable,
}


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


class EarlierVersion(NamedTuple):
    """An earlier version; `source` is None if one of its references no longer exists."""

    version: int
    text: str
    type: str
    source: Source | None


class Compare(NamedTuple):
    """A job whose result are the incompatibilities of `new` with `earlier` (ascending), as messages."""

    level: str
    new: Source
    earlier: tuple[EarlierVersion, ...]
    lenient: bool = False


class Invalid(NamedTuple):
    """The result of a job whose schema is invalid."""

    reason: str


Job = Parse | Render | Compare
Result = str | tuple[str, ...] | Invalid


class Checker:
    """Performs jobs, with a cache of parsed schemas."""

    def __init__(self) -> None:
        self._parsed: OrderedDict[tuple[Source, bool], ParsedSchema] = OrderedDict()

    def perform(self, job: Job) -> Result:
        try:
            match job:
                case Parse(source, normalize):
                    return self._parse(source, normalize).text
                case Render(source, form):
                    return render_schema(self._parse(source), form)
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
            old: ParsedSchema | InvalidSchema | str
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

    def _parse(self, source: Source, normalize: bool = False) -> ParsedSchema:
        key = (source, normalize)
        found = self._parsed.get(key)
        if found is None:
            references = dict(source.references)
            found = parse_schema(source.type, source.text, references, normalize=normalize)
            self._parsed[key] = found
            if len(self._parsed) > PARSED_MAX:
                self._parsed.popitem(last=False)
        self._parsed.move_to_end(key)
        return found


def text_size(job: Job) -> int:
    """The length of the text that a client sent, an approximate size of the cached job."""
    return len((job.new if isinstance(job, Compare) else job.source).text)


def as_job(kind: str, fields: tuple[Any, ...]) -> Job:
    """Creates a job from its class name and fields."""
    classes: dict[str, type[Job]] = {"Parse": Parse, "Render": Render, "Compare": Compare}
    return classes[kind](*fields)


class CompatibilityLevel(NamedTuple):
    """A compatibility level. `reads_old`: a reader with the new schema can read data of the old one;
    `read_by_old`: the reverse."""

    reads_old: bool
    read_by_old: bool
    all_versions: bool


LEVELS: Final = {
    "BACKWARD": CompatibilityLevel(True, False, False),
    "BACKWARD_TRANSITIVE": CompatibilityLevel(True, False, True),
    "FORWARD": CompatibilityLevel(False, True, False),
    "FORWARD_TRANSITIVE": CompatibilityLevel(False, True, True),
    "FULL": CompatibilityLevel(True, True, False),
    "FULL_TRANSITIVE": CompatibilityLevel(True, True, True),
    "NONE": CompatibilityLevel(False, False, False),
}
POLICIES: Final = ("STRICT", "LENIENT")


def is_checked(name: str) -> bool:
    """Whether a level requires any compatibility."""
    level = LEVELS[name]
    return level.reads_old or level.read_by_old


def incompatibilities(
    level: CompatibilityLevel, new: ParsedSchema, old: ParsedSchema | InvalidSchema | str, *, lenient: bool
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
        for each in unreadable_data(reader, writer, lenient=lenient):
            detail = f"{each.detail} (reader: the {reads} schema, writer: the {wrote} one)"
            found[f"{{errorType:'{each.kind}', description:'at {each.path}: {detail}'}}"] = None
    return list(found)


def parse_schema(
    kind: str, text: str, references: Mapping[str, str], *, normalize: bool = False
) -> ParsedSchema:
    """Parses a schema of a type; `references` are the texts of its references, by name, dependencies first.

    Raises InvalidSchema, also for an unsupported type.
    """
    if kind not in _PARSE:
        raise InvalidSchema(f"schema type {kind} is not served; served: {', '.join(TYPES)}")
    parsed = _PARSE[kind](text, references, normalize=normalize)
    try:
        parsed.text.encode()
    except UnicodeEncodeError as error:
        raise InvalidSchema(f"half of a surrogate pair in a string: {error.object[error.start]!a}") from None
    return parsed


def unreadable_data(
    reader: ParsedSchema, writer: ParsedSchema, *, lenient: bool = False
) -> list[Incompatibility]:
    """Why data written with `writer` cannot be read with `reader`, a schema of the same type."""
    assert reader.type == writer.type, f"{reader.type} against {writer.type}"
    if reader.type == json_schema.TYPE:
        return json_schema.unreadable(reader, writer, lenient=lenient)
    return _UNREADABLE[reader.type](reader, writer)


def render_schema(parsed: ParsedSchema, form: str) -> str:
    """The text of a schema in another of its type's FORMS."""
    return proto_schema.render(parsed, form) if parsed.type == proto_schema.TYPE else parsed.text

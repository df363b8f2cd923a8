"""The records of the schemas topic: Confluent's keys and values as JSON, so that its topics can be used
unchanged.

Called by `store`, which reads and writes them; `state` applies them, `decisions` creates them. Keys are
encoded to the same bytes each time, because compaction compares them; unknown attributes of values are
ignored.

The NOOP key has no value in Confluent's registry, which never reads it. Here its value is the highest id
that was ever assigned, written with each permanent deletion: otherwise compaction would remove it, and an
id would be assigned twice.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass, replace
from typing import Any, Final

from ottla.client.registry import Reference

KIND_SCHEMA: Final = "SCHEMA"
KIND_CONFIG: Final = "CONFIG"
KIND_MODE: Final = "MODE"
KIND_DELETE_SUBJECT: Final = "DELETE_SUBJECT"
KIND_NOOP: Final = "NOOP"
CONTEXT_PREFIX: Final = ":."
_MAGIC: Final = {KIND_SCHEMA: 1}
_VERSION_MAX: Final = 2**31 - 1


class UnreadableRecord(Exception):
    """The record is unknown to this registry; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Key:
    """`subject` is None for global settings; `version` is set for SCHEMA only."""

    kind: str
    subject: str | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class SchemaValue:
    """A SCHEMA value: one version of a subject. `metadata` and `rule_set` are JSON texts, which are
    stored and returned but not executed."""

    subject: str
    version: int
    id: int
    type: str
    text: str
    references: tuple[Reference, ...] = ()
    metadata: str | None = None
    rule_set: str | None = None
    deleted: bool = False

    @property
    def context(self) -> str:
        return context_of(self.subject)

    @property
    def guid(self) -> str:
        """The schema's id that is the same in every registry: Confluent's, an MD5 of its parts."""
        digest = hashlib.md5(self.text.encode(), usedforsecurity=False)
        for reference in self.references:
            digest.update(reference.name.encode() + reference.subject.encode())
            digest.update(reference.version.to_bytes(4, "big", signed=True))
        for text, update in ((self.metadata, _hash_metadata), (self.rule_set, _hash_rule_set)):
            if text is not None:
                digest.update(b"\1")
                try:
                    update(digest, json.loads(text))
                except (AttributeError, TypeError):  # of another shape than Confluent's
                    digest.update(text.encode())
        return str(uuid.UUID(bytes=digest.digest()))

    @property
    def identity(self) -> tuple[Any, ...]:
        """The parts that make two schemas the same: equal schemas share an id."""
        return (self.type, self.text, self.references, self.metadata, self.rule_set)

    def as_deleted(self) -> SchemaValue:
        return replace(self, deleted=True)


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A CONFIG value: `settings` is its JSON text."""

    settings: str

    def value(self, name: str) -> Any:
        return json.loads(self.settings).get(name)


@dataclass(frozen=True, slots=True)
class DeleteSubjectValue:
    """A DELETE_SUBJECT value: versions up to this one are deleted."""

    version: int


@dataclass(frozen=True, slots=True)
class NoopValue:
    """A NOOP value: the highest id. `contexts`: those of other contexts, by their names."""

    id: int
    contexts: tuple[tuple[str, int], ...] = ()


Value = SchemaValue | ConfigValue | str | DeleteSubjectValue | NoopValue | None
"""By the key's kind; a mode is a str; None is a tombstone."""


@dataclass(frozen=True, slots=True)
class Record:
    key: Key
    value: Value


def schema_record(entry: SchemaValue) -> Record:
    return Record(Key(KIND_SCHEMA, entry.subject, entry.version), entry)


def encode_key(key: Key) -> bytes:
    written: dict[str, Any] = {"keytype": key.kind}
    if key.subject is not None:
        written["subject"] = key.subject
    if key.version is not None:
        written["version"] = key.version
    return dump({**written, "magic": _MAGIC.get(key.kind, 0)}).encode()


def encode_value(key: Key, value: Value) -> bytes | None:
    if value is None:
        return None
    written: dict[str, Any] = {} if key.subject is None else {"subject": key.subject}
    match value:
        case SchemaValue():
            written |= {"version": value.version, "id": value.id}
            if value.type != "AVRO":
                written["schemaType"] = value.type
            if value.references:
                written["references"] = [as_json(each) for each in value.references]
            for name, text in (("metadata", value.metadata), ("ruleSet", value.rule_set)):
                if text is not None:
                    written[name] = json.loads(text)
            written |= {"schema": value.text, "deleted": value.deleted}
        case ConfigValue():
            written |= json.loads(value.settings)
        case str():
            written["mode"] = value
        case DeleteSubjectValue():
            written["version"] = value.version
        case NoopValue():
            written["highestId"] = value.id
            if value.contexts:
                written["highestIds"] = dict(value.contexts)
    return dump(written).encode()


def decode_key(data: bytes | None) -> Key:
    """Raises UnreadableRecord."""
    try:
        body = json.loads(data or b"null")
        kind, subject, version = str(body["keytype"]), body.get("subject"), body.get("version")
        if kind == KIND_SCHEMA:
            if body.get("magic") not in (0, 1):
                raise UnreadableRecord(f"a SCHEMA key of magic {body.get('magic')}; known: 0, 1")
            return Key(kind, _subject(subject), _number(version))
        return Key(kind, None if subject is None else _subject(subject))
    except (ValueError, TypeError, LookupError, AttributeError):
        raise UnreadableRecord(f"not a key: {(data or b'')[:200]!r}") from None


def decode_value(key: Key, data: bytes | None) -> Value:
    """Raises UnreadableRecord; None for a kind that is not known."""
    if data is None:
        return None
    try:
        body = json.loads(data)
        if body is None:
            return None
        if key.kind == KIND_SCHEMA:
            return _entry(key, body)
        if key.kind == KIND_CONFIG:
            settings = {name: body[name] for name in body if name != "subject" and body[name] is not None}
            return ConfigValue(dump(settings))
        if key.kind == KIND_MODE:
            return str(body["mode"])
        if key.kind == KIND_DELETE_SUBJECT:
            return DeleteSubjectValue(_number(body["version"]))
        if key.kind == KIND_NOOP and "highestId" in body:
            others = ((str(name), int(each)) for name, each in body.get("highestIds", {}).items())
            return NoopValue(int(body["highestId"]), tuple(others))
        return None
    except (ValueError, TypeError, LookupError, AttributeError):
        raise UnreadableRecord(f"not a value of {key}: {data[:200]!r}") from None


def as_json(reference: Reference) -> dict[str, Any]:
    return {"name": reference.name, "subject": reference.subject, "version": reference.version}


def dump(body: Any) -> str:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False)


def _entry(key: Key, body: dict[str, Any]) -> SchemaValue:
    references = tuple(
        Reference(str(each["name"]), str(each["subject"]), int(each["version"]))
        for each in body.get("references") or ()
    )
    assert key.subject is not None
    assert key.version is not None
    return SchemaValue(
        key.subject,
        key.version,
        int(body["id"]),
        str(body.get("schemaType") or "AVRO"),
        str(body["schema"]),
        references,
        None if body.get("metadata") is None else dump(body["metadata"]),
        None if body.get("ruleSet") is None else dump(body["ruleSet"]),
        bool(body.get("deleted", False)),
    )


def context_of(subject: str) -> str:
    """`.a` for `:.a:subject`; empty for a subject in the default context."""
    return subject[1:].partition(":")[0] if subject.startswith(CONTEXT_PREFIX) else ""


def qualified(subject: str, context: str) -> str:
    """The subject with the given context, unless it has a context of its own."""
    if subject.startswith(CONTEXT_PREFIX):
        own, colon, name = subject[1:].partition(":")
        return name if own == "." and colon else subject
    return f":{context}:{subject}" if context else subject


def _hash_metadata(digest: Any, metadata: dict[str, Any]) -> None:
    for name, values in sorted((metadata.get("tags") or {}).items()):
        digest.update("".join((name, *sorted(values))).encode())
    for name, value in sorted((metadata.get("properties") or {}).items()):
        digest.update(f"{name}{value}".encode())
    digest.update("".join(sorted(metadata.get("sensitive") or ())).encode())


def _hash_rule_set(digest: Any, rules: dict[str, Any]) -> None:
    for kind in ("migrationRules", "domainRules", "encodingRules"):
        for rule in rules.get(kind) or ():
            for name in ("name", "doc", "kind", "mode", "type"):
                digest.update(str(rule.get(name) or "").encode())
            digest.update("".join(sorted(rule.get("tags") or ())).encode())
            for name, value in sorted((rule.get("params") or {}).items()):
                digest.update(f"{name}{value}".encode())
            for name in ("expr", "onSuccess", "onFailure"):
                digest.update(str(rule.get(name) or "").encode())
            if rule.get("disabled"):
                digest.update(b"\1")
    digest.update(str(rules.get("enableAt") or "").encode())


def _subject(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(value)
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or not 0 < value <= _VERSION_MAX:
        raise ValueError(value)
    return value

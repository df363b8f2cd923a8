"""The registry's state, built from the records of the schemas topic.

`store` applies each record in the order of the log; `decisions` and `api` read the state. No I/O, no clock.

The invariant: the state follows from the last record of each key, in their order. So it is the same before
and after compaction, and in every instance that has read to the same offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.client.registry import Reference
from ottla_pipeline.registry.records import (
    KIND_CONFIG,
    KIND_DELETE_SUBJECT,
    KIND_MODE,
    KIND_NOOP,
    KIND_SCHEMA,
    ConfigValue,
    DeleteSubjectValue,
    Key,
    NoopValue,
    SchemaValue,
    Value,
    context_of,
    qualified,
)

DEFAULT_LEVEL: Final = "BACKWARD"
DEFAULT_MODE: Final = "READWRITE"


@dataclass
class State:
    """Subjects with their versions, compatibility levels and modes, with indexes by id, GUID, identity and
    reference."""

    subjects: dict[str, dict[int, SchemaValue]] = field(default_factory=dict)
    configs: dict[str | None, ConfigValue] = field(default_factory=dict)
    modes: dict[str | None, str] = field(default_factory=dict)
    highest_marked_ids: dict[str, int] = field(default_factory=dict)
    _places: dict[str, dict[int, set[tuple[str, int]]]] = field(default_factory=dict)
    _guids: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    _identities: dict[tuple[Any, ...], set[tuple[str, int]]] = field(default_factory=dict)
    _referrers: dict[tuple[str, int], set[tuple[str, int]]] = field(default_factory=dict)

    # -- Records --

    def apply(self, key: Key, value: Value) -> None:
        """Applies one record. Unknown kinds change nothing."""
        subject = key.subject
        if key.kind == KIND_SCHEMA:
            assert subject is not None
            assert key.version is not None
            assert value is None or isinstance(value, SchemaValue)
            self._put(subject, key.version, value)
        elif key.kind == KIND_CONFIG:
            _set(self.configs, subject, value if isinstance(value, ConfigValue) else None)
        elif key.kind == KIND_MODE:
            _set(self.modes, subject, value if isinstance(value, str) else None)
        elif key.kind == KIND_NOOP:
            marked = value if isinstance(value, NoopValue) else NoopValue(0)
            self.highest_marked_ids = {"": marked.id, **dict(marked.contexts)}
        elif (
            key.kind == KIND_DELETE_SUBJECT and isinstance(value, DeleteSubjectValue) and subject is not None
        ):
            for entry in list(self.subjects.get(subject, {}).values()):
                if entry.version <= value.version and not entry.deleted:
                    self._put(subject, entry.version, entry.as_deleted())

    def _put(self, subject: str, version: int, entry: SchemaValue | None) -> None:
        versions = self.subjects.setdefault(subject, {})
        place, context = (subject, version), context_of(subject)
        places = self._places.setdefault(context, {})
        before = versions.pop(version, None)
        if before is not None:
            _discard(places, before.id, place)
            _discard(self._guids, before.guid, place)
            _discard(self._identities, (context, before.identity), place)
            for reference in before.references:
                _discard(self._referrers, (qualified(reference.subject, context), reference.version), place)
        if entry is not None:
            versions[version] = entry
            places.setdefault(entry.id, set()).add(place)
            self._guids.setdefault(entry.guid, set()).add(place)
            self._identities.setdefault((context, entry.identity), set()).add(place)
            for reference in entry.references:
                referred = (qualified(reference.subject, context), reference.version)
                self._referrers.setdefault(referred, set()).add(place)
        if not versions:
            del self.subjects[subject]

    # -- Queries --

    @property
    def contexts(self) -> list[str]:
        """The contexts that have schemas, the default one (empty) first."""
        return sorted({"", *(name for name, places in self._places.items() if places)})

    def highest_id(self, context: str = "") -> int:
        places = self._places.get(context, {})
        return max(self.highest_marked_ids.get(context, 0), max(places, default=0))

    def highest_ids(self) -> NoopValue:
        """The highest ids, which must survive compaction."""
        others = sorted({*self.contexts, *self.highest_marked_ids} - {""})
        return NoopValue(self.highest_id(), tuple((name, self.highest_id(name)) for name in others))

    def versions(self, subject: str, *, deleted: bool = False) -> list[SchemaValue]:
        """The versions of a subject in ascending order, optionally with the deleted ones."""
        entries = self.subjects.get(subject, {})
        return [entries[number] for number in sorted(entries) if deleted or not entries[number].deleted]

    def entry(self, subject: str, version: int, *, deleted: bool = False) -> SchemaValue | None:
        found = self.subjects.get(subject, {}).get(version)
        return None if found is None or (found.deleted and not deleted) else found

    def latest(self, subject: str) -> SchemaValue | None:
        return next(reversed(self.versions(subject)), None)

    def under_id(self, schema_id: int, context: str = "") -> list[SchemaValue]:
        """All versions with this id in a context, deleted ones too, by subject and version."""
        return self._entries(self._places.get(context, {}).get(schema_id, set()))

    def under_guid(self, guid: str) -> list[SchemaValue]:
        """All versions with this GUID, in all contexts."""
        return self._entries(self._guids.get(guid, set()))

    def same(self, entry: SchemaValue) -> list[SchemaValue]:
        """All versions in the entry's context that are this schema, deleted ones too."""
        return self._entries(self._identities.get((entry.context, entry.identity), set()))

    def referrers(self, subject: str, version: int, *, deleted: bool = False) -> list[SchemaValue]:
        """The versions that refer to this version."""
        found = self._entries(self._referrers.get((subject, version), set()))
        return [entry for entry in found if deleted or not entry.deleted]

    def level(self, subject: str | None) -> str:
        """The effective compatibility level."""
        return str(self.setting(subject, "compatibilityLevel") or DEFAULT_LEVEL)

    def normalizes(self, subject: str) -> bool:
        return bool(self.setting(subject, "normalize"))

    def setting(self, subject: str | None, name: str) -> Any:
        """The effective value of a setting: the subject's, its context's, or the global one."""
        for scope in _scopes(subject):
            found = self.configs.get(scope)
            if found is not None and found.value(name) is not None:
                return found.value(name)
        return None

    def within(self, scope: str) -> list[str]:
        """The subjects of a scope: those of a context (`:.a:`), or the one subject."""
        return [name for name in self.subjects if name.startswith(scope)] if scope.endswith(":") else [scope]

    def alias(self, subject: str) -> str:
        """The subject that this name is an alias of; the name itself without an alias."""
        found = self.configs.get(subject)
        alias = None if found is None else found.value("alias")
        return qualified(str(alias), context_of(subject)) if alias else subject

    def mode(self, subject: str | None) -> str:
        """The effective mode."""
        return next(filter(None, map(self.modes.get, _scopes(subject))), DEFAULT_MODE)

    def texts(self, references: tuple[Reference, ...], context: str = "") -> Iterator[tuple[str, str]]:
        """The names and texts of all direct and indirect references, dependencies first.

        Raises LookupError with a Reference that has no target or is circular.
        """
        yield from self._texts(references, context, (), set())

    def _texts(
        self,
        references: tuple[Reference, ...],
        context: str,
        above: tuple[Reference, ...],
        seen: set[Reference],
    ) -> Iterator[tuple[str, str]]:
        for reference in references:
            if reference in seen:
                continue
            subject = qualified(reference.subject, context)
            entry = self.entry(subject, reference.version, deleted=True)
            if entry is None or reference in above:
                raise LookupError(reference)
            yield from self._texts(entry.references, entry.context, (*above, reference), seen)
            seen.add(reference)
            yield reference.name, entry.text

    def _entries(self, places: set[tuple[str, int]]) -> list[SchemaValue]:
        return [self.subjects[subject][version] for subject, version in sorted(places)]


def _scopes(subject: str | None) -> tuple[str | None, ...]:
    """The scopes of a setting, the most specific first."""
    if subject is None:
        return (None,)
    context = context_of(subject)
    return (subject, f":{context}:", None) if context else (subject, None)


def _set(scopes: dict[str | None, Any], subject: str | None, value: Any) -> None:
    if value is None:
        scopes.pop(subject, None)
    else:
        scopes[subject] = value


def _discard(index: dict[Any, set[tuple[str, int]]], key: Any, place: tuple[str, int]) -> None:
    index[key].discard(place)
    if not index[key]:
        del index[key]

"""What the registry knows: a fold over the records of the schemas topic.

Called by `store` for each record in the order of the log, and read by `decisions` and `app`. No I/O, no
clock.

The invariant: the state follows from the last record of each key alone, in their order. So it is the same
before and after compaction, and for every instance that has read as far.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.client.registry import Reference
from ottla_pipeline.registry.records import (
    CONTEXT_PREFIX,
    KIND_CONFIG,
    KIND_DELETE_SUBJECT,
    KIND_MODE,
    KIND_NOOP,
    KIND_SCHEMA,
    DeletedTo,
    Entry,
    HighestId,
    Key,
    Level,
    Value,
)

DEFAULT_LEVEL: Final = "BACKWARD"
DEFAULT_MODE: Final = "READWRITE"


@dataclass
class State:
    subjects: dict[str, dict[int, Entry]] = field(default_factory=dict)
    levels: dict[str | None, Level] = field(default_factory=dict)
    modes: dict[str | None, str] = field(default_factory=dict)
    highest_marked_id: int = 0
    _places: dict[int, set[tuple[str, int]]] = field(default_factory=dict)
    _identities: dict[tuple[Any, ...], set[tuple[str, int]]] = field(default_factory=dict)
    _referrers: dict[tuple[str, int], set[tuple[str, int]]] = field(default_factory=dict)

    # -- The fold --

    def apply(self, key: Key, value: Value) -> None:
        """One record. Kinds that are not known, and subjects of contexts, change nothing."""
        subject = key.subject
        if subject is not None and subject.startswith(CONTEXT_PREFIX):
            return
        if key.kind == KIND_SCHEMA:
            assert subject is not None
            assert key.version is not None
            assert value is None or isinstance(value, Entry)
            self._put(subject, key.version, value)
        elif key.kind == KIND_CONFIG:
            _set(self.levels, subject, value if isinstance(value, Level) else None)
        elif key.kind == KIND_MODE:
            _set(self.modes, subject, value if isinstance(value, str) else None)
        elif key.kind == KIND_NOOP:
            self.highest_marked_id = value.id if isinstance(value, HighestId) else 0
        elif key.kind == KIND_DELETE_SUBJECT and isinstance(value, DeletedTo) and subject is not None:
            for entry in list(self.subjects.get(subject, {}).values()):
                if entry.version <= value.version and not entry.deleted:
                    self._put(subject, entry.version, entry.as_deleted())

    def _put(self, subject: str, version: int, entry: Entry | None) -> None:
        versions = self.subjects.setdefault(subject, {})
        place = (subject, version)
        before = versions.pop(version, None)
        if before is not None:
            _discard(self._places, before.id, place)
            _discard(self._identities, before.identity, place)
            for reference in before.references:
                _discard(self._referrers, (reference.subject, reference.version), place)
        if entry is not None:
            versions[version] = entry
            self._places.setdefault(entry.id, set()).add(place)
            self._identities.setdefault(entry.identity, set()).add(place)
            for reference in entry.references:
                self._referrers.setdefault((reference.subject, reference.version), set()).add(place)
        if not versions:
            del self.subjects[subject]

    # -- What it tells --

    @property
    def highest_id(self) -> int:
        return max(self.highest_marked_id, max(self._places, default=0))

    def versions(self, subject: str, *, deleted: bool = False) -> list[Entry]:
        """The versions of a subject in ascending order, with those that are deleted or without."""
        entries = self.subjects.get(subject, {})
        return [entries[number] for number in sorted(entries) if deleted or not entries[number].deleted]

    def entry(self, subject: str, version: int, *, deleted: bool = False) -> Entry | None:
        found = self.subjects.get(subject, {}).get(version)
        return None if found is None or (found.deleted and not deleted) else found

    def latest(self, subject: str) -> Entry | None:
        return next(reversed(self.versions(subject)), None)

    def under_id(self, schema_id: int) -> list[Entry]:
        """All versions of subjects that have this id, deleted ones too, by subject and version."""
        return self._entries(self._places.get(schema_id, set()))

    def same(self, identity: tuple[Any, ...]) -> list[Entry]:
        """All versions of subjects that are this schema, deleted ones too."""
        return self._entries(self._identities.get(identity, set()))

    def referrers(self, subject: str, version: int, *, deleted: bool = False) -> list[Entry]:
        """Who refers to this version."""
        found = self._entries(self._referrers.get((subject, version), set()))
        return [entry for entry in found if deleted or not entry.deleted]

    def level(self, subject: str | None) -> str:
        """The compatibility level in force."""
        for scope in (subject, None):
            found = self.levels.get(scope)
            if found is not None and found.compatibility is not None:
                return found.compatibility
        return DEFAULT_LEVEL

    def normalizes(self, subject: str) -> bool:
        for scope in (subject, None):
            found = self.levels.get(scope)
            if found is not None and found.normalize is not None:
                return found.normalize
        return False

    def mode(self, subject: str | None) -> str:
        """The mode in force."""
        return self.modes.get(subject) or self.modes.get(None) or DEFAULT_MODE

    def texts(self, references: tuple[Reference, ...], context: str = "") -> Iterator[tuple[str, str]]:
        """Name and text of all that is referred to, directly or not, from the bottom up.

        Raises LookupError with the Reference that leads nowhere, or around in a circle.
        """
        yield from self._texts(references, (), set())

    def _texts(
        self, references: tuple[Reference, ...], above: tuple[Reference, ...], seen: set[Reference]
    ) -> Iterator[tuple[str, str]]:
        for reference in references:
            if reference in seen:
                continue
            entry = self.entry(reference.subject, reference.version, deleted=True)
            if entry is None or reference in above:
                raise LookupError(reference)
            yield from self._texts(entry.references, (*above, reference), seen)
            seen.add(reference)
            yield reference.name, entry.text

    def _entries(self, places: set[tuple[str, int]]) -> list[Entry]:
        return [self.subjects[subject][version] for subject, version in sorted(places)]


def _set(scopes: dict[str | None, Any], subject: str | None, value: Any) -> None:
    if value is None:
        scopes.pop(subject, None)
    else:
        scopes[subject] = value


def _discard(index: dict[Any, set[tuple[str, int]]], key: Any, place: tuple[str, int]) -> None:
    index[key].discard(place)
    if not index[key]:
        del index[key]

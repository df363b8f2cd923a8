"""The `Store` interface of `ottla up`: resources from a folder of YAML files, with generations and statuses.

Used by `up.command`; replaces the API server, with its state in `<data>/state.json`: resources, the last
Events in the form of Kubernetes, and errors of files. The console reads it (its `cluster.up_state`).
Invariants: a resource with an invalid spec keeps its last valid one, since the API server would reject the
change; a resource whose file cannot be read is unchanged; a resource is deleted after it was missing for
MISSING_MS_MAX, since editors save by replacing files; the state file is replaced atomically.
"""

from __future__ import annotations

import json
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ottla_operator.conditions import iso_time, merge, unknown, yes
from ottla_operator.platform.interfaces import InvolvedObject
from ottla_operator.resources import KINDS, AnyResource, Problem
from ottla_operator.resources.common import Status
from ottla_operator.resources.loading import (
    Document,
    Loaded,
    invalid_finding,
    parse_resource,
    status_with,
)

MISSING_MS_MAX = 2_000
EVENTS_MAX = 100
_DEDUPLICATION_MS = 600_000
"""An Event that is equal to a younger one of these is dropped."""

STATE, REQUESTS = "state.json", "requests.json"
"""Files of the data folder; the second one has annotations by resource, which `up.rebalance` writes."""


@dataclass(slots=True)
class Entry:
    """The stored state of one resource."""

    kind: str
    metadata: dict[str, Any]
    spec: dict[str, Any] | None
    """The last valid spec; None without one."""
    status: dict[str, Any] = field(default_factory=dict)
    file: str = ""
    problems: list[str] = field(default_factory=list)
    missing_since_ms: int | None = None
    resource: AnyResource | None = None

    @property
    def name(self) -> str:
        return str(self.metadata["name"])

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.name}"

    @property
    def deleting(self) -> bool:
        return self.metadata.get("deletionTimestamp") is not None


class FolderStore:
    """Resources by key, over one JSON file."""

    def __init__(self, path: Path, clock_ms: Callable[[], int]) -> None:
        """Load the state file if it exists. Raises ValueError when it cannot be read."""
        self._path = path
        self._requests: dict[str, dict[str, str]] = {}
        self._clock_ms = clock_ms
        self.entries: dict[str, Entry] = {}
        self.errors: tuple[str, ...] = ()
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)
        self._unsaved = False
        """Whether there are Events that are not in the file."""
        if path.exists():
            self._load()

    # ---- the file

    def _load(self) -> None:
        try:
            content = json.loads(self._path.read_text())
            for item in content["resources"]:
                entry = Entry(
                    item["kind"],
                    item["metadata"],
                    item["spec"],
                    _known_status(item["kind"], item["status"]),
                    item["file"],
                    item["problems"],
                )
                _reparse(entry)
                self.entries[entry.key] = entry
            self._events.extend(content.get("events", ()))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self._path} cannot be read: {error}") from error

    def _save(self) -> None:
        resources = [
            {
                "kind": entry.kind,
                "metadata": entry.metadata,
                "spec": entry.spec,
                "status": entry.status,
                "file": entry.file,
                "problems": entry.problems,
            }
            for entry in self.entries.values()
        ]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".tmp")
        content = {"resources": resources, "events": list(self._events), "errors": self.errors}
        partial.write_text(json.dumps(content, indent=1, default=str))
        partial.replace(self._path)
        self._unsaved = False

    # ---- from files

    def sync(self, loaded: Loaded) -> bool:
        """Apply the loaded files. Returns whether something has changed."""
        before = [(e.metadata, e.spec, e.problems, e.file) for e in map(_copy, self.entries.values())]
        errors_before, self.errors = self.errors, loaded.errors
        self._requests = self._read_requests()
        seen = set()
        for document in loaded.documents:
            seen.add(document.key)
            self._apply_document(document)
        for entry in list(self.entries.values()):
            if entry.key in seen or Path(entry.file) in loaded.unreadable:
                entry.missing_since_ms = None
            else:
                self._missing(entry)
        after = [(e.metadata, e.spec, e.problems, e.file) for e in self.entries.values()]
        if after != before or self.errors != errors_before:
            self._save()
        return after != before

    def _read_requests(self) -> dict[str, dict[str, str]]:
        """The annotations that commands have set, besides those in the files."""
        try:
            return dict(json.loads(self._path.with_name(REQUESTS).read_text()))
        except (FileNotFoundError, ValueError):
            return {}

    def _apply_document(self, document: Document) -> None:
        entry = self.entries.get(document.key)
        if entry is None:
            entry = self._create(document)
        if entry.deleting:
            # It becomes a new resource after the deletion of the old one.
            return
        entry.file = str(document.source.file)
        problems = list(document.problems)
        spec = dict(document.spec)
        if not problems and entry.spec is not None and spec != entry.spec:
            problems = _transition_problems(entry, spec)
        if problems:
            found = [f"{document.source}: {problem}" for problem in problems]
            if found != entry.problems:
                entry.problems = found
                in_force = yes("Ready", "Valid") if entry.spec is not None else None
                ready = invalid_finding(found, in_force)
                entry.status = status_with(entry.kind, entry.metadata, entry.status, ready, self._clock_ms())
            _reparse(entry)
            return
        was_invalid = bool(entry.problems)
        entry.problems = []
        changed = spec != entry.spec
        requested = self._requests.get(document.key, {})
        annotations = {**requested, **(document.metadata.get("annotations") or {})}
        labels = document.metadata.get("labels") or {}
        if (
            changed
            or was_invalid
            or annotations != entry.metadata.get("annotations")
            or labels != entry.metadata.get("labels")
        ):
            entry.metadata = {**entry.metadata, "annotations": annotations, "labels": labels}
            if changed:
                entry.metadata["generation"] += 1
            entry.spec = spec
            _reparse(entry)

    def _create(self, document: Document) -> Entry:
        now = iso_time(self._clock_ms())
        metadata = {
            "name": document.name,
            "uid": str(uuid.uuid4()),
            "generation": 0,
            "creationTimestamp": now,
            "annotations": {},
            "labels": {},
        }
        pending = [
            unknown(type_, "Pending", "the operator has not reconciled the resource yet")
            for type_ in KINDS[document.kind].definition.condition_types
        ]
        conditions = merge([], pending, generation=0, now_ms=self._clock_ms())
        status = {"conditions": [condition.model_dump(by_alias=True) for condition in conditions]}
        entry = Entry(document.kind, metadata, None, status, str(document.source.file))
        self.entries[entry.key] = entry
        return entry

    def _missing(self, entry: Entry) -> None:
        now_ms = self._clock_ms()
        if entry.missing_since_ms is None:
            entry.missing_since_ms = now_ms
        if now_ms - entry.missing_since_ms < MISSING_MS_MAX or entry.deleting:
            return
        if entry.spec is None:
            del self.entries[entry.key]
            return
        entry.metadata = {**entry.metadata, "deletionTimestamp": iso_time(now_ms)}
        entry.problems = []
        _reparse(entry)

    # ---- the Store interface

    async def resources(self) -> Sequence[AnyResource]:
        return [entry.resource for entry in self.entries.values() if entry.resource is not None]

    def withheld(self) -> Sequence[str]:
        return [key for key, entry in self.entries.items() if entry.resource is None and not entry.deleting]

    async def update_status(self, resource: AnyResource, status: Status) -> None:
        entry = self.entries[resource.key]
        before = entry.status
        entry.status = status.model_dump(by_alias=True, exclude_none=True)
        _reparse(entry)
        if entry.status != before or self._unsaved:
            self._save()

    async def release(self, resource: AnyResource) -> None:
        self.entries.pop(resource.key, None)
        self._save()

    # ---- the Recorder interface

    def record(self, resource: InvolvedObject, reason: str, message: str, *, warning: bool = False) -> None:
        """Keep an Event; the next status is saved with it."""
        now_ms = self._clock_ms()
        event = {
            "involvedObject": {"kind": resource.kind, "name": resource.metadata.name},
            "reason": reason,
            "message": message,
            "type": "Warning" if warning else "Normal",
        }
        recent = iso_time(now_ms - _DEDUPLICATION_MS)
        if any(event.items() <= one.items() and one["lastTimestamp"] > recent for one in self._events):
            return
        self._events.append({**event, "metadata": {}, "lastTimestamp": iso_time(now_ms)})
        self._unsaved = True


def _copy(entry: Entry) -> Entry:
    return Entry(entry.kind, dict(entry.metadata), entry.spec, {}, entry.file, list(entry.problems))


def _reparse(entry: Entry) -> None:
    """Parse the stored resource; one that an older version stored may be invalid now."""
    if entry.spec is None:
        entry.resource = None
        return
    entry.resource, problems = parse_resource(entry.kind, entry.metadata, entry.spec, entry.status)
    if entry.resource is None and not entry.problems:
        entry.problems = [str(problem) for problem in problems]
    elif entry.resource is not None and entry.problems:
        entry.resource = entry.resource.in_force_despite(entry.problems)


def _transition_problems(entry: Entry, spec: dict[str, Any]) -> list[Problem]:
    old, _ = parse_resource(entry.kind, entry.metadata, entry.spec)
    new, problems = parse_resource(entry.kind, entry.metadata, spec)
    if new is None or old is None:
        return problems
    return list(new.transition_problems(old))


def _known_status(kind: str, status: dict[str, Any]) -> dict[str, Any]:
    """`status` without the fields that a later version has added: a downgrade continues with its state."""
    model = KINDS[kind].model_fields["status"].annotation
    assert isinstance(model, type)
    assert issubclass(model, Status)
    try:
        model.model_validate(status)
    except ValidationError as error:
        for problem in error.errors():
            if problem["type"] == "extra_forbidden":
                holder: Any = status
                *path, name = problem["loc"]
                for step in path:
                    holder = holder[step]
                del holder[name]
    return status

"""What each path of the REST API answers: parameters and bodies to `decisions` and the state, and back.

Called by `app`, which has the routes' HTTP around it. Paths, parameters, attributes and error codes are
those of Confluent's Schema Registry; left out are associations and rules
acted upon.

Reads are answered from the state of this instance. An id that is not in it may be one that another instance
has just given away, so it is looked for at the end of the log before it is said not to be there.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final
from urllib.parse import unquote

from starlette.requests import Request

from ottla_pipeline.registry import decisions, errors, formats
from ottla_pipeline.registry.bodies import LevelBody, ModeBody, SchemaBody, read
from ottla_pipeline.registry.decisions import Wanted
from ottla_pipeline.registry.errors import Refused
from ottla_pipeline.registry.records import Entry, as_json
from ottla_pipeline.registry.schemas import Schemas
from ottla_pipeline.registry.state import State
from ottla_pipeline.registry.store import Store

ALL_CONTEXTS: Final = ":*:"
_VERSION_MAX: Final = 2**31 - 1
_DIGITS_MAX: Final = 20


class SchemaText(str):
    """The text of a schema, which is the whole answer."""

    __slots__ = ()


class Api:
    """One instance's: its store is what changes, this is only how it is asked."""

    def __init__(self, store: Store) -> None:
        self.store = store

    # -- Schemas --

    async def types(self, request: Request) -> Any:
        return list(formats.TYPES)

    async def schemas(self, request: Request) -> Any:
        state, deleted = self.store.state, _flag(request, "deleted")
        prefix = request.query_params.get("subjectPrefix", "")
        found: list[Entry] = []
        for subject in sorted(state.subjects):
            if subject.startswith(prefix):
                versions = state.versions(subject, deleted=deleted)
                found += versions[-1:] if _flag(request, "latestOnly") else versions
        return [_shown(entry) for entry in _page(request, found)]

    async def by_id(self, request: Request) -> Any:
        entry = await self._in_form(request, (await self._under_id(request))[0])
        body: dict[str, Any] = {"schema": entry.text, **_attributes(entry)}
        if _flag(request, "fetchMaxId"):
            body["maxId"] = self.store.state.highest_id
        return body

    async def text_by_id(self, request: Request) -> Any:
        return SchemaText((await self._in_form(request, (await self._under_id(request))[0])).text)

    async def subjects_of_id(self, request: Request) -> Any:
        entries = _visible(request, await self._under_id(request))
        return _page(request, list(dict.fromkeys(entry.subject for entry in entries)))

    async def versions_of_id(self, request: Request) -> Any:
        entries = _visible(request, await self._under_id(request))
        return [{"subject": entry.subject, "version": entry.version} for entry in _page(request, entries)]

    # -- Subjects --

    async def subjects(self, request: Request) -> Any:
        state, prefix = self.store.state, request.query_params.get("subjectPrefix", "")
        if prefix == ALL_CONTEXTS:
            prefix = ""
        only, deleted = _flag(request, "deletedOnly"), _flag(request, "deleted")
        names = [
            name
            for name in sorted(state.subjects)
            if name.startswith(prefix)
            and (not state.versions(name) if only else deleted or bool(state.versions(name)))
        ]
        return _page(request, names)

    async def versions(self, request: Request) -> Any:
        subject, state = _subject(request), self.store.state
        only, deleted = _flag(request, "deletedOnly"), _flag(request, "deleted")
        found = state.versions(subject, deleted=only or deleted)
        if not found:
            raise errors.subject_not_found(subject)
        return _page(request, [entry.version for entry in found if entry.deleted or not only])

    async def version(self, request: Request) -> Any:
        return _shown(await self._in_form(request, self._version(request)))

    async def text_of_version(self, request: Request) -> Any:
        return SchemaText((await self._in_form(request, self._version(request))).text)

    async def referenced_by(self, request: Request) -> Any:
        entry = self._version(request, deleted=True)
        found = self.store.state.referrers(entry.subject, entry.version, deleted=_flag(request, "deleted"))
        return _page(request, sorted({each.id for each in found}))

    async def look_up(self, request: Request) -> Any:
        subject, wanted, store = _subject(request), await _wanted(request), self.store
        deleted = _flag(request, "deleted")
        options = {"deleted": deleted, "normalize": _flag(request, "normalize")}

        def find(state: State, schemas: Schemas) -> Entry | None:
            return decisions.find(state, schemas, subject, wanted, **options)

        found = await store.decide(find, _client(request))
        if found is None:
            await store.catch_up()
            found = await store.decide(find, _client(request))
        if found is None and not store.state.versions(subject, deleted=deleted):
            raise errors.subject_not_found(subject)
        if found is None:
            raise errors.schema_not_found()
        return _shown(await self._in_form(request, found))

    async def register(self, request: Request) -> Any:
        subject, wanted = _subject(request), await _wanted(request)
        normalize, store = _flag(request, "normalize"), self.store
        entry: Entry = await store.write(
            lambda state, schemas: decisions.register(state, schemas, subject, wanted, normalize=normalize),
            _client(request),
        )
        return {"id": entry.id, "version": entry.version, **_attributes(entry), "schema": entry.text}

    async def delete_subject(self, request: Request) -> Any:
        subject, permanent = _subject(request), _flag(request, "permanent")
        return await self.store.write(
            lambda state, _: decisions.delete_subject(state, subject, permanent=permanent), _client(request)
        )

    async def delete_version(self, request: Request) -> Any:
        subject, version = _subject(request), _version(request)
        permanent = _flag(request, "permanent")
        return await self.store.write(
            lambda state, _: decisions.delete_version(state, subject, version, permanent=permanent),
            _client(request),
        )

    # -- Compatibility --

    async def check(self, request: Request) -> Any:
        subject, wanted, store = _subject(request), await _wanted(request), self.store
        version = _version(request) if "version" in request.path_params else None
        verbose, normalize = _flag(request, "verbose"), _flag(request, "normalize")
        try:
            messages = await store.decide(
                lambda state, schemas: decisions.check(
                    state, schemas, subject, wanted, version=version, normalize=normalize
                ),
                _client(request),
            )
        except Refused as refusal:
            if refusal.code != 42201 or not verbose:
                raise
            messages = [str(refusal)]
        return {"is_compatible": not messages, **({"messages": messages} if verbose else {})}

    async def level(self, request: Request) -> Any:
        subject, state = _scope(request), self.store.state
        own = state.levels.get(subject)
        if own is not None:
            settings = json.loads(own.settings)
        elif subject is None or _flag(request, "defaultToGlobal"):
            settings = {}
        else:
            raise errors.no_level_of_its_own(subject)
        if subject is None or _flag(request, "defaultToGlobal"):
            settings.setdefault("compatibilityLevel", state.level(subject))
        return settings

    async def set_level(self, request: Request) -> Any:
        subject, changes = _scope(request), (await read(request, LevelBody)).changes()
        settings = await self.store.write(
            lambda state, _: decisions.set_level(state, subject, changes), _client(request)
        )
        return {{"compatibilityLevel": "compatibility"}.get(name, name): settings[name] for name in settings}

    async def delete_level(self, request: Request) -> Any:
        subject = _scope(request)
        return await self.store.write(
            lambda state, _: decisions.delete_level(state, subject), _client(request)
        )

    # -- Modes --

    async def mode(self, request: Request) -> Any:
        subject, state = _scope(request), self.store.state
        if subject is not None and subject not in state.modes and not _flag(request, "defaultToGlobal"):
            raise errors.no_mode_of_its_own(subject)
        return {"mode": state.mode(subject)}

    async def set_mode(self, request: Request) -> Any:
        subject, mode = _scope(request), (await read(request, ModeBody)).checked()
        force = _flag(request, "force")
        written = await self.store.write(
            lambda state, _: decisions.set_mode(state, subject, mode, force=force), _client(request)
        )
        return {"mode": written}

    async def delete_mode(self, request: Request) -> Any:
        subject = _scope(request)
        return {
            "mode": await self.store.write(
                lambda state, _: decisions.delete_mode(state, subject), _client(request)
            )
        }

    # -- The rest --

    async def root(self, request: Request) -> Any:
        return {}

    async def contexts(self, request: Request) -> Any:
        return ["."]

    async def cluster(self, request: Request) -> Any:
        return {"id": "", "scope": {"path": [], "clusters": {"schema-registry-cluster": self.store.topic}}}

    def _version(self, request: Request, *, deleted: bool = False) -> Entry:
        subject, version, state = _subject(request), _version(request), self.store.state
        deleted = deleted or _flag(request, "deleted")
        versions = state.versions(subject, deleted=deleted)
        if not versions:
            raise errors.subject_not_found(subject)
        found = versions[-1] if version == -1 else state.entry(subject, version, deleted=deleted)
        if found is None:
            raise errors.version_not_found(version)
        return found

    async def _in_form(self, request: Request, entry: Entry) -> Entry:
        """A version with its text in the form that was asked for, if its format knows that."""
        form = request.query_params.get("format", "")
        if form not in formats.FORMS.get(entry.type, ()):
            return entry
        text = await self.store.decide(
            lambda state, schemas: schemas.rendered(state, entry, form), _client(request)
        )
        return replace(entry, text=text)

    async def _under_id(self, request: Request) -> list[Entry]:
        text = request.path_params["id"]
        if not _is_number(text):
            raise errors.Refused(404, f"HTTP 404 Not Found: an id is a number, not '{text}'")
        found = self.store.state.under_id(int(text))
        if not found:
            await self.store.catch_up()
            found = self.store.state.under_id(int(text))
        if not found:
            raise errors.schema_not_found(int(text))
        return found


Handler = Callable[[Api, Request], Awaitable[Any]]
ROUTES: Final[tuple[tuple[str, str, Handler], ...]] = (
    ("GET", "/", Api.root),
    ("GET", "/contexts", Api.contexts),
    ("GET", "/v1/metadata/id", Api.cluster),
    ("GET", "/schemas", Api.schemas),
    ("GET", "/schemas/types", Api.types),
    ("GET", "/schemas/ids/{id}", Api.by_id),
    ("GET", "/schemas/ids/{id}/schema", Api.text_by_id),
    ("GET", "/schemas/ids/{id}/subjects", Api.subjects_of_id),
    ("GET", "/schemas/ids/{id}/versions", Api.versions_of_id),
    ("GET", "/subjects", Api.subjects),
    ("POST", "/subjects/{subject}", Api.look_up),
    ("DELETE", "/subjects/{subject}", Api.delete_subject),
    ("GET", "/subjects/{subject}/versions", Api.versions),
    ("POST", "/subjects/{subject}/versions", Api.register),
    ("GET", "/subjects/{subject}/versions/{version}", Api.version),
    ("DELETE", "/subjects/{subject}/versions/{version}", Api.delete_version),
    ("GET", "/subjects/{subject}/versions/{version}/schema", Api.text_of_version),
    ("GET", "/subjects/{subject}/versions/{version}/referencedby", Api.referenced_by),
    ("POST", "/compatibility/subjects/{subject}/versions", Api.check),
    ("POST", "/compatibility/subjects/{subject}/versions/{version}", Api.check),
    ("GET", "/config", Api.level),
    ("PUT", "/config", Api.set_level),
    ("DELETE", "/config", Api.delete_level),
    ("GET", "/config/{subject}", Api.level),
    ("PUT", "/config/{subject}", Api.set_level),
    ("DELETE", "/config/{subject}", Api.delete_level),
    ("GET", "/mode", Api.mode),
    ("PUT", "/mode", Api.set_mode),
    ("DELETE", "/mode", Api.delete_mode),
    ("GET", "/mode/{subject}", Api.mode),
    ("PUT", "/mode/{subject}", Api.set_mode),
    ("DELETE", "/mode/{subject}", Api.delete_mode),
)


def _shown(entry: Entry) -> dict[str, Any]:
    return {
        "subject": entry.subject,
        "version": entry.version,
        "id": entry.id,
        **_attributes(entry),
        "schema": entry.text,
        **({"deleted": True} if entry.deleted else {}),
    }


def _attributes(entry: Entry) -> dict[str, Any]:
    """Those that are left out where they say nothing; AVRO is what a schema without a type is."""
    found: dict[str, Any] = {}
    if entry.type != "AVRO":
        found["schemaType"] = entry.type
    if entry.references:
        found["references"] = [as_json(each) for each in entry.references]
    for name, text in (("metadata", entry.metadata), ("ruleSet", entry.rule_set)):
        if text is not None:
            found[name] = json.loads(text)
    return found


def _visible(request: Request, entries: list[Entry]) -> list[Entry]:
    return [entry for entry in entries if not entry.deleted or _flag(request, "deleted")]


async def _wanted(request: Request) -> Wanted:
    return (await read(request, SchemaBody)).wanted()


def _subject(request: Request) -> str:
    """Paths come as they were sent, so that a subject may have a slash in it."""
    return unquote(request.path_params["subject"])


def _scope(request: Request) -> str | None:
    return _subject(request) if "subject" in request.path_params else None


def _version(request: Request) -> int:
    """-1 for the latest."""
    text = str(request.path_params["version"])
    if text in ("latest", "-1"):
        return -1
    if not _is_number(text) or not int(text):
        raise errors.invalid_version(text)
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX and int(text) <= _VERSION_MAX


def _client(request: Request) -> str:
    """Whose checks of schemas take turns."""
    return request.client.host if request.client else ""


def _flag(request: Request, name: str) -> bool:
    return request.query_params.get(name, "").lower() == "true"


def _page(request: Request, found: list[Any]) -> list[Any]:
    bounds = []
    for name, default in (("offset", 0), ("limit", -1)):
        try:
            bounds.append(int(request.query_params.get(name, default)))
        except ValueError:
            raise Refused(422, f"{name}={request.query_params[name]}: must be a number") from None
    offset, limit = max(0, bounds[0]), bounds[1]
    return found[offset:] if limit < 0 else found[offset : offset + limit]

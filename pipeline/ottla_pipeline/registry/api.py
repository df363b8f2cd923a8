"""The handlers of the REST API: they translate requests to `decisions` and reads of the state, and back.

Called by `app`, which does HTTP. Paths, parameters, attributes and error codes are those of Confluent's
Schema Registry; associations and the execution of rules are not implemented.

Reads use the state of this instance. If an id is missing, another instance may just have assigned it, so
the handler reads the log to its end before it answers "not found".
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final
from urllib.parse import unquote

from starlette.requests import Request

from ottla import __version__
from ottla_pipeline.registry import access, checks, decisions, errors
from ottla_pipeline.registry.access import Operation
from ottla_pipeline.registry.bodies import ConfigBody, ModeBody, SchemaBody, read
from ottla_pipeline.registry.decisions import SchemaRequest
from ottla_pipeline.registry.errors import Refused
from ottla_pipeline.registry.records import SchemaValue, as_json, context_of, qualified
from ottla_pipeline.registry.schemas import DecisionChecks
from ottla_pipeline.registry.state import State
from ottla_pipeline.registry.store import Store

ALL_CONTEXTS: Final = ":*:"
_VERSION_MAX: Final = 2**31 - 1
_DIGITS_MAX: Final = 20


class SchemaText(str):
    """The text of a schema as the whole response body."""

    __slots__ = ()


class Api:
    """The handlers of one instance, over its store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def subject_of(self, request: Request) -> str | None:
        """The subject of a request; None for requests without one. Paths are not decoded before, so a
        subject may contain a slash; `/contexts/.a/…` addresses the subjects of that context."""
        context, given = _context(request), request.path_params.get("subject")
        if given is None:
            return f":{context}:" if context else None
        subject = qualified(unquote(given), context)
        if request.url.path.startswith(_WITH_ALIASES):
            return self.store.state.alias(subject)
        return subject

    # -- Schemas --

    async def types(self, request: Request) -> Any:
        return list(checks.TYPES)

    async def schemas(self, request: Request) -> Any:
        state, deleted = self.store.state, _flag(request, "deleted")
        found: list[SchemaValue] = []
        for subject in sorted(state.subjects):
            if _is_meant(request, subject, ""):
                versions = state.versions(subject, deleted=deleted)
                found += versions[-1:] if _flag(request, "latestOnly") else versions
        return [_shown(entry) for entry in _page(request, found)]

    async def by_id(self, request: Request) -> Any:
        entry = await self._in_form(request, (await self._under_id(request))[0])
        body: dict[str, Any] = {"schema": entry.text, **_attributes(entry)}
        if _flag(request, "fetchMaxId"):
            body["maxId"] = self.store.state.highest_id(entry.context)
        return body

    async def text_by_id(self, request: Request) -> Any:
        return SchemaText((await self._in_form(request, (await self._under_id(request))[0])).text)

    async def subjects_of_id(self, request: Request) -> Any:
        entries = _visible(request, await self._under_id(request))
        return _page(request, list(dict.fromkeys(entry.subject for entry in entries)))

    async def versions_of_id(self, request: Request) -> Any:
        entries = _visible(request, await self._under_id(request))
        return [{"subject": entry.subject, "version": entry.version} for entry in _page(request, entries)]

    async def by_guid(self, request: Request) -> Any:
        entry = await self._in_form(request, (await self._under_guid(request))[0])
        return {"schema": entry.text, **_attributes(entry)}

    async def ids_of_guid(self, request: Request) -> Any:
        places = {(entry.context, entry.id) for entry in await self._under_guid(request)}
        return [{"context": context or ".", "id": number} for context, number in sorted(places)]

    # -- Subjects --

    async def subjects(self, request: Request) -> Any:
        state = self.store.state
        only, deleted = _flag(request, "deletedOnly"), _flag(request, "deleted")
        names = [
            name
            for name in sorted(state.subjects)
            if _is_meant(request, name, ALL_CONTEXTS)
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

    async def with_metadata(self, request: Request) -> Any:
        """The latest version of a subject whose metadata have these properties."""
        subject, deleted = _subject(request), _flag(request, "deleted")
        query = request.query_params
        wanted = dict(zip(query.getlist("key"), query.getlist("value"), strict=False)).items()
        versions = self.store.state.versions(subject, deleted=deleted)
        if not versions:
            raise errors.subject_not_found(subject)
        for entry in reversed(versions):
            properties = json.loads(entry.metadata or "{}").get("properties") or {}
            if wanted <= properties.items():
                return _shown(await self._in_form(request, entry))
        raise errors.schema_not_found()

    async def referenced_by(self, request: Request) -> Any:
        entry = self._version(request, deleted=True)
        found = self.store.state.referrers(entry.subject, entry.version, deleted=_flag(request, "deleted"))
        return _page(request, sorted({each.id for each in found}))

    async def look_up(self, request: Request) -> Any:
        subject, wanted, store = _subject(request), await _wanted(request), self.store
        deleted = _flag(request, "deleted")
        options = {"deleted": deleted, "normalize": _flag(request, "normalize")}

        def find(state: State, schemas: DecisionChecks) -> SchemaValue | None:
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
        entry: SchemaValue = await store.write(
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

    async def config(self, request: Request) -> Any:
        subject, state = _scope(request), self.store.state
        own = state.configs.get(subject)
        if own is not None:
            settings = json.loads(own.settings)
        elif subject is None or _flag(request, "defaultToGlobal"):
            settings = {}
        else:
            raise errors.config_not_found(subject)
        if subject is None or _flag(request, "defaultToGlobal"):
            settings.setdefault("compatibilityLevel", state.level(subject))
        return settings

    async def set_config(self, request: Request) -> Any:
        subject, changes = _scope(request), (await read(request, ConfigBody)).changes()
        settings = await self.store.write(
            lambda state, _: decisions.set_config(state, subject, changes), _client(request)
        )
        return {{"compatibilityLevel": "compatibility"}.get(name, name): settings[name] for name in settings}

    async def delete_config(self, request: Request) -> Any:
        subject = _scope(request)
        return await self.store.write(
            lambda state, _: decisions.delete_config(state, subject), _client(request)
        )

    # -- Modes --

    async def mode(self, request: Request) -> Any:
        subject, state = _scope(request), self.store.state
        if subject is not None and subject not in state.modes and not _flag(request, "defaultToGlobal"):
            raise errors.mode_not_found(subject)
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
        return [each or "." for each in self.store.state.contexts]

    async def version_of_server(self, request: Request) -> Any:
        return {"version": __version__, "commitId": ""}

    async def cluster(self, request: Request) -> Any:
        return {"id": "", "scope": {"path": [], "clusters": {"schema-registry-cluster": self.store.topic}}}

    def _version(self, request: Request, *, deleted: bool = False) -> SchemaValue:
        subject, version, state = _subject(request), _version(request), self.store.state
        deleted = deleted or _flag(request, "deleted")
        versions = state.versions(subject, deleted=deleted)
        if not versions:
            raise errors.subject_not_found(subject)
        found = versions[-1] if version == -1 else state.entry(subject, version, deleted=deleted)
        if found is None:
            raise errors.version_not_found(version)
        return found

    async def _in_form(self, request: Request, entry: SchemaValue) -> SchemaValue:
        """A version with its text in the requested form, if its format supports that form."""
        form = request.query_params.get("format", "")
        if form not in checks.FORMS.get(entry.type, ()):
            return entry
        text = await self.store.decide(
            lambda state, schemas: schemas.rendered(state, entry, form), _client(request)
        )
        return replace(entry, text=text)

    async def _under_guid(self, request: Request) -> list[SchemaValue]:
        guid = unquote(request.path_params["guid"]).lower()
        found = self.store.state.under_guid(guid)
        if not found:
            await self.store.catch_up()
            found = self.store.state.under_guid(guid)
        if not found:
            raise errors.guid_not_found(guid)
        return _readable(request, found)

    async def _under_id(self, request: Request) -> list[SchemaValue]:
        text = request.path_params["id"]
        if not _is_number(text):
            raise errors.Refused(404, f"HTTP 404 Not Found: an id is a number, not '{text}'")
        subject = qualified(request.query_params.get("subject", ""), _context(request))
        found = _of_id(self.store.state, int(text), subject)
        if not found:
            await self.store.catch_up()
            found = _of_id(self.store.state, int(text), subject)
        if not found:
            raise errors.schema_not_found(int(text))
        return _readable(request, found)


Handler = Callable[[Api, Request], Awaitable[Any]]
_WITH_ALIASES: Final = ("/subjects/", "/compatibility/subjects/")
ROUTES: Final[tuple[tuple[str, str, Handler], ...]] = (
    ("GET", "/", Api.root),
    ("GET", "/v1/metadata/version", Api.version_of_server),
    ("GET", "/schemas/guids/{guid}", Api.by_guid),
    ("GET", "/schemas/guids/{guid}/ids", Api.ids_of_guid),
    ("GET", "/subjects/{subject}/metadata", Api.with_metadata),
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
    ("GET", "/config", Api.config),
    ("PUT", "/config", Api.set_config),
    ("DELETE", "/config", Api.delete_config),
    ("GET", "/config/{subject}", Api.config),
    ("PUT", "/config/{subject}", Api.set_config),
    ("DELETE", "/config/{subject}", Api.delete_config),
    ("GET", "/mode", Api.mode),
    ("PUT", "/mode", Api.set_mode),
    ("DELETE", "/mode", Api.delete_mode),
    ("GET", "/mode/{subject}", Api.mode),
    ("PUT", "/mode/{subject}", Api.set_mode),
    ("DELETE", "/mode/{subject}", Api.delete_mode),
)


def operation(method: str, path: str, handler: Handler) -> Operation | None:
    """The permission that a route requires for its subject, or for all subjects; None for routes that
    filter their own results or show no subjects."""
    if "{subject}" not in path and method == "GET":
        return None
    reads = method == "GET" or handler in (Api.look_up, Api.check)
    return Operation.READ if reads else Operation.WRITE


def _shown(entry: SchemaValue) -> dict[str, Any]:
    return {
        "subject": entry.subject,
        "version": entry.version,
        "id": entry.id,
        "guid": entry.guid,
        **_attributes(entry),
        "schema": entry.text,
        **({"deleted": True} if entry.deleted else {}),
    }


def _attributes(entry: SchemaValue) -> dict[str, Any]:
    """The optional attributes: absent without a value; a schema without a type is AVRO."""
    found: dict[str, Any] = {}
    if entry.type != "AVRO":
        found["schemaType"] = entry.type
    if entry.references:
        found["references"] = [as_json(each) for each in entry.references]
    for name, text in (("metadata", entry.metadata), ("ruleSet", entry.rule_set)):
        if text is not None:
            found[name] = json.loads(text)
    return found


def _visible(request: Request, entries: list[SchemaValue]) -> list[SchemaValue]:
    return [entry for entry in entries if not entry.deleted or _flag(request, "deleted")]


async def _wanted(request: Request) -> SchemaRequest:
    wanted = (await read(request, SchemaBody)).wanted()
    for reference in wanted.references:
        access.check(request.state.user, Operation.READ, qualified(reference.subject, _context_of(request)))
    return wanted


def _context_of(request: Request) -> str:
    return context_of(_subject(request))


def _context(request: Request) -> str:
    """The context of a path below /contexts/NAME; empty for the default one."""
    name = unquote(request.path_params.get("context", "")).strip(":")
    return "" if name in ("", ".") else name if name.startswith(".") else f".{name}"


def _is_meant(request: Request, subject: str, default: str) -> bool:
    """Whether to list a subject: its context and prefix match, and it is readable."""
    context = _context(request)
    prefix = request.query_params.get("subjectPrefix", "" if context else default)
    if not access.may(request.state.user, Operation.READ, subject):
        return False
    if prefix.startswith(ALL_CONTEXTS):
        name = subject.partition(":")[2].partition(":")[2] if context_of(subject) else subject
        return name.startswith(prefix.removeprefix(ALL_CONTEXTS))
    whole = qualified(prefix, context)
    return context_of(subject) == context_of(whole) and subject.startswith(whole)


def _readable(request: Request, entries: list[SchemaValue]) -> list[SchemaValue]:
    """The entries whose subjects are readable. Raises Refused if there are none."""
    found = [each for each in entries if access.may(request.state.user, Operation.READ, each.subject)]
    if not found:
        access.check(request.state.user, Operation.READ, entries[0].subject)
    return found


def _of_id(state: State, number: int, subject: str) -> list[SchemaValue]:
    """The versions with an id in the subject's context; for a subject of the default context, else those
    of the first other context that has the subject."""
    found = state.under_id(number, context_of(subject))
    if found or not subject or context_of(subject):
        return found
    others = (state.under_id(number, each) for each in state.contexts if each)
    return next((each for each in others if any(e.subject.endswith(f":{subject}") for e in each)), [])


def _subject(request: Request) -> str:
    """The subject of the path, in its context, with aliases resolved."""
    return str(request.state.subject)


def _scope(request: Request) -> str | None:
    found: str | None = request.state.subject
    return found


def _version(request: Request) -> int:
    """The version of the path; -1 for the latest."""
    text = str(request.path_params["version"])
    if text in ("latest", "-1"):
        return -1
    if not _is_number(text) or not int(text):
        raise errors.invalid_version(text)
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX and int(text) <= _VERSION_MAX


def _client(request: Request) -> str:
    """The client's identity, for the fair scheduling of schema checks."""
    user = request.state.user
    host = request.client.host if request.client else ""
    return host if user is None or user.name is None else user.name


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

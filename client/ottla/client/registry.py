"""A blocking client of a schema registry, with a cache and retries.

Called by the serializers, and by the jobs of the pipeline on the driver and on executors: a client can be
pickled, without its caches. It uses Confluent's REST API.

Requests use `urllib.request`: a job sends one request for each schema, so that persistent connections do not
pay off, and confluent-kafka's client would need four more packages on every executor.

The schema of an id never changes and is cached without limit. The latest version of a subject can change and
is not cached. A missing id is cached for MISSING_S, so that a stream of foreign bytes does not cause a
request for each record.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from ottla.client.error_kinds import ClientError, RetriableError
from ottla.environment import environment

CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
ACCEPT: Final = f"{CONTENT_TYPE}, application/vnd.schemaregistry+json, application/json"
MISSING_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 64 << 20
RETRIABLE: Final = frozenset((408, 429, 500, 502, 503, 504))
NOT_FOUND_SUBJECT: Final = 40401
NOT_FOUND_VERSION: Final = 40402
NOT_FOUND_SCHEMA: Final = 40403
OPTIONS: Final = (
    "basic.auth.user.info",
    "bearer.auth.token",
    "max.retries",
    "retries.max.wait.ms",
    "retries.wait.ms",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "timeout",
)
"""The names and meanings are those of confluent-kafka's client; `timeout` is in seconds."""


class RegistryError(ClientError):
    """A request to a schema registry failed."""


class RegistryUnreachable(RegistryError, RetriableError):
    """No registry responded, or only with retriable errors, within the retries."""


class RegistryRefused(RegistryError):
    """The registry responded with an error: `status` is the HTTP status, `code` that of the registry (or the
    status)."""

    def __init__(self, message: str, status: int, code: int) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.status, self.code)


class NotRegistered(RegistryRefused):
    """There is no such subject, version, schema or id."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference of a schema by `name` to another one, registered as `version` of `subject`."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """A registered schema: `type` is AVRO, JSON or PROTOBUF."""

    text: str
    type: str = "AVRO"
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a subject."""

    subject: str
    version: int
    id: int
    schema: Schema


class Answer(NamedTuple):
    """An HTTP response."""

    status: int
    body: bytes


Transport = Callable[[urllib.request.Request, float, ssl.SSLContext | None], Answer]
"""Sends one request. Raises OSError or http.client.HTTPException if there was no response."""


class RegistryClient:
    """`urls`: one or several, separated by commas, tried in turn. Raises ValueError for an invalid URL or
    option."""

    def __init__(
        self,
        urls: str | Sequence[str],
        options: Mapping[str, str] | None = None,
        *,
        transport: Transport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        given = urls.split(",") if isinstance(urls, str) else list(urls)
        self._options = dict(options or {})
        for name in self._options:
            if name not in OPTIONS:
                raise ValueError(f"registry option {name} is not known; allowed: {', '.join(OPTIONS)}")
        self._urls, credentials = _bases(given)
        self._headers = {"Accept": ACCEPT, **_authorization(self._options, credentials)}
        self._timeout_s = _number(self._options, "timeout", 10.0)
        self._retries = int(_number(self._options, "max.retries", 3))
        self._wait_s = _number(self._options, "retries.wait.ms", 200) / 1000
        self._wait_max_s = _number(self._options, "retries.max.wait.ms", 5000) / 1000
        self._transport = transport or send
        self._sleep = sleep
        self._clock = clock
        self._first = 0
        self._tls: ssl.SSLContext | None = None
        self._by_id: dict[int, Schema] = {}
        self._missing: dict[int, tuple[float, NotRegistered]] = {}
        self._versions: dict[tuple[str, int], Version] = {}
        if any(url.startswith("https:") for url in self._urls):
            self._tls_context()  # so that an invalid file raises here

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        return state | {"_tls": None, "_by_id": {}, "_missing": {}, "_versions": {}}

    # -- Schemas --

    def schema(self, schema_id: int) -> Schema:
        """The schema of an id. Raises NotRegistered; RegistryUnreachable if no registry responds."""
        known = self._by_id.get(schema_id)
        if known is not None:
            return known
        missing = self._missing.get(schema_id)
        if missing is not None and self._clock() < missing[0]:
            raise missing[1].with_traceback(None)
        try:
            body = self._ask("GET", f"/schemas/ids/{schema_id}")
        except NotRegistered as error:
            self._missing[schema_id] = (self._clock() + MISSING_S, error)
            raise
        self._missing.pop(schema_id, None)
        found = self._by_id[schema_id] = _schema_of(body)
        return found

    def version(self, subject: str, version: int) -> Version:
        """One version of a subject. Raises NotRegistered."""
        known = self._versions.get((subject, version))
        if known is None:
            # A reference may name a soft-deleted version, which can still be read.
            known = self._version(subject, str(version), "?deleted=true")
            self._versions[subject, version] = known
        return known

    def latest(self, subject: str) -> Version:
        """The latest version of a subject that is not deleted. Raises NotRegistered."""
        return self._version(subject, "latest")

    def versions(self, subject: str) -> list[int]:
        """The versions of a subject that are not deleted. Raises NotRegistered."""
        return [int(version) for version in self._ask("GET", f"/subjects/{_quoted(subject)}/versions")]

    def subjects(self) -> list[str]:
        return [str(subject) for subject in self._ask("GET", "/subjects")]

    def lookup(self, subject: str, schema: Schema) -> Version:
        """The version of a subject that has this schema. Raises NotRegistered."""
        return _version_of(self._ask("POST", f"/subjects/{_quoted(subject)}", _body_of(schema)), schema)

    def referenced(self, schema: Schema) -> dict[str, Schema]:
        """All schemas that a schema refers to, directly or not, by name; a referenced schema precedes those
        that refer to it."""
        return {name: version.schema for name, version in self.references_of(schema).items()}

    def references_of(self, schema: Schema) -> dict[str, Version]:
        """As `referenced`, with the subject, version and id of each."""
        found: dict[str, Version] = {}
        self._gather(schema, found, ())
        return found

    def descriptor(self, schema_id: int) -> bytes:
        """The FileDescriptorProto of a Protobuf schema. Raises NotRegistered."""
        text = str(self._ask("GET", f"/schemas/ids/{schema_id}?format=serialized")["schema"])
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error:
            raise RegistryError(f"schema {schema_id}: the registry has no descriptor of it") from None

    def _gather(self, schema: Schema, found: dict[str, Version], above: tuple[Reference, ...]) -> None:
        for reference in schema.references:
            if reference in above:
                names = " → ".join(each.name for each in (*above, reference))
                raise RegistryError(f"schemas refer to each other in a circle: {names}")
            if reference.name not in found:
                target = self.version(reference.subject, reference.version)
                self._gather(target.schema, found, (*above, reference))
                found[reference.name] = target

    def compatibility(self, subject: str) -> str:
        """The compatibility level of a subject: BACKWARD, NONE and the like; the global one, unless it has
        its own."""
        body = self._ask("GET", f"/config/{_quoted(subject)}?defaultToGlobal=true")
        return str(body.get("compatibilityLevel", ""))

    # -- Writes --

    def register(self, subject: str, schema: Schema, *, normalize: bool = False) -> int:
        """The id of the schema, which is registered if it is new. Raises RegistryRefused: 409 if it is not
        compatible, 422 if it is invalid."""
        query = "?normalize=true" if normalize else ""
        body = self._ask("POST", f"/subjects/{_quoted(subject)}/versions{query}", _body_of(schema))
        return int(body["id"])

    def compatible(self, subject: str, schema: Schema, version: int | None = None) -> list[str]:
        """Why a schema is not compatible with the versions of a subject (or one of them); empty if it is."""
        which = "" if version is None else f"/{version}"
        path = f"/compatibility/subjects/{_quoted(subject)}/versions{which}?verbose=true"
        body = self._ask("POST", path, _body_of(schema))
        if body["is_compatible"]:
            return []
        return [str(message) for message in body.get("messages") or ["not compatible"]]

    def set_compatibility(self, level: str, subject: str | None = None) -> None:
        """Set the compatibility level of a subject, or the global one."""
        path = "/config" if subject is None else f"/config/{_quoted(subject)}"
        self._ask("PUT", path, {"compatibility": level})

    # -- Requests --

    def _version(self, subject: str, version: str, query: str = "") -> Version:
        return _version_of(self._ask("GET", f"/subjects/{_quoted(subject)}/versions/{version}{query}"))

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers if data is None else {**self._headers, "Content-Type": CONTENT_TYPE}
        last = "?"
        for attempt in range(self._retries + 1):
            if attempt:
                ceiling = min(self._wait_max_s, self._wait_s * 2.0 ** (attempt - 1))
                self._sleep(ceiling * (0.5 + environment.get().random.random() / 2))
            for _ in self._urls:
                base = self._urls[self._first % len(self._urls)]
                request = urllib.request.Request(base + path, data, headers, method=method)
                tls = self._tls_context() if base.startswith("https:") else None
                try:
                    answer = self._transport(request, self._timeout_s, tls)
                except (OSError, http.client.HTTPException) as error:
                    last = f"{base}: {_reason(error)}"
                else:
                    if answer.status < 300:
                        return _parsed(answer, f"{method} {base}{path}")
                    code, message = _error_of(answer)
                    if answer.status not in RETRIABLE:
                        kind = NotRegistered if answer.status == 404 else RegistryRefused
                        raise kind(f"{method} {base}{path}: {message} ({code})", answer.status, code)
                    last = f"{base}: {answer.status}, {message} ({code})"
                self._first += 1  # continue with the next URL, also in later requests
        raise RegistryUnreachable(f"{method} {path}: no response after {self._retries + 1} attempts; {last}")

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            options = self._options
            try:
                self._tls = ssl.create_default_context(cafile=options.get("ssl.ca.location"))
                if "ssl.certificate.location" in options:
                    self._tls.load_cert_chain(
                        options["ssl.certificate.location"],
                        options.get("ssl.key.location"),
                        options.get("ssl.key.password"),
                    )
            except OSError as error:
                names = ", ".join(
                    f"{key}={options[key]}" for key in OPTIONS if key.endswith("location") and key in options
                )
                raise ValueError(f"registry options {names}: {error}") from error
        return self._tls


def send(request: urllib.request.Request, timeout_s: float, tls: ssl.SSLContext | None) -> Answer:
    """Send one request by urllib; an error status is returned like any other."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=tls)] if tls else []
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=timeout_s) as response:
            return Answer(response.status, response.read(ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read(ANSWER_BYTES_MAX))


def _bases(urls: Sequence[str]) -> tuple[list[str], str | None]:
    """URLs without trailing slash and credentials, and the first credentials among them."""
    bases, credentials = [], None
    for given in urls:
        url = given.strip().rstrip("/")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(
                f"registry url {given.strip() or '(empty)'}: must be http[s]://HOST[:PORT][/PATH]"
            )
        user, at, host = parts.netloc.rpartition("@")
        if at and credentials is None:
            credentials = ":".join(unquote(part) for part in user.split(":", 1))
        bases.append(urlunsplit((parts.scheme, host, parts.path, "", "")))
    return bases, credentials


def _authorization(options: Mapping[str, str], credentials: str | None) -> dict[str, str]:
    token, user = options.get("bearer.auth.token"), options.get("basic.auth.user.info", credentials)
    if token is not None and "basic.auth.user.info" in options:
        raise ValueError("registry options: basic.auth.user.info and bearer.auth.token exclude each other")
    if token is not None:
        return {"Authorization": f"Bearer {token}"}
    if user is None:
        return {}
    if ":" not in user:
        raise ValueError("registry option basic.auth.user.info: must be USER:PASSWORD")
    return {"Authorization": "Basic " + base64.b64encode(user.encode()).decode()}


def _number(options: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(options.get(name, default))
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise ValueError(f"registry option {name}: {options[name]} is not a number from 0")
    return value


def _quoted(subject: str) -> str:
    return quote(subject, safe="")


def _reason(error: Exception) -> str:
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    return (inner.strerror if isinstance(inner, OSError) else None) or str(inner) or type(inner).__name__


def _parsed(answer: Answer, asked: str) -> Any:
    try:
        return json.loads(answer.body)
    except ValueError:
        raise RegistryRefused(
            f"{asked}: the response is not JSON; is this a schema registry?", answer.status, answer.status
        ) from None


def _error_of(answer: Answer) -> tuple[int, str]:
    """The code and message of an error; the HTTP status and the start of the body if it has none."""
    try:
        body = json.loads(answer.body)
        return int(body["error_code"]), str(body["message"])
    except (ValueError, TypeError, LookupError):
        start = answer.body[:200].decode(errors="replace").strip()
        return answer.status, start or http.client.responses.get(answer.status, "no reason given")


def _schema_of(body: Any) -> Schema:
    try:
        references = tuple(
            Reference(str(each["name"]), str(each["subject"]), int(each["version"]))
            for each in body.get("references") or ()
        )
        return Schema(str(body["schema"]), str(body.get("schemaType") or "AVRO"), references)
    except (AttributeError, LookupError, TypeError, ValueError):
        raise RegistryError(f"not a schema: {str(body)[:200]}; is this a schema registry?") from None


def _version_of(body: Any, schema: Schema | None = None) -> Version:
    found = schema or _schema_of(body)
    return Version(str(body["subject"]), int(body["version"]), int(body["id"]), found)


def _body_of(schema: Schema) -> dict[str, Any]:
    body: dict[str, Any] = {"schema": schema.text, "schemaType": schema.type}
    if schema.references:
        body["references"] = [
            {"name": each.name, "subject": each.subject, "version": each.version}
            for each in schema.references
        ]
    return body

"""The registry as an ASGI application: routes, content types, errors as JSON, health and metrics.

`command` serves it with uvicorn. The store starts and stops with it: connections are accepted only after
the schemas topic has been read to its end.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from ottla.client.registry import CONTENT_TYPE
from ottla.security.distinguished_names import MappingRules, subject_of
from ottla_pipeline.registry import access, errors
from ottla_pipeline.registry.api import ROUTES, Api, Handler, SchemaText, operation
from ottla_pipeline.registry.errors import Refused
from ottla_pipeline.registry.log import LogFailed, TopicUnusable
from ottla_pipeline.registry.store import Store

log = logging.getLogger(__name__)
Scope = MutableMapping[str, Any]
PEER: Final = "ottla.peer"
_CONTEXT: Final = "/contexts/{context}"
_UNAUTHORIZED: Final = 401
_CLIENT_GONE: Final = 499  # as nginx counts it
_ACCEPTED = (CONTENT_TYPE, "application/vnd.schemaregistry+json", "application/json")


class RegistryResponse(JSONResponse):
    """A JSON response with Confluent's content type."""

    media_type = CONTENT_TYPE

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


class Metrics:
    """Metrics of requests and of the store."""

    def __init__(self, store: Store) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "ottla_registry_requests", "Requests", ("method", "path", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "ottla_registry_request_seconds", "Response time", ("method",), registry=self.registry
        )
        for name, text, value in (
            ("subjects", "Subjects, deleted ones too", lambda: len(store.state.subjects)),
            ("highest_id", "The highest assigned id", lambda: store.state.highest_id()),
            ("offset", "Offset up to which the schemas topic has been read", lambda: store.reached),
            ("claims", "Number of times that this instance became the writer", lambda: store.claims),
        ):
            gauge = Gauge(f"ottla_registry_{name}", text, registry=self.registry)
            gauge.set_function(value)


class RegistryApp:
    """The ASGI callable. Paths reach the routes undecoded: %2F in a subject is no path separator."""

    def __init__(self, store: Store, authenticator: Authenticator | None = None) -> None:
        self._store = store
        self._authenticator = authenticator or Authenticator()
        self._metrics = Metrics(store)
        api = Api(store)
        routes = [
            Route(prefix + path, self._endpoint(api, method, path, handler), methods=[method])
            for method, path, handler in ROUTES
            for prefix in ("", _CONTEXT)
        ]
        routes += [Route("/healthz", self._health), Route("/metrics", self._show_metrics)]
        self._starlette = Starlette(
            routes=routes,
            exception_handlers={HTTPException: _http_error},
        )

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
            return
        if scope["type"] == "http":
            path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1").partition("?")[0]
            scope["path"] = path.rstrip("/") or "/"
        await self._starlette(scope, receive, send)

    async def _run_lifespan(self, receive: Any, send: Any) -> None:
        await receive()  # lifespan.startup
        try:
            await self._store.start()
        except (TopicUnusable, LogFailed) as failure:
            await self._store.stop()
            await send({"type": "lifespan.startup.failed", "message": str(failure)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()  # lifespan.shutdown
        await self._store.stop()
        await send({"type": "lifespan.shutdown.complete"})

    def _endpoint(
        self, api: Api, method: str, path: str, handler: Handler
    ) -> Callable[[Request], Awaitable[Response]]:
        needed = operation(method, path, handler)

        async def endpoint(request: Request) -> Response:
            with self._metrics.seconds.labels(method).time():
                try:
                    user = request.state.user = await self._authenticator.user_of(request)
                    subject = request.state.subject = api.subject_of(request)
                    if needed is not None:
                        access.check(user, needed, subject)
                    answer = await handler(api, request)
                    response = _response(request, answer)
                except Refused as refusal:
                    response = error(refusal.status, refusal.code, str(refusal))
                except ClientDisconnect:
                    response = Response(status_code=_CLIENT_GONE)  # the client has disconnected
                except Exception as failure:
                    response = _internal_error(request, failure)
            self._metrics.requests.labels(method, path, response.status_code).inc()
            return response

        return endpoint

    async def _health(self, request: Request) -> Response:
        failure = self._store.failure
        if failure is not None:
            return error(503, 503, failure)
        return RegistryResponse(
            {"status": "ok", "offset": self._store.reached, "writer": self._store.claimed}
        )

    async def _show_metrics(self, request: Request) -> Response:
        return Response(generate_latest(self._metrics.registry), media_type=CONTENT_TYPE_LATEST)


class Authenticator:
    """Authenticates requests by user name and password, or by the client's certificate. Without `rules`
    authentication is optional."""

    def __init__(self, rules: access.Access | None = None, mapping: MappingRules | None = None) -> None:
        self._rules = rules
        self._mapping = mapping or MappingRules("DEFAULT")
        self._passwords = access.Passwords({} if rules is None else rules.users)
        self._verifying = asyncio.Lock()

    async def user_of(self, request: Request) -> access.User:
        """The request's user. Raises Refused if authentication fails."""
        name = await self._by_password(request.headers.get("authorization"))
        certificate = request.scope.get(PEER)
        if name is None and certificate is not None:
            try:
                name = self._mapping.name_of(subject_of(certificate))
            except ValueError:
                raise errors.unauthorized() from None
        if name is None and self._rules is not None:
            raise errors.unauthorized()
        return access.User(name, self._rules)

    async def _by_password(self, header: str | None) -> str | None:
        if header is None or self._rules is None:
            return None
        given = access.credentials(header)
        if given is None:
            raise errors.unauthorized()
        if not self._passwords.is_known(*given):
            async with self._verifying:  # one at a time, because a verification takes memory and time
                if not await asyncio.to_thread(self._passwords.verify, *given):
                    raise errors.unauthorized()
        return given[0]


class PeerProtocol(H11Protocol):
    """Passes the client's certificate (DER) to the application."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        if certificate is not None:
            self.app = _with_peer(self.app, certificate)


def _with_peer(app: Any, certificate: bytes) -> Any:
    async def called(scope: Scope, receive: Any, send: Any) -> None:
        scope[PEER] = certificate
        await app(scope, receive, send)

    return called


def error(status: int, code: int, message: str) -> Response:
    headers = {"www-authenticate": 'Basic realm="ottla-registry"'} if status == _UNAUTHORIZED else None
    return RegistryResponse({"error_code": code, "message": message}, status, headers)


def _response(request: Request, answer: Any) -> Response:
    accepted = request.headers.get("accept", "")
    media = next((each for each in _ACCEPTED if each in accepted), CONTENT_TYPE)
    if isinstance(answer, SchemaText):
        return Response(str(answer), media_type=media)
    return RegistryResponse(answer, media_type=media)


async def _http_error(request: Request, exception: Exception) -> Response:
    assert isinstance(exception, HTTPException)
    return error(
        exception.status_code, exception.status_code, f"HTTP {exception.status_code} {exception.detail}"
    )


def _internal_error(request: Request, exception: Exception) -> Response:
    log.error("%s %s", request.method, request.url.path, exc_info=exception)
    return error(500, 50001, f"{type(exception).__name__}; the registry's log has the details")

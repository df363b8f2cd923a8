"""The console as an ASGI application: routes of the registered pages, sessions, guards, error pages.

`command` serves it. What every request to a page goes through, in this order: known host (`web.guard`),
cluster, session, for a POST origin and CSRF token and --writes, access (log-in), endpoint. Each step that
fails has a page that says what to do.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ottla.client.admin import AdminClient
from ottla.client.errors import ClientError
from ottla.protocol.errors import KafkaError
from ottla.security import https
from ottla_console.cluster.access import Access, Accesses, OpenLogs
from ottla_console.cluster.collecting import end
from ottla_console.cluster.credentials import Connect
from ottla_console.cluster.identity_provider import Fetch, IdentityProvider
from ottla_console.cluster.jobs import Jobs
from ottla_console.cluster.kubernetes_api import ApiServer, KubernetesApi, OnKubernetes
from ottla_console.cluster.log_reader import LogReader
from ottla_console.cluster.problems import problem_of
from ottla_console.cluster.resources import Resources, Source
from ottla_console.cluster.up_state import OfUp
from ottla_console.settings import Cluster, Login, Settings
from ottla_console.web.client_certificates import certificate_of
from ottla_console.web.guard import Guard, same_origin
from ottla_console.web.login import CALLBACK, LogIn, login_url
from ottla_console.web.page import BODY_MAX, Context, Page
from ottla_console.web.rendering import STATIC, Renderer
from ottla_console.web.sessions import Session, Sessions

log = logging.getLogger(__name__)

EXPIRE_S: Final = 30.0
FIELDS_MAX: Final = 500
_ASSETS: Final = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "htmx.min.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "records.js": "text/javascript",
}
_POLL: Final = "live"
"""The id of the element that refreshes itself: its requests do not keep a session open."""


class Refused(Exception):
    """The request ends with a page that says why."""

    def __init__(self, status: int, title: str, text: str) -> None:
        super().__init__(title)
        self.status = status
        self.title = title
        self.text = text


def _source(cluster: Cluster, open_kubernetes: Callable[[], KubernetesApi]) -> Source | None:
    """Where the cluster's resources are; None: not known."""
    if cluster.kubernetes is not None:
        return OnKubernetes(open_kubernetes(), cluster.kubernetes)
    return None if cluster.up is None else OfUp(cluster.up)


class Console:
    """The application with its state."""

    def __init__(
        self,
        settings: Settings,
        pages: Collection[Page],
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        connect: Connect = AdminClient,
        open_logs: OpenLogs = LogReader,
        fetch: Fetch = https.request,
        open_kubernetes: Callable[[], KubernetesApi] = ApiServer,
    ) -> None:
        self.settings = settings
        self._now_ms = now_ms
        self._resources = {
            each.name: Resources(source, now_ms, monotonic_s)
            for each in settings.clusters
            if (source := _source(each, open_kubernetes)) is not None
        }
        self._jobs = {
            each.name: Jobs(each.pipelines, fetch, now_ms, monotonic_s)
            for each in settings.clusters
            if each.pipelines
        }
        self.accesses = Accesses(now_ms, monotonic_s, connect, open_logs)
        self.sessions = Sessions(
            monotonic_s,
            lambda: secrets.token_urlsafe(32),
            self.accesses.release,
            idle_s=settings.idle_s,
            lifetime_s=settings.lifetime_s,
        )
        self._renderer = Renderer(settings, pages)
        self._log_in = LogIn(
            self._renderer,
            self.sessions,
            self.accesses,
            settings,
            connect,
            {
                each.name: IdentityProvider(each.oidc, monotonic_s, fetch)
                for each in settings.clusters
                if each.oidc is not None
            },
            now_ms,
        )
        self.cookie = "__Host-ottla-console" if settings.tls else "ottla-console"
        app = Starlette(
            routes=[
                Route("/", self._home),
                Route("/healthz", self._health),
                Route("/static/{name}", self._static),
                Route("/c/{cluster}/login", self._login_form, methods=["GET"]),
                Route("/c/{cluster}/login", self._login_submit, methods=["POST"]),
                Route("/c/{cluster}/login/provider", self._login_at_provider, methods=["GET"]),
                Route(CALLBACK, self._login_callback, methods=["GET"]),
                Route("/c/{cluster}/logout", self._logout, methods=["POST"]),
                *(
                    Route(f"/c/{{cluster}}/{page.path}", self._endpoint(page), methods=[page.method])
                    for page in pages
                ),
            ],
            exception_handlers={
                Refused: self._refused,
                HTTPException: self._not_found,
                **dict.fromkeys((ClientError, KafkaError, OSError), self._cluster_failed),
                Exception: self._failed,
            },
            lifespan=self._lifespan,
        )
        self.app: ASGIApp = Guard(app, settings.hosts, tls=settings.tls)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        expiring = asyncio.get_running_loop().create_task(self._expire())
        try:
            yield
        finally:
            await end(expiring)
            self.sessions.close_all()
            await self.accesses.close()
            for resources in self._resources.values():
                await resources.close()
            for jobs in self._jobs.values():
                await jobs.close()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_S)
            self.sessions.expire()

    # --- sessions ---

    def _session(self, request: Request) -> Session:
        poll = request.headers.get("hx-source", "").endswith(f"#{_POLL}")
        found = self.sessions.find(request.cookies.get(self.cookie), touch=not poll)
        return found or self.sessions.open()

    def _with_cookie(self, response: Response, session: Session) -> Response:
        response.set_cookie(
            self.cookie, session.id, path="/", secure=self.settings.tls, httponly=True, samesite="lax"
        )
        return response

    async def _access(self, request: Request, session: Session, cluster: Cluster) -> Access | None:
        """The session's access to a cluster; None if it needs a log-in."""
        held = session.accesses.get(cluster.name)
        proof = held.credentials if held else None
        if proof and not proof.usable(certificate_of(request), self._now_ms()):
            self.sessions.leave(session, cluster.name)
        if cluster.name not in session.accesses:
            if cluster.login.personal:
                return None
            access = await self.accesses.acquire(cluster, None)
            if cluster.name in session.accesses:  # by another request meanwhile
                self.accesses.release(access)
            else:
                session.accesses[cluster.name] = access
        return session.accesses[cluster.name]

    def _cluster(self, request: Request) -> Cluster:
        cluster = self.settings.cluster(request.path_params["cluster"])
        if cluster is None:
            raise Refused(404, "No such cluster", "The console has no cluster of this name.")
        return cluster

    async def _checked_form(
        self, request: Request, session: Session, most: int = BODY_MAX
    ) -> Mapping[str, str]:
        """The fields of a POST from a page of this session."""
        if not same_origin(request.headers, tls=self.settings.tls):
            raise Refused(
                403,
                "The request does not come from this console",
                "A change is only accepted from a page of the console. If a proxy serves it by HTTPS, start "
                "it with --https-proxy, and let the proxy keep the Host header.",
            )
        form = await _form(request, most)
        if not session.csrf_matches(form.get("csrf", "")):
            raise Refused(
                403,
                "The form is too old",
                "The session has changed since the page was loaded. Load it again.",
            )
        return form

    # --- pages ---

    def _endpoint(self, page: Page) -> Callable[[Request], object]:
        async def serve(request: Request) -> Response:
            cluster = self._cluster(request)
            session = self._session(request)
            form: Mapping[str, str] = {}
            if page.method == "POST":
                form = await self._checked_form(request, session, page.body_max)
            if page.changes and not self.settings.writes:
                raise Refused(403, "The console is read-only", "Start it with --writes to change clusters.")
            access = await self._access(request, session, cluster)
            if access is None:
                return self._with_cookie(_to_login(request, cluster), session)
            ctx = Context(
                request,
                page,
                session,
                access,
                self.settings,
                self._renderer.page,
                form,
                self._resources.get(cluster.name),
                self._jobs.get(cluster.name),
            )
            try:
                response = await page.endpoint(ctx)
            finally:
                if page.changes and not ctx.audited:
                    ctx.audit(page.path, "-", "nothing changed")
            return self._with_cookie(response, session)

        return serve

    async def _home(self, request: Request) -> Response:
        session = self._session(request)
        if len(self.settings.clusters) == 1:
            return self._with_cookie(RedirectResponse(f"/c/{self.settings.clusters[0].name}/", 303), session)
        page = self._renderer.plain("clusters.html", title="Clusters", session=session)
        return self._with_cookie(HTMLResponse(page), session)

    async def _login_form(self, request: Request) -> Response:
        cluster, session = self._cluster(request), self._session(request)
        if not cluster.login.personal:
            return RedirectResponse(f"/c/{cluster.name}/", 303)
        params = request.query_params
        form = self._log_in.form(request, session, cluster, params.get("next", ""), left="left" in params)
        return self._with_cookie(form, session)

    async def _login_submit(self, request: Request) -> Response:
        cluster, session = self._cluster(request), self._session(request)
        if not cluster.login.personal:
            raise Refused(404, "No log-in", "This cluster is used without a log-in.")
        form = await self._checked_form(request, session)
        return self._with_cookie(await self._log_in.submit(request, session, cluster, form), session)

    async def _login_at_provider(self, request: Request) -> Response:
        cluster, session = self._cluster(request), self._session(request)
        if cluster.login is not Login.OIDC:
            raise Refused(404, "No log-in", "Persons do not log in to this cluster at a provider.")
        return self._with_cookie(await self._log_in.to_provider(request, session, cluster), session)

    async def _login_callback(self, request: Request) -> Response:
        session = self._session(request)
        response = await self._log_in.from_provider(request, session)
        if response is None:
            raise Refused(
                400,
                "The log-in is too old",
                "It has been used, it began more than ten minutes ago, or in another browser. Begin again.",
            )
        return self._with_cookie(response, session)

    async def _logout(self, request: Request) -> Response:
        cluster, session = self._cluster(request), self._session(request)
        await self._checked_form(request, session)
        return self._with_cookie(self._log_in.out(session, cluster), session)

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _ASSETS:
            raise HTTPException(404)
        headers = {
            "Cache-Control": "public, max-age=31536000, immutable" if request.url.query else "no-cache"
        }
        return FileResponse(STATIC / name, media_type=_ASSETS[name], headers=headers)

    async def _health(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    # --- pages of failures ---

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        return self._message(error.status, error.title, error.text)

    async def _not_found(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            return self._message(
                404, "No such page", "The address is not one of the console's. Start at the overview."
            )
        return self._message(error.status_code, error.detail, "Go back, and try again.")

    async def _cluster_failed(self, request: Request, error: Exception) -> Response:
        problem = problem_of(error, "the request")
        return self._message(502, "The cluster refused the request", f"{problem.reason}. {problem.advice}")

    async def _failed(self, request: Request, error: Exception) -> Response:
        text = "The log of the console has the details. Load the page again; if it fails again, report it."
        return self._message(500, "The console failed", text)

    def _message(self, status: int, title: str, text: str) -> Response:
        return HTMLResponse(self._renderer.plain("message.html", title=title, text=text), status)


def _to_login(request: Request, cluster: Cluster) -> Response:
    """To the log-in; htmx loads it as a page, since its part of the page has no place for a form."""
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    target = login_url(cluster, here if request.method == "GET" else "")
    if request.headers.get("hx-request") == "true":
        return Response(status_code=200, headers={"HX-Redirect": target})
    return RedirectResponse(target, 303)


async def _form(request: Request, most: int) -> dict[str, str]:
    """The fields of a URL-encoded form; the last of several with one name."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(415, "Not a form", "The console accepts application/x-www-form-urlencoded.")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise Refused(413, "The form is too large", f"It may have {most:,} bytes.")
    try:
        return dict(
            parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=False, max_num_fields=FIELDS_MAX)
        )
    except ValueError:
        raise Refused(400, "Not a form", "The body is not a URL-encoded form.") from None

"""The list of clusters, log-in and log-out.

A log-in is tried against the brokers at once; what they refuse is shown as they say it. Session ids and CSRF
tokens change at each log-in.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ottla.client import errors
from ottla.client.errors import ClientError
from ottla.protocol.errors import KafkaError
from ottla_console.cluster.access import Accesses, Credentials
from ottla_console.cluster.problems import Kind, Problem, problem_of
from ottla_console.settings import Cluster, Login
from ottla_console.web.rendering import Renderer
from ottla_console.web.sessions import Session, Sessions

log = logging.getLogger(__name__)
TEXT_MAX: Final = 1_000
"""Characters of a user or a password."""
_INCOMPLETE: Final = Problem(Kind.FAILED, "the log-in", "Give a user, a password and a mechanism.")


@dataclass(frozen=True)
class LoginView:
    """The form, after a failure with what was wrong."""

    cluster: Cluster
    csrf: str
    after: str
    user: str = ""
    mechanism: str = ""
    problem: Problem | None = None


class LogIn:
    """The routes of the module."""

    def __init__(self, renderer: Renderer, sessions: Sessions, accesses: Accesses) -> None:
        self._renderer = renderer
        self._sessions = sessions
        self._accesses = accesses

    def form(self, session: Session, cluster: Cluster, after: str) -> Response:
        return self._page(session, LoginView(cluster, session.csrf, local(after, cluster)))

    async def submit(
        self, request: Request, session: Session, cluster: Cluster, form: Mapping[str, str]
    ) -> Response:
        """Log in. The caller has checked origin and CSRF token."""
        user, password = form.get("user", ""), form.get("password", "")
        mechanism, after = form.get("mechanism", ""), local(form.get("next", ""), cluster)
        tried = LoginView(cluster, session.csrf, after, user[:TEXT_MAX], mechanism)
        if mechanism not in cluster.mechanisms or not user or max(len(user), len(password)) > TEXT_MAX:
            return self._page(session, tried, _INCOMPLETE, 400)
        client = request.client.host if request.client else "-"
        try:
            access = await self._accesses.acquire(cluster, Credentials(mechanism, user, password))
        except (ClientError, KafkaError, OSError, ValueError) as error:
            log.info(
                "log-in refused cluster=%s client=%s user=%r: %s",
                cluster.name,
                client,
                user,
                type(error).__name__,
            )
            refused = isinstance(error, (errors.AuthenticationError, ValueError))
            problem = problem_of(error, "the log-in")
            if isinstance(error, errors.AuthenticationError):
                problem = Problem(problem.kind, problem.what, "The brokers refused this user and password.")
            return self._page(session, tried, problem, 401 if refused else 503)
        self._sessions.leave(session, cluster.name)
        self._sessions.renew(session)
        session.accesses[cluster.name] = access
        log.info("log-in cluster=%s client=%s principal=%r", cluster.name, client, access.principal)
        return RedirectResponse(after, 303)

    def out(self, session: Session, cluster: Cluster) -> Response:
        self._sessions.leave(session, cluster.name)
        return RedirectResponse(login_url(cluster) if cluster.login is Login.PASSWORD else "/", 303)

    def _page(
        self, session: Session, view: LoginView, problem: Problem | None = None, status: int = 200
    ) -> Response:
        shown = LoginView(view.cluster, session.csrf, view.after, view.user, view.mechanism, problem)
        page = self._renderer.plain("login.html", title=f"Log in to {view.cluster.name}", view=shown)
        return HTMLResponse(page, status)


def login_url(cluster: Cluster, after: str = "") -> str:
    return f"/c/{cluster.name}/login" + (f"?next={quote(after, safe='')}" if after else "")


def local(after: str, cluster: Cluster) -> str:
    """A path of the cluster's pages, to go to after a log-in; the overview for anything else."""
    start = f"/c/{cluster.name}/"
    safe = (
        after.startswith(start)
        and after.isprintable()
        and "\\" not in after
        and "//" not in after.partition("?")[0]
    )
    return after if safe else start

"""The list of clusters, log-in and log-out.

A log-in is tried against the brokers at once; what they refuse is shown as they say it. Session ids and CSRF
tokens change at each log-in. A log-in by certificate is a form, too: it is the person who begins it, and who
sees as which principal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ottla.client import errors
from ottla.client.errors import ClientError
from ottla.protocol.errors import KafkaError
from ottla.security.acls import Operation, ResourceType
from ottla.security.distinguished_names import MappingRules, subject_of
from ottla_console.cluster.access import Accesses
from ottla_console.cluster.bearer import BearerTokens
from ottla_console.cluster.credentials import (
    Connect,
    Credentials,
    Password,
    delegation_token,
    own_principal,
)
from ottla_console.cluster.identity_provider import IdentityProvider, ProviderProblem
from ottla_console.cluster.problems import Kind, Need, Problem, problem_of
from ottla_console.settings import Cluster, Login, Settings
from ottla_console.web.client_certificates import certificate_of
from ottla_console.web.rendering import Renderer
from ottla_console.web.sessions import Session, Sessions

log = logging.getLogger(__name__)
CALLBACK: Final = "/login/callback"
"""Where OpenID providers send the browser back to, of all clusters."""
TEXT_MAX: Final = 1_000
"""Characters of a user or a password."""
FAILURES: Final = (ClientError, KafkaError, OSError, ValueError)
_REFUSED: Final = {
    Login.PASSWORD: "this user and password",
    Login.CERTIFICATE: "the delegation token of the log-in",
    Login.OIDC: "the access token of the provider: their logs have the reason",
}
_INCOMPLETE: Final = Problem(Kind.FAILED, "the log-in", "Give a user, a password and a mechanism.")
_NO_CERTIFICATE: Final = Problem(
    Kind.FORBIDDEN,
    "the log-in",
    "The browser has presented no client certificate.",
    "Import a certificate with its key into the browser, close all of its windows, and come again.",
)


@dataclass(frozen=True)
class LoginView:
    """The form, after a failure with what was wrong."""

    cluster: Cluster
    csrf: str
    after: str
    user: str = ""
    mechanism: str = ""
    problem: Problem | None = None
    subject: str = ""
    """Of the client certificate."""
    principal: str = ""
    """Of the client certificate by the rules of the cluster."""
    provider: str = ""
    """The name of the OpenID provider."""
    start: str = ""
    """Where the log-in at the provider begins."""
    end_session: str = ""
    """Where the provider logs out."""
    left: bool = False
    """After a log-out."""


class LogIn:
    """The routes of the module."""

    def __init__(
        self,
        renderer: Renderer,
        sessions: Sessions,
        accesses: Accesses,
        settings: Settings,
        connect: Connect,
        providers: Mapping[str, IdentityProvider],
        now_ms: Callable[[], int],
    ) -> None:
        """`providers`: of clusters with log-in by OIDC."""
        self._renderer = renderer
        self._sessions = sessions
        self._accesses = accesses
        self._settings = settings
        self._connect = connect
        self._providers = providers
        self._now_ms = now_ms

    def form(
        self, request: Request, session: Session, cluster: Cluster, after: str, *, left: bool = False
    ) -> Response:
        """`left`: the person has just logged out."""
        return self._page(session, replace(_view(request, session, cluster, after), left=left))

    async def submit(
        self, request: Request, session: Session, cluster: Cluster, form: Mapping[str, str]
    ) -> Response:
        """Log in. The caller has checked origin and CSRF token."""
        tried = _view(request, session, cluster, form.get("next", ""))
        if cluster.login is Login.OIDC:
            return self._page(session, tried, 400)
        if cluster.login is Login.CERTIFICATE:
            return await self._by_certificate(request, session, tried)
        user, password = form.get("user", ""), form.get("password", "")
        tried = replace(tried, user=user[:TEXT_MAX], mechanism=form.get("mechanism", ""))
        wrong = not user or max(len(user), len(password)) > TEXT_MAX
        if tried.mechanism not in cluster.mechanisms or wrong:
            return self._page(session, replace(tried, problem=_INCOMPLETE), 400)
        return await self._with(request, session, tried, Password(tried.mechanism, user, password))

    async def _by_certificate(self, request: Request, session: Session, tried: LoginView) -> Response:
        certificate = certificate_of(request)
        if certificate is None or not tried.principal:
            return self._page(session, tried, 401)
        cluster, lifetime_ms = tried.cluster, int(self._settings.lifetime_s * 1000)
        try:
            token = await delegation_token(cluster, tried.principal, certificate, lifetime_ms, self._connect)
        except FAILURES as error:
            self._log_refused(request, cluster, tried.principal, error)
            return self._page(session, replace(tried, problem=_token_problem(error, tried)), 503)
        return await self._with(request, session, tried, token)

    # --- at an OpenID provider ---

    async def to_provider(self, request: Request, session: Session, cluster: Cluster) -> Response:
        """Send the browser to the provider, with the state of this log-in."""
        tried = _view(request, session, cluster, request.query_params.get("next", ""))
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return self._page(session, tried)  # a page elsewhere does not begin a log-in
        redirect_uri = f"{'https' if self._settings.tls else 'http'}://{request.headers['host']}{CALLBACK}"
        state, flow = self._sessions.begin_flow(session, cluster.name, redirect_uri, tried.after)
        try:
            url = await self._providers[cluster.name].authorization_url(
                redirect_uri, state, flow.nonce, flow.verifier
            )
        except ProviderProblem as problem:
            return self._provider_failed(request, session, tried, problem)
        return RedirectResponse(url, 303)

    async def from_provider(self, request: Request, session: Session) -> Response | None:
        """The browser comes back, with a code or an error; None if this session has not begun the log-in."""
        params = request.query_params
        flow = self._sessions.take_flow(session, params.get("state", ""))
        cluster = None if flow is None else self._settings.cluster(flow.cluster)
        if flow is None or cluster is None or cluster.oidc is None:
            return None
        provider = self._providers[cluster.name]
        tried = _view(request, session, cluster, flow.after)
        try:
            if params.get("iss", cluster.oidc.issuer) != cluster.oidc.issuer:  # RFC 9207
                raise ProviderProblem("the answer is of another issuer")
            if "error" in params or not params.get("code"):
                named = params.get("error", "no code")
                text = named if named.isascii() and named.isprintable() else "error"
                raise ProviderProblem(f"it responded {text[:60]}", refused=True)
            tokens = await provider.exchange(params["code"], flow.redirect_uri, flow.verifier, flow.nonce)
            credentials = BearerTokens(cluster, provider, tokens, self._now_ms)
        except ProviderProblem as problem:
            return self._provider_failed(request, session, tried, problem)
        return await self._with(request, session, tried, credentials)

    def _provider_failed(
        self, request: Request, session: Session, tried: LoginView, problem: ProviderProblem
    ) -> Response:
        self._log_refused(request, tried.cluster, "-", problem, str(problem))
        name = self._providers[tried.cluster.name].name
        shown = Problem(Kind.FAILED, "the log-in", f"The provider {name} did not log you in: {problem}.")
        return self._page(session, replace(tried, problem=shown), 401 if problem.refused else 503)

    # --- all ---

    async def _with(
        self, request: Request, session: Session, tried: LoginView, credentials: Credentials
    ) -> Response:
        cluster = tried.cluster
        try:
            access = await self._accesses.acquire(cluster, credentials)
        except FAILURES as error:
            self._log_refused(request, cluster, tried.user or credentials.principal, error)
            refused = isinstance(error, (errors.AuthenticationError, ValueError))
            problem = problem_of(error, "the log-in")
            if isinstance(error, errors.AuthenticationError):
                what = _REFUSED[cluster.login]
                problem = Problem(problem.kind, problem.what, f"The brokers refused {what}.")
            return self._page(session, replace(tried, problem=problem), 401 if refused else 503)
        self._sessions.leave(session, cluster.name)
        self._sessions.renew(session)
        session.accesses[cluster.name] = access
        log.info("log-in cluster=%s client=%s principal=%r", cluster.name, _client(request), access.principal)
        return RedirectResponse(tried.after, 303)

    def _log_refused(
        self, request: Request, cluster: Cluster, user: str, error: Exception, reason: str = ""
    ) -> None:
        log.info(
            "log-in refused cluster=%s client=%s user=%r: %s",
            cluster.name,
            _client(request),
            user[:TEXT_MAX],
            reason or type(error).__name__,
        )

    def out(self, session: Session, cluster: Cluster) -> Response:
        self._sessions.leave(session, cluster.name)
        if cluster.login is Login.OIDC:
            return RedirectResponse(f"{login_url(cluster)}?left=1", 303)
        return RedirectResponse(login_url(cluster) if cluster.login.personal else "/", 303)

    def _page(self, session: Session, view: LoginView, status: int = 200) -> Response:
        provider = self._providers.get(view.cluster.name)
        shown = replace(view, csrf=session.csrf)
        if provider is not None:
            start = f"/c/{view.cluster.name}/login/provider?next={quote(view.after, safe='')}"
            shown = replace(shown, provider=provider.name, start=start, end_session=provider.end_session_url)
        page = self._renderer.plain("login.html", title=f"Log in to {view.cluster.name}", view=shown)
        return HTMLResponse(page, status)


def _view(request: Request, session: Session, cluster: Cluster, after: str) -> LoginView:
    view = LoginView(cluster, session.csrf, local(after, cluster))
    if cluster.login is not Login.CERTIFICATE:
        return view
    certificate = certificate_of(request)
    if certificate is None:
        return replace(view, problem=_NO_CERTIFICATE)
    try:
        subject = subject_of(certificate)
        return replace(
            view,
            subject=subject,
            principal=f"User:{MappingRules(cluster.principal_mapping).name_of(subject)}",
        )
    except ValueError as error:
        problem = Problem(
            Kind.FORBIDDEN,
            "the log-in",
            f"The client certificate gives no user: {error}.",
            "Log in with another certificate, or let an administrator change ssl.principal.mapping.rules.",
        )
        return replace(view, problem=problem)


def _token_problem(error: Exception, tried: LoginView) -> Problem:
    """Why the console's own user could not have a token made."""
    what = f"a delegation token for {tried.principal}"
    own = own_principal(tried.cluster)
    if isinstance(error, errors.AuthenticationError):
        return Problem(
            Kind.FAILED,
            what,
            f"The brokers refused the console's own user {own}, who creates {what}.",
            "An administrator of the console can correct sasl.jaas.config.",
        )
    if isinstance(error, errors.DelegationTokenAuthDisabledError):
        return Problem(
            Kind.UNSUPPORTED,
            what,
            "The brokers have no delegation tokens, by which the console acts as the owner of a certificate.",
            "An administrator can enable them: delegation.token.secret.key, the same on all brokers.",
        )
    if isinstance(error, errors.DelegationTokenAuthorizationFailedError):
        need = Need(Operation.CREATE_TOKENS, ResourceType.USER, tried.principal)
        problem = problem_of(errors.AuthorizationError(str(error)), what, need, own)
        return replace(problem, reason=f"The console may not create {what}: {problem.reason}.")
    return problem_of(error, what)


def _client(request: Request) -> str:
    return request.client.host if request.client else "-"


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

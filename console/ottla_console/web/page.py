"""A page as the registry lists it, and the context that its endpoint gets.

An endpoint is a coroutine function of a `Context`: it reads what it needs (`snapshot`, `reader`), calls its
view model, and returns `render(template, view)`, or for a change `redirect`. What all pages need before
(session, log-in, CSRF, writes) the application has done by then.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ottla.client.errors import ClientError
from ottla_console.cluster.access import Access
from ottla_console.cluster.collecting import Reader
from ottla_console.cluster.jobs import Job, Jobs
from ottla_console.cluster.resources import Resources, State
from ottla_console.cluster.snapshot import Part, Snapshot
from ottla_console.settings import Settings
from ottla_console.views.tables import Query
from ottla_console.web.sessions import Session

audit_log = logging.getLogger("ottla_console.audit")

FIRST_WAIT_S: Final = 0.4
"""The longest that a page waits for a first collection; then it shows what is known and refreshes itself."""
BODY_MAX: Final = 64 * 1024

Render: TypeAlias = Callable[["Context", str, Mapping[str, Any]], str]


@dataclass(frozen=True, slots=True)
class Nav:
    """A place in the navigation."""

    section: str
    label: str
    order: int
    registry: bool = False
    """Only for clusters with a schema registry."""
    resources: bool = False
    """Only for clusters whose custom resources are known."""


@dataclass(frozen=True, slots=True)
class Tab:
    """A place among the tabs of a thing: `of` names them (`topic`, `group`)."""

    of: str
    label: str
    order: int
    audits: bool = False
    """Only for clusters whose audits can be known."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page. `path` is below the cluster's: `topics/{name}/settings`. Names that clients choose freely
    (groups, users, transactional ids) are parameters of the query, since a path cannot have all of them."""

    path: str
    endpoint: Callable[[Context], Awaitable[Response]]
    title: str
    nav: Nav | None = None
    tab: Tab | None = None
    under: str | None = None
    """The path of the page in the navigation that this one belongs to."""
    method: str = "GET"
    changes: bool = False
    """Changes the cluster: served with --writes only, and audited."""
    keep: tuple[str, ...] = ()
    """Parameters of the query that tabs keep."""
    body_max: int = BODY_MAX
    """Bytes of a form."""


class Context:
    """One request to a page of a cluster."""

    def __init__(
        self,
        request: Request,
        page: Page,
        session: Session,
        access: Access,
        settings: Settings,
        render: Render,
        form: Mapping[str, str],
        resources: Resources | None = None,
        jobs: Jobs | None = None,
    ) -> None:
        self.request = request
        self.page = page
        self.session = session
        self.access = access
        self.settings = settings
        self._render = render
        self.form = form
        """The fields of a POST."""
        self._resources = resources
        self._jobs = jobs
        self.audited = False

    # --- reading ---

    @property
    def params(self) -> Mapping[str, str]:
        """Of the query."""
        return self.request.query_params

    @property
    def name(self) -> str:
        """The parameter {name} of the path."""
        return str(self.request.path_params["name"])

    def query(self, *others: str, rows: int = 25) -> Query:
        return Query.of(self.params, *others, rows=rows)

    @property
    def reader(self) -> Reader:
        """Details on demand: `await ctx.reader.read(ctx.reader.admin.…, what, need)`."""
        return self.access.reader

    def now_ms(self) -> int:
        """The wall clock."""
        return self.access.reader.now_ms()

    async def snapshot(self, *parts: str) -> Snapshot:
        """The newest snapshot; waits a moment for parts that have never been collected."""
        return await self.access.collector.wait_for(parts, FIRST_WAIT_S)

    async def jobs(self) -> Part[tuple[Job, ...]]:
        """The jobs of the pipeline whose status ports are configured."""
        return Part((), (), self.now_ms()) if self._jobs is None else await self._jobs.state(FIRST_WAIT_S)

    async def resources(self) -> Part[State] | None:
        """The cluster's custom resources, if the console is configured to read them."""
        return None if self._resources is None else await self._resources.state(FIRST_WAIT_S)

    @property
    def fragment(self) -> bool:
        """Whether htmx asks for the live part of the page alone."""
        return self.request.headers.get("hx-request") == "true"

    # --- responding ---

    def url(self, *path: object, **params: object) -> str:
        """The URL of a page of this cluster: `url("topics", name)`, `url("group", id=group)`."""
        parts = "/".join(quote(str(each), safe="") for each in path)
        query = urlencode({key: str(value) for key, value in params.items() if value is not None})
        return f"/c/{self.access.cluster.name}/{parts}" + (f"?{query}" if query else "")

    def render(self, template: str, view: object, *, status: int = 200) -> Response:
        """A page; the template has the view as `view`."""
        return HTMLResponse(self._render(self, template, {"view": view}), status)

    def redirect(self, *path: object, flash: str = "", failed: bool = False, **params: object) -> Response:
        """After a change: another page, which shows the message once."""
        if flash:
            self.session.flash(flash, failed=failed)
        return RedirectResponse(self.url(*path, **params), 303)

    # --- changing ---

    @property
    def may_write(self) -> bool:
        return self.settings.writes

    @asynccontextmanager
    async def change(self, action: str, resource: str, **details: object) -> AsyncIterator[None]:
        """Around the requests of a change: writes its line of the audit log, success or failure, and lets the
        snapshot follow soon."""
        try:
            yield
        except BaseException as error:
            self.audit(
                action,
                resource,
                error.name if isinstance(error, ClientError) else type(error).__name__,
                **details,
            )
            raise
        self.audit(action, resource, "done", **details)
        self.access.collector.refresh()

    def audit(self, action: str, resource: str, outcome: str, **details: object) -> None:
        """One line of the audit log. Never give it a password or the value of a record."""
        self.audited = True
        client = self.request.client.host if self.request.client else "-"
        fields = {
            "cluster": self.access.cluster.name,
            "principal": self.access.principal or "-",
            "client": client,
            "action": action,
            "resource": resource,
            "outcome": outcome,
            **details,
        }
        audit_log.info(" ".join(f"{key}={_field(value)}" for key, value in fields.items()))


def _field(value: object) -> str:
    text = str(value)
    plain = text and not any(each.isspace() or each in '"=\\' for each in text)
    return text if plain else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def navigation(pages: Collection[Page]) -> dict[str, list[Page]]:
    """The pages of the navigation by section, in their order."""
    listed = sorted((page for page in pages if page.nav), key=lambda page: page.nav.order if page.nav else 0)
    sections: dict[str, list[Page]] = {}
    for page in listed:
        assert page.nav is not None
        sections.setdefault(page.nav.section, []).append(page)
    return sections


def tabs(pages: Collection[Page], of: str) -> list[Page]:
    """The tabs of a thing, in their order."""
    return sorted(
        (page for page in pages if page.tab and page.tab.of == of),
        key=lambda page: page.tab.order if page.tab else 0,
    )

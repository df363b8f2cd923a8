"""Jinja's environment: everything is escaped; undefined names are errors; filters of `views.formats`.

A page's templates are in its own folder (`topics/list.html`), those of all pages in `web/templates`. A
template extends `layout`, a variable: the whole page for a browser, or its live block alone for htmx.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ottla import __version__
from ottla_console.settings import Login, Settings
from ottla_console.views import charts, formats
from ottla_console.web.page import Context, Page, navigation, tabs

_HERE: Final = Path(__file__).parent
STATIC: Final = _HERE / "static"
_PAGES: Final = _HERE.parent / "pages"
_FILTERS: Final = (
    *("ago", "broker_ids", "byte_rate", "compact", "count", "duration", "number"),
    *("percent", "rate", "shown", "size", "time"),
)
LIVE_S: Final = 5
LIVE_SOON_S: Final = 1


@cache
def environment() -> Environment:
    """The environment, with the compiled templates; the same for all applications of a process."""
    found = Environment(
        loader=FileSystemLoader([_HERE / "templates", _PAGES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters |= {name: getattr(formats, name) for name in _FILTERS} | {"name": name_of}
    found.globals |= {
        "sparkline": charts.sparkline,
        "chart": charts.line,
        "bar": charts.bar,
        "formats": formats,
        "asset": asset,
        "version": __version__,
    }
    return found


class Renderer:
    """Renders the templates of a set of pages."""

    def __init__(self, settings: Settings, pages: Collection[Page]) -> None:
        self._pages = pages
        self._common = {
            "sections": navigation(pages),
            "clusters": settings.clusters,
            "settings": settings,
            "Login": Login,
        }

    def page(self, ctx: Context, template: str, variables: Mapping[str, Any]) -> str:
        """A page of a cluster, or its live part."""
        collector = ctx.access.collector
        return (
            environment()
            .get_template(template)
            .render(
                {**self._common, **variables},
                layout="fragment.html" if ctx.fragment else "layout.html",
                ctx=ctx,
                page=ctx.page,
                title=ctx.page.title,
                cluster=ctx.access.cluster,
                principal=ctx.access.principal,
                session=ctx.session,
                url=ctx.url,
                tabs=lambda of: [
                    (page, self._tab_url(ctx, page))
                    for page in tabs(self._pages, of)
                    if page.tab and (ctx.access.cluster.audited or not page.tab.audits)
                ],
                here=str(ctx.request.url.path)
                + (f"?{ctx.request.url.query}" if ctx.request.url.query else ""),
                live_s=LIVE_S if collector.snapshot.started else LIVE_SOON_S,
                flashes=[] if ctx.fragment else ctx.session.take_flashes(),
            )
        )

    def plain(self, template: str, **variables: object) -> str:
        """A page outside of a cluster."""
        empty: dict[str, object] = {"cluster": None, "principal": "", "flashes": [], "page": None}
        return (
            environment()
            .get_template(template)
            .render({**self._common, **empty, "layout": "layout.html", **variables})
        )

    @staticmethod
    def _tab_url(ctx: Context, page: Page) -> str:
        path = [
            str(ctx.request.path_params.get(part[1:-1], part)) if part.startswith("{") else part
            for part in page.path.split("/")
        ]
        return ctx.url(*path, **{name: ctx.params.get(name) for name in page.keep})


def name_of(name: str) -> Markup:
    """A name that clients chose: escaped, isolated from the direction of the text around it."""
    return Markup('<bdi class="name">{}</bdi>').format(formats.shown(name))


@cache
def asset(name: str) -> str:
    """The URL of a static file, which changes with its content."""
    return f"/static/{name}?v={sha256((STATIC / name).read_bytes()).hexdigest()[:12]}"

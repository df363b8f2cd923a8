"""The overview: is the cluster well, what flows through it, which broker or topic or group stands out."""

from __future__ import annotations

from starlette.responses import Response

from ottla_console.pages.overview.view import overview_of
from ottla_console.web.page import Context, Nav, Page


async def show(ctx: Context) -> Response:
    snapshot = await ctx.snapshot("cluster", "topics")
    view = overview_of(snapshot, await ctx.resources(), ctx.now_ms())
    return ctx.render("overview/overview.html", view)


PAGES = (Page("", show, "Overview", nav=Nav("Cluster", "Overview", 0)),)

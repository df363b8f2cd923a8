"""The cluster's custom resources: conditions, what is under way, the last Events."""

from __future__ import annotations

from starlette.responses import Response

from ottla_console.pages.resources.view import view_of
from ottla_console.web.page import Context, Nav, Page


async def show(ctx: Context) -> Response:
    return ctx.render("resources/resources.html", view_of(await ctx.resources(), ctx.query(), ctx.now_ms()))


PAGES = (Page("resources", show, "Resources", nav=Nav("Cluster", "Resources", 3, resources=True)),)

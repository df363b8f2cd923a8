"""The partitions of all topics that have no leader, or replicas that are not in sync, and since when."""

from __future__ import annotations

from starlette.responses import Response

from ottla_console.pages.partitions.view import partitions_of
from ottla_console.web.page import Context, Page


async def show(ctx: Context) -> Response:
    view = partitions_of(await ctx.snapshot("topics"), ctx.query(), ctx.now_ms())
    return ctx.render("partitions/list.html", view)


PAGES = (Page("partitions", show, "Partitions not in sync", under=""),)

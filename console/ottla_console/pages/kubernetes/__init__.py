"""The cluster's resources on Kubernetes: conditions, what is under way, the last Events."""

from __future__ import annotations

from starlette.responses import Response

from ottla_console.pages.kubernetes.view import view_of
from ottla_console.web.page import Context, Nav, Page


async def show(ctx: Context) -> Response:
    return ctx.render("kubernetes/resources.html", view_of(await ctx.kubernetes(), ctx.query(), ctx.now_ms()))


PAGES = (Page("kubernetes", show, "Kubernetes", nav=Nav("Cluster", "Kubernetes", 3, kubernetes=True)),)

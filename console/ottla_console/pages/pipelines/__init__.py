"""The jobs of the pipeline with their lag, and what audits say of a topic."""

from __future__ import annotations

from starlette.responses import Response

from ottla_console.pages.pipelines.view import completeness_of, pipelines_of
from ottla_console.web.page import Context, Nav, Page, Tab


async def show_list(ctx: Context) -> Response:
    """All jobs that are known."""
    snapshot = await ctx.snapshot("groups", "committed", "end_offsets")
    jobs, resources = await ctx.jobs(), await ctx.resources()
    view = pipelines_of(snapshot, jobs, resources, ctx.now_ms(), ctx.query())
    return ctx.render("pipelines/list.html", view)


async def show_completeness(ctx: Context) -> Response:
    """What audits say of a topic. Those who may not describe the topic do not see it."""
    snapshot = await ctx.snapshot("topics")
    topic = snapshot.known_topics.get(ctx.name)
    jobs, resources = await ctx.jobs(), await ctx.resources()
    view = completeness_of(ctx.name, topic, jobs, resources, ctx.now_ms())
    return ctx.render("pipelines/completeness.html", view, status=200 if topic else 404)


PAGES = (
    Page("pipelines", show_list, "Pipelines", nav=Nav("Data", "Pipelines", 45)),
    Page(
        "topics/{name}/completeness",
        show_completeness,
        "Completeness of a topic",
        tab=Tab("topic", "Completeness", 35, audits=True),
        under="topics",
    ),
)

"""Topics: the list with search and favourites; a topic with its partitions, settings, groups and ACLs."""

from __future__ import annotations

import asyncio

from starlette.responses import RedirectResponse, Response

from ottla.client.admin_types import ConfigResource, ConfigType, TopicPartition
from ottla.security.acls import AclFilter, Operation, PatternFilter, PatternType, ResourceType
from ottla_console.cluster.collecting import DESCRIBE_CLUSTER
from ottla_console.cluster.problems import Need
from ottla_console.cluster.snapshot import Part
from ottla_console.pages.topics import favourites
from ottla_console.pages.topics.topic_view import acls_of, groups_of, head_of, partitions_of, settings_of
from ottla_console.pages.topics.view import topics_of
from ottla_console.web.login import local
from ottla_console.web.page import Context, Nav, Page, Tab


async def show_list(ctx: Context) -> Response:
    snapshot = await ctx.snapshot("topics")
    starred = favourites.read(ctx.request.cookies.get(favourites.cookie(ctx.access.cluster.name)))
    return ctx.render("topics/list.html", topics_of(snapshot, ctx.query("internal", "starred"), starred))


async def star(ctx: Context) -> Response:
    """Mark a topic, or take the mark away; the marks are in a cookie."""
    name = favourites.cookie(ctx.access.cluster.name)
    starred = favourites.toggled(favourites.read(ctx.request.cookies.get(name)), ctx.form.get("topic", ""))
    response = RedirectResponse(local(ctx.form.get("next", ""), ctx.access.cluster), 303)
    response.set_cookie(
        name, favourites.written(starred), max_age=favourites.AGE_S, path=f"/c/{ctx.access.cluster.name}/",
        secure=ctx.settings.tls, httponly=True, samesite="lax",
    )  # fmt: skip
    return response


async def show_partitions(ctx: Context) -> Response:
    snapshot = await ctx.snapshot("topics", "log_dirs", "end_offsets")
    head = head_of(snapshot, ctx.name)
    starts: Part[dict[TopicPartition, int]] = Part()
    if head.topic is not None:
        led = [(ctx.name, each.partition) for each in head.topic.partitions if each.leader >= 0]
        reader = ctx.reader
        starts, ends = await asyncio.gather(
            reader.read(reader.admin.start_offsets(led), "the log start offsets", _describe(ctx.name)),
            reader.read(reader.admin.end_offsets(led), "the log end offsets", _describe(ctx.name)),
        )
        return ctx.render("topics/partitions.html", partitions_of(snapshot, head, starts, ends, ctx.query()))
    return ctx.render("topics/missing.html", head, status=404)


async def show_settings(ctx: Context) -> Response:
    head = head_of(await ctx.snapshot("topics"), ctx.name)
    found = await ctx.reader.settings(
        ConfigResource(ConfigType.TOPIC, ctx.name),
        f"the settings of {ctx.name}",
        Need(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, ctx.name),
    )
    return ctx.render("topics/settings.html", settings_of(head, found, ctx.query()))


async def show_groups(ctx: Context) -> Response:
    snapshot = await ctx.snapshot("topics", "groups", "committed")
    return ctx.render("topics/groups.html", groups_of(snapshot, head_of(snapshot, ctx.name), ctx.query()))


async def show_acls(ctx: Context) -> Response:
    head = head_of(await ctx.snapshot("topics"), ctx.name)
    wanted = AclFilter(PatternFilter(ResourceType.TOPIC, ctx.name, PatternType.MATCH))
    found = await ctx.reader.read(
        ctx.reader.admin.describe_acls(wanted), f"the ACLs of {ctx.name}", DESCRIBE_CLUSTER
    )
    return ctx.render("topics/acls.html", acls_of(head, found, ctx.query()))


def _describe(topic: str) -> Need:
    return Need(Operation.DESCRIBE, ResourceType.TOPIC, topic)


PAGES = (
    Page("topics", show_list, "Topics", nav=Nav("Data", "Topics", 10)),
    Page("favourites", star, "Favourites", method="POST"),
    Page("topics/{name}", show_partitions, "Topic", tab=Tab("topic", "Partitions", 10), under="topics"),
    Page(
        "topics/{name}/groups",
        show_groups,
        "Groups of a topic",
        tab=Tab("topic", "Groups", 20),
        under="topics",
    ),
    Page(
        "topics/{name}/settings", show_settings, "Settings", tab=Tab("topic", "Settings", 30), under="topics"
    ),
    Page("topics/{name}/acls", show_acls, "ACLs of a topic", tab=Tab("topic", "ACLs", 40), under="topics"),
)

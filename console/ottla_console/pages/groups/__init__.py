"""Groups: the list with state and lag; a group with its members, their partitions, and the lag over time."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from ottla.client.admin_types import GroupDescription, TopicPartition
from ottla.security.acls import Operation, ResourceType
from ottla_console.cluster.problems import Need
from ottla_console.cluster.snapshot import Part
from ottla_console.pages.groups.group_view import group_of
from ottla_console.pages.groups.view import groups_of
from ottla_console.web.page import Context, Nav, Page, Tab


async def show_list(ctx: Context) -> Response:
    snapshot = await ctx.snapshot("groups", "committed")
    return ctx.render("groups/list.html", groups_of(snapshot, ctx.query("state")))


async def show(ctx: Context) -> Response:
    """A group: its state now, rather than that of the last collection."""
    group = ctx.params.get("id", "")
    need = Need(Operation.DESCRIBE, ResourceType.GROUP, group)
    reader = ctx.reader
    snapshot, described, offsets = await asyncio.gather(
        ctx.snapshot("groups"),
        reader.read(reader.admin.describe_group(group), f"the group {group}", need),
        reader.read(reader.admin.group_offsets(group), f"the committed offsets of {group}", need),
    )
    partitions = _partitions(described, offsets)
    ends: Part[dict[TopicPartition, int]] = Part({})
    if partitions:
        ends = await reader.read(reader.admin.end_offsets(partitions), "the log end offsets")
    view = group_of(group, described, offsets, ends, snapshot.history, ctx.query())
    return ctx.render("groups/group.html", view, status=404 if view.missing else 200)


def _partitions(
    described: Part[GroupDescription], offsets: Part[dict[TopicPartition, int]]
) -> list[TopicPartition]:
    """The partitions with a committed offset or a member."""
    assigned = [
        tp for member in (described.value.members if described.value else ()) for tp in member.partitions
    ]
    return list(dict.fromkeys([*(offsets.value or {}), *assigned]))


PAGES = (
    Page("groups", show_list, "Groups", nav=Nav("Data", "Groups", 20)),
    Page("group", show, "Group", tab=Tab("group", "Members and lag", 10), under="groups", keep=("id",)),
)

"""Reassignments in progress: which partitions move where, and how far the new replicas are; on Kubernetes
the operator's own progress, and that of rolls."""

from __future__ import annotations

from starlette.responses import Response

from ottla_console.cluster.collecting import DESCRIBE_CLUSTER
from ottla_console.pages.reassignments.view import reassignments_of
from ottla_console.web.page import Context, Nav, Page


async def show(ctx: Context) -> Response:
    """Read now: what moves changes from second to second."""
    reader = ctx.reader
    snapshot = await ctx.snapshot("topics", "log_dirs")
    found = await reader.read(
        reader.admin.list_partition_reassignments(), "the reassignments", DESCRIBE_CLUSTER
    )
    resources = await ctx.resources()
    view = reassignments_of(
        snapshot, found, ctx.query(), resources.value if resources else None, ctx.now_ms()
    )
    return ctx.render("reassignments/reassignments.html", view)


PAGES = (Page("reassignments", show, "Reassignments", nav=Nav("Cluster", "Reassignments", 5)),)

"""The partitions of all topics that have no leader, or replicas that are not in sync, and since when; those
of them that refuse records."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from ottla.client.admin_types import ConfigEntry, ConfigResource, ConfigType
from ottla_console.cluster.snapshot import Part, Snapshot
from ottla_console.pages.partitions.view import MINIMUM, partitions_of
from ottla_console.web.page import Context, Page

TOPICS_MAX: Final = 500
"""Topics whose minimum is read."""
READ_S: Final = 2.0
"""A broker that hangs must not hold up the page that shows it."""


async def show(ctx: Context) -> Response:
    snapshot = await ctx.snapshot("topics")
    view = partitions_of(snapshot, ctx.query(), ctx.now_ms(), await _minimums(ctx, snapshot))
    return ctx.render("partitions/list.html", view)


async def _minimums(ctx: Context, snapshot: Snapshot) -> dict[str, int]:
    """min.insync.replicas by topic, where it can be read in time."""
    topics = sorted({topic for topic, _ in (*snapshot.offline, *snapshot.not_in_sync)})[:TOPICS_MAX]
    if not topics:
        return {}
    wanted = [ConfigResource(ConfigType.TOPIC, topic) for topic in topics]
    found: Part[dict[ConfigResource, dict[str, ConfigEntry]]] = await ctx.reader.read_each(
        ctx.reader.admin.describe_configs(wanted, names=[MINIMUM]),
        lambda resource: f"the settings of {resource.name}",
        title="the settings of topics",
        timeout_s=READ_S,
    )
    settings = {resource.name: entries.get(MINIMUM) for resource, entries in (found.value or {}).items()}
    return {topic: int(entry.value) for topic, entry in settings.items() if entry and entry.value}


PAGES = (Page("partitions", show, "Partitions not in sync", under=""),)

"""All brokers, the hottest first; of one, its log directories with the largest replicas, and its settings."""

from __future__ import annotations

from starlette.responses import Response

from ottla.client.admin_types import ConfigResource, ConfigType, LogDirDescription
from ottla.security.acls import Operation, ResourceType
from ottla_console.cluster.collecting import DESCRIBE_CLUSTER
from ottla_console.cluster.problems import Need
from ottla_console.cluster.snapshot import Part
from ottla_console.pages.brokers.list_view import list_of
from ottla_console.pages.brokers.view import disks_of, head_of, settings_of
from ottla_console.web.page import Context, Nav, Page, Tab


async def show_list(ctx: Context) -> Response:
    found = await ctx.resources()
    resources = found.value if found else None
    return ctx.render(
        "brokers/list.html", list_of(await ctx.snapshot("cluster", "topics"), ctx.query(), resources)
    )


async def show_disks(ctx: Context) -> Response:
    """Log directories, read now."""
    head = head_of(await ctx.snapshot("cluster", "topics"), ctx.name)
    if head.id is None:
        return ctx.render("brokers/missing.html", head, status=404)
    found = await ctx.reader.read_each(
        ctx.reader.admin.describe_log_dirs([head.id]),
        lambda broker: f"the log directories of broker {broker}",
        lambda _: DESCRIBE_CLUSTER,
        title=f"the log directories of broker {head.id}",
    )
    dirs: tuple[LogDirDescription, ...] = (found.value or {}).get(head.id, ())
    return ctx.render(
        "brokers/disks.html", disks_of(head, Part(dirs, found.problems, found.taken_ms), ctx.query())
    )


async def show_settings(ctx: Context) -> Response:
    """Settings, read now."""
    head = head_of(await ctx.snapshot("cluster", "topics"), ctx.name)
    if head.id is None:
        return ctx.render("brokers/missing.html", head, status=404)
    found = await ctx.reader.settings(
        ConfigResource(ConfigType.BROKER, str(head.id)),
        f"the settings of broker {head.id}",
        Need(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),
    )
    return ctx.render("brokers/settings.html", settings_of(head, found, ctx.query()))


PAGES = (
    Page("brokers", show_list, "Brokers", nav=Nav("Cluster", "Brokers", 2)),
    Page("brokers/{name}", show_disks, "Broker", tab=Tab("broker", "Log directories", 10), under="brokers"),
    Page(
        "brokers/{name}/settings",
        show_settings,
        "Settings of a broker",
        tab=Tab("broker", "Settings", 20),
        under="brokers",
    ),
)

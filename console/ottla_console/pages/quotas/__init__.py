"""Client quotas: the list by entity, and the form that sets and removes the quotas of one."""

from __future__ import annotations

from dataclasses import replace

from starlette.responses import Response

from ottla.client.admin_types import QuotaEntity
from ottla.security.acls import Operation, ResourceType
from ottla_console.cluster.problems import Need
from ottla_console.cluster.snapshot import Part
from ottla_console.pages.quotas.view import (
    Form,
    Invalid,
    changes_of,
    entity_of,
    entity_text,
    form_of,
    quotas_of,
)
from ottla_console.web.changes import change, in_words, invalid
from ottla_console.web.page import Context, Nav, Page

_DESCRIBE = Need(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
_ALTER = Need(Operation.ALTER_CONFIGS, ResourceType.CLUSTER)


async def show_list(ctx: Context) -> Response:
    return ctx.render("quotas/list.html", quotas_of(await _read(ctx), ctx.query("user")))


async def _read(ctx: Context) -> Part[dict[QuotaEntity, dict[str, float]]]:
    return await ctx.reader.read(ctx.reader.admin.describe_client_quotas(), "the quotas", _DESCRIBE)


async def show_form(ctx: Context) -> Response:
    try:
        entity = entity_of(ctx.params)
    except Invalid:
        return ctx.render("quotas/form.html", form_of(None, {}))
    found = await _read(ctx)
    form = form_of(entity, (found.value or {}).get(entity, {}))
    return ctx.render("quotas/form.html", replace(form, problems=found.problems))


async def alter(ctx: Context) -> Response:
    """Set the quotas of an entity to those of the form: an empty field removes one."""
    entity, present = None, dict[str, float]()
    try:
        entity = entity_of(ctx.form)
        found = await _read(ctx)
        if found.problems:
            return ctx.render("quotas/form.html", Form(entity, ctx.form, found.problems), status=502)
        present = (found.value or {}).get(entity, {})
        values = changes_of(entity, ctx.form, present)
    except Invalid as error:
        form = Form(entity, ctx.form, (invalid("the quotas", str(error)),))
        return ctx.render("quotas/form.html", form, status=400)
    return await _alter(ctx, entity, values)


async def delete(ctx: Context) -> Response:
    """Remove all quotas of an entity."""
    try:
        entity = entity_of(ctx.form)
    except Invalid as error:
        return ctx.redirect("quotas", flash=f"Nothing was removed: {error}.", failed=True)
    present = ((await _read(ctx)).value or {}).get(entity, {})
    return await _alter(ctx, entity, dict.fromkeys(present))


async def _alter(ctx: Context, entity: QuotaEntity, values: dict[str, float | None]) -> Response:
    name = entity_text(entity)
    if not values:
        return ctx.redirect("quotas", flash=f"The quotas of {name} are as they were.")
    failed = await change(
        ctx,
        ctx.reader.admin.alter_client_quota(entity, values),
        f"the quotas of {name}",
        "quota.alter",
        name,
        need=_ALTER,
        quotas=",".join(
            f"{key}={'-' if value is None else f'{value:.15g}'}" for key, value in values.items()
        ),
    )
    text = in_words(failed) if failed else f"The quotas of {name} are changed."
    return ctx.redirect("quotas", flash=text, failed=failed is not None)


PAGES = (
    Page("quotas", show_list, "Quotas", nav=Nav("Security", "Quotas", 72)),
    Page("quotas/edit", show_form, "Quotas of an entity", under="quotas"),
    Page("quotas/edit", alter, "Quotas of an entity", under="quotas", method="POST", changes=True),
    Page("quotas/delete", delete, "Remove quotas", method="POST", changes=True),
)

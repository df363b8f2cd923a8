"""ACLs: the list by principal and by resource, creation with a sentence of what it allows, deletion."""

from __future__ import annotations

from starlette.responses import Response

from ottla.client import errors
from ottla.client.admin_types import Results
from ottla.security.acls import AclBinding, Operation, ResourceType
from ottla_console.cluster.collecting import DESCRIBE_CLUSTER
from ottla_console.cluster.problems import Kind, Need
from ottla_console.cluster.snapshot import Part
from ottla_console.pages.acls.view import (
    Creation,
    Deletion,
    Invalid,
    acls_of,
    bindings_of,
    draft_of,
    exactly,
    filter_of,
    resource_text,
    sentence,
)
from ottla_console.web.changes import change, in_words, invalid
from ottla_console.web.page import Context, Nav, Page

_ALTER = Need(Operation.ALTER, ResourceType.CLUSTER)


async def show_list(ctx: Context) -> Response:
    found = await _read(ctx)
    unsecured = any(each.kind is Kind.UNSUPPORTED for each in found.problems)
    view = acls_of(found, ctx.query("kind", "operation", "permission", "principal"), unsecured=unsecured)
    return ctx.render("acls/list.html", view)


async def _read(ctx: Context) -> Part[list[AclBinding]]:
    return await ctx.reader.read(ctx.reader.admin.describe_acls(), "the ACLs", DESCRIBE_CLUSTER)


async def show_new(ctx: Context) -> Response:
    """The form; with a principal, the sentence of what it allows."""
    draft = draft_of(ctx.params, ctx.request.query_params.getlist("operation"))
    if "principal" not in ctx.params:
        return ctx.render("acls/new.html", Creation(draft))
    try:
        wanted = bindings_of(draft)
    except Invalid as error:
        problem = invalid("the ACL", str(error))
        return ctx.render("acls/new.html", Creation(draft, problems=(problem,)), status=400)
    found = await _read(ctx)
    existing = len(set(wanted).intersection(found.value or ()))
    return ctx.render("acls/new.html", Creation(draft, sentence(wanted), existing, found.problems))


async def create(ctx: Context) -> Response:
    draft = draft_of(ctx.form, [each for each in ctx.form.get("operations", "").split(",") if each])
    try:
        wanted = bindings_of(draft)
    except Invalid as error:
        problem = invalid("the ACL", str(error))
        return ctx.render("acls/new.html", Creation(draft, problems=(problem,)), status=400)
    failed = await change(
        ctx,
        _first_error(ctx, wanted),
        "the creation of the ACL",
        "acl.create",
        resource_text(wanted[0].pattern),
        need=_ALTER,
        of=draft.principal,
        host=draft.host,
        permission=draft.permission,
        operations=",".join(draft.operations),
        pattern=wanted[0].pattern.pattern_type.label,
    )
    if failed:
        return ctx.render("acls/new.html", Creation(draft, sentence(wanted), problems=(failed,)), status=502)
    return ctx.redirect("acls", q=draft.principal, flash=f"Created: {sentence(wanted)}")


async def _first_error(ctx: Context, wanted: list[AclBinding]) -> None:
    results: Results[AclBinding, None] = await ctx.reader.admin.create_acls(wanted)
    results.raise_first()


async def show_delete(ctx: Context) -> Response:
    try:
        acl = exactly(ctx.params)
    except Invalid:
        return ctx.redirect("acls", flash="The address names no ACL.", failed=True)
    return ctx.render("acls/delete.html", Deletion(acl, sentence([acl])))


async def delete(ctx: Context) -> Response:
    try:
        acl = exactly(ctx.form)
    except Invalid:
        return ctx.redirect("acls", flash="The form names no ACL.", failed=True)

    async def work() -> None:
        deleted = (await ctx.reader.admin.delete_acls([filter_of(acl)])).raise_first()[filter_of(acl)]
        if not deleted.raise_first():
            raise errors.ResourceNotFoundError("there is no such ACL")

    failed = await change(
        ctx,
        work(),
        "the deletion of the ACL",
        "acl.delete",
        resource_text(acl.pattern),
        need=_ALTER,
        of=acl.entry.principal,
        host=acl.entry.host,
        permission=acl.entry.permission.label,
        operations=acl.entry.operation.label,
        pattern=acl.pattern.pattern_type.label,
    )
    text = in_words(failed) if failed else f"Deleted: {sentence([acl])}"
    return ctx.redirect("acls", flash=text, failed=failed is not None)


PAGES = (
    Page("acls", show_list, "ACLs", nav=Nav("Security", "ACLs", 70)),
    Page("acls/new", show_new, "Create an ACL", under="acls"),
    Page("acls/new", create, "Create an ACL", under="acls", method="POST", changes=True),
    Page("acls/delete", show_delete, "Delete an ACL", under="acls"),
    Page("acls/delete", delete, "Delete an ACL", method="POST", changes=True),
)

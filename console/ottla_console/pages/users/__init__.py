"""Users with SCRAM credentials: the list, creation and replacement, deletion. Secrets are never shown."""

from __future__ import annotations

from dataclasses import replace

from starlette.responses import Response

from ottla.security.acls import Operation, ResourceType
from ottla_console.cluster.collecting import DESCRIBE_CLUSTER
from ottla_console.cluster.problems import Need
from ottla_console.cluster.snapshot import Part
from ottla_console.pages.users.view import MECHANISMS, Form, Invalid, credential_of, users_of
from ottla_console.web.changes import change, in_words, invalid
from ottla_console.web.page import Context, Nav, Page

_ALTER = Need(Operation.ALTER, ResourceType.CLUSTER)


async def show_list(ctx: Context) -> Response:
    return ctx.render("users/list.html", users_of(await _read(ctx), ctx.access.principal, ctx.query()))


async def _read(ctx: Context) -> Part[dict[str, dict[str, int]]]:
    return await ctx.reader.read_each(
        ctx.reader.admin.describe_user_scram_credentials(),
        lambda user: f"the credentials of {user}",
        lambda _: DESCRIBE_CLUSTER,
        title="the SCRAM credentials",
        whole=DESCRIBE_CLUSTER,
    )


async def show_form(ctx: Context) -> Response:
    """A new credential, or another password for an existing one."""
    return ctx.render("users/form.html", await _form(ctx, ctx.params.get("user", "")))


async def _form(ctx: Context, user: str, **given: str) -> Form:
    existing: dict[str, int] = {}
    if user:
        existing = ((await _read(ctx)).value or {}).get(user, {})
    mechanism = next(iter(sorted(existing, reverse=True)), MECHANISMS[0])
    fields = {"mechanism": mechanism, "iterations": str(existing.get(mechanism, 4096)), **given}
    return Form(
        user, fields["mechanism"], fields["iterations"], existing, f"User:{user}" == ctx.access.principal
    )


async def upsert(ctx: Context) -> Response:
    """Create or replace a credential."""
    user = ctx.form.get("user", "")
    try:
        wanted = credential_of(ctx.form)
    except Invalid as error:
        given = {name: ctx.form[name] for name in ("mechanism", "iterations") if name in ctx.form}
        form = await _form(ctx, user, **given)
        problem = invalid("the credential", str(error))
        return ctx.render("users/form.html", replace(form, problems=(problem,)), status=400)
    failed = await change(
        ctx,
        ctx.reader.admin.set_scram_credential(
            wanted.user, wanted.mechanism, wanted.password, wanted.iterations
        ),
        f"the credential of {user}",
        "user.set-credential",
        user,
        need=_ALTER,
        mechanism=wanted.mechanism,
        iterations=wanted.iterations,
    )
    if failed:
        form = await _form(ctx, user, mechanism=wanted.mechanism, iterations=str(wanted.iterations))
        return ctx.render("users/form.html", replace(form, problems=(failed,)), status=502)
    text = f"{user} can log in by {wanted.mechanism} with the new password."
    return ctx.redirect("users", flash=text)


async def show_delete(ctx: Context) -> Response:
    user = ctx.params.get("user", "")
    form = await _form(ctx, user)
    return ctx.render("users/delete.html", form, status=200 if form.existing else 404)


async def delete(ctx: Context) -> Response:
    """Delete one credential of a user, whose name must be typed."""
    user, mechanism = ctx.form.get("user", ""), ctx.form.get("mechanism", "")
    if ctx.form.get("confirm", "") != user or mechanism not in MECHANISMS:
        text = "Nothing was deleted: type the name of the user to confirm it."
        return ctx.redirect("users", "delete", user=user, flash=text, failed=True)
    failed = await change(
        ctx,
        ctx.reader.admin.delete_scram_credentials(user, [mechanism]),
        f"the deletion of the {mechanism} credential of {user}",
        "user.delete-credential",
        user,
        need=_ALTER,
        mechanism=mechanism,
    )
    text = in_words(failed) if failed else f"The {mechanism} credential of {user} is deleted."
    return ctx.redirect("users", flash=text, failed=failed is not None)


PAGES = (
    Page("users", show_list, "Users", nav=Nav("Security", "Users", 71)),
    Page("users/set", show_form, "A credential", under="users"),
    Page("users/set", upsert, "A credential", under="users", method="POST", changes=True),
    Page("users/delete", show_delete, "Delete a credential", under="users"),
    Page("users/delete", delete, "Delete a credential", method="POST", changes=True),
)

"""Offsets of a group are reset, with a preview; offsets and groups are deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from starlette.datastructures import QueryParams
from starlette.responses import Response

from ottla.client.admin_types import TopicPartition
from ottla.security.acls import Operation, ResourceType
from ottla_console.cluster.problems import Kind, Need
from ottla_console.cluster.snapshot import Part
from ottla_console.pages.resets.plan import (
    INACTIVE,
    Invalid,
    Plan,
    Rule,
    Target,
    edited,
    plan_from,
    plan_of,
    plan_of_offsets,
    rule_of,
    selected,
)
from ottla_console.pages.resets.view import Head, Wizard, head_of, with_plan, with_problems, wizard_of
from ottla_console.web.changes import change, in_words, invalid
from ottla_console.web.page import Context, Page, Tab

_BODY_MAX = 2 << 20
"""The plan of 10,000 partitions."""


async def show(ctx: Context) -> Response:
    """The form; with a target, the plan below it. Nothing is changed."""
    head, committed, now_ms = await _head(ctx, ctx.params.get("id", ""), ctx.request.query_params)
    wizard = wizard_of(head, ctx.params, now_ms)
    if head.missing:
        return ctx.render("resets/reset.html", wizard, status=404)
    try:
        rule = rule_of(ctx.params, now_ms)
        if rule is not None:
            wizard = await _preview(ctx, wizard, rule, committed)
    except Invalid as error:
        wizard = with_problems(wizard, invalid("the new offsets", str(error)))
    wrong = any(each.kind in (Kind.INVALID, Kind.MISSING) for each in wizard.problems)
    return ctx.render("resets/reset.html", wizard, status=400 if wrong else 200)


async def _head(ctx: Context, group: str, params: QueryParams) -> tuple[Head, dict[TopicPartition, int], int]:
    """The group, its committed offsets, and the time of now."""
    reader, need = ctx.reader, Need(Operation.DESCRIBE, ResourceType.GROUP, group)
    described, offsets = await asyncio.gather(
        reader.read(reader.admin.describe_group(group), f"the group {group}", need),
        reader.read(reader.admin.group_offsets(group), f"the committed offsets of {group}", need),
    )
    committed = offsets.value or {}
    ends: Part[dict[TopicPartition, int]] = Part({})
    if committed:
        ends = await reader.read(reader.admin.end_offsets(committed), "the log end offsets")
    chosen = None
    if "to" in params or "topic" in params:
        chosen = [name for name in (*params.getlist("topic"), params.get("other", "").strip()) if name]
    only = {name: text for name in params if name.startswith("only:") for text in [params[name]]}
    head = head_of(
        group,
        described,
        offsets,
        ends,
        chosen,
        {name.removeprefix("only:"): text for name, text in only.items()},
    )
    return head, committed, described.taken_ms


async def _preview(
    ctx: Context, wizard: Wizard, rule: Rule, committed: Mapping[TopicPartition, int]
) -> Wizard:
    """Raises Invalid."""
    chosen = {topic.name: topic.only for topic in wizard.head.topics if topic.chosen}
    reader = ctx.reader
    described = await reader.read_each(
        reader.admin.describe_topics(list(chosen)),
        lambda name: f"the topic {name}",
        lambda name: Need(Operation.DESCRIBE, ResourceType.TOPIC, name),
        title="the topics",
    )
    if described.problems:
        return with_problems(wizard, *described.problems)
    known = {name: [p.partition for p in topic.partitions] for name, topic in (described.value or {}).items()}
    partitions = selected(chosen, lambda name: chosen[name], known)
    starts, ends = await _ranges(ctx, partitions)
    at_time: Part[dict[TopicPartition, int]] = Part({})
    if rule.target in (Target.TIME, Target.DURATION):
        at_time = await reader.read(
            reader.admin.offsets_for_time(partitions, rule.number), "the offsets of this time"
        )
    problems = (*starts.problems, *ends.problems, *at_time.problems)
    if problems:
        return with_problems(wizard, *problems)
    plan = plan_of(rule, partitions, starts.value or {}, ends.value or {}, committed, at_time.value or {})
    return with_plan(wizard, plan)


async def _ranges(
    ctx: Context, partitions: Iterable[TopicPartition]
) -> tuple[Part[dict[TopicPartition, int]], Part[dict[TopicPartition, int]]]:
    reader, wanted = ctx.reader, list(partitions)
    return await asyncio.gather(
        reader.read(reader.admin.start_offsets(wanted), "the log start offsets"),
        reader.read(reader.admin.end_offsets(wanted), "the log end offsets"),
    )


async def apply(ctx: Context) -> Response:
    """Commit the offsets that the preview has shown. If they were edited, or the group or the logs have
    changed since, there is a new preview in place of a change."""
    group = ctx.form.get("id", "")
    head, committed, now_ms = await _head(ctx, group, QueryParams())
    wizard = wizard_of(head, {}, now_ms)
    try:
        shown = plan_from(ctx.form.get("plan", ""))
        wanted = edited(shown, ctx.form)
    except Invalid as error:
        return ctx.render(
            "resets/reset.html", with_problems(wizard, invalid("the reset", str(error))), status=400
        )
    starts, ends = await _ranges(ctx, wanted)
    if problems := (*head.problems, *starts.problems, *ends.problems):
        return ctx.render("resets/reset.html", with_problems(wizard, *problems), status=502)
    plan = plan_of_offsets(wanted, starts.value or {}, ends.value or {}, committed)
    if notice := _differs(head, shown, plan, wanted, apply=ctx.form.get("do") == "apply"):
        return ctx.render("resets/reset.html", with_plan(wizard, plan, notice))
    problem = await change(
        ctx,
        _commit(ctx, group, plan),
        f"the reset of {group}",
        "group.reset",
        group,
        need=Need(Operation.READ, ResourceType.GROUP, group),
        need_too=Need(Operation.READ, ResourceType.TOPIC, _only_topic(plan)),
        partitions=len(plan.offsets),
        again=plan.again,
        skipped=plan.skipped,
    )
    if problem:
        return ctx.render("resets/reset.html", with_problems(with_plan(wizard, plan), problem), status=502)
    text = f"The offsets of {len(plan.offsets):,} partitions are reset."
    return ctx.redirect("group", id=group, flash=text)


def _differs(
    head: Head, shown: Plan, plan: Plan, wanted: Mapping[TopicPartition, int], *, apply: bool
) -> str:
    """Why the plan is shown again; empty: it is applied."""
    before = {(each.topic, each.partition): each.before for each in shown.changes}
    if head.state not in INACTIVE:
        return "The group is active: its members must stop first."
    if plan.blocked:
        return "Some partitions cannot be reset: leave them out."
    if any(before[each.topic, each.partition] != each.before for each in plan.changes):
        return "The group has committed other offsets since the preview. This is the state now."
    if plan.offsets != wanted:
        return "Some offsets are not in the log: the nearest ones replace them. Look at the preview again."
    if plan.offsets != shown.offsets:
        return "The offsets were edited. Look at the preview, then apply it."
    return "" if apply else "This is the state now."


def _only_topic(plan: Plan) -> str:
    """The topic of a plan of one topic; empty: of several."""
    topics = {each.topic for each in plan.changes}
    return topics.pop() if len(topics) == 1 else ""


async def _commit(ctx: Context, group: str, plan: Plan) -> None:
    (await ctx.reader.admin.alter_group_offsets(group, plan.offsets)).raise_first()


# --- deletion ---


async def show_delete(ctx: Context) -> Response:
    head, _, _ = await _head(ctx, ctx.params.get("id", ""), QueryParams())
    return ctx.render("resets/delete.html", head, status=404 if head.missing else 200)


async def delete_offsets(ctx: Context) -> Response:
    """Delete the committed offsets of one topic."""
    group, topic = ctx.form.get("id", ""), ctx.form.get("topic", "")
    _, committed, _ = await _head(ctx, group, QueryParams())
    partitions = [tp for tp in committed if tp.topic == topic]
    if not partitions:
        return ctx.redirect(
            "group", "delete", id=group, failed=True, flash=f"{group} has no committed offsets in {topic}."
        )

    async def delete() -> None:
        (await ctx.reader.admin.delete_group_offsets(group, partitions)).raise_first()

    problem = await change(
        ctx,
        delete(),
        f"the deletion of the offsets of {group} in {topic}",
        "group.delete-offsets",
        group,
        need=Need(Operation.DELETE, ResourceType.GROUP, group),
        need_too=Need(Operation.READ, ResourceType.TOPIC, topic),
        topic=topic,
    )
    text = in_words(problem) if problem else f"The offsets of {group} in {topic} are deleted."
    return ctx.redirect("group", "delete", id=group, flash=text, failed=problem is not None)


async def delete(ctx: Context) -> Response:
    """Delete a group; its name must be typed."""
    group = ctx.form.get("id", "")
    if ctx.form.get("confirm", "") != group:
        text = "Nothing was deleted: type the name of the group to confirm it."
        return ctx.redirect("group", "delete", id=group, flash=text, failed=True)
    problem = await change(
        ctx,
        ctx.reader.admin.delete_group(group),
        f"the deletion of the group {group}",
        "group.delete",
        group,
        need=Need(Operation.DELETE, ResourceType.GROUP, group),
    )
    if problem:
        return ctx.redirect("group", "delete", id=group, flash=in_words(problem), failed=True)
    return ctx.redirect("groups", flash=f"The group {group} is deleted.")


PAGES = (
    Page(
        "group/reset",
        show,
        "Reset offsets",
        tab=Tab("group", "Reset offsets", 20),
        under="groups",
        keep=("id",),
    ),
    Page(
        "group/reset", apply, "Reset offsets", under="groups", method="POST", changes=True, body_max=_BODY_MAX
    ),
    Page(
        "group/delete",
        show_delete,
        "Delete a group",
        tab=Tab("group", "Delete", 30),
        under="groups",
        keep=("id",),
    ),
    Page("group/delete", delete, "Delete a group", method="POST", changes=True),
    Page("group/delete-offsets", delete_offsets, "Delete offsets", method="POST", changes=True),
)

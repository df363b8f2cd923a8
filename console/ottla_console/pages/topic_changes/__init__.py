"""Changes of topics: creation, deletion, partitions, settings, deletion of records before an offset."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import replace

from starlette.responses import Response

from ottla.client.admin_types import (
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    ConfigType,
    CreatedTopic,
    NewTopic,
    TopicPartition,
)
from ottla.security.acls import Operation, ResourceType
from ottla_console.cluster.problems import Need, Problem
from ottla_console.cluster.snapshot import Part
from ottla_console.pages.topic_changes.view import (
    Invalid,
    Manage,
    Setting,
    creation_of,
    manage_of,
    new_count,
    setting_of,
    topic_of,
)
from ottla_console.web.changes import change, in_words, invalid
from ottla_console.web.page import Context, Page, Tab


def _need(operation: Operation, topic: str) -> Need:
    return Need(operation, ResourceType.TOPIC, topic)


# --- creation ---


async def show_new(ctx: Context) -> Response:
    return ctx.render("topic_changes/new.html", creation_of(ctx.params))


async def create(ctx: Context) -> Response:
    """Create a topic; with `do=check`, only ask the brokers whether they would, and as what."""
    form = creation_of(ctx.form)
    try:
        wanted = topic_of(form)
    except Invalid as error:
        problem = invalid("the topic", str(error))
        return ctx.render("topic_changes/new.html", replace(form, problems=(problem,)), status=400)
    need = _need(Operation.CREATE, wanted.name)
    if ctx.form.get("do") == "check":
        found = await ctx.reader.read(
            _created(ctx, wanted, validate_only=True), f"the topic {wanted.name}", need
        )
        if found.value is None:
            problems = tuple(
                replace(each, advice="") if not each.command else each for each in found.problems
            )
            return ctx.render("topic_changes/new.html", replace(form, problems=problems))
        checked = (found.value.partitions, found.value.replication_factor)
        return ctx.render("topic_changes/new.html", replace(form, checked=checked))
    failed = await change(
        ctx,
        _created(ctx, wanted),
        f"the topic {wanted.name}",
        "topic.create",
        wanted.name,
        need=need,
        partitions=wanted.partitions,
        replicas=wanted.replication_factor,
        settings=",".join(f"{name}={value}" for name, value in wanted.config.items()),
    )
    if failed:
        return ctx.render("topic_changes/new.html", replace(form, problems=(failed,)), status=502)
    return ctx.redirect("topics", q=wanted.name, flash=f"The topic {wanted.name} is created.")


async def _created(ctx: Context, topic: NewTopic, *, validate_only: bool = False) -> CreatedTopic:
    return (await ctx.reader.admin.create_topics([topic], validate_only=validate_only))[topic.name]


# --- the tab of changes ---


async def show(ctx: Context) -> Response:
    """The forms; with offsets in the query, what a deletion of records would do."""
    try:
        view = await _manage(ctx, ctx.params)
    except Invalid as error:
        view = replace(await _manage(ctx, {}), problems=(invalid("the deletion of records", str(error)),))
    return _shown(ctx, view)


async def _manage(ctx: Context, params: Mapping[str, str]) -> Manage:
    reader, name = ctx.reader, ctx.name
    described = await reader.read_each(
        reader.admin.describe_topics([name]),
        lambda topic: f"the topic {topic}",
        lambda topic: _need(Operation.DESCRIBE, topic),
        title=f"the topic {name}",
    )
    topic = (described.value or {}).get(name)
    led = [(name, each.partition) for each in topic.partitions if each.leader >= 0] if topic else []
    starts: Part[dict[TopicPartition, int]] = Part({})
    ends: Part[dict[TopicPartition, int]] = Part({})
    if led:
        starts, ends = await asyncio.gather(
            reader.read(reader.admin.start_offsets(led), "the log start offsets"),
            reader.read(reader.admin.end_offsets(led), "the log end offsets"),
        )
    view = manage_of(name, topic, starts, ends, params)
    return replace(view, problems=(*described.problems, *view.problems))


def _shown(ctx: Context, view: Manage, problem: Problem | None = None) -> Response:
    if problem is not None:
        view = replace(view, problems=(*view.problems, problem))
    status = 404 if view.topic is None else 400 if problem is not None else 200
    return ctx.render("topic_changes/manage.html", view, status=status)


async def add_partitions(ctx: Context) -> Response:
    view = await _manage(ctx, {})
    text = ctx.form.get("count", "").strip()
    try:
        count = new_count(text, view.partitions)
    except Invalid as error:
        return _shown(ctx, replace(view, count=text), invalid("the partitions", str(error)))

    async def work() -> None:
        (await ctx.reader.admin.create_partitions({ctx.name: count})).raise_first()

    failed = await change(
        ctx,
        work(),
        f"the partitions of {ctx.name}",
        "topic.add-partitions",
        ctx.name,
        need=_need(Operation.ALTER, ctx.name),
        before=view.partitions,
        after=count,
    )
    return _done(ctx, failed, f"{ctx.name} has {count:,} partitions.")


async def truncate(ctx: Context) -> Response:
    """Delete the records before the offsets of the form, which a preview has shown."""
    try:
        view = await _manage(ctx, ctx.form)
    except Invalid as error:
        return _shown(ctx, await _manage(ctx, {}), invalid("the deletion of records", str(error)))
    if not view.previewed or ctx.form.get("do") != "delete":
        return _shown(ctx, view)

    async def work() -> None:
        before = {TopicPartition(ctx.name, partition): offset for partition, offset in view.before.items()}
        (await ctx.reader.admin.delete_records(before)).raise_first()

    failed = await change(
        ctx,
        work(),
        f"the deletion of records of {ctx.name}",
        "topic.delete-records",
        ctx.name,
        need=_need(Operation.DELETE, ctx.name),
        before=",".join(f"{partition}:{offset}" for partition, offset in view.before.items()),
    )
    return _done(ctx, failed, f"Records of {ctx.name} are deleted, at most {view.deleted:,}.")


async def delete(ctx: Context) -> Response:
    """Delete the topic; its name must be typed."""
    if ctx.form.get("confirm", "") != ctx.name:
        text = "Nothing was deleted: type the name of the topic to confirm it."
        return ctx.redirect("topics", ctx.name, "manage", flash=text, failed=True)
    failed = await change(
        ctx,
        ctx.reader.admin.delete_topic(ctx.name),
        f"the deletion of the topic {ctx.name}",
        "topic.delete",
        ctx.name,
        need=_need(Operation.DELETE, ctx.name),
    )
    if failed:
        return _done(ctx, failed, "")
    return ctx.redirect("topics", flash=f"The topic {ctx.name} is deleted.")


def _done(ctx: Context, failed: Problem | None, text: str, *path: str) -> Response:
    return ctx.redirect(
        "topics", ctx.name, *(path or ("manage",)), flash=in_words(failed) if failed else text,
        failed=failed is not None,
    )  # fmt: skip


# --- settings ---


async def show_setting(ctx: Context) -> Response:
    return _setting(ctx, await _read_setting(ctx, ctx.params.get("setting", "")))


async def _read_setting(ctx: Context, name: str) -> Setting:
    resource = ConfigResource(ConfigType.TOPIC, ctx.name)
    need = _need(Operation.DESCRIBE_CONFIGS, ctx.name)
    return setting_of(
        ctx.name, name, await ctx.reader.settings(resource, f"the settings of {ctx.name}", need)
    )


def _setting(ctx: Context, view: Setting, status: int = 200) -> Response:
    missing = view.row is None and not view.problems
    return ctx.render("topic_changes/setting.html", view, status=404 if missing else status)


async def alter_setting(ctx: Context) -> Response:
    """Set a setting of the topic, or remove its own value."""
    name, value = ctx.form.get("setting", ""), ctx.form.get("value", "").strip()
    removes = ctx.form.get("do") == "remove"
    operation = ConfigOperation.DELETE if removes else ConfigOperation.SET
    row = ConfigChange(name, None if removes else value, operation)
    failed = await change(
        ctx,
        _altered(ctx, row),
        f"the setting {name} of {ctx.name}",
        "topic.remove-setting" if removes else "topic.set-setting",
        ctx.name,
        need=_need(Operation.ALTER_CONFIGS, ctx.name),
        setting=name,
        value="-" if removes else value,
    )
    if failed:
        view = await _read_setting(ctx, name)
        return _setting(ctx, replace(view, value=value, problems=(*view.problems, failed)), 502)
    text = f"{name} is inherited again." if removes else f"{name} is {value or 'empty'}."
    return _done(ctx, None, text, "settings")


def _altered(ctx: Context, row: ConfigChange) -> Awaitable[object]:
    async def work() -> None:
        resource = ConfigResource(ConfigType.TOPIC, ctx.name)
        (await ctx.reader.admin.incremental_alter_configs({resource: [row]})).raise_first()

    return work()


PAGES = (
    Page("new-topic", show_new, "Create a topic", under="topics"),
    Page("new-topic", create, "Create a topic", under="topics", method="POST", changes=True),
    Page("topics/{name}/manage", show, "Manage a topic", tab=Tab("topic", "Manage", 60), under="topics"),
    Page(
        "topics/{name}/partitions",
        add_partitions,
        "Add partitions",
        under="topics",
        method="POST",
        changes=True,
    ),
    Page("topics/{name}/truncate", truncate, "Delete records", under="topics", method="POST", changes=True),
    Page("topics/{name}/delete", delete, "Delete a topic", method="POST", changes=True),
    Page("topics/{name}/setting", show_setting, "A setting", under="topics"),
    Page("topics/{name}/setting", alter_setting, "A setting", under="topics", method="POST", changes=True),
)

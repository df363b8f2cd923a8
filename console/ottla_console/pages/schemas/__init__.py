"""The schema registry: subjects, versions, what has changed between two of them, compatibility.

The registry is asked with the credentials of the console's configuration, not with those of the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from starlette.responses import Response

from ottla.client.errors import ClientError
from ottla.client.registry import NotRegistered, RegistryClient, RegistryUnreachable, Version
from ottla_console.cluster.problems import Kind, Problem
from ottla_console.cluster.snapshot import Part
from ottla_console.pages.schemas.view import Subject, subjects_of, version_in
from ottla_console.settings import Registry
from ottla_console.web.page import Context, Nav, Page

T = TypeVar("T")
_LOOKUPS = 8
"""Requests to the registry at the same time, for one page."""


@lru_cache(maxsize=16)
def _client(registry: Registry) -> RegistryClient:
    return RegistryClient(registry.url, {"timeout": "4", "max.retries": "0", **registry.properties})


async def _ask(ctx: Context, what: str, work: Callable[[RegistryClient], T]) -> Part[T]:
    registry = ctx.access.cluster.registry
    if registry is None:
        problem = Problem(
            Kind.UNSUPPORTED,
            what,
            "the console has no schema registry",
            "Start it with --schema-registry URL.",
        )
        return Part(None, (problem,), ctx.now_ms())
    try:
        return Part(await asyncio.to_thread(work, _client(registry)), (), ctx.now_ms())
    except NotRegistered:
        problem = Problem(Kind.MISSING, what, "it is not registered")
    except RegistryUnreachable as error:
        problem = Problem(Kind.UNREACHABLE, what, str(error), "Load the page again in a moment.")
    except ClientError as error:
        problem = Problem(Kind.FAILED, what, str(error))
    return Part(None, (problem,), ctx.now_ms())


async def show_list(ctx: Context) -> Response:
    found = await _ask(ctx, "the subjects", lambda client: client.subjects())
    view = subjects_of(found, ctx.query())
    limit = asyncio.Semaphore(_LOOKUPS)

    async def latest(name: str) -> Part[Version]:
        async with limit:
            return await _ask(ctx, f"the subject {name}", lambda client: client.latest(name))

    versions = await asyncio.gather(*(latest(row.name) for row in view.table.rows))
    known = {each.value.subject: each.value for each in versions if each.value is not None}
    problems = [each for part in versions for each in part.problems][:3]
    return ctx.render("schemas/list.html", replace(view, latest=known, problems=(*view.problems, *problems)))


async def show(ctx: Context) -> Response:
    """A version of a subject, and what has changed since the one before it, or since another one."""
    name = ctx.params.get("name", "")
    listed, level = await asyncio.gather(
        _ask(ctx, f"the subject {name}", lambda client: client.versions(name)),
        _ask(ctx, f"the compatibility of {name}", lambda client: client.compatibility(name)),
    )
    versions = listed.value or []
    shown = version_in(ctx.params.get("version", ""), versions) or (versions[-1] if versions else None)
    earlier = [each for each in versions if shown is not None and each < shown]
    against = version_in(ctx.params.get("against", ""), versions) or (earlier[-1] if earlier else None)
    versions_read = [await _version(ctx, name, each) for each in (shown, against)]
    problems = (
        *listed.problems,
        *level.problems,
        *(each for part in versions_read for each in part.problems),
    )
    view = Subject(
        name, versions, versions_read[0].value, versions_read[1].value, level.value or "", problems
    )
    missing = any(each.kind is Kind.MISSING for each in listed.problems)
    return ctx.render("schemas/subject.html", view, status=404 if missing else 200)


async def _version(ctx: Context, name: str, version: int | None) -> Part[Version]:
    if version is None:
        return Part()
    return await _ask(ctx, f"version {version} of {name}", lambda client: client.version(name, version))


PAGES = (
    Page("schemas", show_list, "Schemas", nav=Nav("Data", "Schemas", 40, registry=True)),
    Page("schema", show, "A subject", under="schemas"),
)

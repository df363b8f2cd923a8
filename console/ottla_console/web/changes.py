"""A change that a page asks of the cluster: done with its line of the audit log, or a problem for the page.

Called by the endpoints of forms. A change is never repeated by itself: the advice of a problem says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Final

from ottla.client import errors
from ottla.client.errors import ClientError
from ottla.protocol.errors import KafkaError, UnencodableMessage
from ottla.security.acls import ResourceType
from ottla_console.cluster.problems import Kind, Need, Problem, problem_of
from ottla_console.web.page import Context

_ADVICE: Final = {
    Kind.UNREACHABLE: "It is not known whether it was done: look before you try it again.",
    Kind.FAILED: "",
}
_REFUSED: Final[Mapping[type[Exception], ResourceType]] = {
    errors.TopicAuthorizationFailedError: ResourceType.TOPIC,
    errors.GroupAuthorizationFailedError: ResourceType.GROUP,
    errors.ClusterAuthorizationFailedError: ResourceType.CLUSTER,
}


async def change(
    ctx: Context,
    work: Awaitable[object],
    what: str,
    action: str,
    resource: str,
    *,
    need: Need | None = None,
    need_too: Need | None = None,
    **details: object,
) -> Problem | None:
    """Do a change; None if it is done. `what` it is, for people: `the deletion of the topic orders`.
    `action`, `resource` and `details` are for the audit log, and never have a password. `need_too`: a right
    to another type of resource."""
    try:
        async with ctx.change(action, resource, **details):
            await work
    except (ClientError, KafkaError, OSError, UnencodableMessage) as error:
        if need_too is not None and need_too.resource is _REFUSED.get(type(error)):
            need = need_too
        problem = problem_of(error, what, need, ctx.access.principal)
        return replace(problem, advice=_ADVICE.get(problem.kind, problem.advice))
    return None


def invalid(what: str, reason: str) -> Problem:
    """A form that cannot be sent as it is."""
    return Problem(Kind.INVALID, what, reason)


def in_words(problem: Problem) -> str:
    """A problem as the text of a message."""
    return f"Failed: {problem.what}. {problem.reason.rstrip('.')}. {problem.advice} {problem.command}".strip()

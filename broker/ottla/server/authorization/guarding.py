"""How a guard stands before a handler, and the kinds of guard that most APIs need.

A guard gets the request's sender and its decoded message, which it may change. It raises KafkaError to refuse
the request (the route's error response goes out), returns a message to answer with at once, or what is still
to be done to the handler's answer (`Amend`), or None.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Final, TypeAlias, cast

from ottla.protocol.errors import ErrorCode
from ottla.protocol.types import Message
from ottla.security.acls import Operation, ResourceType
from ottla.security.authorizer import AclAuthorizer
from ottla.server.authorization.access import REFUSALS, Access
from ottla.server.dispatch.dispatcher import Request, Route

Amend: TypeAlias = Callable[[Any], None]
"""Changes the response before it is sent."""
Verdict: TypeAlias = Message | Amend | None
Guard: TypeAlias = Callable[[Access, Any], Verdict]

NAME: Final = attrgetter("name")


def itself(item: str) -> str:
    """The name of what is a name."""
    return item


def guarded(route: Route, guard: Guard, authorizer: AclAuthorizer) -> Route:
    """The route with a guard before its handler."""

    def judge(request: Request) -> Message | None:
        verdict = guard(Access(authorizer, request), request.decode(route.request_class))
        if isinstance(verdict, Message):
            return verdict
        request.amend = verdict
        return None

    inner = route.handle

    def handle(request: Request) -> None:
        answer = judge(request)
        if answer is None:
            inner(request)
        else:
            request.respond(answer)

    async def handle_async(request: Request) -> Message:
        return judge(request) or await cast(Awaitable[Message], inner(request))

    return route.handled_by(handle_async if route.is_async else handle)


def cluster(operation: Operation, words: str | None = None) -> Guard:
    """The whole request needs this on the cluster; `words` go with the refusal instead of the usual."""

    def guard(access: Access, message: Message) -> Verdict:
        access.require_cluster(operation, words)
        return None

    return guard


def resource(operation: Operation, resource_type: ResourceType, field: str) -> Callable[[Access, Any], None]:
    """The whole request needs this on the resource that the field names."""
    name_of = attrgetter(field)

    def guard(access: Access, message: Message) -> None:
        access.require(operation, resource_type, name_of(message))

    return guard


def each(
    operation: Operation,
    resource_type: ResourceType,
    asked: str,
    answered: str,
    *,
    name: Callable[[Any], str] = NAME,
    detail: str | None = None,
) -> Callable[[Access, Any], Amend | None]:
    """Each item of the list `asked` needs this on the resource that it names."""

    def guard(access: Access, message: Message) -> Amend | None:
        items = getattr(message, asked)
        allowed = access.among(operation, resource_type, map(name, items))
        return take_out(
            access,
            message,
            asked,
            answered,
            [item for item in items if name(item) not in allowed],
            REFUSALS[resource_type],
            detail,
        )

    return guard


def take_out(
    access: Access,
    message: Message,
    asked: str,
    answered: str,
    denied: Sequence[Any],
    code: ErrorCode,
    detail: str | None = None,
) -> Amend | None:
    """Leave `denied` out of the request's list `asked`; in the answer they have the error."""
    if not denied:
        return None
    errors = refusals(access, message, asked, answered, denied, code, detail)
    refused = set(map(id, denied))
    setattr(message, asked, [item for item in getattr(message, asked) if id(item) not in refused])

    def amend(response: Message) -> None:
        getattr(response, answered).extend(errors)

    return amend


def refusals(
    access: Access,
    message: Message,
    asked: str,
    answered: str,
    denied: Sequence[Any],
    code: ErrorCode,
    detail: str | None = None,
) -> list[Any]:
    """What the API answers for these items when they have the error."""
    route = access.request.route
    only_denied = copy.copy(message)
    setattr(only_denied, asked, list(denied))
    response = route.on_error(only_denied, access.request.version, code, detail)
    found: list[Any] = getattr(response, answered)
    return found


def in_order(rows: list[Any], asked: Iterable[str], name: Callable[[Any], str] = NAME) -> None:
    """Sort an answer's rows by where the request has their names first."""
    places: dict[str, int] = {}
    for place, wanted in enumerate(asked):
        places.setdefault(wanted, place)
    rows.sort(key=lambda row: places[name(row)])

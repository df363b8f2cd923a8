"""Authorization checks before handlers, and the kinds of check that most APIs need.

A check gets the request's AuthHelper and its decoded message, which it may change. It raises KafkaError to
reject the request (the route's error response is sent), or returns a message to respond with at once, or a
change to apply to the handler's response (`ResponseChange`), or None.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Final, TypeAlias, cast

from ottla.protocol.errors import ErrorCode
from ottla.protocol.types import Message
from ottla.security.acls import Operation, ResourceType
from ottla.security.authorizer import Authorizer
from ottla.server.authorization.auth_helper import DENIED_ERRORS, AuthHelper
from ottla.server.dispatch.dispatcher import Request, Route

ResponseChange: TypeAlias = Callable[[Any], None]
"""Changes the response before it is sent."""
CheckResult: TypeAlias = Message | ResponseChange | None
AuthorizationCheck: TypeAlias = Callable[[AuthHelper, Any], CheckResult]

NAME: Final = attrgetter("name")


def identity(item: str) -> str:
    """For lists whose items are the names."""
    return item


def authorized_route(route: Route, check: AuthorizationCheck, authorizer: Authorizer) -> Route:
    """The route with `check` before its handler."""

    def check_request(request: Request) -> Message | None:
        result = check(AuthHelper(authorizer, request), request.decode(route.request_class))
        if isinstance(result, Message):
            return result
        request.amend = result
        return None

    inner = route.handle

    def handle(request: Request) -> None:
        response = check_request(request)
        if response is None:
            inner(request)
        else:
            request.respond(response)

    async def handle_async(request: Request) -> Message:
        return check_request(request) or await cast(Awaitable[Message], inner(request))

    checked = route.handled_by(handle_async if route.is_async else handle)
    checked.repeated = route.repeated  # checks what it needs itself
    return checked


def cluster(operation: Operation, detail: str | None = None) -> AuthorizationCheck:
    """The whole request needs `operation` on the cluster; `detail` replaces the default error message."""

    def check(auth: AuthHelper, message: Message) -> CheckResult:
        auth.require_cluster(operation, detail)
        return None

    return check


def resource(
    operation: Operation, resource_type: ResourceType, field: str
) -> Callable[[AuthHelper, Any], None]:
    """The whole request needs `operation` on the resource whose name is in `field`."""
    name_of = attrgetter(field)

    def check(auth: AuthHelper, message: Message) -> None:
        auth.require(operation, resource_type, name_of(message))

    return check


def each(
    operation: Operation,
    resource_type: ResourceType,
    request_field: str,
    response_field: str,
    *,
    name: Callable[[Any], str] = NAME,
    detail: str | None = None,
) -> Callable[[AuthHelper, Any], ResponseChange | None]:
    """Each item of the request's list `request_field` needs `operation` on the resource that it names; the
    response's list `response_field` has the errors of the others."""

    def check(auth: AuthHelper, message: Message) -> ResponseChange | None:
        items = getattr(message, request_field)
        allowed = auth.filter_authorized(operation, resource_type, map(name, items))
        return exclude_denied(
            auth,
            message,
            request_field,
            response_field,
            [item for item in items if name(item) not in allowed],
            DENIED_ERRORS[resource_type],
            detail,
        )

    return check


def exclude_denied(
    auth: AuthHelper,
    message: Message,
    request_field: str,
    response_field: str,
    denied: Sequence[Any],
    code: ErrorCode,
    detail: str | None = None,
) -> ResponseChange | None:
    """Remove `denied` from the request's list `request_field`; the response's list `response_field` gets
    their errors."""
    if not denied:
        return None
    errors = error_rows(auth, message, request_field, response_field, denied, code, detail)
    refused = set(map(id, denied))
    setattr(
        message, request_field, [item for item in getattr(message, request_field) if id(item) not in refused]
    )

    def amend(response: Message) -> None:
        getattr(response, response_field).extend(errors)

    return amend


def error_rows(
    auth: AuthHelper,
    message: Message,
    request_field: str,
    response_field: str,
    denied: Sequence[Any],
    code: ErrorCode,
    detail: str | None = None,
) -> list[Any]:
    """The rows of an error response of the API for these items."""
    route = auth.request.route
    only_denied = copy.copy(message)
    setattr(only_denied, request_field, list(denied))
    response = route.on_error(only_denied, auth.request.version, code, detail)
    found: list[Any] = getattr(response, response_field)
    return found


def sort_as_requested(rows: list[Any], requested: Iterable[str], name: Callable[[Any], str] = NAME) -> None:
    """Sort response rows by the first position of their names in the request."""
    positions: dict[str, int] = {}
    for position, item in enumerate(requested):
        positions.setdefault(item, position)
    rows.sort(key=lambda row: positions[name(row)])

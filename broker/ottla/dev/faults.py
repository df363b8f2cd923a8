"""Fault injection: requests that get an error, are delayed, or lose their connection.

ottla.dev.serve wraps every route of the dispatcher with `Faults.wrap`; ottla.dev.control adds and removes
faults. Other brokers have no such hook in their dispatcher.

A fault applies to the next `times` requests that match (None: all of them); older faults have precedence. An
error is sent in the API's response, by the handler's error path, and the request is not executed. Invariants:
requests of the broker itself and of `ottla.testing` (by its client id) are exempt; a request is handled at
most once.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

from ottla.protocol import messages as m
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.types import Message, Struct
from ottla.server.dispatch.dispatcher import AsyncHandler, Request, Route, SyncHandler
from ottla.server.network.channel import Connection, Part, PendingResponse

CONTROL_CLIENT_ID: Final = "ottla.testing"
Effect = Literal["error", "delay", "drop", "drop_answer"]
EFFECTS: Final[tuple[Effect, ...]] = ("error", "delay", "drop", "drop_answer")


@dataclass(slots=True)
class Fault:
    """A fault: `error` responds with the code; `delay` handles the request `delay_s` later; `drop` closes the
    connection instead of handling the request; `drop_answer` handles it and closes the connection instead of
    responding."""

    effect: Effect
    api: ApiKey | None = None
    """None: every API."""
    code: ErrorCode = ErrorCode.NONE
    delay_s: float = 0.0
    times: int | None = 1
    """The remaining number of requests; None: no limit."""
    topic: str | None = None
    """Only requests with this topic; never a Fetch, which has no topics in a session (KIP-227)."""
    client_id: str | None = None
    hits: int = 0
    id: int = field(default=0)

    def matches(self, request: Request) -> bool:
        if self.times == 0 or self.api not in (None, request.route.api_key):
            return False
        if self.client_id not in (None, request.client_id):
            return False
        if self.topic is None:
            return True
        message = request.decode(request.route.request_class)
        return not isinstance(message, m.FetchRequest) and self.topic in topics_of(message)


class Faults:
    """The active faults of a broker."""

    def __init__(self, broker_id: int) -> None:
        self._exempt_clients = (CONTROL_CLIENT_ID, f"broker-{broker_id}")
        self._ids = itertools.count(1)
        self._faults: dict[int, Fault] = {}

    def add(self, fault: Fault) -> Fault:
        fault.id = next(self._ids)
        self._faults[fault.id] = fault
        return fault

    def get(self, number: int) -> Fault | None:
        return self._faults.get(number)

    def remove(self, number: int | None = None) -> None:
        """Remove a fault; None: all."""
        if number is None:
            self._faults.clear()
        else:
            self._faults.pop(number, None)

    def match(self, request: Request) -> Fault | None:
        """The first fault that matches the request, with its counters updated; None: no fault."""
        if not self._faults or request.client_id in self._exempt_clients:
            return None
        for fault in self._faults.values():
            if fault.matches(request):
                fault.hits += 1
                fault.times = None if fault.times is None else fault.times - 1
                return fault
        return None

    def wrap(self, route: Route) -> Route:
        if route.is_async:
            handle = cast(AsyncHandler, route.handle)

            async def handle_later(request: Request) -> Message:
                fault = self.match(request)
                if fault is not None:
                    await asyncio.sleep(fault.delay_s)
                    _apply(fault, request)
                return await handle(request)

            return route.handled_by(handle_later)
        plain = cast(SyncHandler, route.handle)

        def handle_now(request: Request) -> None:
            fault = self.match(request)
            if fault is None:
                plain(request)
            elif fault.effect == "delay":
                asyncio.get_running_loop().call_later(fault.delay_s, _handle_delayed, plain, request)
            else:
                _apply(fault, request)
                if not request.abandoned:
                    plain(request)

        return route.handled_by(handle_now)


def _apply(fault: Fault, request: Request) -> None:
    """Apply the fault to the request before it is handled. Raises KafkaError for effect `error`."""
    if fault.effect == "drop" or (fault.effect == "error" and _expects_no_answer(request)):
        request.connection.close(f"{request.route.api_key.name} dropped by an injected fault")
    elif fault.effect == "error":
        raise KafkaError(fault.code, f"{fault.code.name} injected by ottla.testing")
    elif fault.effect == "drop_answer":
        request.connection = cast(Connection, _ClosingConnection(request.connection))


def _handle_delayed(handle: SyncHandler, request: Request) -> None:
    if request.abandoned:
        return
    try:
        handle(request)
    except Exception as e:
        request.fail(e)


def _expects_no_answer(request: Request) -> bool:
    """Whether it is a Produce with acks=0, for which a broker closes the connection on an error."""
    return request.route.api_key == ApiKey.PRODUCE and request.decode(m.ProduceRequest).acks == 0


class _ClosingConnection:
    """A connection that closes instead of sending a response."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def respond(self, parts: Sequence[Part]) -> None:
        self._connection.close("response dropped by an injected fault")

    def complete(self, response: PendingResponse, parts: Sequence[Part]) -> None:
        self._connection.close("response dropped by an injected fault")


def topics_of(message: Message) -> set[str]:
    """The topic names in a request, from lists of names and from structs with a name."""
    found: set[str] = set()
    waiting: list[object] = [message]
    while waiting:
        struct = waiting.pop()
        for field_name in _TOPIC_FIELDS:
            value = getattr(struct, field_name, None)
            if isinstance(value, str):
                found.add(value)
            elif isinstance(value, list):
                found.update(each for each in value if isinstance(each, str))
                waiting += [each for each in value if isinstance(each, Struct)]
    return found


_TOPIC_FIELDS: Final = (
    "topics",
    "topic_data",
    "topic_name",
    "topic_names",
    "topic",
    "name",
    "transactions",
    "groups",
)

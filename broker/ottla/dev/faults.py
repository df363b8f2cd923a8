"""What goes wrong on purpose: which requests are refused, held up, or lose their connection.

`Faults.around` is put around every route of the dispatcher by ottla.dev.serve; orders come from
ottla.dev.control. A broker that was not started for development has none of this: no hook in its dispatcher
asks whether there is a fault.

A fault takes the next `times` requests that it matches (None: all of them), in the order in which faults were
made. An error is answered in the API's own response, by the handler that reports real ones, and nothing is
done. Invariants: what the broker asks of itself and what `ottla.testing` asks of it (by its client id) is
left alone; a request is given to its handler at most once.
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
from ottla.server.network.connection import Connection, Part, PendingResponse

CONTROL_CLIENT_ID: Final = "ottla.testing"
Effect = Literal["error", "delay", "drop", "drop_answer"]
EFFECTS: Final[tuple[Effect, ...]] = ("error", "delay", "drop", "drop_answer")


@dataclass(slots=True)
class Fault:
    """`error` answers with that code; `delay` handles the request `delay_s` later; `drop` closes the
    connection in place of handling it, `drop_answer` handles it and closes the connection in place of the
    answer."""

    effect: Effect
    api: ApiKey | None = None
    """None: every API."""
    code: ErrorCode = ErrorCode.NONE
    delay_s: float = 0.0
    times: int | None = 1
    """How many requests are left to take; None: no limit."""
    topic: str | None = None
    """Only requests that name this topic; never a Fetch, which in a session names none (KIP-227)."""
    client_id: str | None = None
    hits: int = 0
    id: int = field(default=0)

    def takes(self, request: Request) -> bool:
        if self.times == 0 or self.api not in (None, request.route.api_key):
            return False
        if self.client_id not in (None, request.client_id):
            return False
        if self.topic is None:
            return True
        message = request.decode(request.route.request_class)
        return not isinstance(message, m.FetchRequest) and self.topic in topics_of(message)


class Faults:
    def __init__(self, broker_id: int) -> None:
        self._spared = (CONTROL_CLIENT_ID, f"broker-{broker_id}")
        self._ids = itertools.count(1)
        self._faults: dict[int, Fault] = {}

    def add(self, fault: Fault) -> Fault:
        fault.id = next(self._ids)
        self._faults[fault.id] = fault
        return fault

    def get(self, number: int) -> Fault | None:
        return self._faults.get(number)

    def remove(self, number: int | None = None) -> None:
        """One of them, or all."""
        if number is None:
            self._faults.clear()
        else:
            self._faults.pop(number, None)

    def taken(self, request: Request) -> Fault | None:
        """The fault that this request meets; it is counted."""
        if not self._faults or request.client_id in self._spared:
            return None
        for fault in self._faults.values():
            if fault.takes(request):
                fault.hits += 1
                fault.times = None if fault.times is None else fault.times - 1
                return fault
        return None

    def around(self, route: Route) -> Route:
        if route.is_async:
            handle = cast(AsyncHandler, route.handle)

            async def handle_later(request: Request) -> Message:
                fault = self.taken(request)
                if fault is not None:
                    await asyncio.sleep(fault.delay_s)
                    _meet(fault, request)
                return await handle(request)

            return route.handled_by(handle_later)
        plain = cast(SyncHandler, route.handle)

        def handle_now(request: Request) -> None:
            fault = self.taken(request)
            if fault is None:
                plain(request)
            elif fault.effect == "delay":
                asyncio.get_running_loop().call_later(fault.delay_s, _go_on, plain, request)
            else:
                _meet(fault, request)
                if not request.abandoned:
                    plain(request)

        return route.handled_by(handle_now)


def _meet(fault: Fault, request: Request) -> None:
    """Do to the request what is to be done before it is handled. Raises KafkaError in place of that."""
    if fault.effect == "drop" or (fault.effect == "error" and _expects_no_answer(request)):
        request.connection.close(f"{request.route.api_key.name} dropped on purpose")
    elif fault.effect == "error":
        raise KafkaError(fault.code, f"{fault.code.name} on purpose (ottla.testing)")
    elif fault.effect == "drop_answer":
        request.connection = cast(Connection, _Deaf(request.connection))


def _go_on(handle: SyncHandler, request: Request) -> None:
    if request.abandoned:
        return
    try:
        handle(request)
    except Exception as e:
        request.fail(e)


def _expects_no_answer(request: Request) -> bool:
    """Of a Produce with acks=0 that failed, a broker closes the connection."""
    return request.route.api_key == ApiKey.PRODUCE and request.decode(m.ProduceRequest).acks == 0


class _Deaf:
    """A connection that ends where an answer would go out."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def respond(self, parts: Sequence[Part]) -> None:
        self._connection.close("its answer was dropped on purpose")

    def complete(self, response: PendingResponse, parts: Sequence[Part]) -> None:
        self._connection.close("its answer was dropped on purpose")


def topics_of(message: Message) -> set[str]:
    """The names of topics in a request, wherever it has them: as lists of names, or of structs with one."""
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

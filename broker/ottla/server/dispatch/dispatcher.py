"""Dispatches request frames to handlers, and turns the outcome of each handler into one response.

ApiVersions advertises the table of routes: an API without a route is not served. A handler is either
- a plain function `handle(request) -> None` that calls `request.respond(...)` now or later (the hot path:
  no task, no future), or
- `async def handle(request) -> Message`, run as a task (admin and coordinator APIs).

Errors are handled only here: a KafkaError becomes the API's own error response through its route's
`on_error`, an unexpected exception the same with UNKNOWN_SERVER_ERROR and a traceback in the log. As in
Kafka, a malformed request, an unknown API or an unsupported version closes the connection; only ApiVersions
of an unknown version is answered, with a version 0 body, error 35 and the range served (KIP-511).

Connections call it with frames; the routes are those of ottla.server.handlers.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from ottla.ports.tasks import TaskSet
from ottla.protocol import codec, frames
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode, KafkaError, MalformedMessage, TooManyElements
from ottla.protocol.messages import ApiVersionsResponse
from ottla.protocol.types import Message
from ottla.security.principals import Principal
from ottla.server.dispatch.counters import TIMED_EVERY, PhaseTimes, RequestCounters, RequestTimer
from ottla.server.dispatch.response_errors import error_counter
from ottla.server.dispatch.splits import Split, has_items
from ottla.server.network.channel import Connection, Part, PendingResponse

if TYPE_CHECKING:
    from ottla.server.dispatch.sliced_work import SlicedTask

log = logging.getLogger(__name__)

LARGE_REQUEST_BYTES: Final = 8 << 10
"""Larger requests are served in slices of the loop's time."""
SLOW_ITEM_BYTES: Final = 512
"""The same limit for the APIs in SLOW_ITEMS."""
SLOW_ITEMS: Final = frozenset(
    (
        ApiKey.CREATE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_CLIENT_QUOTAS,
    )
)
"""APIs whose items take up to a millisecond each."""
LARGE_FETCH_BYTES: Final = 64 << 10
"""The same limit for Fetch: about 2,000 partitions."""
NEVER_LARGE: Final = 1 << 40
LARGE_RESPONSE_ITEMS: Final = 1000

M = TypeVar("M", bound=Message)
SyncHandler = Callable[["Request"], None]
AsyncHandler = Callable[["Request"], Coroutine[Any, Any, Message]]
LargeHandler = Callable[["Request", "SlicedTask"], Coroutine[Any, Any, None]]
RepeatedHandler = Callable[[Connection, memoryview, "Callable[[], float] | None"], bool]
"""Handles a frame whose request it knows; False: it is left to the handler, and nothing was done. The clock
measures the time of a sample; None: those requests are left to the handler."""
OnError = Callable[[Any, int, ErrorCode, "str | None"], Message]
"""(decoded request, version, error, detail) -> the error response."""


class Meter(Protocol):
    """Measures the event loop's time that a request takes (ottla.server.dispatch.throttling)."""

    def pause(self, request: Request) -> None:
        """The loop leaves the request."""

    def resume(self) -> None:
        """The loop continues with the request."""

    def answered(self, request: Request) -> int:
        """Called before the response is sent; returns for how many ms the client is throttled."""


class Limits(Protocol):
    limited: bool
    """Whether any client has a quota on time. A plain attribute, since it is read for each request."""


class Meters(Protocol):
    """Makes a meter for each request, if any client has a quota on time."""

    @property
    def quotas(self) -> Limits: ...

    def begin(self, request: Request) -> Meter | None:
        """Returns None for requests that are exempt."""


class LargeRequestServer(Protocol):
    """Serves requests that would block the loop for long (ottla.server.dispatch.large_requests)."""

    async def serve(self, request: Request) -> None: ...

    async def respond(self, request: Request, answers: Iterator[Message], split: Split) -> None: ...

    async def send(self, request: Request, answer: Message) -> None: ...


class Route:
    """One API: the versions served, its handler, its error response."""

    __slots__ = (
        "api_key",
        "counters",
        "handle",
        "is_async",
        "keeps_frame",
        "large",
        "large_bytes",
        "max_version",
        "min_version",
        "on_error",
        "repeated",
        "request_class",
    )

    def __init__(
        self,
        request_class: type[Message],
        handle: SyncHandler | AsyncHandler,
        on_error: OnError,
        *,
        versions: tuple[int, int] | None = None,
        large: LargeHandler | None = None,
    ) -> None:
        """`large` handles large requests, which are decoded; without it they are handled in parts."""
        low, high = versions or (request_class.min_version, request_class.max_version)
        assert request_class.min_version <= low <= high <= request_class.max_version
        self.api_key = ApiKey(request_class.api_key)
        self.min_version = low
        self.max_version = high
        self.request_class = request_class
        self.handle = handle
        self.on_error = on_error
        self.large = large
        self.repeated: RepeatedHandler | None = None
        """Is offered each request of the API first, as a frame."""
        self.counters = RequestCounters(request_class.max_version)
        self.is_async = inspect.iscoroutinefunction(handle)
        self.keeps_frame = self.api_key == ApiKey.PRODUCE
        """Whether the decoded message refers to the frame's bytes: only records do."""
        self.large_bytes = SLOW_ITEM_BYTES if self.api_key in SLOW_ITEMS else LARGE_REQUEST_BYTES
        if self.keeps_frame:
            self.large_bytes = NEVER_LARGE
        elif self.api_key == ApiKey.FETCH:
            self.large_bytes = LARGE_FETCH_BYTES

    def handled_by(self, handle: SyncHandler | AsyncHandler) -> Route:
        """A route of the same API with another handler, and the same counters."""
        versions = (self.min_version, self.max_version)
        route = Route(self.request_class, handle, self.on_error, versions=versions, large=self.large)
        route.counters = self.counters
        return route


class Request:
    """A request that a handler serves. It has to be responded to once."""

    is_part = False
    """Whether it is a part of a larger one (ottla.server.dispatch.large_requests)."""

    __slots__ = (
        "_body_offset",
        "_frame",
        "_message",
        "_pending",
        "amend",
        "answered",
        "client_id",
        "connection",
        "correlation_id",
        "meter",
        "route",
        "size",
        "timer",
        "version",
    )

    def __init__(
        self, connection: Connection, route: Route, header: frames.RequestHeader, frame: memoryview
    ) -> None:
        self.connection = connection
        self.route = route
        self.version = header.api_version
        self.correlation_id = header.correlation_id
        self.client_id = header.client_id
        self.amend: Callable[[Any], None] | None = None
        """Called with the response message before it is encoded (ottla.server.authorization)."""
        self.answered = False
        self.meter: Meter | None = None
        self.timer: RequestTimer | None = None
        """Of a sample of the requests."""
        self.size = len(frame)
        """Header and body, in bytes: quotas count these."""
        self._frame: memoryview | None = frame
        self._body_offset = header.body_offset
        self._message: Message | None = None
        self._pending: PendingResponse | None = None

    def decode(self, cls: type[M]) -> M:
        """The body. Views in it are valid until the response. Raises MalformedMessage."""
        if self._message is None:
            assert self._frame is not None
            self._message = codec.decode(cls, self.version, self._frame, self._body_offset)
        return cast(M, self._message)

    def decode_steps(self) -> Generator[None, None, Message]:
        """As `decode`, in steps for ottla.server.dispatch.sliced_work."""
        assert self._frame is not None
        self._message = yield from codec.decode_steps(
            self.route.request_class, self.version, self._frame, self._body_offset
        )
        return self._message

    @property
    def frame(self) -> memoryview:
        """Header and body, until the response."""
        assert self._frame is not None
        return self._frame

    @property
    def principal(self) -> Principal:
        """The authenticated client."""
        return self.connection.principal

    @property
    def abandoned(self) -> bool:
        """Whether the connection is closed: nothing will read the response."""
        return self.connection.closed

    def detach(self) -> None:
        """Release the frame while the request waits; the decoded message must not refer to its bytes."""
        if self._message is not None and self._frame is not None:
            self._frame = None
            self.connection.detach()

    def defer_response(self) -> None:
        """A Produce waits for its replicas: release its frame, and let the Produce requests behind it in."""
        self._frame = self._message = None
        self._pending = self.connection.defer_response()

    def prepare(self, message: Message) -> None:
        """Apply `amend` to the response."""
        if self.amend is not None:
            self.amend(message)

    def throttle(self, message: Message) -> None:
        """Count the time that the request took, and set the throttle time of its response."""
        if self.meter is not None and hasattr(message, "throttle_time_ms"):
            message.throttle_time_ms = max(message.throttle_time_ms, self.meter.answered(self))

    def respond(self, message: Message) -> None:
        count = error_counter(type(message))
        if count is not None:
            count(message, self.route.counters.errors)
        self.prepare(message)
        self.throttle(message)
        data = frames.encode_response(message, self.version, self.correlation_id)
        self.respond_raw((data,))

    def respond_raw(self, parts: Sequence[Part]) -> None:
        """Respond with encoded bytes and file slices: size, header and body."""
        assert not self.answered, f"{self.route.api_key!r} has two responses"
        self.answered = True
        # From here on the buffer may overwrite the bytes of the frame.
        self._frame = self._message = None
        respond_timed(self.connection, self._pending, parts, self.timer)

    def respond_nothing(self) -> None:
        """End the request without a response (acks=0)."""
        assert not self.answered
        self.answered = True
        self._frame = self._message = None
        self.connection.skip_response()

    def fail(self, error: BaseException) -> None:
        """Respond with an error; the one place that turns exceptions into responses."""
        route = self.route
        if isinstance(error, MalformedMessage):
            self.connection.close(f"malformed {route.api_key.name} v{self.version} request: {error}")
            return
        if isinstance(error, KafkaError):
            code, detail = error.code, error.message or None
        else:
            code, detail = ErrorCode.UNKNOWN_SERVER_ERROR, None
            log.error(
                "%s v%d from %s failed", route.api_key.name, self.version, self.client_id, exc_info=error
            )
        if self.answered or self.connection.closed:
            return
        try:
            self.respond(route.on_error(self.decode(route.request_class), self.version, code, detail))
        except MalformedMessage as e:
            self.connection.close(f"malformed {route.api_key.name} v{self.version} request: {e}")
        except Exception:
            log.exception("encoding the error response to %s v%d failed", route.api_key.name, self.version)
            self.connection.close("encoding the error response failed")


def respond_timed(
    connection: Connection,
    pending: PendingResponse | None,
    parts: Sequence[Part],
    timer: RequestTimer | None,
) -> None:
    """Send a response, in its place if it was deferred; `timer` measures the request."""
    if timer is not None:
        timer.respond(connection.muted_until_s)
    if pending is None:
        connection.respond(parts)
    else:
        connection.complete(pending, parts)
    if timer is not None:
        connection.when_sent(timer.sent, pending)


class Metered:
    """Awaits a coroutine; calls `resume` before and `pause` after each of its steps on the event loop."""

    def __init__(
        self, work: Awaitable[Message], resume: Callable[[], None], pause: Callable[[], None]
    ) -> None:
        self._work = work
        self._resume = resume
        self._pause = pause

    def __await__(self) -> Generator[Any, Any, Message]:
        steps = self._work.__await__()
        step: Callable[[], Any] = partial(next, steps)
        while True:
            self._resume()
            try:
                awaited = step()
            except StopIteration as done:
                return cast(Message, done.value)
            finally:
                self._pause()
            try:
                step = partial(steps.send, (yield awaited))
            except BaseException as e:
                step = partial(steps.throw, e)


class Dispatcher:
    """See the module."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.meters: Meters | None = None
        self.large: LargeRequestServer | None = None
        self.on_timed: list[Callable[[Request, PhaseTimes], None]] = []
        """Called with each request whose time was measured, after its response."""
        self._routes: dict[int, Route] = {}
        self.repeated: dict[bytes, RepeatedHandler] = {}
        """By API key, as the first bytes of a frame."""
        self._tasks = TaskSet()

    def register(self, routes: Iterable[Route]) -> None:
        for route in routes:
            assert route.api_key not in self._routes, f"{route.api_key!r} is registered twice"
            self._routes[route.api_key] = route
        self._offer_repeated()

    def wrap(self, around: Callable[[Route], Route]) -> None:
        """Replace each route by `around(route)` (ottla.dev)."""
        for key, route in self._routes.items():
            self._routes[key] = around(route)
        self._offer_repeated()

    def _offer_repeated(self) -> None:
        self.repeated = {
            key.to_bytes(2, "big"): route.repeated
            for key, route in self._routes.items()
            if route.repeated is not None
        }

    def routes(self) -> list[Route]:
        """In the order of API keys."""
        return [self._routes[key] for key in sorted(self._routes)]

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        """Handle a connection's next request. Never raises."""
        meters = self.meters
        is_limited = meters is not None and meters.quotas.limited
        repeated = self.repeated.get(bytes(frame[:2]))
        clock = None if self.on_timed else self.loop.time
        if repeated is not None and not is_limited and repeated(connection, frame, clock):
            return
        try:
            header = frames.parse_request_header(frame)
        except MalformedMessage as e:
            connection.close(f"malformed request header: {e}")
            return
        route = self._routes.get(header.api_key)
        if route is None:
            connection.close(f"API key {header.api_key} is not supported")
            return
        request = Request(connection, route, header, frame)
        if meters is not None and is_limited:
            request.meter = meters.begin(request)
        version = header.api_version
        if not route.min_version <= version <= route.max_version:
            self._refuse_version(request)
            return
        counts = route.counters.by_version
        counts[version] = number = counts[version] + 1
        if not number % TIMED_EVERY:
            done = partial(self._timed, request) if self.on_timed else None
            request.timer = RequestTimer(self.loop.time, connection.active_s, route.counters, done)
        if request.size > route.large_bytes and self.large is not None:
            self._tasks.start(self._finish(request, self.large.serve(request)))
        elif route.is_async:
            try:
                request.decode(route.request_class)
            except MalformedMessage as e:
                request.fail(e)
                return
            request.detach()
            self._tasks.start(self._run(request))
        else:
            try:
                route.handle(request)
            except TooManyElements as e:
                if self.large is None:
                    request.fail(e)
                else:
                    self._tasks.start(self._finish(request, self.large.serve(request)))
            except Exception as e:
                request.fail(e)
            if not request.answered and not route.keeps_frame:
                request.detach()
        if request.meter is not None:
            request.meter.pause(request)
        if request.timer is not None and not request.answered:
            request.timer.pause()

    def _timed(self, request: Request, times: PhaseTimes) -> None:
        for observe in self.on_timed:
            observe(request, times)

    def respond_in_slices(self, request: Request, answers: Iterator[Message], split: Split) -> None:
        """Respond with the join of `answers`, each of which is computed quickly."""
        assert self.large is not None
        self._tasks.start(self._finish(request, self.large.respond(request, answers, split)))

    async def _finish(self, request: Request, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as e:
            request.fail(e)

    async def _run(self, request: Request) -> None:
        try:
            work: Awaitable[Message] = cast(AsyncHandler, request.route.handle)(request)
            meter, timer = request.meter, request.timer
            if meter is not None:
                work = Metered(work, meter.resume, partial(meter.pause, request))
            if timer is not None:
                work = Metered(work, timer.resume, timer.pause)
            response = await work
            if request.connection.closed:
                return
            if self.large is not None and has_items(response, LARGE_RESPONSE_ITEMS):
                await self.large.send(request, response)
            else:
                request.respond(response)
        except Exception as e:
            request.fail(e)

    def _refuse_version(self, request: Request) -> None:
        route = request.route
        if route.api_key != ApiKey.API_VERSIONS:
            request.connection.close(
                f"{route.api_key.name} v{request.version} is not supported, "
                f"versions {route.min_version} to {route.max_version} are"
            )
            return
        served = ApiVersionsResponse.ApiVersion(
            api_key=route.api_key, min_version=route.min_version, max_version=route.max_version
        )
        response = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[served])
        request.respond_raw((frames.encode_response(response, 0, request.correlation_id),))

    async def idle(self) -> None:
        """Wait until no request is served in a task."""
        await self._tasks.wait()

    async def stop(self) -> None:
        """Cancel the tasks (after the connections are closed)."""
        await self._tasks.stop()

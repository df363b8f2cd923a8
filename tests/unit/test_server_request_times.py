"""The phases of a request's time, and the errors in responses, as metrics have them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    CreateTopicsResponse,
    FetchRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    MetadataResponse,
)
from ottla.protocol.types import Message
from ottla.server.dispatch.counters import TIMED_EVERY, PhaseTimes, RequestCounters, RequestTimer
from ottla.server.dispatch.dispatcher import Dispatcher, Request, Route
from ottla.server.dispatch.request_log import RequestLog
from ottla.server.dispatch.response_errors import error_counter
from ottla.server.network.channel import PendingResponse
from tests.unit.test_server_dispatch import FakeConnection, frame_of, heartbeat_error


class Clock:
    """A clock that tests set, in seconds."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, ms: float) -> None:
        self.now_s += ms / 1000


def rounded(times: PhaseTimes) -> tuple[float, ...]:
    return tuple(round(each, 6) for each in times)


def test_a_timer_tells_the_phases_apart() -> None:
    clock, counters = Clock(100.0), RequestCounters(3)
    clock.advance(2)
    timer = RequestTimer(clock, 100.0, counters)
    clock.advance(3)
    timer.pause()
    clock.advance(40)
    timer.resume()
    clock.advance(5)
    timer.respond(muted_until_s=clock() + 0.06)
    clock.advance(7)
    timer.sent()
    assert rounded(counters.times_ms[0]) == (57, 2, 8, 40, 7, 60)


def test_a_response_within_the_handler_has_no_remote_time() -> None:
    clock, counters = Clock(100.0), RequestCounters(3)
    timer = RequestTimer(clock, 100.0, counters)
    clock.advance(3)
    timer.respond(muted_until_s=0.0)
    timer.sent()
    timer.pause()
    assert rounded(counters.times_ms[0]) == (3, 0, 3, 0, 0, 0)


class SlowConnection(FakeConnection):
    """A connection whose responses are sent 7 ms after they were given."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.active_s = clock()

    def when_sent(self, callback: Callable[[], None], response: PendingResponse | None = None) -> None:
        self._clock.advance(7)
        callback()


class ClockLoop:
    def __init__(self, clock: Clock) -> None:
        self.time = clock


def timed(handle: Callable[[Clock], Callable[[Request], object]]) -> list[tuple[float, ...]]:
    """The times of the requests among TIMED_EVERY that are measured."""
    clock = Clock(100.0)
    route = Route(HeartbeatRequest, handle(clock), heartbeat_error)  # type: ignore[arg-type]

    async def scenario() -> None:
        dispatcher = Dispatcher(ClockLoop(clock))  # type: ignore[arg-type]
        dispatcher.register([route])
        for _ in range(TIMED_EVERY):
            connection = SlowConnection(clock)
            clock.advance(2)
            dispatcher.on_frame(connection, frame_of(HeartbeatRequest(), 4))
            for _ in range(10):
                await asyncio.sleep(0)
        await dispatcher.idle()

    asyncio.run(scenario())
    return [rounded(each) for each in route.counters.times_ms]


def test_one_request_in_sixteen_is_measured_from_its_receipt_to_the_kernel() -> None:
    def handler(clock: Clock) -> Callable[[Request], object]:
        def handle(request: Request) -> None:
            clock.advance(3)
            request.respond(HeartbeatResponse())

        return handle

    assert timed(handler) == [(12, 2, 3, 0, 7, 0)]


def test_the_time_in_which_a_coroutine_awaits_is_remote() -> None:
    def handler(clock: Clock) -> Callable[[Request], object]:
        async def handle(request: Request) -> HeartbeatResponse:
            clock.advance(3)
            asyncio.get_running_loop().call_soon(clock.advance, 40)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            clock.advance(5)
            return HeartbeatResponse()

        return handle

    assert timed(handler) == [(57, 2, 8, 40, 7, 0)]


def test_the_time_in_which_a_handler_waits_for_a_callback_is_remote() -> None:
    def handler(clock: Clock) -> Callable[[Request], object]:
        def handle(request: Request) -> None:
            def respond() -> None:
                clock.advance(40)
                request.respond(HeartbeatResponse())

            clock.advance(3)
            asyncio.get_running_loop().call_soon(respond)

        return handle

    assert timed(handler) == [(52, 2, 3, 40, 7, 0)]


@pytest.mark.parametrize(("every", "logged"), [(1, 4), (16, 4), (17, 2), (64, 1), (65, 0)])
def test_one_request_in_so_many_is_logged(every: int, logged: int, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock(100.0)

    def handle(request: Request) -> None:
        clock.advance(3)
        request.respond(HeartbeatResponse())

    async def scenario() -> None:
        dispatcher = Dispatcher(ClockLoop(clock))  # type: ignore[arg-type]
        dispatcher.on_timed.append(RequestLog(every))
        dispatcher.register([Route(HeartbeatRequest, handle, heartbeat_error)])
        for _ in range(4 * TIMED_EVERY):
            dispatcher.on_frame(SlowConnection(clock), frame_of(HeartbeatRequest(), 4))

    with caplog.at_level(logging.INFO, "ottla.request"):
        asyncio.run(scenario())
    assert len(caplog.records) == logged
    for record in caplog.records:
        assert record.message == "Completed request"
        fields = record.fields  # type: ignore[attr-defined]
        assert (fields["api"], fields["version"], fields["clientId"]) == ("HEARTBEAT", 4, "test")
        assert (fields["totalTimeMs"], fields["localTimeMs"], fields["sendTimeMs"]) == (10, 3, 7)
        assert fields["principal"] == "User:ANONYMOUS"


@pytest.mark.parametrize(
    ("response", "counted"),
    [
        (HeartbeatResponse(), {}),
        (HeartbeatResponse(error_code=27), {27: 1}),
        (FetchRequest(), {}),
        (
            CreateTopicsResponse(
                topics=[
                    CreateTopicsResponse.CreatableTopicResult(name=name, error_code=code)
                    for name, code in (("a", 36), ("b", 0), ("c", 36))
                ]
            ),
            {36: 2},
        ),
        (
            MetadataResponse(
                topics=[
                    MetadataResponse.MetadataResponseTopic(
                        error_code=3,
                        partitions=[MetadataResponse.MetadataResponsePartition(error_code=5)],
                    )
                ]
            ),
            {3: 1, 5: 1},
        ),
    ],
)
def test_errors_are_counted_at_any_depth(response: Message, counted: dict[int, int]) -> None:
    counts: Counter[int] = Counter()
    count = error_counter(type(response))
    if count is not None:
        count(response, counts)
    assert counts == counted


def test_the_error_of_a_failed_request_is_counted_once() -> None:
    def handle(request: Request) -> None:
        raise ZeroDivisionError

    route = Route(HeartbeatRequest, handle, heartbeat_error)

    async def scenario() -> None:
        dispatcher = Dispatcher(asyncio.get_running_loop())
        dispatcher.register([route])
        dispatcher.on_frame(FakeConnection(), frame_of(HeartbeatRequest(), 4))

    asyncio.run(scenario())
    assert route.counters.errors == {ErrorCode.UNKNOWN_SERVER_ERROR: 1}

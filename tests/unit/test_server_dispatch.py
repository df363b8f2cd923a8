"""Dispatch from frame to handler to response, and every kind of failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import pytest

from ottla.protocol import codec, frames
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
)
from ottla.protocol.types import Message
from ottla.security.principals import ANONYMOUS
from ottla.server.dispatch.dispatcher import Dispatcher, Request, Route
from ottla.server.handlers.cluster.api_versions import ApiVersionsHandler
from ottla.server.network.channel import Part, PendingResponse
from ottla.storage.segment_files import FileSlice


class FakeConnection:
    listener = "PLAINTEXT"
    peer_host = "10.0.0.7"
    principal = ANONYMOUS
    by_token = False
    active_s = 0.0
    muted_until_s = 0.0

    def __init__(self) -> None:
        self.closed = False
        self.why = ""
        self.answers: list[bytes] = []

    def respond(self, parts: Sequence[Part]) -> None:
        self.answers.append(b"".join(bytes(p) for p in parts if not isinstance(p, FileSlice)))

    def skip_response(self) -> None:
        self.answers.append(b"")

    def detach(self) -> None: ...

    def mute(self, duration_ms: int) -> None: ...

    def when_sent(self, callback: Callable[[], None], response: PendingResponse | None = None) -> None:
        callback()

    def close(self, reason: str = "") -> None:
        self.closed = True
        self.why = reason


def frame_of(message: Message, version: int, client_id: str | None = "test") -> memoryview:
    return memoryview(frames.encode_request(message, version, 77, client_id))[4:]


def decode_answer(connection: FakeConnection, version: int, cls: type[Message]) -> Message:
    (data,) = connection.answers
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    frame = memoryview(data)[4:]
    assert frames.parse_correlation_id(frame) == 77
    return codec.decode(cls, version, frame, frames.response_body_offset(cls.api_key, version, frame))


def heartbeat_error(
    message: HeartbeatRequest, version: int, code: ErrorCode, detail: str | None
) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=code)


def dispatch(route: Route, frame: memoryview) -> FakeConnection:
    connection = FakeConnection()

    async def scenario() -> None:
        dispatcher = Dispatcher(asyncio.get_running_loop())
        dispatcher.register([route])
        dispatcher.on_frame(connection, frame)
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(scenario())
    return connection


def test_a_synchronous_handler_answers_at_once() -> None:
    def handle(request: Request) -> None:
        assert request.decode(HeartbeatRequest).group_id == "g"
        assert request.client_id == "test"
        request.respond(HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))

    route = Route(HeartbeatRequest, handle, heartbeat_error)
    connection = dispatch(route, frame_of(HeartbeatRequest(group_id="g"), 4))
    assert decode_answer(connection, 4, HeartbeatResponse) == HeartbeatResponse(
        error_code=ErrorCode.REBALANCE_IN_PROGRESS
    )


def test_a_coroutine_handler_answers_when_it_returns() -> None:
    async def handle(request: Request) -> HeartbeatResponse:
        await asyncio.sleep(0)
        return HeartbeatResponse(throttle_time_ms=5)

    connection = dispatch(Route(HeartbeatRequest, handle, heartbeat_error), frame_of(HeartbeatRequest(), 4))
    assert decode_answer(connection, 4, HeartbeatResponse) == HeartbeatResponse(throttle_time_ms=5)


def test_a_kafka_error_becomes_the_apis_error_response() -> None:
    def handle(request: Request) -> None:
        raise KafkaError(ErrorCode.NOT_COORDINATOR, "moved")

    async def handle_async(request: Request) -> HeartbeatResponse:
        raise KafkaError(ErrorCode.NOT_COORDINATOR, "moved")

    for handler in (handle, handle_async):
        connection = dispatch(
            Route(HeartbeatRequest, handler, heartbeat_error), frame_of(HeartbeatRequest(), 3)
        )
        assert decode_answer(connection, 3, HeartbeatResponse) == HeartbeatResponse(
            error_code=ErrorCode.NOT_COORDINATOR
        )


def test_a_bug_is_unknown_server_error_and_a_logged_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def handle(request: Request) -> None:
        raise ZeroDivisionError("oops")

    with caplog.at_level(logging.ERROR):
        connection = dispatch(
            Route(HeartbeatRequest, handle, heartbeat_error), frame_of(HeartbeatRequest(), 4)
        )
    assert decode_answer(connection, 4, HeartbeatResponse) == HeartbeatResponse(
        error_code=ErrorCode.UNKNOWN_SERVER_ERROR
    )
    assert "oops" in caplog.text
    assert not connection.closed


def test_a_malformed_body_closes_the_connection() -> None:
    def handle(request: Request) -> None:
        request.decode(HeartbeatRequest)

    frame = frame_of(HeartbeatRequest(group_id="a group", member_id="m"), 4)
    connection = dispatch(Route(HeartbeatRequest, handle, heartbeat_error), frame[:-6])
    assert connection.closed
    assert "malformed HEARTBEAT v4" in connection.why
    assert connection.answers == []


def test_a_malformed_header_an_unknown_api_and_an_unsupported_version_close_it() -> None:
    def handle(request: Request) -> None:
        raise AssertionError("not to be called")

    route = Route(HeartbeatRequest, handle, heartbeat_error, versions=(1, 3))
    assert dispatch(route, memoryview(b"\x00\x0c\x00")).why.startswith("malformed request header")
    assert "is not supported" in dispatch(route, frame_of(ApiVersionsRequest(), 0)).why
    for version in (0, 4):
        connection = dispatch(route, frame_of(HeartbeatRequest(), version))
        assert connection.closed
        assert "versions 1 to 3 are" in connection.why


def test_responses_for_a_disconnected_client_are_dropped() -> None:
    async def scenario() -> None:
        connection = FakeConnection()
        gone = asyncio.Event()

        async def handle(request: Request) -> HeartbeatResponse:
            await gone.wait()
            return HeartbeatResponse()

        dispatcher = Dispatcher(asyncio.get_running_loop())
        dispatcher.register([Route(HeartbeatRequest, handle, heartbeat_error)])
        dispatcher.on_frame(connection, frame_of(HeartbeatRequest(), 4))
        await asyncio.sleep(0)
        connection.close()
        gone.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert connection.answers == []

    asyncio.run(scenario())


# --- ApiVersions -----------------------------------------------------------------------------------


def api_versions(frame: memoryview) -> FakeConnection:
    connection = FakeConnection()

    def handle(request: Request) -> None: ...

    async def scenario() -> None:
        dispatcher = Dispatcher(asyncio.get_running_loop())
        dispatcher.register([Route(HeartbeatRequest, handle, heartbeat_error, versions=(0, 3))])
        dispatcher.register(ApiVersionsHandler(dispatcher).routes())
        dispatcher.on_frame(connection, frame)

    asyncio.run(scenario())
    return connection


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_api_versions_advertises_what_is_registered(version: int) -> None:
    request = ApiVersionsRequest(client_software_name="ottla-test", client_software_version="1.0")
    response = decode_answer(api_versions(frame_of(request, version)), version, ApiVersionsResponse)
    assert isinstance(response, ApiVersionsResponse)
    assert [(k.api_key, k.min_version, k.max_version) for k in response.api_keys] == [(12, 0, 3), (18, 0, 4)]
    assert response.error_code == 0
    assert response.finalized_features_epoch == -1
    assert response.zk_migration_ready is False


def test_an_unknown_version_of_api_versions_is_answered_in_version_0() -> None:
    frame = bytearray(frame_of(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 4))
    frame[2:4] = (99).to_bytes(2, "big")
    response = decode_answer(api_versions(memoryview(frame)), 0, ApiVersionsResponse)
    assert response == ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=4)],
    )


def test_api_versions_refuses_an_invalid_software_name() -> None:
    request = ApiVersionsRequest(client_software_name="bad name!", client_software_version="1.0")
    response = decode_answer(api_versions(frame_of(request, 3)), 3, ApiVersionsResponse)
    assert response == ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)

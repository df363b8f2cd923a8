"""SASL authentication has a time-out and a limited number of attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ottla.protocol import codec, frames
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)
from ottla.protocol.types import Message
from ottla.security.mechanisms import PlainServer, plain_token
from ottla.security.principals import ANONYMOUS, USER, Principal
from ottla.server.network.authenticator import Authenticator, Mechanism, SaslRules
from ottla.server.network.channel import Part
from tests.worlds.clocks import run_in_virtual_time


class FakeConnection:
    listener = "SASL_PLAINTEXT"
    peer_host = "10.0.0.7"
    principal = ANONYMOUS
    by_token = False

    def __init__(self) -> None:
        self.closed = False
        self.gone = asyncio.Event()
        self.answers: list[bytes] = []

    def respond(self, parts: Sequence[Part]) -> None:
        self.answers.append(b"".join(bytes(part) for part in parts))  # type: ignore[arg-type]

    def close(self, reason: str = "") -> None:
        self.closed = True
        self.gone.set()


class Client:
    """One connection, and the requests that reached the dispatcher."""

    def __init__(self, *, session_max_ms: int = 0) -> None:
        self.passed: list[bytes] = []
        self.connection = FakeConnection()
        self.known = 0
        mechanism = Mechanism(lambda: PlainServer({"anna": "geheim"}), session_max_ms)
        rules = SaslRules(
            {"PLAIN": mechanism},
            0,
            lambda connection, name, exchange: Principal(USER, exchange.authorization_id),
            lambda: 0,
        )
        self.authenticator = Authenticator(
            rules,
            asyncio.get_running_loop(),
            lambda connection, frame: self.passed.append(bytes(frame)),
            lambda connection: setattr(self, "known", self.known + 1),
        )

    def send(self, request: Message, version: int) -> None:
        frame = frames.encode_request(request, version, 1, "c")
        self.authenticator.on_frame(self.connection, memoryview(frame)[4:])  # type: ignore[arg-type]

    def log_in(self, password: str = "geheim") -> None:
        self.send(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        self.send(SaslAuthenticateRequest(auth_bytes=plain_token("anna", password)), 2)


def test_a_silent_client_is_disconnected() -> None:
    async def scenario() -> None:
        silent, known = Client(), Client()
        for client in (silent, known):
            client.authenticator.start_deadline(client.connection)  # type: ignore[arg-type]
        known.log_in()
        async with asyncio.timeout(60):
            await silent.connection.gone.wait()
        assert not known.connection.closed

    run_in_virtual_time(scenario())


def test_requests_pass_after_authentication() -> None:
    async def scenario() -> None:
        client = Client()
        client.log_in()
        assert client.connection.principal == Principal(USER, "anna")
        assert client.known == 1
        client.send(MetadataRequest(topics=[]), 5)
        assert len(client.passed) == 1

    run_in_virtual_time(scenario())


def test_a_failed_client_is_answered_and_disconnected_and_its_requests_are_dropped() -> None:
    async def scenario() -> None:
        client = Client()
        client.log_in("falsch")
        client.send(MetadataRequest(topics=[]), 5)
        client.log_in()
        async with asyncio.timeout(60):
            await client.connection.gone.wait()
        assert not client.passed
        assert client.connection.principal == ANONYMOUS
        answer = memoryview(client.connection.answers[-1])[4:]
        offset = frames.response_body_offset(SaslAuthenticateRequest.api_key, 2, answer)
        found = codec.decode(SaslAuthenticateResponse, 2, answer, offset)
        assert found.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert found.error_message == "Authentication failed: Invalid username or password"

    run_in_virtual_time(scenario())


@pytest.mark.parametrize(
    "frame", [b"", b"\0", b"\0\x11\0\x01", b"\0\x11\0\x09\0\0\0\1\xff\xff", b"\xff" * 40]
)
def test_an_invalid_request_closes_the_connection(frame: bytes) -> None:
    async def scenario() -> None:
        client = Client()
        client.authenticator.on_frame(client.connection, memoryview(frame))  # type: ignore[arg-type]
        async with asyncio.timeout(60):
            await client.connection.gone.wait()
        assert not client.passed

    run_in_virtual_time(scenario())


def test_an_expired_session_may_be_reauthenticated() -> None:
    async def scenario() -> None:
        client = Client(session_max_ms=1)
        client.log_in()
        await asyncio.sleep(0.01)
        client.log_in()
        assert not client.connection.closed
        await asyncio.sleep(0.01)
        client.send(MetadataRequest(topics=[]), 5)
        assert client.connection.closed
        assert not client.passed

    run_in_virtual_time(scenario())

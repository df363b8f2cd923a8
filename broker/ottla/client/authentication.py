"""Logging in on a connection, and again before its session ends (KIP-43, 152, 368).

Called by `connection`, one for each connection with SASL. The broker takes nothing between SaslHandshake and
the last token: requests that come up meanwhile wait here, in their order. Whoever fails to log in anew loses
the connection.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from ottla.protocol.types import Message
from ottla.security.clients import ClientSecurity
from ottla.security.mechanisms import SaslFailed

if TYPE_CHECKING:
    from ottla.client.connection import Answered, BrokerConnection

log = logging.getLogger(__name__)

RENEW_AFTER: Final = 0.85
"""Of a session's time: what Kafka's clients leave at least."""
LOGIN_S: Final = 30.0
_OWN: Final = frozenset((SaslHandshakeRequest.api_key, SaslAuthenticateRequest.api_key))


class _Held(NamedTuple):
    message: Message
    version: int
    deadline: float
    answered: Answered
    keeps: bool


class Authentication:
    def __init__(self, connection: BrokerConnection, security: ClientSecurity) -> None:
        self._connection = connection
        self._security = security
        self._loop = asyncio.get_running_loop()
        self._renew_at: float | None = None
        self._held: list[_Held] | None = None
        self._task: asyncio.Task[None] | None = None

    async def log_in(self) -> None:
        """Raises KafkaError when the broker does not let us in; ConnectionLost, TimeoutError, SaslFailed as
        KafkaError, too."""
        ask, mechanism, begin = self._connection.request, self._security.mechanism, self._security.login
        assert mechanism is not None
        assert begin is not None
        began = self._loop.time()
        self._renew_at = None
        shaken = await ask(SaslHandshakeRequest(mechanism=mechanism), version=1, timeout_s=LOGIN_S)
        if shaken.error_code:
            served = ", ".join(shaken.mechanisms)
            raise KafkaError(ErrorCode(shaken.error_code), f"sasl.mechanism={mechanism}; served: {served}")
        version = self._connection.version_of(SaslAuthenticateRequest.api_key)
        exchange = begin()
        token: bytes | None = next(exchange)
        answer: Any = None
        while token is not None:
            answer = await ask(SaslAuthenticateRequest(auth_bytes=token), version=version, timeout_s=LOGIN_S)
            if answer.error_code:
                raise KafkaError(ErrorCode(answer.error_code), answer.error_message or "")
            try:
                # In a thread: what proves a password takes long on purpose.
                token = await asyncio.to_thread(_next, exchange, bytes(answer.auth_bytes))
            except SaslFailed as failure:
                raise KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, str(failure)) from None
        if answer.session_lifetime_ms > 0:
            self._renew_at = began + RENEW_AFTER * answer.session_lifetime_ms / 1000

    def holds_up(
        self, message: Message, version: int, timeout_s: float, answered: Answered, *, keeps: bool
    ) -> bool:
        """Whether a request has to wait; then it is sent later from here."""
        if message.api_key in _OWN:
            return False
        if self._held is None:
            if self._renew_at is None or self._loop.time() < self._renew_at:
                return False
            self._held = []
            self._task = self._loop.create_task(self._renew())
        self._held.append(_Held(message, version, self._loop.time() + timeout_s, answered, keeps))
        return True

    async def _renew(self) -> None:
        try:
            await self.log_in()
        except Exception as e:
            log.warning("logging in anew at %s:%d: %s", self._connection.host, self._connection.port, e)
            self._connection.close()
        held, self._held = self._held or [], None
        for request in held:
            left_s = request.deadline - self._loop.time()
            try:
                self._connection.send(
                    request.message, request.version, left_s, request.answered, keeps=request.keeps
                )
            except Exception as e:
                request.answered(e)


def _next(exchange: Any, answer: bytes) -> bytes | None:
    try:
        token: bytes = exchange.send(answer)
    except StopIteration:
        return None
    return token

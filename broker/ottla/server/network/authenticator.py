"""SASL authentication of a connection: it handles frames before the dispatcher (KIP-43, 152, 368).

Each connection of SASL_PLAINTEXT or SASL_SSL has one, made by ottla.server.network.secure_listeners. Until
the client has authenticated, only ApiVersions, SaslHandshake and tokens are accepted; any other request
closes the connection. After SaslHandshake 0 a token is a frame of its own, from version 1 on it is in
SaslAuthenticate.

| state        | accepts                                | next state |
|--------------|----------------------------------------|---|
| VERSIONS     | ApiVersions, SaslHandshake             | HANDSHAKE, AUTHENTICATE |
| HANDSHAKE    | SaslHandshake                          | AUTHENTICATE |
| AUTHENTICATE | a token                                | AUTHENTICATE, COMPLETE |
| COMPLETE     | any request; SaslHandshake begins anew | COMPLETE; AUTHENTICATE |
| FAILED       | nothing                                | |

Invariants: after a failure the response is sent, and the connection closed,
connection.failed.authentication.delay.ms later, which slows down guessing; a connection is closed after
SETUP_S without authentication; one whose session has expired is closed by its next request, unless that
re-authenticates; neither principal nor mechanism change at re-authentication.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ottla.protocol import codec, frames
from ottla.protocol import messages as m
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode, MalformedMessage
from ottla.protocol.types import Message
from ottla.security.mechanisms import SaslFailed, SaslServer
from ottla.security.principals import Principal
from ottla.server.network.channel import Connection, FrameHandler

log = logging.getLogger(__name__)

SETUP_S: Final = 30.0
"""The limit for authentication, the same as for the TLS handshake."""
REAUTHENTICATION_MIN_S: Final = 1.0


class State(enum.Enum):
    VERSIONS = enum.auto()
    HANDSHAKE = enum.auto()
    AUTHENTICATE = enum.auto()
    COMPLETE = enum.auto()
    FAILED = enum.auto()


class Mechanism(NamedTuple):
    """A SASL mechanism that a listener has enabled."""

    start: Callable[[], SaslServer]
    session_max_ms: int
    """connections.max.reauth.ms; 0: sessions do not expire."""


class SaslRules(NamedTuple):
    """The SASL settings of a listener, as of the creation of a connection."""

    mechanisms: Mapping[str, Mechanism]
    failure_delay_ms: int
    principal_of: Callable[[Connection, str, SaslServer], Principal]
    """(connection, mechanism, finished exchange) -> the principal. Raises ValueError."""
    clock: Callable[[], int]
    """Wall time in ms."""


class _AuthenticationFailed(Exception):
    """Authentication has failed: the reason, and the response, if there is one."""

    def __init__(self, reason: str, answer: bytes | None = None) -> None:
        super().__init__(reason)
        self.answer = answer


class Authenticator:
    """See the module."""

    __slots__ = (
        "_exchange",
        "_framed",
        "_loop",
        "_mechanism",
        "_on_authenticated",
        "_pass_on",
        "_reauthenticated_s",
        "_rules",
        "_session_ends_s",
        "_state",
        "_timer",
        "_wrong_mechanism",
    )

    def __init__(
        self,
        rules: SaslRules,
        loop: asyncio.AbstractEventLoop,
        pass_on: FrameHandler,
        on_authenticated: Callable[[Connection], None],
    ) -> None:
        """`pass_on` handles the frames of authenticated clients and ApiVersions; `on_authenticated` is called
        after each authentication."""
        self._rules = rules
        self._loop = loop
        self._pass_on = pass_on
        self._on_authenticated = on_authenticated
        self._state = State.VERSIONS
        self._framed = False
        self._mechanism = ""
        self._wrong_mechanism = ""
        self._exchange: SaslServer | None = None
        self._session_ends_s: float | None = None
        self._reauthenticated_s = -REAUTHENTICATION_MIN_S
        self._timer: asyncio.TimerHandle | None = None
        """Closes the connection: at the end of SETUP_S or of the delay after a failure."""

    def start_deadline(self, connection: Connection) -> None:
        """Close the connection after SETUP_S without authentication."""
        reason = f"not authenticated within {SETUP_S:.0f} s"
        self._timer = self._loop.call_later(SETUP_S, connection.close, reason)

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        """Handle a connection's next frame. Never raises."""
        if self._state is State.COMPLETE:
            if self._session_ends_s is not None and not self._is_session_valid(connection, frame):
                return
            if self._state is State.COMPLETE:
                self._pass_on(connection, frame)
                return
        try:
            if self._state is State.AUTHENTICATE:
                self._handle_token(connection, frame)
            elif self._state is not State.FAILED:
                self._handle_request(connection, frame)
        except MalformedMessage as problem:
            self._fail(connection, _AuthenticationFailed(f"not a request: {problem}"))
        except _AuthenticationFailed as failure:
            self._fail(connection, failure)

    # --- the handshake ------------------------------------------------------------------------------

    def _handle_request(self, connection: Connection, frame: memoryview) -> None:
        header = frames.parse_request_header(frame)
        if header.api_key == ApiKey.API_VERSIONS and self._state is State.VERSIONS:
            if header.api_version <= m.ApiVersionsRequest.max_version:
                self._state = State.HANDSHAKE
            self._pass_on(connection, frame)
        elif header.api_key == ApiKey.SASL_HANDSHAKE and header.api_version <= 1:
            self._handle_handshake(connection, header, frame)
        else:
            name = _name(header.api_key)
            raise _AuthenticationFailed(f"Unexpected Kafka request of type {name} during SASL handshake.")

    def _handle_handshake(
        self, connection: Connection, header: frames.RequestHeader, frame: memoryview
    ) -> None:
        message = codec.decode(m.SaslHandshakeRequest, header.api_version, frame, header.body_offset)
        self._framed = self._framed or header.api_version >= 1
        wanted = message.mechanism
        known = self._rules.mechanisms
        mechanism = known.get(wanted)
        answer = m.SaslHandshakeResponse(mechanisms=list(known))
        if mechanism is None:
            answer.error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            raise _AuthenticationFailed(f"Unsupported SASL mechanism {wanted}", _encoded(answer, header))
        if self._mechanism and self._mechanism != wanted:
            self._wrong_mechanism = (
                f"SASL mechanism '{wanted}' requested by client is not supported for re-authentication "
                f"of mechanism '{self._mechanism}'"
            )
        else:
            self._mechanism = wanted
        self._exchange = mechanism.start()
        self._state = State.AUTHENTICATE
        connection.respond((_encoded(answer, header),))

    # --- tokens -------------------------------------------------------------------------------------

    def _handle_token(self, connection: Connection, frame: memoryview) -> None:
        if self._wrong_mechanism:
            raise _AuthenticationFailed(self._wrong_mechanism)
        if not self._framed:
            try:
                answer, _ = self._evaluate(connection, bytes(frame))
            except SaslFailed as failure:
                raise _AuthenticationFailed(str(failure)) from None
            self._respond_to_token(connection, len(answer).to_bytes(4, "big") + answer)
            return
        header = frames.parse_request_header(frame)
        if header.api_key != ApiKey.SASL_AUTHENTICATE:
            raise _AuthenticationFailed(
                f"Unexpected Kafka request of type {_name(header.api_key)} during SASL authentication."
            )
        if header.api_version > m.SaslAuthenticateRequest.max_version:
            raise _AuthenticationFailed(f"SaslAuthenticate v{header.api_version} is not served")
        message = codec.decode(m.SaslAuthenticateRequest, header.api_version, frame, header.body_offset)
        response = m.SaslAuthenticateResponse()
        try:
            response.auth_bytes, response.session_lifetime_ms = self._evaluate(
                connection, bytes(message.auth_bytes)
            )
        except SaslFailed as failure:
            response.error_code = ErrorCode.SASL_AUTHENTICATION_FAILED
            response.error_message = str(failure)
            raise _AuthenticationFailed(str(failure), _encoded(response, header)) from None
        self._respond_to_token(connection, _encoded(response, header))

    def _evaluate(self, connection: Connection, token: bytes) -> tuple[bytes, int]:
        """Returns the answer to a token, and the lifetime of the session in ms after the last one, 0 without
        a limit. Raises SaslFailed."""
        exchange, reauthenticating = self._exchange, self._session_ends_s is not None
        assert exchange is not None
        now_ms = self._rules.clock()
        try:
            answer = exchange.evaluate(token, now_ms)
            if not exchange.complete:
                return answer, 0
            principal = self._rules.principal_of(connection, self._mechanism, exchange)
        except SaslFailed as failure:
            raise SaslFailed(str(failure) or self._default_error(reauthenticating)) from None
        except ValueError:
            raise SaslFailed(self._default_error(reauthenticating)) from None
        except Exception:  # a bug in a mechanism: the client gets an error response
            log.exception("%r: SASL mechanism %s failed", connection, self._mechanism)
            raise SaslFailed(self._default_error(reauthenticating)) from None
        before = connection.principal
        if reauthenticating and principal != before:
            raise SaslFailed(
                "Cannot change principals during re-authentication from "
                f"{before.type}.{before.name}: {principal.type}.{principal.name}"
            )
        connection.principal = principal
        connection.by_token = exchange.by_token
        return answer, self._begin_session(exchange.expires_ms, now_ms)

    def _default_error(self, reauthenticating: bool) -> str:
        doing = "re-authentication" if reauthenticating else "authentication"
        return (
            f"Authentication failed during {doing} due to invalid credentials with SASL mechanism "
            f"{self._mechanism}"
        )

    def _begin_session(self, expires_ms: int | None, now_ms: int) -> int:
        most = self._rules.mechanisms[self._mechanism].session_max_ms
        ends = [most] if most > 0 else []
        if expires_ms is not None:
            ends.append(expires_ms - now_ms)
        if not ends:
            self._session_ends_s = None
            return 0
        lifetime_ms = max(0, min(ends))
        self._session_ends_s = self._loop.time() + lifetime_ms / 1000
        return lifetime_ms

    def _respond_to_token(self, connection: Connection, answer: bytes) -> None:
        exchange = self._exchange
        assert exchange is not None
        if exchange.complete:
            self._exchange = None
            self._state = State.COMPLETE
            self._cancel_timer()
            self._on_authenticated(connection)
        connection.respond((answer,))

    def close(self) -> None:
        """The connection is closed."""
        self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- sessions -----------------------------------------------------------------------------------

    def _is_session_valid(self, connection: Connection, frame: memoryview) -> bool:
        """Whether a request of a session with an expiry is accepted; a SaslHandshake begins
        re-authentication."""
        assert self._session_ends_s is not None
        now_s = self._loop.time()
        key = int.from_bytes(frame[:2], "big")
        if key == ApiKey.SASL_HANDSHAKE and now_s - self._reauthenticated_s >= REAUTHENTICATION_MIN_S:
            self._reauthenticated_s = now_s
            self._state = State.HANDSHAKE
        elif now_s > self._session_ends_s:
            connection.close("its session has expired without re-authentication")
            return False
        return True

    # --- failure ------------------------------------------------------------------------------------

    def _fail(self, connection: Connection, failure: _AuthenticationFailed) -> None:
        """Send the response and close the connection, after the delay for failures."""
        self._state = State.FAILED
        self._cancel_timer()
        log.info("%r failed to authenticate: %s", connection, failure)
        delay_s = self._rules.failure_delay_ms / 1000

        def end() -> None:
            if failure.answer is not None:
                connection.respond((failure.answer,))
            connection.close()

        self._timer = self._loop.call_later(delay_s, end)


def _encoded(message: Message, header: frames.RequestHeader) -> bytes:
    return bytes(frames.encode_response(message, header.api_version, header.correlation_id))


def _name(api_key: int) -> str:
    try:
        return ApiKey(api_key).name
    except ValueError:
        return str(api_key)

"""The handshake of a connection: ApiVersions (KIP-35, KIP-511), and a login by SASL (KIP-43, KIP-152).

Called by `connection_state`. Each function is a generator of steps: the caller executes a step and sends its
outcome to the generator, which yields the next step or returns its result. Exceptions are thrown into it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from ottla import __version__
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.types import Message
from ottla.security.clients import Exchange
from ottla.security.clients import Login as Login
from ottla.security.mechanisms import SaslFailed

T = TypeVar("T")
Versions: TypeAlias = dict[int, tuple[int, int]]
"""The lowest and the highest version that a broker supports, by API key."""

SOFTWARE_VERSION: Final = __version__.partition(".dev")[0]
"""What brokers record of a client beside its name, `ottla`."""
_API_VERSIONS_MAX: Final = 3
_SASL_HANDSHAKE: Final = 1


class SendRequest(NamedTuple):
    """Send this request; the outcome is its response."""

    message: Message
    version: int


class SaslStep(NamedTuple):
    """Call `work` outside the event loop: the hashes of a password are slow on purpose. The outcome is its
    result."""

    work: Callable[[], bytes | None]


class Prepare(NamedTuple):
    """Await `prepare`: a token may have to be obtained. The outcome is None."""

    prepare: Callable[[], Awaitable[None]]


Steps: TypeAlias = Generator[SendRequest | SaslStep | Prepare, Any, T]


def negotiate(where: str) -> Steps[Versions]:
    """Ask a broker for its versions. Raises KafkaError."""
    request = m.ApiVersionsRequest(client_software_name="ottla", client_software_version=SOFTWARE_VERSION)
    response: m.ApiVersionsResponse = yield SendRequest(request, _API_VERSIONS_MAX)
    if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
        response = yield SendRequest(request, 0)
    if response.error_code:
        raise KafkaError(ErrorCode(response.error_code), f"ApiVersions of {where}")
    return {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}


def log_in(login: Login, authenticate_version: int) -> Steps[int]:
    """Log in; returns the lifetime of the session in ms (KIP-368), 0 without a limit. Raises KafkaError."""
    handshake = yield SendRequest(m.SaslHandshakeRequest(mechanism=login.mechanism), _SASL_HANDSHAKE)
    if handshake.error_code:
        enabled = ", ".join(handshake.mechanisms)
        detail = f"sasl.mechanism={login.mechanism}; the broker has enabled: {enabled}"
        raise KafkaError(ErrorCode(handshake.error_code), detail)
    if login.prepare is not None:
        yield Prepare(login.prepare)
    exchange = login.begin()
    token: bytes | None = _first(exchange)
    lifetime_ms = 0
    while token is not None:
        answer = yield SendRequest(m.SaslAuthenticateRequest(auth_bytes=token), authenticate_version)
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code), answer.error_message or "")
        lifetime_ms = answer.session_lifetime_ms
        try:
            token = yield SaslStep(partial(_next, exchange, bytes(answer.auth_bytes)))
        except SaslFailed as failure:
            raise KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, str(failure)) from None
    return lifetime_ms


def _first(exchange: Exchange) -> bytes:
    try:
        return next(exchange)
    except SaslFailed as failure:
        raise KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, str(failure)) from None


def _next(exchange: Exchange, answer: bytes) -> bytes | None:
    try:
        return exchange.send(answer)
    except StopIteration:
        return None

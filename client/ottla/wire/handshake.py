"""What comes before the first request on a connection: versions (KIP-35, KIP-511), and logging in with SASL
(KIP-43, KIP-152).

Called by `connection`, in this package. Each is a generator of steps: it is sent what came of one, and gives
the next, or ends with its result. Exceptions among them are thrown into it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from ottla.protocol.types import Message
from ottla.security.logins import Exchange
from ottla.security.mechanisms import SaslFailed

T = TypeVar("T")
Versions: TypeAlias = dict[int, tuple[int, int]]
"""The lowest and the highest that a broker serves, by API key."""

_API_VERSIONS_MAX: Final = 3
_SASL_HANDSHAKE: Final = 1


class Ask(NamedTuple):
    """Send this request; its response comes next."""

    message: Message
    version: int


class SaslStep(NamedTuple):
    """Call this off the event loop, since what proves a password takes long on purpose; its result comes
    next."""

    work: Callable[[], bytes | None]


Steps: TypeAlias = Generator[Ask | SaslStep, Any, T]


class Login(NamedTuple):
    mechanism: str
    begin: Callable[[], Exchange]


def negotiate(where: str) -> Steps[Versions]:
    """Raises KafkaError."""
    request = ApiVersionsRequest(client_software_name="ottla", client_software_version="0.1.0")
    response: ApiVersionsResponse = yield Ask(request, _API_VERSIONS_MAX)
    if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
        response = yield Ask(request, 0)
    if response.error_code:
        raise KafkaError(ErrorCode(response.error_code), f"ApiVersions of {where}")
    return {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}


def log_in(login: Login, authenticate_version: int) -> Steps[int]:
    """For how many milliseconds the session lasts (KIP-368); 0: for ever. Raises KafkaError."""
    shaken = yield Ask(SaslHandshakeRequest(mechanism=login.mechanism), _SASL_HANDSHAKE)
    if shaken.error_code:
        served = ", ".join(shaken.mechanisms)
        told = f"sasl.mechanism={login.mechanism}; served: {served}"
        raise KafkaError(ErrorCode(shaken.error_code), told)
    exchange = login.begin()
    token: bytes | None = next(exchange)
    lifetime_ms = 0
    while token is not None:
        answer = yield Ask(SaslAuthenticateRequest(auth_bytes=token), authenticate_version)
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code), answer.error_message or "")
        lifetime_ms = answer.session_lifetime_ms
        try:
            token = yield SaslStep(partial(_next, exchange, bytes(answer.auth_bytes)))
        except SaslFailed as failure:
            raise KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, str(failure)) from None
    return lifetime_ms


def _next(exchange: Exchange, answer: bytes) -> bytes | None:
    try:
        return exchange.send(answer)
    except StopIteration:
        return None

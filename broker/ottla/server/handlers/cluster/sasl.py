"""SaslHandshake 0 and 1, SaslAuthenticate 0 to 2, where they are out of place: ILLEGAL_SASL_STATE.

Behaviour: before a client is known, and when it authenticates anew, `ottla.server.network.authenticator`
takes these and none of them comes here. What does come is of a listener without SASL, or of a session that
does not end. The routes are also what makes ApiVersions name the two, which clients wait for.
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from ottla.server.dispatch.dispatcher import Request, Route


class SaslHandler:
    def routes(self) -> list[Route]:
        return [
            Route(SaslHandshakeRequest, self.shake_hands, _handshake_error),
            Route(SaslAuthenticateRequest, self.authenticate, _authenticate_error),
        ]

    def shake_hands(self, request: Request) -> None:
        request.respond(SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE))

    def authenticate(self, request: Request) -> None:
        request.respond(
            SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate request received after successful authentication",
            )
        )


def _handshake_error(
    message: SaslHandshakeRequest, version: int, code: ErrorCode, detail: str | None
) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=code)


def _authenticate_error(
    message: SaslAuthenticateRequest, version: int, code: ErrorCode, detail: str | None
) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=code, error_message=detail)

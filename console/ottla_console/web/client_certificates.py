"""Client certificates of browsers: the HTTP protocol that hands them to the application.

`command` gives `CertifyingProtocol` to the server; TLS has verified the certificate by then. Invariant: a
request cannot bring a certificate by itself, by no header.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

_KEY: Final = "ottla.client_certificate"


class CertifyingProtocol(H11Protocol):
    """HTTP over a connection whose client certificate is in the scope of each request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        self.app = certified(self.app, None if tls is None else tls.getpeercert(binary_form=True))


def certified(app: ASGIApp, certificate: bytes | None) -> ASGIApp:
    """The application for requests of one connection. `certificate` in DER."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, _KEY: certificate}, receive, send)

    return serve


def certificate_of(request: Request) -> bytes | None:
    """The client certificate of the connection, in DER."""
    found = request.scope.get(_KEY)
    assert found is None or isinstance(found, bytes)
    return found

"""Guards of all requests: names of the host, origins of changes, security headers. The rules are pure.

A browser on this machine can be made to send requests here by any page that it shows. Such a page can rebind
its own name to this address; therefore only known names are served. It can post forms; therefore a change
needs this site as its origin, and the CSRF token of the session.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers send no Origin
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
HSTS: Final = "max-age=31536000"
_LOCAL: Final = frozenset({"localhost"})


def host_allowed(host: str, names: Collection[str]) -> bool:
    """Whether a Host header names this console: an address, localhost, or one of `names`."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name in _LOCAL or name in names:
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def same_origin(headers: Mapping[str, str], *, tls: bool) -> bool:
    """Whether a request that changes something comes from a page of this console. Browsers send Origin with
    every POST; a request without it is refused."""
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return False
    return headers.get("origin", "") == f"{'https' if tls else 'http'}://{headers.get('host', '')}"


class Guard:
    """ASGI middleware: refuses unknown hosts, and adds the headers to all responses."""

    def __init__(self, app: ASGIApp, hosts: Collection[str], *, tls: bool) -> None:
        self._app = app
        self._hosts = hosts
        self._headers = {**HEADERS, **({"Strict-Transport-Security": HSTS} if tls else {})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        if not host_allowed(host, self._hosts):
            text = "This name is not one of the console's. Start it with --allowed-host NAME to serve it.\n"
            await PlainTextResponse(text, 421)(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)

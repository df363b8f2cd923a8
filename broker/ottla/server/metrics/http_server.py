"""The broker's HTTP server: /metrics for Prometheus, /healthz and /readyz for probes. Off by default.

Started by ottla.server.assembly.broker before anything else, so that probes work while the broker recovers.
One GET is served per connection. /healthz is 200 while the event loop runs; /readyz is 200 while the broker
serves clients, and 503 with its phase before and after.

Invariants: a connection is closed at most TIMEOUT_S after it was accepted, and at most CONNECTIONS_MAX are
open. At that number a new connection replaces the oldest one without a request, or else the oldest: so idle
connections, and clients that do not read, do not block others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 32
HEAD_BYTES_MAX = 16 * 1024
TIMEOUT_S = 10.0
CACHE_S = 1.0
"""The text of metrics is cached for so long."""
TEXT = "text/plain; charset=utf-8"


class HttpServer:
    """See the module. `phase` returns the broker's phase; `metrics` is None until the broker serves
    metrics."""

    def __init__(self, host: str, port: int, phase: Callable[[], str]) -> None:
        self._host = host or None
        self._configured_port = port
        self._phase = phase
        self.metrics: Callable[[], Awaitable[bytes]] | None = None
        self.port = -1
        """The bound port while the server runs, else -1."""
        self._server: asyncio.Server | None = None
        self._serving: dict[asyncio.Task[None], bool] = {}
        """Connections in the order of acceptance, and whether they have sent their request."""
        self.waiting = 0
        """Requests that wait for the text of metrics."""
        self._writing = asyncio.Lock()
        self._text = b""
        self._written_s = -CACHE_S

    async def start(self) -> None:
        """Listen, unless the port is negative. Raises OSError."""
        if self._configured_port < 0:
            return
        try:
            self._server = await asyncio.start_server(
                self._connected, self._host, self._configured_port, limit=HEAD_BYTES_MAX
            )
        except OSError as e:
            where = f"{self._host or ''}:{self._configured_port}"
            raise OSError(e.errno, f"cannot listen on {where} (ottla.http.port): {e.strerror}") from e
        self.port = self._server.sockets[0].getsockname()[1]
        log.info("Serving metrics and probes on port %d", self.port)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self.port = -1
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) >= CONNECTIONS_MAX:
            without_request = (task for task, has_request in self._serving.items() if not has_request)
            oldest = next(without_request, None) or next(iter(self._serving))
            del self._serving[oldest]
            oldest.cancel()
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving[task] = False
        task.add_done_callback(lambda task: self._serving.pop(task, None))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        try:
            with contextlib.suppress(
                OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
            ):
                async with asyncio.timeout(TIMEOUT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    if task in self._serving:
                        self._serving[task] = True
                    writer.write(await self._response_to(head))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        except Exception:
            log.exception("An HTTP request failed")
        finally:
            writer.transport.abort()

    async def _response_to(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _response(HTTPStatus.BAD_REQUEST, b"")
        method, target, _ = words
        if method not in (b"GET", b"HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, b"")
        status, body, kind = await self._page(target.split(b"?", 1)[0])
        return _response(status, body, kind, with_body=method == b"GET")

    async def _page(self, path: bytes) -> tuple[HTTPStatus, bytes, str]:
        if path == b"/metrics":
            if self.metrics is None:
                return HTTPStatus.SERVICE_UNAVAILABLE, b"", TEXT
            from prometheus_client import CONTENT_TYPE_LATEST  # slow to import, and mostly the port is off

            return HTTPStatus.OK, await self._metrics_text(self.metrics), CONTENT_TYPE_LATEST
        if path == b"/healthz":
            return HTTPStatus.OK, b"ok\n", TEXT
        if path == b"/readyz":
            phase = self._phase()
            ready = HTTPStatus.OK if phase == "ready" else HTTPStatus.SERVICE_UNAVAILABLE
            return ready, f"{phase}\n".encode(), TEXT
        return HTTPStatus.NOT_FOUND, b"", TEXT

    async def _metrics_text(self, metrics: Callable[[], Awaitable[bytes]]) -> bytes:
        """One request writes at a time; requests during and shortly after it get the same text."""
        loop = asyncio.get_running_loop()
        arrived_s = loop.time()
        self.waiting += 1
        try:
            async with self._writing:
                if self._written_s < arrived_s and loop.time() - self._written_s >= CACHE_S:
                    self._text = await metrics()
                    self._written_s = loop.time()
                return self._text
        finally:
            self.waiting -= 1


def _response(status: HTTPStatus, body: bytes, kind: str = TEXT, *, with_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")

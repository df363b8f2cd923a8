"""The HTTP server of a job's `/status` (JSON), `/metrics` (Prometheus) and `/healthz`.

Called by `command`. The operator and `ottla up` read `/status`; a thread serves it, also while a batch
runs. Each read and write of a connection has a time-out of TIMEOUT_S. At most CONNECTIONS_MAX connections
are open; a further one closes the oldest, so idle connections cannot block the port.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

CONNECTIONS_MAX: Final = 32
TIMEOUT_S: Final = 10.0


class _Server(ThreadingHTTPServer):
    """An HTTP server with a limit of open connections."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *args: Any) -> None:
        self._open: dict[socket.socket, None] = {}
        """Open connections, in the order of their acceptance."""
        self._changing = threading.Lock()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changing:
            if len(self._open) >= CONNECTIONS_MAX:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with suppress(OSError):  # closed already
                    oldest.shutdown(socket.SHUT_RDWR)
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._changing:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs nothing: the client has disconnected, or its connection was closed."""


class StatusPort:
    """Serves until closed. `port` is the bound port; 0 selects a free one."""

    def __init__(
        self, host: str, port: int, status: Callable[[], dict[str, object]], metrics: CollectorRegistry
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = TIMEOUT_S

            def do_GET(self) -> None:
                if self.path == "/status":
                    self._answer(200, "application/json", json.dumps(status()).encode())
                elif self.path == "/metrics":
                    self._answer(200, CONTENT_TYPE_LATEST, generate_latest(metrics))
                elif self.path == "/healthz":
                    self._answer(200, "text/plain", b"ok\n")
                else:
                    self._answer(404, "text/plain", b"there are /status, /metrics and /healthz\n")

            def _answer(self, code: int, kind: str, body: bytes) -> None:
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Logs nothing: probes arrive every few seconds."""

        self._server = _Server((host, port), Handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="status-port", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

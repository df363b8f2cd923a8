"""A job's `/status` (JSON), `/metrics` (Prometheus) and `/healthz`, on a port of its own.

Called by `running`. The operator and `ottla up` read `/status`; it is answered from a thread, also while a
batch runs.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest


class StatusPort:
    """Serves until closed; `port` is the one that was taken (0 asks for any)."""

    def __init__(
        self, host: str, port: int, status: Callable[[], dict[str, object]], metrics: CollectorRegistry
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
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
                """Says nothing: probes come every few seconds."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="status-port", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

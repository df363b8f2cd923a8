"""Requests to an OAuth server by HTTP: key sets and tokens.

Called in a thread, by the broker's listeners and by clients' logins. TLS is verified by the trust store of
the ssl.* options of `sasl.jaas.config`, as in Kafka, or by that of the system.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from ottla.security.tls import TlsSettings, client_context

BYTES_MAX: Final = 1 << 20
_MESSAGE_MAX: Final = 200


class HttpProblem(OSError):
    """No usable answer; `status` is that of HTTP, 0 if there was none."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class _SameScheme(urllib.request.HTTPRedirectHandler):
    """Follows a redirect to the same scheme only, as Java: never from https to http."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl).scheme != urlsplit(req.full_url).scheme:
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def check_url(setting: str, url: str) -> None:
    """Raises ValueError for a URL that Kafka does not allow in this setting."""
    parts = urlsplit(url)
    if parts.scheme not in ("https", "http", "file") or (parts.scheme != "file" and not parts.netloc):
        raise ValueError(f"{setting}={url}: must be https://, http:// or file:")


def file_of(url: str) -> Path | None:
    """The path of a file: URL; None for others."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def read_file(path: Path) -> bytes:
    """Raises OSError, also for a file larger than an answer may be."""
    with path.open("rb") as file:
        data = file.read(BYTES_MAX + 1)
    if len(data) > BYTES_MAX:
        raise OSError(f"{path} is larger than {BYTES_MAX} bytes")
    return data


def request(
    url: str,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    options: Mapping[str, str],
    timeout_s: float,
) -> bytes:
    """The body of the answer to GET, or to POST with `body`. `options`: of the login module; `timeout_s` is
    for connecting and for each read. Raises HttpProblem, and StoreProblem for unusable ssl.* options."""
    handlers: list[urllib.request.BaseHandler] = [_SameScheme()]
    if urlsplit(url).scheme == "https":
        context = client_context(TlsSettings.of(options.get))
        handlers.append(urllib.request.HTTPSHandler(context=context))
    opener = urllib.request.build_opener(*handlers)
    try:
        asked = urllib.request.Request(url, data=body, headers=dict(headers or {}))
        with opener.open(asked, timeout=timeout_s) as answer:
            data: bytes = answer.read(BYTES_MAX + 1)
            missing: int | None = answer.length
    except urllib.error.HTTPError as problem:
        with problem:
            detail = problem.read(_MESSAGE_MAX).decode("utf-8", "replace").strip()
        raise HttpProblem(f"HTTP {problem.code} {detail or problem.reason}", problem.code) from None
    except (OSError, HTTPException, ValueError) as problem:
        reason = getattr(problem, "reason", None) or problem
        raise HttpProblem(str(reason) or type(problem).__name__) from None
    if len(data) > BYTES_MAX:
        raise HttpProblem(f"the answer is larger than {BYTES_MAX} bytes")
    if missing:
        raise HttpProblem(f"the answer ends {missing} bytes early")
    return data

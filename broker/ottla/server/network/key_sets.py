"""The key set (JWKS) that tokens are verified by: fetched by file or http, and again when it is time.

Made by ottla.server.network.secure_listeners for OAUTHBEARER, asked for each token, ticked about once a
second. It is fetched once at the start, where a failure is told at once; later in a thread, when
sasl.oauthbearer.jwks.endpoint.refresh.ms is over, and sooner for a key that is not known, but no more often
than the retry back-off allows. What was fetched last stays until there is something better.
"""

from __future__ import annotations

import logging
import time
import urllib.request
from concurrent.futures import Executor
from typing import Any, Final

from ottla.security.oauth import parse_key_set

log = logging.getLogger(__name__)

FETCH_S: Final = 10.0
UNKNOWN_KEY_PAUSE_S: Final = 1.0
_BYTES_MAX: Final = 1 << 20


class KeySet:
    def __init__(
        self, url: str, threads: Executor, *, refresh_s: float, retry_s: float, retry_max_s: float
    ) -> None:
        """Raises ValueError when there is none at the URL."""
        if not url.startswith(("https://", "http://", "file:")):
            raise ValueError(f"sasl.oauthbearer.jwks.endpoint.url={url}: must be https://, http:// or file:")
        self._url = url
        self._threads = threads
        self._refresh_s = refresh_s
        self._retry_s, self._retry_max_s = max(retry_s, UNKNOWN_KEY_PAUSE_S), retry_max_s
        self._failures = 0
        self._fetching = False
        self._keys = self._fetch()
        self._fetched = time.monotonic()

    def get(self, key_id: str | None) -> Any:
        """The key of that id, or None; then the set is fetched anew for the next who comes with it."""
        found = self._keys.get(key_id)
        if found is None:
            self._fetch_after(self._retry_s)
        return found

    def tick(self) -> None:
        if self._failures:
            self._fetch_after(min(self._retry_s * 2**self._failures, self._retry_max_s))
        else:
            self._fetch_after(self._refresh_s)

    def _fetch_after(self, pause_s: float) -> None:
        if not self._fetching and time.monotonic() - self._fetched >= pause_s:
            self._fetching = True
            self._threads.submit(self._fetch_again)

    def _fetch_again(self) -> None:
        """In a thread."""
        try:
            self._keys = self._fetch()
            self._failures = 0
        except ValueError as problem:
            self._failures += 1
            log.warning("the key set stays as it is: %s", problem)
        finally:
            self._fetched = time.monotonic()
            self._fetching = False

    def _fetch(self) -> dict[str | None, Any]:
        try:
            with urllib.request.urlopen(self._url, timeout=FETCH_S) as answer:
                return parse_key_set(answer.read(_BYTES_MAX))
        except (OSError, ValueError) as problem:
            raise ValueError(f"sasl.oauthbearer.jwks.endpoint.url={self._url}: {problem}") from None

"""The key set (JWKS) that verifies OAUTHBEARER tokens, fetched by file or http and refreshed.

Made by ottla.server.network.secure_listeners; `get` is called for each token, `tick` about once a second. The
first fetch is at the start of the broker, and its failure is raised. Later fetches are in a thread: after
sasl.oauthbearer.jwks.endpoint.refresh.ms, and for an unknown key, but no more often than the retry back-off
allows. A fetch that fails leaves the keys as they are.
"""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final

from ottla.security.oauth import parse_key_set

log = logging.getLogger(__name__)

FETCH_S: Final = 10.0
UNKNOWN_KEY_PAUSE_S: Final = 1.0
_BYTES_MAX: Final = 1 << 20


class KeySet:
    def __init__(
        self,
        url: str,
        threads: Executor,
        *,
        refresh_s: float,
        retry_s: float,
        retry_max_s: float,
        clock: Callable[[], float],
    ) -> None:
        """`clock` gives seconds that never step. Raises ValueError when the URL has no key set."""
        if not url.startswith(("https://", "http://", "file:")):
            raise ValueError(f"sasl.oauthbearer.jwks.endpoint.url={url}: must be https://, http:// or file:")
        self._url = url
        self._clock = clock
        self._threads = threads
        self._refresh_s = refresh_s
        self._retry_s, self._retry_max_s = max(retry_s, UNKNOWN_KEY_PAUSE_S), retry_max_s
        self._failures = 0
        self._fetching = False
        self._keys = self._fetch()
        self._fetched = self._clock()

    def get(self, key_id: str | None) -> Any:
        """The key with that id; None if it is unknown, and then the set is fetched again."""
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
        if not self._fetching and self._clock() - self._fetched >= pause_s:
            self._fetching = True
            self._threads.submit(self._refresh)

    def _refresh(self) -> None:
        """In a thread."""
        try:
            self._keys = self._fetch()
            self._failures = 0
        except ValueError as problem:
            self._failures += 1
            log.warning("refreshing the key set failed, the old one is kept: %s", problem)
        finally:
            self._fetched = self._clock()
            self._fetching = False

    def _fetch(self) -> dict[str | None, Any]:
        try:
            with urllib.request.urlopen(self._url, timeout=FETCH_S) as answer:
                return parse_key_set(answer.read(_BYTES_MAX))
        except (OSError, ValueError) as problem:
            raise ValueError(f"sasl.oauthbearer.jwks.endpoint.url={self._url}: {problem}") from None

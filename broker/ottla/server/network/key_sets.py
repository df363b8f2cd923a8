"""The key set (JWKS) that verifies the OAUTHBEARER tokens of a listener, by file or HTTP, and its refreshes.

Made by `secure_listeners` at the broker's start, which waits for the first fetch and whose ticks refresh it.

Invariants: fetches are in a thread; one that fails leaves the keys as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ottla.ports.workers import Threads
from ottla.security import https
from ottla.security.signed_tokens import KeySet, PublicKey, parse_key_set, select_key

log = logging.getLogger(__name__)

FETCH_S: Final = 10.0
UNKNOWN_KEY_PAUSE_S: Final = 60.0
"""For the same unknown key the set is fetched once in this time, as in Kafka's RefreshingHttpsJwks."""
FETCH_PAUSE_S: Final = 1.0
"""Between two fetches for unknown keys; Kafka has no such pause, so that any client can make it fetch again
at each connection."""
UNKNOWN_KEYS_MAX: Final = 16
KEY_ID_MAX: Final = 1000
_SETTING: Final = "sasl.oauthbearer.jwks.endpoint.url"


class Refreshes(NamedTuple):
    """sasl.oauthbearer.jwks.endpoint.{refresh.ms,retry.backoff.ms,retry.backoff.max.ms}, in seconds."""

    refresh_s: float
    retry_s: float
    retry_max_s: float


class RefreshingKeySet:
    """See the module. Belongs to the event loop."""

    def __init__(
        self,
        url: str,
        options: Mapping[str, str],
        threads: Threads,
        monotonic_s: Callable[[], float],
        refreshes: Refreshes,
    ) -> None:
        """`options`: of the login module; `monotonic_s` is called by the threads, too. Raises ValueError for
        a URL that cannot be fetched."""
        https.check_url(_SETTING, url)
        self._url = url
        self._options = options
        self._threads = threads
        self._monotonic_s = monotonic_s
        self._refreshes = refreshes
        self._failures = 0
        self._fetching = False
        self._unknown: dict[str, float] = {}
        """When the set may be fetched again for an unknown key, the least recently asked first."""
        self._keys: KeySet = ()
        self._fetched = self._monotonic_s()

    def fetch_first(self) -> None:
        """In a thread: the first fetch. Raises ValueError when the URL has no key set."""
        self._keys = self._fetch()
        self._fetched = self._monotonic_s()

    def select(self, key_id: str | None, algorithm: str) -> PublicKey | None:
        """As `select_key`; for an unknown key the set is fetched again, and the client has to retry."""
        found = select_key(self._keys, key_id, algorithm)
        if found is None and key_id is not None and len(key_id) <= KEY_ID_MAX:
            self._fetch_for(key_id)
        return found

    def _fetch_for(self, key_id: str) -> None:
        now = self._monotonic_s()
        if now < self._unknown.get(key_id, 0.0) or not self._begin_fetch(FETCH_PAUSE_S):
            return
        self._unknown.pop(key_id, None)
        self._unknown[key_id] = now + UNKNOWN_KEY_PAUSE_S
        if len(self._unknown) > UNKNOWN_KEYS_MAX:
            del self._unknown[next(iter(self._unknown))]

    def tick(self) -> None:
        """About once a second: fetch the keys if a refresh is due."""
        at = self._refreshes
        self._begin_fetch(
            min(at.retry_s * 2.0 ** (self._failures - 1), at.retry_max_s) if self._failures else at.refresh_s
        )

    def _begin_fetch(self, pause_s: float) -> bool:
        if self._fetching or self._monotonic_s() - self._fetched < pause_s:
            return False
        self._fetching = True
        self._threads.submit(self._refresh)
        return True

    def _refresh(self) -> None:
        """In a thread."""
        try:
            keys = self._fetch()
        except Exception as problem:
            self._failures = min(self._failures + 1, 32)
            log.warning("refreshing the key set failed, the present one is kept: %s", problem)
        else:
            self._failures, self._keys = 0, keys
        finally:
            self._fetched = self._monotonic_s()
            self._fetching = False

    def _fetch(self) -> KeySet:
        path = https.file_of(self._url)
        try:
            if path is not None:
                return parse_key_set(https.read_file(path))
            return parse_key_set(https.request(self._url, options=self._options, timeout_s=FETCH_S))
        except (OSError, ValueError) as problem:
            raise ValueError(f"{_SETTING}={self._url}: {problem}") from None

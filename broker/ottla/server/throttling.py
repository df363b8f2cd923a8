"""What requests cost against client quotas, and the silence that follows (KIP-124, KIP-219).

Asked by the produce and fetch handlers, once per request, when the answer is ready. The answer goes out at
once and says how long the client is to wait; this broker reads nothing more from the connection until then,
for clients that do not. Requests of other brokers are never counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.metadata.config import BrokerConfig
from ottla.quotas.broker import BrokerQuotas
from ottla.quotas.clients import ANONYMOUS
from ottla.quotas.rates import Windows
from ottla.server.dispatch import Request

NO_LIMIT: Final = 2**31 - 1


def broker_quotas(config: BrokerConfig) -> BrokerQuotas:
    """A broker's quotas with nothing set yet."""

    def windows(prefix: str) -> Windows:
        seconds = config.get_int(f"{prefix}quota.window.size.seconds")
        return Windows(config.get_int(f"{prefix}quota.window.num"), seconds * 1000)

    log_dirs = windows("alter.log.dirs.replication.")
    return BrokerQuotas(config.broker_id, windows(""), windows("replication."), log_dirs)


class ClientThrottle:
    """The byte-rate quotas of clients. Every connection is anonymous until there is authentication."""

    def __init__(self, quotas: BrokerQuotas, clock: Callable[[], int]) -> None:
        self._produce = quotas.produce
        self._fetch = quotas.fetch
        self._clock = clock

    def produced(self, request: Request) -> int:
        """Count a Produce that is about to be answered; for how many ms its client is to wait."""
        quota = self._produce
        if not quota.enabled:
            return 0
        wait_ms = quota.record(ANONYMOUS, request.client_id, request.size, self._clock())
        request.connection.mute(wait_ms)
        return wait_ms

    @property
    def limits_fetches(self) -> bool:
        return self._fetch.enabled

    def max_bytes(self, request: Request) -> int:
        """How much a Fetch may bring its client at once: more than this would never get through."""
        quota = self._fetch
        if not quota.enabled:
            return NO_LIMIT
        most = quota.most_at_once(ANONYMOUS, request.client_id)
        return NO_LIMIT if most is None else most

    def throttle_ms(self, request: Request, size: int) -> int:
        """Count a consumer's Fetch whose answer has that many bytes. Positive: for how many ms the client is
        to wait, with an empty answer, which counts nothing."""
        quota = self._fetch
        if not quota.enabled:
            return 0
        now_ms = self._clock()
        wait_ms = quota.record(ANONYMOUS, request.client_id, size, now_ms)
        if wait_ms > 0:
            quota.unrecord(ANONYMOUS, request.client_id, size, now_ms)
            request.connection.mute(wait_ms)
        return wait_ms

"""Connection creation rates of a listener, of the broker, and of an IP address (KIP-402, KIP-612).

Called by ottla.server.network.listener for each accepted connection. The first two delay the acceptor. A
connection from an address above its rate is closed after a delay, and not counted. Delays are at most one
window. All behaviour is that of `ConnectionQuotas` of Kafka 3.9.1; a test compares the two.
"""

from __future__ import annotations

from ottla.quotas.clients import DEFAULT, QuotaEntity, RequestQuotas, bounded_throttle_ms
from ottla.quotas.rates import Rate, Windows


class ConnectionQuotas:
    """Limits are in connections per second; callers pass those of listeners and of the broker."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._broker = Rate(windows)
        self._listeners: dict[str, Rate] = {}
        # An address takes the place of a client-id; its delays are at most one window, too.
        self._addresses = RequestQuotas(windows)

    def set_address_limit(self, address: str | None, limit: int | None) -> None:
        """Set the limit of an address, or the default (address None); limit None removes it."""
        self._addresses.update(QuotaEntity(client_id=DEFAULT if address is None else address), limit)

    def accepted(self, listener: str, listener_limit: int, broker_limit: int | None, now_ms: int) -> int:
        """Record a connection; returns the delay in ms of it and of those behind it. The inter-broker
        listener is exempt from the broker's limit (`broker_limit` None)."""
        rate = self._listeners.get(listener)
        if rate is None:
            rate = self._listeners[listener] = Rate(self._windows)
        wait_ms = self._record(rate, listener_limit, now_ms)
        if broker_limit is not None:
            wait_ms = max(wait_ms, self._record(self._broker, broker_limit, now_ms))
        return wait_ms

    def record_address(self, address: str, listener: str, now_ms: int, *, of_broker: bool) -> int:
        """Record a connection of an address. Positive: the rate is exceeded, the connection is not counted
        and must be closed after so many ms. `of_broker`: `accepted` counted it for the broker."""
        if self._addresses.limit_of("", address) is None:
            return 0
        wait_ms = self._addresses.record("", address, 1, now_ms)
        if wait_ms > 0:
            self._addresses.unrecord("", address, 1, now_ms)
            self._listeners[listener].record(-1, now_ms)
            if of_broker:
                self._broker.record(-1, now_ms)
        return wait_ms

    def _record(self, rate: Rate, limit: int, now_ms: int) -> int:
        rate.record(1, now_ms)
        observed, window_ms = rate.measure(now_ms)
        if observed <= limit:
            return 0
        return bounded_throttle_ms(observed, limit, window_ms, self._windows.window_ms)

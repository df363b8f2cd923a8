"""How fast connections may be made: to a listener, to the broker, and from one address (KIP-402, KIP-612).

Called by ottla.server.network.listener for each connection that is accepted. The first two make the acceptor
wait, and the connection with it; an address above its own rate has its connection closed, after a wait, and
not counted. Nobody waits longer than one window. All as `ConnectionQuotas` of Kafka 3.9.1 has it (a test asks
it).
"""

from __future__ import annotations

from ottla.quotas.clients import DEFAULT, QuotaEntity, RequestQuotas, bounded_throttle_ms
from ottla.quotas.rates import Rate, Windows


class ConnectionRates:
    """Limits are connections per second; the ones of listeners and the broker are passed in each time."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._broker = Rate(windows)
        self._listeners: dict[str, Rate] = {}
        # An address takes the place of a client id; no wait is longer than one window there, too.
        self._addresses = RequestQuotas(windows)

    def limit_address(self, address: str | None, limit: int | None) -> None:
        """Set the limit of an address, or of all that have none of their own (None); None takes it away."""
        self._addresses.update(QuotaEntity(client_id=DEFAULT if address is None else address), limit)

    def accepted(self, listener: str, listener_limit: int, broker_limit: int | None, now_ms: int) -> int:
        """Count a connection; for how many ms it and those behind it are to wait. The brokers' own listener
        does not count for the broker, nor waits for it (`broker_limit` None)."""
        rate = self._listeners.get(listener)
        if rate is None:
            rate = self._listeners[listener] = Rate(self._windows)
        wait_ms = self._record(rate, listener_limit, now_ms)
        if broker_limit is not None:
            wait_ms = max(wait_ms, self._record(self._broker, broker_limit, now_ms))
        return wait_ms

    def from_address(self, address: str, listener: str, now_ms: int, *, of_broker: bool) -> int:
        """Count a connection of an address. Positive: it has too many, this one was not counted after all,
        and is to be closed after so many ms. `of_broker`: `accepted` counted it for the broker."""
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

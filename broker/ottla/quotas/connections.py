"""How fast connections may be made: to a listener, to the broker, and from one address (KIP-402, KIP-612).

Called by ottla.server.listener for each connection that is accepted. The first two make the acceptor wait,
and the connection with it; an address above its own rate has its connection closed, after a wait, and not
counted. Nobody waits longer than one window. All as `ConnectionQuotas` of Kafka 3.9.1 has it (a test asks
it).
"""

from __future__ import annotations

from typing import Final

from ottla.quotas.clients import bounded_throttle_ms
from ottla.quotas.levels import SENSOR_EXPIRATION_MS
from ottla.quotas.rates import Rate, Windows

NO_LIMIT: Final = 2**31 - 1
_SWEEP_INTERVAL_MS: Final = 30 * 1000


class _Made:
    """Connections that were made, and when one was last."""

    __slots__ = ("rate", "used_ms")

    def __init__(self, windows: Windows) -> None:
        self.rate = Rate(windows)
        self.used_ms = 0


class ConnectionRates:
    """Limits are connections per second; the ones of listeners and the broker are passed in each time."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._broker = Rate(windows)
        self._listeners: dict[str, Rate] = {}
        self._default = NO_LIMIT
        self._limits: dict[str, int] = {}
        self._addresses: dict[str, _Made] = {}
        self._swept_ms = 0

    def limit_address(self, address: str | None, limit: int | None) -> None:
        """Set the limit of an address, or of all that have none of their own (None); None takes it away."""
        if address is None:
            self._default = NO_LIMIT if limit is None else limit
        elif limit is None:
            self._limits.pop(address, None)
        else:
            self._limits[address] = limit

    def limit_of(self, address: str) -> int:
        return self._limits.get(address, self._default)

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
        limit = self.limit_of(address)
        if limit == NO_LIMIT:
            return 0
        made = self._addresses.get(address)
        if made is None:
            self._sweep(now_ms)
            made = self._addresses[address] = _Made(self._windows)
        made.used_ms = now_ms
        wait_ms = self._record(made.rate, limit, now_ms)
        if wait_ms > 0:
            made.rate.record(-1, now_ms)
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

    def _sweep(self, now_ms: int) -> None:
        if now_ms - self._swept_ms < _SWEEP_INTERVAL_MS:
            return
        self._swept_ms = now_ms
        oldest_ms = now_ms - SENSOR_EXPIRATION_MS
        for address in [a for a, made in self._addresses.items() if made.used_ms < oldest_ms]:
            del self._addresses[address]

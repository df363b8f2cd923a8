"""How long a client is to wait that took more of something than its rate allows (KIP-13, KIP-55, KIP-124).

One `ClientQuotas` for each kind of quota that is a rate; the handlers record what a request weighed and
answer with the time it returns. Whose limit holds is `levels`' matter. Everything is as
`ClientQuotaManager` of Kafka 3.9.1 has it, which a test compares it with.
"""

from __future__ import annotations

import math
from typing import Final

from ottla.quotas.levels import (
    DEFAULT,
    SENSOR_EXPIRATION_MS,
    UNLIMITED,
    UNNAMED,
    Levels,
    Name,
    QuotaEntity,
)
from ottla.quotas.rates import Rate, Windows

__all__ = [
    "DEFAULT",
    "SENSOR_EXPIRATION_MS",
    "UNLIMITED",
    "UNNAMED",
    "ClientQuotas",
    "Name",
    "QuotaEntity",
    "RequestQuotas",
    "throttle_ms",
]

PERCENT_PER_NANOSECOND: Final = 100.0 / 1e9


class _Used:
    """What one client, user or pair has used; `limit` is in amount per second."""

    __slots__ = ("limit", "rate", "used_ms")

    def __init__(self, rate: Rate, limit: float) -> None:
        self.rate = rate
        self.limit = limit
        self.used_ms = 0


class ClientQuotas(Levels[_Used]):
    """Limits and usage of one kind of quota."""

    def __init__(self, windows: Windows) -> None:
        super().__init__()
        self._windows = windows

    def make_sensor(self, limit: float) -> _Used:
        return _Used(Rate(self._windows), limit)

    def record(self, user: str, client_id: str | None, amount: float, now_ms: int) -> int:
        """Count what a request weighed; returns for how many ms the client is to be silent, mostly 0."""
        sensor = self.sensor(user, client_id, now_ms)
        sensor.rate.record(amount, now_ms)
        observed, window_ms = sensor.rate.measure(now_ms)
        return 0 if observed <= sensor.limit else self.throttle_ms(observed, sensor.limit, window_ms)

    def throttle_ms(self, observed: float, limit: float, window_ms: int) -> int:
        """The wait of a client whose rate is above its limit."""
        return throttle_ms(observed, limit, window_ms)

    def unrecord(self, user: str, client_id: str | None, amount: float, now_ms: int) -> None:
        """Take back what `record` counted: the throttled answer will not carry it."""
        self.sensor(user, client_id, now_ms).rate.record(-amount, now_ms)

    def most_at_once(self, user: str, client_id: str | None) -> int | None:
        """The largest amount that can pass without waiting, after a silence; None when there is no limit.

        An answer that is larger would be throttled for ever: Fetch does not read more than this.
        """
        limit = self.limit_of(user, client_id)
        if limit is None:
            return None
        most = limit * (self._windows.samples - 1) * self._windows.window_ms / 1000
        return max(0, int(min(most, 2**31 - 1)))


class RequestQuotas(ClientQuotas):
    """request_percentage: the share of the broker's time, where 100 is the whole of its one loop (KIP-124).

    No wait is longer than one window: what takes time is not known before, so a request that was dear need
    not be paid for at once.
    """

    def throttle_ms(self, observed: float, limit: float, window_ms: int) -> int:
        return bounded_throttle_ms(observed, limit, window_ms, self._windows.window_ms)


def throttle_ms(observed: float, limit: float, window_ms: int) -> int:
    """How long nothing may come until the rate is at the limit again: (observed - limit) / limit * window.

    Kafka keeps the lowest 32 bits of it. So a limit of 0 throttles nobody (an infinite time becomes -1), nor
    does one so small that the time has its 32nd bit set.
    """
    if limit == 0:
        return 0
    low = _exact_ms(observed, limit, window_ms) & 0xFFFFFFFF
    return low if low < 2**31 else 0


def bounded_throttle_ms(observed: float, limit: float, window_ms: int, most_ms: int) -> int:
    """The same, `most_ms` at most; a limit of 0 gives all of that."""
    return most_ms if limit == 0 else max(0, min(_exact_ms(observed, limit, window_ms), most_ms))


def _exact_ms(observed: float, limit: float, window_ms: int) -> int:
    exact = (observed - limit) / limit * window_ms
    if math.isnan(exact):
        return 0
    return 2**63 - 1 if exact >= 2.0**63 else math.floor(exact + 0.5)

"""Throttle times of clients that exceed a rate (KIP-13, KIP-55, KIP-124).

There is one `ClientQuotas` per kind of rate quota; handlers record the amount of a request and respond with
the returned throttle time. `levels` chooses the limit. All behaviour is that of `ClientQuotaManager` of Kafka
3.9.1; a test compares the two.
"""

from __future__ import annotations

import math
from typing import Final

from ottla.quotas.levels import QuotaSensors
from ottla.quotas.rates import Rate, Windows

PERCENT_PER_NANOSECOND: Final = 100.0 / 1e9


class _Usage:
    """The measured rate of one client, user or pair; `limit` is in amount per second."""

    __slots__ = ("limit", "rate", "throttled_ms", "throttles", "used_ms")

    def __init__(self, rate: Rate, limit: float) -> None:
        self.rate = rate
        self.limit = limit
        self.used_ms = 0
        self.throttles = self.throttled_ms = 0
        """Requests that were throttled, and for how long in total."""


class ClientQuotas(QuotaSensors[_Usage]):
    """Limits and usage of one kind of quota."""

    def __init__(self, windows: Windows, *, is_bounded: bool = False) -> None:
        """`is_bounded`: throttle times are at most one window, as for request_percentage (KIP-124)."""
        super().__init__()
        self._windows = windows
        self._is_bounded = is_bounded

    def make_sensor(self, limit: float) -> _Usage:
        return _Usage(Rate(self._windows), limit)

    def record(self, user: str, client_id: str | None, amount: float, now_ms: int) -> int:
        """Record the amount of a request; returns the throttle time in ms, mostly 0."""
        sensor = self.sensor(user, client_id, now_ms)
        sensor.rate.record(amount, now_ms)
        observed, window_ms = sensor.rate.measure(now_ms)
        if observed <= sensor.limit:
            return 0
        if self._is_bounded:
            wait_ms = bounded_throttle_ms(observed, sensor.limit, window_ms, self._windows.window_ms)
        else:
            wait_ms = throttle_ms(observed, sensor.limit, window_ms)
        if wait_ms > 0:
            sensor.throttles += 1
            sensor.throttled_ms += wait_ms
        return wait_ms

    def unrecord(self, user: str, client_id: str | None, amount: float, now_ms: int) -> None:
        """Undo `record`: the throttled response does not contain the data."""
        self.sensor(user, client_id, now_ms).rate.record(-amount, now_ms)

    def max_burst(self, user: str, client_id: str | None) -> int | None:
        """The largest amount that an idle client can use without throttling; None without a limit.

        Fetch does not read more than this: a larger response would be throttled for ever.
        """
        limit = self.limit_of(user, client_id)
        if limit is None:
            return None
        most = limit * (self._windows.samples - 1) * self._windows.window_ms / 1000
        return max(0, int(min(most, 2**31 - 1)))


def throttle_ms(observed: float, limit: float, window_ms: int) -> int:
    """The time until the rate is at the limit again: (observed - limit) / limit * window.

    Kafka keeps its lowest 32 bits. So a limit of 0 does not throttle (an infinite time becomes -1), nor does
    a limit so small that the time has its 32nd bit set.
    """
    if limit == 0:
        return 0
    low = _exact_ms(observed, limit, window_ms) & 0xFFFFFFFF
    return low if low < 2**31 else 0


def bounded_throttle_ms(observed: float, limit: float, window_ms: int, most_ms: int) -> int:
    """As `throttle_ms`, but at most `most_ms`; `most_ms` for a limit of 0."""
    return most_ms if limit == 0 else max(0, min(_exact_ms(observed, limit, window_ms), most_ms))


def _exact_ms(observed: float, limit: float, window_ms: int) -> int:
    exact = (observed - limit) / limit * window_ms
    if math.isnan(exact):
        return 0
    return 2**63 - 1 if exact >= 2.0**63 else math.floor(exact + 0.5)

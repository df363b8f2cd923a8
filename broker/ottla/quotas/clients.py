"""How long a client is to wait: the eight levels of precedence, and what every client has used (KIP-13, 55).

One `ClientQuotas` for each kind of quota; the handlers record what a request weighed and answer with the time
it returns. The most specific of these that is set holds:

    1. user and client-id           5. default user and default client-id
    2. user and default client-id   6. default user
    3. user                         7. client-id
    4. default user and client-id   8. default client-id

A quota of a default is not shared: each user (levels 3 and 6), client-id (7 and 8) or pair (the others) has
its own usage. Everything is as `ClientQuotaManager` of Kafka 3.9.1 has it, which a test compares it with.

Invariants: nothing is counted before the first quota was set (`enabled`), and all clients are from then on;
every sensor's limit is the one its levels give now; a sensor unused for an hour is forgotten.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple, TypeAlias

from ottla.quotas.rates import Rate, Windows

ANONYMOUS: Final = "ANONYMOUS"
"""The user of a connection without authentication."""

Name: TypeAlias = str | None
"""A user or a client-id; None is the default, "" that the entity names none."""

DEFAULT: Final[Name] = None
UNNAMED: Final = ""

UNLIMITED: Final = float(2**63 - 1)
SENSOR_EXPIRATION_MS: Final = 3600 * 1000
_SWEEP_INTERVAL_MS: Final = 30 * 1000

_CLIENT_LEVELS, _USER_LEVELS, _PAIR_LEVELS = 1, 2, 4


class QuotaEntity(NamedTuple):
    """What a quota is set for."""

    user: Name = UNNAMED
    client_id: Name = UNNAMED


class _Sensor:
    """What one client, user or pair has used; `limit` is in amount per second."""

    __slots__ = ("limit", "rate", "used_ms")

    def __init__(self, rate: Rate, limit: float | None) -> None:
        self.rate = rate
        self.limit = UNLIMITED if limit is None else limit
        self.used_ms = 0


class ClientQuotas:
    """Limits and usage of one kind of quota."""

    def __init__(self, windows: Windows) -> None:
        self.enabled = False
        """Whether a quota of any kind has been set since the start; until then there is nothing to ask."""
        self._windows = windows
        self._levels = 0
        self._limits: dict[QuotaEntity, float] = {}
        self._sensors: dict[tuple[str, str], _Sensor] = {}
        self._swept_ms = 0

    def update(self, entity: QuotaEntity, limit: float | None) -> None:
        """Set the limit of an entity, in amount per second; None takes it away.

        Also to be called for an entity that is known but has no limit of this kind: Kafka tells clients
        apart by the levels that were ever spoken of.
        """
        if entity.user == UNNAMED:
            self._levels |= _CLIENT_LEVELS
        else:
            self._levels |= _USER_LEVELS if entity.client_id == UNNAMED else _PAIR_LEVELS
        self.enabled = True
        if limit is None:
            self._limits.pop(entity, None)
        else:
            self._limits[entity] = limit
        for key, sensor in self._sensors.items():
            found = self._limit(*key)
            sensor.limit = UNLIMITED if found is None else found

    def record(self, user: str, client_id: str | None, amount: float, now_ms: int) -> int:
        """Count what a request weighed; returns for how many ms the client is to be silent, mostly 0."""
        sensor = self._sensor(user, client_id, now_ms)
        sensor.rate.record(amount, now_ms)
        observed, window_ms = sensor.rate.measure(now_ms)
        return 0 if observed <= sensor.limit else throttle_ms(observed, sensor.limit, window_ms)

    def unrecord(self, user: str, client_id: str | None, amount: float, now_ms: int) -> None:
        """Take back what `record` counted: the throttled answer will not carry it."""
        self._sensor(user, client_id, now_ms).rate.record(-amount, now_ms)

    def most_at_once(self, user: str, client_id: str | None) -> int | None:
        """The largest amount that can pass without waiting, after a silence; None when there is no limit.

        An answer that is larger would be throttled for ever: Fetch does not read more than this.
        """
        limit = self._limit(*self._key(user, client_id or ""))
        if limit is None:
            return None
        most = limit * (self._windows.samples - 1) * self._windows.window_ms / 1000
        return max(0, int(min(most, 2**31 - 1)))

    def limit_of(self, user: str, client_id: str | None) -> float | None:
        """The limit that holds for a client, in amount per second; None if there is none."""
        return self._limit(*self._key(user, client_id or ""))

    def __len__(self) -> int:
        """How many clients are being counted."""
        return len(self._sensors)

    def _sensor(self, user: str, client_id: str | None, now_ms: int) -> _Sensor:
        key = self._key(user, client_id or "")
        sensor = self._sensors.get(key)
        if sensor is None:
            if now_ms - self._swept_ms >= _SWEEP_INTERVAL_MS:
                self._sweep(now_ms)
            sensor = self._sensors[key] = _Sensor(Rate(self._windows), self._limit(*key))
        sensor.used_ms = now_ms
        return sensor

    def _sweep(self, now_ms: int) -> None:
        """Forget who has not been seen for long. Done when someone new comes, for only then do they grow."""
        self._swept_ms = now_ms
        oldest_ms = now_ms - SENSOR_EXPIRATION_MS
        for key in [key for key, sensor in self._sensors.items() if sensor.used_ms < oldest_ms]:
            del self._sensors[key]

    def _key(self, user: str, client_id: str) -> tuple[str, str]:
        """Whose usage a request counts to: (user, client-id), where "" means any."""
        levels = self._levels
        if levels <= _CLIENT_LEVELS:
            return "", client_id
        if levels == _USER_LEVELS:
            return user, ""
        if levels == _PAIR_LEVELS:
            return user, client_id
        limits = self._limits
        if (user, client_id) in limits or (user, DEFAULT) in limits:
            return user, client_id
        if (user, UNNAMED) in limits:
            return user, ""
        if (DEFAULT, client_id) in limits or (DEFAULT, DEFAULT) in limits:
            return user, client_id
        if (DEFAULT, UNNAMED) in limits:
            return user, ""
        return "", client_id

    def _limit(self, user: str, client_id: str) -> float | None:
        """The limit of a key that `_key` gave."""
        names: tuple[tuple[Name, Name], ...]
        if user and client_id:
            names = ((user, client_id), (user, DEFAULT), (DEFAULT, client_id), (DEFAULT, DEFAULT))
        elif user:
            names = ((user, UNNAMED), (DEFAULT, UNNAMED))
        elif client_id:
            names = ((UNNAMED, client_id), (UNNAMED, DEFAULT))
        else:
            return None
        for name in names:
            limit = self._limits.get(QuotaEntity(*name))
            if limit is not None:
                return limit
        return None


def throttle_ms(observed: float, limit: float, window_ms: int) -> int:
    """How long nothing may come until the rate is at the limit again: (observed - limit) / limit * window.

    Kafka keeps the lowest 32 bits of it. So a limit of 0 throttles nobody (an infinite time becomes -1), nor
    does one so small that the time has its 32nd bit set.
    """
    if limit == 0:
        return 0
    exact = (observed - limit) / limit * window_ms
    rounded = min(math.floor(exact + 0.5), 2**63 - 1)
    low = rounded & 0xFFFFFFFF
    return low if low < 2**31 else 0

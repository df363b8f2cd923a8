"""The eight levels of precedence of quotas by user and client-id, and the sensors that they need (KIP-55).

Used by `clients` (rates) and `mutations` (token buckets), which define the sensor. The most specific limit
that is set applies:

    1. user and client-id           5. default user and default client-id
    2. user and default client-id   6. default user
    3. user                         7. client-id
    4. default user and client-id   8. default client-id

A default quota is not shared: each user (levels 3 and 6), client-id (7 and 8) or pair (the others) has its
own usage. All behaviour is that of `ClientQuotaManager` of Kafka 3.9.1; a test compares the two.

Invariants: nothing is recorded before the first quota is set (`enabled`), and all clients are from then on;
every sensor has the limit that currently applies to it; a sensor that is unused for an hour is removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

Name: TypeAlias = str | None
"""A user or a client-id; None is the default, "" that the entity names none."""

DEFAULT: Final[Name] = None
UNNAMED: Final = ""

UNLIMITED: Final = float(2**63 - 1)
SENSOR_EXPIRATION_MS: Final = 3600 * 1000
_SWEEP_INTERVAL_MS: Final = 30 * 1000

_CLIENT_LEVELS, _USER_LEVELS, _PAIR_LEVELS = 1, 2, 4


class QuotaEntity(NamedTuple):
    """The entity that a quota is set for."""

    user: Name = UNNAMED
    client_id: Name = UNNAMED


class Sensor(Protocol):
    """The usage of one client, user or pair; `limit` is in amount per second."""

    limit: float
    used_ms: int


S = TypeVar("S", bound=Sensor)


class QuotaSensors(Generic[S]):
    """Limits and sensors of one kind of quota."""

    def __init__(self) -> None:
        self.enabled = False
        """Whether a quota of any kind has been set since the start."""
        self.limited = False
        """Whether a quota of this kind is set now."""
        self._levels = 0
        self._limits: dict[QuotaEntity, float] = {}
        self._sensors: dict[tuple[str, str], S] = {}
        self._swept_ms = 0

    def make_sensor(self, limit: float) -> S:
        """A new sensor without usage."""
        raise NotImplementedError

    def update(self, entity: QuotaEntity, limit: float | None) -> None:
        """Set the limit of an entity, in amount per second; None removes it.

        Call it also for an entity without a limit of this kind: as in Kafka, the levels that were ever
        configured decide whether clients are distinguished by user, client-id or both.
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
        self.limited = bool(self._limits)
        for key, sensor in self._sensors.items():
            found = self._limit(*key)
            sensor.limit = UNLIMITED if found is None else found

    def limit_of(self, user: str, client_id: str | None) -> float | None:
        """The limit that applies to a client, in amount per second; None without one."""
        return self._limit(*self._key(user, client_id or ""))

    def __len__(self) -> int:
        """The number of sensors."""
        return len(self._sensors)

    def sensors(self) -> Mapping[tuple[str, str], S]:
        """The sensors by user and client-id, of which "" means any."""
        return self._sensors

    def sensor(self, user: str, client_id: str | None, now_ms: int) -> S:
        """The sensor of a client; created if needed."""
        key = self._key(user, client_id or "")
        sensor = self._sensors.get(key)
        if sensor is None:
            if now_ms - self._swept_ms >= _SWEEP_INTERVAL_MS:
                self._sweep(now_ms)
            limit = self._limit(*key)
            sensor = self._sensors[key] = self.make_sensor(UNLIMITED if limit is None else limit)
        sensor.used_ms = now_ms
        return sensor

    def _sweep(self, now_ms: int) -> None:
        """Remove sensors that are unused for SENSOR_EXPIRATION_MS. Called when a sensor is added."""
        self._swept_ms = now_ms
        oldest_ms = now_ms - SENSOR_EXPIRATION_MS
        for key in [key for key, sensor in self._sensors.items() if sensor.used_ms < oldest_ms]:
            del self._sensors[key]

    def _key(self, user: str, client_id: str) -> tuple[str, str]:
        """The key of the sensor that a request counts for: (user, client-id), where "" means any."""
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
        """The limit that applies to a key of `_key`."""
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

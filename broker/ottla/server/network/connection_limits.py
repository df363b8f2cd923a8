"""Limits on the number of connections, the rate of new ones and their idle time (max.connections,
connections.max.idle.ms; KIP-402, KIP-612).

Called by ottla.server.network.listener for each connection that is opened or closed. As in Kafka, a broker or
a listener at its limit accepts no connection until one is closed. The inter-broker listener, where it is not
the only one, has only its own limit: for a connection of another broker the client connection that has been
idle longest is closed. An address at its limit is refused at once, one above its rate after a delay. The
settings are read each time: they may change while the broker runs.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from ottla.metadata.config import BrokerConfig
from ottla.metadata.listeners import parse_address_limits
from ottla.quotas.broker import ConnectionQuotas

log = logging.getLogger(__name__)

IDLE_BUCKET_S: Final = 1.0


class ConnectionLimits:
    def __init__(
        self,
        config: BrokerConfig,
        rates: ConnectionQuotas,
        clock: Callable[[], int],
        resolve: Callable[[str], set[str]],
    ) -> None:
        """`clock` is a monotonic clock in ms; `resolve` returns the addresses of a host. Raises OSError."""
        self._config = config
        self._rates = rates
        self._clock = clock
        self._resolve = resolve
        alone = len(config.listeners) == 1
        self._protected = None if alone else config.inter_broker_listener
        self._overrides_text = ""
        self._overrides: dict[str, int] = {}
        self._by_address: Counter[str] = Counter()
        self._by_listener: Counter[str] = Counter()
        self.count = 0

    def is_protected(self, listener: str) -> bool:
        """Whether `listener` is the inter-broker listener, to which max.connections does not apply."""
        return listener == self._protected

    def has_room(self, listener: str) -> bool:
        if self._by_listener[listener] >= self._config.listener_limit(listener, "max.connections"):
            return False
        return self.is_protected(listener) or self.count < self._config.get_int("max.connections")

    @property
    def is_exceeded(self) -> bool:
        return self.count > self._config.get_int("max.connections")

    def accepted(self, listener: str) -> int:
        """Count a new connection; returns for how many ms the listener has to wait before it admits it."""
        name = "max.connection.creation.rate"
        return self._rates.accepted(
            listener,
            self._config.listener_limit(listener, name),
            None if self.is_protected(listener) else self._config.get_int(name),
            self._clock(),
        )

    def refused_for(self, address: str, listener: str) -> int:
        """Positive: the address exceeds its rate, and the connection is to be closed after so many ms."""
        of_broker = not self.is_protected(listener)
        return self._rates.record_address(address, listener, self._clock(), of_broker=of_broker)

    def admit(self, address: str, listener: str) -> bool:
        """Count a connection; False, and not counted, when its address is at its limit."""
        limit = self._limits_by_address().get(address)
        if limit is None:
            limit = self._config.get_int("max.connections.per.ip")
        if self._by_address[address] >= limit:
            log.info("refused a connection from %s: max.connections.per.ip, %d, is reached", address, limit)
            return False
        self._by_address[address] += 1
        self._by_listener[listener] += 1
        self.count += 1
        return True

    def left(self, address: str, listener: str) -> None:
        self.count -= 1
        self._by_listener[listener] -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def _limits_by_address(self) -> dict[str, int]:
        text = self._config.get_str("max.connections.per.ip.overrides")
        if text != self._overrides_text:
            self._overrides_text = text
            self._overrides = {}
            for host, limit in parse_address_limits(text).items():
                for address in self._addresses(host):
                    self._overrides[address] = limit
        return self._overrides

    def _addresses(self, host: str) -> set[str]:
        try:
            return self._resolve(host)
        except OSError as problem:
            log.warning("max.connections.per.ip.overrides: %s: %s", host, problem)
            return set()


class Watched(Protocol):
    """The part of a connection that IdleWatch uses."""

    idle_bucket: int

    def idle_for(self, now: float) -> float: ...

    def close(self, reason: str, level: int) -> None: ...


class IdleWatch:
    """Finds the connections that are idle for connections.max.idle.ms, without a look at all of them each
    second. Times are seconds of the loop's clock.

    A connection is in the bucket of the second in which it would reach the limit if no byte came. When that
    second has come it is looked at, and moved to a later bucket if bytes came. So each connection is looked
    at about once in connections.max.idle.ms.
    """

    def __init__(self, idle_max_s: float) -> None:
        """0 or less: no limit."""
        self._max = idle_max_s
        self._buckets: dict[int, dict[Watched, None]] = {}
        self.checks = 0
        """How often a connection was looked at (for tests)."""

    def watch(self, connection: Watched, now: float) -> None:
        if self._max > 0:
            self._put(connection, now + self._max)

    def forget(self, connection: Watched) -> None:
        bucket = self._buckets.get(connection.idle_bucket)
        if bucket is not None:
            bucket.pop(connection, None)

    def idle(self, now: float) -> list[Watched]:
        """The connections that are idle for too long; they are not watched any more."""
        found: list[Watched] = []
        due = int(now / IDLE_BUCKET_S)
        for number in sorted(number for number in self._buckets if number <= due):
            for connection in self._buckets.pop(number):
                self.checks += 1
                idle_s = connection.idle_for(now)
                if idle_s >= self._max:
                    found.append(connection)
                else:
                    self._put(connection, now + self._max - idle_s)
        return found

    def _put(self, connection: Watched, at: float) -> None:
        connection.idle_bucket = int(at / IDLE_BUCKET_S) + 1
        self._buckets.setdefault(connection.idle_bucket, {})[connection] = None

"""Limits on the number of connections and on the rate of new ones (max.connections; KIP-402, KIP-612).

Called by ottla.server.network.listener for each connection that is opened or closed. As in Kafka, a broker or
a listener at its limit accepts no connection until one is closed. The inter-broker listener, where it is not
the only one, has only its own limit: for a connection of another broker the client connection that has been
idle longest is closed. An address at its limit is refused at once, one above its rate after a delay. The
settings are read each time: they may change while the broker runs. The only I/O is the resolution of names in
max.connections.per.ip.overrides.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import Callable

from ottla.metadata.config import BrokerConfig
from ottla.metadata.listeners import parse_address_limits
from ottla.quotas.connections import ConnectionQuotas
from ottla.quotas.rates import Windows

log = logging.getLogger(__name__)


class ConnectionLimits:
    def __init__(
        self,
        config: BrokerConfig,
        rates: ConnectionQuotas | None = None,
        *,
        clock: Callable[[], int],
    ) -> None:
        """`clock` gives ms that never step."""
        self._config = config
        self._rates = rates or ConnectionQuotas(Windows())
        self._clock = clock
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
                for address in _addresses(host):
                    self._overrides[address] = limit
        return self._overrides


def _addresses(host: str) -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except OSError as problem:
        log.warning("max.connections.per.ip.overrides: %s: %s", host, problem)
        return set()

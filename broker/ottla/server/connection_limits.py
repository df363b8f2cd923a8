"""How many connections there may be: in all, and from one address (max.connections and its kin).

Called by ottla.server.listener for each connection that comes and goes. As in Kafka a full broker accepts
nobody until somebody leaves, but for the brokers' own listener (where they have one to themselves): for one
of those the client's connection that was idle longest makes room. An address that has its share is refused
at once. The settings are read each time: they may change while the broker runs. No I/O but the resolving of
names in max.connections.per.ip.overrides, when it is set.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter

from ottla.metadata.address_limits import parse_address_limits
from ottla.metadata.config import BrokerConfig

log = logging.getLogger(__name__)


class ConnectionLimits:
    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        alone = len(config.listeners) == 1
        self._protected = None if alone else config.inter_broker_listener
        self._overrides_text = ""
        self._overrides: dict[str, int] = {}
        self._by_address: Counter[str] = Counter()
        self.count = 0

    def is_protected(self, listener: str) -> bool:
        """Whether connections to `listener` are let in whatever there is, and never closed to make room."""
        return listener == self._protected

    @property
    def is_full(self) -> bool:
        return self.count >= self._config.get_int("max.connections")

    @property
    def is_exceeded(self) -> bool:
        return self.count > self._config.get_int("max.connections")

    def admit(self, address: str) -> bool:
        """Count a connection from `address`; False, uncounted, when that has as many as it may have."""
        limit = self._limits_by_address().get(address)
        if limit is None:
            limit = self._config.get_int("max.connections.per.ip")
        if self._by_address[address] >= limit:
            log.info("refused a connection from %s, which has %d, all that it may have", address, limit)
            return False
        self._by_address[address] += 1
        self.count += 1
        return True

    def left(self, address: str) -> None:
        self.count -= 1
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

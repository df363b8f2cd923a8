"""Listeners: their addresses, their own settings, and connection limits; and the address of ZooKeeper.

Called by `config`, `dynamic_broker_config` and the server; the operator validates ZooKeeper's address. Pure;
errors are ConfigErrors with the name of the setting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ottla.metadata.broker_config_table import BROKER_CONFIGS
from ottla.metadata.config_def import ConfigError

# A name, an IPv4 address, or an IPv6 address in brackets; then a port.
_HOST_PORT: Final = re.compile(
    r"(\[[0-9A-Fa-f:.%a-z]+\]|[^\s:/\[\]]+)"
    r"(:([1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5]))?$"
)


@dataclass(frozen=True, slots=True)
class Listener:
    """One address of a broker. `host` is "" for all interfaces."""

    name: str
    protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{self.host}:{self.port}"


def is_connect_string(text: str) -> bool:
    """Whether this is a valid zookeeper.connect; the port is optional."""
    hosts, slash, chroot = text.partition("/")
    if slash and ("//" in text or chroot.strip() != chroot or chroot.endswith("/")):
        return False
    return all(_HOST_PORT.match(host.strip()) for host in hosts.split(","))


def parse_protocol_map(text: str) -> dict[str, str]:
    mapping: dict[str, str] = {}
    for item in text.split(","):
        name, colon, protocol = item.strip().partition(":")
        if not colon or protocol not in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"):
            raise ConfigError(
                [
                    f"listener.security.protocol.map={text}: {item.strip()} is not NAME:PROTOCOL, "
                    "with PROTOCOL one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"
                ]
            )
        mapping[name.upper()] = protocol
    return mapping


def parse_listeners(text: str, protocols: Mapping[str, str]) -> list[Listener]:
    listeners: list[Listener] = []
    for raw in text.split(","):
        item = raw.strip()
        name, scheme, address = item.partition("://")
        host, colon, port = address.rpartition(":")
        if not scheme or not colon or not port.isdigit() or int(port) > 65535:
            raise ConfigError([f"listeners: {item!r} is not NAME://HOST:PORT with a port from 0 to 65535"])
        name = name.upper()
        if name not in protocols:
            raise ConfigError(
                [f"listeners: {item}: no protocol for {name} in listener.security.protocol.map"]
            )
        listeners.append(Listener(name, protocols[name], host.strip("[]"), int(port)))
    return listeners


# --- settings of one listener: `listener.name.<listener>.<setting>` ---

PREFIX: Final = "listener.name."
LIMITS: Final = ("max.connections", "max.connection.creation.rate")
OF_ALL_BROKERS: Final = (*LIMITS, "num.network.threads")
"""Listener settings that can be set for all brokers (DynamicBrokerConfig.ClusterLevelListenerConfigs)."""
_PREFIXED: Final = re.compile(r"listener\.name\.[^.]*\.(.*)", re.DOTALL)


def listener_key(listener: str, name: str) -> str:
    """The name of the setting of one listener; the listener's name is in lower case."""
    return f"{PREFIX}{listener.lower()}.{name}"


def base_name(name: str) -> str | None:
    """The name without the prefix `listener.name.<listener>.`; None without the prefix."""
    match = _PREFIXED.fullmatch(name)
    return match[1] if match else None


def is_limit(name: str) -> bool:
    """Whether this is a connection limit of a listener (LIMITS)."""
    return _limit(name) is not None


def limit_problem(name: str, text: str) -> str | None:
    """The error of the value of such a setting, or None. As in Kafka, the limit must not be 0."""
    limit = _limit(name)
    assert limit is not None
    problem = BROKER_CONFIGS.problem_in_kafka(limit, text)
    if problem is None and int(text) <= 0:
        return f"Invalid {limit} {text}"
    return problem


def _limit(name: str) -> str | None:
    if not name.startswith(PREFIX):
        return None
    listener, _, rest = name.removeprefix(PREFIX).partition(".")
    return rest if listener and rest in LIMITS else None


# --- max.connections.per.ip.overrides ---


def parse_address_limits(text: str) -> dict[str, int]:
    """The limits of max.connections.per.ip.overrides, `HOST:COUNT,…`, by host or address. Raises
    ValueError."""
    limits: dict[str, int] = {}
    for entry in text.split(","):
        if not entry.strip():
            continue
        host, colon, count = entry.rpartition(":")
        try:
            limit = int(count)
        except ValueError:
            limit = -1
        if not colon or not host.strip() or limit < 0:
            raise ValueError(f"{entry.strip()}: must be HOST:COUNT")
        limits[host.strip().strip("[]")] = limit
    return limits

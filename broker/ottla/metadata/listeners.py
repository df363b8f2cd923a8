"""Addresses in settings: a broker's listeners, and ZooKeeper's.

Called by `config` (and, for ZooKeeper's, by the operator). Pure; the errors are
ConfigErrors that name the setting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

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
    """Whether ZooKeeper's client would take it; the port may be left out, as there."""
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

"""The network, as nonblocking sockets.

Used by the listeners of a broker. Outgoing connections are the event loop's (`loop.create_connection`), which
also watches sockets (`loop.add_reader`, `loop.add_writer`).
"""

from __future__ import annotations

import socket
from typing import Protocol


class Network(Protocol):
    """The interface. Sockets behave as those of the standard library that do not block."""

    def bind(self, host: str | None, port: int) -> socket.socket:
        """A nonblocking socket, bound to an address (None: all addresses; port 0: a free one), that does not
        listen yet. Raises OSError."""

    def resolve(self, host: str) -> set[str]:
        """The addresses of a host. Blocking. Raises OSError."""

    def host_name(self) -> str:
        """The fully qualified name of this machine. Blocking."""


class OsNetwork:
    """The network of this machine."""

    def bind(self, host: str | None, port: int) -> socket.socket:
        if host is None and socket.has_dualstack_ipv6():
            sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
            address: tuple[object, ...] = ("::", port)
        else:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            sock = socket.socket(found[0], socket.SOCK_STREAM)
            address = found[4]
        try:
            if sock.family == socket.AF_INET6 and host is None:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            # A broker that restarts can bind its port at once.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.setblocking(False)
        except OSError:
            sock.close()
            raise
        return sock

    def resolve(self, host: str) -> set[str]:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None)}

    def host_name(self) -> str:
        return socket.getfqdn()

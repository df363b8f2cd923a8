"""From a host's name to a connected socket: which addresses, in which order, with which buffers.

Called by `network`, for client.dns.lookup, send.buffer.bytes and receive.buffer.bytes (KIP-235, KIP-302).
"""

from __future__ import annotations

import asyncio
import socket
from typing import NamedTuple


class Buffers(NamedTuple):
    """Bytes; -1 leaves them to the operating system."""

    send_bytes: int = -1
    receive_bytes: int = -1


async def dial(host: str, port: int, buffers: Buffers, *, first: int = 0) -> socket.socket:
    """Connect to one of the host's addresses: all are tried, beginning with number `first`, so that one which
    does not answer in time is not the first again. As in Kafka, of the two kinds of addresses only that which
    is named first counts. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if not found:
        raise OSError(f"no address of {host}")
    rows = [row for row in found if row[0] == found[0][0]]
    start = first % len(rows)
    problem: OSError | None = None
    for family, kind, protocol, _, address in rows[start:] + rows[:start]:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            # Before it is connected: the window is agreed upon with the connection.
            if buffers.send_bytes >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffers.send_bytes)
            if buffers.receive_bytes >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffers.receive_bytes)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            problem = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    assert problem is not None
    raise problem


async def canonical_names(host: str, port: int) -> list[str]:
    """The full names that the host's addresses have, for bootstrap servers behind one alias; what has no name
    stays an address. Raises OSError."""
    loop = asyncio.get_running_loop()
    names: dict[str, None] = {}
    for row in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        name, _ = await loop.getnameinfo(row[4][:2])  # type: ignore[arg-type]
        names[name] = None
    return list(names)

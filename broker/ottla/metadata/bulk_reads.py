"""ZooKeeper's `multiRead` (ZOOKEEPER-3402, since 3.6) for kazoo: reads hundreds of nodes with one request.

Called by `ZooKeeperStore`. Kazoo does not have the request, but accepts any object that can serialize itself.
A node costs 7 µs of CPU time with it, and 180 µs with a request of its own, mostly for wake-ups of kazoo's
threads.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from kazoo.exceptions import EXCEPTIONS
from kazoo.protocol.paths import _prefix_root
from kazoo.protocol.states import ZnodeStat

_GET_DATA = 4
_HEADER = struct.Struct(">iBi")  # of each part: its type, whether the parts are over, an error code
_END = _HEADER.pack(-1, True, -1)
_LENGTH = struct.Struct(">i")
_STAT = struct.Struct(">qqqqiiiqiiq")

Found = tuple[bytes | None, ZnodeStat] | Exception


class MultiRead:
    """The request for absolute paths. The response has data and stat of each, or kazoo's error."""

    type = 22

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def serialize(self) -> bytes:
        part = _HEADER.pack(_GET_DATA, False, -1)
        parts: list[bytes] = []
        for path in self._paths:
            name = path.encode()
            parts += (part, _LENGTH.pack(len(name)), name, b"\0")  # no watch
        return b"".join([*parts, _END])

    @staticmethod
    def deserialize(data: bytes, offset: int) -> list[Found]:
        found: list[Found] = []
        while True:
            kind, done, _ = _HEADER.unpack_from(data, offset)
            offset += _HEADER.size
            if done:
                return found
            (length,) = _LENGTH.unpack_from(data, offset)
            offset += _LENGTH.size
            if kind == -1:
                found.append(EXCEPTIONS[length]())  # an error code, and not a length
                continue
            content = None
            if length >= 0:
                content = data[offset : offset + length]
                offset += length
            found.append((content, ZnodeStat._make(_STAT.unpack_from(data, offset))))
            offset += _STAT.size


def read_many(client: Any, paths: Sequence[str]) -> Any:
    """Send the request; returns kazoo's asynchronous result of a list of `Found`."""
    result = client.handler.async_result()
    client._call(MultiRead([_prefix_root(client.chroot, path) for path in paths]), result)
    return result

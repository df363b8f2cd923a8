"""The last offset of each key, in bounded memory: 24 bytes an entry, whatever the keys' length.

Used by `rewrite` in the worker process. As Kafka's SkimpyOffsetMap it is one block of memory, an open hash
table of the keys' MD5 (16 bytes, taken for the key itself) and the offset (8 bytes). Nothing is ever removed.

Invariant: at most `slots` entries, so that a search for a free one ends.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from hashlib import md5

from ottla.protocol.compression import Buffer

ENTRY_BYTES = 24
HASH_BYTES = 16
NONE = -1

_WINDOW: Callable[..., tuple[int]] = struct.Struct(">I").unpack_from
_WINDOWS = HASH_BYTES - 3
"""Positions in a hash where four bytes begin: so many slots are tried before those that lie in a row."""
_PUT_OFFSET = struct.Struct(">q").pack_into
_GET_OFFSET: Callable[..., tuple[int]] = struct.Struct(">q").unpack_from


class OffsetMap:
    """See the module. `latest_offset` is that up to which records were seen; -1 for none."""

    def __init__(self, memory_bytes: int) -> None:
        self.slots = memory_bytes // ENTRY_BYTES
        if self.slots < 1:
            raise ValueError(f"{memory_bytes} bytes hold no entry of {ENTRY_BYTES}")
        self.latest_offset = NONE
        self.size = 0
        self.clear()

    @property
    def utilization(self) -> float:
        return self.size / self.slots

    def clear(self) -> None:
        """Forget all. Memory comes zeroed from the system, and is taken only as it is written to."""
        self._table = bytearray(self.slots * ENTRY_BYTES)
        self.size = 0
        self.latest_offset = NONE

    def put(self, key: Buffer, offset: int) -> None:
        """The last record with `key` is at `offset`, which must be later than what was put before."""
        digest = md5(key, usedforsecurity=False).digest()
        table = self._table
        position = _WINDOW(digest)[0] % self.slots * ENTRY_BYTES
        if not table.startswith(digest, position):
            position = self._find(digest)
            if not table.startswith(digest, position):
                if self.size >= self.slots:
                    raise ValueError(f"all {self.slots} entries are taken")
                self.size += 1
                table[position : position + HASH_BYTES] = digest
        # One more than the offset, so that no entry is all zeros, which is what a free one is.
        _PUT_OFFSET(table, position + HASH_BYTES, offset + 1)
        self.latest_offset = offset

    def get(self, key: Buffer) -> int:
        """The offset last put for `key`; -1 when there is none."""
        digest = md5(key, usedforsecurity=False).digest()
        table = self._table
        position = _WINDOW(digest)[0] % self.slots * ENTRY_BYTES
        if not table.startswith(digest, position):
            position = self._find(digest)
            if not table.startswith(digest, position):
                return NONE
        return _GET_OFFSET(table, position + HASH_BYTES)[0] - 1

    def _find(self, digest: bytes) -> int:
        """Where `digest` is, or the free slot where it would go. In a full table, its first slot if it is
        nowhere."""
        table = self._table
        slots = self.slots
        slot = 0
        for window in range(_WINDOWS):
            slot = _WINDOW(digest, window)[0] % slots
            position = slot * ENTRY_BYTES
            if table.startswith(digest, position) or self._is_free(position):
                return position
        for _ in range(slots):
            slot = (slot + 1) % slots
            position = slot * ENTRY_BYTES
            if table.startswith(digest, position) or self._is_free(position):
                return position
        return _WINDOW(digest)[0] % slots * ENTRY_BYTES

    def _is_free(self, position: int) -> bool:
        return _GET_OFFSET(self._table, position + HASH_BYTES)[0] == 0

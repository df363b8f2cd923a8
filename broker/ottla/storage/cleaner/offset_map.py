"""The last offset of each key in bounded memory: 24 bytes an entry (Kafka's SkimpyOffsetMap).

Used by `cleaner` in the worker process. It is one block of memory, an open hash table with the keys' MD5 (16
bytes, which represents the key) and the offset (8 bytes). Entries are never removed.

Invariant: at most `slots` entries, so that a search for a free slot ends.
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
"""The number of 4-byte windows in a hash: each gives a slot to probe before linear probing begins."""
_PUT_OFFSET = struct.Struct(">q").pack_into
_GET_OFFSET: Callable[..., tuple[int]] = struct.Struct(">q").unpack_from


class OffsetMap:
    """See the module. `latest_offset` is the last offset that was added; -1 for none."""

    def __init__(self, memory_bytes: int) -> None:
        self.slots = memory_bytes // ENTRY_BYTES
        if self.slots < 1:
            raise ValueError(f"{memory_bytes} bytes hold no entry of {ENTRY_BYTES}")
        self.latest_offset = NONE
        self.size = 0
        self.clear()

    def clear(self) -> None:
        """Remove all entries. The system provides zeroed memory, and allocates it when it is written."""
        self._table = bytearray(self.slots * ENTRY_BYTES)
        self.size = 0
        self.latest_offset = NONE

    def put(self, key: Buffer, offset: int) -> None:
        """Set the offset of `key`; offsets must ascend."""
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
        # The stored value is the offset plus one: zero marks a free slot.
        _PUT_OFFSET(table, position + HASH_BYTES, offset + 1)
        self.latest_offset = offset

    def get(self, key: Buffer) -> int:
        """The offset of `key`; -1 if there is none."""
        digest = md5(key, usedforsecurity=False).digest()
        table = self._table
        position = _WINDOW(digest)[0] % self.slots * ENTRY_BYTES
        if not table.startswith(digest, position):
            position = self._find(digest)
            if not table.startswith(digest, position):
                return NONE
        return _GET_OFFSET(table, position + HASH_BYTES)[0] - 1

    def _find(self, digest: bytes) -> int:
        """The position of `digest`, or of the free slot for it. In a full table without it, its first
        slot."""
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

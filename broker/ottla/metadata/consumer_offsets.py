"""Offsets that consumers of 0.8 commit to ZooKeeper: one node per partition.

    /consumers/<group>/offsets/<topic>/<partition>  ->  the offset, in decimal digits

Called by the handlers of OffsetCommit 0 and OffsetFetch 0. The high-level consumer of 0.8 accesses ZooKeeper
directly, and has its members (`ids`) and partition owners (`owners`) beside the offsets. The offsets have no
metadata and no time, and never expire.
"""

from __future__ import annotations

import re
from typing import Final

from ottla.metadata import znodes
from ottla.metadata.store import MetadataStore, NodeExists, NoNode, StoreError
from ottla.protocol.errors import ErrorCode, KafkaError

_DECIMAL: Final = re.compile(r"[+-]?\d+")
_INT64: Final = range(-(2**63), 2**63)
_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")
"""Characters that ZooKeeper rejects in paths."""


class ConsumerOffsets:
    """Reads and writes these offsets. As in Kafka, both raise KafkaError UNKNOWN_SERVER_ERROR for a group id
    that cannot be part of a path (such as an empty one), for a node without a number, and if the store is
    unavailable."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def get(self, group: str, topic: str, partition: int) -> int | None:
        """The committed offset, or None."""
        path = _path(group, topic, partition)
        try:
            found = await self._store.get(path)
        except StoreError as problem:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(problem)) from problem
        if found is None or not found[0]:
            return None
        text = found[0].decode("utf-8", "replace")
        if not _DECIMAL.fullmatch(text) or (offset := int(text)) not in _INT64:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{path} has no valid offset: {text[:40]!r}")
        return offset

    async def set(self, group: str, topic: str, partition: int, offset: int) -> None:
        path = _path(group, topic, partition)
        value = str(offset).encode()
        try:
            try:
                await self._store.set(path, value)
            except NoNode:
                try:
                    await self._store.create(path, value, make_parents=True)
                except NodeExists:  # created concurrently
                    await self._store.set(path, value)
        except StoreError as problem:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(problem)) from problem


def _path(group: str, topic: str, partition: int) -> str:
    """The node's path. A slash in the group id makes two path elements of it, as in Kafka."""
    path = znodes.consumer_offset_path(group, topic, partition)
    if any(part in ("", ".", "..") for part in path[1:].split("/")) or _FORBIDDEN.search(path):
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{group!r} cannot be part of a path")
    return path

"""Committed offsets as consumers of 0.8 keep them: one node a partition, below the group's.

    /consumers/<group>/offsets/<topic>/<partition>  ->  the offset, in decimal digits

Called by the handlers of OffsetCommit 0 and OffsetFetch 0, by which such clients reach these nodes through a
broker; the high-level consumer of 0.8 goes to ZooKeeper itself, and keeps its members (`ids`) and who reads
what (`owners`) beside the offsets. Nodes have no metadata and no time: they stay until someone deletes them.
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
"""Characters that ZooKeeper takes in no path."""


class ConsumerOffsets:
    """Both calls raise KafkaError UNKNOWN_SERVER_ERROR, as Kafka answers what ZooKeeper refuses: a group
    whose id is no path (an empty one, say), a node that holds no number, a store that is out of reach."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def get(self, group: str, topic: str, partition: int) -> int | None:
        """None when nothing is committed."""
        path = _path(group, topic, partition)
        try:
            found = await self._store.get(path)
        except StoreError as problem:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(problem)) from problem
        if found is None or not found[0]:
            return None
        text = found[0].decode("utf-8", "replace")
        if not _DECIMAL.fullmatch(text) or (offset := int(text)) not in _INT64:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{path} holds no offset: {text[:40]!r}")
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
                except NodeExists:  # Somebody was faster.
                    await self._store.set(path, value)
        except StoreError as problem:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(problem)) from problem


def _path(group: str, topic: str, partition: int) -> str:
    """A slash in the id of a group makes two folders of it, as with Kafka; but a path must remain one."""
    path = znodes.consumer_offset_path(group, topic, partition)
    if any(part in ("", ".", "..") for part in path[1:].split("/")) or _FORBIDDEN.search(path):
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{group!r} cannot be part of a path")
    return path

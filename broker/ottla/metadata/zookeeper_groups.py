"""Consumer groups of 0.8, with members, owners and offsets in ZooKeeper.

    /consumers/<group>/ids/<consumer>                a member; ephemeral
    /consumers/<group>/owners/<topic>/<partition>    the stream that reads it, <consumer>-<number>; ephemeral
    /consumers/<group>/offsets/<topic>/<partition>   the offset of the next message, in decimal digits

/metrics and `ottla groups --zookeeper` read groups. Nodes that cannot be decoded are left out. The handlers
of OffsetCommit 0 and OffsetFetch 0 read and write offsets, which have no metadata and no time, and never
expire; the high-level consumer of 0.8 accesses ZooKeeper directly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from ottla.metadata import znodes
from ottla.metadata.store import MetadataStore, NodeExists, NoNode, StoreError, children_of_many
from ottla.metadata.znodes import CONSUMERS
from ottla.protocol.errors import ErrorCode, KafkaError

Partition = tuple[str, int]


class ZooKeeperGroup(NamedTuple):
    group_id: str
    members: dict[str, tuple[str, ...]]
    """The topics, or the filter, of each member, by consumer id."""
    owners: dict[Partition, str]
    """The stream that reads a partition."""
    offsets: dict[Partition, int]

    @property
    def state(self) -> str:
        """The state as of other groups; Dead without any node."""
        if self.members:
            return "Stable"
        return "Empty" if self.offsets or self.owners else "Dead"

    def member_of(self, partition: Partition) -> str | None:
        """The consumer whose stream owns it."""
        owner = self.owners.get(partition)
        return None if owner is None else owner.rpartition("-")[0]


async def group_names(store: MetadataStore, root: str = "") -> list[str]:
    """All groups with a node; `root` is the chroot, if the store has none. Raises StoreError."""
    return await store.children(f"{root}{CONSUMERS}")


async def read_groups(store: MetadataStore, names: Iterable[str], root: str = "") -> list[ZooKeeperGroup]:
    """These groups, in a few round trips. Raises StoreError."""
    groups = list(names)
    paths = [f"{root}{CONSUMERS}/{group}" for group in groups]
    ids = await children_of_many(store, [f"{path}/ids" for path in paths])
    members = await store.get_many(
        f"{path}/ids/{member}" for path, found in zip(paths, ids, strict=True) for member in found
    )
    subscriptions = iter(members)
    owners = await _partitions(store, [f"{path}/owners" for path in paths])
    offsets = await _partitions(store, [f"{path}/offsets" for path in paths])
    return [
        ZooKeeperGroup(
            group,
            {
                member: _topics(node[0])
                for member in ids[at]
                if (node := next(subscriptions)) is not None  # it may have left meanwhile
            },
            {partition: data.decode(errors="replace") for partition, data in owners[at].items()},
            {
                partition: int(data)
                for partition, data in offsets[at].items()
                if data.isdigit() and int(data) < 2**63
            },
        )
        for at, group in enumerate(groups)
    ]


async def _partitions(store: MetadataStore, parents: list[str]) -> list[dict[Partition, bytes]]:
    """The data of <parent>/<topic>/<partition> by topic and partition, for each parent."""
    topics = await children_of_many(store, parents)
    of_topic = [(at, topic) for at, found in enumerate(topics) for topic in found]
    numbers = await children_of_many(store, [f"{parents[at]}/{topic}" for at, topic in of_topic])
    keys = [
        (at, topic, number)
        for (at, topic), found in zip(of_topic, numbers, strict=True)
        for number in found
        if number.isdigit()
    ]
    nodes = await store.get_many([f"{parents[at]}/{topic}/{number}" for at, topic, number in keys])
    result: list[dict[Partition, bytes]] = [{} for _ in parents]
    for (at, topic, number), node in zip(keys, nodes, strict=True):
        if node is not None and node[0]:
            result[at][topic, int(number)] = node[0]
    return result


def _topics(registration: bytes) -> tuple[str, ...]:
    try:
        return tuple(map(str, json.loads(registration)["subscription"]))
    except (ValueError, KeyError, TypeError):
        return ()


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

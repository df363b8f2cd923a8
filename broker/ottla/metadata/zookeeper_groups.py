"""Consumer groups of 0.8, with members, owners and offsets in ZooKeeper. Read-only.

    /consumers/<group>/ids/<consumer>                a member; ephemeral
    /consumers/<group>/owners/<topic>/<partition>    the stream that reads it, <consumer>-<number>; ephemeral
    /consumers/<group>/offsets/<topic>/<partition>   the offset of the next message, in decimal digits

Used by /metrics and `ottla groups --zookeeper`. Nodes that cannot be decoded are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from ottla.metadata.store import MetadataStore, children_of_many, get_many
from ottla.metadata.znodes import CONSUMERS

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
    members = await get_many(
        store, [f"{path}/ids/{member}" for path, found in zip(paths, ids, strict=True) for member in found]
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
    nodes = await get_many(store, [f"{parents[at]}/{topic}/{number}" for at, topic, number in keys])
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

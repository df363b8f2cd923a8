"""`ottla groups list|describe --zookeeper`: groups with members and offsets in ZooKeeper.

Called by `groups`. Prints the fields of Kafka's former tools, ConsumerOffsetChecker and
`kafka-consumer-groups --zookeeper`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ottla.cli.output import by_topic
from ottla.cli.session import Refused, Session, Unreachable
from ottla.client.admin import AdminClient
from ottla.client.admin_types import TopicPartition
from ottla.metadata.store import MetadataStore, StoreError
from ottla.metadata.zookeeper_groups import ZooKeeperGroup, group_names, read_groups

T = TypeVar("T")


def listed(session: Session, connect: str) -> list[tuple[str, str]]:
    """(group, state) of all groups in ZooKeeper."""

    async def look(store: MetadataStore, root: str) -> list[tuple[str, str]]:
        found = await read_groups(store, await group_names(store, root), root)
        return [(group.group_id, group.state) for group in found]

    return session.run(_with_store(session, connect, look))


def described(session: Session, connect: str, group_id: str) -> dict[str, Any]:
    """A group with the lag of each partition; end offsets are from the brokers."""

    async def look(store: MetadataStore, root: str) -> ZooKeeperGroup:
        (group,) = await read_groups(store, [group_id], root)
        return group

    group = session.run(_with_store(session, connect, look))
    if group.state == "Dead":
        raise Refused(f"there is no group '{group_id}' in ZooKeeper at {connect}")
    keys = sorted({*group.offsets, *group.owners})

    async def ends(admin: AdminClient) -> dict[TopicPartition, int]:
        return await admin.end_offsets([TopicPartition(*key) for key in keys])

    found = session.admin(ends)
    partitions = []
    for key in keys:
        committed, end = group.offsets.get(key), found.get(TopicPartition(*key))
        partitions.append(
            {
                "topic": key[0],
                "partition": key[1],
                "committed": committed,
                "end": end,
                "lag": None if committed is None or end is None else max(0, end - committed),
                "member": group.owners.get(key),
            }
        )
    return {
        "group": group_id,
        "state": group.state,
        "coordinator": None,
        "assignor": None,
        "lag": sum(partition["lag"] or 0 for partition in partitions),
        "partitions": partitions,
        "members": [
            {
                "member": member,
                "topics": list(topics),
                "partitions": len(owned),
                "assignment": by_topic(owned),
            }
            for member, topics in group.members.items()
            for owned in ([key for key in group.owners if group.member_of(key) == member],)
        ],
    }


async def _with_store(session: Session, connect: str, use: Callable[[MetadataStore, str], Awaitable[T]]) -> T:
    """Call `use` with a store and the chroot, separately since a store creates its chroot. Raises
    Unreachable."""
    from ottla.metadata.zookeeper import ZooKeeperStore  # imported here, so that other commands start faster

    hosts, slash, chroot = connect.partition("/")
    store = ZooKeeperStore(hosts, connection_timeout_ms=int(session.timeout_s * 1000))
    try:
        await store.connect()
        try:
            return await use(store, f"{slash}{chroot}".rstrip("/"))
        finally:
            await store.close()
    except StoreError as problem:
        raise Unreachable(f"cannot read ZooKeeper at {connect}: {problem}") from None

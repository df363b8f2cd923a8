"""An administrator sets and removes the committed offsets of a group without members, one call at a time.

Checked: the group has the offsets of the last calls that were acknowledged, and none that was removed. An
offset that is set stays. A removal is acknowledged before its tombstone is replicated, as in Kafka: another
coordinator may have the offset again. After a call whose outcome is not known the administrator takes another
group: the request may be executed late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ottla.client import AdminClient
from ottla.client.admin_types import TopicPartition
from ottla.client.errors import ClientError
from ottla.protocol.topics import OFFSETS_TOPIC
from ottla.simulation.cluster import Cluster, Violation
from ottla.simulation.workloads.clients import has_former_coordinator

PAUSE_S: Final = 0.4
ONE_ATTEMPT_S: Final = 0.05
"""A call that took longer may have sent its request more than once."""


async def administer_offsets(
    cluster: Cluster, topic: str, partitions: int, is_stopping: Callable[[], bool]
) -> None:
    """Set, remove and read offsets until stopped. Raises Violation."""
    source = cluster.random(f"{topic}-administrator")
    group_number, value = 0, 0
    expected: dict[TopicPartition, int] = {}
    removed: dict[TopicPartition, tuple[int, object]] = {}
    """The value that was removed, and the coordinators then."""
    async with AdminClient(
        bootstrap_servers=cluster.bootstrap, request_timeout_ms=5_000, default_api_timeout_ms=10_000
    ) as admin:
        while not is_stopping():
            await asyncio.sleep(PAUSE_S * (0.5 + source.random()))
            group = f"{topic}-administered-{group_number}"
            tp = TopicPartition(topic, source.randrange(partitions))
            coordinators, began_s = _coordinators(cluster), cluster.loop.now
            try:
                if tp in expected and source.random() < 0.4:
                    is_whole_group = source.random() < 0.3
                    for each in list(expected) if is_whole_group else [tp]:
                        removed[each] = (expected.pop(each), coordinators)
                    if is_whole_group:
                        await admin.delete_group(group)
                    else:
                        (await admin.delete_group_offsets(group, [tp])).raise_first()
                else:
                    value += 1
                    (await admin.alter_group_offsets(group, {tp: value})).raise_first()
                    expected[tp] = value
                    removed.pop(tp, None)
                is_known = cluster.loop.now - began_s < ONE_ATTEMPT_S
            except ClientError:
                is_known = False
            if not is_known:
                group_number += 1
                expected.clear()
                removed.clear()
                continue
            before = _coordinators(cluster)
            try:
                found = await admin.group_offsets(group)
            except ClientError:
                continue
            now = _coordinators(cluster)
            back = {each for each, (old, then) in removed.items() if found.get(each) == old and then != now}
            if (
                before == now
                and {each: offset for each, offset in found.items() if each not in back} != expected
            ):
                raise Violation(
                    f"committed offsets: {group} has {_text(found)}; the last acknowledged calls leave "
                    f"{_text(expected)}"
                )


def _coordinators(cluster: Cluster) -> object:
    """What tells whether another broker has become the coordinator of a group: equal states without a former
    coordinator. A broker that was cut off may still take itself for one."""
    if has_former_coordinator(cluster):
        return object()
    return [
        (state.leader, state.leader_epoch)
        for (topic, _), state in cluster.partition_states()
        if topic == OFFSETS_TOPIC
    ]


def _text(offsets: dict[TopicPartition, int]) -> str:
    return str({f"{tp.topic}-{tp.partition}": offset for tp, offset in sorted(offsets.items())})

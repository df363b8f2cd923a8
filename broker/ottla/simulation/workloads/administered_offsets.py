"""An administrator sets and removes the committed offsets of a group without members, one call at a time.

Checked: the group has the offsets of the last calls that were acknowledged, and none that was removed, also
after a change of its coordinator. After a call whose outcome is not known the administrator takes another
group: the request may be executed late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ottla.client import AdminClient
from ottla.client.admin_types import TopicPartition
from ottla.client.errors import ClientError
from ottla.simulation.cluster import Cluster, Violation
from ottla.simulation.workloads.clients import has_former_coordinator

PAUSE_S: Final = 0.4


async def administer_offsets(
    cluster: Cluster, topic: str, partitions: int, is_stopping: Callable[[], bool]
) -> None:
    """Set, remove and read offsets until stopped. Raises Violation."""
    source = cluster.random(f"{topic}-administrator")
    group_number, value = 0, 0
    expected: dict[TopicPartition, int] = {}
    async with AdminClient(
        bootstrap_servers=cluster.bootstrap, request_timeout_ms=5_000, default_api_timeout_ms=10_000
    ) as admin:
        while not is_stopping():
            await asyncio.sleep(PAUSE_S * (0.5 + source.random()))
            group = f"{topic}-administered-{group_number}"
            tp = TopicPartition(topic, source.randrange(partitions))
            try:
                if tp in expected and source.random() < 0.4:
                    if source.random() < 0.3:
                        await admin.delete_group(group)
                        expected.clear()
                    else:
                        (await admin.delete_group_offsets(group, [tp])).raise_first()
                        del expected[tp]
                else:
                    value += 1
                    (await admin.alter_group_offsets(group, {tp: value})).raise_first()
                    expected[tp] = value
            except ClientError:
                group_number += 1
                expected.clear()
                continue
            # A broker that was cut off may still take itself for the coordinator.
            is_stale = has_former_coordinator(cluster)
            try:
                found = await admin.group_offsets(group)
            except ClientError:
                continue
            if found != expected and not is_stale:
                raise Violation(
                    f"committed offsets: {group} has {_text(found)}; the last acknowledged calls leave "
                    f"{_text(expected)}"
                )


def _text(offsets: dict[TopicPartition, int]) -> str:
    return str({f"{tp.topic}-{tp.partition}": offset for tp, offset in sorted(offsets.items())})

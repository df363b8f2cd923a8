"""After a crash: let the others take over before we come back.

Called by the broker's start, when it finds its former self's session still alive in ZooKeeper. That session
ends, and in the same moment we could register again, so quickly that a controller which is elected only now
never learns that we were away. It would leave us the leader, in the same leader epoch, of partitions whose
tail a crash may have cost us, and in-sync followers would cut their logs down to ours (KIP-966 tells what an
unclean shutdown may lose). So we wait until somebody else controls the cluster and leads what he can. Kafka
in ZooKeeper mode has no such rule; its brokers do not start while their old session lives.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from typing import Final

from ottla.metadata import znodes
from ottla.metadata.store import MetadataStore, get_many

log = logging.getLogger(__name__)

POLL_S: Final = 0.1


def could_move(states: Iterable[znodes.PartitionState], broker_id: int, alive: Collection[int]) -> bool:
    """Whether we are still named leader of a partition that somebody alive and in sync could lead."""
    return any(
        state.leader == broker_id and any(other in alive for other in state.isr if other != broker_id)
        for state in states
    )


async def wait_for_successors(
    store: MetadataStore, broker_id: int, partitions: Iterable[tuple[str, int]], *, timeout_s: float
) -> bool:
    """Wait until nobody else could lead what is said to be ours; False when the time is over.

    With no other broker alive there is nobody to wait for.
    """
    paths = [(t, p, znodes.state_path(t, p)) for t, p in partitions]
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        alive = {int(name) for name in await store.children(znodes.BROKER_IDS)} - {broker_id}
        found = await get_many(store, [path for _, _, path in paths])
        states = [
            znodes.decode_partition_state(topic, partition, node[0])
            for (topic, partition, _), node in zip(paths, found, strict=True)
            if node is not None
        ]
        controlled = await store.exists(znodes.CONTROLLER) is not None
        if not alive or (controlled and not could_move(states, broker_id, alive)):
            return True
        if loop.time() >= deadline:
            log.warning("nobody has taken over from us in %.1f s; coming back as we are", timeout_s)
            return False
        await asyncio.sleep(POLL_S)

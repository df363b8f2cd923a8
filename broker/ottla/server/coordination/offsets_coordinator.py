"""The group coordinator of a broker, over its replicas of `__consumer_offsets`.

Called by ottla.server.assembly.broker's start. Leadership of a partition of that topic, as the purgatory
passes it on from replication, loads and unloads the groups in it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from ottla.coordinators.config import GroupConfig
from ottla.coordinators.coordinator import GroupCoordinator
from ottla.metadata.cache import MetadataCache
from ottla.metadata.config import BrokerConfig
from ottla.metadata.store import MetadataStore
from ottla.protocol.topic_names import OFFSETS_TOPIC
from ottla.replication.manager import ReplicaManager
from ottla.server.coordination.group_log import ReplicatedLog, stored_partitions
from ottla.server.coordination.transactions import Transactions
from ottla.server.dispatch.purgatory import Purgatory
from ottla.server.logs.cold_reads import ColdReads

log = logging.getLogger(__name__)


async def offsets_partitions(store: MetadataStore, config: BrokerConfig) -> int:
    """How many partitions groups are spread over: those that the topic has, whatever was set since."""
    found = await stored_partitions(store, OFFSETS_TOPIC)
    return config.get_int("offsets.topic.num.partitions") if found is None else found


def make_coordinator(
    config: BrokerConfig,
    replicas: ReplicaManager,
    purgatory: Purgatory,
    cache: MetadataCache,
    clock: Callable[[], int],
    cold_reads: ColdReads,
    *,
    partitions: int,
    transactions: Transactions,
) -> GroupCoordinator:
    group_log = ReplicatedLog(
        OFFSETS_TOPIC,
        replicas,
        purgatory,
        clock,
        cold_reads,
        timeout_ms=config.get_int("offsets.commit.timeout.ms"),
        load_buffer_bytes=config.get_int("offsets.load.buffer.size"),
    )
    coordinator = GroupCoordinator(
        config=replace(GroupConfig.read(config.get_int), offsets_topic_num_partitions=partitions),
        log=group_log,
        clock=clock,
        partition_exists=lambda topic, partition: partition in (cache.partitions(topic) or ()),
        verify=transactions.verifier.verify_offsets,
    )
    transactions.writer.offsets_ended = coordinator.transaction_completed

    def leads(topic: str, partition: int) -> None:
        if topic == OFFSETS_TOPIC:
            coordinator.load(partition)

    def leads_no_more(topic: str, partition: int) -> None:
        if topic == OFFSETS_TOPIC:
            coordinator.unload(partition)

    purgatory.on_leader.append(leads)
    purgatory.on_not_leader.append(leads_no_more)
    return coordinator

"""The group coordinator of a broker, over its replicas of `__consumer_offsets`.

Called by ottla.server.assembly.components. When this broker becomes leader of a partition of that topic, or
stops being it (the purgatory forwards both from replication), the groups in it are loaded or unloaded.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from ottla.coordinators.config import GroupConfig, read_config
from ottla.coordinators.coordinator import GroupCoordinator
from ottla.metadata.cache import MetadataCache
from ottla.metadata.config import BrokerConfig
from ottla.metadata.store import MetadataStore
from ottla.ports import Ports, random_uuid
from ottla.protocol.topics import OFFSETS_TOPIC
from ottla.replication.manager import ReplicaManager
from ottla.server.coordination.replicated_log import ReplicatedCoordinatorLog, stored_partitions
from ottla.server.coordination.transactions import TransactionService
from ottla.server.dispatch.purgatory import Purgatory
from ottla.server.logs.page_cache_reader import PageCacheReader

log = logging.getLogger(__name__)


async def offsets_partitions(store: MetadataStore, config: BrokerConfig) -> int:
    """The number of partitions of `__consumer_offsets`: as stored, or of the settings while it does not
    exist."""
    found = await stored_partitions(store, OFFSETS_TOPIC)
    return config.get_int("offsets.topic.num.partitions") if found is None else found


def make_group_coordinator(
    config: BrokerConfig,
    replicas: ReplicaManager,
    purgatory: Purgatory,
    cache: MetadataCache,
    ports: Ports,
    page_cache_reader: PageCacheReader,
    *,
    partitions: int,
    transactions: TransactionService,
) -> GroupCoordinator:
    """The coordinator, with its log, its timers and its leadership callbacks; not started."""
    clock = ports.clock.wall_ms
    group_log = ReplicatedCoordinatorLog(
        OFFSETS_TOPIC,
        replicas,
        purgatory,
        clock,
        page_cache_reader,
        timeout_ms=config.get_int("offsets.commit.timeout.ms"),
        load_buffer_bytes=config.get_int("offsets.load.buffer.size"),
    )
    coordinator = GroupCoordinator(
        config=replace(read_config(GroupConfig, config.get_int), offsets_topic_num_partitions=partitions),
        log=group_log,
        clock=clock,
        member_ids=lambda name: f"{name}-{random_uuid(ports.random)}",
        partition_exists=lambda topic, partition: partition in (cache.partitions(topic) or ()),
        verify=transactions.add_partitions_manager.verify_offsets,
    )
    transactions.marker_writer.on_offsets_marker = coordinator.transaction_completed

    def on_leader(topic: str, partition: int) -> None:
        if topic == OFFSETS_TOPIC:
            coordinator.load(partition)

    def on_not_leader(topic: str, partition: int) -> None:
        if topic == OFFSETS_TOPIC:
            coordinator.unload(partition)

    purgatory.on_leader.append(on_leader)
    purgatory.on_not_leader.append(on_not_leader)
    return coordinator

"""The text of /metrics: the families of a broker, of the cluster and of groups, and those of the process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import chain

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from ottla.metadata.store import MetadataStore
from ottla.metadata.zookeeper_groups import ZooKeeperGroup, group_names, read_groups
from ottla.server.assembly.components import Coordinators, Replication
from ottla.server.assembly.request_processing import RequestProcessing
from ottla.server.dispatch.counters import LoopUsage
from ottla.server.metrics import broker, cluster
from ottla.server.metrics.exposition import write
from ottla.server.metrics.groups import GroupMetrics
from ottla.server.metrics.names import STRIMZI, renamed
from ottla.storage.log_manager import LogManager

ZOOKEEPER_GROUPS_MAX = 1000
"""Groups with offsets in ZooKeeper that /metrics reports."""


def broker_metrics(
    *,
    phase: Callable[[], str],
    usage: LoopUsage,
    store: MetadataStore,
    logs: LogManager,
    replication: Replication,
    coordinators: Coordinators,
    requests: RequestProcessing,
    now_ms: Callable[[], int],
    names: str = STRIMZI,
) -> Callable[[], Awaitable[bytes]]:
    """A function that collects and writes the text, called once a scrape."""
    controller, cache, replicas = replication.controller, replication.cache, replication.replicas

    async def zookeeper_groups() -> list[ZooKeeperGroup]:
        """Only the controller reports them, so that each is reported once. Raises StoreError."""
        if not controller.is_active:
            return []
        names = await group_names(store)
        return await read_groups(store, names[:ZOOKEEPER_GROUPS_MAX])

    sources = broker.Sources(
        phase=phase,
        replicas=replicas,
        logs=logs,
        server=requests.server,
        dispatcher=requests.dispatcher,
        purgatory=replication.purgatory,
        cleaner=replication.cleaner,
        usage=usage,
        topics=requests.counters,
        quotas=replication.quotas,
        transactions=coordinators.transactions.coordinator,
        session=store.events,
        now_ms=now_ms,
    )
    groups = GroupMetrics(coordinators.groups, replicas, cache, replication.connect, zookeeper_groups)
    process = CollectorRegistry()
    ProcessCollector(registry=process)

    async def text() -> bytes:
        await groups.refresh()
        families = chain(
            broker.families(sources),
            cluster.families(controller, cache, replicas),
            groups.families(),
        )
        return await write(renamed(families, names)) + generate_latest(process)

    return text

"""The whole of /metrics: made once by the broker, written at each scrape."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import chain

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from ottla.server.assembly.parts import Parts
from ottla.server.metrics import broker, cluster
from ottla.server.metrics.exposition import write
from ottla.server.metrics.groups import GroupMetrics
from ottla.server.metrics.loop_usage import LoopUsage


def broker_metrics(
    parts: Parts, usage: LoopUsage, *, phase: Callable[[], str]
) -> Callable[[], Awaitable[bytes]]:
    """What writes the text."""
    sources = broker.Sources(
        phase=phase,
        replicas=parts.replicas,
        logs=parts.logs,
        server=parts.server,
        dispatcher=parts.dispatcher,
        purgatory=parts.purgatory,
        cleaner=parts.cleaner,
        usage=usage,
        topics=parts.rooms.counters,
    )
    groups = GroupMetrics(
        parts.coordinator, parts.replicas, parts.cache, parts.connect, parts.zookeeper_groups
    )
    process = CollectorRegistry()
    ProcessCollector(registry=process)

    async def text() -> bytes:
        await groups.prepare()
        families = chain(
            broker.families(sources),
            cluster.families(parts.controller, parts.cache, parts.replicas),
            groups.families(),
        )
        return await write(families) + generate_latest(process)

    return text

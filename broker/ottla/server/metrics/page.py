"""The whole of /metrics: made once by the broker, written at each scrape."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import chain

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from ottla.server.dispatch import Dispatcher
from ottla.server.listener import SocketServer
from ottla.server.log_cleaner import LogCleaner
from ottla.server.loop_usage import LoopUsage
from ottla.server.metrics import broker, cluster
from ottla.server.metrics.exposition import write
from ottla.server.metrics.groups import Connect, GroupMetrics
from ottla.server.routes import Rooms


def broker_metrics(
    rooms: Rooms,
    server: SocketServer,
    dispatcher: Dispatcher,
    cleaner: LogCleaner,
    usage: LoopUsage,
    *,
    phase: Callable[[], str],
    connect: Connect,
) -> Callable[[], Awaitable[bytes]]:
    """What writes the text. `connect` reaches other brokers, for the ends of partitions that they lead."""
    sources = broker.Sources(
        phase=phase,
        replicas=rooms.replicas,
        logs=rooms.logs,
        server=server,
        dispatcher=dispatcher,
        purgatory=rooms.purgatory,
        cleaner=cleaner,
        usage=usage,
        topics=rooms.counters,
    )
    groups = GroupMetrics(rooms.coordinator, rooms.replicas, rooms.cache, connect)
    process = CollectorRegistry()
    ProcessCollector(registry=process)

    async def text() -> bytes:
        await groups.prepare()
        families = chain(
            broker.families(sources),
            cluster.families(rooms.controller, rooms.cache, rooms.replicas),
            groups.families(),
        )
        return await write(families) + generate_latest(process)

    return text

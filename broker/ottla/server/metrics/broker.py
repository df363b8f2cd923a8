"""Metrics of this broker: traffic by topic, requests, replicas, logs and connections.

Called at each scrape. Samples are generated lazily, while they are written.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from ottla import __version__
from ottla.coordinators.transactions.coordinator import TransactionCoordinator
from ottla.coordinators.transactions.transaction import State as TransactionState
from ottla.metadata.store import SessionEvents
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.quotas.broker import BrokerQuotas
from ottla.quotas.levels import UNLIMITED
from ottla.replication.manager import ReplicaManager
from ottla.replication.partition import Partition
from ottla.server.dispatch.counters import LoopUsage, TopicCount, TopicCounters
from ottla.server.dispatch.dispatcher import Dispatcher, Route
from ottla.server.dispatch.purgatory import Purgatory
from ottla.server.logs.log_cleaner import LogCleaner
from ottla.server.metrics.exposition import Family, Sample, counter, gauge
from ottla.server.network.listener import SocketServer
from ottla.storage.log import Log
from ottla.storage.log_manager import LogManager

BROKER_STATES = {"starting": 1, "recovering": 2, "ready": 3, "stopping": 6}
QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
QUOTA_ENTITIES_MAX = 100


@dataclass(frozen=True)
class Sources:
    """The components that metrics are read from."""

    phase: Callable[[], str]
    replicas: ReplicaManager
    logs: LogManager
    server: SocketServer
    dispatcher: Dispatcher
    purgatory: Purgatory
    cleaner: LogCleaner
    usage: LoopUsage
    topics: TopicCounters
    quotas: BrokerQuotas
    transactions: TransactionCoordinator
    session: SessionEvents
    now_ms: Callable[[], int]
    """Wall time, for the windows of quotas."""


def families(sources: Sources) -> Iterator[Family]:
    version = (((__version__,), 1.0),)
    yield Family("ottla_build_info", "gauge", "1: the version of Ottla.", ("version",), version)
    yield gauge(
        "kafka_server_kafkaserver_brokerstate",
        "1 starting, 2 recovering, 3 running, 6 shutting down.",
        BROKER_STATES[sources.phase()],
    )
    yield from _traffic(sources)
    yield from _requests(sources)
    yield from _replicas(sources)
    yield from _partitions(sources.replicas)
    yield from _followers(sources.replicas)
    yield from _logs(sources.logs)
    yield from _flushes(sources.logs)
    yield from _quotas(sources.quotas, sources.now_ms())
    yield from _transactions(sources.transactions)
    yield from _session(sources.session)
    yield from _loop_lag(sources.usage)
    yield from _sockets(sources)
    yield from _cleaner(sources.cleaner)
    yield from _process()


# --- traffic -----------------------------------------------------------------------------------------

_TRAFFIC: tuple[tuple[str, str, str], ...] = (
    ("bytesin", "bytes_in", "Bytes of records that producers sent."),
    ("bytesout", "bytes_out", "Bytes of records that consumers fetched."),
    ("messagesin", "messages_in", "Records that producers sent."),
    ("totalproducerequests", "produces", "Partitions in Produce requests."),
    ("totalfetchrequests", "fetches", "Partitions in responses to consumers' and followers' fetches."),
    ("failedproducerequests", "failed_produces", "Partitions in Produce requests that failed."),
    ("failedfetchrequests", "failed_fetches", "Partitions in Fetch responses with an error."),
)


def _traffic(sources: Sources) -> Iterator[Family]:
    topics = sources.topics
    hosted = {partition.topic for partition in sources.replicas.partitions()}
    topics.forget(hosted.__contains__)
    counts = list(topics.items())
    total = topics.total()
    for name, attribute, help_text in _TRAFFIC:
        yield Family(
            f"kafka_server_brokertopicmetrics_{name}",
            "counter",
            help_text,
            ("topic",),
            _by_topic(counts, total, attribute),
        )
    yield counter(
        "kafka_server_brokertopicmetrics_replicationbytesout",
        "Bytes of records that followers fetched.",
        topics.replicated_out,
    )


def _by_topic(counts: list[tuple[str, TopicCount]], total: TopicCount, attribute: str) -> Iterator[Sample]:
    """The total of all topics, without a topic name, and the value of each topic."""
    yield ("",), getattr(total, attribute)
    for topic, count in counts:
        yield (topic,), getattr(count, attribute)


# --- requests ----------------------------------------------------------------------------------------


def _requests(sources: Sources) -> Iterator[Family]:
    routes = sources.dispatcher.routes()
    yield Family(
        "kafka_network_requestmetrics_requests",
        "counter",
        "Requests by API and version.",
        ("request", "version"),
        (
            ((_api_name(route.api_key.name), str(version)), count)
            for route in routes
            for version, count in enumerate(route.counters.by_version)
            if count
        ),
    )
    yield Family(
        "kafka_network_requestmetrics_totaltimems_count",
        "gauge",
        "Requests by API.",
        ("request",),
        (((_api_name(r.api_key.name),), sum(r.counters.by_version)) for r in routes),
    )
    yield Family(
        "kafka_network_requestmetrics_errors",
        "counter",
        "Errors in responses, by API and error code: of partitions, topics, groups or whole requests.",
        ("request", "error"),
        (
            ((_api_name(route.api_key.name), ErrorCode.of(code).name), count)
            for route in routes
            for code, count in (route.counters.errors + _fetch_errors(route, sources.topics)).items()
        ),
    )
    for phase, (name, help_text) in enumerate(_PHASES):
        yield Family(
            f"kafka_network_requestmetrics_{name}",
            "gauge",
            f"{help_text} In ms, of a sample of the last requests.",
            ("request", "quantile"),
            (
                ((_api_name(route.api_key.name), quantile), value)
                for route in routes
                for quantile, value in quantiles([each[phase] for each in route.counters.times_ms])
            ),
        )
    purgatory = sources.purgatory
    produces = purgatory.waiting_produces()
    yield Family(
        "kafka_server_delayedoperationpurgatory_purgatorysize",
        "gauge",
        "Delayed operations in the purgatory.",
        ("delayedOperation",),
        ((("Produce",), produces), (("Fetch",), purgatory.waiting() - produces)),
    )
    sessions = purgatory.sessions
    prefix = "kafka_server_fetchsessioncache_"
    yield gauge(f"{prefix}numincrementalfetchsessions", "Fetch sessions.", len(sessions))
    yield gauge(
        f"{prefix}numincrementalfetchpartitionscached",
        "Partitions of the fetch sessions.",
        sessions.cached_partitions(),
    )
    yield counter(
        f"{prefix}incrementalfetchsessionevictions",
        "Fetch sessions that were removed in favour of others.",
        sessions.evictions,
    )


_PHASES: tuple[tuple[str, str], ...] = (
    ("totaltimems", "Time from a request to its response."),
    ("requestqueuetimems", "Time before a request is handled."),
    ("localtimems", "Time of a request on the event loop."),
    ("remotetimems", "Time that a request waits, for replicas, records, other brokers or threads."),
    ("responsesendtimems", "Time until the response is in the kernel."),
    ("throttletimems", "Time that a client is not read after a response, because of a quota."),
)
"""By the order of PhaseTimes."""


def _fetch_errors(route: Route, topics: TopicCounters) -> Counter[int]:
    return topics.fetch_errors if route.api_key == ApiKey.FETCH else Counter()


def quantiles(values: Iterable[float]) -> Iterator[tuple[str, float]]:
    """Samples by quantile; none without values."""
    ascending = sorted(values)
    for quantile in QUANTILES if ascending else ():
        yield str(quantile), ascending[min(int(quantile * len(ascending)), len(ascending) - 1)]


def _api_name(key: str) -> str:
    """LIST_OFFSETS -> ListOffsets, as Kafka names them in its metrics."""
    return "".join(word.capitalize() for word in key.split("_"))


# --- replicas and logs -------------------------------------------------------------------------------


def _replicas(sources: Sources) -> Iterator[Family]:
    prefix = "kafka_server_replicamanager_"
    leaders = under_replicated = under_min = at_min = count = 0
    for partition in sources.replicas.partitions():
        count += 1
        if not partition.is_leader:
            continue
        leaders += 1
        in_sync = len(partition.isr)
        under_replicated += in_sync < len(partition.replicas)
        under_min += in_sync < partition.min_in_sync
        at_min += in_sync == partition.min_in_sync
    yield gauge(f"{prefix}leadercount", "Partitions that this broker leads.", leaders)
    yield gauge(f"{prefix}partitioncount", "Partitions that this broker has a replica of.", count)
    yield gauge(
        f"{prefix}underreplicatedpartitions", "Led partitions with a replica out of sync.", under_replicated
    )
    yield gauge(f"{prefix}underminisrpartitioncount", "Led partitions below min.insync.replicas.", under_min)
    yield gauge(
        f"{prefix}atminisrpartitioncount", "Led partitions with exactly min.insync.replicas in sync.", at_min
    )
    yield gauge(
        f"{prefix}offlinereplicacount", "Replicas whose directory has failed.", sources.replicas.offline_count
    )
    changes = sources.replicas.isr_changes
    yield counter(f"{prefix}isrshrinks", "Changes that removed a replica from the ISR.", changes.shrinks)
    yield counter(f"{prefix}isrexpands", "Changes that added a replica to the ISR.", changes.expands)
    yield counter(f"{prefix}failedisrupdates", "Changes of the ISR that were rejected.", changes.failed)


_PARTITION: tuple[tuple[str, str, Callable[[Partition], float]], ...] = (
    ("replicascount", "Replicas.", lambda p: len(p.replicas)),
    ("insyncreplicascount", "Replicas in sync.", lambda p: len(p.isr)),
    ("underreplicated", "1: a replica is out of sync.", lambda p: len(p.isr) < len(p.replicas)),
    ("underminisr", "1: below min.insync.replicas.", lambda p: len(p.isr) < p.min_in_sync),
    ("atminisr", "1: exactly min.insync.replicas are in sync.", lambda p: len(p.isr) == p.min_in_sync),
    (
        "laststableoffsetlag",
        "High watermark less last stable offset.",
        lambda p: p.high_watermark - p.last_stable_offset,
    ),
)


def _partitions(replicas: ReplicaManager) -> Iterator[Family]:
    for name, help_text, of in _PARTITION:
        yield Family(
            f"kafka_cluster_partition_{name}",
            "gauge",
            f"Of a partition that this broker leads: {help_text}",
            ("topic", "partition"),
            per_led_partition(replicas, of),
        )


def per_led_partition(replicas: ReplicaManager, of: Callable[[Partition], float]) -> Iterator[Sample]:
    """A value of each partition that this broker leads, by topic and partition."""
    for partition in list(replicas.partitions()):
        if partition.is_leader:
            yield (partition.topic, str(partition.partition)), of(partition)


_LOG: tuple[tuple[str, str, Callable[[Log], float]], ...] = (
    ("size", "Bytes of a partition's log.", lambda log: log.size),
    ("logendoffset", "Log end offset of a partition.", lambda log: log.log_end_offset),
    ("logstartoffset", "Log start offset of a partition.", lambda log: log.log_start_offset),
    ("numlogsegments", "Segments of a partition's log.", lambda log: len(log.segments)),
)


def _logs(logs: LogManager) -> Iterator[Family]:
    for name, help_text, of in _LOG:
        yield Family(
            f"kafka_log_log_{name}",
            "gauge",
            help_text,
            ("topic", "partition"),
            (((topic, str(partition)), of(log)) for (topic, partition), log in list(logs.logs().items())),
        )
    failed = logs.failed_dirs()
    yield gauge(
        "kafka_log_logmanager_offlinelogdirectorycount", "Log directories that have failed.", len(failed)
    )
    yield Family(
        "kafka_log_logmanager_logdirectoryoffline",
        "gauge",
        "1: the log directory has failed.",
        ("logDirectory",),
        [((str(d.path),), 0) for d in logs.online_dirs()] + [((str(d.path),), 1) for d in failed],
    )


def _cleaner(cleaner: LogCleaner) -> Iterator[Family]:
    for name, value in cleaner.metrics().items():
        manager = name.startswith(("uncleanable", "max-dirty", "time-since"))
        bean = "logcleanermanager" if manager else "logcleaner"
        yield gauge(
            f"kafka_log_{bean}_{name.replace('-', '_').lower()}", "Metric of Kafka's log cleaner.", value
        )


def _followers(replicas: ReplicaManager) -> Iterator[Family]:
    lags = list(replicas.follower_lags())
    yield gauge(
        "kafka_server_replicafetchermanager_maxlag",
        "The greatest lag of a follower on this broker behind its leader's high watermark.",
        max((lag for _, _, lag in lags), default=0),
    )
    yield Family(
        "kafka_server_fetcherlagmetrics_consumerlag",
        "gauge",
        "Lag of a follower on this broker behind its leader's high watermark.",
        ("topic", "partition"),
        (((topic, str(index)), lag) for _, (topic, index), lag in lags),
    )


def _flushes(logs: LogManager) -> Iterator[Family]:
    flushes = [log_dir.flushes for log_dir in logs.online_dirs()]
    name = "kafka_log_logflushstats_logflushrateandtimems"
    yield gauge(f"{name}_count", "Flushes of logs.", sum(each.count for each in flushes))
    yield Family(
        name,
        "gauge",
        "Time of the last flushes of logs in ms.",
        ("quantile",),
        (((quantile,), value) for quantile, value in quantiles(chain(*(list(f.times_ms) for f in flushes)))),
    )


def _quotas(quotas: BrokerQuotas, now_ms: int) -> Iterator[Family]:
    """Of each kind, the QUOTA_ENTITIES_MAX entities that use most of their limits."""
    used = [
        (kind, entity, usage.rate.measure(now_ms)[0], usage)
        for kind, quota in (
            ("Produce", quotas.produce),
            ("Fetch", quotas.fetch),
            ("Request", quotas.requests),
        )
        for entity, usage in heapq.nlargest(
            QUOTA_ENTITIES_MAX,
            quota.sensors().items(),
            key=lambda item: item[1].rate.measure(now_ms)[0] / max(item[1].limit, 1e-9),
        )
    ]
    labels = ("resource", "user", "clientId")
    for name, help_text, of_requests in (
        ("byte_rate", "Bytes per second of a user or client id, while quotas are set.", False),
        ("request_time", "Share of the event loop's time that a user or client id uses, in percent.", True),
    ):
        yield Family(
            f"kafka_server_quota_{name}",
            "gauge",
            help_text,
            labels,
            (((kind, *who), rate) for kind, who, rate, _ in used if (kind == "Request") == of_requests),
        )
    yield Family(
        "ottla_quota_limit",
        "gauge",
        "The limit of a user or client id, in bytes per second or percent.",
        labels,
        (((kind, *who), usage.limit) for kind, who, _, usage in used if usage.limit < UNLIMITED),
    )
    yield Family(
        "ottla_quota_throttles",
        "counter",
        "Requests that were throttled.",
        labels,
        (((kind, *who), usage.throttles) for kind, who, _, usage in used),
    )
    yield Family(
        "ottla_quota_throttled_ms",
        "counter",
        "For how long they were throttled in total.",
        labels,
        (((kind, *who), usage.throttled_ms) for kind, who, _, usage in used),
    )


def _transactions(coordinator: TransactionCoordinator) -> Iterator[Family]:
    states = coordinator.states()
    yield Family(
        "ottla_transactional_ids",
        "gauge",
        "Transactional ids that this broker coordinates, by the state of their transaction.",
        ("state",),
        [((_api_name(state.name),), states[state]) for state in TransactionState],
    )


def _session(events: SessionEvents) -> Iterator[Family]:
    prefix = "kafka_server_sessionexpirelistener_"
    yield gauge(f"{prefix}sessionstate", "1: connected to ZooKeeper.", events.connected)
    yield counter(f"{prefix}zookeeperdisconnects", "Lost connections to ZooKeeper.", events.disconnects)
    yield counter(f"{prefix}zookeeperexpires", "Sessions with ZooKeeper that expired.", events.expirations)


def _loop_lag(usage: LoopUsage) -> Iterator[Family]:
    yield Family(
        "ottla_event_loop_lag_seconds",
        "gauge",
        "By how much a timer of the event loop was late, each second of the last minute.",
        ("quantile",),
        [((quantile,), lag) for quantile, lag in quantiles(usage.lags_s)],
    )


# --- sockets and the process -------------------------------------------------------------------------


def _sockets(sources: Sources) -> Iterator[Family]:
    server = sources.server
    by_listener = dict.fromkeys(server.accepted, 0)
    for connection in list(server.connections):
        by_listener[connection.listener] = by_listener.get(connection.listener, 0) + 1
    yield Family(
        "kafka_server_socket_server_metrics_connection_count",
        "gauge",
        "Connections by listener.",
        ("listener", "networkProcessor"),
        [((name, "0"), count) for name, count in by_listener.items()],
    )
    yield Family(
        "kafka_server_socket_server_metrics_connection_creation",
        "counter",
        "Accepted connections by listener.",
        ("listener", "networkProcessor"),
        [((name, "0"), count) for name, count in server.accepted.items()],
    )
    idle = sources.usage.idle_ratio
    yield gauge(
        "kafka_network_socketserver_networkprocessoravgidle_percent",
        "The share of the last minute in which the event loop was idle, 0 to 1.",
        idle,
    )
    yield gauge(
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
        "The same value: one event loop does both.",
        idle,
    )
    yield gauge(
        "kafka_network_socketserver_memorypoolused",
        "Bytes of receive buffers in use.",
        server.buffers.lent_bytes,
    )


def _process() -> Iterator[Family]:
    """Disk traffic; the other metrics of the process are prometheus_client's."""
    io = _proc_numbers("/proc/self/io")
    for name in ("read", "write"):
        if f"{name}_bytes" in io:
            yield gauge(
                f"kafka_server_kafkaserver_linux_disk_{name}_bytes",
                f"Bytes that this process has caused the disk to {name}.",
                io[f"{name}_bytes"],
            )


def _proc_numbers(path: str) -> dict[str, int]:
    try:
        with open(path, encoding="ascii") as lines:
            pairs = (line.split(":", 1) for line in lines if ":" in line)
            return {name: int(value) for name, value in pairs if value.strip().isdecimal()}
    except OSError:
        return {}

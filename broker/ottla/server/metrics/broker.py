"""Metrics of this broker: traffic by topic, requests, replicas, logs and connections.

Called at each scrape. Samples are generated lazily, while they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ottla.replication.manager import ReplicaManager
from ottla.replication.partition import Partition
from ottla.server.dispatch.counters import LoopUsage, TopicCount, TopicCounters
from ottla.server.dispatch.dispatcher import Dispatcher
from ottla.server.dispatch.purgatory import Purgatory
from ottla.server.logs.log_cleaner import LogCleaner
from ottla.server.metrics.exposition import Family, Sample, counter, gauge
from ottla.server.network.listener import SocketServer
from ottla.storage.log import Log
from ottla.storage.log_manager import LogManager

BROKER_STATES = {"starting": 1, "recovering": 2, "ready": 3, "stopping": 6}
QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)


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


def families(sources: Sources) -> Iterator[Family]:
    yield gauge(
        "kafka_server_kafkaserver_brokerstate",
        "1 starting, 2 recovering, 3 running, 6 shutting down.",
        BROKER_STATES[sources.phase()],
    )
    yield from _traffic(sources)
    yield from _requests(sources)
    yield from _replicas(sources)
    yield from _partitions(sources.replicas)
    yield from _logs(sources.logs)
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
        "kafka_network_requestmetrics_totaltimems",
        "gauge",
        "Time from a request to its response in ms, of a sample of the last requests.",
        ("request", "quantile"),
        (
            (
                (_api_name(route.api_key.name), str(quantile)),
                times[min(int(quantile * len(times)), len(times) - 1)],
            )
            for route in routes
            if (times := sorted(route.counters.times_ms))
            for quantile in QUANTILES
        ),
    )
    yield Family(
        "kafka_server_delayedoperationpurgatory_purgatorysize",
        "gauge",
        "Delayed operations in the purgatory.",
        ("delayedOperation",),
        ((("All",), sources.purgatory.waiting()),),
    )


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

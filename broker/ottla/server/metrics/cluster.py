"""Metrics of the cluster: the controller's, and kafka_exporter's of topics and brokers.

The leader reports the metrics of a partition, and the controller those of the cluster: sums over all brokers
count each once, as with a single exporter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ottla.controller.context import ControllerContext
from ottla.controller.controller import Controller
from ottla.metadata.cache import MetadataCache
from ottla.replication.manager import ReplicaManager
from ottla.replication.partition import Partition
from ottla.server.metrics.broker import per_led_partition
from ottla.server.metrics.exposition import Family, counter, gauge

_LABELS = ("topic", "partition")


def families(controller: Controller, cache: MetadataCache, replicas: ReplicaManager) -> Iterator[Family]:
    state = controller.context
    yield from _controller(controller, state)
    if state is not None:
        yield from _whole_cluster(cache)
    yield from _partitions(replicas)


def _controller(controller: Controller, state: ControllerContext | None) -> Iterator[Family]:
    prefix = "kafka_controller_kafkacontroller_"
    partitions = [] if state is None else [tp for tp in state.partitions() if not state.is_deleting(tp.topic)]
    offline = imbalanced = 0
    if state is not None:
        for tp in partitions:
            offline += not state.has_live_leader(tp)
            current, assignment = state.leaders.get(tp), state.assignment(tp)
            if current is not None and assignment is not None:
                imbalanced += current.leader != assignment.replicas[0]
    yield gauge(f"{prefix}activecontrollercount", "1 on the controller.", state is not None)
    for name, help_text, value in (
        ("offlinepartitionscount", "Partitions without a leader.", offline),
        (
            "preferredreplicaimbalancecount",
            "Partitions not led by their preferred replica.",
            imbalanced,
        ),
        ("globalpartitioncount", "Partitions.", len(partitions)),
        ("globaltopiccount", "Topics.", 0 if state is None else len(state.topics)),
        ("activebrokercount", "Brokers that are alive.", 0 if state is None else len(state.brokers)),
        ("fencedbrokercount", "Brokers that are registered and fenced: there are none.", 0),
        (
            "topicstodeletecount",
            "Topics that are being deleted.",
            0 if state is None else len(state.deletions),
        ),
    ):
        yield gauge(f"{prefix}{name}", f"{help_text} The controller's; 0 elsewhere.", value)
    yield gauge(
        "kafka_controller_controllerstats_leaderelectionrateandtimems_count",
        "Leaders that this controller elected.",
        0 if state is None else state.elections,
    )
    yield counter(
        "kafka_controller_controllerstats_uncleanleaderelections",
        "Leaders that this controller elected from outside the ISR.",
        0 if state is None else state.unclean_elections,
    )


def _whole_cluster(cache: MetadataCache) -> Iterator[Family]:
    brokers = cache.brokers()
    yield gauge("kafka_brokers", "Brokers in the cluster.", len(brokers))
    yield Family(
        "kafka_broker_info",
        "gauge",
        "A broker, by its id and address.",
        ("id", "address"),
        [((str(b.id), f"{b.host}:{b.port}"), 1) for b in brokers],
    )
    yield Family(
        "kafka_topic_partitions",
        "gauge",
        "Partitions of a topic.",
        ("topic",),
        (((topic,), len(cache.partitions(topic) or ())) for topic in cache.topics()),
    )


_LED_PARTITION: tuple[tuple[str, str, Callable[[Partition], float]], ...] = (
    ("current_offset", "High watermark of a partition.", lambda p: p.high_watermark),
    ("oldest_offset", "Log start offset of a partition.", lambda p: p.log.log_start_offset),
    ("in_sync_replica", "Replicas in sync.", lambda p: len(p.isr)),
    ("leader", "The leader's id.", lambda p: p.leader_id),
    (
        "leader_is_preferred",
        "1: the preferred replica leads.",
        lambda p: tuple(p.replicas[:1]) == (p.leader_id,),
    ),
    ("replicas", "Replicas.", lambda p: len(p.replicas)),
    (
        "under_replicated_partition",
        "1: a replica is out of sync.",
        lambda p: len(p.isr) < len(p.replicas),
    ),
)


def _partitions(replicas: ReplicaManager) -> Iterator[Family]:
    for name, help_text, of in _LED_PARTITION:
        yield Family(
            f"kafka_topic_partition_{name}",
            "gauge",
            f"{help_text} Reported by the leader.",
            _LABELS,
            per_led_partition(replicas, of),
        )

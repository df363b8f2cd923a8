"""The metrics of a producer or a consumer, collected from the statistics of its parts.

Called by `Producer` and `Consumer`, also from other threads than that of the event loop. Names and groups are
those of Kafka's Java client, without those of its buffer pool, its selector and its threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ottla.client.core.assigned import Assigned
from ottla.client.core.stats import FetchStats, MetricValues, PollStats, RequestStats, happened, timed
from ottla.client.core.types import TopicPartition
from ottla.client.metrics import Metric, of_group, of_requests
from ottla.client.network import Network
from ottla.client.producer_runtime import ProducerRuntime
from ottla.protocol import messages as m


def of_producer(runtime: ProducerRuntime, now: float) -> Iterator[Metric]:
    """All metrics of a producer."""
    accumulator, sender, network = runtime.accumulator, runtime.sender, runtime.network
    yield from of_requests("producer", network.connections, network.stats, now)
    refreshed_at = runtime.cluster.refreshed_at
    produce = m.ProduceRequest.api_key
    figures = {
        "buffer-total-bytes": accumulator.memory,
        "buffer-available-bytes": accumulator.memory - accumulator.used_bytes,
        "requests-in-flight": sender.requests_in_flight,
        "metadata-age": now - refreshed_at if refreshed_at > -math.inf else math.nan,
        **sender.stats.figures(now),
        **timed("request-latency", network.stats.of(produce), now),
        **timed("produce-throttle-time", network.stats.throttled(produce), now),
        **{f"{name}-time-ns-total": waited_s * 1e9 for name, waited_s in runtime.waited_s.items()},
    }
    yield from of_group("producer-metrics", figures)
    for topic, of_topic in sender.stats.by_topic(now).items():
        yield from of_group("producer-topic-metrics", of_topic, topic=topic)


def of_consumer(
    assigned: Assigned,
    lags: dict[TopicPartition, int],
    fetches: FetchStats,
    polls: PollStats,
    network: Network,
    now: float,
    *,
    in_group: bool,
) -> Iterator[Metric]:
    """All metrics of a consumer; `in_group`: with those of its group membership."""
    yield from of_requests("consumer", network.connections, network.stats, now)
    yield from of_group("consumer-metrics", polls.figures(now))
    stats = network.stats
    fetch = m.FetchRequest.api_key
    states = [state for tp in assigned.partitions if (state := assigned.get(tp)) is not None]
    leads = {
        state.tp: state.position - state.log_start_offset
        for state in states
        if state.position >= 0 and state.log_start_offset >= 0
    }
    group = "consumer-fetch-manager-metrics"
    figures = {
        **fetches.figures(now),
        **timed("fetch-latency", stats.of(fetch), now),
        **happened("fetch", stats.of(fetch), now=now),
        **timed("fetch-throttle-time", stats.throttled(fetch), now),
        "records-lag-max": max(lags.values(), default=math.nan),
        "records-lead-min": min(leads.values(), default=math.nan),
    }
    yield from of_group(group, figures)
    for node, of_node in fetches.by_node(now).items():
        yield from of_group("consumer-node-metrics", of_node, node_id=node)
    for topic, of_topic in fetches.by_topic(now).items():
        yield from of_group(group, of_topic, topic=topic)
    for state in states:
        tp = state.tp
        of_partition = {
            "records-lag": lags.get(tp, math.nan),
            "records-lead": leads.get(tp, math.nan),
            "preferred-read-replica": state.preferred,
        }
        yield from of_group(group, of_partition, topic=tp.topic, partition=str(tp.partition))
    if in_group:
        figures = {**_of_member(stats, now), **polls.group_figures(now), "assigned-partitions": len(states)}
        yield from of_group("consumer-coordinator-metrics", figures)


def _of_member(stats: RequestStats, now: float) -> MetricValues:
    join, sync = stats.of(m.JoinGroupRequest.api_key), stats.of(m.SyncGroupRequest.api_key)
    beat, commit = stats.of(m.HeartbeatRequest.api_key), stats.of(m.OffsetCommitRequest.api_key)
    return {
        **timed("join-time", join, now),
        **happened("join", join, now=now),
        **timed("sync-time", sync, now),
        **happened("sync", sync, now=now),
        "heartbeat-response-time-max": beat.maximum(now),
        **happened("heartbeat", beat, now=now),
        "last-heartbeat-seconds-ago": now - beat.last if beat.count else -1.0,
        **timed("commit-latency", commit, now),
        **happened("commit", commit, now=now),
    }

"""Loads of partitions from the brokers' metrics: shares, averages, restarts, and what cannot be measured."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

import pytest

from ottla.server.metrics.exposition import Family, write
from ottla_operator.planning.observed import (
    BrokerDisks,
    ClusterLoad,
    KafkaState,
    PartitionKey,
    PartitionState,
    TopicState,
)
from ottla_operator.platform.interfaces import StepFailed
from ottla_operator.platform.loads import LoadMonitor, parse_counters

WINDOW_MS = 60_000


def state(leaders: Mapping[int, int]) -> KafkaState:
    """A cluster with topic `t`; leaders by partition."""
    partitions = tuple(PartitionState("t", n, leader, (leader,), (leader,)) for n, leader in leaders.items())
    return KafkaState(True, "c", 0, frozenset(leaders.values()), {"t": TopicState("t", "id", partitions)})


class Brokers:
    """Brokers with counters that a test sets."""

    def __init__(self) -> None:
        self.bytes_in: dict[int, float] = {}
        self.end_offsets: dict[int, dict[int, float]] = {}
        self.problem = ""
        self.sizes: dict[PartitionKey, int] = {}
        self.monitor = LoadMonitor(self.metrics, self.disks)

    async def metrics(self, brokers: Collection[int]) -> Mapping[int, str]:
        if self.problem:
            raise StepFailed("NoMetrics", self.problem)
        return {broker: (await self.text(broker)).decode() for broker in brokers}

    async def text(self, broker: int) -> bytes:
        """Written by the broker's own code."""
        total = self.bytes_in.get(broker, 0)
        families = [
            Family(
                f"kafka_server_brokertopicmetrics_{name}",
                "counter",
                "Bytes.",
                ("topic",),
                [(("",), total * factor), (("t",), total * factor)],
            )
            for name, factor in (("bytesin", 1), ("bytesout", 2))
        ]
        offsets = self.end_offsets.get(broker, {})
        end = [(("t", str(partition)), offset) for partition, offset in offsets.items()]
        families.append(Family("kafka_log_log_logendoffset", "gauge", "End.", ("topic", "partition"), end))
        return await write(families)

    async def disks(self) -> BrokerDisks:
        return BrokerDisks(self.sizes, {0: 1000})

    def observe(self, kafka: KafkaState, now_ms: int) -> ClusterLoad:
        return asyncio.run(self.monitor.observe(sorted(kafka.brokers), kafka, now_ms, WINDOW_MS))


def test_the_text_of_metrics_is_read_as_the_broker_writes_it() -> None:
    brokers = Brokers()
    brokers.bytes_in, brokers.end_offsets = {0: 1500.0}, {0: {0: 7.0, 12: 123456789.0}}
    counters = parse_counters(asyncio.run(brokers.text(0)).decode())
    assert counters.bytes_in == {"t": 1500.0}
    assert counters.bytes_out == {"t": 3000.0}
    assert counters.end_offsets == {("t", 0): 7.0, ("t", 12): 123456789.0}


def test_a_partitions_share_of_its_topics_bytes_is_that_of_its_new_records() -> None:
    brokers, kafka = Brokers(), state({0: 0, 1: 0, 2: 1})
    brokers.bytes_in = {0: 5000, 1: 0}
    brokers.end_offsets = {0: {0: 10, 1: 10, 2: 5}, 1: {2: 5}}
    brokers.sizes = {("t", 0): 70}
    assert not brokers.observe(kafka, 1_000_000).covered_ms
    brokers.bytes_in = {0: 5000 + 40_000, 1: 10_000}
    brokers.end_offsets = {0: {0: 40, 1: 20, 2: 6}, 1: {2: 6}}
    load = brokers.observe(kafka, 1_020_000)
    assert load.covered_ms == 20_000
    assert load.fresh
    found = load.partitions
    assert (found["t", 0].bytes_in, found["t", 0].bytes_out, found["t", 0].size) == (1500, 3000, 70)
    assert (found["t", 1].bytes_in, found["t", 2].bytes_in) == (500, 500)
    assert load.disks == {0: 1000}


def test_between_intervals_nothing_is_fetched_and_the_load_is_not_fresh() -> None:
    brokers, kafka = Brokers(), state({0: 0})
    brokers.observe(kafka, 1_000_000)
    brokers.problem = "must not be fetched"
    load = brokers.observe(kafka, 1_001_000)
    assert (load.problem, load.fresh, load.covered_ms) == ("", False, 1000)


def test_rates_are_averaged_and_a_burst_does_not_count_for_itself() -> None:
    brokers, kafka = Brokers(), state({0: 0})
    now_ms, total = 1_000_000, 0
    for n in range(20):
        brokers.bytes_in, brokers.end_offsets = {0: total}, {0: {0: n}}
        load = brokers.observe(kafka, now_ms)
        now_ms, total = now_ms + 15_000, total + 15_000
    assert load.partitions["t", 0].bytes_in == pytest.approx(1000)
    brokers.bytes_in, brokers.end_offsets = {0: total + 1_500_000}, {0: {0: 99}}
    burst = brokers.observe(kafka, now_ms).partitions["t", 0].bytes_in
    assert 1000 < burst < 30_000


def test_a_broker_that_was_restarted_counts_anew_and_keeps_its_average() -> None:
    brokers, kafka = Brokers(), state({0: 0})
    for n, total in enumerate((0, 15_000, 30_000)):
        brokers.bytes_in, brokers.end_offsets = {0: total}, {0: {0: n}}
        brokers.observe(kafka, 1_000_000 + 15_000 * n)
    brokers.bytes_in, brokers.end_offsets = {0: 10}, {0: {0: 3}}
    assert brokers.observe(kafka, 1_045_000).partitions["t", 0].bytes_in == pytest.approx(1000)


def test_metrics_that_cannot_be_read_are_a_problem_and_not_an_error() -> None:
    brokers = Brokers()
    brokers.problem = "broker 0 has no metrics endpoint"
    assert brokers.observe(state({0: 0}), 1_000_000).problem == "broker 0 has no metrics endpoint"

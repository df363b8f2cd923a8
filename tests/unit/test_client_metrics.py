"""Rates and averages follow Kafka's definitions; reporters and Prometheus get all metrics."""

from __future__ import annotations

import asyncio
import logging
import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from ottla.client.core.batches import Batch
from ottla.client.core.stats import FetchStats, PollStats, ProducerStats, RequestStats, Stat, Window
from ottla.client.core.types import TopicPartition
from ottla.client.metrics import Metric, PrometheusCollector, Reporting, of_client
from ottla.protocol.compression import Codec

WINDOW = Window(window_s=10.0, samples=2)


def test_a_rate_starts_low_and_expires_old_samples() -> None:
    stat = Stat(WINDOW)
    assert stat.rate(0.0) == 0
    assert math.isnan(stat.average(0.0))
    stat.record(100, 0.0)
    assert stat.rate(0.0) == 10.0, "as if one whole window were over"
    assert stat.rate(5.0) == pytest.approx(100 / 15)
    assert stat.rate(10.0) == 10.0
    stat.record(300, 12.0, count=3)
    assert stat.rate(15.0) == pytest.approx(400 / 15)
    assert stat.frequency(15.0) == pytest.approx(4 / 15)
    assert (stat.average(15.0), stat.maximum(15.0)) == (100.0, 300.0)
    assert stat.average(25.0) == 100.0, "of the second window alone"
    assert stat.rate(40.0) == 0
    assert math.isnan(stat.maximum(40.0))
    assert (stat.total, stat.count) == (400, 4)


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 1000)), max_size=60))
def test_only_recent_samples_count(steps: list[tuple[float, int]]) -> None:
    stat, now = Stat(WINDOW), 0.0
    seen: list[tuple[float, int]] = []
    for pause, value in steps:
        now += pause
        stat.record(value, now)
        seen.append((now, value))
        # Whole windows are forgotten: what is younger than the time kept is there, nothing a window older.
        kept = WINDOW.samples * WINDOW.window_s
        least = max(v for t, v in seen if t > now - (kept - WINDOW.window_s))
        most = max(v for t, v in seen if t > now - kept - WINDOW.window_s)
        assert least <= stat.maximum(now) <= most
    assert stat.total == sum(value for _, value in seen)


def test_a_producer_is_the_sum_of_its_topics() -> None:
    stats = ProducerStats(WINDOW)
    for topic, codec, count in (("a", Codec.NONE, 3), ("b", Codec.GZIP, 40)):
        batch = Batch(TopicPartition(topic, 0), 1.0, 1)
        batch.records = [(0, None, b"v" * 100, ())] * count
        batch.size += 113 * count
        batch.encode(codec, None)
        batch.attempts = 1
        stats.sent(batch, 1.5)
        stats.requested(count, 1.5)
    stats.retried(batch, 2.0)
    figures, topics = stats.figures(2.0), stats.by_topic(2.0)
    assert figures["record-send-total"] == 43
    assert figures["record-send-rate"] == pytest.approx(43 / 10.5)
    assert figures["batch-size-avg"] == (topics["a"]["byte-total"] + topics["b"]["byte-total"]) / 2
    assert figures["record-queue-time-avg"] == 500
    assert figures["records-per-request-avg"] == 21.5
    assert figures["record-retry-total"] == topics["b"]["record-retry-total"] == 40
    assert topics["a"]["compression-rate"] == 1.0
    assert 0 < topics["b"]["compression-rate"] < 0.1
    assert figures["batch-size-max"] == max(t["byte-total"] for t in topics.values())


def test_request_metrics_are_by_api_and_broker() -> None:
    stats = RequestStats(WINDOW)
    for node, api_key, took_s in ((1, 0, 0.004), (1, 3, 0.020), (2, 0, 0.008)):
        stats.sent(node, 0.0)
        stats.record_response(node, api_key, took_s, 7 if api_key else 0, 1.0)
    assert stats.of(0).average(1.0) == pytest.approx(6)
    assert stats.throttled(3).maximum(1.0) == 7
    assert stats.figures(1.0)["response-total"] == 3
    nodes = stats.by_node(1.0)
    assert nodes["node-1"]["request-latency-max"] == pytest.approx(20)
    assert nodes["node-2"]["request-total"] == 1


def test_metrics_of_polls_and_fetches() -> None:
    polls = PollStats(WINDOW)
    assert polls.figures(0.0)["last-poll-seconds-ago"] == -1
    for began, ended in ((0.0, 1.0), (4.0, 5.0)):
        polls.poll_begins(began)
        polls.poll_ends(ended)
    figures = polls.figures(6.0)
    assert (figures["time-between-poll-avg"], figures["last-poll-seconds-ago"]) == (4000, 2)
    assert figures["poll-idle-ratio-avg"] == 0.25
    polls.rebalance_begins(6.0)
    polls.rebalance_begins(6.5)
    polls.rebalance_ends(7.0)
    assert polls.group_figures(9.0)["rebalance-latency-avg"] == 1000
    assert polls.group_figures(9.0)["last-rebalance-seconds-ago"] == 2
    fetches = FetchStats(WINDOW)
    for topic in ("a", "a", "b"):
        fetches.record_fetched(topic, 1000, 1.0)
        fetches.record_response(1, 1000, 1.0)
        fetches.record_consumed(topic, 10, 1.0)
    assert fetches.figures(1.0)["records-consumed-total"] == 30
    assert fetches.figures(1.0)["records-per-request-avg"] == pytest.approx(10)
    assert fetches.by_topic(1.0)["a"]["bytes-consumed-total"] == 2000


METRICS = [
    Metric("producer-metrics", "record-send-total", {}, 5.0),
    Metric("producer-metrics", "request-latency-avg", {}, math.nan),
    Metric("producer-topic-metrics", "record-send-total", {"topic": "a"}, 2.0),
    Metric("producer-node-metrics", "request-rate", {"node-id": "node-1"}, 0.5),
]


def test_prometheus_gets_all_metrics() -> None:
    client = SimpleNamespace(config=SimpleNamespace(client_id="me"), measurements=lambda: METRICS)
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(client, client))
    page = generate_latest(registry).decode()
    assert 'kafka_producer_record_send_total{client_id="me"} 5.0' in page
    assert 'kafka_producer_topic_record_send_total{client_id="me",topic="a"} 2.0' in page
    assert 'kafka_producer_node_request_rate{client_id="me",node_id="node-1"} 0.5' in page
    assert "latency" not in page
    assert of_client(METRICS).keys() == {"record-send-total", "request-latency-avg"}


def test_reporters_are_called_at_an_interval_and_at_close(caplog: pytest.LogCaptureFixture) -> None:
    received: list[object] = []
    reported = asyncio.Event()

    class Listening:
        def report(self, client_id: str, metrics: list[Metric]) -> None:
            received.append((client_id, metrics))
            reported.set()

        def close(self) -> None:
            received.append("closed")

    class Failing(Listening):
        def report(self, client_id: str, metrics: list[Metric]) -> None:
            raise RuntimeError("not today")

    async def run() -> None:
        reporters = [Failing(), "org.apache.kafka.common.metrics.JmxReporter", Listening()]
        reporting = Reporting("me", reporters, 0.01, lambda: METRICS)
        reporting.start()
        async with asyncio.timeout(10):
            await reported.wait()
        reporting.stop()
        reporting.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert received[0] == ("me", METRICS)
    assert received[-3:] == [("me", METRICS), "closed", "closed"]
    assert "client me: the metrics reporter" in caplog.text
    assert "Failing failed in report" in caplog.text

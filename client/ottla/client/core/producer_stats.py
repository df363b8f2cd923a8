"""Metrics of a producer, by the names of Kafka's SenderMetricsRegistry.

Recorded by `sender` once a batch, read by `Producer.metrics` and `measurements`. They are kept by topic;
those of the producer are sums over the topics.
"""

from __future__ import annotations

from ottla.client.core.batches import Batch
from ottla.client.core.stats import MetricValues, Stat, Window, average, happened, maximum, summed, timed


class _TopicStats:
    __slots__ = ("bytes", "compression", "errors", "records", "retries")

    def __init__(self, window: Window) -> None:
        self.records = Stat(window)
        self.bytes = Stat(window)
        """One value for each batch."""
        self.compression = Stat(window)
        self.retries = Stat(window)
        self.errors = Stat(window)


class ProducerStats:
    """Records sends, retries and failures of batches. Times are recorded in seconds and reported in
    milliseconds, as in Kafka."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._topics: dict[str, _TopicStats] = {}
        self._queue_times_ms = Stat(window)
        self._record_sizes = Stat(window)
        self._records_per_request = Stat(window)
        self._splits = Stat(window)

    def _of(self, topic: str) -> _TopicStats:
        stats = self._topics.get(topic)
        if stats is None:
            stats = self._topics[topic] = _TopicStats(self._window)
        return stats

    def sent(self, batch: Batch, now: float) -> None:
        """A batch is sent, for the first time or again."""
        assert batch.data is not None
        count = batch.count
        topic = self._of(batch.tp.topic)
        topic.records.record(count, now)
        topic.bytes.record(len(batch.data), now)
        topic.compression.record(batch.compression_ratio, now)
        self._record_sizes.record(batch.size, now, count)
        if batch.attempts == 1:
            self._queue_times_ms.record((now - batch.created_at) * 1000, now)

    def requested(self, records: int, now: float) -> None:
        """A request with this number of records is sent."""
        self._records_per_request.record(records, now)

    def retried(self, batch: Batch, now: float) -> None:
        self._of(batch.tp.topic).retries.record(batch.count, now)

    def failed(self, batch: Batch, now: float) -> None:
        self._of(batch.tp.topic).errors.record(batch.count, now)

    def was_split(self, now: float) -> None:
        self._splits.record(1, now)

    def figures(self, now: float) -> MetricValues:
        """Metrics of the whole producer."""
        topics = list(self._topics.values())
        sizes = [topic.bytes for topic in topics]
        return {
            **_of_topics(topics, now),
            "batch-size-avg": average(sizes, now),
            "batch-size-max": maximum(sizes, now),
            "compression-rate-avg": average((topic.compression for topic in topics), now),
            **timed("record-queue-time", self._queue_times_ms, now),
            "record-size-avg": self._record_sizes.average(now),
            "records-per-request-avg": self._records_per_request.average(now),
            **happened("batch-split", self._splits, now=now),
        }

    def by_topic(self, now: float) -> dict[str, MetricValues]:
        return {
            name: {
                **_of_topics([stats], now),
                **summed("byte", stats.bytes, now=now),
                "compression-rate": stats.compression.average(now),
            }
            for name, stats in list(self._topics.items())
        }


def _of_topics(topics: list[_TopicStats], now: float) -> MetricValues:
    return {
        **summed("record-send", *(topic.records for topic in topics), now=now),
        **summed("record-retry", *(topic.retries for topic in topics), now=now),
        **summed("record-error", *(topic.errors for topic in topics), now=now),
    }

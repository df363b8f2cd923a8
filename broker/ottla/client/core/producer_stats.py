"""What a producer counts, batch by batch, under the names of Kafka's SenderMetricsRegistry.

Recorded in by `sender`, read by `Producer.metrics` and `measurements`. Kept by topic; the client's own are
their sums, so that nothing is counted twice.
"""

from __future__ import annotations

from ottla.client.core.batches import Batch
from ottla.client.core.stats import Figures, Stat, Window, happened, summed, timed


class _TopicStats:
    __slots__ = ("bytes", "compression", "errors", "records", "retries")

    def __init__(self, window: Window) -> None:
        self.records = Stat(window)
        self.bytes = Stat(window)
        self.compression = Stat(window)
        self.retries = Stat(window)
        self.errors = Stat(window)

    def figures(self, now: float) -> Figures:
        return {
            **summed("record-send", self.records, now),
            **summed("byte", self.bytes, now),
            "compression-rate": self.compression.average(now),
            **summed("record-retry", self.retries, now),
            **summed("record-error", self.errors, now),
        }


class ProducerStats:
    """Times in seconds come in; as in Kafka, figures of time are milliseconds."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._topics: dict[str, _TopicStats] = {}
        self._batch_sizes = Stat(window)
        self._compression = Stat(window)
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
        """A batch goes out, for the first time or again."""
        assert batch.data is not None
        size, count = len(batch.data), batch.count
        topic = self._of(batch.tp.topic)
        topic.records.record(count, now)
        topic.bytes.record(size, now)
        topic.compression.record(batch.compression_ratio, now)
        self._batch_sizes.record(size, now)
        self._compression.record(batch.compression_ratio, now)
        self._record_sizes.record(batch.size, now, count)
        if batch.attempts == 1:
            self._queue_times_ms.record((now - batch.created_at) * 1000, now)

    def requested(self, records: int, now: float) -> None:
        """A request with so many records goes out."""
        self._records_per_request.record(records, now)

    def retried(self, batch: Batch, now: float) -> None:
        self._of(batch.tp.topic).retries.record(batch.count, now)

    def failed(self, batch: Batch, now: float) -> None:
        self._of(batch.tp.topic).errors.record(batch.count, now)

    def was_split(self, now: float) -> None:
        self._splits.record(1, now)

    def figures(self, now: float) -> Figures:
        """Those of the whole producer."""
        sums: Figures = {
            f"{name}-{kind}": 0.0
            for name in ("record-send", "byte", "record-retry", "record-error")
            for kind in ("rate", "total")
        }
        for topic in self.by_topic(now).values():
            for name in sums:
                sums[name] += topic[name]
        return {
            **sums,
            **timed("batch-size", self._batch_sizes, now),
            "compression-rate-avg": self._compression.average(now),
            **timed("record-queue-time", self._queue_times_ms, now),
            "record-size-avg": self._record_sizes.average(now),
            "records-per-request-avg": self._records_per_request.average(now),
            **happened("batch-split", self._splits, now),
        }

    def by_topic(self, now: float) -> dict[str, Figures]:
        return {name: stats.figures(now) for name, stats in list(self._topics.items())}

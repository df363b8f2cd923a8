"""Runs a job's queries to their end: follows their progress, serves it, stops them when told to.

Called by `command`. A streaming job ends when it has all there is (`availableNow`), when SIGTERM or SIGINT
comes, or with the first query that fails, which ends the others.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from ottla_pipeline.progress import GroupOffsets, Status, parse_progress

Echo = Callable[[str], None]

# Offsets of a group without members expire, a week after the last commit by default.
REPUBLISH_S = 3600.0


@dataclass(frozen=True, slots=True)
class JobContext:
    """What a job is given besides its configuration. `params` holds the values of the job's own options;
    `metrics` is what `/metrics` serves, and `details` what `/status` says besides, for the job to add to;
    `at_end` is closed after its queries."""

    spark: SparkSession
    echo: Echo
    metrics: CollectorRegistry = field(default_factory=CollectorRegistry)
    params: Mapping[str, Any] = field(default_factory=dict)
    details: dict[str, object] = field(default_factory=dict)
    at_end: ExitStack = field(default_factory=ExitStack)


class JobMetrics(Collector):
    """A job's status as Prometheus' metrics."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> list[Metric]:
        status = self._status
        labels, values = ("job_type", "name"), (status.job, status.name)
        found: list[Metric] = []

        def add(
            kind: type[GaugeMetricFamily] | type[CounterMetricFamily], name: str, says: str, value: float
        ) -> None:
            family = kind(name, says, labels=labels)
            family.add_metric(values, value)
            found.append(family)

        add(CounterMetricFamily, "ottla_pipeline_batches", "Batches that held records.", status.batches)
        add(CounterMetricFamily, "ottla_pipeline_records", "Records read.", status.records)
        late = "Rows that came after the watermark and were left out by Spark's operators."
        add(CounterMetricFamily, "ottla_pipeline_late_rows", late, status.late_rows)
        if (lag := status.lag) is not None:
            add(GaugeMetricFamily, "ottla_pipeline_lag_records", "Records there, and not yet read.", lag)
        if status.last_batch is not None:
            seconds = status.last_batch.duration_ms / 1000
            add(GaugeMetricFamily, "ottla_pipeline_last_batch_seconds", "Time of the last batch.", seconds)
        return found


class ProgressListener(StreamingQueryListener):
    """Spark's reports into the status, and on to the consumer group from a thread of its own: Spark's
    listeners share one, and a broker may be slow to answer."""

    def __init__(self, status: Status, group: GroupOffsets, echo: Echo) -> None:
        self._status = status
        self._group = group
        self._echo = echo
        self._wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._published_at = 0.0
        self._thread = threading.Thread(target=self._publish, name="group-offsets", daemon=True)
        self._thread.start()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self._take(event.progress.json)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self._status.mark_idle(str(event.id))
        if time.monotonic() - self._published_at > REPUBLISH_S:
            self._wanted.put(True)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass

    def _take(self, progress: str) -> None:
        ended_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._status.add(parse_progress(json.loads(progress), ended_at))
        self._wanted.put(True)

    def _publish(self) -> None:
        said: str | None = None
        while self._wanted.get():
            problem = self._group.publish(self._status.reached())
            self._published_at = time.monotonic()
            if problem is not None and problem != said:
                self._echo(f"the offsets of the group could not be committed: {problem}")
            said = problem

    def close(self, queries: Sequence[StreamingQuery]) -> None:
        """Takes the last reports from the queries themselves, which have ended: Spark hands reports on later,
        and no more once a session goes. Publishes what was still wanted."""
        for query in queries:
            if (last := query.lastProgress) is not None and not self._status.has_batch(
                str(query.id), last.batchId
            ):
                self._take(last.json)
        self._wanted.put(False)
        self._thread.join(timeout=REPUBLISH_S)
        self._group.close()


def await_queries(queries: Sequence[StreamingQuery], stop: threading.Event) -> bool:
    """Waits for all queries to end, or for `stop`; then ends what still runs. True if all came to their end
    by themselves; raises the StreamingQueryException of one that failed."""
    running = list(queries)
    try:
        while running and not stop.is_set():
            for query in list(running):
                if len(running) > 1 and query.isActive:
                    continue  # PySpark waits for a second at least
                if query.awaitTermination(1):  # raises what the query failed with
                    running.remove(query)
            if len(running) > 1:
                stop.wait(0.5)
        return not running
    finally:
        for query in running:
            query.stop()

"""Runs a job's queries until they end: follows their progress and stops them on request.

Called by `command`. A streaming job ends when it has read everything (`availableNow`), on SIGTERM or
SIGINT, or with the first query that fails, which ends the others.
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

from ottla import __version__
from ottla_pipeline.progress import GroupOffsets, Status, parse_progress

Echo = Callable[[str], None]

# Offsets of a group without members expire, a week after the last commit by default.
RECOMMIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class JobContext:
    """What a job receives besides its configuration. `echo` prints a line; `params` are the values of the
    job's own options; `metrics` is served at `/metrics`; `details` is the job's part of `/status`;
    `at_end` is closed after the queries have ended."""

    spark: SparkSession
    echo: Echo
    metrics: CollectorRegistry = field(default_factory=CollectorRegistry)
    params: Mapping[str, Any] = field(default_factory=dict)
    details: dict[str, object] = field(default_factory=dict)
    at_end: ExitStack = field(default_factory=ExitStack)


class JobMetrics(Collector):
    """The job's status as Prometheus metrics."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> list[Metric]:
        status = self._status
        labels, values = ("job_type", "name"), (status.job, status.name)
        version = GaugeMetricFamily("ottla_build_info", "1: the version of Ottla.", labels=("version",))
        version.add_metric((__version__,), 1)
        found: list[Metric] = [version]

        def add(
            kind: type[GaugeMetricFamily] | type[CounterMetricFamily], name: str, help_text: str, value: float
        ) -> None:
            family = kind(name, help_text, labels=labels)
            family.add_metric(values, value)
            found.append(family)

        add(CounterMetricFamily, "ottla_pipeline_batches", "Batches with records.", status.batches)
        add(CounterMetricFamily, "ottla_pipeline_records", "Records read.", status.records)
        late = "Rows that arrived after the watermark and were dropped by Spark's operators."
        add(CounterMetricFamily, "ottla_pipeline_late_rows", late, status.late_rows)
        if (lag := status.lag) is not None:
            add(
                GaugeMetricFamily,
                "ottla_pipeline_lag_records",
                "Records that exist and have not been read.",
                lag,
            )
        if status.last_batch is not None:
            seconds = status.last_batch.duration_ms / 1000
            add(
                GaugeMetricFamily, "ottla_pipeline_last_batch_seconds", "Duration of the last batch.", seconds
            )
        return found


class ProgressListener(StreamingQueryListener):
    """Spark's listener of query progress: updates the status and commits offsets for the consumer group.

    A thread of its own commits, because all listeners of Spark share one thread and a broker may respond
    slowly.
    """

    def __init__(self, status: Status, group: GroupOffsets, echo: Echo) -> None:
        self._status = status
        self._group = group
        self._echo = echo
        self._wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._committed_at = 0.0
        self._thread = threading.Thread(target=self._commit_offsets, name="group-offsets", daemon=True)
        self._thread.start()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self._take(event.progress.json)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self._status.mark_idle(str(event.id))
        if time.monotonic() - self._committed_at > RECOMMIT_S:
            self._wanted.put(True)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass

    def _take(self, progress: str) -> None:
        ended_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._status.add(parse_progress(json.loads(progress), ended_at))
        self._wanted.put(True)

    def _commit_offsets(self) -> None:
        reported: str | None = None
        while self._wanted.get():
            problem = self._group.commit(self._status.reached())
            self._committed_at = time.monotonic()
            if problem is not None and problem != reported:
                self._echo(f"committing the offsets of the consumer group failed: {problem}")
            reported = problem

    def close(self, queries: Sequence[StreamingQuery]) -> None:
        """Reads the last progress from the ended queries and commits pending offsets. Spark delivers the
        last events late, or not at all once the session stops."""
        for query in queries:
            if (last := query.lastProgress) is not None and not self._status.has_batch(
                str(query.id), last.batchId
            ):
                self._take(last.json)
        self._wanted.put(False)
        self._thread.join(timeout=RECOMMIT_S)
        self._group.close()


def await_queries(queries: Sequence[StreamingQuery], stop: threading.Event) -> bool:
    """Waits for all queries to end, or for `stop`, then stops the remaining ones. Returns True if all
    ended by themselves. Raises the StreamingQueryException of a query that failed."""
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

"""Progress of a job: parsed from Spark's reports, committed as offsets of a consumer group, kept as a status.

Called by `running` with every report of every query. Pure, except GroupOffsets. Offsets are those of the next
record, as in Kafka's consumer groups. Only Kafka sources count; a job may have several, for example both
sides of a join.

Invariant: offsets are committed only after the batch that read up to them is done, so a lag monitor never
shows a job ahead of its real position.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from ottla_pipeline.checkpoints import Offsets, parse_offsets

REQUEST_S = 30.0


@dataclass(frozen=True, slots=True)
class Batch:
    """A completed batch. `ended_at` is ISO 8601 in UTC."""

    id: int
    records: int
    duration_ms: int
    ended_at: str

    def to_json(self) -> dict[str, object]:
        return {
            "id": self.id,
            "records": self.records,
            "durationMs": self.duration_ms,
            "endedAt": self.ended_at,
        }


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """Spark's progress report of one batch: the offsets that the query reached, and the end offsets of its
    topics."""

    query: str
    batch: Batch
    reached: Offsets
    latest: Offsets
    late_rows: int = 0
    """Rows that arrived after the watermark and that Spark's stateful operators dropped."""

    @property
    def lag(self) -> int:
        """Records that existed when the batch was planned and that no batch has read."""
        return sum(max(0, end - self.reached.get(where, 0)) for where, end in self.latest.items())


def offsets_of(text: str | None) -> Offsets:
    """The offsets of a Kafka source; empty for the formats of other sources."""
    try:
        return parse_offsets(text or "null")
    except (AttributeError, TypeError, ValueError):
        return {}


def parse_progress(progress: Mapping[str, Any], ended_at: str) -> QueryProgress:
    """Parses the JSON of Spark's `StreamingQueryProgress`."""
    reached: Offsets = {}
    latest: Offsets = {}
    read = 0
    for source in progress["sources"]:
        if not str(source["description"]).startswith("KafkaV2["):
            continue
        start = offsets_of(_text(source.get("startOffset")))
        for where, at in offsets_of(_text(source["endOffset"])).items():
            read += at - start.get(where, 0)
            # For a topic that two sources read, the lower offset counts.
            reached[where] = min(at, reached.get(where, at))
        for where, at in offsets_of(_text(source.get("latestOffset"))).items():
            latest[where] = max(at, latest.get(where, at))
    duration_ms = int(progress["durationMs"].get("triggerExecution", 0))
    # Spark counts a record each time it is read; a batch may read it several times.
    records = min(int(progress["numInputRows"]), read)
    batch = Batch(int(progress["batchId"]), records, duration_ms, ended_at)
    late = sum(int(one["numRowsDroppedByWatermark"]) for one in progress.get("stateOperators", ()))
    return QueryProgress(str(progress["id"]), batch, reached, latest, late)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) or value is None else json.dumps(value)


@dataclass(slots=True)
class Status:
    """The content of `/status`. `lag` is in records, None before the first report; `error` is the reason
    of a failure."""

    job: str
    name: str
    state: str = "Starting"  # Starting, Running, Done, Stopped, Failed
    application_id: str | None = None
    error: str | None = None
    batches: int = 0
    records: int = 0
    late_rows: int = 0
    last_batch: Batch | None = None
    reports: dict[str, QueryProgress] = field(default_factory=dict)
    idle: set[str] = field(default_factory=set)
    queries: int = 0
    details: dict[str, object] = field(default_factory=dict)

    def add(self, report: QueryProgress) -> None:
        self.reports[report.query] = report
        self.late_rows += report.late_rows
        self.idle.discard(report.query)
        if report.batch.records or self.last_batch is None:
            self.last_batch = report.batch
            self.batches += 1
            self.records += report.batch.records

    def has_batch(self, query: str, batch_id: int) -> bool:
        """Whether the status includes this batch of the query, or a later one."""
        return query in self.reports and self.reports[query].batch.id >= batch_id

    def mark_idle(self, query: str) -> None:
        """Records that the query found no new data."""
        self.idle.add(query)

    @property
    def lag(self) -> int | None:
        """The sum of the queries' lags; an idle query has none. None until every query has reported."""
        if len(self.reports.keys() | self.idle) < self.queries or not self.queries:
            return None
        return sum(report.lag for query, report in self.reports.items() if query not in self.idle)

    @property
    def caught_up(self) -> bool:
        return self.lag == 0

    def reached(self) -> Offsets:
        """The next offset of each partition; the lower one where two queries read the same topic."""
        found: Offsets = {}
        for report in self.reports.values():
            for where, at in report.reached.items():
                found[where] = min(at, found.get(where, at))
        return found

    def to_json(self) -> dict[str, object]:
        return {
            "job": self.job,
            "name": self.name,
            "state": self.state,
            "applicationId": self.application_id,
            "lastBatch": self.last_batch.to_json() if self.last_batch else None,
            "batches": self.batches,
            "records": self.records,
            "lateRows": self.late_rows,
            "lag": self.lag,
            "caughtUp": self.caught_up,
            "error": self.error,
            **({"details": dict(self.details)} if self.details else {}),
        }


class GroupOffsets:
    """Commits a job's offsets for its consumer group, which has no members. Thread-safe."""

    def __init__(self, settings: Mapping[str, str], group: str) -> None:
        self._settings = {**settings, "group.id": group, "enable.auto.commit": False}
        self._consumer: Consumer | None = None
        self._lock = threading.Lock()

    def commit(self, offsets: Offsets) -> str | None:
        """Commits the offsets. Returns the error text of a failed commit, else None; the next report
        retries."""
        if not offsets:
            return None
        positions = [TopicPartition(topic, part, at) for (topic, part), at in sorted(offsets.items())]
        with self._lock:
            try:
                if self._consumer is None:
                    self._consumer = Consumer(self._settings)
                self._consumer.commit(offsets=positions, asynchronous=False)
            except KafkaException as error:
                return str(error.args[0].str())
        return None

    def close(self) -> None:
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None

"""One batch of the windows job: writes Spark's results once, and finds and reports the records they do not
count.

Called by `jobs.windows` as `foreachBatch`'s function, on the driver. The order is: the lake's table (which
stores the batch's number), then the topics (one transaction with its number: results and dead letters). If
the driver dies in between, the batch is repeated with the same offsets and the same state, so with the same
results, and each of the two skips what it has.

ResumingQuery restarts the query when new schemas were registered. A streaming plan is made once, with the
schemas known at that time. A batch with records of newer schemas ends the query before anything is
written; the query of the same checkpoint with a new plan repeats the batch.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ottla.client.registry import NotRegistered, RegistryClient
from ottla_pipeline.checkpoints import BatchInputs, Checkpoint, read_ranges
from ottla_pipeline.decoding import Plan, writer_ids
from ottla_pipeline.decoding.plans import SchemaRegistry
from ottla_pipeline.filesystem import FileSystem
from ottla_pipeline.sinks.transactional import OutgoingRecord, TransactionalWriter
from ottla_pipeline.streams.writing import Sink, outgoing
from ottla_pipeline.windowing import late, results
from ottla_pipeline.windowing.config import WindowsConfig
from ottla_pipeline.windowing.late import UncountedRecords

Echo = Callable[[str], None]


class SchemasChanged(Exception):
    """A batch has records of schemas that were registered after the job's start; nothing of it is written.
    `ids` are the schemas' ids, by input: a plan that includes them can run the batch again."""

    def __init__(self, ids: dict[str, set[int]]) -> None:
        super().__init__(f"new schemas: {ids}")
        self.ids = ids


@dataclass(slots=True)
class Counts:
    """Counts since the job's start; late and invalid records by input."""

    results: int = 0
    late: Counter[str] = field(default_factory=Counter)
    invalid: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class ObservedCounts:
    """The counts that Spark observed for one input in one batch."""

    invalid: int
    earliest_us: int | None


class BatchWriter:
    """`write` is foreachBatch's function; `started` must be called with the query that uses it."""

    def __init__(
        self,
        spark: SparkSession,
        config: WindowsConfig,
        plans: Mapping[str, Plan],
        *,
        topics: TransactionalWriter | None,
        lake: Sink | None,
        registry: RegistryClient | None,
        counts: Counts,
        details: dict[str, object],
        echo: Echo,
    ) -> None:
        self._spark = spark
        self._config = config
        self._plans = dict(plans)
        self._topics = topics
        self._lake = lake
        self._registry = registry
        self._registered: results.Registered | None = None
        self._counts = counts
        self._details = details
        self._echo = echo
        self._checkpoint = Checkpoint(FileSystem(spark), config.checkpoint)
        self._query: StreamingQuery | None = None
        self._started = threading.Event()
        self._opened = False
        self.changed: SchemasChanged | None = None

    def started(self, query: StreamingQuery) -> None:
        """Sets the query whose batches these are."""
        self._query = query
        self._started.set()

    def write(self, found: DataFrame, batch_id: int) -> None:
        """Writes one batch. An exception ends the query; the next start repeats the batch."""
        self._open()
        found = found.persist()
        uncounted: dict[str, UncountedRecords] = {}
        try:
            count = found.count()  # runs the batch: from here on its counts are known
            inputs = self._checkpoint.batch_inputs(batch_id)
            self._find_uncounted(inputs, uncounted)
            if self._lake is not None and count:
                self._lake.write(results.table(found), count, batch_id)
            self._write_topics(found, count, batch_id, uncounted, inputs)
            self._report(batch_id, count, uncounted)
        except SchemasChanged as changed:
            self.changed = changed
            raise
        finally:
            for records in uncounted.values():
                records.unpersist()
            found.unpersist()

    def _open(self) -> None:
        if self._opened:
            return
        query = self._checkpoint.running_query_id()
        if self._topics is not None:
            self._topics.open(query)
        if self._lake is not None:
            self._lake.open(query)
        self._opened = True

    def _observed(self, name: str) -> ObservedCounts:
        """The observed counts of an input in the batch that has just run."""
        self._started.wait()
        assert self._query is not None
        metrics = self._query._jsq.streamingQuery().lastExecution().observedMetrics()
        row = metrics.apply(name)
        invalid, earliest = (row.get(row.fieldIndex(column)) for column in ("invalid", "earliest_us"))
        return ObservedCounts(int(invalid or 0), None if earliest is None else int(earliest))

    def _find_uncounted(self, inputs: BatchInputs, uncounted: dict[str, UncountedRecords]) -> None:
        """Finds uncounted records. The batch's records are read again only if there can be any."""
        for number, (name, source) in enumerate(self._config.inputs.items()):
            ranges = inputs.sources[number]
            if not ranges:
                continue
            observed = self._observed(name)
            if not observed.invalid and not late.can_be_late(
                observed.earliest_us, inputs.late_by_us, self._config.window
            ):
                continue
            plan = self._plans[name]
            records = read_ranges(self._spark, self._config.kafka.spark_options(), ranges)
            if observed.invalid:
                self._check_schemas(name, plan, records)
            found = late.uncounted_records(records, plan, source, self._config.window, inputs.late_by_us)
            uncounted[name] = late.counted(found)

    def _check_schemas(self, name: str, plan: Plan, records: DataFrame) -> None:
        """Raises SchemasChanged if records have schemas that the registry has and the plan lacks."""
        if not plan.framed or self._registry is None:
            return
        ids = set().union(*writer_ids(records).values()) - plan.writers.keys() - plan.problems.keys()
        there = {number for number in ids if registered(self._registry, number)}
        if there:
            raise SchemasChanged({name: there})

    def _write_topics(
        self,
        found: DataFrame,
        count: int,
        batch_id: int,
        uncounted: Mapping[str, UncountedRecords],
        inputs: BatchInputs,
    ) -> None:
        if self._topics is None:
            return
        streams: list[Callable[[], Iterator[OutgoingRecord]]] = []
        if self._config.results.topic is not None and count:
            out = results.messages(found, self._config.keys, self._avro(found))
            topic = self._config.results.topic.topic
            streams.append(lambda: outgoing(out, count, topic))
        if (dead := self._config.dead_letters) is not None:
            late_by_us = inputs.late_by_us
            streams += [
                partial(self._dead_letters, records, dead, late_by_us) for records in uncounted.values()
            ]
        self._topics.write(batch_id, lambda: itertools.chain.from_iterable(stream() for stream in streams))

    def _dead_letters(
        self, records: UncountedRecords, topic: str, late_by_us: int
    ) -> Iterator[OutgoingRecord]:
        wanted = {"late": self._config.late, "invalid": self._config.invalid}
        for row in records.select(**{kind: policy == "deadLetter" for kind, policy in wanted.items()}):
            yield results.dead_letter(row, topic, late_by_us)

    def _avro(self, found: DataFrame) -> results.Registered | None:
        """The Avro schema of the results; registered once."""
        to = self._config.results.topic
        if to is None or to.format == "json":
            return None
        if self._registered is None:
            assert self._registry is not None, "the configuration requires a registry for Avro"
            self._registered = results.register(found, to.topic, self._registry)
        return self._registered

    def _report(self, batch_id: int, count: int, uncounted: Mapping[str, UncountedRecords]) -> None:
        self._counts.results += count
        notes = []
        for name, records in uncounted.items():
            self._counts.late[name] += records.late
            self._counts.invalid[name] += records.invalid
            for number, what, policy in (
                (records.late, "late", self._config.late),
                (records.invalid, "no events", self._config.invalid),
            ):
                if number:
                    went = "dropped" if policy == "drop" else f"to {self._config.dead_letters}"
                    notes.append(f"{number:,} of {name} {what} ({went})")
        counts = self._counts
        self._details.update(results=counts.results, late=dict(counts.late), invalid=dict(counts.invalid))
        if count or notes:
            self._echo(f"batch {batch_id}: {', '.join([f'{count:,} results', *notes])}")


def registered(schemas: SchemaRegistry, number: int) -> bool:
    """Whether the registry has a schema with this id."""
    try:
        schemas.schema(number)
    except NotRegistered:
        return False
    return True


StartQuery = Callable[[Mapping[str, set[int]]], tuple[StreamingQuery, BatchWriter]]


class ResumingQuery:
    """A StreamingQuery that is planned again and restarted when new schemas were registered; the caller
    sees one query. `begin` receives the additional schema ids; `end` is called when the query has finally
    ended."""

    def __init__(self, begin: StartQuery, end: Callable[[], None]) -> None:
        self._begin = begin
        self._end = end
        self._also: dict[str, set[int]] = {}
        self._query, self._batches = begin(self._also)

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 (Spark's name)
        try:
            ended = self._query.awaitTermination(timeout)
            if ended is not False:
                self._end()
            return ended
        except StreamingQueryException:
            changed = self._batches.changed
            self._end()
            if changed is None:
                raise
            for name, ids in changed.ids.items():
                assert not ids <= self._also.get(name, set()), "a plan was made with these ids before"
                self._also[name] = self._also.get(name, set()) | ids
            self._query, self._batches = self._begin(self._also)
            return False

    def stop(self) -> None:
        self._query.stop()
        self._end()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, name)

"""Aggregates by window and joins of two streams, as configured, to a topic and to the lake.

    ottla-pipeline windows --config FILE

docs/guides/pipeline/windows.md describes the configuration; the implementation is `ottla_pipeline.windowing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pyspark.sql.streaming.query import StreamingQuery

from ottla.client.registry import RegistryClient
from ottla_pipeline.errors import JobStartError
from ottla_pipeline.running import JobContext
from ottla_pipeline.sinks.tables import DeltaSink, ParquetSink
from ottla_pipeline.sinks.transactional import TransactionalWriter
from ottla_pipeline.streams import writing
from ottla_pipeline.streams.windows import WINDOW_END, WINDOW_START
from ottla_pipeline.streams.writing import Sink
from ottla_pipeline.windowing.batch import BatchWriter, Counts, ResumingQuery
from ottla_pipeline.windowing.config import EVENT_DATE, WindowsConfig
from ottla_pipeline.windowing.plan import plans, streaming

CONFIG = WindowsConfig
SESSION = writing.SESSION


def start(context: JobContext, config: WindowsConfig) -> list[ResumingQuery]:
    """Starts the query, which continues from its checkpoint."""
    spark, counts = context.spark, Counts()
    registry = _registry(config)
    topics = _topics(config)

    def begin(also: Mapping[str, set[int]]) -> tuple[StreamingQuery, BatchWriter]:
        how = plans(spark, config, registry, also)
        batches = BatchWriter(
            spark,
            config,
            how,
            topics=topics,
            lake=_lake(context, config),
            registry=registry,
            counts=counts,
            details=context.details,
            echo=context.echo,
        )
        writer = streaming(spark, config, how).writeStream.queryName(config.name).foreachBatch(batches.write)
        writer = writer.outputMode("append" if config.output_mode == "final" else "update")
        writer = writer.option("checkpointLocation", config.checkpoint)
        query = writer.trigger(**config.trigger.write_options()).start()
        batches.started(query)
        return query, batches

    query = ResumingQuery(begin, topics.close if topics is not None else lambda: None)
    context.metrics.register(WindowsMetrics(config.name, counts, query))
    return [query]


def _registry(config: WindowsConfig) -> RegistryClient | None:
    if config.registry is None:
        return None
    try:
        return config.registry.client()
    except ValueError as error:
        raise JobStartError(f"registry: {error}") from error


def _topics(config: WindowsConfig) -> TransactionalWriter | None:
    marker = config.results.topic.topic if config.results.topic is not None else config.dead_letters
    if marker is None:
        return None
    return TransactionalWriter(
        config.kafka.librdkafka(),
        transactional_id=f"ottla-windows-{config.name}",
        group=f"{config.consumer_group}-results",
        marker=marker,
        topics=[config.dead_letters] if config.dead_letters is not None else [],
    )


def _lake(context: JobContext, config: WindowsConfig) -> Sink | None:
    to = config.results.lake
    if to is None:
        return None
    if to.type == "parquet":
        return ParquetSink(context.spark, to.path, partition_by=[EVENT_DATE])
    keys = [EVENT_DATE, WINDOW_START, WINDOW_END, *config.keys]
    return DeltaSink(
        context.spark,
        to.path,
        partition_by=[EVENT_DATE],
        keys=keys if config.output_mode == "updates" else None,
    )


class WindowsMetrics(Collector):
    """The windows job's own metrics."""

    def __init__(self, name: str, counts: Counts, query: ResumingQuery) -> None:
        self._name = name
        self._counts = counts
        self._query = query

    def collect(self) -> Iterable[Metric]:
        results = CounterMetricFamily("ottla_pipeline_windows_results", "Results written.", labels=["name"])
        results.add_metric([self._name], self._counts.results)
        yield results
        for kind, help_text, found in (
            ("late", "Records that arrived after the end of one of their windows.", self._counts.late),
            ("invalid", "Records that are not events.", self._counts.invalid),
        ):
            family = CounterMetricFamily(
                f"ottla_pipeline_windows_{kind}_records", help_text, labels=["name", "input"]
            )
            for source, number in sorted(found.items()):
                family.add_metric([self._name, source], number)
            yield family
        progress = self._query.lastProgress
        if progress is not None:
            state = sum(operator["numRowsTotal"] for operator in progress["stateOperators"])
            rows = GaugeMetricFamily(
                "ottla_pipeline_windows_state_rows", "Rows in Spark's state store.", labels=["name"]
            )
            rows.add_metric([self._name], state)
            yield rows

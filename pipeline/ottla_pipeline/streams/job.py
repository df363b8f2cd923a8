"""The argument of a user's function: the session, and the library's functions with the job's
configuration. Created by `jobs.python`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ottla_pipeline.config.common import JobConfig, TopicsConfig
from ottla_pipeline.decoding.plans import SchemaRegistry
from ottla_pipeline.streams.reading import AHEAD, Invalid, read_topic
from ottla_pipeline.streams.tables import copy_topic, delta_table, topic_table
from ottla_pipeline.streams.writing import OutputMode, Sink, TopicSink, write

MAIN = "main"


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a user's job. `options` are those of the configuration; `queries` and `sinks` are those
    that the function has started."""

    spark: SparkSession
    config: JobConfig
    options: Mapping[str, Any] = field(default_factory=dict)
    registry: SchemaRegistry | None = None
    queries: list[StreamingQuery] = field(default_factory=list)
    sinks: list[Sink] = field(default_factory=list)

    def read_topic(
        self,
        topic: str | Sequence[str],
        form: str | Mapping[str, Any],
        *,
        time: str | None = None,
        ahead: str = AHEAD,
        invalid: Invalid = "fail",
    ) -> DataFrame:
        """`read_topic` for one or several topics of the job's brokers, from `startingOffsets`, with at
        most `maxOffsetsPerTrigger` records per batch."""
        topics = TopicsConfig(topics=[topic] if isinstance(topic, str) else list(topic))
        return read_topic(
            self.spark,
            self.config.kafka,
            topics,
            form,
            time=time,
            ahead=ahead,
            invalid=invalid,
            registry=self.registry,
            options={"startingOffsets": self.config.starting_offsets, **self._limit()},
        )

    def topic_table(
        self, topic: str, form: str | Mapping[str, Any], *, key: str, invalid: Invalid = "fail"
    ) -> DataFrame:
        """`topic_table` for a topic of the job's brokers."""
        return topic_table(
            self.spark, self.config.kafka, topic, form, key=key, invalid=invalid, registry=self.registry
        )

    def copy_topic(
        self, topic: str, form: str | Mapping[str, Any], *, key: str, path: str, invalid: Invalid = "fail"
    ) -> DataFrame:
        """The Delta table at `path`, maintained by a query of the job: see `copy_topic`. Returns when the
        table has all records that the topic had at the start."""
        query = f"copy-{topic}"
        self._check_name(query)
        copying = copy_topic(
            self.spark,
            self.config.kafka,
            topic,
            form,
            key=key,
            path=path,
            name=self._name(query),
            checkpoint=f"{self.config.checkpoint}/{query}",
            trigger=self.config.trigger,
            invalid=invalid,
            registry=self.registry,
            options=self._limit(),
        )
        self.queries.append(copying)
        return delta_table(self.spark, path)

    def topic_sink(self, topic: str, *, key: Sequence[str] = ()) -> TopicSink:
        """A `TopicSink` to a topic of the job's brokers, named by the job and the topic."""
        name = f"ottla-{self.config.JOB}-{self.config.name}-{topic}"
        return TopicSink(self.config.kafka, topic, name=name, key=key)

    def close(self) -> None:
        """Closes the sinks of its queries, which have ended."""
        for sink in self.sinks:
            sink.close()

    def write(
        self, rows: DataFrame, *to: Sink, query: str = MAIN, output_mode: OutputMode = "append"
    ) -> StreamingQuery:
        """Starts a query: `write` with the job's trigger, and a checkpoint of this name in the job's
        folder. Raises ValueError for a second query of the same name."""
        self._check_name(query)
        started = write(
            rows,
            to,
            name=self._name(query),
            checkpoint=f"{self.config.checkpoint}/{query}",
            trigger=self.config.trigger,
            output_mode=output_mode,
        )
        self.queries.append(started)
        self.sinks.extend(to)
        return started

    def _name(self, query: str) -> str:
        return f"{self.config.name}-{query}"

    def _check_name(self, query: str) -> None:
        if any(one.name == self._name(query) for one in self.queries):
            raise ValueError(f"the job already has a query {query!r}: give this one another name (query=…)")

    def _limit(self) -> dict[str, str]:
        limit = self.config.max_offsets_per_trigger
        return {} if limit is None else {"maxOffsetsPerTrigger": str(limit)}

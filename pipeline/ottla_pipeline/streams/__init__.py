"""A library of stream processing on PySpark: from topics through windows and joins to sinks, each batch once.

Used by users' jobs (`jobs.python` runs them with a `Job`) and by `windowing`, which offers the same by
configuration. `reading` decodes topics to rows, `windows` and `joins` are Spark's operators, `tables` are
join partners of streams (and the Delta copy of a large topic), `writing` starts queries, and `job` provides
these functions with a job's configuration. See docs/guides/pipeline/streams.md.
"""

from ottla_pipeline.config.common import KafkaConfig, TopicsConfig, Trigger
from ottla_pipeline.sinks.tables import DeltaSink, ParquetSink
from ottla_pipeline.streams.job import Job
from ottla_pipeline.streams.joins import join_streams, join_table
from ottla_pipeline.streams.reading import read_topic
from ottla_pipeline.streams.tables import copy_topic, delta_table, iceberg_table, jdbc_table, topic_table
from ottla_pipeline.streams.windows import deduplicate, session, sliding, tumbling
from ottla_pipeline.streams.writing import TopicSink, write

__all__ = [
    "DeltaSink",
    "Job",
    "KafkaConfig",
    "ParquetSink",
    "TopicSink",
    "TopicsConfig",
    "Trigger",
    "copy_topic",
    "deduplicate",
    "delta_table",
    "iceberg_table",
    "jdbc_table",
    "join_streams",
    "join_table",
    "read_topic",
    "session",
    "sliding",
    "topic_table",
    "tumbling",
    "write",
]

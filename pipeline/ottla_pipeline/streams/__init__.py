"""Stream utilities on PySpark: functions over DataFrames, from topics to windows, joins and sinks, each batch
once.

Called by users' jobs (`jobs.python` runs them, and gives them a `Job`) and by `windowing`, which has the same
as declared in YAML. `reading` makes rows of topics, `windows` and `joins` are Spark's operators, `tables` are
what streams are joined with, `copying` keeps a large one, `writing` starts queries, `job` has what a job's
configuration says filled in. See docs/pipeline-streams.md.
"""

from ottla_pipeline.config.common import KafkaConfig, TopicsConfig, Trigger
from ottla_pipeline.sinks.tables import DeltaSink, ParquetSink
from ottla_pipeline.streams.copying import copy_topic
from ottla_pipeline.streams.job import Job
from ottla_pipeline.streams.joins import join_streams, join_table
from ottla_pipeline.streams.reading import read_topic
from ottla_pipeline.streams.tables import delta_table, iceberg_table, jdbc_table, topic_table
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

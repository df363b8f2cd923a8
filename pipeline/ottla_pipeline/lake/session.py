"""The settings of Spark sessions that use a lake, and the lake of a configuration. Called by the jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from ottla_pipeline.decoding.avro_schemas import SchemaUnusable
from ottla_pipeline.decoding.avro_values import EXECUTOR_OPTIONS
from ottla_pipeline.decoding.formats import JsonFormat
from ottla_pipeline.decoding.plans import ddl
from ottla_pipeline.errors import JobStartError
from ottla_pipeline.lake import rows
from ottla_pipeline.lake.config import DeltaSink, LakeConfig
from ottla_pipeline.lake.delta_sink import DeltaLake
from ottla_pipeline.lake.parquet_sink import ParquetLake
from ottla_pipeline.lake.sink import Lake
from ottla_pipeline.spark import DELTA_SETTINGS

SESSION: Final[Mapping[str, str]] = {
    **DELTA_SETTINGS,
    # It puts an empty relation in the place of a plan that gave no rows, and what was observed in that is
    # lost: a batch without one event would be waited for to the end of days.
    "spark.sql.adaptive.optimizer.excludedRules": (
        "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
    ),
    # Staged files need neither a second commit by rename nor a marker.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.executor.extraJavaOptions": EXECUTOR_OPTIONS,
}


def open_lake(spark: SparkSession, config: LakeConfig) -> Lake:
    """The configured lake, after a check of its columns as far as they are known. Raises JobStartError."""
    if isinstance(config.format, JsonFormat):
        try:
            rows.check(ddl(config.format.fields), config.event)
        except SchemaUnusable as error:
            raise JobStartError(f"format.fields: {error}") from error
    registry = config.registry_client()
    if isinstance(config.sink, DeltaSink):
        return DeltaLake(spark, config, registry)
    return ParquetLake(spark, config, registry)

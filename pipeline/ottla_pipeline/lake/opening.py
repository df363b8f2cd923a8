"""From a configuration to the lake that it describes. Called by the jobs."""

from __future__ import annotations

from pyspark.sql import SparkSession

from ottla_pipeline.decoding.avro_schemas import SchemaUnusable
from ottla_pipeline.decoding.formats import JsonFormat
from ottla_pipeline.decoding.plans import ddl
from ottla_pipeline.errors import CannotBegin
from ottla_pipeline.lake import rows
from ottla_pipeline.lake.config import DeltaSink, LakeConfig
from ottla_pipeline.lake.delta_sink import DeltaLake
from ottla_pipeline.lake.parquet_sink import ParquetLake
from ottla_pipeline.lake.sink import Lake


def open_lake(spark: SparkSession, config: LakeConfig) -> Lake:
    """The lake, with its columns checked as far as they are known now. Raises CannotBegin."""
    if isinstance(config.format, JsonFormat):
        try:
            rows.check(ddl(config.format.fields), config.event)
        except SchemaUnusable as error:
            raise CannotBegin(f"format.fields: {error}") from error
    registry = config.registry_client()
    if isinstance(config.sink, DeltaSink):
        return DeltaLake(spark, config, registry)
    return ParquetLake(spark, config, registry)

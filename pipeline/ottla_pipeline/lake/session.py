"""What a Spark session needs in order to read and write lakes. Used by every job that does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla_pipeline.decoding.avro_values import EXECUTOR_OPTIONS

SESSION: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
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

"""The streaming plan of a configuration: its inputs, decoded, and the windows or the join over them.

Called by `jobs.windows`. Nothing runs here but look-ups of schemas; Spark's analysis says what does not fit,
before the first record is read.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ottla.client.registry import RegistryError
from ottla_pipeline.decoding import Plan, plan
from ottla_pipeline.decoding.avro_schemas import SchemaUnusable
from ottla_pipeline.decoding.plans import Schemas, registered_ids
from ottla_pipeline.errors import CannotBegin, short
from ottla_pipeline.windowing import source as src
from ottla_pipeline.windowing.aggregate import aggregated
from ottla_pipeline.windowing.config import LEFT, RIGHT, WindowsConfig
from ottla_pipeline.windowing.join import joined


def plans(
    spark: SparkSession, config: WindowsConfig, schemas: Schemas | None, also: Mapping[str, set[int]]
) -> dict[str, Plan]:
    """How to decode each input. Of registered schemas all that the subject has now are known, and those of
    the ids in `also`. CannotBegin says which input's cannot be used."""
    found = {}
    for name, source in config.inputs.items():
        subject, ids = source.subject, set(also.get(name, ()))
        try:
            if subject is not None:
                assert schemas is not None, "the configuration has a registry where a subject is named"
                ids |= set(registered_ids(schemas, subject))
            topic = source.topics[0] if source.topics else ""
            found[name] = plan(spark, source.format, topic=topic, registry=schemas, ids=ids)
        except (SchemaUnusable, RegistryError) as error:
            raise CannotBegin(f"{name}.format: {error}") from error
    return found


def streaming(spark: SparkSession, config: WindowsConfig, how: Mapping[str, Plan]) -> DataFrame:
    """The results as a stream. CannotBegin for what Spark does not take, with the input or the part at
    fault."""
    rows = {}
    for name, source in config.inputs.items():
        records = spark.readStream.format("kafka").options(**config.source_options(source)).load()
        records = records.select("value", *src.ORIGIN)
        where = name if config.join is None else f"join.{name}"
        src.check(records, how[name], source, where)
        found = src.observed(src.rows(records, how[name], source), source, name)
        rows[name] = src.kept(found)
    try:
        if config.join is not None:
            return joined(rows[LEFT], rows[RIGHT], config.join)
        assert config.input is not None
        assert config.window is not None
        return aggregated(
            rows["input"],
            time=config.input.time,
            watermark=config.input.watermark,
            window=config.window,
            keys=config.keys,
            aggregates=config.aggregates,
        )
    except PySparkException as error:
        part = "join" if config.join is not None else "keys and aggregates"
        raise CannotBegin(f"{part}: {short(error)}") from error

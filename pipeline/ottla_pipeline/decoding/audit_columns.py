"""The headers of audited producers as columns: the producer, time and number of a record.

Called by the audit job for topics, and by the lake job, whose tables have the same columns, so that the
audit counts both alike. All three are null for records of producers that are not audited.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as sf

from ottla_pipeline.auditing.events import AT_MS_MAX, PRODUCED_HEADER, PRODUCER_HEADER

PRODUCER = "kafka_producer"  # STRING
PRODUCED_AT = "kafka_produced_at"  # TIMESTAMP
PRODUCED_NUMBER = "kafka_produced_number"  # BIGINT


def header(headers: Column, name: str) -> Column:
    """The first value of a header as text; null if the record lacks the header."""
    return sf.get(sf.filter(headers, lambda one: one["key"] == name), sf.lit(0))["value"].cast("string")


def produced_columns(headers: Column) -> dict[str, Column]:
    """The three columns, by name, from Spark's `headers` column (Kafka source with includeHeaders)."""
    stamp = header(headers, PRODUCED_HEADER)
    at_ms = sf.split_part(stamp, sf.lit("/"), sf.lit(1)).try_cast("bigint")
    number = sf.split_part(stamp, sf.lit("/"), sf.lit(2)).try_cast("bigint")
    producer = header(headers, PRODUCER_HEADER)
    # All of it or nothing: half a name would count as a record of its own, and a time beyond AT_MS_MAX would
    # end the batch with an overflow.
    whole = (sf.length(producer) > 0) & at_ms.between(0, AT_MS_MAX) & (number >= 0)
    return {
        PRODUCER: sf.when(whole, producer),
        PRODUCED_AT: sf.when(whole, sf.timestamp_millis(at_ms)),
        PRODUCED_NUMBER: sf.when(whole, number),
    }

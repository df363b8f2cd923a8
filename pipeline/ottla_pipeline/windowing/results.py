"""The output of a batch: results as records and as rows of a table, uncounted records as dead letters.

Called by `batch`. Spark columns; only `dead_letter` handles single records.

The key of a result's record is a JSON object of the window and the keys (for a join: of the join keys), so
the last record of a key is the final result, in a compacted topic too. The value is an object of all
columns. Times are ISO 8601 in UTC; fields without a value are null.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sf
from pyspark.sql.avro.functions import to_avro

from ottla.client.registry import RegistryClient, RegistryError, Schema
from ottla_pipeline.errors import JobStartError
from ottla_pipeline.sinks.transactional import OutgoingRecord
from ottla_pipeline.streams.reading import REASON, RECORD
from ottla_pipeline.streams.windows import WINDOW_END, WINDOW_START
from ottla_pipeline.streams.writing import json_bytes
from ottla_pipeline.windowing.config import EVENT_DATE
from ottla_pipeline.windowing.late import MISSED
from ottla_pipeline.windowing.plan import KEY

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def table(results: DataFrame) -> DataFrame:
    """The results as rows of a table."""
    return results.drop(KEY)


@dataclass(frozen=True, slots=True)
class Registered:
    """An Avro schema, and its id in the registry."""

    text: str
    id: int


def register(results: DataFrame, topic: str, registry: RegistryClient) -> Registered:
    """Registers the schema of these results' values under the subject `TOPIC-value`. Raises JobStartError
    if the registry refuses it."""
    fields = _result_columns(results)
    jvm: Any = results.sparkSession.sparkContext._jvm
    converters = jvm.org.apache.spark.sql.avro.SchemaConverters
    text = str(converters.toAvroType(fields._jdf.schema(), False, "Result", "ottla").toString())
    try:
        return Registered(text, registry.register(f"{topic}-value", Schema(text)))
    except RegistryError as error:
        raise JobStartError(f"results.topic: {error}") from error


def _result_columns(results: DataFrame) -> DataFrame:
    return results.drop(KEY, EVENT_DATE)


def messages(results: DataFrame, keys: Sequence[str], avro: Registered | None = None) -> DataFrame:
    """The results as records: `key` and `value` as bytes; the value is Avro if a schema is given, else
    JSON."""
    key = sf.col(KEY) if KEY in results.columns else sf.struct(WINDOW_START, WINDOW_END, *keys)
    columns = sf.struct(*_result_columns(results).columns)
    if avro is None:
        value = json_bytes(columns)
    else:
        framing = bytes([0]) + avro.id.to_bytes(4, "big")
        value = sf.concat(sf.lit(framing), to_avro(columns, avro.text))
    return results.select(json_bytes(key).alias("key"), value.alias("value"))


def instant(micros: int) -> str:
    """ISO 8601 with milliseconds, as Kafka's timestamps, or microseconds where needed."""
    precision = "milliseconds" if micros % 1000 == 0 else "microseconds"
    return (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec=precision).replace("+00:00", "Z")


def dead_letter(row: Row, topic: str, late_by_us: int) -> OutgoingRecord:
    """An uncounted record, unchanged, with headers that have the reason and its origin."""
    record = row[RECORD]
    origin: dict[str, Any] = {
        "topic": record["topic"],
        "partition": record["partition"],
        "offset": record["offset"],
    }
    reason = row[REASON]
    headers = [(header["key"], header["value"]) for header in record["headers"] or ()]
    headers.append(("ottla-reason", ("late" if reason is None else reason).encode()))
    headers.append(("ottla-origin", json.dumps(origin, separators=(",", ":")).encode()))
    if reason is None:
        missed = [[instant(one["start"]), instant(one["end"])] for one in row[MISSED]]
        headers.append(("ottla-watermark", instant(late_by_us).encode()))
        headers.append(("ottla-missed", json.dumps(missed, separators=(",", ":")).encode()))
    value, key = record["value"], record["key"]
    return OutgoingRecord(
        topic, bytes(key) if key is not None else None, bytes(value) if value is not None else None, headers
    )

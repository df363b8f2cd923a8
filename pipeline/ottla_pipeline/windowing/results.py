"""What goes out of a batch: results as records and as rows of a table, and what was not counted as dead
letters.

Called by `batch`. Shapes are columns of Spark; only `dead_letter` touches single records.

A result's record: its key is a JSON object of the window and the keys (of a join: of what the pair is joined
on), so the last record of a key is the last word about it, in a compacted topic too; its value an object of
all columns. Times are ISO 8601 in UTC; fields without a value are there, as null.
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
from ottla_pipeline.sinks.transactional import Outgoing
from ottla_pipeline.streams.reading import REASON, RECORD
from ottla_pipeline.streams.windows import WINDOW_END, WINDOW_START
from ottla_pipeline.streams.writing import json_bytes
from ottla_pipeline.windowing.config import EVENT_DATE
from ottla_pipeline.windowing.late import MISSED
from ottla_pipeline.windowing.plan import KEY

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def table(results: DataFrame) -> DataFrame:
    """As rows of a table."""
    return results.drop(KEY)


@dataclass(frozen=True, slots=True)
class Registered:
    """An Avro schema, and its id in the registry."""

    text: str
    id: int


def register(results: DataFrame, topic: str, registry: RegistryClient) -> Registered:
    """The schema of these results' values, under subject `TOPIC-value`. JobStartError when it is refused
    there."""
    fields = _told(results)
    jvm: Any = results.sparkSession.sparkContext._jvm
    converters = jvm.org.apache.spark.sql.avro.SchemaConverters
    text = str(converters.toAvroType(fields._jdf.schema(), False, "Result", "ottla").toString())
    try:
        return Registered(text, registry.register(f"{topic}-value", Schema(text)))
    except RegistryError as error:
        raise JobStartError(f"results.topic: {error}") from error


def _told(results: DataFrame) -> DataFrame:
    return results.drop(KEY, EVENT_DATE)


def messages(results: DataFrame, keys: Sequence[str], avro: Registered | None = None) -> DataFrame:
    """As records: `key` and `value` as bytes; the value in Avro if a schema is given, else in JSON."""
    key = sf.col(KEY) if KEY in results.columns else sf.struct(WINDOW_START, WINDOW_END, *keys)
    told = sf.struct(*_told(results).columns)
    if avro is None:
        value = json_bytes(told)
    else:
        framing = bytes([0]) + avro.id.to_bytes(4, "big")
        value = sf.concat(sf.lit(framing), to_avro(told, avro.text))
    return results.select(json_bytes(key).alias("key"), value.alias("value"))


def instant(micros: int) -> str:
    """ISO 8601, in milliseconds as Kafka's times are, or finer where there is more to say."""
    precision = "milliseconds" if micros % 1000 == 0 else "microseconds"
    return (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec=precision).replace("+00:00", "Z")


def dead_letter(row: Row, topic: str, late_by_us: int) -> Outgoing:
    """A record that was not counted, as it was, with headers that say why and where it came from."""
    record = row[RECORD]
    told: dict[str, Any] = {
        "topic": record["topic"],
        "partition": record["partition"],
        "offset": record["offset"],
    }
    reason = row[REASON]
    headers = [(header["key"], header["value"]) for header in record["headers"] or ()]
    headers.append(("ottla-reason", ("late" if reason is None else reason).encode()))
    headers.append(("ottla-origin", json.dumps(told, separators=(",", ":")).encode()))
    if reason is None:
        missed = [[instant(one["start"]), instant(one["end"])] for one in row[MISSED]]
        headers.append(("ottla-watermark", instant(late_by_us).encode()))
        headers.append(("ottla-missed", json.dumps(missed, separators=(",", ":")).encode()))
    value, key = record["value"], record["key"]
    return Outgoing(
        topic, bytes(key) if key is not None else None, bytes(value) if value is not None else None, headers
    )

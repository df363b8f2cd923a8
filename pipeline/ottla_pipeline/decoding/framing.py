"""The registry's framing: a zero byte, the writer schema's id in four bytes (big-endian), the encoded value.

Called by `plans` for the columns, and by jobs for the schema ids of a batch.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

MAGIC = 0
HEADER_BYTES = 5

NO_VALUE = "no value"
UNKNOWN_SCHEMA = "unknown schema id"
NOT_FRAMED = "no schema id: not in the registry's framing"


def framed(value: Column) -> Column:
    """Whether a value may have the framing: at least five bytes, the first one zero."""
    return (sf.length(value) >= HEADER_BYTES) & (sf.hex(sf.substring(value, 1, 1)) == "00")


def schema_id(value: Column) -> Column:
    """The writer schema's id (a long); null if the value has no framing."""
    return sf.when(framed(value), sf.conv(sf.hex(sf.substring(value, 2, 4)), 16, 10).cast("long"))


def body(value: Column) -> Column:
    """The bytes after the id."""
    return sf.substring(value, HEADER_BYTES + 1, 2**31 - 1)


def writer_ids(records: DataFrame) -> dict[str, set[int]]:
    """By topic, the schema ids of these records (an empty set for a topic without framed values).

    This reads the records once: persist them if they are read again.
    """
    found = records.select("topic", schema_id(sf.col("value")).alias("id")).distinct().collect()
    ids: dict[str, set[int]] = {}
    for row in found:
        ids.setdefault(row["topic"], set()).update(() if row["id"] is None else (row["id"],))
    return ids

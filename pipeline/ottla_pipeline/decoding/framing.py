"""The registry's framing: a zero byte, the writer schema's id in four (big-endian), then the encoded value.

Called by `plans` for the columns, and by jobs for the ids that a batch holds.
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
    """Whether a value can be in the framing: long enough, and its first byte zero."""
    return (sf.length(value) >= HEADER_BYTES) & (sf.hex(sf.substring(value, 1, 1)) == "00")


def schema_id(value: Column) -> Column:
    """The writer schema's id (a long); null if the value is not framed."""
    return sf.when(framed(value), sf.conv(sf.hex(sf.substring(value, 2, 4)), 16, 10).cast("long"))


def body(value: Column) -> Column:
    """What follows the id."""
    return sf.substring(value, HEADER_BYTES + 1, 2**31 - 1)


def writer_ids(records: DataFrame) -> dict[str, set[int]]:
    """By topic, the schema ids that these records were written with (none for a topic without framed ones).

    This reads the records once: whoever reads them again afterwards has them persisted.
    """
    found = records.select("topic", schema_id(sf.col("value")).alias("id")).distinct().collect()
    ids: dict[str, set[int]] = {}
    for row in found:
        ids.setdefault(row["topic"], set()).update(() if row["id"] is None else (row["id"],))
    return ids

"""Pairs of records of two streams that belong together, as a streaming plan of Spark's own join.

Called by `plan`. Pure: column expressions over the rows of `source`. The range of time on both ends is what
lets Spark forget: a record is kept until the watermark says that no partner can come any more.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from ottla_pipeline.windowing.config import EVENT_DATE, LEFT, RIGHT, InputConfig, JoinConfig

KEY = "_key"


def joined(left: DataFrame, right: DataFrame, join: JoinConfig) -> DataFrame:
    """A row for each pair (and each that stayed alone, in outer joins): the selected columns, `_key` (a
    struct of what the pair is joined on), event_date."""
    sides = _side(left, join.left, join, LEFT), _side(right, join.right, join, RIGHT)
    count = len(join.keys)
    conditions = [f"l.on_{number} = r.on_{number}" for number in range(count)]
    conditions += [
        f"r.time >= l.time + INTERVAL '{join.within.from_}'",
        f"r.time <= l.time + INTERVAL '{join.within.to}'",
    ]
    pairs = sides[0].alias("l").join(sides[1].alias("r"), sf.expr(" AND ".join(conditions)), join.kind)
    keys = [
        sf.coalesce(sf.col(f"l.on_{n}"), sf.col(f"r.on_{n}")).alias(name)
        for n, name in enumerate(names(join))
    ]
    selected = [sf.expr(text).alias(name) for name, text in join.select.items()] or [
        sf.col(LEFT),
        sf.col(RIGHT),
    ]
    date = sf.to_date(sf.coalesce(sf.col("l.time"), sf.col("r.time")))
    return pairs.select(*selected, sf.struct(*keys).alias(KEY), date.alias(EVENT_DATE))


def names(join: JoinConfig) -> list[str]:
    """What the parts of a pair's key are called: a field's name, where the left expression is one."""
    found: list[str] = []
    for number, key in enumerate(join.keys):
        plain = key.left.isidentifier() and key.left not in found
        found.append(key.left if plain else f"key_{number}")
    return found


def _side(rows: DataFrame, source: InputConfig, join: JoinConfig, side: str) -> DataFrame:
    """One side's rows: all its columns as a struct, what it is joined on, its time with the watermark."""
    equal = [sf.expr(getattr(key, side)).alias(f"on_{number}") for number, key in enumerate(join.keys)]
    return rows.select(
        sf.struct(*rows.columns).alias(side), *equal, sf.col(source.time).alias("time")
    ).withWatermark("time", source.watermark)

"""Rows of a stream with those of another, or of a table, that belong to them.

Called by users' jobs and by `windowing.plan`. Pure: column expressions. Null is equal to nothing, as in SQL:
a row whose key is null finds no partner, and only an outer join keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from ottla_pipeline.streams.reading import RECORD
from ottla_pipeline.streams.windows import watermarked

StreamJoin = Literal["inner", "leftOuter", "rightOuter", "fullOuter"]
TableJoin = Literal["inner", "leftOuter"]


def join_streams(
    left: DataFrame,
    right: DataFrame,
    *,
    on: Sequence[str],
    time: tuple[str, str],
    within: tuple[str, str],
    lateness: tuple[str | None, str | None] = (None, None),
    how: StreamJoin = "inner",
) -> DataFrame:
    """Pairs of rows that have the same `on`, and times that are near each other.

    `time` names the column of each side, and `within` ("0 seconds", "1 hour") is how far the right row's time
    may be from the left's, both ends included. It is what lets Spark forget: a row is kept until the
    watermark says that no partner can come, and in outer joins comes out alone then. Columns: `on`, then the
    left's others, then the right's. ValueError where both sides have another column of one name.
    """
    left, right = _without_record(left), _without_record(right)
    _own_names(left, right, on)
    left_time, right_time = time
    conditions = [
        *(sf.col(f"l.`{name}`") == sf.col(f"r.`{name}`") for name in on),
        # Spark's full outer join of streams would pair null with null.
        *(sf.col(f"l.`{name}`").isNotNull() for name in on),
        sf.expr(f"r.`{right_time}` >= l.`{left_time}` + INTERVAL '{within[0]}'"),
        sf.expr(f"r.`{right_time}` <= l.`{left_time}` + INTERVAL '{within[1]}'"),
    ]
    lefts = watermarked(left, left_time, lateness[0]).alias("l")
    rights = watermarked(right, right_time, lateness[1]).alias("r")
    pairs = lefts.join(rights, reduce(Column.__and__, conditions), how)
    keys = [sf.coalesce(sf.col(f"l.`{name}`"), sf.col(f"r.`{name}`")).alias(name) for name in on]
    others = [
        sf.col(f"{side}.`{name}`")
        for side, rows in (("l", left), ("r", right))
        for name in rows.columns
        if name not in on
    ]
    return pairs.select(*keys, *others)


def join_table(
    rows: DataFrame, table: DataFrame, *, on: Sequence[str], how: TableJoin = "inner"
) -> DataFrame:
    """Each row of a stream with the table's rows that have the same `on`, as the table is when the batch
    runs.

    `table` is one of `streams.tables`, or any DataFrame that is no stream, of columns that the stream has not
    (but for `on`). With "leftOuter" a row without a partner is kept, the table's columns null. ValueError
    where both have another column of one name.
    """
    table = _without_record(table)
    _own_names(rows, table, on)
    return rows.join(table, list(on), how)


def _without_record(rows: DataFrame) -> DataFrame:
    return rows.drop(RECORD)


def _own_names(left: DataFrame, right: DataFrame, on: Sequence[str]) -> None:
    for name in on:
        for side, rows in (("left", left), ("right", right)):
            if name not in rows.columns:
                raise ValueError(
                    f"on: {name!r} is no column of the {side} side; it has {', '.join(rows.columns)}"
                )
    taken = {name.lower() for name in left.columns} - {name.lower() for name in on}
    twice = [name for name in right.columns if name.lower() in taken]
    if twice:
        raise ValueError(
            f"both sides of the join have a column {twice[0]!r}: rename one (withColumnRenamed), "
            "or leave it out (drop)"
        )

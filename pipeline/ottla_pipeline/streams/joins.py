"""Joins of a stream with another stream or with a table.

Called by users' jobs and by `windowing.plan`. Pure: column expressions. As in SQL, null equals nothing: a
row with a null key has no match, and only an outer join returns it.
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
    """Pairs of rows with equal `on` and times that are close to each other.

    `time` names the time column of each side, and `within` ("0 seconds", "1 hour") is the permitted
    distance of the right row's time from the left's, inclusive. It bounds Spark's state: a row is kept
    until the watermark shows that no match can follow; outer joins return it alone then. Columns: `on`,
    then the left's others, then the right's. Raises ValueError if both sides have another column of the
    same name.
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
    """Each row of a stream with the table's rows of equal `on`, in the table's state when the batch runs.

    `table` is one of `streams.tables`, or any static DataFrame whose columns differ from the stream's
    (except `on`). With "leftOuter" a row without a match is returned with nulls for the table's columns.
    Raises ValueError if both have another column of the same name.
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
                    f"on: {name!r} is not a column of the {side} side, which has {', '.join(rows.columns)}"
                )
    taken = {name.lower() for name in left.columns} - {name.lower() for name in on}
    twice = [name for name in right.columns if name.lower() in taken]
    if twice:
        raise ValueError(
            f"both sides of the join have a column {twice[0]!r}: rename one (withColumnRenamed), "
            "or leave it out (drop)"
        )

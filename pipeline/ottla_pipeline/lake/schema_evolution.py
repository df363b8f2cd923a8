"""Schema evolution: how an event's fields fit an existing table; which are new, and which conflict.

Called by `rows` for each batch. Pure: types in, types and column expressions out.

A table's column keeps its type. A field that the table lacks is added. A value of another type is accepted
if the column can hold it without loss (an INT in a BIGINT, and a BIGINT in an INT if it is small enough);
otherwise its record becomes a dead letter, and the table stays as readers know it. Names are compared
without regard to case, as in Spark and most readers.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, DataType, MapType, NumericType, StructField, StructType


@dataclass(frozen=True, slots=True)
class Fitted:
    """A value in its column's type, and the conflict of a field that does not fit (null if all fit)."""

    value: Column
    conflict: Column | None


def merge_types(table: DataType, event: DataType) -> DataType:
    """The table's type, extended by the fields that only the event has."""
    if isinstance(table, StructType) and isinstance(event, StructType):
        return merge_structs(table, event)
    if isinstance(table, ArrayType) and isinstance(event, ArrayType):
        return ArrayType(merge_types(table.elementType, event.elementType))
    if isinstance(table, MapType) and isinstance(event, MapType):
        return MapType(table.keyType, merge_types(table.valueType, event.valueType))
    return table


def merge_structs(table: StructType, event: StructType) -> StructType:
    known = {field.name.lower(): field for field in event.fields}
    fields = []
    for field in table.fields:
        other = known.pop(field.name.lower(), None)
        kind = field.dataType if other is None else merge_types(field.dataType, other.dataType)
        fields.append(StructField(field.name, kind))
    fields += [StructField(field.name, nullable(field.dataType)) for field in known.values()]
    return StructType(fields)


def nullable(kind: DataType) -> DataType:
    """The type with every field nullable: a record may lack any of them."""
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, nullable(field.dataType)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, nullable(kind.valueType))
    return kind


def fit(value: Column, event: DataType, table: DataType, path: str = "") -> Fitted:
    """Converts a value of type `event` to type `table`, a result of `merge_types`."""
    if nullable(event) == nullable(table):
        return Fitted(value, None)
    if isinstance(event, StructType) and isinstance(table, StructType):
        return _fit_struct(value, event, table, path)
    if isinstance(event, ArrayType) and isinstance(table, ArrayType):
        inner = _ElementFit(event.elementType, table.elementType, f"{path}[]")
        conflict = sf.filter(sf.transform(value, inner.conflict), lambda each: each.isNotNull())
        return Fitted(sf.transform(value, inner.value), sf.try_element_at(conflict, sf.lit(1)))
    if isinstance(event, MapType) and isinstance(table, MapType) and event.keyType == table.keyType:
        inner = _ElementFit(event.valueType, table.valueType, f"{path}[]")
        conflicts = sf.transform(sf.map_values(value), inner.conflict)
        conflict = sf.filter(conflicts, lambda each: each.isNotNull())
        fitted = sf.transform_values(value, lambda _, each: inner.value(each))
        return Fitted(fitted, sf.try_element_at(conflict, sf.lit(1)))
    conflict_text = sf.lit(
        f"type conflict: {path} is {event.simpleString()}, the table has {table.simpleString()}"
    )
    if isinstance(event, NumericType) and isinstance(table, NumericType):
        cast = value.try_cast(table)
        fits = cast.try_cast(event).eqNullSafe(value)
        return Fitted(cast, sf.when(value.isNotNull() & ~fits, conflict_text))
    return Fitted(sf.lit(None).cast(table), sf.when(value.isNotNull(), conflict_text))


class _ElementFit:
    """Conversion of each element, as functions for Spark's higher-order functions."""

    def __init__(self, event: DataType, table: DataType, path: str) -> None:
        self._types = (event, table, path)

    def value(self, each: Column) -> Column:
        return fit(each, *self._types).value

    def conflict(self, each: Column) -> Column:
        found = fit(each, *self._types).conflict
        return sf.lit(None).cast("string") if found is None else found


def _fit_struct(value: Column, event: StructType, table: StructType, path: str) -> Fitted:
    known = {field.name.lower(): field for field in event.fields}
    made, conflicts = [], []
    for field in table.fields:
        own = known.get(field.name.lower())
        if own is None:
            made.append(sf.lit(None).cast(field.dataType).alias(field.name))
            continue
        where = f"{path}.{own.name}" if path else own.name
        fitted = fit(value[own.name], own.dataType, field.dataType, where)
        made.append(fitted.value.alias(field.name))
        if fitted.conflict is not None:
            conflicts.append(fitted.conflict)
    struct = sf.when(value.isNotNull(), sf.struct(*made))
    conflict = sf.coalesce(*conflicts) if conflicts else None
    return Fitted(struct, conflict)

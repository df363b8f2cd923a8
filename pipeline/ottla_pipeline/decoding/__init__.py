"""Decodes Kafka records to typed events: one function for every format, and a reason for each failure.

Called by the jobs that decode records (lake, windows, user jobs). There are three steps; only the second
needs a registry, and none needs a cluster:

1. `formats.Format` is the configured format.
2. `plans.plan` fetches schemas from the registry (the reader schema, and the writers' schemas by id) and
   returns a `Plan`: plain data.
3. `decode` is pure: column expressions that add `event` (a struct) and `reason` (null for an event) to the
   records. It runs no Spark action, and no record passes through Python except for `jsonSchema`, whose
   validation is in Python.

Invariants: exactly one of `event` and `reason` is null; a record never fails its batch.
"""

from ottla_pipeline.decoding.formats import AvroFormat, Format, JsonFormat, JsonSchemaFormat, writer_ids
from ottla_pipeline.decoding.plans import Plan, decode, plan

__all__ = [
    "AvroFormat",
    "Format",
    "JsonFormat",
    "JsonSchemaFormat",
    "Plan",
    "decode",
    "plan",
    "writer_ids",
]

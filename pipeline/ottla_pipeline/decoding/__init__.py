"""Kafka's records to typed events: one function for every format, and a reason for each failure.

Called by the jobs that look into records (lake, windows). Three steps, of which only the second needs a
registry, and none a cluster:

1. `formats.Format` is what a job's configuration declares.
2. `plans.plan` asks the registry what it needs (reader schema, the writers' schemas by id) and returns a
   `Plan`: plain data.
3. `decode` is pure: column expressions that add `event` (a struct) and `reason` (null for an event) to the
   records; no action is run, and no record passes through Python but under `jsonSchema`, whose validation
   is Python's.

Invariants: exactly one of `event` and `reason` is null; a record never fails the batch it is in.
"""

from ottla_pipeline.decoding.formats import AvroFormat, Format, JsonFormat, JsonSchemaFormat
from ottla_pipeline.decoding.framing import writer_ids
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

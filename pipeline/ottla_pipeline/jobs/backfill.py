"""Adds the records of an offset or time range that the lake lacks: older than the lake job's start, or lost
since.

    ottla-pipeline backfill --config lake.yaml --from 2024-05-01T00:00:00Z [--to …] [--topic A]
    ottla-pipeline backfill --config lake.yaml --from 120000 --to 130000 --topic A --partition 3

Takes the lake job's configuration. Bounds are times (Kafka's timestamps, ISO 8601) or offsets; `--to` is
exclusive. Records that the lake job has not read yet are excluded. Records that are in the lake or among
its dead letters, by topic, partition and offset, are skipped, so it can be run again.
"""

from __future__ import annotations

from datetime import UTC, datetime

import click
from confluent_kafka import Consumer, TopicPartition

from ottla_pipeline.checkpoints import Checkpoint, Offsets, read_ranges
from ottla_pipeline.errors import JobStartError
from ottla_pipeline.jobs.lake import SESSION as LAKE_SESSION
from ottla_pipeline.jobs.lake import open_lake
from ottla_pipeline.lake import reprocessing
from ottla_pipeline.lake.config import LakeConfig
from ottla_pipeline.running import JobContext

CONFIG = LakeConfig
SESSION = LAKE_SESSION
REQUEST_S = 60.0


class Bound(click.ParamType):  # type: ignore[type-arg]
    """A click type: an offset (whole numbers), or a time in ISO 8601."""

    name = "OFFSET|TIME"

    def convert(
        self, value: object, param: click.Parameter | None, context: click.Context | None
    ) -> int | datetime:
        text = str(value)
        if text.isdecimal():
            return int(text)
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"{text!r} is neither an offset nor a time like 2024-05-01T00:00:00Z", param, context)
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


PARAMS = (
    click.Option(["--from", "first"], type=Bound(), required=True, help="First offset or time."),
    click.Option(
        ["--to", "end"],
        type=Bound(),
        help="End offset or time (exclusive).  [default: the lake job's position]",
    ),
    click.Option(["--topic"], multiple=True, help="Only this topic. May be repeated."),
    click.Option(["--partition"], type=click.IntRange(min=0), multiple=True, help="Only this partition."),
)


def run(context: JobContext, config: LakeConfig) -> int:
    """Runs the backfill once."""
    lake = open_lake(context.spark, config)
    lake.check_owner()
    processed = Checkpoint(lake.files, config.checkpoint).processed_offsets()
    if processed is None:
        raise JobStartError(f"{config.checkpoint}: the lake job has completed no batch yet; run it first")
    known = {topic for topic, _ in processed}
    topics, numbers = set(context.params["topic"]) or known, set(context.params["partition"])
    if unknown := sorted(topics - known):
        raise JobStartError(f"--topic {unknown[0]}: the lake job has read {', '.join(sorted(known))}")
    wanted = {
        (topic, number): at
        for (topic, number), at in processed.items()
        if topic in topics and (not numbers or number in numbers)
    }
    starts, ends = bounds(config, wanted, context.params["first"], context.params["end"])
    ranges = reprocessing.backfill_ranges(starts, ends, processed)
    if not ranges:
        context.echo("the lake job has read no records of this range")
        return 0
    landed = reprocessing.backfill(lake, read_ranges(context.spark, config.kafka.spark_options(), ranges))
    offsets = sum(each.end - each.start for each in ranges)
    context.echo(
        f"{offsets:,} offsets read: {landed.events:,} events landed, {landed.dead_letters:,} dead letters"
    )
    return 0


def bounds(
    config: LakeConfig, wanted: Offsets, first: int | datetime, end: int | datetime | None
) -> tuple[Offsets, Offsets]:
    """The start and end offsets of the range in each partition, limited to the records that the brokers
    have."""
    consumer = Consumer({**config.kafka.librdkafka(), "group.id": config.consumer_group})
    starts: Offsets = {}
    ends: Offsets = {}
    try:
        for (topic, number), processed in wanted.items():
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), REQUEST_S)
            until = processed if end is None else _offset(consumer, topic, number, end, high)
            starts[topic, number] = max(low, _offset(consumer, topic, number, first, high))
            ends[topic, number] = min(high, until)
    finally:
        consumer.close()
    return starts, ends


def _offset(consumer: Consumer, topic: str, number: int, bound: int | datetime, high: int) -> int:
    if isinstance(bound, int):
        return bound
    asked = TopicPartition(topic, number, int(bound.timestamp() * 1000))
    (found,) = consumer.offsets_for_times([asked], timeout=REQUEST_S)
    return int(found.offset) if found.offset >= 0 else high

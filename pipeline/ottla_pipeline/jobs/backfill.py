"""Adds the records of an offset or time range that the lake lacks: older than the lake job's start, or lost
since.

    ottla-pipeline backfill --config lake.yaml --from 2024-05-01T00:00:00Z [--to …] [--topic A]
    ottla-pipeline backfill --config lake.yaml --from 120000 --to 130000 --topic A --partition 3

Takes the lake job's configuration. Bounds are times (Kafka's timestamps, ISO 8601) or offsets; `--to` is
exclusive. Records that the lake job has not read yet are excluded. Records that are in the lake or among
its dead letters, by topic, partition and offset, are skipped, so it can be run again.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

import click
from confluent_kafka import Consumer, TopicPartition

from ottla_pipeline.errors import JobStartError
from ottla_pipeline.lake import reprocessing, session
from ottla_pipeline.lake.config import LakeConfig
from ottla_pipeline.lake.reprocessing import Offsets
from ottla_pipeline.lake.session import open_lake
from ottla_pipeline.running import JobContext

CONFIG = LakeConfig
SESSION = session.SESSION
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
    limits = reprocessing.processed_offsets(lake.files, config.checkpoint)
    topics = context.params["topic"] or sorted(limits)
    unknown = sorted(set(topics) - set(limits))
    if unknown:
        raise JobStartError(f"--topic {unknown[0]}: the lake job has read {', '.join(sorted(limits))}")
    numbers = {str(number) for number in context.params["partition"]}
    wanted = {t: {n: at for n, at in limits[t].items() if not numbers or n in numbers} for t in topics}
    starts, ends = bounds(config, wanted, context.params["first"], context.params["end"])
    starts, ends = reprocessing.nonempty_ranges(starts, reprocessing.limit_ends(ends, limits))
    if not ends:
        context.echo("the lake job has read no records of this range")
        return 0
    options = {
        **config.kafka.spark_options(),
        "subscribe": ",".join(sorted(ends)),
        "startingOffsets": json.dumps(whole(starts, limits, limits)),
        "endingOffsets": json.dumps(whole(ends, limits, limits)),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
    }
    records = context.spark.read.format("kafka").options(**options).load()
    landed = reprocessing.backfill(lake, records)
    held = sum(end - starts[topic][number] for topic, each in ends.items() for number, end in each.items())
    context.echo(
        f"{held:,} offsets read: {landed.events:,} events landed, {landed.dead_letters:,} dead letters"
    )
    return 0


def whole(offsets: Offsets, like: Offsets, default: Offsets) -> Offsets:
    """Offsets with an entry for each partition, as Spark's source requires; missing ones take the default."""
    return {
        topic: {number: offsets[topic].get(number, default[topic][number]) for number in like[topic]}
        for topic in offsets
    }


def bounds(
    config: LakeConfig, wanted: Offsets, first: int | datetime, end: int | datetime | None
) -> tuple[Offsets, Offsets]:
    """The start and end offsets of the range in each partition, limited to the records that the brokers
    have."""
    consumer = Consumer({**config.kafka.librdkafka(), "group.id": config.consumer_group})
    starts: Offsets = {}
    ends: Offsets = {}
    try:
        for topic, numbers in wanted.items():
            for number, reached in numbers.items():
                low, high = consumer.get_watermark_offsets(TopicPartition(topic, int(number)), REQUEST_S)
                begin = _offset(consumer, topic, int(number), first, high)
                until = reached if end is None else _offset(consumer, topic, int(number), end, high)
                starts.setdefault(topic, {})[number] = max(low, begin)
                ends.setdefault(topic, {})[number] = min(high, until)
    finally:
        consumer.close()
    return starts, ends


def _offset(consumer: Consumer, topic: str, number: int, bound: int | datetime, high: int) -> int:
    if isinstance(bound, int):
        return bound
    asked = TopicPartition(topic, number, int(bound.timestamp() * 1000))
    (found,) = consumer.offsets_for_times([asked], timeout=REQUEST_S)
    return int(found.offset) if found.offset >= 0 else high

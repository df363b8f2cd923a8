"""The audit job's configuration.

name: orders
kafka: {bootstrap: "broker-0:9092"}
checkpoint: /data/audit
topics: {topicPattern: "orders[.].*"}
window: 1 minute
tiers:
  - name: brokers
  - name: copy
    kafka: {bootstrap: "other-0:9092"}
    grace: 2 minutes
  - name: lake
    delta: [/data/lake/orders.new, /data/lake/orders.paid]
    deadLetters: [/data/lake-dead-letters]
    grace: 10 minutes
  - name: billing
    application: billing
    topics: {topics: [orders.paid]}
    grace: 5 minutes
report: /data/audit-report
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, ClassVar, Final

from pydantic import Field, model_validator

from ottla_pipeline.auditing.events import AUDIT_TOPIC
from ottla_pipeline.completeness.ledger import EVENTS, dead_letters_of
from ottla_pipeline.completeness.verdicts import TierRule
from ottla_pipeline.config.common import (
    NAME,
    Interval,
    JobConfig,
    KafkaConfig,
    Model,
    TopicName,
    TopicsConfig,
)

Folder = Annotated[str, Field(min_length=1)]
_UNITS_MS: Final = {
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": round(timedelta(days=1).total_seconds() * 1000),
}


def interval_ms(text: str) -> int:
    """An Interval in milliseconds."""
    number, unit = text.split(" ")
    return int(number) * _UNITS_MS[unit.removesuffix("s")]


class TierConfig(Model):
    """A tier: topics of a cluster (the job's own without `kafka`), the Delta tables of a lake, a Parquet
    lake (for audit-report), or an `application` whose audited consumers report what they process: all
    topics of the job, or those in `topics`. `topicPrefix` is the prefix that a mirror puts before topic
    names. A verdict on missing records waits until the tier has been read up to `grace` after a window's
    end. Duplicates in an application are no difference unless it is to process `exactlyOnce`."""

    name: Annotated[str, Field(pattern=NAME, max_length=50)]
    """The tier's name in the report and in metrics."""
    kafka: KafkaConfig | None = None
    """The cluster, if it is another one."""
    topic_prefix: str = ""
    """What a mirror puts before topic names."""
    delta: Annotated[list[Folder], Field(min_length=1)] | None = None
    """Paths of Delta tables."""
    parquet: Folder | None = None
    """The path of a Parquet lake."""
    dead_letters: list[Folder] | None = None
    """Paths of dead letters, which count as landed."""
    application: Annotated[str, Field(min_length=1)] | None = None
    """The name by which audited consumers report."""
    topics: TopicsConfig | None = None
    """Only these topics."""
    exactly_once: bool = False
    """Whether duplicates are a difference."""
    grace: Interval = "1 minute"
    """How long after a window its records may arrive."""

    @model_validator(mode="after")
    def _one_kind(self) -> TierConfig:
        application = self.application is not None
        topics = self.kafka is not None or (bool(self.topic_prefix) and not application)
        if [topics, self.delta is not None, self.parquet is not None, application].count(True) > 1:
            raise ValueError(
                "give kafka and topicPrefix, or delta, or parquet, or application: a tier is topics, a lake "
                "or an application"
            )
        if not application and (self.topics is not None or self.exactly_once):
            raise ValueError("topics and exactlyOnce are an application's: give application, too")
        if self.dead_letters is not None and self.delta is None and self.parquet is None:
            raise ValueError("deadLetters are a lake's: give delta or parquet, too")
        if self.name == EVENTS or self.name.endswith(dead_letters_of("")):
            raise ValueError(f"name: {self.name!r} is taken")
        return self

    def rule(self) -> TierRule:
        """The rule by which the tier is evaluated."""
        return TierRule(
            interval_ms(self.grace),
            reads=None if self.topics is None else self.topics.fits,
            copies_allowed=self.application is not None and not self.exactly_once,
        )


class AuditConfig(JobConfig):
    """`window` is the window length of the producers (their AuditOptions.window_s). `keep` is the
    retention of windows; `silentAfter`, the time after which a producer without a final report is listed
    as silent."""

    JOB: ClassVar[str] = "audit"

    topics: TopicsConfig
    """The audited topics."""
    audit_topic: TopicName = AUDIT_TOPIC
    """The topic of the producers' reports."""
    window: Interval = "1 minute"
    """The length of a window."""
    tiers: Annotated[list[TierConfig], Field(min_length=1)]
    """What is compared with the reports."""
    report: Folder | None = None
    """The folder of the report; without it none is written."""
    keep: Interval = "7 days"
    """How long windows are kept."""
    silent_after: Interval = "2 minutes"
    """When a producer counts as silent."""

    @model_validator(mode="after")
    def _names(self) -> AuditConfig:
        names = [tier.name for tier in self.tiers]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"tiers: two are named {twice[0]!r}")
        return self

    @property
    def window_ms(self) -> int:
        return interval_ms(self.window)

    def rules(self) -> dict[str, TierRule]:
        return {tier.name: tier.rule() for tier in self.tiers}

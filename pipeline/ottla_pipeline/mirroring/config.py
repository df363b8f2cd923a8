"""The mirror job's configuration: two clusters, topics, how they are named, what of groups is carried over.

    name: dr
    source: {alias: east, bootstrap: "east:9092"}
    target: {alias: west, bootstrap: "west:9092"}
    topicPattern: "orders|flights\\\\..*"
    naming: {policy: prefix}
    groups: {pattern: ".*", interval: 10 seconds}
    checkpoint: s3a://bucket/checkpoints/dr

`source` is what other jobs call `kafka`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, model_validator

from ottla_pipeline.config.common import (
    Interval,
    JobConfig,
    KafkaConfig,
    Model,
    Pattern,
    Settings,
    TopicsConfig,
)
from ottla_pipeline.mirroring.target import (
    ALIAS,
    Limits,
    NameRefused,
    Policy,
    ReplicationPolicy,
    Target,
    mirror_name,
    syncs_topic,
)


class ClusterConfig(KafkaConfig):
    """A cluster, and its alias in topic names and in the path header of records."""

    alias: Annotated[str, Field(pattern=f"^{ALIAS}$", max_length=50)]
    """The cluster's alias."""


class NamingConfig(Model):
    """`prefix`: topic `orders` of east is `east.orders` on west. `identity`: it is `orders`, and
    `provenance` records the clusters that a record has passed in a header; without it two mirrors would
    copy a record back and forth."""

    policy: Policy = "prefix"
    """Prefix or identity."""
    separator: Literal[".", "_", "-"] = "."
    """Between the alias and the topic."""
    provenance: bool = True
    """Whether a header names the clusters that a record has passed."""


class GroupsConfig(Model):
    """Consumer groups whose offsets are synchronized (a Python regular expression), and the interval."""

    pattern: Pattern = ".*"
    """Groups by a regular expression."""
    exclude: list[str] = Field(default_factory=list)
    """Groups that are left out."""
    interval: Interval = "10 seconds"
    """How often offsets are synchronized."""


class TransactionConfig(Model):
    """Limits of one transaction on the target; the first one that is reached ends it."""

    max_records: Annotated[int, Field(ge=1, le=1_000_000)] = 20_000
    """Records of a transaction."""
    max_bytes: Annotated[int, Field(ge=1, le=2**30)] = 16 * 2**20
    """Bytes of a transaction."""
    timeout: Interval = "2 minutes"
    """Its time-out."""


class TargetTopicsConfig(Model):
    """How topics are created on the target: the replication factor (-1: the cluster's default), the source
    settings that are not copied, whether later changes of settings are copied, and the interval of the
    check."""

    replication_factor: Annotated[int, Field(ge=-1, le=100)] = -1
    """Replicas of topics on the target."""
    not_copied: list[str] = Field(default_factory=list)
    """Settings that are not copied."""
    sync_configs: bool = True
    """Whether later changes of settings are copied."""
    interval: Interval = "1 minute"
    """How often they are compared."""
    syncs_settings: Settings = Field(default_factory=dict)


class MirrorConfig(JobConfig, TopicsConfig):
    """Replicates topics of `source` to `target`, each record once."""

    JOB: ClassVar[str] = "mirror"

    kafka: ClusterConfig = Field(alias="source")
    target: ClusterConfig
    """The cluster that is written."""
    naming: NamingConfig = NamingConfig()
    """Names of topics on the target."""
    groups: GroupsConfig | None = None
    """Groups whose offsets are synchronized; without it none."""
    transaction: TransactionConfig = TransactionConfig()
    """Limits of a transaction."""
    target_topics: TargetTopicsConfig = TargetTopicsConfig()
    """How topics are created on the target."""
    data_loss: Literal["fail", "skip"] = "fail"
    """What to do when records, or a topic, have gone before they were mirrored."""

    @model_validator(mode="after")
    def _goes_together(self) -> MirrorConfig:
        if self.kafka.alias == self.target.alias:
            raise ValueError(f"source and target have the same alias, {self.target.alias!r}")
        if self.naming.separator in self.kafka.alias + self.target.alias and self.naming.policy == "prefix":
            raise ValueError(f"an alias holds the separator {self.naming.separator!r}")
        if self.groups is not None and self.replication_policy.marks_records:
            raise ValueError(
                "groups cannot be carried over between topics that both clusters write to (naming.policy "
                "identity): a group's offset covers the records of both clusters. Use the "
                "policy prefix, or, for a mirror in one direction only, naming.provenance: false"
            )
        try:
            self.replication_policy.check_named(self.topics or ())
        except NameRefused as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def replication_policy(self) -> ReplicationPolicy:
        naming = self.naming
        return ReplicationPolicy(
            self.kafka.alias, self.target.alias, naming.policy, naming.separator, naming.provenance
        )

    @property
    def mirror(self) -> str:
        """The mirror's own name on the target."""
        return mirror_name(self.name, self.kafka.alias)

    def target_of(self) -> Target:
        """What tasks need to know of the target. Raises OSError if a file of its `sasl` or `tls` cannot be
        read."""
        limits = self.transaction
        return Target(
            self.mirror,
            tuple(sorted(in_place(self.target.librdkafka()).items())),
            self.replication_policy,
            syncs_topic(self.mirror),
            Limits(limits.max_records, limits.max_bytes, round(seconds(limits.timeout) * 1000)),
        )

    def spark_source(self) -> dict[str, str]:
        """Options of Spark's Kafka source: committed records only, with their headers."""
        subscription = self.subscription()
        if self.topic_pattern is not None:
            subscription = {"subscribePattern": self.replication_policy.source_pattern(self.topic_pattern)}
        return {
            **self.source_options(self),
            **subscription,
            "kafka.isolation.level": "read_committed",
            "includeHeaders": "true",
            "failOnDataLoss": str(self.data_loss == "fail").lower(),
        }


PEM: Final = {
    "ssl.ca.location": "ssl.ca.pem",
    "ssl.certificate.location": "ssl.certificate.pem",
    "ssl.key.location": "ssl.key.pem",
}


def in_place(settings: Mapping[str, str]) -> dict[str, str]:
    """librdkafka's settings with the content of PEM files in place of their paths: executors lack the
    files."""
    return {
        PEM.get(name, name): Path(value).read_text() if name in PEM else value
        for name, value in settings.items()
    }


def seconds(interval: str) -> float:
    """The seconds of an Interval such as '10 seconds'."""
    number, unit = interval.split()
    return timedelta(**{f"{unit.rstrip('s')}s": int(number)}).total_seconds()

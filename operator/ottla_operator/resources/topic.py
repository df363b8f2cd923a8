"""Topic: a topic with its partitions, replication factor and settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ottla_operator.resources.common import (
    AGE,
    CLUSTER,
    LISTED_BY_NAME,
    MANAGED_SETTINGS,
    READY,
    STATUS,
    UNMANAGED_SETTINGS,
    ClusterRef,
    ConfigMap,
    ConfigValue,
    Definition,
    Model,
    PrinterColumn,
    Problem,
    Resource,
    Rule,
    Status,
    TransitionRule,
    UnmanagedSetting,
    cel_list,
    condition_column,
    config_texts,
    immutable,
    rules,
)
from ottla_operator.resources.settings import topic_setting_problem

TOPIC_NAME = r"^[a-zA-Z0-9._-]+$"
_TOPIC_NAME = re.compile(TOPIC_NAME)


ReclaimPolicy = Literal["Delete", "Retain"]


class TopicDefaults(Model):
    """What a BrokerCluster says for Topics that do not say it themselves."""

    partitions: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="The number of partitions. Topics grow with it and never shrink. Default: the brokers' "
        "num.partitions, for new topics.",
    )
    replicas: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="The replication factor. Default: the brokers' default.replication.factor, for new "
        "topics.",
    )
    config: ConfigMap = Field(
        default_factory=dict,
        description="Kafka's topic settings; those of a Topic's own config have precedence, by name.",
    )
    reclaim_policy: ReclaimPolicy = Field(
        default="Delete", description="Whether to delete a topic and its data with its resource."
    )


_RESERVED = (".", "..")


class TopicSpec(Model):
    model_config = rules(
        Rule(
            "topicName: . and .. are not valid topic names",
            f"!has(self.topicName) || !(self.topicName in {cel_list(_RESERVED)})",
        ),
        Rule(
            "topicName: names that start with __ are reserved for internal topics",
            "!has(self.topicName) || !self.topicName.startsWith('__')",
        ),
    )

    cluster_ref: ClusterRef = Field(description="The cluster of the topic.")
    topic_name: Annotated[str, Field(pattern=TOPIC_NAME, min_length=1, max_length=249)] | None = Field(
        default=None, description="The topic's name. Default: the resource's name."
    )
    partitions: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="The number of partitions, which cannot decrease. Default: that of the cluster's "
        "topicDefaults, else the brokers' num.partitions.",
    )
    replicas: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="The replication factor. Default: that of the cluster's topicDefaults, else the brokers' "
        "default.replication.factor.",
    )
    config: ConfigMap = Field(
        default_factory=dict,
        description="Kafka's topic settings, besides those of the cluster's topicDefaults.",
    )
    reclaim_policy: ReclaimPolicy | None = Field(
        default=None,
        description="Whether to delete the topic and its data with the resource: Delete or Retain. Default: "
        "that of the cluster's topicDefaults, else Delete.",
    )
    adopt: bool = Field(default=False, description="Take over an existing topic that differs from the spec.")


class ReplicasChange(Model):
    target_replicas: int = Field(description="The replication factor after the change.")
    state: Literal["Pending", "Ongoing", "Blocked"] = Field(description="Pending, Ongoing or Blocked.")
    message: str = Field(default="", description="What the change waits for, or why it is blocked.")


class TopicAuditWindow(Model):
    start: str = Field(
        json_schema_extra={"format": "date-time"},
        description="The start of the window, by the records' timestamps.",
    )
    tier: str = Field(description="The tier that differs, as in the audit's report.")
    status: str = Field(description="missing, duplicated or unknown, as in the audit's report.")
    missing: int = Field(default=0, description="Missing records.")
    duplicated: int = Field(default=0, description="Duplicated records.")


class TopicAudit(Model):
    """The result of an audit job; of several jobs, the worst result."""

    pipeline: str = Field(description="The Pipeline of the audit.")
    complete_until: str | None = Field(
        default=None,
        json_schema_extra={"format": "date-time"},
        description="Every tier holds all records acknowledged up to this time.",
    )
    missing: int = Field(default=0, description="Missing records, counted for each tier.")
    duplicated: int = Field(default=0, description="Duplicated records, counted for each tier.")
    differing_windows: int = Field(default=0, description="Windows that differ, counted for each tier.")
    windows: list[TopicAuditWindow] = Field(
        default_factory=list, description="The first windows that differ."
    )


class TopicStatus(Status):
    topic_name: str = Field(default="", description="The topic's name in Kafka.")
    topic_id: str = Field(default="", description="The topic's id in Kafka.")
    partitions: int = Field(default=0, description="The number of partitions.")
    replicas: int = Field(default=0, description="The replication factor.")
    under_replicated_partitions: int = Field(
        default=0, description="The number of partitions with replicas that are not in sync."
    )
    replicas_change: ReplicasChange | None = Field(
        default=None, description="The change of the replication factor in progress."
    )
    audit: TopicAudit | None = Field(
        default=None, description="The result of an audit job that covers the topic."
    )
    managed_settings: list[str] = Field(default_factory=list, description=MANAGED_SETTINGS)
    unmanaged_settings: list[UnmanagedSetting] = Field(
        default_factory=list, description=UNMANAGED_SETTINGS, json_schema_extra=LISTED_BY_NAME
    )


def topic_settings_problems(path: str, config: Mapping[str, ConfigValue]) -> Iterator[Problem]:
    """The invalid ones of a topic's settings, which are at `path`."""
    for setting, value in config_texts(config).items():
        problem = topic_setting_problem(setting, value)
        if problem is not None:
            yield Problem(f"{path}[{setting}]", problem)


def _never_fewer(old: TopicSpec, new: TopicSpec) -> bool:
    return old.partitions is None or (new.partitions is not None and new.partitions >= old.partitions)


class Topic(Resource[TopicSpec, TopicStatus]):
    definition: ClassVar[Definition] = Definition(
        kind="Topic",
        plural="topics",
        short_names=("ot",),
        condition_types=("Ready", "ConfigSynced", "ReplicasChanging"),  # and Complete, of one that is audited
        columns=(
            READY,
            PrinterColumn("Partitions", "integer", ".status.partitions"),
            PrinterColumn("Replicas", "integer", ".status.replicas"),
            PrinterColumn("URP", "integer", ".status.underReplicatedPartitions"),
            condition_column("Complete", "Complete"),
            CLUSTER,
            STATUS,
            AGE,
            PrinterColumn("Topic", "string", ".status.topicName", 1),
            PrinterColumn("CompleteUntil", "string", ".status.audit.completeUntil", 1),
            PrinterColumn("Missing", "integer", ".status.audit.missing", 1),
        ),
        rules=(
            Rule(
                "metadata.name has more than 249 characters; spec.topicName is required",
                "has(self.spec.topicName) || self.metadata.name.size() <= 249",
            ),
        ),
        transition_rules=(
            immutable("spec.clusterRef", "cluster_ref"),
            immutable("spec.topicName", "topic_name", optional=True),
            TransitionRule(
                path="spec.partitions",
                message="partitions cannot be decreased: Kafka cannot remove partitions",
                cel="!has(oldSelf.partitions) || "
                "(has(self.partitions) && self.partitions >= oldSelf.partitions)",
                allows=_never_fewer,
            ),
        ),
    )

    kind: Literal["Topic"]
    status: TopicStatus = Field(default_factory=TopicStatus)

    @property
    def topic_name(self) -> str:
        return self.spec.topic_name or self.metadata.name

    @property
    def deletes_in_kafka(self) -> bool:
        return self.spec.reclaim_policy != "Retain"

    def with_defaults(self, defaults: TopicDefaults) -> Topic:
        """This topic with the defaults of its cluster in the place of what its spec does not say."""
        own = self.spec
        spec = own.model_copy(
            update={
                "partitions": own.partitions or defaults.partitions,
                "replicas": own.replicas or defaults.replicas,
                "config": {**defaults.config, **own.config},
                "reclaim_policy": own.reclaim_policy or defaults.reclaim_policy,
            }
        )
        return self.model_copy(update={"spec": spec})

    def problems(self) -> Iterator[Problem]:
        name = self.topic_name
        if name in _RESERVED or not _TOPIC_NAME.match(name) or len(name) > 249:
            yield Problem(
                "spec.topicName",
                f"{name!r} is not a valid topic name; allowed: 1 to 249 of a-z A-Z 0-9 . _ -",
            )
        if name.startswith("__"):
            yield Problem(
                "spec.topicName",
                f"{name!r} is not allowed: names that start with __ are reserved for internal topics",
            )
        yield from topic_settings_problems("spec.config", self.spec.config)

    def notes(self) -> Iterator[str]:
        least = config_texts(self.spec.config).get("min.insync.replicas", "1")
        if self.spec.replicas is not None and self.spec.replicas < int(least):
            yield (
                f"spec.config[min.insync.replicas]: {least} is more than the {self.spec.replicas} replicas: "
                "no write with acks=all can succeed"
            )

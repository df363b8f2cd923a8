"""Topic: a topic with its partitions, replication factor and settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ottla_operator.resources.common import (
    AGE,
    LISTED_BY_NAME,
    MANAGED_SETTINGS,
    UNMANAGED_SETTINGS,
    ClusterRef,
    ConfigMap,
    Definition,
    Model,
    PrinterColumn,
    Problem,
    Resource,
    Status,
    TransitionRule,
    UnmanagedSetting,
    condition_column,
    config_texts,
    immutable,
)
from ottla_operator.resources.settings import topic_setting_problem

TOPIC_NAME = r"^[a-zA-Z0-9._-]+$"
_TOPIC_NAME = re.compile(TOPIC_NAME)


class TopicSpec(Model):
    cluster_ref: ClusterRef
    topic_name: Annotated[str, Field(pattern=TOPIC_NAME, min_length=1, max_length=249)] | None = Field(
        default=None, description="The topic's name; the resource's own when left out."
    )
    partitions: int | None = Field(
        default=None, ge=1, le=100_000, description="The brokers' num.partitions when left out."
    )
    replicas: int | None = Field(
        default=None, ge=1, le=1000, description="The brokers' default.replication.factor when left out."
    )
    config: ConfigMap = Field(default_factory=dict, description="Kafka's topic settings.")
    reclaim_policy: Literal["Delete", "Retain"] = Field(
        default="Delete", description="Whether the topic, with its data, goes with the resource."
    )
    adopt: bool = Field(default=False, description="Take over a topic that exists and looks otherwise.")


class ReplicasChange(Model):
    target_replicas: int
    state: Literal["Pending", "Ongoing", "Blocked"]
    message: str = ""


class TopicAuditWindow(Model):
    start: str = Field(json_schema_extra={"format": "date-time"}, description="When its records were sent.")
    tier: str
    status: str = Field(description="missing, duplicated or unknown, as in the audit's report.")
    missing: int = 0
    duplicated: int = 0


class TopicAudit(Model):
    """What an audit job found; of several, the one with the worst verdict."""

    pipeline: str = Field(description="The Pipeline of the audit.")
    complete_until: str | None = Field(
        default=None,
        json_schema_extra={"format": "date-time"},
        description="Every tier holds all that was acknowledged until then.",
    )
    missing: int = Field(default=0, description="Records that some tier lacks, counted for each tier.")
    duplicated: int = 0
    differing_windows: int = Field(default=0, description="Counted for each tier.")
    windows: list[TopicAuditWindow] = Field(default_factory=list, description="The first that differ.")


class TopicStatus(Status):
    topic_name: str = ""
    topic_id: str = ""
    partitions: int = 0
    replicas: int = 0
    under_replicated_partitions: int = 0
    replicas_change: ReplicasChange | None = None
    audit: TopicAudit | None = Field(default=None, description="Of a topic that an audit job looks after.")
    managed_settings: list[str] = Field(default_factory=list, description=MANAGED_SETTINGS)
    unmanaged_settings: list[UnmanagedSetting] = Field(
        default_factory=list, description=UNMANAGED_SETTINGS, json_schema_extra=LISTED_BY_NAME
    )


def _never_fewer(old: TopicSpec, new: TopicSpec) -> bool:
    return old.partitions is None or (new.partitions is not None and new.partitions >= old.partitions)


class Topic(Resource[TopicSpec, TopicStatus]):
    definition: ClassVar[Definition] = Definition(
        kind="Topic",
        plural="topics",
        short_names=("ot",),
        condition_types=("Ready", "ConfigSynced", "ReplicasChanging"),  # and Complete, of one that is audited
        columns=(
            condition_column("Ready", "Ready"),
            PrinterColumn("Partitions", "integer", ".status.partitions"),
            PrinterColumn("Replicas", "integer", ".status.replicas"),
            PrinterColumn("URP", "integer", ".status.underReplicatedPartitions"),
            condition_column("Complete", "Complete"),
            PrinterColumn("Cluster", "string", ".spec.clusterRef.name"),
            condition_column("Status", "Ready", "reason"),
            AGE,
            PrinterColumn("Topic", "string", ".status.topicName", 1),
            PrinterColumn("CompleteUntil", "string", ".status.audit.completeUntil", 1),
            PrinterColumn("Missing", "integer", ".status.audit.missing", 1),
        ),
        transition_rules=(
            immutable("spec.clusterRef", "cluster_ref"),
            immutable("spec.topicName", "topic_name", optional=True),
            TransitionRule(
                path="spec.partitions",
                message="partitions cannot be decreased: Kafka has no way to take one away",
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

    def problems(self) -> Iterator[Problem]:
        name = self.topic_name
        if name in (".", "..") or not _TOPIC_NAME.match(name) or len(name) > 249:
            yield Problem(
                "spec.topicName", f"{name!r} is no topic name; allowed: 1 to 249 of a-z A-Z 0-9 . _ -"
            )
        if name.startswith("__"):
            yield Problem("spec.topicName", f"{name!r}: names that start with __ are the brokers' own")
        for setting, value in config_texts(self.spec.config).items():
            problem = topic_setting_problem(setting, value)
            if problem is not None:
                yield Problem(f"spec.config[{setting}]", problem)

    def notes(self) -> Iterator[str]:
        least = config_texts(self.spec.config).get("min.insync.replicas", "1")
        if self.spec.replicas is not None and self.spec.replicas < int(least):
            yield (
                f"spec.config[min.insync.replicas]: {least} is more than the {self.spec.replicas} replicas: "
                "no write with acks=all can succeed"
            )

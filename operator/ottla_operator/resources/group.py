"""ConsumerGroup: observes a consumer group's state and lag, and resets its offsets on request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from ottla_operator.resources.common import (
    AGE,
    CLUSTER,
    READY,
    ClusterRef,
    Definition,
    Model,
    PrinterColumn,
    Problem,
    Resource,
    Rule,
    Status,
    cel_list,
    condition_column,
    immutable,
    rules,
)

_WITH_VALUE = ("timestamp", "offset", "shiftBy")


class OffsetReset(Model):
    """A reset of the group's offsets, done once per `requestId`."""

    model_config = rules(
        Rule(
            f"value is required with `to: {'`, `to: '.join(_WITH_VALUE)}`, and not allowed else",
            f"has(self.value) == (self.to in {cel_list(_WITH_VALUE)})",
        )
    )

    request_id: str = Field(min_length=1, description="Any text; a new one requests a new reset.")
    topics: list[str] = Field(min_length=1, description="The topics whose offsets are reset.")
    to: Literal["earliest", "latest", "timestamp", "offset", "shiftBy"] = Field(
        description="The new offsets: earliest and latest of each partition, the first at a timestamp, an "
        "offset, or shiftBy from the current ones."
    )
    value: int | None = Field(
        default=None,
        description="Milliseconds since the epoch, an offset, or a number of records to shift by.",
    )
    dry_run: bool = Field(default=False, description="Only compute the new offsets, into status.lastReset.")
    when_active: Literal["Wait", "Fail", "Live"] = Field(
        default="Wait",
        description="For a group with members: wait until they have left, fail, or remove them in the same "
        "step (they join again and read from the new offsets).",
    )


class ConsumerGroupSpec(Model):
    model_config = rules(
        Rule(
            "deletionPolicy Delete and offsetReset are not allowed with `offsetsStorage: zookeeper`",
            "self.offsetsStorage != 'zookeeper' || "
            "(self.deletionPolicy != 'Delete' && !has(self.offsetReset))",
        )
    )

    cluster_ref: ClusterRef = Field(description="The cluster of the group.")
    group_id: str | None = Field(default=None, min_length=1, description="Default: the resource's name.")
    max_lag: int | None = Field(
        default=None,
        ge=0,
        description="The limit of the condition LagWithinLimit, in records over all topics.",
    )
    deletion_policy: Literal["Retain", "Delete"] = Field(
        default="Retain", description="Whether to delete the group in Kafka with the resource."
    )
    offset_reset: OffsetReset | None = Field(default=None, description="A reset of the group's offsets.")
    offsets_storage: Literal["kafka", "zookeeper"] = Field(
        default="kafka",
        description="Where the group's consumers commit offsets; zookeeper for consumers of Kafka 0.8.",
    )


class TopicLag(Model):
    name: str = Field(description="The topic.")
    lag: int = Field(description="Records that the group has not committed yet.")


class LastReset(Model):
    request_id: str = Field(description="The requestId of the reset.")
    phase: Literal["Pending", "DryRun", "Done", "Failed"] = Field(
        description="Pending, DryRun, Done or Failed."
    )
    before: dict[str, int] = Field(
        default_factory=dict, description="Offsets before the reset, by partition as TOPIC-NUMBER."
    )
    after: dict[str, int] = Field(
        default_factory=dict, description="Offsets after the reset, by partition as TOPIC-NUMBER."
    )
    completed_at: str = Field(default="", description="When the reset was completed.")
    message: str = Field(default="", description="What the reset waits for, or why it failed.")


class ConsumerGroupStatus(Status):
    state: str = Field(default="", description="The group's state in Kafka, such as Stable or Empty.")
    members: int = Field(default=0, description="The number of members.")
    coordinator: int = Field(default=-1, description="The broker that coordinates the group; -1: none.")
    total_lag: int = Field(
        default=0, description="Records that the group has not committed yet, over all topics."
    )
    topics: list[TopicLag] = Field(
        default_factory=list,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        description="The lag of each topic.",
    )
    last_reset: LastReset | None = Field(default=None, description="The last requested reset.")


class ConsumerGroup(Resource[ConsumerGroupSpec, ConsumerGroupStatus]):
    definition: ClassVar[Definition] = Definition(
        kind="ConsumerGroup",
        plural="consumergroups",
        short_names=("cg",),
        condition_types=("Ready", "LagWithinLimit"),
        columns=(
            READY,
            PrinterColumn("State", "string", ".status.state"),
            PrinterColumn("Members", "integer", ".status.members"),
            PrinterColumn("Lag", "integer", ".status.totalLag"),
            condition_column("InLimit", "LagWithinLimit"),
            CLUSTER,
            AGE,
            PrinterColumn("Group", "string", ".spec.groupId", 1),
        ),
        transition_rules=(
            immutable("spec.clusterRef", "cluster_ref"),
            immutable("spec.groupId", "group_id", optional=True),
        ),
    )

    kind: Literal["ConsumerGroup"]
    status: ConsumerGroupStatus = Field(default_factory=ConsumerGroupStatus)

    @property
    def group_id(self) -> str:
        return self.spec.group_id or self.metadata.name

    @property
    def deletes_in_kafka(self) -> bool:
        return self.spec.deletion_policy == "Delete"

    def problems(self) -> Iterator[Problem]:
        reset = self.spec.offset_reset
        if self.spec.offsets_storage == "zookeeper" and self.spec.deletion_policy == "Delete":
            yield Problem("spec.deletionPolicy", "Delete is not allowed with `offsetsStorage: zookeeper`")
        if self.spec.offsets_storage == "zookeeper" and reset is not None:
            yield Problem("spec.offsetReset", "is not allowed with `offsetsStorage: zookeeper`")
        if reset is None:
            return
        needs_value = reset.to in _WITH_VALUE
        if needs_value and reset.value is None:
            yield Problem("spec.offsetReset.value", f"is required with `to: {reset.to}`")
        if not needs_value and reset.value is not None:
            yield Problem("spec.offsetReset.value", f"is not allowed with `to: {reset.to}`")

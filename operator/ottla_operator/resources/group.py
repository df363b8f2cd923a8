"""ConsumerGroup: observes a consumer group's state and lag, and resets its offsets on request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from ottla_operator.resources.common import (
    AGE,
    ClusterRef,
    Definition,
    Model,
    PrinterColumn,
    Problem,
    Resource,
    Status,
    condition_column,
    immutable,
)


class OffsetReset(Model):
    """A reset of the group's offsets, done once per `requestId`."""

    request_id: str = Field(min_length=1)
    topics: list[str] = Field(min_length=1)
    to: Literal["earliest", "latest", "timestamp", "offset", "shiftBy"]
    value: int | None = Field(
        default=None,
        description="Milliseconds since the epoch, an offset, or a number of records to shift by.",
    )
    dry_run: bool = False
    when_active: Literal["Wait", "Fail", "Live"] = Field(
        default="Wait",
        description="For a group with members: wait until they have left, fail, or remove them in the same "
        "step (they join again and read from the new offsets).",
    )


class ConsumerGroupSpec(Model):
    cluster_ref: ClusterRef
    group_id: str | None = Field(default=None, min_length=1, description="Default: the resource's name.")
    max_lag: int | None = Field(
        default=None,
        ge=0,
        description="The limit of the condition LagWithinLimit, in records over all topics.",
    )
    deletion_policy: Literal["Retain", "Delete"] = "Retain"
    offset_reset: OffsetReset | None = None
    offsets_storage: Literal["kafka", "zookeeper"] = Field(
        default="kafka",
        description="Where the group's consumers commit offsets; zookeeper for consumers of Kafka 0.8.",
    )


class TopicLag(Model):
    name: str
    lag: int


class LastReset(Model):
    request_id: str
    phase: Literal["Pending", "DryRun", "Done", "Failed"]
    before: dict[str, int] = Field(default_factory=dict)
    after: dict[str, int] = Field(default_factory=dict)
    completed_at: str = ""
    message: str = ""


class ConsumerGroupStatus(Status):
    state: str = ""
    members: int = 0
    coordinator: int = -1
    total_lag: int = 0
    topics: list[TopicLag] = Field(
        default_factory=list,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    last_reset: LastReset | None = None


class ConsumerGroup(Resource[ConsumerGroupSpec, ConsumerGroupStatus]):
    definition: ClassVar[Definition] = Definition(
        kind="ConsumerGroup",
        plural="consumergroups",
        short_names=("cg",),
        condition_types=("Ready", "LagWithinLimit"),
        columns=(
            condition_column("Ready", "Ready"),
            PrinterColumn("State", "string", ".status.state"),
            PrinterColumn("Members", "integer", ".status.members"),
            PrinterColumn("Lag", "integer", ".status.totalLag"),
            condition_column("InLimit", "LagWithinLimit"),
            PrinterColumn("Cluster", "string", ".spec.clusterRef.name"),
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

    def problems(self) -> Iterator[Problem]:
        reset = self.spec.offset_reset
        if self.spec.offsets_storage == "zookeeper" and self.spec.deletion_policy == "Delete":
            yield Problem("spec.deletionPolicy", "Delete is not allowed with `offsetsStorage: zookeeper`")
        if self.spec.offsets_storage == "zookeeper" and reset is not None:
            yield Problem("spec.offsetReset", "is not allowed with `offsetsStorage: zookeeper`")
        if reset is None:
            return
        needs_value = reset.to in ("timestamp", "offset", "shiftBy")
        if needs_value and reset.value is None:
            yield Problem("spec.offsetReset.value", f"is required with `to: {reset.to}`")
        if not needs_value and reset.value is not None:
            yield Problem("spec.offsetReset.value", f"is not allowed with `to: {reset.to}`")

"""Rebalancing by load: `spec.rebalance` and `status.rebalance` of BrokerCluster."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field

from ottla_operator.resources.common import Duration, Model, Quantity

SoftGoal = Literal[
    "ReplicaDistribution",
    "PotentialNetworkOutbound",
    "DiskUsageDistribution",
    "NetworkInboundUsageDistribution",
    "NetworkOutboundUsageDistribution",
    "TopicReplicaDistribution",
    "LeaderReplicaDistribution",
    "LeaderBytesInDistribution",
]
RebalanceTrigger = Literal["ScaleUp", "NewRacks", "DiskFull", "ScaleDown", "HotSpot"]


class RebalanceThresholds(Model):
    """When the goals of a rebalance are met. Names and defaults are those of Cruise Control."""

    disk_capacity: float = Field(default=0.8, gt=0, le=1, description="The share of a disk that may be used.")
    network_capacity: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description="The share of capacity.networkIn and networkOut that may be used.",
    )
    replicas_max: int = Field(default=10_000, ge=1, description="The maximum of replicas on a broker.")
    replicas: float = Field(
        default=1.1,
        ge=1.01,
        le=100,
        description="Replicas of a broker, as a multiple of the mean: 1.1 is 10 % more or less.",
    )
    disk: float = Field(default=1.1, ge=1.01, le=100, description="Used disk, as a multiple of the mean.")
    network_in: float = Field(
        default=1.1, ge=1.01, le=100, description="Bytes in per second, as a multiple of the mean."
    )
    network_out: float = Field(
        default=1.1, ge=1.01, le=100, description="Bytes out per second, as a multiple of the mean."
    )
    leaders: float = Field(
        default=1.1, ge=1.01, le=100, description="Partitions that a broker leads, as a multiple of the mean."
    )
    topic_replicas: float = Field(
        default=3.0,
        ge=1.01,
        le=100,
        description="Replicas of one topic on a broker, as a multiple of the mean.",
    )
    disk_gap: Quantity = Field(
        default="64Mi",
        description="A difference from the mean disk usage below this is left alone, in bytes.",
    )
    network_gap: Quantity = Field(
        default="64Ki",
        description="A difference from the mean traffic below this is left alone, in bytes per second.",
    )


class BrokerCapacities(Model):
    """What a broker can take. A goal of a capacity that is not known does not apply."""

    disk: Quantity | None = Field(
        default=None, description="Bytes. Default: the size of the brokers' log directories."
    )
    network_in: Quantity | None = Field(default=None, description="Bytes per second. Default: unlimited.")
    network_out: Quantity | None = Field(default=None, description="Bytes per second. Default: unlimited.")


class Rebalance(Model):
    on_scale_up: bool = Field(
        default=True,
        description="Whether replicas move to brokers that were added, by their number; in mode Auto with "
        "the trigger ScaleUp they move by load instead.",
    )
    replication_throttle: Quantity | None = Field(
        default=None,
        description="The throttle of reassignments, in bytes per second and broker. Default: none.",
    )
    mode: Literal["Off", "OnApproval", "Auto"] = Field(
        default="Off",
        description="Rebalancing by load. Off: only on request; OnApproval: the operator proposes one when a "
        "trigger applies, and executes it when it is approved; Auto: it executes it at once.",
    )
    triggers: list[RebalanceTrigger] = Field(
        default_factory=lambda: list(get_args(RebalanceTrigger)),
        description="When to propose a rebalance: brokers without replicas (ScaleUp), partitions that could "
        "use more racks (NewRacks), a disk beyond its capacity threshold (DiskFull), an imbalance after "
        "brokers have left (ScaleDown), any other goal that is not met (HotSpot).",
    )
    goals: list[SoftGoal] = Field(
        default_factory=lambda: list(get_args(SoftGoal)),
        description="The soft goals. The hard ones, racks and capacities, always apply. Their order of "
        "priority is fixed.",
    )
    thresholds: RebalanceThresholds = Field(
        default_factory=RebalanceThresholds, description="When the goals are met."
    )
    capacity: BrokerCapacities = Field(
        default_factory=BrokerCapacities, description="What each broker can take."
    )
    window: Duration = Field(
        default="5m",
        description="The time over which loads are averaged. Nothing is proposed before it has passed, after "
        "a start of the operator and after a rebalance.",
    )
    concurrent_partitions: int = Field(
        default=20, ge=1, le=1000, description="Partitions that move at a time in the cluster."
    )
    concurrent_partitions_per_broker: int = Field(
        default=10, ge=1, le=1000, description="Partitions that move to one broker at a time."
    )


class GoalStatus(Model):
    name: str = Field(description="The goal.")
    hard: bool = Field(default=False, description="Whether it must be met.")
    met_before: bool = Field(description="Whether the cluster meets it now.")
    met_after: bool = Field(description="Whether it will meet it.")
    before: str = Field(default="", description="The least and the most loaded broker now.")
    after: str = Field(default="", description="The same after the rebalance.")


class TopicMoves(Model):
    topic: str = Field(description="The topic.")
    partitions: list[str] = Field(
        description="Partitions with their new replicas, the preferred leader first: 3=4,2,1."
    )


class RebalanceProposal(Model):
    id: str = Field(description="The id, for the approval.")
    reason: str = Field(description="The trigger, or Requested.")
    created_at: str = Field(description="When it was computed.")
    partitions: int = Field(description="The number of partitions that change.")
    replicas: int = Field(description="The number of replicas that move.")
    leaders: int = Field(description="The number of partitions with another preferred leader.")
    bytes: int = Field(description="Bytes that move.")
    seconds: int | None = Field(
        default=None, description="The estimated time in seconds under the throttle; none without a throttle."
    )
    score_before: int = Field(description="The balancedness now, 0 to 100.")
    score_after: int = Field(description="The balancedness after the rebalance.")
    goals: list[GoalStatus] = Field(default_factory=list, description="The goals, by priority.")
    moves: list[TopicMoves] = Field(default_factory=list, description="What moves, by topic, in this order.")


class RebalanceProgress(Model):
    """The rebalance in progress. Its moves are those of the proposal."""

    moved: int = Field(default=0, description="The number of partitions that have moved.")
    total: int = Field(description="The number of partitions that move.")
    bytes_left: int = Field(default=0, description="Bytes that are still to be moved.")
    started_at: str = Field(description="When it began.")
    cancelled: bool = Field(default=False, description="Whether it is being cancelled.")


class RebalanceResult(Model):
    id: str = Field(description="The id of the proposal.")
    result: Literal["Completed", "Cancelled", "Failed"] = Field(description="Completed, Cancelled or Failed.")
    message: str = Field(default="", description="What was moved, or why it ended.")
    ended_at: str = Field(description="When it ended.")


class RebalanceStatus(Model):
    """Rebalancing by load."""

    phase: Literal["Measuring", "Balanced", "Proposed", "Moving"] = Field(
        description="Measuring: the loads are not known yet; Balanced: nothing is to be moved; Proposed: a "
        "proposal waits for its approval; Moving: a rebalance is in progress."
    )
    message: str = Field(default="", description="What it waits for, or the imbalance.")
    brokers: int = Field(default=0, description="The number of brokers at the last balance.")
    handled_request: str = Field(default="", description="The last request for a proposal that was answered.")
    proposal: RebalanceProposal | None = Field(default=None, description="The current proposal.")
    progress: RebalanceProgress | None = Field(default=None, description="The rebalance in progress.")
    last: RebalanceResult | None = Field(default=None, description="The result of the last rebalance.")

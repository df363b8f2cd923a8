"""What was observed: the brokers as the platform runs them, and the cluster as its Admin API tells it.

Built by `reconcile` from the two ports, read by every planner. Plain frozen data; ids are broker ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ottla.security.acls import AclBinding

BrokerRunState = Literal["Stopped", "Starting", "Running", "Stopping", "Crashed"]

DriverRunState = Literal["Stopped", "Starting", "Running", "Stopping", "Crashed"]

VolumeLossKind = Literal["Asked", "Forced", "Gone", "Unreachable"]

PartitionKey = tuple[str, int]

QuotaEntity = tuple[str | None, str | None]
"""(user, client id); None: not of that kind, `<default>`: for all who have none of their own."""


def partition_name(key: PartitionKey) -> str:
    """`orders-3`, as Kafka's tools and log folders write it."""
    return f"{key[0]}-{key[1]}"


@dataclass(frozen=True, slots=True)
class VolumeLoss:
    """Why a broker's volume is to be given up for an empty one."""

    kind: VolumeLossKind
    """Asked for; asked for whatever is lost; it is gone for ever; it cannot be reached."""
    reason: str


@dataclass(frozen=True, slots=True)
class BrokerInstance:
    """One broker as the platform sees it: a pod, or a process with its folder."""

    id: int
    state: BrokerRunState
    ready: bool = False
    """It answers requests."""
    config_hash: str = ""
    """Of the static settings it runs with; "" when it never ran."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """The static settings it runs with, to tell what a bounce is for."""
    ready_since_ms: int | None = None
    started_at_ms: int | None = None
    crashes: int = 0
    """In a row, since it last was ready for a while."""
    rack: str | None = None
    name: str = ""
    message: str = ""
    """Why it is not running or not ready, when the platform knows."""
    begun: bool = True
    """Its process runs, or has run: while it starts it may be recovering logs."""
    volume_loss: VolumeLoss | None = None

    @property
    def stopped_by_us(self) -> bool:
        """It ran and was asked to stop: half-way through a bounce. One that never ran since the operator
        started is stopped, too, and was not bounced."""
        return self.state == "Stopped" and self.started_at_ms is not None


@dataclass(frozen=True, slots=True)
class PartitionState:
    topic: str
    partition: int
    leader: int
    """-1: none, the partition is offline."""
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def key(self) -> PartitionKey:
        return (self.topic, self.partition)

    @property
    def name(self) -> str:
        return partition_name(self.key)

    @property
    def reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas that it will have once its reassignment is over."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    @property
    def settled_replicas(self) -> tuple[int, ...]:
        """Replicas that should be in sync by now; one that is being added has a whole log to fetch first."""
        return tuple(broker for broker in self.replicas if broker not in self.adding)

    @property
    def under_replicated(self) -> bool:
        return any(broker not in self.isr for broker in self.settled_replicas)


@dataclass(frozen=True, slots=True)
class TopicState:
    name: str
    topic_id: str
    partitions: tuple[PartitionState, ...]
    config: Mapping[str, str] = field(default_factory=dict)
    """What is set on the topic itself, without defaults."""
    min_isr: int = 1
    """The effective min.insync.replicas."""
    internal: bool = False

    @property
    def replication_factor(self) -> int:
        return max((len(partition.target) for partition in self.partitions), default=0)


@dataclass(frozen=True, slots=True)
class GroupQuery:
    """What is to be observed of a group beside its state and its lag."""

    topics: tuple[str, ...] = ()
    """Whose first and last offsets are asked for."""
    timestamp_ms: int | None = None
    """And the offsets of this time."""
    in_zookeeper: bool = False
    """The group commits to ZooKeeper."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Offsets that exist, of the partitions of the topics in a GroupQuery."""

    starts: Mapping[PartitionKey, int]
    ends: Mapping[PartitionKey, int]
    at_time: Mapping[PartitionKey, int] = field(default_factory=dict)
    """Partitions with nothing as late as that are left out."""


@dataclass(frozen=True, slots=True)
class GroupState:
    group_id: str
    state: str
    """As Kafka names it; "Dead" when there is no such group, "Unknown" of one that commits to ZooKeeper."""
    members: int = 0
    coordinator: int = -1
    lags: Mapping[str, int] | None = None
    """Records behind the end of each topic with a committed offset; None when it could not be computed."""
    offsets: Mapping[PartitionKey, int] | None = None
    """What is committed; None when it could not be read."""
    positions: Positions | None = None
    """The answer to a GroupQuery with topics; None when there was none, or no answer."""


@dataclass(frozen=True, slots=True)
class AccessState:
    """Who may log in by SCRAM, and who may do what."""

    scram: Mapping[str, Mapping[str, int]]
    """Iterations by user and mechanism: all that Kafka tells of a credential."""
    acls: Mapping[str, frozenset[AclBinding]] | None
    """By principal; None when the brokers run without an authorizer."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A Secret, or a folder of files that stands for one."""

    name: str
    data: Mapping[str, bytes] = field(repr=False)
    owner: str = ""
    """The key of the resource that it was written for ("User/alice"); "" when it is none of ours."""
    version: str = ""
    """Another one after each change."""


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The last batch that a pipeline's job has ended."""

    id: int
    records: int
    duration_ms: int
    ended_at: str


@dataclass(frozen=True, slots=True)
class DifferingWindow:
    """A window of a topic's records of which a tier does not hold each once. `status` is the audit's."""

    start_ms: int
    tier: str
    status: str
    missing: int
    duplicated: int


@dataclass(frozen=True, slots=True)
class AuditedTopic:
    """What an audit job tells of a topic: records and windows that differ, and the first of these windows."""

    complete_until_ms: int | None = None
    """Up to when every tier holds everything; None before the first window."""
    late: bool = False
    """That time is further behind than tiers may be."""
    differing: int = 0
    missing: int = 0
    duplicated: int = 0
    windows: tuple[DifferingWindow, ...] = ()


@dataclass(frozen=True, slots=True)
class AuditResult:
    topics: Mapping[str, AuditedTopic]
    problem: str = ""
    """What keeps the job from a verdict on all topics."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """What a pipeline's driver tells of its job. `audit` is an audit job's."""

    application_id: str = ""
    lag: int | None = None
    caught_up: bool = False
    last_batch: BatchProgress | None = None
    error: str = ""
    audit: AuditResult | None = None


@dataclass(frozen=True, slots=True)
class DriverInstance:
    """A pipeline's driver as the platform sees it: a pod, or a process."""

    state: DriverRunState = "Stopped"
    name: str = ""
    revision: str = ""
    """What it runs with."""
    crashes: int = 0
    """In a row, as far as the platform counts them."""
    resting: bool = False
    """It is started again by the platform itself, or not to be started yet."""
    exit_code: int | None = None
    """How its process ended the last time; None when it never did."""
    message: str = ""
    """Why it does not run, or what the process that ended said last."""
    progress: JobProgress | None = None
    """None when it does not answer."""


@dataclass(frozen=True, slots=True)
class KafkaState:
    """The cluster as its controller tells it. `reachable` is False when no broker answered."""

    reachable: bool = False
    cluster_id: str = ""
    controller_id: int = -1
    brokers: frozenset[int] = frozenset()
    """Ids that are registered."""
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    groups: Mapping[str, GroupState] = field(default_factory=dict)
    problem: str = ""
    """Why the cluster could not be reached."""
    settings: Mapping[str, str | None] = field(default_factory=dict)
    """What is set for all brokers together, and taken while they run; None: a value that they do not tell."""
    quotas: Mapping[QuotaEntity, Mapping[str, float]] | None = None
    """Limits by entity, under Kafka's names; None when they could not be read."""
    access: AccessState | None = None
    """None when it was not asked for, or could not be read."""

    @property
    def settled(self) -> bool:
        """A controller is in office: what is said about partitions can be relied upon."""
        return self.reachable and self.controller_id in self.brokers

    def partitions(self) -> Iterator[PartitionState]:
        for topic in self.topics.values():
            yield from topic.partitions

    def with_topic(self) -> Iterator[tuple[TopicState, PartitionState]]:
        for topic in self.topics.values():
            for partition in topic.partitions:
                yield topic, partition

    def holding(self, broker: int) -> list[PartitionState]:
        """The partitions that have a replica on the broker, or are to get one."""
        return [partition for partition in self.partitions() if broker in partition.replicas]

    @property
    def reassigning(self) -> list[PartitionState]:
        return [partition for partition in self.partitions() if partition.reassigning]


@dataclass(frozen=True, slots=True)
class ZooKeeperState:
    running: bool
    connect: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything a pass of the reconciler sees."""

    zookeeper: ZooKeeperState
    brokers: Mapping[int, BrokerInstance]
    kafka: KafkaState
    now_ms: int
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    """Those that the resources need, as far as they are there."""

    def in_service(self, broker: int) -> bool:
        """It answers, and the cluster knows it."""
        instance = self.brokers.get(broker)
        return instance is not None and instance.ready and broker in self.kafka.brokers

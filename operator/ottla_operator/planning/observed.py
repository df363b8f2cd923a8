"""The observed state: brokers and drivers from the platform, the cluster from its Admin API.

Built by `reconcile` from the interfaces of `platform.interfaces`, read by every planner. Plain frozen data;
ids are broker ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from ottla.security.acls import AclBinding

BrokerRunState = Literal["Stopped", "Starting", "Running", "Stopping", "Crashed"]

DriverRunState = Literal["Stopped", "Starting", "Running", "Stopping", "Crashed"]

VolumeLossKind = Literal["Requested", "Forced", "Gone", "Unreachable"]

PartitionKey = tuple[str, int]

QuotaEntity = tuple[str | None, str | None]
"""(user, client id); None: the entity has no such part; `<default>`: the default entity."""


def partition_name(key: PartitionKey) -> str:
    """`orders-3`, as Kafka's tools and log folders write it."""
    return f"{key[0]}-{key[1]}"


@dataclass(frozen=True, slots=True)
class VolumeLoss:
    """Why a broker's volume must be replaced by an empty one."""

    kind: VolumeLossKind
    """Requested by a user; requested even if data is lost; deleted; on a node that no longer exists."""
    reason: str


@dataclass(frozen=True, slots=True)
class BrokerInstance:
    """The state of one broker on its platform: a pod, or a process with its folder."""

    id: int
    state: BrokerRunState
    ready: bool = False
    """It answers requests."""
    config_hash: str = ""
    """Of the static settings it runs with; "" when it never ran."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """The static settings it runs with; differences from the target are the reasons of a restart."""
    ready_since_ms: int | None = None
    started_at_ms: int | None = None
    crashes: int = 0
    """Consecutive crashes since the broker was last ready for some time."""
    rack: str | None = None
    name: str = ""
    message: str = ""
    """Why it is not running or not ready, when the platform knows."""
    process_started: bool = True
    """Its process has started: a broker in state Starting may be recovering its logs."""
    volume_loss: VolumeLoss | None = None
    pool: str = ""
    """The BrokerPool that it was started for, which may be deleted by now; "": the cluster's own pool."""
    delete_volume: bool = False
    """The last known deleteClaim of its BrokerPool, for when this is deleted."""
    fenced: bool = False
    """Its platform runs the broker's surroundings without the broker (`planning.fencing`)."""

    @property
    def stopped_by_us(self) -> bool:
        """Whether the operator stopped the running broker: it is in the middle of a restart. A broker that
        has not run since the operator started is in state Stopped as well, but not stopped by it."""
        return self.state == "Stopped" and self.started_at_ms is not None


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition as the controller describes it."""

    topic: str
    partition: int
    leader: int
    """-1: the partition is offline."""
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
    def target_replicas(self) -> tuple[int, ...]:
        """The replicas after the reassignment in flight (Kafka's targetReplicas)."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    @property
    def origin_replicas(self) -> tuple[int, ...]:
        """The replicas without those that the reassignment adds (Kafka's originReplicas): these should be
        in sync."""
        return tuple(broker for broker in self.replicas if broker not in self.adding)

    @property
    def under_replicated(self) -> bool:
        return any(broker not in self.isr for broker in self.origin_replicas)


@dataclass(frozen=True, slots=True)
class TopicState:
    """One topic as the controller describes it."""

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
        return max((len(partition.target_replicas) for partition in self.partitions), default=0)


@dataclass(frozen=True, slots=True)
class GroupQuery:
    """What to observe of a group besides its state and its lag."""

    topics: tuple[str, ...] = ()
    """Topics whose start and end offsets are needed."""
    timestamp_ms: int | None = None
    """The time whose offsets are needed, too."""
    in_zookeeper: bool = False
    """The group commits to ZooKeeper."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Existing offsets of the partitions of the topics in a GroupQuery."""

    starts: Mapping[PartitionKey, int]
    ends: Mapping[PartitionKey, int]
    at_time: Mapping[PartitionKey, int] = field(default_factory=dict)
    """Without partitions that have no record as late as the timestamp."""


@dataclass(frozen=True, slots=True)
class GroupState:
    """One consumer group with its offsets."""

    group_id: str
    state: str
    """As Kafka names it; "Dead" when there is no such group, "Unknown" of one that commits to ZooKeeper."""
    members: int = 0
    coordinator: int = -1
    lags: Mapping[str, int] | None = None
    """Records behind the end of each topic with a committed offset; None when it could not be computed."""
    offsets: Mapping[PartitionKey, int] | None = None
    """The committed offsets; None when they could not be read."""
    positions: Positions | None = None
    """The answer to a GroupQuery with topics; None when there was none, or no answer."""


@dataclass(frozen=True, slots=True)
class AccessState:
    """The SCRAM credentials and the ACLs of the cluster."""

    scram: Mapping[str, Mapping[str, int]]
    """Iterations by user and mechanism: Kafka describes no more of a credential."""
    acls: Mapping[str, frozenset[AclBinding]] | None
    """By principal; None when the brokers have no ACLs: no authorizer, or a custom one."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A Kubernetes Secret, or the folder of files that replaces one in `ottla up`."""

    name: str
    data: Mapping[str, bytes] = field(repr=False)
    owner: str = ""
    """The key of the resource that owns it ("User/alice"); "" when the operator did not write it."""
    version: str = ""
    """Changes with each write."""


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The last batch that a pipeline's job has ended."""

    id: int
    records: int
    duration_ms: int
    ended_at: str


@dataclass(frozen=True, slots=True)
class DifferingWindow:
    """A window of a topic in which a tier does not hold each record once. `status` is that of the audit's
    report."""

    start_ms: int
    tier: str
    status: str
    missing: int
    duplicated: int


@dataclass(frozen=True, slots=True)
class AuditedTopic:
    """An audit job's result for a topic: counts of differing records and windows, and the first of these
    windows."""

    complete_until_ms: int | None = None
    """The time up to which every tier holds all records; None before the first window."""
    late: bool = False
    """`complete_until_ms` is further behind than the audit allows."""
    differing: int = 0
    missing: int = 0
    duplicated: int = 0
    windows: tuple[DifferingWindow, ...] = ()


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The report of one audit job, by topic."""

    topics: Mapping[str, AuditedTopic]
    problem: str = ""
    """Why the job has no result for any topic."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The progress of a pipeline's job, from its driver. `audit` is set by an audit job."""

    application_id: str = ""
    lag: int | None = None
    caught_up: bool = False
    last_batch: BatchProgress | None = None
    error: str = ""
    audit: AuditResult | None = None


@dataclass(frozen=True, slots=True)
class DriverInstance:
    """The state of a pipeline's driver on its platform: a pod, or a process."""

    state: DriverRunState = "Stopped"
    name: str = ""
    revision: str = ""
    """The revision (`DriverLaunch.revision`) that it runs."""
    crashes: int = 0
    """Consecutive crashes, as far as the platform counts them."""
    backing_off: bool = False
    """The operator must not start it: the platform restarts it, or its back-off has not expired."""
    exit_code: int | None = None
    """The exit code of its last process that ended; None when none has."""
    message: str = ""
    """Why it does not run, or the last log line of the process that ended."""
    progress: JobProgress | None = None
    """None when it does not respond."""


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log directory of a broker."""

    path: str
    replicas: Mapping[PartitionKey, int] = field(default_factory=dict)
    """The bytes of each replica in it."""
    futures: Mapping[PartitionKey, int] = field(default_factory=dict)
    """The bytes so far of each replica that moves to it from another log directory of the broker."""
    failed: bool = False
    """It cannot be read or written; its replicas are not known."""
    total: int | None = None
    """The bytes of its file system; None when they are not known."""
    usable: int | None = None


@dataclass(frozen=True, slots=True)
class KafkaState:
    """The cluster as its controller describes it. `reachable` is False when no broker responded."""

    reachable: bool = False
    cluster_id: str = ""
    controller_id: int = -1
    brokers: frozenset[int] = frozenset()
    """The ids of the registered brokers."""
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    groups: Mapping[str, GroupState] = field(default_factory=dict)
    problem: str = ""
    """Why the cluster could not be reached."""
    settings: Mapping[str, str | None] = field(default_factory=dict)
    """The cluster-wide dynamic broker settings; None: a sensitive value, which brokers do not describe."""
    quotas: Mapping[QuotaEntity, Mapping[str, float]] | None = None
    """Quotas by entity, under Kafka's names; None when they could not be read."""
    access: AccessState | None = None
    """None when it was not requested, or could not be read."""
    log_dirs: Mapping[int, tuple[LogDir, ...]] = field(default_factory=dict)
    """The log directories by broker, as far as they were requested and could be read."""

    @property
    def has_controller(self) -> bool:
        """Whether the cluster has an elected controller that responds: only then is the state of
        partitions reliable."""
        return self.reachable and self.controller_id in self.brokers

    def partitions(self) -> Iterator[PartitionState]:
        for topic in self.topics.values():
            yield from topic.partitions

    def with_topic(self) -> Iterator[tuple[TopicState, PartitionState]]:
        for topic in self.topics.values():
            for partition in topic.partitions:
                yield topic, partition

    def holding(self, broker: int) -> list[PartitionState]:
        """The partitions with a replica on the broker, or one being added there."""
        return [partition for partition in self.partitions() if broker in partition.replicas]

    @property
    def reassigning(self) -> list[PartitionState]:
        return [partition for partition in self.partitions() if partition.reassigning]


@dataclass(frozen=True, slots=True)
class ZooKeeperServer:
    """One server of the ensemble."""

    id: int
    name: str
    ready: bool
    role: str
    """leader, follower, or "" without an answer."""
    revision: str
    waiting_for: str = ""
    """What its restart waits for; "" when none is due."""
    urgent: bool = False
    """Its restart waits for no maintenance window and for no other cluster, or has begun."""
    restarts: bool = False
    """It is being restarted, or will be as soon as the servers before it are back."""


@dataclass(frozen=True, slots=True)
class ZooKeeperState:
    """Whether ZooKeeper serves, and its connect string."""

    running: bool
    connect: str = ""
    message: str = ""
    revision: str = ""
    """The revision of the spec that servers should run."""
    servers: tuple[ZooKeeperServer, ...] = ()
    """Those that the operator runs as separate servers."""
    stalled: str = ""
    """Why their rolling restart has stopped."""
    absent: tuple[int, ...] = ()
    """The servers without a pod, in the middle of a restart."""

    @property
    def restarting(self) -> int | None:
        """The first server that restarts. No broker should stop meanwhile: without a leader of ZooKeeper its
        partitions get no other leaders, and its session does not end."""
        return min([*self.absent, *(server.id for server in self.servers if server.restarts)], default=None)

    @property
    def outdated(self) -> tuple[ZooKeeperServer, ...]:
        """The servers that still have to be restarted."""
        return tuple(server for server in self.servers if server.waiting_for)

    def held(self, message: str) -> ZooKeeperState:
        """The state while no restart may begin: what the servers wait for is `message`."""
        servers = [
            replace(server, waiting_for=message, restarts=not server.ready and server.restarts)
            if server.waiting_for and not server.urgent
            else server
            for server in self.servers
        ]
        return replace(self, servers=tuple(servers))


@dataclass(frozen=True, slots=True)
class PartitionLoad:
    """Bytes per second that clients write and read, and the bytes of one replica on disk."""

    bytes_in: float = 0.0
    bytes_out: float = 0.0
    size: int = 0


@dataclass(frozen=True, slots=True)
class BrokerDisks:
    """The bytes of each partition's largest replica, and of each broker's log directories, used and free."""

    sizes: Mapping[PartitionKey, int]
    totals: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ClusterLoad:
    """The loads of the cluster, averaged over a window."""

    partitions: Mapping[PartitionKey, PartitionLoad] = field(default_factory=dict)
    disks: Mapping[int, int] = field(default_factory=dict)
    """The bytes of each broker's log directories, used and free, as far as they are known."""
    covered_ms: int = 0
    """The time that the averages cover."""
    problem: str = ""
    """Why loads are not measured now."""
    fresh: bool = False
    """Measured since the last observation."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that one reconciliation observes."""

    zookeeper: ZooKeeperState
    brokers: Mapping[int, BrokerInstance]
    kafka: KafkaState
    now_ms: int
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    """The existing Secrets among those that the resources need."""
    load: ClusterLoad | None = None
    """None when it was not asked for."""

    def in_service(self, broker: int) -> bool:
        """Whether the broker is ready and registered."""
        instance = self.brokers.get(broker)
        return instance is not None and instance.ready and broker in self.kafka.brokers

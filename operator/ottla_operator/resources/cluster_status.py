"""The status of BrokerCluster."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from ottla_operator.resources.backup import BackupStatus, RecoveryStatus
from ottla_operator.resources.common import (
    LISTED_BY_NAME,
    MANAGED_SETTINGS,
    UNMANAGED_SETTINGS,
    Model,
    Status,
    UnmanagedSetting,
)
from ottla_operator.resources.quota import Limits
from ottla_operator.resources.rebalance import RebalanceStatus

RollCause = Literal["Spec", "Operator"]
ROLL_CAUSE: Final = (
    "Spec: the resource was changed, or a restart requested; Operator: the operator was upgraded, or its "
    "settings were changed."
)


class VolumeStatus(Model):
    id: int = Field(description="The volume's id.")
    state: Literal["Online", "Leaving", "Failed"] = Field(
        description="Online; Leaving: it is emptied, and removed with the next restart of its broker; "
        "Failed: the broker cannot read or write its log directory."
    )
    bytes: int | None = Field(default=None, description="The bytes of its file system, if they are known.")
    used_percent: int | None = Field(default=None, description="The used part of these, in percent.")
    replicas: int = Field(default=0, description="The number of replicas on it.")


class BrokerStatus(Model):
    id: int = Field(description="The broker's id.")
    pod_name: str = Field(default="", description="The broker's pod or process.")
    ready: bool = Field(default=False, description="Whether the broker is ready.")
    state: str = Field(
        default="Unknown",
        description="Running, NotReady, Draining, Starting, Stopping, Stopped, Crashed, Missing or Unknown.",
    )
    config_hash: str = Field(default="", description="The revision that the broker runs.")
    version: str = Field(
        default="", description="The inter.broker.protocol.version that the broker runs with."
    )
    pool: str = Field(
        default="", description="The BrokerPool of the broker; empty for one of the cluster's own pool."
    )
    restart_reasons: list[str] = Field(
        default_factory=list, description="Why the broker must restart; empty when it need not."
    )
    waiting_for: str = Field(default="", description="What the restart waits for; empty when it does not.")
    volumes: list[VolumeStatus] = Field(
        default_factory=list,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"]},
        description="The volumes of a broker with several.",
    )


class RolloutStatus(Model):
    id: str = Field(description="The id of the roll.")
    target_hash: str = Field(description="The revision that brokers restart with.")
    updated: int = Field(description="The number of brokers that run it.")
    total: int = Field(description="The number of brokers.")
    started_at: str = Field(description="When the roll began.")
    cause: RollCause = Field(default="Spec", description=ROLL_CAUSE)


class ReassignmentStatus(Model):
    id: str = Field(description="The id of the reassignment.")
    reason: str = Field(description="Why replicas move.")
    moved: int = Field(description="The number of partitions whose replicas have moved.")
    total: int = Field(description="The number of partitions whose replicas move.")
    started_at: str = Field(description="When the reassignment began.")


ReassignPhase = Literal["Waiting", "Moving", "Completed", "Refused"]


class ReassignRequestStatus(Model):
    """The progress of the request in the annotation ottla.dev/reassign."""

    id: str = Field(description="The id of the request.")
    phase: ReassignPhase = Field(description="Waiting, Moving, Completed or Refused.")
    message: str = Field(default="", description="What the request waits for, or why it is refused.")
    completed_at: str | None = Field(default=None, description="When it was completed.")


class ThrottleStatus(Model):
    """The replication throttle that the operator sets during a reassignment and removes after it."""

    rate: int | None = Field(
        default=None, description="Bytes per second; none when another tool has set the rate."
    )
    topics: list[str] = Field(
        default_factory=list, description="Topics whose throttled replicas the operator has set."
    )


class UpgradeStatus(Model):
    from_version: str = Field(description="The version before the upgrade.")
    to_version: str = Field(description="The version after the upgrade.")
    phase: Literal["Binaries", "Protocol"] = Field(
        description="Binaries: brokers restart with the new image; Protocol: they restart with the new "
        "inter.broker.protocol.version."
    )


class ListenerStatus(Model):
    """A listener's bootstrap servers and certificates, as in Strimzi's status."""

    name: str = Field(description="The listener's name.")
    bootstrap_servers: str = Field(
        default="", description="Bootstrap servers for clients of the listener: host:port[,host:port…]."
    )
    certificates: list[str] = Field(
        default_factory=list, description="The certificates that clients of the listener must trust, in PEM."
    )


class ZooKeeperServerStatus(Model):
    id: int = Field(description="The server's ordinal; its id in ZooKeeper is one more.")
    pod_name: str = Field(default="", description="The name of its pod.")
    ready: bool = Field(default=False, description="Whether it serves.")
    role: str = Field(default="", description="leader or follower; empty when it does not answer.")
    config_hash: str = Field(default="", description="The revision that it runs.")
    waiting_for: str = Field(default="", description="What its restart waits for; empty when none is due.")


class ZooKeeperStatus(Model):
    target_hash: str = Field(description="The revision of the spec; ottla.dev/approve-rollout approves it.")
    updated: int = Field(description="The number of servers that run it.")
    total: int = Field(description="The number of servers.")
    cause: RollCause = Field(default="Spec", description=ROLL_CAUSE)
    servers: list[ZooKeeperServerStatus] = Field(
        default_factory=list,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"]},
        description="The servers.",
    )


class BrokerClusterStatus(Status):
    replicas: int = Field(default=0, description="The number of brokers of the cluster's own pool.")
    desired_brokers: int = Field(
        default=0, description="The number of brokers that the cluster's own pool and BrokerPools ask for."
    )
    ready_replicas: int = Field(
        default=0, description="The number of brokers that are ready, with those of BrokerPools."
    )
    selector: str = Field(default="", description="The label selector of the pods of the cluster's own pool.")
    cluster_id: str = Field(default="", description="Kafka's id of the cluster.")
    controller_id: int = Field(default=-1, description="The broker that is the controller; -1: none.")
    version: str = Field(default="", description="The inter.broker.protocol.version of the brokers.")
    bootstrap_servers: str = Field(
        default="", description="Bootstrap servers for clients of the first listener: host:port[,host:port…]."
    )
    listeners: list[ListenerStatus] = Field(
        default_factory=list, description="The listeners with their bootstrap servers."
    )
    under_replicated_partitions: int = Field(
        default=0, description="The number of partitions with replicas that are not in sync."
    )
    under_min_isr_partitions: int = Field(
        default=0,
        description="The number of partitions with fewer replicas in sync than min.insync.replicas.",
    )
    offline_partitions: int = Field(default=0, description="The number of partitions without a leader.")
    brokers: list[BrokerStatus] = Field(
        default_factory=list,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"]},
        description="The brokers.",
    )
    zookeeper: ZooKeeperStatus | None = Field(
        default=None, description="The ZooKeeper that the operator runs; none for an external one."
    )
    rollout: RolloutStatus | None = Field(default=None, description="The rolling restart in progress.")
    handled_restarts: list[str] = Field(
        default_factory=list,
        description="Requested restarts that the operator has taken up, the latest last. Each value causes "
        "one rolling restart; removing a request, or setting it back to one of these, causes none.",
    )
    reassignment: ReassignmentStatus | None = Field(default=None, description="The reassignment in progress.")
    reassign_request: ReassignRequestStatus | None = Field(
        default=None, description="The requested reassignment."
    )
    rebalance: RebalanceStatus | None = Field(
        default=None, description="Rebalancing by load: the proposal, its progress, the last result."
    )
    throttle: ThrottleStatus | None = Field(
        default=None, description="The replication throttle that the operator has set."
    )
    upgrade: UpgradeStatus | None = Field(default=None, description="The upgrade in progress.")
    default_quotas: Limits | None = Field(
        default=None, description="The default quotas that the operator has set and must remove."
    )
    backup: BackupStatus | None = Field(default=None, description="The backups of the metadata.")
    recovery: RecoveryStatus | None = Field(
        default=None, description="The restoration of spec.bootstrap.recovery."
    )
    managed_settings: list[str] = Field(default_factory=list, description=MANAGED_SETTINGS)
    unmanaged_settings: list[UnmanagedSetting] = Field(
        default_factory=list, description=UNMANAGED_SETTINGS, json_schema_extra=LISTED_BY_NAME
    )

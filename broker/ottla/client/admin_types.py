"""What the admin client's answers look like: plain values, no protocol in them."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from ottla.client.core.types import Node as Node
from ottla.client.core.types import TopicPartition as TopicPartition
from ottla.protocol.errors import KafkaError


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    cluster_id: str | None
    controller_id: int
    """-1 while there is none."""
    brokers: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    partition: int
    leader: int
    """-1 while there is none."""
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()

    @property
    def under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)


@dataclass(frozen=True, slots=True)
class TopicDescription:
    name: str
    topic_id: UUID
    internal: bool
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    value: str | None
    source: int
    """1 topic, 2 and 3 dynamic broker, 4 static broker, 5 default (KIP-226)."""
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Reassignment:
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupMember:
    member_id: str
    group_instance_id: str | None
    """Of a static member (KIP-345)."""
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group_id: str
    state: str
    """As in Kafka: Empty, PreparingRebalance, CompletingRebalance, Stable, Dead."""
    members: tuple[GroupMember, ...]
    coordinator: Node
    protocol: str = ""
    """The assignor that the members have agreed on."""


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    size: int
    """Bytes."""
    offset_lag: int
    """Records behind the high watermark; of a future replica, behind the current one."""
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    path: str
    error: KafkaError | None
    total_bytes: int
    usable_bytes: int
    """-1 where the broker does not say (KIP-827)."""
    replicas: dict[TopicPartition, ReplicaInfo]

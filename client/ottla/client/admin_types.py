"""Arguments and results of the admin client: plain values without protocol classes; `Results` of many items.

Principals are text (`User:alice`). A number that the broker does not return is -1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Generic, NamedTuple, Self, TypeAlias, TypeVar, overload
from uuid import UUID

from ottla.client.core.types import Node as Node
from ottla.client.core.types import OffsetToCommit as OffsetToCommit
from ottla.client.core.types import TopicPartition as TopicPartition
from ottla.client.errors import ClientError
from ottla.security.acls import Operation

D = TypeVar("D")
K = TypeVar("K")
V = TypeVar("V")
Partitions: TypeAlias = Iterable[tuple[str, int]]
"""Plain tuples, or TopicPartition, which is a tuple."""
ByPartition: TypeAlias = Mapping[TopicPartition, V] | Mapping[tuple[str, int], V]

# --- the cluster and its features ---


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster: its id, controller and brokers."""

    cluster_id: str | None
    controller_id: int
    """-1 if there is none."""
    brokers: tuple[Node, ...]
    authorized_operations: frozenset[Operation] | None = None
    """The operations that the caller is authorized for; None if they were not requested (KIP-430)."""


class FeatureLevels(NamedTuple):
    """A range of feature levels."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class ClusterFeatures:
    """The finalized and supported features (KIP-584)."""

    finalized: dict[str, FeatureLevels]
    finalized_epoch: int | None
    supported: dict[str, FeatureLevels]
    """The features supported by the broker that responded."""


class ApiVersions(NamedTuple):
    """The versions of one API that a broker supports."""

    key: int
    name: str
    """For example Produce; empty if the client does not know the key."""
    least: int
    most: int
    used: int | None
    """The version that this client uses; None without a common version."""


class UpgradeType(IntEnum):
    """The kind of a feature update."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """A new level of a feature."""

    level: int
    """0 removes the feature."""
    upgrade_type: UpgradeType = UpgradeType.UPGRADE


# --- topics and replicas ---


@dataclass(frozen=True)
class NewTopic:
    """A topic to create; -1 stands for the default of the broker (KIP-464)."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    config: Mapping[str, str] = field(default_factory=dict)
    assignment: Mapping[int, Sequence[int]] | None = None
    """The replicas of each partition, preferred leader first; both numbers must be left out then."""


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """A new number of partitions of a topic."""

    count: int
    """The total number of partitions."""
    assignments: Sequence[Sequence[int]] | None = None
    """The replicas of each new partition, preferred leader first."""


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition: its leader and replicas."""

    partition: int
    leader: int
    """-1 if there is none."""
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()

    @property
    def under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)


@dataclass(frozen=True, slots=True)
class TopicListing:
    """A topic as it is listed."""

    name: str
    topic_id: UUID
    internal: bool


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its partitions."""

    name: str
    topic_id: UUID
    internal: bool
    partitions: tuple[PartitionDescription, ...]
    authorized_operations: frozenset[Operation] | None = None


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A reassignment in progress."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class ElectionType(IntEnum):
    """The kind of a leader election."""

    PREFERRED = 0
    UNCLEAN = 1
    """Any live replica if none is in sync: records may be lost."""


# --- configuration ---


class ConfigType(IntEnum):
    """The kind of a config resource."""

    TOPIC = 2
    BROKER = 4
    """By broker id; an empty name stands for all brokers."""
    BROKER_LOGGER = 8


class ConfigResource(NamedTuple):
    """A topic, a broker or a broker logger."""

    type: ConfigType
    name: str

    def __str__(self) -> str:
        return f"{self.type.name.lower()} {self.name}".rstrip()


class ConfigOperation(IntEnum):
    """The operation of a config change."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """A change of one config (KIP-339). APPEND and SUBTRACT are for lists."""

    name: str
    value: str | None
    operation: ConfigOperation = ConfigOperation.SET


class ConfigSynonym(NamedTuple):
    """A value of a config from one source."""

    name: str
    value: str | None
    source: int


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """The value of a config and its source."""

    value: str | None
    source: int
    """1 topic, 2 and 3 dynamic broker, 4 static broker, 5 default, 6 dynamic logger (KIP-226)."""
    read_only: bool = False
    sensitive: bool = False
    """The broker does not return the value."""
    synonyms: tuple[ConfigSynonym, ...] = ()
    """If requested: the values from all sources in the order of precedence."""
    type: int = 0
    """1 boolean, 2 string, 3 int, 4 short, 5 long, 6 double, 7 list, 8 class, 9 password; 0 unknown."""
    documentation: str | None = None


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A created topic."""

    topic_id: UUID
    partitions: int
    replication_factor: int
    config: dict[str, ConfigEntry] | None
    """None if the caller is not authorized to see it (KIP-525)."""


# --- logs ---


class OffsetSpec(IntEnum):
    """Which offset to list; any other number is a timestamp in ms, for the first record with this timestamp
    or a later one."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    """The offset of the record with the largest timestamp (KIP-734)."""
    EARLIEST_LOCAL = -4
    """The first offset that is not in remote storage only (KIP-405)."""
    LATEST_TIERED = -5
    """The last offset in remote storage (KIP-1005)."""


class ListedOffset(NamedTuple):
    """An offset in a log."""

    offset: int
    """-1 if there is no such record."""
    timestamp_ms: int
    leader_epoch: int


class TopicPartitionReplica(NamedTuple):
    """The replica of a partition on a broker."""

    topic: str
    partition: int
    broker: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} on broker {self.broker}"


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """A replica in a log directory."""

    size: int
    """Bytes."""
    offset_lag: int
    """The lag behind the high watermark in records; of a future replica, behind the current one."""
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A log directory of a broker."""

    path: str
    error: ClientError | None
    total_bytes: int
    usable_bytes: int
    """-1 if the broker does not return it (KIP-827)."""
    replicas: dict[TopicPartition, ReplicaInfo]


@dataclass(frozen=True, slots=True)
class ReplicaLogDirs:
    """The log directories of a replica; None and -1 if there is no replica, or none that is being moved."""

    current: str | None = None
    current_lag: int = -1
    future: str | None = None
    future_lag: int = -1


# --- groups ---


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group as it is listed."""

    group_id: str
    protocol_type: str
    """`consumer`, `connect`…; empty for a group that was created by a commit."""
    state: str
    type: str
    """`classic`, or `consumer` (KIP-848)."""

    @property
    def simple(self) -> bool:
        """Whether the group has committed offsets only, and never had members."""
        return not self.protocol_type


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group."""

    member_id: str
    group_instance_id: str | None
    """Set for a static member (KIP-345)."""
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its members."""

    group_id: str
    state: str
    """As in Kafka: Empty, PreparingRebalance, CompletingRebalance, Stable, Dead."""
    members: tuple[GroupMember, ...]
    coordinator: Node
    protocol: str = ""
    """The assignor that the coordinator has chosen."""
    protocol_type: str = ""
    authorized_operations: frozenset[Operation] | None = None


class MemberToRemove(NamedTuple):
    """A member to remove, by group.instance.id or member id."""

    group_instance_id: str | None = None
    member_id: str = ""

    def __str__(self) -> str:
        return self.group_instance_id or self.member_id


# --- transactions ---


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The state of a producer in a partition (KIP-664)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int
    """-1 without an open transaction."""


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id as it is listed."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id and its transaction."""

    coordinator: Node
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    """-1 without an open transaction."""
    partitions: tuple[TopicPartition, ...]


class ProducerIdAndEpoch(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    epoch: int


# --- users: quotas, credentials, tokens ---

ANY: Final = object()
"""In a filter of quotas: any name, and the default."""


class QuotaEntity(Mapping[str, str | None]):
    """The entity of a quota: names by type (`user`, `client-id`, `ip`); None is the default of a type."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Mapping[str, str | None]) -> None:
        self._parts = dict(sorted(parts.items()))

    def __getitem__(self, key: str) -> str | None:
        return self._parts[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __hash__(self) -> int:
        return hash(frozenset(self._parts.items()))

    def __repr__(self) -> str:
        return f"QuotaEntity({self._parts!r})"


class ScramUpsertion(NamedTuple):
    """A SCRAM credential to create or replace; the password is sent only salted and hashed."""

    user: str
    mechanism: str
    """SCRAM-SHA-256 or SCRAM-SHA-512."""
    password: str
    iterations: int = 4096


class ScramDeletion(NamedTuple):
    """A SCRAM credential to delete."""

    user: str
    mechanism: str


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A delegation token (KIP-48). `token_id` and, in Base64, `hmac` are the name and the password of a SCRAM
    login."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    expires_at_most_ms: int
    hmac: bytes = field(repr=False)


# --- results ---


class Results(Mapping[K, V], Generic[K, V]):
    """A mapping of the items that succeeded to their results; `errors` has the others.

    `results[item]` raises the error of a failed item, and KeyError for an item that was not requested.
    """

    __slots__ = ("_succeeded", "errors")

    def __init__(self, outcomes: Mapping[K, V | ClientError]) -> None:
        """`outcomes`: the result or the error of each item."""
        self._succeeded: dict[K, V] = {}
        self.errors: dict[K, ClientError] = {}
        for key, outcome in outcomes.items():
            if isinstance(outcome, ClientError):
                self.errors[key] = outcome
            else:
                self._succeeded[key] = outcome

    def raise_first(self) -> Self:
        """Raise the error of the first failed item, if there is one."""
        for error in self.errors.values():
            raise error
        return self

    def outcomes(self) -> dict[K, V | ClientError]:
        """The result or the error of each item."""
        return {**self._succeeded, **self.errors}

    def __getitem__(self, key: K) -> V:
        if key in self.errors:
            raise self.errors[key]
        return self._succeeded[key]

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: V | D) -> V | D: ...
    def get(self, key: K, default: object = None) -> object:
        """The result of an item; `default` if it failed or was not requested."""
        return self._succeeded.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._succeeded

    def __iter__(self) -> Iterator[K]:
        return iter(self._succeeded)

    def __len__(self) -> int:
        return len(self._succeeded)

    def __repr__(self) -> str:
        return f"Results({self._succeeded!r}, errors={self.errors!r})"

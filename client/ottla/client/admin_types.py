"""Arguments and results of the admin client: plain values without protocol classes; `Results` of many items.

Principals are text, as everywhere (`User:alice`). A number that the broker does not tell is -1.
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
"""As users give them: plain tuples or TopicPartition, which is one."""
ByPartition: TypeAlias = Mapping[TopicPartition, V] | Mapping[tuple[str, int], V]

# --- the cluster and its features ---


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    cluster_id: str | None
    controller_id: int
    """-1 while there is none."""
    brokers: tuple[Node, ...]
    authorized_operations: frozenset[Operation] | None = None
    """What the caller may do to the cluster; None where it was not asked for (KIP-430)."""


class FeatureLevels(NamedTuple):
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class ClusterFeatures:
    """KIP-584."""

    finalized: dict[str, FeatureLevels]
    finalized_epoch: int | None
    supported: dict[str, FeatureLevels]
    """By the broker that answered."""


class ApiVersions(NamedTuple):
    """One API that a broker serves."""

    key: int
    name: str
    """As Kafka writes it, as Produce; empty where this client does not know the key."""
    least: int
    most: int
    used: int | None
    """By this client; None where it has no version in common."""


class UpgradeType(IntEnum):
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    level: int
    """0 removes the feature."""
    upgrade_type: UpgradeType = UpgradeType.UPGRADE


# --- topics and where they are ---


@dataclass(frozen=True)
class NewTopic:
    """-1 leaves a number to the brokers' defaults (KIP-464)."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    config: Mapping[str, str] = field(default_factory=dict)
    assignment: Mapping[int, Sequence[int]] | None = None
    """The brokers of each partition, preferred leader first; both numbers are left out then."""


@dataclass(frozen=True, slots=True)
class NewPartitions:
    count: int
    """Of the topic, the old ones included."""
    assignments: Sequence[Sequence[int]] | None = None
    """The brokers of each new one, preferred leader first."""


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
class TopicListing:
    name: str
    topic_id: UUID
    internal: bool


@dataclass(frozen=True, slots=True)
class TopicDescription:
    name: str
    topic_id: UUID
    internal: bool
    partitions: tuple[PartitionDescription, ...]
    authorized_operations: frozenset[Operation] | None = None


@dataclass(frozen=True, slots=True)
class Reassignment:
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class ElectionType(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1
    """Any replica, where none is in sync: records may be lost."""


# --- configuration ---


class ConfigType(IntEnum):
    TOPIC = 2
    BROKER = 4
    """By its id; all of them for an empty name."""
    BROKER_LOGGER = 8


class ConfigResource(NamedTuple):
    type: ConfigType
    name: str

    def __str__(self) -> str:
        return f"{self.type.name.lower()} {self.name}".rstrip()


class ConfigOperation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """KIP-339. APPEND and SUBTRACT are for lists."""

    name: str
    value: str | None
    operation: ConfigOperation = ConfigOperation.SET


class ConfigSynonym(NamedTuple):
    name: str
    value: str | None
    source: int


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    value: str | None
    source: int
    """1 topic, 2 and 3 dynamic broker, 4 static broker, 5 default, 6 dynamic logger (KIP-226)."""
    read_only: bool = False
    sensitive: bool = False
    """Its value is not told."""
    synonyms: tuple[ConfigSynonym, ...] = ()
    """Where asked for: all that would be in force one after the other, the value's own first."""
    type: int = 0
    """1 boolean, 2 string, 3 int, 4 short, 5 long, 6 double, 7 list, 8 class, 9 password; 0 unknown."""
    documentation: str | None = None


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    topic_id: UUID
    partitions: int
    replication_factor: int
    config: dict[str, ConfigEntry] | None
    """None where the caller may not see it (KIP-525)."""


# --- logs ---


class OffsetSpec(IntEnum):
    """Which offset; any other number is a time in ms, and stands for the first record of then or later."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    """Of the record with the largest timestamp (KIP-734)."""
    EARLIEST_LOCAL = -4
    """Of what is not in remote storage alone (KIP-405)."""
    LATEST_TIERED = -5
    """Of what is in remote storage (KIP-1005)."""


class ListedOffset(NamedTuple):
    offset: int
    """-1 where there is no such record."""
    timestamp_ms: int
    leader_epoch: int


class TopicPartitionReplica(NamedTuple):
    topic: str
    partition: int
    broker: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} on broker {self.broker}"


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
    error: ClientError | None
    total_bytes: int
    usable_bytes: int
    """-1 where the broker does not say (KIP-827)."""
    replicas: dict[TopicPartition, ReplicaInfo]


@dataclass(frozen=True, slots=True)
class ReplicaLogDirs:
    """None and -1 where there is none: of a replica that is not here, or not on its way elsewhere."""

    current: str | None = None
    current_lag: int = -1
    future: str | None = None
    future_lag: int = -1


# --- groups ---


@dataclass(frozen=True, slots=True)
class GroupListing:
    group_id: str
    protocol_type: str
    """`consumer`, `connect`…; empty for a group that was made by a commit alone."""
    state: str
    type: str
    """`classic`, or `consumer` (KIP-848)."""

    @property
    def simple(self) -> bool:
        """Whether it is known by its committed offsets alone: nobody has ever joined."""
        return not self.protocol_type


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
    protocol_type: str = ""
    authorized_operations: frozenset[Operation] | None = None


class MemberToRemove(NamedTuple):
    """A member of a group, by either name."""

    group_instance_id: str | None = None
    member_id: str = ""

    def __str__(self) -> str:
        return self.group_instance_id or self.member_id


# --- transactions ---


@dataclass(frozen=True, slots=True)
class ProducerState:
    """What a partition remembers of a producer (KIP-664)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int
    """-1 without an open transaction."""


@dataclass(frozen=True, slots=True)
class TransactionListing:
    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    coordinator: Node
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    """-1 without an open transaction."""
    partitions: tuple[TopicPartition, ...]


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int
    epoch: int


# --- users: quotas, credentials, tokens ---

ANY: Final = object()
"""In a filter of quotas: whatever name, and the default."""


class QuotaEntity(Mapping[str, str | None]):
    """Who a quota is for: names by type (`user`, `client-id`, `ip`); None is the default of a type."""

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
    """A credential to make or replace; the password leaves this process salted alone."""

    user: str
    mechanism: str
    """SCRAM-SHA-256 or SCRAM-SHA-512."""
    password: str
    iterations: int = 4096


class ScramDeletion(NamedTuple):
    user: str
    mechanism: str


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """KIP-48. `token_id` and, in Base64, `hmac` are the name and the password of a SCRAM login with it."""

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
    """A mapping of the items that went well to their results; `errors` has the others.

    `results[item]` raises the item's error where it failed, and KeyError where nobody asked for it.
    """

    __slots__ = ("_succeeded", "errors")

    def __init__(self, outcomes: Mapping[K, V | ClientError]) -> None:
        """`outcomes`: each item's result, or its error."""
        self._succeeded: dict[K, V] = {}
        self.errors: dict[K, ClientError] = {}
        for key, outcome in outcomes.items():
            if isinstance(outcome, ClientError):
                self.errors[key] = outcome
            else:
                self._succeeded[key] = outcome

    def raise_first(self) -> Self:
        """Raise the first item's error, if any failed: for callers to whom a part is not enough."""
        for error in self.errors.values():
            raise error
        return self

    def outcomes(self) -> dict[K, V | ClientError]:
        """Each item's result, or its error."""
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
        """The item's result; `default` where it failed, or was not asked for."""
        return self._succeeded.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._succeeded

    def __iter__(self) -> Iterator[K]:
        return iter(self._succeeded)

    def __len__(self) -> int:
        return len(self._succeeded)

    def __repr__(self) -> str:
        return f"Results({self._succeeded!r}, errors={self.errors!r})"

"""Groups, transactions and users, as the admin client is asked with and answers; see `admin_types`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ottla.client.core.types import Node, TopicPartition
from ottla.security.acls import Operation

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

"""Effects of the pure group protocol: responses to complete, timers to set, records to append.

`membership` returns lists of these; `coordinator` (or a test) applies them in order. A waiter is the handle
of a deferred response, opaque to the pure modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from ottla.coordinators.group import Group, Protocols, Waiter
from ottla.coordinators.records import GroupMetadataValue
from ottla.protocol.errors import ErrorCode


class TimerKind(Enum):
    SESSION = "session"
    """The session of a member: it must send a request before this (session.timeout.ms)."""
    PENDING_MEMBER = "pending member"
    """A client that got a member id must join with it before this (KIP-394)."""
    JOIN = "join"
    """The join phase of the rebalance ends at this time, also without the missing members."""
    SYNC = "sync"
    """Every member of the new generation must send SyncGroup before this."""


class Timer(NamedTuple):
    """The key of a timer: it has at most one deadline, and setting it again moves the deadline. Effects have
    delays instead of times, because wall time may jump."""

    kind: TimerKind
    group_id: str
    member_id: str = ""


class JoinedMember(NamedTuple):
    """A member in the leader's JoinGroup response."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResult:
    """The content of a JoinGroup response."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The content of a SyncGroup response."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class CompleteJoin:
    waiter: Waiter
    result: JoinResult


@dataclass(frozen=True, slots=True)
class CompleteSync:
    waiter: Waiter
    result: SyncResult


@dataclass(frozen=True, slots=True)
class SetTimer:
    timer: Timer
    delay_ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    timer: Timer


@dataclass(frozen=True, slots=True)
class AssignmentStored:
    """The leader's assignment of this generation; the members get it once it is replicated."""

    generation: int
    assignment: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class EmptyGroupStored:
    """The group lost its last member; no response depends on this record."""


@dataclass(frozen=True, slots=True)
class StaticMemberStored:
    """A static member joined with a new member id; a failed write restores the old values."""

    instance_id: str
    old_member_id: str
    new_member_id: str
    old_protocols: Protocols
    old_rebalance_timeout_ms: int
    old_session_timeout_ms: int
    old_leader: str
    supports_skipping_assignment: bool


AfterStore: TypeAlias = AssignmentStored | EmptyGroupStored | StaticMemberStored


@dataclass(frozen=True, slots=True)
class StoreGroup:
    """Append `value` as the group's metadata, then report to `Membership.group_stored`."""

    group: Group
    value: GroupMetadataValue
    then: AfterStore


Effect: TypeAlias = CompleteJoin | CompleteSync | SetTimer | CancelTimer | StoreGroup

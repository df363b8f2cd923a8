"""What the pure core asks of its shell: answers to complete, timers to set, records to append.

`membership` returns lists of these; `coordinator` (or a test) carries them out, in order. A waiter is the
handle of an answer that is still due; the core never looks into it.
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
    """A member must be heard from before this."""
    PENDING_MEMBER = "pending member"
    """Who was given a member id must come back with it before this (KIP-394)."""
    JOIN = "join"
    """The rebalance ends at this time, whoever is missing."""
    SYNC = "sync"
    """Every member of the new generation must have asked for its assignment before this."""


class Timer(NamedTuple):
    """At most one deadline is set for each; setting it again moves it. Delays, so that wall time may jump."""

    kind: TimerKind
    group_id: str
    member_id: str = ""


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResult:
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
    """The leader's assignment of this generation; once replicated, the members may have it."""

    generation: int
    assignment: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class EmptinessStored:
    """The group lost its last member; nobody waits for this record."""


@dataclass(frozen=True, slots=True)
class StaticMemberStored:
    """A static member came back under a new member id; the old values serve to undo that on failure."""

    instance_id: str
    old_member_id: str
    new_member_id: str
    old_protocols: Protocols
    old_rebalance_timeout_ms: int
    old_session_timeout_ms: int
    old_leader: str
    supports_skipping_assignment: bool


AfterStore: TypeAlias = AssignmentStored | EmptinessStored | StaticMemberStored


@dataclass(frozen=True, slots=True)
class StoreGroup:
    """Append `value` as the group's metadata, then report to `Membership.group_stored`."""

    group: Group
    value: GroupMetadataValue
    then: AfterStore


Effect: TypeAlias = CompleteJoin | CompleteSync | SetTimer | CancelTimer | StoreGroup

"""One consumer group (GroupMetadata): its state machine as a table, its members, and protocol selection.

Changed by `membership` and `rebalance`, written by `records`, restored by `replay`, described by
`group_requests`.

Invariants: state transitions are those of `TRANSITIONS`; every waiter of a JoinGroup or SyncGroup response
belongs to a member; every member has the group's protocol type; generations only grow.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from ottla.coordinators.offsets import GroupOffsets
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import OFFSETS_TOPIC

CONSUMER_PROTOCOL_TYPE = "consumer"

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""(name, metadata), in the member's order of preference."""

Waiter: TypeAlias = object
"""The handle of a deferred response. Opaque to the pure modules."""


class GroupState(Enum):
    """The values are the names in ListGroups and DescribeGroups."""

    EMPTY = "Empty"
    """No members; possibly offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Waiting for the members to join."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """A new generation has started; waiting for its leader's assignment."""
    STABLE = "Stable"
    """Every member can get its assignment."""
    DEAD = "Dead"
    """Removed from this broker: deleted, expired, or moved with its partition."""


TRANSITIONS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.COMPLETING_REBALANCE, GroupState.EMPTY, GroupState.DEAD}
    ),
    GroupState.COMPLETING_REBALANCE: frozenset(
        {GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.EMPTY, GroupState.DEAD}
    ),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE, GroupState.EMPTY, GroupState.DEAD}),
    GroupState.DEAD: frozenset({GroupState.DEAD}),
}


@dataclass(slots=True)
class Member:
    """A member of a group (MemberMetadata)."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    """Whether the member has not got its member id yet, so that it cannot send heartbeats."""

    def metadata_for(self, protocol_name: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")

    def vote(self, candidates: Iterable[str]) -> str:
        """The candidate that comes first in this member's order of preference."""
        allowed = set(candidates)
        return next(name for name, _ in self.protocols if name in allowed)


class Group:
    """The state of a group in its coordinator. Methods keep it consistent; the rules are in `membership`."""

    def __init__(
        self, group_id: str, state: GroupState = GroupState.EMPTY, now_ms: int | None = None
    ) -> None:
        self.group_id = group_id
        self.partition = -1
        """Its partition of `__consumer_offsets`, while this broker coordinates it."""
        self.state = state
        self.state_since_ms: int | None = now_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self.pending_members: set[str] = set()
        self.pending_sync: set[str] = set()
        self.awaiting_join: dict[str, Waiter] = {}
        self.awaiting_sync: dict[str, Waiter] = {}
        self.initial_delay_remaining_ms: int | None = None
        """Set while the first rebalance of an empty group is delayed (group.initial.rebalance.delay.ms)."""
        self.new_member_added = False
        self.subscribed_topics: frozenset[str] | None = None
        """The topics that the members are subscribed to; None if their metadata cannot be parsed."""
        self.offsets = GroupOffsets()
        self._supporters: Counter[str] = Counter()

    def __repr__(self) -> str:
        return (
            f"Group({self.group_id!r}, {self.state.value}, generation={self.generation}, "
            f"members={len(self.members)})"
        )

    @property
    def partition_name(self) -> str:
        return f"{OFFSETS_TOPIC}-{self.partition}"

    # -- state ---------------------------------------------------------------------------------------

    def transition_to(self, state: GroupState, now_ms: int) -> None:
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(
                f"group {self.group_id}: illegal transition from {self.state.value} to {state.value}"
            )
        self.state = state
        self.state_since_ms = now_ms

    @property
    def can_rebalance(self) -> bool:
        return GroupState.PREPARING_REBALANCE in TRANSITIONS[self.state]

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def all_members_joined(self) -> bool:
        return len(self.awaiting_join) == len(self.members) and not self.pending_members

    # -- members -------------------------------------------------------------------------------------

    def add(self, member: Member, protocol_type: str, waiter: Waiter | None = None) -> None:
        """Add a member; the first one sets the protocol type and becomes the leader."""
        assert member.member_id not in self.members
        if not self.members:
            self.protocol_type = protocol_type
        assert self.protocol_type == protocol_type
        if member.instance_id is not None:
            assert member.instance_id not in self.static_members
            self.static_members[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._supporters.update({name for name, _ in member.protocols})
        if waiter is not None:
            self.awaiting_join[member.member_id] = waiter
        self.pending_members.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending member. Its waiters must have been completed before."""
        assert member_id not in self.awaiting_join
        assert member_id not in self.awaiting_sync
        member = self.members.pop(member_id, None)
        if member is not None:
            self._supporters.subtract({name for name, _ in member.protocols})
            if member.instance_id is not None:
                self.static_members.pop(member.instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_members.discard(member_id)
        self.pending_sync.discard(member_id)

    def update(
        self, member: Member, protocols: Protocols, rebalance_timeout_ms: int, session_timeout_ms: int
    ) -> None:
        self._supporters.subtract({name for name, _ in member.protocols})
        self._supporters.update({name for name, _ in protocols})
        member.protocols = protocols
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def rename_static_member(self, instance_id: str, old_member_id: str, new_member_id: str) -> Member:
        """Give a static member its new member id (KIP-345). Its waiters must have been completed before."""
        assert old_member_id not in self.awaiting_join
        assert old_member_id not in self.awaiting_sync
        member = self.members.pop(old_member_id)
        member.member_id = new_member_id
        self.members[new_member_id] = member
        self.static_members[instance_id] = new_member_id
        if self.leader_id == old_member_id:
            self.leader_id = new_member_id
        if old_member_id in self.pending_sync:
            self.pending_sync.remove(old_member_id)
            self.pending_sync.add(new_member_id)
        return member

    def validate_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """NONE, UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if another process has the instance id now."""
        if instance_id is not None:
            current = self.static_members.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            return ErrorCode.NONE if current == member_id else ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    # -- protocol and generation ---------------------------------------------------------------------

    def supports_protocols(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether every member supports one of these protocols."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        member_count = len(self.members)
        return self.protocol_type == protocol_type and any(
            self._supporters[name] == member_count for name, _ in protocols
        )

    def select_protocol(self) -> str:
        """The protocol with the most votes of those that all members support; the first vote wins a tie."""
        member_count = len(self.members)
        candidates = {name for name, count in self._supporters.items() if count == member_count}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def elect_joined_leader(self) -> bool:
        """Make a member that joined the leader, unless the leader has; False if no member joined."""
        if self.leader_id is None:
            return False
        if self.leader_id not in self.awaiting_join:
            joined = next((member_id for member_id in self.members if member_id in self.awaiting_join), None)
            if joined is None:
                return False
            self.leader_id = joined
        return True

    def begin_generation(self, now_ms: int) -> None:
        """Start the next generation: select the protocol, or become Empty without members."""
        self.generation += 1
        self.pending_sync.clear()
        if self.members:
            self.protocol_name = self.select_protocol()
            self.transition_to(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol_name = None
            self.transition_to(GroupState.EMPTY, now_ms)
        self.refresh_subscribed_topics()

    def refresh_subscribed_topics(self) -> None:
        self.subscribed_topics = None
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return
        if not self.members:
            self.subscribed_topics = frozenset()
        elif self.protocol_name is not None:
            try:
                self.subscribed_topics = frozenset(
                    topic
                    for member in self.members.values()
                    for topic in parse_subscription(member.metadata_for(self.protocol_name))
                )
            except (struct.error, UnicodeDecodeError, ValueError):
                self.subscribed_topics = None

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member is subscribed to the topic; True if the subscriptions are unknown."""
        return self.subscribed_topics is None or topic in self.subscribed_topics


def parse_subscription(metadata: bytes) -> list[str]:
    """The topics in a consumer's protocol metadata (ConsumerProtocolSubscription, any version)."""
    _version, count = struct.unpack_from(">hi", metadata)
    if count < 0:
        raise ValueError("the number of topics is negative")
    topics: list[str] = []
    position = 6
    for _ in range(count):
        (length,) = struct.unpack_from(">h", metadata, position)
        position += 2
        if length < 0 or position + length > len(metadata):
            raise ValueError("a topic name exceeds the metadata")
        topics.append(metadata[position : position + length].decode())
        position += length
    return topics


NewMemberId: TypeAlias = Callable[[str], str]
"""Creates a unique member id from the client id (or the instance id, for static members)."""

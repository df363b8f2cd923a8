"""The phases of a rebalance: preparing, joining, syncing, their timeouts, and removal of members.

Called by `membership` only. Functions append their effects to a `Step`.
"""

from __future__ import annotations

import logging

from ottla.coordinators.config import GroupConfig
from ottla.coordinators.effects import (
    CancelTimer,
    CompleteJoin,
    CompleteSync,
    Effect,
    EmptyGroupStored,
    JoinedMember,
    JoinResult,
    SetTimer,
    StoreGroup,
    SyncResult,
    Timer,
    TimerKind,
)
from ottla.coordinators.group import Group, GroupState, Member, Waiter
from ottla.coordinators.records import group_value
from ottla.protocol.errors import ErrorCode

logger = logging.getLogger(__name__)


class Step:
    """One call of the group protocol: its time, and its effects so far."""

    __slots__ = ("effects", "now_ms")

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.effects: list[Effect] = []

    def complete_join(self, waiter: Waiter, result: JoinResult) -> None:
        self.effects.append(CompleteJoin(waiter, result))

    def complete_sync(self, waiter: Waiter, result: SyncResult) -> None:
        self.effects.append(CompleteSync(waiter, result))

    def set_timer(self, timer: Timer, delay_ms: int) -> None:
        self.effects.append(SetTimer(timer, delay_ms))

    def restart_session(self, group: Group, member: Member) -> None:
        self.set_timer(Timer(TimerKind.SESSION, group.group_id, member.member_id), member.session_timeout_ms)


def group_information(
    group: Group, member_id: str, *, with_members: bool, skip: bool = False, leader: str | None = None
) -> JoinResult:
    """The JoinGroup response for the current generation; only the leader gets the members' metadata."""
    members = (
        tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata_for(group.protocol_name))
            for member in group.members.values()
        )
        if with_members
        else ()
    )
    return JoinResult(
        ErrorCode.NONE,
        member_id,
        group.generation,
        group.protocol_type,
        group.protocol_name,
        (group.leader_id or "") if leader is None else leader,
        members,
        skip,
    )


class Rebalance:
    """The rebalance rules with the configured delays."""

    def __init__(self, config: GroupConfig) -> None:
        self._config = config

    # -- preparing -----------------------------------------------------------------------------------

    def maybe_prepare_rebalance(self, step: Step, group: Group, reason: str) -> None:
        if group.can_rebalance:
            self.prepare_rebalance(step, group, reason)

    def prepare_rebalance(self, step: Step, group: Group, reason: str) -> None:
        """Start a rebalance: heartbeats return REBALANCE_IN_PROGRESS, so that the members join again."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.reset_and_propagate_error(step, group, ErrorCode.REBALANCE_IN_PROGRESS)
        step.effects.append(CancelTimer(Timer(TimerKind.SYNC, group.group_id)))
        if group.state is GroupState.EMPTY:
            # Consumers of a new group start one after the other: the delay avoids repeated rebalances.
            delay_ms = self._config.group_initial_rebalance_delay_ms
            group.initial_delay_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        else:
            delay_ms = group.rebalance_timeout_ms
            group.initial_delay_remaining_ms = None
        group.transition_to(GroupState.PREPARING_REBALANCE, step.now_ms)
        logger.info(
            "Preparing to rebalance group %s in state %s with old generation %d (%s) (reason: %s)",
            group.group_id,
            group.state.value,
            group.generation,
            group.partition_name,
            reason,
        )
        step.set_timer(Timer(TimerKind.JOIN, group.group_id), delay_ms)
        self.try_complete_join(step, group)

    # -- completing the join phase -------------------------------------------------------------------

    def try_complete_join(self, step: Step, group: Group) -> None:
        """Complete the join phase if all members have joined, but not during the initial rebalance delay."""
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.initial_delay_remaining_ms is None
            and group.all_members_joined
        ):
            self._complete_join(step, group)

    def join_timed_out(self, step: Step, group: Group) -> None:
        if group.state is not GroupState.PREPARING_REBALANCE:
            return
        remaining_ms = group.initial_delay_remaining_ms
        if remaining_ms and group.new_member_added:
            group.new_member_added = False
            delay_ms = min(self._config.group_initial_rebalance_delay_ms, remaining_ms)
            group.initial_delay_remaining_ms = remaining_ms - delay_ms
            step.set_timer(Timer(TimerKind.JOIN, group.group_id), delay_ms)
            return
        group.initial_delay_remaining_ms = None
        self._complete_join(step, group)

    def _complete_join(self, step: Step, group: Group) -> None:
        """Start the next generation with the joined members, and remove dynamic members that did not join."""
        late = [
            member.member_id
            for member in group.members.values()
            if member.member_id not in group.awaiting_join and member.instance_id is None
        ]
        if late:
            logger.info("Group %s removed dynamic members who haven't joined: %s", group.group_id, late)
        for member_id in late:
            self.remove_member(step, group, member_id)
        if not group.elect_joined_leader() and group.members:
            # Only static members are left, and none has joined. Wait until their sessions expire.
            step.set_timer(Timer(TimerKind.JOIN, group.group_id), group.rebalance_timeout_ms)
            return
        step.effects.append(CancelTimer(Timer(TimerKind.JOIN, group.group_id)))
        group.begin_generation(step.now_ms)
        if group.state is GroupState.EMPTY:
            logger.info(
                "Group %s with generation %d is now empty (%s)",
                group.group_id,
                group.generation,
                group.partition_name,
            )
            step.effects.append(StoreGroup(group, group_value(group, {}), EmptyGroupStored()))
            return
        logger.info(
            "Stabilized group %s generation %d (%s) with %d members",
            group.group_id,
            group.generation,
            group.partition_name,
            len(group.members),
        )
        for member in group.members.values():
            waiter = group.awaiting_join.pop(member.member_id, None)
            if waiter is not None:
                is_leader = member.member_id == group.leader_id
                step.complete_join(waiter, group_information(group, member.member_id, with_members=is_leader))
            step.restart_session(group, member)
            member.is_new = False
            group.pending_sync.add(member.member_id)
        step.set_timer(Timer(TimerKind.SYNC, group.group_id), group.rebalance_timeout_ms)

    # -- assignments ---------------------------------------------------------------------------------

    def set_and_propagate_assignment(self, step: Step, group: Group, assignment: dict[str, bytes]) -> None:
        for member in group.members.values():
            member.assignment = assignment.get(member.member_id, b"")
        self._propagate_assignment(step, group, ErrorCode.NONE)
        group.transition_to(GroupState.STABLE, step.now_ms)

    def reset_and_propagate_error(self, step: Step, group: Group, error: ErrorCode) -> None:
        for member in group.members.values():
            member.assignment = b""
        self._propagate_assignment(step, group, error)

    def _propagate_assignment(self, step: Step, group: Group, error: ErrorCode) -> None:
        for member_id, waiter in group.awaiting_sync.items():
            member = group.members[member_id]
            if error is ErrorCode.NONE:
                result = SyncResult(error, group.protocol_type, group.protocol_name, member.assignment)
            else:
                result = SyncResult(error)
            step.complete_sync(waiter, result)
            step.restart_session(group, member)
        group.awaiting_sync.clear()

    def synced(self, step: Step, group: Group, member_id: str) -> None:
        group.pending_sync.discard(member_id)
        if not group.pending_sync:
            step.effects.append(CancelTimer(Timer(TimerKind.SYNC, group.group_id)))

    def sync_timed_out(self, step: Step, group: Group) -> None:
        """Remove members that joined and did not send SyncGroup, and rebalance."""
        if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not group.pending_sync:
            return
        late = sorted(group.pending_sync)
        logger.info("Group %s removed members who haven't sent their sync requests: %s", group.group_id, late)
        for member_id in late:
            self.remove_member(step, group, member_id)
        reason = f"Removing {', '.join(late)} on pending sync request expiration"
        self.prepare_rebalance(step, group, reason)

    # -- removing members ----------------------------------------------------------------------------

    def session_timed_out(self, step: Step, group: Group, member_id: str) -> None:
        member = group.members.get(member_id)
        if member is None or group.state is GroupState.DEAD:
            return
        waits = member_id in group.awaiting_join or member_id in group.awaiting_sync
        if waits and not member.is_new:
            return  # A member sends no heartbeats while it waits for a response, which restarts its session.
        logger.info("Member %s in group %s has failed, removing it from the group", member_id, group.group_id)
        reason = f"removing member {member_id} on heartbeat expiration"
        self.remove_and_rebalance(step, group, member_id, reason)

    def remove_and_rebalance(self, step: Step, group: Group, member_id: str, reason: str) -> None:
        """Remove a member or a pending member, and rebalance the others."""
        was_pending = member_id in group.pending_members
        self.remove_member(step, group, member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            self.try_complete_join(step, group)
        elif not was_pending and group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.maybe_prepare_rebalance(step, group, reason)

    def remove_member(self, step: Step, group: Group, member_id: str) -> None:
        """Remove a member without a rebalance. Its waiting request completes with UNKNOWN_MEMBER_ID."""
        self._reject(step, group, member_id, "", ErrorCode.UNKNOWN_MEMBER_ID)
        if member_id in group.pending_members:
            step.effects.append(CancelTimer(Timer(TimerKind.PENDING_MEMBER, group.group_id, member_id)))
        group.remove(member_id)
        step.effects.append(CancelTimer(Timer(TimerKind.SESSION, group.group_id, member_id)))

    def fence(self, step: Step, group: Group, member_id: str) -> None:
        """Complete the member's waiting requests with FENCED_INSTANCE_ID: its instance id is used by another
        process now (KIP-345)."""
        self._reject(step, group, member_id, member_id, ErrorCode.FENCED_INSTANCE_ID)

    def _reject(self, step: Step, group: Group, member_id: str, response_id: str, error: ErrorCode) -> None:
        waiter = group.awaiting_join.pop(member_id, None)
        if waiter is not None:
            step.complete_join(waiter, JoinResult(error, response_id))
        waiter = group.awaiting_sync.pop(member_id, None)
        if waiter is not None:
            step.complete_sync(waiter, SyncResult(error))

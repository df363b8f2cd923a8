"""The classic group protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and their timeouts.

Pure: every entry point takes the group and the time, changes the group, and returns the effects for
`coordinator`, its caller, to apply in order. The phases of a rebalance are in `rebalance`. The behaviour is
that of GroupCoordinator in Kafka 3.9.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ottla.coordinators.config import GroupConfig
from ottla.coordinators.effects import (
    AssignmentStored,
    CancelTimer,
    CompleteJoin,
    CompleteSync,
    Effect,
    EmptyGroupStored,
    JoinResult,
    StaticMemberStored,
    StoreGroup,
    SyncResult,
    Timer,
    TimerKind,
)
from ottla.coordinators.group import Group, GroupState, Member, NewMemberId, Protocols, Waiter
from ottla.coordinators.rebalance import Rebalance, Step, group_information
from ottla.coordinators.records import group_value
from ottla.protocol.errors import ErrorCode

logger = logging.getLogger(__name__)

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60_000
"""The session timeout of a member that has not got its id yet, and so cannot send heartbeats."""


@dataclass(frozen=True, slots=True)
class JoinCall:
    """A JoinGroup request and the behaviour that its version requires."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    requires_known_member_id: bool = False
    """KIP-394: a new member gets its id first, and joins with it (version 4+, dynamic members)."""
    supports_skipping_assignment: bool = False
    """KIP-814: the leader of a stable group skips the assignment (version 9+)."""
    reason: str | None = None
    """The client's, for the log (KIP-800, version 8+)."""


@dataclass(frozen=True, slots=True)
class SyncCall:
    """A SyncGroup request."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignment: dict[str, bytes]


def client_reason(reason: str | None) -> str:
    """What the log says of a client's reason: at most as much as Kafka's clients send of it (KIP-800)."""
    return f"client reason: {reason[:255] if reason else 'not provided'}"


class Membership:
    """The group protocol with the configured limits. It has no state of any group."""

    def __init__(self, config: GroupConfig, new_member_id: NewMemberId) -> None:
        self._config = config
        self._new_member_id = new_member_id
        self._rebalance = Rebalance(config)

    # -- JoinGroup -----------------------------------------------------------------------------------

    def join(self, group: Group, call: JoinCall, waiter: Waiter, now_ms: int) -> list[Effect]:
        """Add a member, or let it rejoin; the response is completed at once or when the join phase ends.

        GROUP_MAX_SIZE_REACHED, INCONSISTENT_GROUP_PROTOCOL, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID,
        MEMBER_ID_REQUIRED, COORDINATOR_NOT_AVAILABLE (the group was just deleted).
        """
        step = Step(now_ms)
        error = self._validate_join(group, call)
        if error is not ErrorCode.NONE:
            response_id = call.member_id
            if error is ErrorCode.GROUP_MAX_SIZE_REACHED:
                self._remove_rejected(step, group, call.member_id)
                response_id = ""
            step.complete_join(waiter, JoinResult(error, response_id))
        elif not call.member_id:
            self._join_new(step, group, call, waiter)
        else:
            self._join_known(step, group, call, waiter)
        self._rebalance.try_complete_join(step, group)
        return step.effects

    def _validate_join(self, group: Group, call: JoinCall) -> ErrorCode:
        if not self._accepts_member(group, call.member_id):
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if group.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not group.supports_protocols(call.protocol_type, call.protocols):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _accepts_member(self, group: Group, member_id: str) -> bool:
        """Whether the group size allows this member. During a rebalance only joined members count, so that a
        group above group.max.size (it was lowered) loses the members that join last."""
        match group.state:
            case GroupState.EMPTY | GroupState.DEAD:
                return True
            case GroupState.PREPARING_REBALANCE:
                return (
                    member_id in group.awaiting_join or len(group.awaiting_join) < self._config.group_max_size
                )
            case _:
                return member_id in group.members or len(group.members) < self._config.group_max_size

    def _remove_rejected(self, step: Step, group: Group, member_id: str) -> None:
        if member_id in group.members or member_id in group.pending_members:
            self._rebalance.remove_member(step, group, member_id)

    def _join_new(self, step: Step, group: Group, call: JoinCall, waiter: Waiter) -> None:
        member_id = self._new_member_id(call.instance_id or call.client_id)
        if call.instance_id is not None:
            old_member_id = group.static_members.get(call.instance_id)
            if old_member_id is None:
                self._add_and_rebalance(step, group, call, member_id, waiter)
            else:
                self._replace_static(step, group, call, old_member_id, member_id, waiter)
        elif call.requires_known_member_id:
            group.pending_members.add(member_id)
            step.set_timer(
                Timer(TimerKind.PENDING_MEMBER, group.group_id, member_id), call.session_timeout_ms
            )
            step.complete_join(waiter, JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add_and_rebalance(step, group, call, member_id, waiter)

    def _join_known(self, step: Step, group: Group, call: JoinCall, waiter: Waiter) -> None:
        if call.member_id in group.pending_members:
            if call.instance_id is not None:
                # Only members without an instance id get their member id first.
                step.complete_join(waiter, JoinResult(ErrorCode.UNKNOWN_SERVER_ERROR, ""))
                return
            step.effects.append(CancelTimer(Timer(TimerKind.PENDING_MEMBER, group.group_id, call.member_id)))
            self._add_and_rebalance(step, group, call, call.member_id, waiter)
            return
        error = group.validate_member(call.member_id, call.instance_id)
        if error is not ErrorCode.NONE:
            step.complete_join(waiter, JoinResult(error, call.member_id))
            return
        member = group.members[call.member_id]
        is_leader = group.leader_id == member.member_id
        unchanged = member.protocols == call.protocols
        match group.state:
            case GroupState.PREPARING_REBALANCE:
                rejoins = True
            case GroupState.COMPLETING_REBALANCE:
                # The response to the first JoinGroup may have been lost: return the same one again.
                rejoins = not unchanged
            case GroupState.STABLE:
                # A leader rejoins when the metadata of its topics has changed.
                rejoins = is_leader or not unchanged
            case _:
                step.complete_join(waiter, JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, call.member_id))
                return
        if rejoins:
            stable_leader = is_leader and group.state is GroupState.STABLE
            change = (
                f"Leader {member.member_id} re-joining group"
                if stable_leader
                else (f"Updating metadata for member {member.member_id}")
            )
            reason = f"{change} during {group.state.value}; {client_reason(call.reason)}"
            self._update(step, group, member, call, waiter)
            self._rebalance.maybe_prepare_rebalance(step, group, reason)
        else:
            with_members = is_leader and group.state is GroupState.COMPLETING_REBALANCE
            step.complete_join(waiter, group_information(group, member.member_id, with_members=with_members))

    def _add_and_rebalance(
        self, step: Step, group: Group, call: JoinCall, member_id: str, waiter: Waiter
    ) -> None:
        member = Member(
            member_id=member_id,
            instance_id=call.instance_id,
            client_id=call.client_id,
            client_host=call.client_host,
            rebalance_timeout_ms=call.rebalance_timeout_ms,
            session_timeout_ms=call.session_timeout_ms,
            protocols=call.protocols,
            is_new=True,
        )
        # A new member extends the initial rebalance delay.
        if group.state is GroupState.PREPARING_REBALANCE and group.generation == 0:
            group.new_member_added = True
        group.add(member, call.protocol_type, waiter)
        step.set_timer(Timer(TimerKind.SESSION, group.group_id, member_id), NEW_MEMBER_JOIN_TIMEOUT_MS)
        reason = (
            f"Adding new member {member_id} with group instance id {call.instance_id}; "
            f"{client_reason(call.reason)}"
        )
        self._rebalance.maybe_prepare_rebalance(step, group, reason)

    def _update(self, step: Step, group: Group, member: Member, call: JoinCall, waiter: Waiter) -> None:
        group.update(member, call.protocols, call.rebalance_timeout_ms, call.session_timeout_ms)
        superseded = group.awaiting_join.pop(member.member_id, None)
        if superseded is not None:
            # The member repeats its request, so the previous response is not read; it must still be
            # completed.
            step.complete_join(superseded, JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        group.awaiting_join[member.member_id] = waiter

    def _replace_static(
        self, step: Step, group: Group, call: JoinCall, old_id: str, new_id: str, waiter: Waiter
    ) -> None:
        """A static member joins without its member id after a restart: it gets a new id (KIP-345)."""
        assert call.instance_id is not None
        old_leader = group.leader_id or ""
        self._rebalance.fence(step, group, old_id)
        step.effects.append(CancelTimer(Timer(TimerKind.SESSION, group.group_id, old_id)))
        member = group.rename_static_member(call.instance_id, old_id, new_id)
        step.restart_session(group, member)
        undo = StaticMemberStored(
            instance_id=call.instance_id,
            old_member_id=old_id,
            new_member_id=new_id,
            old_protocols=member.protocols,
            old_rebalance_timeout_ms=member.rebalance_timeout_ms,
            old_session_timeout_ms=member.session_timeout_ms,
            old_leader=old_leader,
            supports_skipping_assignment=call.supports_skipping_assignment,
        )
        self._update(step, group, member, call, waiter)
        match group.state:
            case GroupState.STABLE if group.protocol_name == group.select_protocol():
                assignment = {item.member_id: item.assignment for item in group.members.values()}
                step.effects.append(StoreGroup(group, group_value(group, assignment), undo))
            case GroupState.STABLE | GroupState.COMPLETING_REBALANCE:
                # In CompletingRebalance the leader may be computing an assignment with the old member id.
                reason = (
                    f"Updating metadata for static member {new_id} with instance id {call.instance_id}; "
                    f"{client_reason(call.reason)}"
                )
                self._rebalance.prepare_rebalance(step, group, reason)
            case _:
                assert group.state is GroupState.PREPARING_REBALANCE

    # -- SyncGroup -----------------------------------------------------------------------------------

    def sync(self, group: Group, call: SyncCall, waiter: Waiter, now_ms: int) -> list[Effect]:
        """Complete the response with the member's assignment once the leader's assignment is replicated.

        UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL,
        REBALANCE_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.
        """
        step = Step(now_ms)
        error = self._validate_sync(group, call)
        if error is not ErrorCode.NONE:
            step.complete_sync(waiter, SyncResult(error))
            return step.effects
        member = group.members[call.member_id]
        match group.state:
            case GroupState.COMPLETING_REBALANCE:
                superseded = group.awaiting_sync.pop(call.member_id, None)
                if superseded is not None:
                    step.complete_sync(superseded, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
                group.awaiting_sync[call.member_id] = waiter
                self._rebalance.synced(step, group, call.member_id)
                if group.leader_id == call.member_id:
                    logger.info(
                        "Assignment received from leader %s for group %s for generation %d. "
                        "The group has %d members, %d of which are static.",
                        call.member_id,
                        group.group_id,
                        group.generation,
                        len(group.members),
                        len(group.static_members),
                    )
                    assignment = {each: call.assignment.get(each, b"") for each in group.members}
                    then = AssignmentStored(group.generation, assignment)
                    step.effects.append(StoreGroup(group, group_value(group, assignment), then))
            case GroupState.STABLE:
                self._rebalance.synced(step, group, call.member_id)
                step.complete_sync(
                    waiter,
                    SyncResult(ErrorCode.NONE, group.protocol_type, group.protocol_name, member.assignment),
                )
                step.restart_session(group, member)
            case GroupState.PREPARING_REBALANCE:
                step.complete_sync(waiter, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
            case _:
                step.complete_sync(waiter, SyncResult(ErrorCode.UNKNOWN_MEMBER_ID))
        return step.effects

    def _validate_sync(self, group: Group, call: SyncCall) -> ErrorCode:
        error = self.validate(group, call.member_id, call.instance_id, call.generation)
        if error is not ErrorCode.NONE:
            return error
        for given, current in (
            (call.protocol_type, group.protocol_type),
            (call.protocol_name, group.protocol_name),
        ):
            if given is not None and given != current:
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    # -- Heartbeat, LeaveGroup -----------------------------------------------------------------------

    def validate(self, group: Group, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        if group.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = group.validate_member(member_id, instance_id)
        if error is ErrorCode.NONE and generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def heartbeat(
        self, group: Group, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> tuple[ErrorCode, list[Effect]]:
        error = self.validate(group, member_id, instance_id, generation)
        if error is not ErrorCode.NONE:
            return error, []
        step = Step(now_ms)
        step.restart_session(group, group.members[member_id])
        rebalancing = group.state is GroupState.PREPARING_REBALANCE
        return (ErrorCode.REBALANCE_IN_PROGRESS if rebalancing else ErrorCode.NONE), step.effects

    def restart_session(self, group: Group, member_id: str, now_ms: int) -> list[Effect]:
        """Restart the member's session, for an offset commit."""
        step = Step(now_ms)
        step.restart_session(group, group.members[member_id])
        return step.effects

    def leave(
        self, group: Group, member_id: str, instance_id: str | None, now_ms: int, reason: str | None = None
    ) -> tuple[ErrorCode, list[Effect]]:
        """Remove one member. An administrator can send the instance id only. Not for Dead groups."""
        step = Step(now_ms)
        if not member_id:
            found = None if instance_id is None else group.static_members.get(instance_id)
            if found is None:
                return ErrorCode.UNKNOWN_MEMBER_ID, []
            member_id = found
        elif member_id not in group.pending_members:
            error = group.validate_member(member_id, instance_id)
            if error is not ErrorCode.NONE:
                return error, []
        clients = client_reason(reason)
        removal = f"Removing member {member_id} on LeaveGroup; {clients}"
        self._rebalance.remove_and_rebalance(step, group, member_id, removal)
        logger.info(
            "Member %s has left group %s through explicit `LeaveGroup`; %s",
            member_id,
            group.group_id,
            clients,
        )
        return ErrorCode.NONE, step.effects

    def remove_all(self, group: Group, now_ms: int) -> list[Effect]:
        """Remove all members and start an empty generation, because a rewind makes their positions invalid.

        A member gets UNKNOWN_MEMBER_ID for its next request, gives up its partitions and joins again. So does
        a static member: its instance id is removed too, because FENCED_INSTANCE_ID is fatal to clients.
        Pending members stay: they have no positions yet.
        """
        assert group.state is not GroupState.EMPTY
        step = Step(now_ms)
        for member_id in list(group.members):
            self._rebalance.remove_member(step, group, member_id)
        step.effects += [
            CancelTimer(Timer(kind, group.group_id)) for kind in (TimerKind.JOIN, TimerKind.SYNC)
        ]
        group.initial_delay_remaining_ms = None
        group.new_member_added = False
        group.begin_generation(now_ms)
        return step.effects

    # -- timers, completed writes, loading -----------------------------------------------------------

    def timer_fired(self, group: Group, timer: Timer, now_ms: int) -> list[Effect]:
        step = Step(now_ms)
        match timer.kind:
            case TimerKind.JOIN:
                self._rebalance.join_timed_out(step, group)
            case TimerKind.SYNC:
                self._rebalance.sync_timed_out(step, group)
            case TimerKind.SESSION:
                self._rebalance.session_timed_out(step, group, timer.member_id)
            case TimerKind.PENDING_MEMBER:
                if timer.member_id in group.pending_members:
                    logger.info(
                        "Pending member %s in group %s has been removed after session timeout expiration",
                        timer.member_id,
                        group.group_id,
                    )
                    reason = f"removing pending member {timer.member_id} on session expiration"
                    self._rebalance.remove_and_rebalance(step, group, timer.member_id, reason)
        return step.effects

    def group_stored(self, effect: StoreGroup, error: ErrorCode, now_ms: int) -> list[Effect]:
        """The record of a StoreGroup was replicated or failed. `error` is a code of `GROUP_ERRORS`."""
        step = Step(now_ms)
        group = effect.group
        match effect.then:
            case AssignmentStored(generation, assignment):
                # If the group rebalanced during the write, the assignment is void.
                if group.state is GroupState.COMPLETING_REBALANCE and generation == group.generation:
                    if error is ErrorCode.NONE:
                        self._rebalance.set_and_propagate_assignment(step, group, assignment)
                    else:
                        self._rebalance.reset_and_propagate_error(step, group, error)
                        reason = f"Error {error.name} when storing group assignment during SyncGroup"
                        self._rebalance.maybe_prepare_rebalance(step, group, reason)
            case StaticMemberStored() as stored:
                self._static_member_stored(step, group, stored, error)
            case EmptyGroupStored():
                pass
        return step.effects

    def _static_member_stored(
        self, step: Step, group: Group, stored: StaticMemberStored, error: ErrorCode
    ) -> None:
        member = group.members.get(stored.new_member_id)
        if member is None:
            return  # Removed or replaced meanwhile, which completed its JoinGroup.
        waiter = group.awaiting_join.pop(stored.new_member_id, None)
        if error is not ErrorCode.NONE:
            group.update(
                member, stored.old_protocols, stored.old_rebalance_timeout_ms, stored.old_session_timeout_ms
            )
            self._rebalance.fence(step, group, stored.new_member_id)
            step.effects.append(CancelTimer(Timer(TimerKind.SESSION, group.group_id, stored.new_member_id)))
            group.rename_static_member(stored.instance_id, stored.new_member_id, stored.old_member_id)
            step.restart_session(group, member)
            result = JoinResult(
                error, "", group.generation, group.protocol_type, group.protocol_name, stored.old_leader
            )
        elif stored.supports_skipping_assignment:
            is_leader = group.leader_id == stored.new_member_id
            result = group_information(group, stored.new_member_id, with_members=is_leader, skip=is_leader)
        else:
            # With the old leader's id in the response, a restarted leader does not compute an assignment,
            # which a stable group would ignore.
            result = group_information(
                group, stored.new_member_id, with_members=False, leader=stored.old_leader
            )
        if waiter is not None:
            step.complete_join(waiter, result)

    def unload(self, group: Group, now_ms: int) -> list[Effect]:
        """Complete all responses with NOT_COORDINATOR: the group's partition is unloaded."""
        step = Step(now_ms)
        group.transition_to(GroupState.DEAD, now_ms)
        for member_id, waiter in group.awaiting_join.items():
            step.effects.append(CompleteJoin(waiter, JoinResult(ErrorCode.NOT_COORDINATOR, member_id)))
        for waiter in group.awaiting_sync.values():
            step.effects.append(CompleteSync(waiter, SyncResult(ErrorCode.NOT_COORDINATOR)))
        group.awaiting_join.clear()
        group.awaiting_sync.clear()
        timers = [Timer(TimerKind.JOIN, group.group_id), Timer(TimerKind.SYNC, group.group_id)]
        timers += [Timer(TimerKind.SESSION, group.group_id, member_id) for member_id in group.members]
        pending = sorted(group.pending_members)
        timers += [Timer(TimerKind.PENDING_MEMBER, group.group_id, member_id) for member_id in pending]
        step.effects += [CancelTimer(timer) for timer in timers]
        return step.effects

    def loaded(self, group: Group, now_ms: int) -> list[Effect]:
        """Start the sessions of a group's members after it was loaded from the log."""
        step = Step(now_ms)
        for member in group.members.values():
            step.restart_session(group, member)
        if len(group.members) > self._config.group_max_size:
            reason = f"The loaded group has more members than group.max.size, {self._config.group_max_size}"
            self._rebalance.prepare_rebalance(step, group, reason)
        return step.effects

"""A member's side of a classic group: join, sync, heartbeat, leave (KIP-62, 345, 394, 429, 814).

The network loop polls it. `Consumer` begins joins (`join`), takes their results (`joined`, `lost`) and
reports its own polls: a member that is not polled for max.poll.interval.ms leaves the group. The states are
those of Kafka's Java client:

    UNJOINED --join--> JOINING --response--> SYNCING --response--> STABLE --join--> JOINING
    any of them --unknown member, stale generation, fenced, leave, poll too late--> UNJOINED

Invariants: at most one JoinGroup, SyncGroup, Heartbeat and LeaveGroup each is in flight; a response counts
only for the generation and the state in which its request was sent; heartbeats are sent in SYNCING and STABLE
only.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from ottla.client import errors
from ottla.client.core import membership_requests as requests
from ottla.client.core.assignment import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
)
from ottla.client.core.backoff import Uniform
from ottla.client.core.consumer_config import ConsumerConfig
from ottla.client.core.coordinator import CHANNEL, Coordinator
from ottla.client.core.offsets import Membership
from ottla.client.core.types import TopicPartition, UnsentRequest
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.wire.connection_state import UnsupportedApi

log = logging.getLogger(__name__)

NO_MEMBER: Final = Membership()


class State(Enum):
    """The states of a member."""

    UNJOINED = "not in the group"
    JOINING = "waiting for all members to join"
    SYNCING = "waiting for the assignment of the leader"
    STABLE = "a member with an assignment"


class Joined(NamedTuple):
    """The result of a finished rebalance."""

    generation: int
    protocol: str
    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None
    """The leader's assignor wrote it for this member's assignor."""


log = logging.getLogger(__name__)

_JOIN_GRACE_S: Final = 5.0
_JOIN_STATIC: Final = 5
"""The first version of JoinGroup with group.instance.id (KIP-345)."""

Assign = Callable[[str, Mapping[str, Subscription]], Mapping[str, Assignment] | None]
"""Assigns partitions on the leader: from the protocol and the subscriptions of all members; None while
metadata is missing. Raises ClientError, and the exceptions of a user's assignor."""

_MOVED = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})


class GroupMember:
    """Kafka's AbstractCoordinator: joins, syncs, sends heartbeats, leaves."""

    def __init__(
        self, config: ConsumerConfig, coordinator: Coordinator, assign: Assign, uniform: Uniform
    ) -> None:
        self._config = config
        self._group = config.group_id or ""
        self._instance = config.group_instance_id
        self._coordinator = coordinator
        self._uniform = uniform
        self.state = State.UNJOINED
        self.active = False
        """Whether the consumer is subscribed, and so takes part in the group."""
        self.membership = NO_MEMBER
        self.rejoin = True
        """Whether the member has to join; the consumer prepares that and calls `join`."""
        self.reason = ""
        self.joined: Joined | None = None
        """The result of the last rebalance, until the consumer takes it."""
        self.problems: list[Exception] = []
        """Errors that the next `poll` raises."""
        self.is_leader = False
        self._subscriptions: Sequence[tuple[str, Subscription]] = ()
        self._to_assign: dict[str, Subscription] | None = None
        self._sync: m.SyncGroupRequest | None = None
        self._leave: m.LeaveGroupRequest | None = None
        self._pending: dict[str, int] = {}
        """The numbers of the requests whose responses count, by kind."""
        self._failures = 0
        self._not_before = -math.inf
        self._polled_at = -math.inf
        self._assign = assign
        self._protocol = ""
        self._in_flight: dict[int, tuple[str, int, Membership]] = {}
        """The requests in flight by number: kind, node and membership."""
        self._number = 0
        self._heartbeat_sent_at = -math.inf
        """When the last heartbeat was sent."""
        self._heartbeat_received_at = -math.inf
        """When the last heartbeat was acknowledged."""

    # --- called by the consumer ---

    @property
    def joining(self) -> bool:
        return self.state in (State.JOINING, State.SYNCING)

    @property
    def lost(self) -> bool:
        """Whether the membership is lost, so that other members may own the partitions."""
        return self.membership.generation < 0

    def polled(self, now: float) -> None:
        self._polled_at = now

    def request_rejoin(self, reason: str) -> None:
        if not self.rejoin:
            log.info("group %s: request joining group due to: %s", self._group, reason)
            self.rejoin = True
            self.reason = reason

    def join(self, subscriptions: Sequence[tuple[str, Subscription]]) -> None:
        """Begin to join. `subscriptions` by protocol, the preferred one first."""
        self.active = True
        self._subscriptions = subscriptions
        self.state = State.JOINING
        self.rejoin = False
        self.is_leader = False
        self.joined = None
        self._to_assign = self._sync = None
        self._ignore_pending()

    def leave(self, reason: str) -> None:
        """Leave the group, and send LeaveGroup unless this is a static member, whose membership stays."""
        node_id = self._coordinator.node()
        member = self.membership
        dynamic = self._instance is None and member.member_id
        if dynamic and self.state is not State.UNJOINED and node_id is not None:
            self._leave = requests.leave(self._group, member, reason)
        self._reset(f"leaving the group: {reason}")

    @property
    def leaving(self) -> bool:
        return self._leave is not None or "leave" in self._pending

    def current(self) -> Membership:
        """The membership for commits. Raises ClientError."""
        if not self.active:
            return NO_MEMBER
        if self.state is State.STABLE:
            return self.membership
        if self.joining:
            raise errors.for_code(
                ErrorCode.REBALANCE_IN_PROGRESS, f"group {self._group} is rebalancing: poll, and commit again"
            )
        raise errors.CommitFailedError(
            f"this consumer is no longer a member of group {self._group}, its partitions are assigned to "
            "others: poll more often than max.poll.interval.ms, raise it, or lower max.poll.records"
        )

    def commit_refused(self, code: ErrorCode, sent: Membership) -> Exception:
        same = sent == self.membership
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.request_rejoin("offset commit failed since group is already rebalancing")
            return errors.for_code(code, f"group {self._group} is rebalancing: poll, and commit again")
        if code is ErrorCode.FENCED_INSTANCE_ID and same:
            return errors.for_code(
                code, f"{self._instance} of group {self._group} is used by another consumer"
            )
        if not same and self.state is State.JOINING:
            return errors.for_code(
                ErrorCode.REBALANCE_IN_PROGRESS, f"group {self._group} has a new generation: commit again"
            )
        if code is not ErrorCode.FENCED_INSTANCE_ID:
            self._reset(f"a commit was refused: {code.name}", keep_id=code is ErrorCode.ILLEGAL_GENERATION)
        return errors.CommitFailedError(
            f"group {self._group} has rebalanced without this member ({code.name}): the records will "
            "be read again"
        )

    # --- failures ---

    def _rejoin_group(self, reason: str, now: float, *, at_once: bool = False) -> None:
        """Join again with the same member id."""
        log.info("group %s: %s: rejoining the group", self._group, reason)
        self.state = State.JOINING
        self.reason = reason
        self._to_assign = self._sync = None
        self._ignore_pending()
        if not at_once:
            self._not_before = now + self._pause_s()

    def _reset(self, reason: str, *, keep_id: bool = False) -> None:
        """The membership is lost; the consumer sees that in its next poll, and joins again."""
        log.info("group %s: %s", self._group, reason)
        self.state = State.UNJOINED
        member_id = self.membership.member_id if keep_id else ""
        self.membership = Membership(-1, member_id, self._instance if member_id else None)
        self.rejoin = True
        self.reason = reason
        self.joined = None
        self._to_assign = self._sync = None
        self._ignore_pending()

    def _ignore_pending(self) -> None:
        """Ignore the responses of JoinGroup and SyncGroup requests in flight."""
        for what in ("join", "sync"):
            self._pending.pop(what, None)

    def _fail(self, code: ErrorCode, doing: str) -> None:
        self.problems.append(errors.for_code(code, f"group {self._group}: {doing}"))
        self._reset(f"{doing}: {code.name}")

    def _pause_s(self) -> float:
        pause_s = self._config.retry_pause_s(self._failures, self._uniform)
        self._failures += 1
        return pause_s

    def poll(self, now: float) -> list[UnsentRequest]:
        out: list[UnsentRequest] = []
        self._check_timeouts(now)
        if self._leave is not None:
            request, self._leave = self._leave, None
            node_id = self._coordinator.node()
            if node_id is not None:
                out.append(self._unsent("leave", node_id, request, self._config.request_timeout_ms / 1000))
        if not self.active:
            return out
        if self._coordinator.fatal is not None and self.state is not State.UNJOINED:
            self.problems.append(self._coordinator.fatal)
            self._coordinator.fatal = None
            self._reset("coordinator not found")
        if self.state is State.UNJOINED or now < self._not_before:
            return out
        node_id = self._coordinator.node()
        if node_id is None:
            return out
        config = self._config
        timeout_s = config.request_timeout_ms / 1000
        member = self.membership
        if self.state is State.JOINING:
            if "join" not in self._pending:
                most_s = config.max_poll_interval_ms / 1000 + _JOIN_GRACE_S
                join = requests.join(config, member, self._subscriptions, self.reason)
                asked = self._unsent("join", node_id, join, max(timeout_s, most_s))
                out.append(asked._replace(version_min=0 if self._instance is None else _JOIN_STATIC))
            return out
        if self.state is State.SYNCING and "sync" not in self._pending:
            sync = self._sync_request()
            if sync is not None:
                out.append(self._unsent("sync", node_id, sync, timeout_s))
        if "heartbeat" not in self._pending and now >= self._next_heartbeat():
            self._heartbeat_sent_at = now
            out.append(self._unsent("heartbeat", node_id, requests.heartbeat(config, member), timeout_s))
        return out

    def _unsent(self, what: str, node_id: int, request: Any, timeout_s: float) -> UnsentRequest:
        self._number += 1
        self._in_flight[self._number] = (what, node_id, self.membership)
        self._pending[what] = self._number
        return UnsentRequest(node_id, request, self._number, timeout_s, channel=CHANNEL, keeps=True)

    def _check_timeouts(self, now: float) -> None:
        config = self._config
        if not self.active or self.state not in (State.SYNCING, State.STABLE):
            return
        if now >= self._session_end():
            log.info("group %s: the coordinator has not responded for session.timeout.ms", self._group)
            self._coordinator.lost(None, now)
            self._heartbeat_received_at = now
        if now >= self._polled_at + config.max_poll_interval_ms / 1000:
            log.warning(
                "group %s: not polled for max.poll.interval.ms (%d): leaving the group. Poll more "
                "often, raise it, or lower max.poll.records",
                self._group,
                config.max_poll_interval_ms,
            )
            self.leave("consumer poll timeout has expired.")

    def _session_end(self) -> float:
        """When the coordinator has not responded for session.timeout.ms; a new one gets the full time."""
        heard_at = max(self._heartbeat_received_at, self._coordinator.found_at)
        return heard_at + self._config.session_timeout_ms / 1000

    def _next_heartbeat(self) -> float:
        return self._heartbeat_sent_at + self._config.heartbeat_interval_ms / 1000

    def next_time(self, now: float) -> float:
        if self._leave is not None:
            return now
        if not self.active or self.state is State.UNJOINED:
            return math.inf
        # What is due and was not sent waits for the coordinator, whose response wakes the network loop.
        can_send = self._coordinator.is_known
        if self.state is State.JOINING:
            waits = "join" in self._pending or (now >= self._not_before and not can_send)
            return math.inf if waits else max(self._not_before, now)
        config = self._config
        times = [self._polled_at + config.max_poll_interval_ms / 1000]
        times.append(self._session_end())
        heartbeat_at = max(self._next_heartbeat(), self._not_before)
        if "heartbeat" not in self._pending and (heartbeat_at > now or can_send):
            times.append(heartbeat_at)
        return max(min(times), self._not_before)

    def on_response(self, tag: Hashable, response: Any, now: float) -> None:
        assert isinstance(tag, int)
        what, node_id, sent = self._in_flight.pop(tag)
        is_current = self._pending.get(what) == tag
        if is_current:
            del self._pending[what]
        if isinstance(response, UnsupportedApi | errors.UnsupportedVersionError):
            if is_current and what in ("join", "sync"):
                self._on_unsupported(response)
            return
        if isinstance(response, BaseException):
            self._coordinator.lost(node_id, now)
            if is_current and what in ("join", "sync"):
                self._rejoin_group("the coordinator did not respond", now)
            return
        code = ErrorCode.of(response.error_code)
        if code in _MOVED:
            self._coordinator.lost(node_id, now)
        if what == "heartbeat":
            self._on_heartbeat(code, sent, now)
        elif is_current and what == "join":
            self._on_join(code, response, now)
        elif is_current and what == "sync":
            self._on_sync(code, response, now)

    def _on_unsupported(self, problem: Exception) -> None:
        """The coordinator does not support a required version. The next polls raise that, since a later poll
        may find an upgraded broker."""
        text = f"group {self._group}: {problem}"
        if self._instance is not None:
            text += f"; group.instance.id={self._instance} needs brokers of Kafka 2.3 or later"
        self.problems.append(errors.UnsupportedVersionError(text))
        self._reset("the coordinator is too old")

    # --- join ---

    def _on_join(self, code: ErrorCode, response: m.JoinGroupResponse, now: float) -> None:
        if code is ErrorCode.NONE:
            self._failures = 0
            self.state = State.SYNCING
            self.membership = Membership(response.generation_id, response.member_id, self._instance)
            self._protocol = response.protocol_name or ""
            self._heartbeat_received_at = self._heartbeat_sent_at = self._polled_at = now
            self.is_leader = response.leader == response.member_id
            self._to_assign = None
            self._sync = requests.sync(self._config, self.membership, self._protocol)
            if self.is_leader and not response.skip_assignment:
                self._on_leader_elected(response, now)
        elif code is ErrorCode.MEMBER_ID_REQUIRED:
            # Join at once, with the id that the broker gave (KIP-394).
            self.membership = Membership(-1, response.member_id, self._instance)
        elif code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._reset(f"joining failed with {code.name}")
        elif code in _MOVED or code in (
            ErrorCode.REBALANCE_IN_PROGRESS,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ):
            self._not_before = now + self._pause_s()
        else:
            self._fail(code, "joining")

    def _on_leader_elected(self, response: m.JoinGroupResponse, now: float) -> None:
        try:
            self._to_assign = {
                member.member_id: decode_subscription(member.metadata, member.group_instance_id)
                for member in response.members
            }
        except ProtocolError as problem:
            log.warning("group %s: invalid subscription of a member: %s", self._group, problem)
            self._rejoin_group("invalid subscription of a member", now)

    # --- sync ---

    def _sync_request(self) -> m.SyncGroupRequest | None:
        """The SyncGroup request; None on the leader while metadata for the assignment is missing."""
        request = self._sync
        if request is not None and self._to_assign is not None:
            try:
                shares = self._assign(self._protocol, self._to_assign)
            except Exception as problem:  # including exceptions of a user's assignor
                self.problems.append(problem)
                self._reset("the assignor failed", keep_id=True)
                return None
            if shares is None:
                return None
            self._to_assign = None
            request.assignments = requests.assignments(shares)
        return request

    def _on_sync(self, code: ErrorCode, response: m.SyncGroupResponse, now: float) -> None:
        if code is ErrorCode.NONE:
            try:
                assignment = decode_assignment(response.assignment)
            except ProtocolError as problem:
                log.warning("group %s: invalid assignment: %s", self._group, problem)
                self._rejoin_group("invalid assignment", now)
                return
            self.state = State.STABLE
            self.reason = ""
            self._sync = None
            self.joined = Joined(
                self.membership.generation,
                self._protocol,
                tuple(assignment.partitions),
                assignment.user_data,
            )
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._rejoin_group("the group is rebalancing again", now, at_once=True)
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            keep = code is ErrorCode.ILLEGAL_GENERATION
            self._reset(f"sync failed with {code.name}", keep_id=keep)
        elif code in _MOVED or code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            self._rejoin_group(f"sync failed with {code.name}", now)
        else:
            self._fail(code, "waiting for the assignment")

    # --- heartbeats ---

    def _on_heartbeat(self, code: ErrorCode, sent: Membership, now: float) -> None:
        if code is ErrorCode.NONE:
            self._heartbeat_received_at = now
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._heartbeat_received_at = now
            if self.state is State.STABLE:
                self.request_rejoin("group is already rebalancing")
        elif code in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID):
            if sent == self.membership:
                keep = code is ErrorCode.ILLEGAL_GENERATION
                self._reset(f"a heartbeat failed with {code.name}", keep_id=keep)
        elif code is ErrorCode.FENCED_INSTANCE_ID:
            if sent == self.membership:
                self._fail(code, f"{self._instance} is used by another consumer")
        elif not code.retriable and code not in _MOVED:
            self._fail(code, "heartbeat")

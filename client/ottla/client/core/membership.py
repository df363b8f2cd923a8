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
"""The version of JoinGroup from which on it has a group.instance.id (KIP-345)."""

Assign = Callable[[str, Mapping[str, Subscription]], Mapping[str, Assignment] | None]
"""The leader's part: protocol and everybody's subscriptions to shares; None while it does not know enough
of the topics. Raises ClientError, and whatever a user's assignor does."""

_MOVED = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})


class GroupMember:
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
        """Whether to be in the group at all: there is a subscription."""
        self.membership = NO_MEMBER
        self.rejoin = True
        """Whether a join is called for; the consumer prepares it, and calls `join`."""
        self.reason = ""
        self.joined: Joined | None = None
        """For the consumer to take."""
        self.problems: list[Exception] = []
        """What the consumer's next poll is to raise."""
        self.is_leader = False
        self._subscriptions: Sequence[tuple[str, Subscription]] = ()
        self._to_assign: dict[str, Subscription] | None = None
        self._sync: m.SyncGroupRequest | None = None
        self._leave: m.LeaveGroupRequest | None = None
        self._awaited: dict[str, int] = {}
        """The requests whose answers count, by what they are."""
        self._failures = 0
        self._not_before = -math.inf
        self._polled_at = -math.inf
        self._assign = assign
        self._protocol = ""
        self._asked: dict[int, tuple[str, int, Membership]] = {}
        """The requests on their way, by number: what they are, the node, and on whose behalf."""
        self._number = 0
        self._beaten_at = -math.inf
        """When the last heartbeat was sent."""
        self._heard_at = -math.inf
        """When the last one was answered."""

    # --- the consumer's side ---

    @property
    def joining(self) -> bool:
        return self.state in (State.JOINING, State.SYNCING)

    @property
    def lost(self) -> bool:
        """Whether this is no member any more: what it had is somebody else's by now."""
        return self.membership.generation < 0

    def polled(self, now: float) -> None:
        self._polled_at = now

    def request_rejoin(self, reason: str) -> None:
        if not self.rejoin:
            log.info("group %s: joining again: %s", self._group, reason)
            self.rejoin = True
            self.reason = reason

    def join(self, subscriptions: Sequence[tuple[str, Subscription]]) -> None:
        """Begin: `subscriptions` by protocol, the preferred one first."""
        self.active = True
        self._subscriptions = subscriptions
        self.state = State.JOINING
        self.rejoin = False
        self.is_leader = False
        self.joined = None
        self._to_assign = self._sync = None
        self._stop_waiting()

    def leave(self, reason: str) -> None:
        """Go, and say so to the coordinator, unless this is a static member, which keeps its place."""
        node_id = self._coordinator.node()
        member = self.membership
        dynamic = self._instance is None and member.member_id
        if dynamic and self.state is not State.UNJOINED and node_id is not None:
            self._leave = requests.leave(self._group, member, reason)
        self._reset(f"the consumer leaves: {reason}")

    @property
    def leaving(self) -> bool:
        return self._leave is not None or "leave" in self._awaited

    def current(self) -> Membership:
        """For commits. Raises ClientError."""
        if not self.active:
            return NO_MEMBER
        if self.state is State.STABLE:
            return self.membership
        if self.joining:
            raise errors.for_code(
                ErrorCode.REBALANCE_IN_PROGRESS, f"group {self._group} is rebalancing: poll, and commit again"
            )
        raise errors.CommitFailedError(
            f"this is no member of group {self._group} any more: its partitions are others' by now; poll "
            "more often than max.poll.interval.ms, or raise it, or lower max.poll.records"
        )

    def commit_refused(self, code: ErrorCode, sent: Membership) -> Exception:
        same = sent == self.membership
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.request_rejoin("a commit failed since the group is rebalancing")
            return errors.for_code(code, f"group {self._group} is rebalancing: poll, and commit again")
        if code is ErrorCode.FENCED_INSTANCE_ID and same:
            return errors.for_code(code, f"{self._instance} of group {self._group} runs elsewhere, too")
        if not same and self.state is State.JOINING:
            return errors.for_code(
                ErrorCode.REBALANCE_IN_PROGRESS, f"group {self._group} has a new generation: commit again"
            )
        if code is not ErrorCode.FENCED_INSTANCE_ID:
            self._reset(f"a commit was refused: {code.name}", keep_id=code is ErrorCode.ILLEGAL_GENERATION)
        return errors.CommitFailedError(
            f"group {self._group} has gone on without this member ({code.name}): the records will "
            "be read again"
        )

    # --- failures ---

    def _again(self, reason: str, now: float, *, at_once: bool = False) -> None:
        """Join anew, in the same place."""
        log.info("group %s: %s: joining again", self._group, reason)
        self.state = State.JOINING
        self.reason = reason
        self._to_assign = self._sync = None
        self._stop_waiting()
        if not at_once:
            self._not_before = now + self._pause_s()

    def _reset(self, reason: str, *, keep_id: bool = False) -> None:
        """The place in the group is gone; the consumer hears of it when it polls, and joins again then."""
        log.info("group %s: %s", self._group, reason)
        self.state = State.UNJOINED
        member_id = self.membership.member_id if keep_id else ""
        self.membership = Membership(-1, member_id, self._instance if member_id else None)
        self.rejoin = True
        self.reason = reason
        self.joined = None
        self._to_assign = self._sync = None
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        """Answers to come are of no interest any more."""
        for what in ("join", "sync"):
            self._awaited.pop(what, None)

    def _fail(self, code: ErrorCode, doing: str) -> None:
        self.problems.append(errors.for_code(code, f"group {self._group}: {doing}"))
        self._reset(f"{doing}: {code.name}")

    def _pause_s(self) -> float:
        pause_s = self._config.retry_pause_s(self._failures, self._uniform)
        self._failures += 1
        return pause_s

    def poll(self, now: float) -> list[UnsentRequest]:
        out: list[UnsentRequest] = []
        self._look_at_the_clock(now)
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
            self._reset("no coordinator")
        if self.state is State.UNJOINED or now < self._not_before:
            return out
        node_id = self._coordinator.node()
        if node_id is None:
            return out
        config = self._config
        timeout_s = config.request_timeout_ms / 1000
        member = self.membership
        if self.state is State.JOINING:
            if "join" not in self._awaited:
                most_s = config.max_poll_interval_ms / 1000 + _JOIN_GRACE_S
                join = requests.join(config, member, self._subscriptions, self.reason)
                asked = self._unsent("join", node_id, join, max(timeout_s, most_s))
                out.append(asked._replace(version_min=0 if self._instance is None else _JOIN_STATIC))
            return out
        if self.state is State.SYNCING and "sync" not in self._awaited:
            sync = self._sync_request()
            if sync is not None:
                out.append(self._unsent("sync", node_id, sync, timeout_s))
        if "beat" not in self._awaited and now >= self._next_beat():
            self._beaten_at = now
            out.append(self._unsent("beat", node_id, requests.heartbeat(config, member), timeout_s))
        return out

    def _unsent(self, what: str, node_id: int, request: Any, timeout_s: float) -> UnsentRequest:
        self._number += 1
        self._asked[self._number] = (what, node_id, self.membership)
        self._awaited[what] = self._number
        return UnsentRequest(node_id, request, self._number, timeout_s, channel=CHANNEL, keeps=True)

    def _look_at_the_clock(self, now: float) -> None:
        config = self._config
        if not self.active or self.state not in (State.SYNCING, State.STABLE):
            return
        if now >= self._session_end():
            log.info("group %s: the coordinator has not answered for session.timeout.ms", self._group)
            self._coordinator.lost(None, now)
            self._heard_at = now
        if now >= self._polled_at + config.max_poll_interval_ms / 1000:
            log.warning(
                "group %s: not polled for max.poll.interval.ms (%d): leaving the group. Poll more "
                "often, raise it, or lower max.poll.records",
                self._group,
                config.max_poll_interval_ms,
            )
            self.leave("consumer poll timeout has expired.")

    def _session_end(self) -> float:
        """When the coordinator has been silent for too long; a new one is given as much time."""
        heard_at = max(self._heard_at, self._coordinator.found_at)
        return heard_at + self._config.session_timeout_ms / 1000

    def _next_beat(self) -> float:
        return self._beaten_at + self._config.heartbeat_interval_ms / 1000

    def next_time(self, now: float) -> float:
        if self._leave is not None:
            return now
        if not self.active or self.state is State.UNJOINED:
            return math.inf
        if self.state is State.JOINING:
            return math.inf if "join" in self._awaited else max(self._not_before, now)
        config = self._config
        times = [self._polled_at + config.max_poll_interval_ms / 1000]
        times.append(self._session_end())
        if "beat" not in self._awaited:
            times.append(self._next_beat())
        return max(min(times), self._not_before)

    def on_response(self, tag: Hashable, response: Any, now: float) -> None:
        assert isinstance(tag, int)
        what, node_id, sent = self._asked.pop(tag)
        counts = self._awaited.get(what) == tag
        if counts:
            del self._awaited[what]
        if isinstance(response, UnsupportedApi | errors.UnsupportedVersionError):
            if counts and what in ("join", "sync"):
                self._too_old(response)
            return
        if isinstance(response, BaseException):
            self._coordinator.lost(node_id, now)
            if counts and what in ("join", "sync"):
                self._again("the coordinator did not answer", now)
            return
        code = ErrorCode.of(response.error_code)
        if code in _MOVED:
            self._coordinator.lost(node_id, now)
        if what == "beat":
            self._beat(code, sent, now)
        elif counts and what == "join":
            self._join_responded(code, response, now)
        elif counts and what == "sync":
            self._sync_responded(code, response, now)

    def _too_old(self, problem: Exception) -> None:
        """The coordinator does not serve what this member needs. The next poll raises it, and so does each
        after that: a later one may find an upgraded broker."""
        text = f"group {self._group}: {problem}"
        if self._instance is not None:
            text += f"; group.instance.id={self._instance} needs brokers of Kafka 2.3 or later"
        self.problems.append(errors.UnsupportedVersionError(text))
        self._reset("the coordinator is too old")

    # --- join ---

    def _join_responded(self, code: ErrorCode, answer: m.JoinGroupResponse, now: float) -> None:
        if code is ErrorCode.NONE:
            self._failures = 0
            self.state = State.SYNCING
            self.membership = Membership(answer.generation_id, answer.member_id, self._instance)
            self._protocol = answer.protocol_name or ""
            self._heard_at = self._beaten_at = self._polled_at = now
            self.is_leader = answer.leader == answer.member_id
            self._to_assign = None
            self._sync = requests.sync(self._config, self.membership, self._protocol)
            if self.is_leader and not answer.skip_assignment:
                self._elected(answer, now)
        elif code is ErrorCode.MEMBER_ID_REQUIRED:
            # Join at once, with the id that the broker gave (KIP-394).
            self.membership = Membership(-1, answer.member_id, self._instance)
        elif code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._reset(f"joining was answered with {code.name}")
        elif code in _MOVED or code in (
            ErrorCode.REBALANCE_IN_PROGRESS,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ):
            self._not_before = now + self._pause_s()
        else:
            self._fail(code, "joining")

    def _elected(self, answer: m.JoinGroupResponse, now: float) -> None:
        try:
            self._to_assign = {
                member.member_id: decode_subscription(member.metadata, member.group_instance_id)
                for member in answer.members
            }
        except ProtocolError as problem:
            log.warning("group %s: a member's subscription cannot be read: %s", self._group, problem)
            self._again("a member's subscription cannot be read", now)

    # --- sync ---

    def _sync_request(self) -> m.SyncGroupRequest | None:
        """None while the leader's decision has to wait for metadata."""
        request = self._sync
        if request is not None and self._to_assign is not None:
            try:
                shares = self._assign(self._protocol, self._to_assign)
            except Exception as problem:  # of a user's assignor, perhaps
                self.problems.append(problem)
                self._reset("assigning failed")
                return None
            if shares is None:
                return None
            self._to_assign = None
            request.assignments = requests.assignments(shares)
        return request

    def _sync_responded(self, code: ErrorCode, answer: m.SyncGroupResponse, now: float) -> None:
        if code is ErrorCode.NONE:
            try:
                assignment = decode_assignment(answer.assignment)
            except ProtocolError as problem:
                log.warning("group %s: the assignment cannot be read: %s", self._group, problem)
                self._again("the assignment cannot be read", now)
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
            self._again("the group is rebalancing again", now, at_once=True)
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            keep = code is ErrorCode.ILLEGAL_GENERATION
            self._reset(f"sync was answered with {code.name}", keep_id=keep)
        elif code in _MOVED or code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            self._again(f"sync was answered with {code.name}", now)
        else:
            self._fail(code, "waiting for the assignment")

    # --- heartbeats ---

    def _beat(self, code: ErrorCode, sent: Membership, now: float) -> None:
        if code is ErrorCode.NONE:
            self._heard_at = now
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._heard_at = now
            if self.state is State.STABLE:
                self.request_rejoin("group is already rebalancing")
        elif code in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID):
            if sent == self.membership:
                keep = code is ErrorCode.ILLEGAL_GENERATION
                self._reset(f"a heartbeat was answered with {code.name}", keep_id=keep)
        elif code is ErrorCode.FENCED_INSTANCE_ID:
            if sent == self.membership:
                self._fail(code, f"{self._instance} runs elsewhere, too")
        elif not code.retriable and code not in _MOVED:
            self._fail(code, "keeping its place")

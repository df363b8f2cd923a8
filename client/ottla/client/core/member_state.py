"""What a consumer asks of its membership in a group, and is told of it.

The base of `GroupMember`, which talks to the coordinator. The states are those of Kafka's Java client:

    UNJOINED --join--> JOINING --answer--> SYNCING --answer--> STABLE --join--> JOINING
    any of them --unknown member, stale generation, fenced, leave, poll too late--> UNJOINED
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

from ottla.client import errors
from ottla.client.core import membership_requests as requests
from ottla.client.core.assignment import Subscription
from ottla.client.core.backoff import Uniform
from ottla.client.core.consumer_config import ConsumerConfig
from ottla.client.core.coordinator import Coordinator
from ottla.client.core.offsets import Membership
from ottla.client.core.types import TopicPartition
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode

log = logging.getLogger(__name__)

NO_MEMBER: Final = Membership()


class State(Enum):
    UNJOINED = "not in the group"
    JOINING = "waiting for the others to join, too"
    SYNCING = "waiting for the leader's decision"
    STABLE = "a member with an assignment"


class Joined(NamedTuple):
    """A rebalance is over."""

    generation: int
    protocol: str
    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None
    """What the leader's assignor has to say."""


class MemberState:
    def __init__(self, config: ConsumerConfig, coordinator: Coordinator, uniform: Uniform) -> None:
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

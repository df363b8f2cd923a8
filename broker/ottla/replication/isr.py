"""Who keeps up: a leader's view of its followers, and of the in-sync set that the controller grants.

Called by `partition` alone. Pure: time is passed in, in milliseconds of the leader's clock.

A follower's fetch at offset N says that it has everything below N. Whether it keeps up is judged by time, not
by distance: it is caught up if it has reached the leader's log end within the last
`replica.lag.time.max.ms`. A follower of a busy leader never reaches the very end, so a fetch that reaches
where the leader's log ended at the time of the follower's *previous* fetch counts as caught up then.

An in-sync set is the controller's to decide (KIP-497). Between asking and being told, the leader does not
know which of two sets is in force, so the high watermark waits for the larger: an expansion counts at once,
a shrinkage not until it is confirmed. That is the *maximal* ISR.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

UNKNOWN_OFFSET = -1
UNKNOWN_EPOCH = -1
_NOBODY: frozenset[int] = frozenset()
_NO_FOLLOWERS: Mapping[int, Follower] = {}


class Follower:
    """The leader's record of one follower. All offsets -1 until its first fetch in this leadership."""

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "last_caught_up_ms",
        "last_fetch_leader_end_offset",
        "last_fetch_ms",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = UNKNOWN_EPOCH
        """The follower's registration when it fetched last (KIP-903); -1 before Fetch 15."""
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.last_fetch_leader_end_offset = UNKNOWN_OFFSET
        self.last_fetch_ms = 0
        self.last_caught_up_ms = 0

    def fetched(self, offset: int, log_start_offset: int, leader_end_offset: int, now_ms: int) -> bool:
        """Note a fetch at `offset`. Returns whether the follower's end moved."""
        if offset >= leader_end_offset:
            if now_ms > self.last_caught_up_ms:
                self.last_caught_up_ms = now_ms
        elif offset >= self.last_fetch_leader_end_offset and self.last_fetch_ms > self.last_caught_up_ms:
            self.last_caught_up_ms = self.last_fetch_ms
        self.last_fetch_leader_end_offset = leader_end_offset
        self.last_fetch_ms = now_ms
        self.log_start_offset = log_start_offset
        if offset == self.log_end_offset:
            return False
        self.log_end_offset = offset
        return True

    def was_idle(self, at_ms: int) -> None:
        """Note that the follower's session was alive at `at_ms`, when there was nothing new for it."""
        if self.log_end_offset >= 0 and at_ms > self.last_fetch_ms:
            self.fetched(self.log_end_offset, self.log_start_offset, self.log_end_offset, at_ms)

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_ms_max: int) -> bool:
        return self.log_end_offset == leader_end_offset or now_ms - self.last_caught_up_ms <= lag_ms_max

    def reset(self, leader_end_offset: int, now_ms: int, *, new_leader: bool, in_sync: bool) -> None:
        """Start a leader epoch. A member of the ISR has the benefit of the doubt for one lag time; others
        do not, so that they cannot hold back the high watermark."""
        self.broker_epoch = UNKNOWN_EPOCH
        self.last_caught_up_ms = now_ms if in_sync else 0
        if new_leader:
            self.log_end_offset = UNKNOWN_OFFSET
            self.log_start_offset = UNKNOWN_OFFSET
            self.last_fetch_leader_end_offset = UNKNOWN_OFFSET
            self.last_fetch_ms = 0
        else:
            self.last_fetch_leader_end_offset = leader_end_offset if in_sync else 0
            self.last_fetch_ms = now_ms if in_sync else 0

    def __repr__(self) -> str:
        return f"Follower({self.broker_id}, end={self.log_end_offset}, caught_up={self.last_caught_up_ms})"


@dataclass(frozen=True, slots=True)
class IsrChange:
    """A change asked of the controller and not yet answered, made in these epochs."""

    leader_epoch: int
    partition_epoch: int
    committed: frozenset[int]
    proposed: frozenset[int]
    broker_epochs: Mapping[int, int] = field(default_factory=dict)
    """The registrations of followers that were seen to be in sync (KIP-903)."""

    @property
    def maximal(self) -> frozenset[int]:
        """Holds both sets' members: whichever is in force, nothing is committed too early."""
        return self.committed | self.proposed


@lru_cache(4096)
def _one_of(members: frozenset[int]) -> frozenset[int]:
    """The same object for the same members: there are thousands of partitions, and a few sets."""
    return members


class InSyncReplicas:
    """The followers of one partition and its in-sync set; empty while this broker does not lead."""

    __slots__ = ("broker_id", "change", "committed", "followers", "is_eligible", "lag_ms_max", "maximal")

    def __init__(self, broker_id: int, lag_ms_max: int, is_eligible: Callable[[int], bool]) -> None:
        self.broker_id = broker_id
        self.lag_ms_max = lag_ms_max
        self.is_eligible = is_eligible
        self.followers: Mapping[int, Follower] = _NO_FOLLOWERS
        self.committed = _NOBODY
        self.maximal = _NOBODY
        self.change: IsrChange | None = None

    def assign(self, replicas: Iterable[int]) -> None:
        """Keep a record of each of `replicas` but this broker, and of no other."""
        before = self.followers
        others = [broker for broker in replicas if broker != self.broker_id]
        if before.keys() != set(others):
            self.followers = {broker: before.get(broker) or Follower(broker) for broker in others}

    def settle(self, isr: Iterable[int]) -> None:
        """The controller has spoken: this is the set, and nothing is in flight."""
        self.committed = self.maximal = _one_of(frozenset(isr))
        self.change = None

    def clear(self) -> None:
        self.followers = _NO_FOLLOWERS
        self.settle(_NOBODY)

    def start_epoch(self, leader_end_offset: int, now_ms: int, *, new_leader: bool) -> None:
        for follower in self.followers.values():
            in_sync = follower.broker_id in self.committed
            follower.reset(leader_end_offset, now_ms, new_leader=new_leader, in_sync=in_sync)

    def propose(self, isr: frozenset[int], leader_epoch: int, partition_epoch: int) -> IsrChange:
        assert self.change is None, "one change at a time"
        assert self.broker_id in isr, "a leader is in sync with itself"
        epochs = {broker: f.broker_epoch for broker, f in self.followers.items() if broker in isr}
        self.change = IsrChange(leader_epoch, partition_epoch, self.committed, isr, epochs)
        self.maximal = self.change.maximal
        return self.change

    def fall_back(self) -> None:
        """The change in flight was certainly not made."""
        self.settle(self.committed)

    def laggards(self, leader_end_offset: int, now_ms: int) -> frozenset[int]:
        """Members that did not reach the leader's end within the lag time, or are no replicas any more."""
        if not self.followers and len(self.committed) == 1:
            return _NOBODY
        return frozenset(
            broker
            for broker in self.committed
            if broker != self.broker_id
            and not (
                (follower := self.followers.get(broker))
                and follower.is_caught_up(leader_end_offset, now_ms, self.lag_ms_max)
            )
        )

    def common_end(self, leader_end_offset: int, now_ms: int) -> int:
        """The lowest end among the maximal ISR and those about to join it (alive and caught up).

        Waiting for the latter lets them join: with a leader alone in its ISR the high watermark would
        otherwise run ahead of every fetch of theirs. -1 while one of them has not fetched yet.
        """
        lowest = leader_end_offset
        for follower in self.followers.values():
            end = follower.log_end_offset
            if end < lowest and (
                follower.broker_id in self.maximal
                or (
                    follower.is_caught_up(leader_end_offset, now_ms, self.lag_ms_max)
                    and self.is_eligible(follower.broker_id)
                )
            ):
                lowest = end
        return lowest

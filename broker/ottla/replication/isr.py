"""A leader's state of its followers (Kafka's Replica) and of the partition's ISR.

Used by `partition` only. Pure: time is passed in, in milliseconds of the leader's monotonic clock.

A follower's fetch at offset N means that it has all records below N. A follower is caught up if it has
reached the leader's log end offset within the last `replica.lag.time.max.ms`. A follower of a busy leader
never reaches the current end, so a fetch at or above the leader's end at the time of the follower's
*previous* fetch counts as caught up at that time.

The controller decides the ISR (KIP-497). Until it responds to a change, the leader does not know which of two
sets is in force, so the high watermark depends on both: an expansion counts at once, a shrink only after it
is confirmed. That is the *maximal* ISR.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

UNKNOWN_OFFSET = -1
UNKNOWN_EPOCH = -1
_EMPTY: frozenset[int] = frozenset()
_NO_FOLLOWERS: Mapping[int, Follower] = {}


class Follower:
    """The leader's state of one follower. All offsets are -1 until its first fetch from this leader."""

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
        """The follower's broker epoch in its last fetch (KIP-903); -1 before Fetch 15."""
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.last_fetch_leader_end_offset = UNKNOWN_OFFSET
        self.last_fetch_ms = 0
        self.last_caught_up_ms = 0

    def fetched(self, offset: int, log_start_offset: int, leader_end_offset: int, now_ms: int) -> bool:
        """Update the state for a fetch at `offset`. Returns whether the follower's end changed."""
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
        """Update the state for a fetch session that was active at `at_ms`, without new records for it."""
        if self.log_end_offset >= 0 and at_ms > self.last_fetch_ms:
            self.fetched(self.log_end_offset, self.log_start_offset, self.log_end_offset, at_ms)

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_ms_max: int) -> bool:
        return self.log_end_offset == leader_end_offset or now_ms - self.last_caught_up_ms <= lag_ms_max

    def reset(self, leader_end_offset: int, now_ms: int, *, has_led: bool, in_sync: bool) -> None:
        """Start a leader epoch; `has_led`: this broker led in the epoch before. Members of the ISR count as
        caught up for one lag time; others do not, so that they cannot hold back the high watermark."""
        self.broker_epoch = UNKNOWN_EPOCH
        self.last_caught_up_ms = now_ms if in_sync else 0
        if not has_led:
            self.log_end_offset = UNKNOWN_OFFSET
            self.log_start_offset = UNKNOWN_OFFSET
            self.last_fetch_leader_end_offset = UNKNOWN_OFFSET
            self.last_fetch_ms = 0
        else:
            self.last_fetch_leader_end_offset = leader_end_offset if in_sync else 0
            self.last_fetch_ms = now_ms if in_sync else 0

    def __repr__(self) -> str:
        return (
            f"(brokerId: {self.broker_id}, endOffset: {self.log_end_offset}, "
            f"lastCaughtUpTimeMs: {self.last_caught_up_ms})"
        )


@dataclass(frozen=True, slots=True)
class IsrChange:
    """A proposed ISR change without a response of the controller, with the epochs of the proposal."""

    leader_epoch: int
    partition_epoch: int
    committed: frozenset[int]
    proposed: frozenset[int]
    broker_epochs: Mapping[int, int] = field(default_factory=dict)
    """The broker epochs of the followers in the proposed ISR (KIP-903)."""

    @property
    def maximal(self) -> frozenset[int]:
        """The union of both sets: records are not committed too early, whichever set is in force."""
        return self.committed | self.proposed


@lru_cache(4096)
def _interned(members: frozenset[int]) -> frozenset[int]:
    """The same object for the same members, to save memory: thousands of partitions have a few sets."""
    return members


class InSyncReplicas:
    """The followers and the ISR of one partition; empty while this broker is not the leader."""

    __slots__ = ("broker_id", "change", "committed", "followers", "is_eligible", "lag_ms_max", "maximal")

    def __init__(self, broker_id: int, lag_ms_max: int, is_eligible: Callable[[int], bool]) -> None:
        self.broker_id = broker_id
        self.lag_ms_max = lag_ms_max
        self.is_eligible = is_eligible
        self.followers: Mapping[int, Follower] = _NO_FOLLOWERS
        self.committed = _EMPTY
        self.maximal = _EMPTY
        self.change: IsrChange | None = None

    def assign(self, replicas: Iterable[int]) -> None:
        """Set the followers: `replicas` without this broker. States of remaining followers are kept."""
        before = self.followers
        others = [broker for broker in replicas if broker != self.broker_id]
        if before.keys() != set(others):
            self.followers = {broker: before.get(broker) or Follower(broker) for broker in others}

    def set_isr(self, isr: Iterable[int]) -> None:
        """Set the ISR that the controller has decided; no change is in flight any more."""
        self.committed = self.maximal = _interned(frozenset(isr))
        self.change = None

    def clear(self) -> None:
        self.followers = _NO_FOLLOWERS
        self.set_isr(_EMPTY)

    def start_epoch(self, leader_end_offset: int, now_ms: int, *, has_led: bool) -> None:
        for follower in self.followers.values():
            in_sync = follower.broker_id in self.committed
            follower.reset(leader_end_offset, now_ms, has_led=has_led, in_sync=in_sync)

    def propose(self, isr: frozenset[int], leader_epoch: int, partition_epoch: int) -> IsrChange:
        assert self.change is None, "one change at a time"
        assert self.broker_id in isr, "a leader is in sync with itself"
        epochs = {broker: f.broker_epoch for broker, f in self.followers.items() if broker in isr}
        self.change = IsrChange(leader_epoch, partition_epoch, self.committed, isr, epochs)
        self.maximal = self.change.maximal
        return self.change

    def drop_change(self) -> None:
        """Drop the change in flight, which the controller has not made."""
        self.set_isr(self.committed)

    def out_of_sync(self, leader_end_offset: int, now_ms: int) -> frozenset[int]:
        """ISR members that did not reach the leader's end within the lag time, or are not replicas any
        more."""
        if not self.followers and len(self.committed) == 1:
            return _EMPTY
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
        """The lowest end of the maximal ISR and of followers that can join it (alive and caught up).

        The latter count so that they can join: with the leader alone in the ISR, the high watermark would
        otherwise always be ahead of their fetches. -1 while one of them has not fetched yet.
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

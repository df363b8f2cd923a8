"""The replication throttle of the operator's reassignments (KIP-73): set before them, removed after them.

Pure; called by `reconcile` when all moves of the reconciliation are planned. `status.throttle` records a
throttle before it is set, so that an operator that is killed at any point leaves none behind. A rate, or a
topic's list of throttled replicas, that is set and not in that record belongs to another tool and is not
changed.

Invariant (tested by property): a move begins only when its partition is throttled, or when another tool
throttles its topic; after the last move, exactly the recorded throttles are removed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from ottla_operator.planning.observed import Observed, PartitionKey, TopicState
from ottla_operator.planning.steps import AlterBrokerSettings, AlterTopicConfig, Reassign, Step
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.cluster_status import ThrottleStatus
from ottla_operator.resources.common import parse_quantity
from ottla_operator.resources.settings import THROTTLED_REPLICAS

RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LEADERS, FOLLOWERS = THROTTLED_REPLICAS

Pairs = frozenset[tuple[int, int]]
"""(partition, broker)."""

S = TypeVar("S", bound=Step)


@dataclass(frozen=True, slots=True)
class Throttling:
    """The changes of the throttle that are due, and the moves that wait for them."""

    steps: tuple[AlterBrokerSettings | AlterTopicConfig, ...] = ()
    record: ThrottleStatus | None = None
    """The throttle that the operator owns, for the status."""
    held: frozenset[str] = field(default_factory=frozenset)
    """Topics whose moves wait for their throttle."""

    def let_through(self, steps: Sequence[S]) -> tuple[S, ...]:
        """The steps without the moves that wait for their throttle."""
        passed: list[S] = []
        for step in steps:
            if isinstance(step, Reassign):
                left = {key: to for key, to in step.assignment.items() if key[0] not in self.held}
                if not left:
                    continue
                step = replace(step, assignment=left)
            passed.append(step)
        return tuple(passed)


def plan_throttle(
    cluster: BrokerCluster, observed: Observed, moves: Mapping[PartitionKey, Sequence[int]]
) -> Throttling:
    """`moves`: all planned moves with their new replica lists, including later batches."""
    before = cluster.status.throttle
    quantity = cluster.spec.rebalance.replication_throttle
    rate = parse_quantity(quantity) if quantity is not None else None
    if not observed.kafka.has_controller:
        return Throttling((), before, frozenset(topic for topic, _ in moves))
    owned = frozenset(before.topics) if before is not None else frozenset[str]()
    wanted = _wanted(cluster, observed, moves, owned) if rate is not None else {}
    if rate is None or not wanted:
        removal = _removal(observed, before)
        return Throttling(tuple(removal), before if removal else None)
    owns_rate = before is not None and before.rate is not None
    foreign_rate = not owns_rate and any(name in observed.kafka.settings for name in RATES)
    record = ThrottleStatus(rate=None if foreign_rate else rate, topics=sorted(owned | set(wanted)))
    if before is None or not set(wanted) <= owned or (record.rate is not None and not owns_rate):
        # The record is written first; the throttle is set in the next reconciliation.
        return Throttling((), record, frozenset(wanted))
    steps: list[AlterBrokerSettings | AlterTopicConfig] = []
    wrong = {
        name: str(record.rate)
        for name in RATES
        if record.rate is not None and observed.kafka.settings.get(name) != str(record.rate)
    }
    if wrong:
        steps.append(AlterBrokerSettings(wrong, ()))
    lacking = []
    for topic, (leaders, followers) in sorted(wanted.items()):
        state = observed.kafka.topics[topic]
        if not (leaders <= _pairs(state, LEADERS) and followers <= _pairs(state, FOLLOWERS)):
            lacking.append(topic)
            config = {LEADERS: _text(leaders), FOLLOWERS: _text(followers)}
            steps.append(AlterTopicConfig(topic, config, ()))
    return Throttling(tuple(steps), record, frozenset(wanted if wrong else lacking))


def _wanted(
    cluster: BrokerCluster,
    observed: Observed,
    moves: Mapping[PartitionKey, Sequence[int]],
    owned: Collection[str],
) -> dict[str, tuple[Pairs, Pairs]]:
    """By topic, the replicas to throttle as leaders and as followers."""
    leaders: dict[str, set[tuple[int, int]]] = {}
    followers: dict[str, set[tuple[int, int]]] = {}
    reassigning = bool(moves) or cluster.status.reassignment is not None
    for partition in observed.kafka.partitions():
        topic, number = partition.key
        target = moves.get(partition.key, ())
        added = {*partition.adding, *(b for b in target if b not in partition.replicas)}
        if not added or not (target or topic in owned or reassigning):
            continue
        if topic not in owned and _is_throttled(observed.kafka.topics[topic]):
            continue
        leaders.setdefault(topic, set()).update((number, b) for b in partition.origin_replicas)
        followers.setdefault(topic, set()).update((number, b) for b in added)
    return {topic: (frozenset(leaders[topic]), frozenset(followers[topic])) for topic in leaders}


def _is_throttled(topic: TopicState) -> bool:
    return any(topic.config.get(name) for name in THROTTLED_REPLICAS)


def _removal(
    observed: Observed, before: ThrottleStatus | None
) -> list[AlterBrokerSettings | AlterTopicConfig]:
    steps: list[AlterBrokerSettings | AlterTopicConfig] = []
    if before is None:
        return steps
    rates = tuple(name for name in RATES if name in observed.kafka.settings)
    if before.rate is not None and rates:
        steps.append(AlterBrokerSettings({}, rates))
    for topic in before.topics:
        state = observed.kafka.topics.get(topic)
        names = tuple(name for name in THROTTLED_REPLICAS if state is not None and name in state.config)
        if names:
            steps.append(AlterTopicConfig(topic, {}, names))
    return steps


def _pairs(topic: TopicState, name: str) -> Pairs:
    found = set()
    for item in topic.config.get(name, "").split(","):
        partition, _, broker = item.strip().partition(":")
        if partition.isdigit() and broker.isdigit():
            found.add((int(partition), int(broker)))
    return frozenset(found)


def _text(pairs: Pairs) -> str:
    return ",".join(f"{partition}:{broker}" for partition, broker in sorted(pairs))

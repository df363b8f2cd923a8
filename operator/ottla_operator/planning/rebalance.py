"""Plans a rebalance by load: which replicas move so that the goals are met, and what that costs.

Pure; called by `planning.rebalance_run` with observed loads. The search is greedy, goal by goal in the order
of `rebalance_goals.Goal`: leaderships are handed over first (no data moves), then single replicas move,
those with the least bytes for their effect first, then two replicas are exchanged. An action is taken when
it lowers the cost of its goal and raises that of no earlier goal. At last each change that no goal needs is
taken back.

Invariants (tested by property): a partition keeps its replication factor, on distinct brokers; no replica
moves to a broker beyond a capacity; no partition is in fewer racks than before, unless none could be evener;
every change that a plan contains is needed by a goal; after a plan is applied, the next plan is empty.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Final

from ottla_operator.planning.load_model import (
    LEADER_METRICS,
    BrokerCapacity,
    LoadModel,
    Metric,
)
from ottla_operator.planning.observed import PartitionKey, PartitionLoad
from ottla_operator.planning.placement import Changes
from ottla_operator.planning.rebalance_goals import (
    BALANCE_MARGIN,
    COUNTS,
    HARD_GOALS,
    SOFT_GOALS,
    Goal,
    Limits,
    Thresholds,
    limits_of,
    rack_cost,
    topic_cost,
    topic_limits,
)

# Shares of the mean load of a broker: what a plan must improve, what one action must, and rounding errors.
_USEFUL: Final = 1e-2
_USEFUL_SHARE: Final = 0.1
"""Of a goal's cost: what a plan must improve, too."""
_USEFUL_ACTION: Final = 1e-5
_ROUNDING: Final = 1e-9
# A broker's goal is given up after so many attempts without success.
_ATTEMPTS_MAX: Final = 300
# A replica moves only if it has at least this share of the load that is too much.
_EFFECT_MIN: Final = 1 / 256
# Of the replicas that could be exchanged, so many are tried for one partition.
_NEIGHBOURS: Final = 6
_SWAPPED: Final = 64
_SWAP_TARGETS: Final = 8
# A goal is tried again while it gets much closer.
_REPEATS_MAX: Final = 6
# The search ends earlier in all but constructed cases; see `_optimised`.
_ROUNDS_MAX: Final = 12

# Cruise Control's weights of its balancedness score.
_PRIORITY_WEIGHT: Final = 1.1
_STRICTNESS_WEIGHT: Final = 1.5


@dataclass(frozen=True, slots=True)
class GoalBalance:
    """How far a cluster meets one goal."""

    goal: Goal
    met: bool
    brokers: int
    """Brokers beyond the limits; of RackAwareness and TopicReplicaDistribution, partitions and replicas."""
    least: float
    """The lowest load of a broker as a multiple of the mean; of a capacity, of what may be used."""
    most: float

    @property
    def hard(self) -> bool:
        return self.goal in HARD_GOALS


@dataclass(frozen=True, slots=True)
class Proposal:
    """A planned rebalance."""

    changes: Changes = field(default_factory=dict)
    """New replica lists, preferred leader first, in the order in which to move them."""
    moved_replicas: int = 0
    moved_leaders: int = 0
    """Partitions with another preferred leader."""
    bytes: int = 0
    """What followers will copy."""
    seconds: int | None = None
    """The estimated time at the given rate; None without one."""
    before: tuple[GoalBalance, ...] = ()
    after: tuple[GoalBalance, ...] = ()

    @property
    def unmet(self) -> tuple[Goal, ...]:
        """Hard goals that the plan cannot meet."""
        return tuple(balance.goal for balance in self.after if balance.hard and not balance.met)


def score(balances: Iterable[GoalBalance]) -> int:
    """The balancedness, 0 to 100: the weights of the met goals, as in Cruise Control: each goal weighs 1.1
    times the next one, a hard goal 1.5 times that."""
    listed = list(balances)
    weights = [
        _PRIORITY_WEIGHT ** (len(listed) - n) * (_STRICTNESS_WEIGHT if balance.hard else 1.0)
        for n, balance in enumerate(listed)
    ]
    met = sum(weight for weight, balance in zip(weights, listed, strict=True) if balance.met)
    return round(100 * met / sum(weights)) if weights else 100


def plan_rebalance(
    assignment: Mapping[PartitionKey, Sequence[int]],
    loads: Mapping[PartitionKey, PartitionLoad],
    brokers: Mapping[int, BrokerCapacity],
    *,
    goals: Sequence[Goal] = SOFT_GOALS,
    thresholds: Thresholds | None = None,
    rate: int | None = None,
) -> Proposal:
    """`goals`: the soft goals to meet; hard goals always apply. `rate`: bytes per second that each broker may
    send and receive for the moves."""
    thresholds = thresholds or Thresholds()
    wanted = tuple(goal for goal in Goal if goal in HARD_GOALS or goal in goals)
    model = LoadModel(assignment, loads, brokers)
    before = judge(model, wanted, thresholds)
    start = model.snapshot()
    _optimised(model, wanted, thresholds, start)
    changed = {
        partition: tuple(replicas)
        for partition, replicas in enumerate(model.replicas)
        if tuple(replicas) != start[partition]
    }
    copied = {p: [b for b in replicas if b not in start[p]] for p, replicas in changed.items()}
    after = judge(model, wanted, thresholds)
    order = _ordered(model, start, changed, thresholds)
    return Proposal(
        changes={model.keys[p]: tuple(model.ids[b] for b in changed[p]) for p in order},
        moved_replicas=sum(len(added) for added in copied.values()),
        moved_leaders=sum(replicas[0] != start[p][0] for p, replicas in changed.items()),
        bytes=int(sum(model.partition_sizes[p] * len(added) for p, added in copied.items())),
        seconds=_seconds(model, start, copied, rate) if rate else None,
        before=before,
        after=after,
    )


def judge(model: LoadModel, goals: Sequence[Goal], thresholds: Thresholds) -> tuple[GoalBalance, ...]:
    """How far the model meets each of the goals that apply to it."""
    found = []
    for goal in goals:
        if goal is Goal.RACK_AWARENESS:
            count = sum(
                model.rack_excess(r) > 0 for p, r in enumerate(model.replicas) if p not in model.fixed
            )
            found.append(GoalBalance(goal, count == 0, count, 0.0, 0.0))
            continue
        if goal is Goal.TOPIC_REPLICA_DISTRIBUTION:
            cost = topic_cost(model, topic_limits(model, thresholds))
            found.append(GoalBalance(goal, cost == 0, int(cost), 0.0, 0.0))
            continue
        limits = limits_of(goal, model, thresholds, 1.0)
        if limits is None:
            continue
        load = model.load[limits.metric]
        check = _Check(limits, model)
        beyond = sum(check.excess(broker, load[broker]) > check.slack for broker in model.movable)
        if goal in HARD_GOALS or goal is Goal.POTENTIAL_NETWORK_OUT:
            shares = [load[broker] / max(limits.high[broker], 1e-9) for broker in model.movable]
        else:
            shares = [load[broker] / limits.mean for broker in model.movable]
        found.append(GoalBalance(goal, beyond == 0, beyond, min(shares), max(shares)))
    return tuple(found)


def _optimised(
    model: LoadModel, goals: Sequence[Goal], thresholds: Thresholds, start: Sequence[tuple[int, ...]]
) -> None:
    """Change the model until no round improves it: then the next plan is empty.

    Each round, like the next plan, starts from the assignment that it finds.
    """
    search = _Search(model, goals, thresholds)
    current, cost = list(start), search.cost()
    for _ in range(_ROUNDS_MAX):
        search.improve(current)
        reached = search.cost()
        if not _is_better(reached, cost):
            break
        search.take_back(start)
        current, cost = model.snapshot(), search.cost()
    for partition, replicas in enumerate(current):
        if tuple(model.replicas[partition]) != replicas:
            model.replace(partition, replicas)


def _is_better(new: Sequence[float], old: Sequence[float]) -> bool:
    """Whether the first cost that differs by enough to be worth moves is lower."""
    for a, b in zip(new, old, strict=True):
        if abs(a - b) > max(_USEFUL, _USEFUL_SHARE * b):
            return a < b
    return False


class _Check:
    """The limits of one goal for a model, and the test of an action against them."""

    __slots__ = ("hard", "high", "leads", "limits", "load", "low", "model", "slack", "useful", "values")

    def __init__(self, limits: Limits, model: LoadModel) -> None:
        self.limits, self.model = limits, model
        self.hard = limits.hard
        self.leads = limits.metric in LEADER_METRICS
        self.low = limits.low
        self.high = [limits.high_with(broker, model) for broker in range(len(model.ids))]
        self.load, self.values = model.load[limits.metric], model.values[limits.metric]
        self.slack = limits.mean * _ROUNDING
        self.useful = limits.mean * _USEFUL_ACTION

    def refresh(self, *brokers: int) -> None:
        """Compute the upper limits of brokers again: a heavy partition was moved."""
        for broker in brokers:
            self.high[broker] = self.limits.high_with(broker, self.model)

    def excess(self, broker: int, load: float) -> float:
        """The load beyond the limits, in the metric's unit."""
        high, low = self.high[broker], self.low[broker]
        return load - high if load > high else low - load if load < low else 0.0

    def cost(self, *brokers: int) -> float:
        """The loads of the brokers beyond the limits."""
        return sum(self.excess(broker, self.load[broker]) for broker in brokers)

    def allows(self, source: int, target: int, amount: float) -> bool:
        """Whether `amount` may go from `source` to `target`: the cost of the goal does not rise."""
        if amount < 0:
            source, target, amount = target, source, -amount
        load = self.load
        if load[target] + amount <= self.high[target] and load[source] - amount >= self.low[source]:
            return True
        if self.hard:
            return load[target] + amount <= self.high[target]
        return self.gain(source, target, amount) >= -self.slack

    def gain(self, source: int, target: int, amount: float) -> float:
        """By how much the excess falls when `amount` goes from `source` to `target`."""
        a, b = self.load[source], self.load[target]
        excess = self.excess
        return excess(source, a) + excess(target, b) - excess(source, a - amount) - excess(target, b + amount)


class _Search:
    """Improves a model, goal by goal."""

    def __init__(
        self,
        model: LoadModel,
        goals: Sequence[Goal],
        thresholds: Thresholds,
    ) -> None:
        self._model = model
        self._start: Sequence[tuple[int, ...]] = ()
        self._goals = goals
        self._topics = topic_limits(model, thresholds)
        self._replicas_mean = max(1.0, sum(model.load[Metric.REPLICAS]) / max(1, len(model.ids)))
        self._checks: dict[Goal, _Check] = {}
        for goal in goals:
            limits = limits_of(goal, model, thresholds, BALANCE_MARGIN)
            if limits is not None:
                self._checks[goal] = _Check(limits, model)
        self._with_heavy = [check for check in self._checks.values() if check.limits.heavy]
        self._replica_checks: list[_Check] = []
        self._leader_checks: list[_Check] = []
        self._spread_topics = False
        self._attempts = 0

    def cost(self) -> list[float]:
        """The cost of each goal, in their order."""
        found = []
        for goal in self._goals:
            check = self._checks.get(goal)
            if check is not None:
                check.refresh(*self._model.movable)
                found.append(check.cost(*self._model.movable) / check.limits.mean)
            elif goal is Goal.RACK_AWARENESS:
                found.append(rack_cost(self._model))
            elif goal is Goal.TOPIC_REPLICA_DISTRIBUTION:
                found.append(topic_cost(self._model, self._topics) / self._replicas_mean)
        return found

    def improve(self, start: Sequence[tuple[int, ...]]) -> None:
        """One pass over all goals; `start`: the model's replicas now."""
        self._start = start
        self._replica_checks, self._leader_checks, self._spread_topics = [], [], False
        for goal in self._goals:
            # No action may break a hard goal, not even one for a goal before it.
            if goal in HARD_GOALS and goal in self._checks:
                self._enforce(self._checks[goal])
        for goal in self._goals:
            if goal is Goal.RACK_AWARENESS:
                self._spread_over_racks()
            elif goal is Goal.TOPIC_REPLICA_DISTRIBUTION:
                self._spread_topic_replicas()
                self._spread_topics = True
            elif goal in self._checks:
                self._balance(self._checks[goal])
                if goal not in HARD_GOALS:
                    self._enforce(self._checks[goal])

    def _enforce(self, check: _Check) -> None:
        leads = check.leads
        (self._leader_checks if leads else self._replica_checks).append(check)

    # ---- what earlier goals allow

    def _may_move(self, partition: int, source: int, target: int) -> bool:
        model = self._model
        replicas = model.replicas[partition]
        for check in self._replica_checks:
            if not check.allows(source, target, check.values[partition]):
                return False
        if replicas[0] == source:
            for check in self._leader_checks:
                if not check.allows(source, target, check.values[partition]):
                    return False
        return self._keeps_racks(replicas, source, target) and (
            not self._spread_topics or self._keeps_topic(model.topic[partition], source, target)
        )

    def _may_lead(self, partition: int, source: int, target: int) -> bool:
        return all(c.allows(source, target, c.values[partition]) for c in self._leader_checks)

    def _may_swap(self, first: int, source: int, second: int, target: int) -> bool:
        """Whether `first` may go from `source` to `target` and `second` the other way."""
        model = self._model
        one, other = model.replicas[first], model.replicas[second]
        for check in self._replica_checks:
            if not check.allows(source, target, check.values[first] - check.values[second]):
                return False
        leads, other_leads = one[0] == source, other[0] == target
        if leads or other_leads:
            for check in self._leader_checks:
                values = check.values
                amount = (values[first] if leads else 0.0) - (values[second] if other_leads else 0.0)
                if not check.allows(source, target, amount):
                    return False
        if not (self._keeps_racks(one, source, target) and self._keeps_racks(other, target, source)):
            return False
        topic, other_topic = model.topic[first], model.topic[second]
        if not self._spread_topics or topic == other_topic:
            return True
        return self._keeps_topic(topic, source, target) and self._keeps_topic(other_topic, target, source)

    def _keeps_racks(self, replicas: Sequence[int], source: int, target: int) -> bool:
        racks = self._model.racks
        mine, new = racks[source], racks[target]
        if new == mine:
            return True
        others = [racks[broker] for broker in replicas if broker != source]
        if new not in others:
            return True
        if mine not in others and len(replicas) <= self._model.rack_count:
            return False
        moved = [target if broker == source else broker for broker in replicas]
        return self._model.rack_excess(moved) <= self._model.rack_excess(replicas)

    def _keeping_racks(self, partitions: list[int], source: int, target: int) -> list[int]:
        """Those of the partitions that may move without a loss of racks."""
        model = self._model
        if model.racks[source] == model.racks[target]:
            return partitions
        return [p for p in partitions if self._keeps_racks(model.replicas[p], source, target)]

    def _keeps_topic(self, topic: int, source: int, target: int) -> bool:
        low, high = self._topics[topic]
        counts = self._model.topic_count[topic]
        return (counts[target] < high or counts[target] < counts[source]) and (
            counts[source] > low or counts[target] < counts[source]
        )

    # ---- actions

    def _do_move(self, partition: int, source: int, target: int) -> None:
        self._attempts = 0
        leads = self._model.replicas[partition][0] == source
        self._model.move(partition, source, target)
        self._refresh(partition, source, target, leads=leads)

    def _do_lead(self, partition: int, source: int, target: int) -> None:
        self._model.lead(partition, target)
        self._refresh(partition, source, target, leads=True)

    def _refresh(self, partition: int, *brokers: int, leads: bool) -> None:
        for check in self._with_heavy:
            if partition in check.limits.heavy and (leads or not check.leads):
                check.refresh(*brokers)

    # ---- balances

    def _balance(self, check: _Check) -> None:
        """Bring the brokers within the limits, those that are furthest beyond them first."""
        load, movable = check.load, self._model.movable
        if check.limits.heavy:
            self._separate_heavy(check)
        cost = check.cost(*movable)
        for _ in range(_REPEATS_MAX):
            for broker in sorted(movable, key=lambda b: (check.high[b] - load[b], b)):
                if load[broker] > check.high[broker] + check.slack:
                    self._attempts = 0
                    self._relieve(check, broker)
            for broker in sorted(movable, key=lambda b: (load[b] - check.low[b], b)):
                if load[broker] < check.low[broker] - check.slack:
                    self._attempts = 0
                    self._fill(check, broker)
            before, cost = cost, check.cost(*movable)
            if cost > before * (1 - _USEFUL_SHARE) or cost < _USEFUL * check.limits.mean:
                return

    def _separate_heavy(self, check: _Check) -> None:
        """Move partitions that are heavier than the mean to brokers of their own."""
        model, load, values = self._model, check.load, check.values

        def heavy_on(broker: int) -> list[int]:
            found = [p for p in self._candidates(check, broker) if p in check.limits.heavy]
            return sorted(found, key=lambda p: (values[p], p))

        for source in model.movable:
            for partition in heavy_on(source)[:-1]:
                free = [b for b in model.movable if b != source and not heavy_on(b)]
                for target in sorted(free, key=lambda b: (load[b], b)):
                    if self._separates(check, partition, source, target):
                        break

    def _separates(self, check: _Check, partition: int, source: int, target: int) -> bool:
        """Take a heavy partition, or only its leadership, to `target` if that lowers the cost."""
        follows = target in self._model.replicas[partition]
        if follows and not check.leads:
            return False
        allowed = self._may_lead if follows else self._may_move
        if not allowed(partition, source, target):
            return False
        act = self._do_lead if follows else self._do_move
        before = check.cost(source, target)
        act(partition, source, target)
        if check.cost(source, target) < before - check.useful:
            return True
        act(partition, target, source)
        return False

    def _relieve(self, check: _Check, source: int) -> None:
        """Take load off a broker that has more than its limit."""
        model, load = self._model, check.load

        def need() -> float:
            return load[source] - check.high[source]

        def targets() -> list[int]:
            room = [b for b in model.movable if b != source and load[b] < check.high[b]]
            return sorted(room, key=lambda b: (load[b] - check.high[b], b))

        if check.leads:
            self._hand_over(check, source, need)
        if check.limits.metric is Metric.LEADER_IN:
            # As in Cruise Control: not worth moving data.
            return
        self._move(check, source, need, targets)
        self._attempts = 0
        self._swap(check, source, need, targets)

    def _fill(self, check: _Check, target: int) -> None:
        """Bring load to a broker that has less than its limit."""
        model, load = self._model, check.load

        def need() -> float:
            return check.low[target] - load[target]

        if check.leads:
            self._take_over(check, target, need)
        if check.limits.metric is Metric.LEADER_IN:
            return
        for exchange in (False, True):
            donors = sorted(
                (b for b in model.movable if b != target and load[b] > check.low[b]),
                key=lambda b: (check.low[b] - load[b], b),
            )
            for source in donors:
                if need() <= check.slack:
                    return
                give = self._swap if exchange else self._move
                give(check, source, need, lambda: [target])
                if self._attempts > _ATTEMPTS_MAX:
                    break
            self._attempts = 0

    def _candidates(self, check: _Check, broker: int) -> list[int]:
        """The partitions with a load of this goal on the broker."""
        model, leads = self._model, check.leads
        values, fixed = check.values, model.fixed
        return [
            partition
            for partition in model.held[broker]
            if values[partition] > 0
            and partition not in fixed
            and (not leads or model.replicas[partition][0] == broker)
        ]

    def _bytes(self, partition: int, source: int) -> float:
        """What it costs to move a replica off `source`: nothing, if it is to move there first."""
        return self._model.partition_sizes[partition] if source in self._start[partition] else 0.0

    def _cheapest_first(
        self, check: _Check, source: int, partitions: list[int], need: float, count: int | None = None
    ) -> list[int]:
        """In the order of bytes for each unit of the load that is too much; then the largest, for fewer
        moves."""
        values, sizes, start = check.values, self._model.partition_sizes, self._start
        ranked = []
        for partition in partitions:
            effect = values[partition]
            if effect > need:
                effect = need
            # A replica that is to move to `source` first costs nothing more.
            cost = sizes[partition] / effect if source in start[partition] else 0.0
            ranked.append((cost, -effect, partition))
        if count is not None and count < len(ranked):
            return [partition for _, _, partition in nsmallest(count, ranked)]
        ranked.sort()
        return [partition for _, _, partition in ranked]

    def _move(
        self,
        check: _Check,
        source: int,
        need: Callable[[], float],
        targets: Callable[[], list[int]],
    ) -> None:
        """Move single replicas from `source` until `need` is met."""
        model, values, useful = self._model, check.values, check.useful
        while True:
            began = wanted = need()
            places = targets()
            if wanted <= check.slack or not places:
                return
            for partition in self._cheapest_first(
                check, source, self._effective(check, source, wanted), wanted
            ):
                replicas, amount = model.replicas[partition], values[partition]
                for target in places:
                    if target in replicas or not self._keeps_racks(replicas, source, target):
                        continue
                    if check.gain(source, target, amount) <= useful:
                        continue
                    self._attempts += 1
                    if self._may_move(partition, source, target):
                        self._do_move(partition, source, target)
                        places = targets()
                        wanted = need()
                        break
                if wanted <= check.slack or not places or self._attempts > _ATTEMPTS_MAX:
                    return
                if wanted < began / 2:
                    break
            else:
                return

    def _effective(self, check: _Check, broker: int, need: float) -> list[int]:
        """The partitions of a broker whose load is not too small for `need` to matter."""
        candidates = self._candidates(check, broker)
        if check.limits.metric in COUNTS:
            return candidates
        values, least = check.values, need * _EFFECT_MIN
        return [partition for partition in candidates if values[partition] >= least] or candidates

    def _hand_over(self, check: _Check, source: int, need: Callable[[], float]) -> None:
        """Give leaderships of `source` to followers until `need` is met."""
        model, values, load = self._model, check.values, check.load
        for partition in _closest_first(self._candidates(check, source), values, need()):
            if need() <= check.slack:
                return
            for target in sorted(model.replicas[partition][1:], key=lambda b: (load[b] - check.high[b], b)):
                if self._improves_lead(check, partition, source, target):
                    self._do_lead(partition, source, target)
                    break

    def _take_over(self, check: _Check, target: int, need: Callable[[], float]) -> None:
        """Make `target` the leader of partitions that it follows until `need` is met."""
        model, values = self._model, check.values
        followed = [
            partition
            for partition in model.held[target]
            if values[partition] > 0
            and partition not in model.fixed
            and model.replicas[partition][0] != target
        ]
        for partition in _closest_first(followed, values, need()):
            if need() <= check.slack:
                return
            source = model.replicas[partition][0]
            if self._improves_lead(check, partition, source, target):
                self._do_lead(partition, source, target)

    def _improves_lead(self, check: _Check, partition: int, source: int, target: int) -> bool:
        gain = check.gain(source, target, check.values[partition])
        return gain > check.useful and self._may_lead(partition, source, target)

    def _swap(
        self,
        check: _Check,
        source: int,
        need: Callable[[], float],
        targets: Callable[[], list[int]],
    ) -> None:
        """Exchange replicas of `source` for others with less load until `need` is met."""
        model, values = self._model, check.values
        if check.limits.metric in COUNTS or need() <= check.slack:
            return
        replicas, fixed, sizes, start = model.replicas, model.fixed, model.partition_sizes, self._start
        tried = 0
        for target in targets():
            mine = [p for p in self._effective(check, source, need()) if target not in replicas[p]]
            mine = self._keeping_racks(mine, source, target)
            if not mine:
                continue
            others = [p for p in model.held[target] if p not in fixed and source not in replicas[p]]
            others = self._keeping_racks(others, target, source)
            if not others:
                continue
            tried += 1
            if tried > _SWAP_TARGETS:
                return
            if check.leads:
                ranked = [(values[p] if replicas[p][0] == target else 0.0, p) for p in others]
            else:
                ranked = [(values[p], p) for p in others]
            ranked.sort()
            by_size = [(sizes[p] if target in start[p] else 0.0, amount, p) for amount, p in ranked]
            lightest = [(amount, p) for _, amount, p in nsmallest(_NEIGHBOURS, by_size)]
            for partition in self._cheapest_first(check, source, mine, max(need(), check.slack), _SWAPPED):
                wanted = need()
                if wanted <= check.slack or self._attempts > _ATTEMPTS_MAX:
                    return
                room = check.high[target] - check.load[target]
                at = bisect_left(ranked, (values[partition] - min(wanted, room), -1))
                near = ranked[max(0, at - _NEIGHBOURS // 2) : at + _NEIGHBOURS // 2]
                for amount, other in (*lightest, *near):
                    if target not in model.replicas[other] or source in model.replicas[other]:
                        continue
                    gain = check.gain(source, target, values[partition] - amount)
                    if gain <= check.useful:
                        continue
                    self._attempts += 1
                    if self._may_swap(partition, source, other, target):
                        self._do_move(partition, source, target)
                        self._do_move(other, target, source)
                        break

    # ---- racks and topics

    def _spread_over_racks(self) -> None:
        model = self._model
        disk = model.load[Metric.DISK]
        for partition, replicas in enumerate(model.replicas):
            if partition in model.fixed:
                continue
            while (excess := model.rack_excess(replicas)) > 0:
                best: tuple[int, bool, float, int, int] | None = None
                for position, source in enumerate(replicas):
                    for target in model.movable:
                        if target in replicas:
                            continue
                        moved = [target if broker == source else broker for broker in replicas]
                        left = model.rack_excess(moved)
                        if left >= excess or not self._may_move(partition, source, target):
                            continue
                        fullness = disk[target] / (model.capacities[target].disk or 1.0)
                        found = (left, position == 0, fullness, target, source)
                        best = found if best is None else min(best, found)
                if best is None:
                    break
                self._do_move(partition, best[4], best[3])

    def _spread_topic_replicas(self) -> None:
        model = self._model
        for topic, (low, high) in enumerate(self._topics):
            counts = model.topic_count[topic]
            if max(counts[b] for b in model.movable) <= high and min(counts[b] for b in model.movable) >= low:
                continue
            for source in sorted(model.movable, key=lambda b: (-counts[b], b)):
                mine = [p for p in model.held[source] if model.topic[p] == topic and p not in model.fixed]
                for partition in sorted(mine, key=lambda p: (self._bytes(p, source), p)):
                    for target in sorted(model.movable, key=lambda b: (counts[b], b)):
                        # The move must lower the cost.
                        useful = counts[source] > high and counts[target] < high
                        useful = useful or (counts[target] < low and counts[source] > low)
                        if not useful or target in model.replicas[partition]:
                            continue
                        if self._may_move(partition, source, target):
                            self._do_move(partition, source, target)
                            break

    # ---- changes that no goal needs

    def take_back(self, start: Sequence[tuple[int, ...]]) -> None:
        """Undo, wholly or in part, every change since `start` without which no goal is met less."""
        self._start = start
        model = self._model
        changed = [p for p, r in enumerate(model.replicas) if tuple(r) != self._start[p]]
        sizes = model.partition_sizes

        def moved_bytes(partition: int) -> float:
            return sizes[partition] * sum(b not in self._start[partition] for b in model.replicas[partition])

        undone = True
        while undone:
            undone = False
            for partition in sorted(changed, key=lambda p: (-moved_bytes(p), p)):
                undone = self._undo(partition) or undone
            changed = [p for p in changed if tuple(model.replicas[p]) != self._start[p]]

    def _undo(self, partition: int) -> bool:
        """Whether the partition, or a part of its change, is as it was at the start again."""
        model, start = self._model, self._start[partition]
        now = tuple(model.replicas[partition])
        choices = [start]
        if set(now) != set(start):
            gone, new = [b for b in start if b not in now], [b for b in now if b not in start]
            # One move less.
            choices += [tuple(old if b == added else b for b in now) for old in gone for added in new]
        for choice in choices:
            if choice != now and self._is_no_worse(partition, now, choice):
                model.replace(partition, choice)
                self._refresh(partition, *now, *choice, leads=True)
                return True
        return False

    def _is_no_worse(self, partition: int, now: tuple[int, ...], then: tuple[int, ...]) -> bool:
        """Whether no goal's cost rises when the partition's replicas are `then` instead of `now`."""
        model = self._model
        excess = model.rack_excess
        if excess(then) > excess(now):
            return False
        removed, added = [b for b in now if b not in then], [b for b in then if b not in now]
        led = [(now[0], -1), (then[0], 1)] if now[0] != then[0] else []
        held = [*((b, -1) for b in removed), *((b, 1) for b in added)]
        for check in self._checks.values():
            changes = led if check.leads else held
            value = check.values[partition]
            difference = 0.0
            for broker, sign in changes:
                before, load = check.excess(broker, check.load[broker]), check.load[broker]
                after = check.excess(broker, load + sign * value)
                if check.hard and after > max(before, 0.0):
                    return False
                difference += after - before
            if difference > check.slack:
                return False
        if Goal.TOPIC_REPLICA_DISTRIBUTION in self._goals:
            low, high = self._topics[model.topic[partition]]
            counts = model.topic_count[model.topic[partition]]
            cost = sum(
                max(0, counts[b] + sign - high) + max(0, low - counts[b] - sign)
                - max(0, counts[b] - high) - max(0, low - counts[b])
                for b, sign in held
            )  # fmt: skip
            if cost > 0:
                return False
        return True


def _closest_first(partitions: list[int], values: Sequence[float], need: float) -> list[int]:
    """The largest up to `need` first, then the others from the smallest."""
    return sorted(
        partitions, key=lambda p: (values[p] > need, -values[p] if values[p] <= need else values[p], p)
    )


# ---- execution


def _ordered(
    model: LoadModel,
    start: Sequence[tuple[int, ...]],
    changed: Mapping[int, tuple[int, ...]],
    thresholds: Thresholds,
) -> list[int]:
    """The order of the moves: from the fullest disks first, and none to a disk before it has the room.

    Moves that can only wait for each other come last.
    """
    limits = limits_of(Goal.DISK_CAPACITY, model, thresholds, 1.0)
    sizes = model.partition_sizes
    disk = list(model.load[Metric.DISK])
    for partition, replicas in changed.items():
        for broker in replicas:
            disk[broker] -= sizes[partition] * (broker not in start[partition])
        for broker in start[partition]:
            disk[broker] += sizes[partition] * (broker not in replicas)
    fullest = list(disk)

    def key(partition: int) -> tuple[float, int]:
        sources = [fullest[b] for b in start[partition] if b not in changed[partition]]
        return (-max(sources, default=0.0), partition)

    waiting, order = sorted(changed, key=key), list[int]()
    while waiting:
        left = []
        for partition in waiting:
            added = [b for b in changed[partition] if b not in start[partition]]
            if limits is not None and any(disk[b] + sizes[partition] > limits.high[b] for b in added):
                left.append(partition)
                continue
            for broker in added:
                disk[broker] += sizes[partition]
            for broker in start[partition]:
                disk[broker] -= sizes[partition] * (broker not in changed[partition])
            order.append(partition)
        if len(left) == len(waiting):
            return order + left
        waiting = left
    return order


def _seconds(
    model: LoadModel, start: Sequence[tuple[int, ...]], copied: Mapping[int, Sequence[int]], rate: int
) -> int:
    """The time of the moves when each broker sends and receives at most `rate`; leaders send."""
    sent, received = [0.0] * len(model.ids), [0.0] * len(model.ids)
    for partition, added in copied.items():
        for broker in added:
            sent[start[partition][0]] += model.partition_sizes[partition]
            received[broker] += model.partition_sizes[partition]
    return round(max((*sent, *received), default=0.0) / rate)

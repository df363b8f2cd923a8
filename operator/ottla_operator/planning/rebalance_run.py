"""Rebalances by load from the trigger to their end: `spec.rebalance`, the annotation and `status.rebalance`.

Pure; called by `reconcile` and `planning.cluster`. A proposal is computed when a trigger applies or a user
requests one (`question_of`, then the slow `answer`). Its moves are in the status, so that an approved one
goes on after a restart of the operator, with the same moves whatever the loads become. The annotation
`ottla.dev/rebalance` has `propose:TOKEN`, `approve:ID` or `cancel:ID`.

Invariants: moves begin only while all brokers are in service, without a roll and without a scale-down; a
partition whose replication factor has changed meanwhile, or whose topic is gone, is left alone; a cancelled
rebalance takes back the moves in flight, and only those of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ottla_operator.conditions import Finding, iso_time, no, parse_iso_time, unknown, yes
from ottla_operator.planning.load_drain import drain_by_load
from ottla_operator.planning.load_model import BrokerCapacity, LoadModel
from ottla_operator.planning.observed import ClusterLoad, Observed, PartitionKey
from ottla_operator.planning.placement import Changes, drain
from ottla_operator.planning.rebalance import GoalBalance, Proposal, judge, plan_rebalance, score
from ottla_operator.planning.rebalance_goals import HARD_GOALS, Goal, Thresholds
from ottla_operator.planning.scaling import Members, Scaling, target_assignment
from ottla_operator.planning.steps import CancelReassign, Reassign
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.common import REBALANCE_ANNOTATION, parse_duration_ms, parse_quantity
from ottla_operator.resources.rebalance import (
    GoalStatus,
    RebalanceProgress,
    RebalanceProposal,
    RebalanceResult,
    RebalanceStatus,
    TopicMoves,
)
from ottla_operator.resources.rebalance import Rebalance as RebalanceSpec

LOAD_REBALANCE: Final = "LoadRebalance"
REQUESTED: Final = "Requested"

# The status of a resource has a limit of 1.5 MB; a move takes about 20 bytes of it.
MOVES_MAX: Final = 5000
# A proposal that is not approved is computed again after so long.
_EXPIRES_MS: Final = 24 * 3600 * 1000


# ---- the proposal


@dataclass(frozen=True, slots=True)
class Question:
    """Everything that a proposal is computed from."""

    cluster: BrokerCluster
    assignment: Mapping[PartitionKey, tuple[int, ...]]
    brokers: Mapping[int, BrokerCapacity]
    load: ClusterLoad
    request: str
    """The token of the user's request; "": the triggers decide."""
    brokers_before: int
    now_ms: int

    def answer(self) -> Answer:
        """Compute the proposal; this takes seconds in large clusters."""
        spec = self.cluster.spec.rebalance
        thresholds = thresholds_of(spec)
        goals = [Goal(name) for name in spec.goals]
        reasons = [REQUESTED] if self.request else self._reasons(goals, thresholds)
        if not reasons:
            return Answer(self.request, None, "")
        quantity = spec.replication_throttle
        plan = plan_rebalance(
            self.assignment,
            self.load.partitions,
            self.brokers,
            goals=goals,
            thresholds=thresholds,
            rate=parse_quantity(quantity) if quantity is not None else None,
        )
        if not plan.changes:
            unmet = ", ".join(balance.goal for balance in plan.before if not balance.met)
            return Answer(self.request, None, f"no move brings it closer to {unmet}" if unmet else "")
        return Answer(self.request, _proposal(plan, reasons[0], self.load, self.now_ms), "")

    def _reasons(self, goals: list[Goal], thresholds: Thresholds) -> list[str]:
        """The triggers that apply and are enabled."""
        model = LoadModel(self.assignment, self.load.partitions, self.brokers)
        wanted = [goal for goal in Goal if goal in HARD_GOALS or goal in goals]
        unmet = {balance.goal for balance in judge(model, wanted, thresholds) if not balance.met}
        applying = {
            "ScaleUp": bool(self.assignment) and any(not model.held[broker] for broker in model.movable),
            "NewRacks": Goal.RACK_AWARENESS in unmet,
            "DiskFull": Goal.DISK_CAPACITY in unmet,
            "ScaleDown": bool(unmet) and len(self.brokers) < self.brokers_before,
            "HotSpot": bool(unmet - {Goal.RACK_AWARENESS, Goal.DISK_CAPACITY}),
        }
        return [name for name, applies in applying.items() if applies and name in self._triggers()]

    def _triggers(self) -> list[str]:
        return list(self.cluster.spec.rebalance.triggers)


@dataclass(frozen=True, slots=True)
class Answer:
    """The proposal, or None with a reason when nothing should move."""

    request: str
    proposal: RebalanceProposal | None
    message: str


def thresholds_of(spec: RebalanceSpec) -> Thresholds:
    """The thresholds of the planner."""
    values = spec.thresholds.model_dump()
    gaps = {name: float(parse_quantity(values[name]) or 0) for name in ("disk_gap", "network_gap")}
    return Thresholds(**{**values, **gaps})


def is_measured(cluster: BrokerCluster) -> bool:
    """Whether the cluster's loads have to be observed."""
    action, value = _request(cluster)
    before = cluster.status.rebalance
    asked = action == "propose" and (before is None or before.handled_request != value)
    return cluster.spec.rebalance.mode != "Off" or asked


def _request(cluster: BrokerCluster) -> tuple[str, str]:
    """The action of the annotation and its value; ("", "") without one that is known."""
    action, _, value = cluster.metadata.annotations.get(REBALANCE_ANNOTATION, "").strip().partition(":")
    return (action, value) if action in ("propose", "approve", "cancel") and value else ("", "")


def question_of(cluster: BrokerCluster, observed: Observed, members: Members) -> Question | None:
    """What to compute now; None when nothing is due."""
    before = cluster.status.rebalance or RebalanceStatus(phase="Measuring")
    load = observed.load
    if load is None or cluster.metadata.deleting or not cluster.metadata.acted_upon:
        return None
    if before.progress is not None or _unready(observed, members) or not observed.kafka.has_controller:
        return None
    action, value = _request(cluster)
    request = value if action == "propose" and value != before.handled_request else ""
    window_ms = parse_duration_ms(cluster.spec.rebalance.window)
    if load.problem or load.covered_ms < window_ms:
        return None
    if not request:
        if not load.fresh or cluster.spec.rebalance.mode == "Off":
            return None
        if before.proposal is not None and not _is_outdated(before.proposal, observed, members):
            return None
        ended_at = before.last.ended_at if before.last is not None else None
        if ended_at is not None and observed.now_ms - parse_iso_time(ended_at) < window_ms:
            return None
    return Question(
        cluster,
        target_assignment(observed),
        _capacities(cluster, observed, members, load),
        load,
        request,
        before.brokers,
        observed.now_ms,
    )


def _capacities(
    cluster: BrokerCluster, observed: Observed, members: Members, load: ClusterLoad
) -> dict[int, BrokerCapacity]:
    given = cluster.spec.rebalance.capacity

    def quantity(value: str | int | None) -> float | None:
        parsed = parse_quantity(value) if value is not None else None
        return None if parsed is None else float(parsed)

    def disk_of(broker: int) -> float | None:
        """`capacity.disk`; of a pool with other storage, what was measured, or the size in its spec."""
        pool, measured = cluster.pool_of(broker), load.disks.get(broker)
        if pool is None or pool.spec.storage == cluster.spec.storage:
            disk = quantity(given.disk)
            return disk if disk is not None else measured
        return measured if measured is not None else pool.spec.storage.total_bytes

    closed = members.closed(observed)
    return {
        broker: BrokerCapacity(
            rack=rack,
            disk=disk_of(broker),
            network_in=quantity(given.network_in),
            network_out=quantity(given.network_out),
            movable=broker not in closed,
        )
        for broker, rack in members.may_hold(observed).items()
    }


def drain_moves(cluster: BrokerCluster, observed: Observed, members: Members) -> Changes:
    """The moves off the brokers that leave: by load if the mode is on and loads are known, else by number.
    Raises Unplaceable."""
    spec, load = cluster.spec.rebalance, observed.load
    assignment = target_assignment(observed)
    if spec.mode == "Off" or load is None or load.problem or load.covered_ms < parse_duration_ms(spec.window):
        return drain(assignment, members.may_hold(observed), members.closed(observed))
    capacities = _capacities(cluster, observed, members, load)
    return drain_by_load(assignment, load.partitions, capacities, thresholds_of(spec))


def _unready(observed: Observed, members: Members) -> str:
    """What a rebalance waits for: a broker that is not in service, or that leaves."""
    if members.surplus:
        return "the scale-down"
    out = [broker for broker in members.desired if not observed.in_service(broker)]
    return f"broker {out[0]}, which is not in service" if out else ""


def _is_outdated(proposal: RebalanceProposal, observed: Observed, members: Members) -> bool:
    if observed.now_ms - parse_iso_time(proposal.created_at) > _EXPIRES_MS:
        return True
    return not remaining_moves(proposal, observed) or bool(_gone(proposal, observed, members))


def _gone(proposal: RebalanceProposal, observed: Observed, members: Members) -> list[int]:
    """Brokers that the proposal moves replicas to and that may not hold any."""
    allowed = members.may_hold(observed)
    return sorted({b for replicas in moves_of(proposal).values() for b in replicas if b not in allowed})


def _proposal(plan: Proposal, reason: str, load: ClusterLoad, now_ms: int) -> RebalanceProposal:
    kept = dict(list(plan.changes.items())[:MOVES_MAX])
    after = {balance.goal: balance for balance in plan.after}
    share = len(kept) / len(plan.changes)
    return RebalanceProposal(
        id=f"rebalance-{now_ms // 1000}",
        reason=reason,
        created_at=iso_time(now_ms),
        partitions=len(kept),
        replicas=plan.moved_replicas,
        leaders=plan.moved_leaders,
        bytes=plan.bytes if share == 1 else int(plan.bytes * share),
        seconds=plan.seconds if plan.seconds is None or share == 1 else int(plan.seconds * share),
        score_before=score(plan.before),
        score_after=score(plan.after),
        goals=[_goal_status(balance, after[balance.goal]) for balance in plan.before],
        moves=_listed(kept),
    )


def _goal_status(before: GoalBalance, after: GoalBalance) -> GoalStatus:
    return GoalStatus(
        name=before.goal,
        hard=before.hard,
        met_before=before.met,
        met_after=after.met,
        before=_shown(before),
        after=_shown(after),
    )


def _shown(balance: GoalBalance) -> str:
    """As in a table: `0.52 to 1.84`, times the mean; of a capacity, the share of what may be used."""
    if balance.goal is Goal.RACK_AWARENESS:
        return f"{balance.brokers} partitions"
    if balance.goal is Goal.TOPIC_REPLICA_DISTRIBUTION:
        return f"{balance.brokers} replicas"
    return f"{balance.least:.2f} to {balance.most:.2f}"


def _listed(changes: Changes) -> list[TopicMoves]:
    """In the order of the moves: topics may come several times."""
    found: list[tuple[str, list[str]]] = []
    for (topic, partition), replicas in changes.items():
        if not found or found[-1][0] != topic:
            found.append((topic, []))
        found[-1][1].append(f"{partition}={','.join(map(str, replicas))}")
    return [TopicMoves(topic=topic, partitions=partitions) for topic, partitions in found]


def moves_of(proposal: RebalanceProposal) -> Changes:
    """The moves of a proposal, in their order."""
    moves: Changes = {}
    for topic in proposal.moves:
        for item in topic.partitions:
            partition, _, replicas = item.partition("=")
            moves[topic.topic, int(partition)] = tuple(map(int, replicas.split(",")))
    return moves


def remaining_moves(proposal: RebalanceProposal, observed: Observed) -> Changes:
    """The moves that have not been begun, without partitions that were changed in another way."""
    now = {partition.key: partition.target_replicas for partition in observed.kafka.partitions()}
    return {
        key: replicas
        for key, replicas in moves_of(proposal).items()
        if key in now and len(now[key]) == len(replicas) and now[key] != replicas
    }


# ---- the run


@dataclass(frozen=True, slots=True)
class Run:
    """What one reconciliation does about rebalancing."""

    scaling: Scaling
    status: RebalanceStatus | None
    events: tuple[tuple[str, str], ...] = ()
    """Reasons and messages of Events."""


def plan_run(
    cluster: BrokerCluster, observed: Observed, members: Members, busy: str, answer: Answer | None
) -> Run:
    """`busy`: what moves have to wait for, or ""; `answer`: the proposal that was computed just now."""
    spec, before = cluster.spec.rebalance, cluster.status.rebalance
    if before is not None and before.progress is not None and before.proposal is not None:
        return _go_on(cluster, observed, members, busy, before)
    if spec.mode == "Off" and before is None and answer is None and not is_measured(cluster):
        return Run(Scaling(), None)
    status = before or RebalanceStatus(phase="Measuring")
    action, value = _request(cluster)
    if answer is not None:
        status = status.model_copy(
            update={
                "phase": "Proposed" if answer.proposal is not None else "Balanced",
                "proposal": answer.proposal,
                "message": answer.message,
                "handled_request": answer.request or status.handled_request,
                "brokers": status.brokers if answer.proposal is not None else len(members.desired),
            }
        )
    elif (
        status.proposal is not None
        and observed.kafka.has_controller
        and _is_outdated(status.proposal, observed, members)
    ):
        status = status.model_copy(update={"phase": "Measuring", "proposal": None, "message": "outdated"})
    if status.proposal is None:
        return Run(Scaling(), _measuring(cluster, observed, status, measured=answer is not None))
    proposal = status.proposal
    approved = (action, value) == ("approve", proposal.id)
    automatic = spec.mode == "Auto" and proposal.reason != REQUESTED
    if (action, value) == ("cancel", proposal.id):
        message = f"{proposal.id} was declined"
        return Run(Scaling(), _ended(status, "Cancelled", message, observed.now_ms))
    if not approved and not automatic:
        message = f"{proposal.partitions} partitions to move; waiting for the approval of {proposal.id}"
        return Run(Scaling(), status.model_copy(update={"phase": "Proposed", "message": message}))
    waits = busy or _unready(observed, members)
    if waits or not observed.kafka.has_controller:
        waits = waits or "the cluster to become reachable"
        return Run(Scaling(), status.model_copy(update={"message": f"waiting for {waits}"}))
    progress = RebalanceProgress(total=proposal.partitions, started_at=iso_time(observed.now_ms))
    # The progress is written first; the moves begin in the next reconciliation.
    begun = status.model_copy(update={"phase": "Moving", "progress": progress, "message": ""})
    event = ("RebalanceStarted", f"{proposal.id} ({proposal.reason}): {proposal.partitions} partitions")
    return Run(Scaling(), begun, (event,))


def _measuring(
    cluster: BrokerCluster, observed: Observed, status: RebalanceStatus, *, measured: bool
) -> RebalanceStatus | None:
    load = observed.load
    if measured or load is None:
        return status
    window_ms = parse_duration_ms(cluster.spec.rebalance.window)
    if load.problem:
        return status.model_copy(update={"phase": "Measuring", "message": load.problem})
    if load.covered_ms < window_ms and status.phase != "Balanced":
        message = f"loads are measured for {cluster.spec.rebalance.window}"
        return status.model_copy(update={"phase": "Measuring", "message": message})
    return status


def _ended(status: RebalanceStatus, result: str, message: str, now_ms: int) -> RebalanceStatus:
    assert status.proposal is not None, "a rebalance has a proposal"
    last = {"id": status.proposal.id, "result": result, "message": message, "ended_at": iso_time(now_ms)}
    return status.model_copy(
        update={
            "phase": "Measuring",
            "message": "",
            "proposal": None,
            "progress": None,
            "last": RebalanceResult.model_validate(last),
        }
    )


def _go_on(
    cluster: BrokerCluster, observed: Observed, members: Members, busy: str, before: RebalanceStatus
) -> Run:
    proposal, progress = before.proposal, before.progress
    assert proposal is not None and progress is not None, "a rebalance in progress has both"  # noqa: PT018
    if not observed.kafka.has_controller:
        return Run(Scaling(), before)
    cancelled = progress.cancelled or _request(cluster) == ("cancel", proposal.id)
    planned = moves_of(proposal)
    own = [p for p in observed.kafka.reassigning if planned.get(p.key) == p.target_replicas]
    gone = _gone(proposal, observed, members)
    left = remaining_moves(proposal, observed)
    moved = max(0, proposal.partitions - len(left) - len(own))
    if cancelled or gone:
        why = f"broker {gone[0]} may hold no replicas" if gone else "cancelled"
        if not own:
            result = "Failed" if gone else "Cancelled"
            message = f"{why}; {moved} of {proposal.partitions} partitions had moved"
            ended = _ended(before, result, message, observed.now_ms)
            return Run(Scaling(), ended, ((f"Rebalance{result}", f"{proposal.id}: {message}"),))
        status = before.model_copy(
            update={
                "message": f"taking back {len(own)} partitions",
                "progress": progress.model_copy(update={"cancelled": True}),
            }
        )
        step = CancelReassign(tuple(p.key for p in own), f"{proposal.id}: {why}")
        return Run(Scaling((step,), LOAD_REBALANCE, len(own), status.message), status)
    if not left and not own:
        message = f"{moved} of {proposal.partitions} partitions moved"
        ended = _ended(before, "Completed", message, observed.now_ms)
        ended = ended.model_copy(update={"brokers": len(members.desired)})
        return Run(Scaling(), ended, (("RebalanceCompleted", f"{proposal.id}: {message}"),))
    waits = busy or _unready(observed, members)
    in_flight = {p.key: p.target_replicas for p in own}
    remaining = len(left) + len(own)
    message = f"{proposal.id}: {remaining} of {proposal.partitions} partitions to move"
    if waits:
        message += f"; waiting for {waits}"
    steps = () if waits else _batch(cluster.spec.rebalance, observed, left, proposal.id)
    progress = progress.model_copy(
        update={"moved": moved, "bytes_left": _bytes_left(observed, {**left, **in_flight}, proposal)}
    )
    status = before.model_copy(update={"phase": "Moving", "message": message, "progress": progress})
    return Run(Scaling(steps, LOAD_REBALANCE, remaining, message, changes={} if waits else left), status)


def _bytes_left(observed: Observed, moves: Changes, proposal: RebalanceProposal) -> int:
    """Of the replicas that are not in sync yet; by the measured sizes, without these by the share of the
    partitions."""
    load = observed.load
    if load is None or not load.partitions:
        return proposal.bytes * len(moves) // max(1, proposal.partitions)
    synced = {p.key: {*p.isr, *p.origin_replicas} for p in observed.kafka.partitions()}
    return sum(
        load.partitions[key].size * sum(broker not in synced[key] for broker in replicas)
        for key, replicas in moves.items()
        if key in load.partitions
    )


def _batch(spec: RebalanceSpec, observed: Observed, left: Changes, reason: str) -> tuple[Reassign, ...]:
    """The next moves in their order, as many as the limits allow besides those in flight."""
    now = {partition.key: partition.replicas for partition in observed.kafka.partitions()}
    in_flight = observed.kafka.reassigning
    room = spec.concurrent_partitions - len(in_flight)
    busy = {partition.key for partition in in_flight}
    arriving = Counter(broker for partition in in_flight for broker in partition.adding)
    chosen: Changes = {}
    for key, replicas in left.items():
        if len(chosen) >= room:
            break
        added = [broker for broker in replicas if broker not in now[key]]
        limit = spec.concurrent_partitions_per_broker
        if key in busy or any(arriving[broker] >= limit for broker in added):
            continue
        arriving.update(added)
        chosen[key] = replicas
    return (Reassign(chosen, reason),) if chosen else ()


def finding_of(cluster: BrokerCluster, status: RebalanceStatus | None) -> Finding | None:
    """The condition Balanced; None in mode Off without a rebalance."""
    if status is None or (cluster.spec.rebalance.mode == "Off" and status.proposal is None):
        return None
    if status.phase == "Balanced":
        return yes("Balanced", "GoalsMet" if not status.message else "NoBetterPlan", status.message)
    if status.phase == "Measuring":
        return unknown("Balanced", "Measuring", status.message)
    reason = "Rebalancing" if status.phase == "Moving" else "Proposed"
    return no("Balanced", reason, status.message)

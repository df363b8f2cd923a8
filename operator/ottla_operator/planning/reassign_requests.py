"""The annotation `ottla.dev/reassign`: a user requests a rebalance, or brokers without replicas.

Pure; called by `planning.cluster`. A rebalance is done once for its id, which the status records. Brokers
stay empty as long as the annotation names them, like a cordoned node. Both wait for a roll and for a
scale-down, and move replicas in the batches of `planning.placement`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from ottla_operator.conditions import iso_time
from ottla_operator.planning.observed import Observed
from ottla_operator.planning.placement import Changes, Unplaceable, balance
from ottla_operator.planning.scaling import Members, Scaling, next_batch, target_assignment
from ottla_operator.resources.cluster_status import ReassignPhase, ReassignRequestStatus
from ottla_operator.resources.common import REASSIGN_ANNOTATION

REBALANCE, EMPTY = "Rebalance", "Empty"

_ID_MAX = 200
_FIELDS = {"id", "empty"}


@dataclass(frozen=True, slots=True)
class ReassignRequest:
    """The content of the annotation."""

    id: str
    empty: tuple[int, ...] = ()
    problem: str = ""

    @property
    def reason(self) -> str:
        return EMPTY if self.empty else REBALANCE


def request_of(annotations: Mapping[str, str], brokers: Collection[int]) -> ReassignRequest | None:
    """The request in the annotation of a cluster with these `brokers`; None without the annotation."""
    text = annotations.get(REASSIGN_ANNOTATION, "").strip()
    if not text:
        return None
    try:
        content = json.loads(text)
    except ValueError:
        return ReassignRequest(text[:_ID_MAX], problem=f'{text!r} is not JSON; an example is {{"id": "…"}}')
    if not isinstance(content, dict) or not set(content) <= _FIELDS:
        return ReassignRequest(
            text[:_ID_MAX], problem='allowed fields: "id", and "empty" with a list of broker ids'
        )
    name, empty = content.get("id"), content.get("empty", [])
    if not isinstance(name, str) or not 0 < len(name) <= _ID_MAX:
        return ReassignRequest(
            text[:_ID_MAX], problem=f'"id" must be a string of at most {_ID_MAX} characters'
        )
    if not isinstance(empty, list) or not all(isinstance(b, int) and not isinstance(b, bool) for b in empty):
        return ReassignRequest(name, problem='"empty" must be a list of broker ids')
    unknown = sorted(set(empty) - set(brokers))
    if unknown:
        return ReassignRequest(name, problem=f"broker {', '.join(map(str, unknown))} does not exist")
    if len(set(empty)) >= len(brokers):
        return ReassignRequest(name, problem="at least one broker must be left to hold replicas")
    return ReassignRequest(name, tuple(sorted(set(empty))))


def emptied_by(request: ReassignRequest | None) -> frozenset[int]:
    """The brokers that a valid request empties."""
    return frozenset(request.empty) if request is not None and not request.problem else frozenset()


def plan_request(
    request: ReassignRequest,
    before: ReassignRequestStatus | None,
    observed: Observed,
    members: Members,
    busy: str,
    moves: Callable[[], Changes],
) -> tuple[Scaling, ReassignRequestStatus]:
    """`before`: the request's current status; `busy`: what moves have to wait for, or ""; `moves`: those that
    empty the brokers; raises Unplaceable."""
    if before is not None and before.id != request.id:
        before = None
    now = iso_time(observed.now_ms)

    def request_status(phase: ReassignPhase, message: str = "") -> ReassignRequestStatus:
        ended = phase in ("Completed", "Refused")
        same = before is not None and before.phase == phase
        at = before.completed_at if before is not None and same and ended else now if ended else None
        return ReassignRequestStatus(id=request.id, phase=phase, message=message, completed_at=at)

    if request.problem:
        return Scaling(), request_status("Refused", request.problem)
    if before is not None and before.phase == "Completed" and not request.empty:
        return Scaling(), before
    waits = busy or _not_yet(request, observed, members)
    if waits:
        return Scaling(), request_status("Waiting", f"waiting for {waits}")
    try:
        changes = moves() if request.empty else _balancing(observed, members)
    except Unplaceable as error:
        return Scaling(reason=request.reason, blocked=str(error)), request_status("Waiting", str(error))
    remaining = _remaining(request.empty, observed, changes)
    if not remaining:
        message = f"broker {_names(request.empty)} is empty" if request.empty else "the cluster is balanced"
        return Scaling(), request_status("Completed", message)
    what = f"emptying broker {_names(request.empty)}" if request.empty else "rebalancing the cluster"
    message = f"{what}: {remaining} partitions to move"
    held = {broker: len(observed.kafka.holding(broker)) for broker in request.empty}
    waiting = {broker: f"{count} replicas to move off" for broker, count in held.items() if count}
    moving = Scaling(
        steps=next_batch(observed, changes, what),
        reason=request.reason,
        remaining=remaining,
        message=message,
        waiting=waiting,
        changes=changes,
    )
    return moving, request_status("Moving", message)


def _not_yet(request: ReassignRequest, observed: Observed, members: Members) -> str:
    if not observed.kafka.has_controller:
        return "the cluster to become reachable"
    if request.empty:
        return ""
    out = [broker for broker in members.desired if not observed.in_service(broker)]
    return f"broker {out[0]}, which is not in service" if out else ""


def _balancing(observed: Observed, members: Members) -> Changes:
    return balance(target_assignment(observed), members.may_hold(observed), members.closed(observed))


def _remaining(empty: Collection[int], observed: Observed, changes: Changes) -> int:
    if empty:
        return sum(bool(set(p.replicas) & set(empty)) for p in observed.kafka.partitions())
    return len(changes) + sum(p.key not in changes for p in observed.kafka.reassigning)


def _names(brokers: Collection[int]) -> str:
    return ", ".join(map(str, brokers))

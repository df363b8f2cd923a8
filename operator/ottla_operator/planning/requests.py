"""`ottla.dev/reassign`: a person asks for a rebalance, or for brokers to be emptied and kept so.

Pure; called by `planning.cluster`. A rebalance is done once for its id, which the status remembers. Brokers
are kept empty for as long as the annotation says so, as a node is cordoned; both wait for a roll and for a
scale-down, and their moves are those of `planning.rebalance`, in its batches.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ottla_operator.conditions import iso_time
from ottla_operator.planning.observed import Observed
from ottla_operator.planning.placement import Unplaceable
from ottla_operator.planning.rebalance import Changes, balance, drain
from ottla_operator.planning.scaling import Members, Scaling, next_batch, target_assignment
from ottla_operator.resources.cluster import ReassignPhase, ReassignRequestStatus
from ottla_operator.resources.common import REASSIGN_ANNOTATION

REBALANCE, EMPTY = "Rebalance", "Empty"

_ID_MAX = 200
_FIELDS = {"id", "empty"}


@dataclass(frozen=True, slots=True)
class Request:
    id: str
    empty: tuple[int, ...] = ()
    problem: str = ""

    @property
    def reason(self) -> str:
        return EMPTY if self.empty else REBALANCE


def request_of(annotations: Mapping[str, str], replicas: int) -> Request | None:
    """What the annotation asks of a cluster with so many brokers; None when there is none."""
    text = annotations.get(REASSIGN_ANNOTATION, "").strip()
    if not text:
        return None
    try:
        asked = json.loads(text)
    except ValueError:
        return Request(text[:_ID_MAX], problem=f'{text!r} is no JSON; {{"id": "…"}} is')
    if not isinstance(asked, dict) or not set(asked) <= _FIELDS:
        return Request(text[:_ID_MAX], problem='allowed are "id", and "empty": [brokers]')
    name, empty = asked.get("id"), asked.get("empty", [])
    if not isinstance(name, str) or not 0 < len(name) <= _ID_MAX:
        return Request(text[:_ID_MAX], problem=f'"id" must be a text of at most {_ID_MAX} characters')
    if not isinstance(empty, list) or not all(isinstance(b, int) and not isinstance(b, bool) for b in empty):
        return Request(name, problem='"empty" must be a list of brokers')
    unknown = sorted(set(empty) - set(range(replicas)))
    if unknown:
        return Request(name, problem=f"there is no broker {', '.join(map(str, unknown))}")
    if len(set(empty)) >= replicas:
        return Request(name, problem="no broker would be left to hold replicas")
    return Request(name, tuple(sorted(set(empty))))


def emptied_by(request: Request | None) -> frozenset[int]:
    return frozenset(request.empty) if request is not None and not request.problem else frozenset()


def plan_request(
    request: Request, before: ReassignRequestStatus | None, observed: Observed, members: Members, busy: str
) -> tuple[Scaling, ReassignRequestStatus]:
    """`before`: what the status says; `busy`: what moves have to wait for, or ""."""
    if before is not None and before.id != request.id:
        before = None
    now = iso_time(observed.now_ms)

    def said(phase: ReassignPhase, message: str = "") -> ReassignRequestStatus:
        ended = phase in ("Completed", "Refused")
        same = before is not None and before.phase == phase
        at = before.completed_at if before is not None and same and ended else now if ended else None
        return ReassignRequestStatus(id=request.id, phase=phase, message=message, completed_at=at)

    if request.problem:
        return Scaling(), said("Refused", request.problem)
    if before is not None and before.phase == "Completed" and not request.empty:
        return Scaling(), before
    waits = busy or _not_yet(request, observed, members)
    if waits:
        return Scaling(), said("Waiting", f"waits for {waits}")
    try:
        changes = _changes(request, observed, members)
    except Unplaceable as error:
        return Scaling(reason=request.reason, blocked=str(error)), said("Waiting", str(error))
    remaining = _remaining(request.empty, observed, changes)
    if not remaining:
        message = f"broker {_names(request.empty)} is empty" if request.empty else "all brokers are even"
        return Scaling(), said("Completed", message)
    what = f"emptying broker {_names(request.empty)}" if request.empty else "making all brokers even"
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
    return moving, said("Moving", message)


def _not_yet(request: Request, observed: Observed, members: Members) -> str:
    if not observed.kafka.settled:
        return "the cluster to be reachable"
    if request.empty:
        return ""
    out = [broker for broker in members.desired if not observed.in_service(broker)]
    return f"broker {out[0]}, which is not in service" if out else ""


def _changes(request: Request, observed: Observed, members: Members) -> Changes:
    assignment = target_assignment(observed)
    racks, closed = members.may_hold(observed), members.closed(observed)
    return drain(assignment, racks, closed) if request.empty else balance(assignment, racks, closed)


def _remaining(empty: Collection[int], observed: Observed, changes: Changes) -> int:
    if empty:
        return sum(bool(set(p.replicas) & set(empty)) for p in observed.kafka.partitions())
    return len(changes) + sum(p.key not in changes for p in observed.kafka.reassigning)


def _names(brokers: Collection[int]) -> str:
    return ", ".join(map(str, brokers))

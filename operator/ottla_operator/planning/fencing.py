"""Fenced brokers: the annotation `ottla.dev/fenced` lists brokers that must not run, such as `2` or `1,2`.

A fenced broker keeps its volume and its replicas: its files are to be examined, or its machine is suspected.
It is stopped like one in a rolling restart: no partition falls below its min ISR, and no other broker is
down; with `ottla.dev/fence-now: "true"` at once. It is neither rolled nor repaired until it is no longer
listed.

Pure; called by `planning.cluster`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ottla_operator.planning.observed import Observed
from ottla_operator.planning.rolling import blocking_partition
from ottla_operator.planning.scaling import Members
from ottla_operator.planning.steps import StopBroker
from ottla_operator.resources.common import FENCE_ANNOTATION, FENCE_NOW_ANNOTATION


@dataclass(frozen=True, slots=True)
class Fencing:
    """The decision of one reconciliation."""

    steps: tuple[StopBroker, ...] = ()
    waiting: dict[int, str] = field(default_factory=dict)
    """What a broker that still runs waits for."""


def fenced_brokers(annotations: Mapping[str, str], brokers: Collection[int]) -> tuple[frozenset[int], str]:
    """The listed brokers of a cluster with these `brokers`, and what is wrong with the list or "". A wrong
    list fences nothing."""
    text = annotations.get(FENCE_ANNOTATION, "").strip()
    if not text:
        return frozenset(), ""
    try:
        listed = frozenset(int(part) for part in text.split(","))
    except ValueError:
        return frozenset(), f"{FENCE_ANNOTATION}: {text!r} is not a list of broker ids, such as 1,2"
    unknown = sorted(listed - set(brokers))
    if unknown:
        return frozenset(), f"{FENCE_ANNOTATION}: broker {', '.join(map(str, unknown))} does not exist"
    return listed, ""


def plan_fencing(
    annotations: Mapping[str, str], observed: Observed, members: Members, going: Collection[int] = ()
) -> Fencing:
    """`going`: the brokers that other steps of this reconciliation stop."""
    at_once = annotations.get(FENCE_NOW_ANNOTATION, "").lower() == "true"
    steps: list[StopBroker] = []
    waiting: dict[int, str] = {}
    stopping = {*going}
    for broker in members.desired:
        instance = observed.brokers.get(broker)
        if instance is None or instance.fenced == (broker in members.fenced):
            continue
        if instance.fenced:
            steps.append(StopBroker(broker, "it is no longer fenced", bounce=True))
            continue
        if instance.state not in ("Running", "Starting"):
            continue
        reason = "" if at_once else _obstacle(observed, members, broker, stopping)
        if reason:
            waiting[broker] = f"{reason}, to be fenced"
        else:
            stopping.add(broker)
            steps.append(StopBroker(broker, "it is fenced", bounce=True))
    return Fencing(tuple(steps), waiting)


def _obstacle(observed: Observed, members: Members, broker: int, stopping: Collection[int]) -> str:
    if not observed.kafka.has_controller:
        return "a controller to be elected"
    down = [other for other in members.working if other != broker and not observed.in_service(other)]
    for other in (*sorted(stopping), *down):
        return f"broker {other}, which is {'being stopped' if other in stopping else 'down'}"
    return blocking_partition(observed, broker)

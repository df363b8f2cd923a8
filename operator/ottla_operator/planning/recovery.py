"""Plans the recovery of a new cluster from a backup (`spec.bootstrap.recovery`), once.

Pure. The first attempt finds the backup and reads it; its URL is recorded in the status before anything is
restored, so that a restarted operator restores the same backup again, which adds what is missing. Topics of
others refuse it until then. What refers to the cluster waits.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from ottla_operator.conditions import Finding, iso_time, no, parse_iso_time, unknown, yes
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.backup import RECOVERY_REFUSED, RecoveryStatus

RETRY_MS: Final = 30_000
_LEFT_MAX: Final = 50
_TOPICS_SHOWN: Final = 3
_CONDITION: Final = "Recovered"


@dataclass(frozen=True, slots=True)
class RecoveryOutcome:
    """The end of an attempt."""

    ended_ms: int
    source: str = ""
    """The URL of the backup that was found or restored; "" for an attempt that failed."""
    message: str = ""
    """What is in it, or why it failed."""
    restored: bool = False
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What one reconciliation does for the recovery."""

    status: RecoveryStatus | None = None
    findings: tuple[Finding, ...] = ()
    """Recovered, and Ready when it is False because of the recovery."""
    waits: str = ""
    """Why what refers to the cluster waits; "" when it does not."""
    attempt: str | None = None
    """Begin an attempt: to restore the backup at this URL, or to find one (""). None: begin none."""
    event: tuple[str, str] | None = None
    """(reason, message) of an Event."""
    failed: bool = False
    due_ms: int | None = None


def plan_recovery(
    cluster: BrokerCluster,
    outcome: RecoveryOutcome | None,
    *,
    topics: Collection[str] | None,
    not_ready: str,
    running: bool,
    now_ms: int,
) -> RecoveryPlan:
    """`outcome`: of an attempt that ended since the last reconciliation. `topics`: those of the cluster
    without internal ones; None: they cannot be observed. `not_ready`: why brokers are not ready, or ""."""
    spec, before = cluster.spec.bootstrap.recovery, cluster.status.recovery
    if spec is None or cluster.metadata.deleting:
        return RecoveryPlan(before)
    known = before or RecoveryStatus()
    if known.completed_at:
        return RecoveryPlan(known, (yes(_CONDITION, "Completed", f"{known.source}: {known.message}"),))
    if not known.started_at and topics:
        return _refused(known, topics)
    event = None
    if outcome is not None:
        known, event = _after(known, outcome)
        if known.completed_at:
            done = yes(_CONDITION, "Completed", f"{known.source}: {known.message}")
            return RecoveryPlan(known, (done,), event=event)
    failed = bool(known.last_attempt_at)
    due_ms = parse_iso_time(known.last_attempt_at) + RETRY_MS if failed else now_ms
    # What was found just now is restored once it is recorded.
    may_begin = topics is not None and not not_ready and not running and outcome is None
    # A source that was changed meanwhile is looked for again.
    found = known.source if known.source.startswith(spec.source.rstrip("/")) else ""
    state = _State.of(found, spec.source, known, not_ready)
    return RecoveryPlan(
        known,
        state.findings,
        f"{cluster.key} is recovered from a backup first: {state.message}",
        found if may_begin and due_ms <= now_ms and cluster.metadata.acted_upon else None,
        event,
        outcome is not None and failed,
        due_ms if failed and due_ms > now_ms else None,
    )


def _after(known: RecoveryStatus, outcome: RecoveryOutcome) -> tuple[RecoveryStatus, tuple[str, str]]:
    """The status after an attempt, and its Event."""
    at, changes = iso_time(outcome.ended_ms), {"message": outcome.message}
    if not outcome.source:
        return known.model_copy(update={**changes, "last_attempt_at": at}), (
            "RecoveryFailed",
            outcome.message,
        )
    found = {**changes, "source": outcome.source, "last_attempt_at": ""}
    message = f"{outcome.source}: {outcome.message}"
    if not outcome.restored:
        return known.model_copy(update={**found, "started_at": at}), ("RecoveryStarted", message)
    done = {**found, "completed_at": at, "left": list(outcome.left[:_LEFT_MAX])}
    return known.model_copy(update=done), ("RecoveryCompleted", message)


@dataclass(frozen=True, slots=True)
class _State:
    """What the conditions say while it is not completed."""

    message: str
    findings: tuple[Finding, ...] = field(default=())

    @classmethod
    def of(cls, found: str, source: str, known: RecoveryStatus, not_ready: str) -> _State:
        if not_ready:
            message = f"waiting for the brokers: {not_ready}"
            return cls(message, (unknown(_CONDITION, "WaitingForBrokers", message),))
        if known.last_attempt_at:
            findings = (
                no("Ready", "RecoveryFailed", known.message),
                no(_CONDITION, "RecoveryFailed", known.message),
            )
            return cls(known.message, findings)
        message = f"restoring {found}" if found else f"reading {source}"
        findings = (no("Ready", "Recovering", message), no(_CONDITION, "Recovering", message))
        return cls(message, findings)


def _refused(known: RecoveryStatus, topics: Collection[str]) -> RecoveryPlan:
    names = sorted(topics)
    more = f" and {len(names) - _TOPICS_SHOWN} more" if len(names) > _TOPICS_SHOWN else ""
    message = (
        f"the cluster has topics ({', '.join(names[:_TOPICS_SHOWN])}{more}): nothing is restored; delete "
        "them, or remove spec.bootstrap and use `kubectl ottla restore`"
    )
    findings = (no("Ready", "RecoveryRefused", message), no(_CONDITION, RECOVERY_REFUSED, message))
    return RecoveryPlan(known, findings)

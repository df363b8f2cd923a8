"""Plans the backups of a cluster's metadata: when one is due, and the status after one.

Pure. A backup is due at the first time of the schedule after the last successful one, or at once when it is
requested; one that failed is tried again after RETRY_MS.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from ottla_operator.conditions import Finding, iso_time, no, parse_iso_time, unknown, yes
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.backup import BackupStatus
from ottla_operator.resources.common import BACKUP_ANNOTATION

RETRY_MS: Final = 5 * 60_000


@dataclass(frozen=True, slots=True)
class BackupOutcome:
    """The end of a backup: the URL of the object, or why there is none."""

    ended_ms: int
    url: str = ""
    message: str = ""
    request: str = ""


@dataclass(frozen=True, slots=True)
class BackupPlan:
    """`start`: begin a backup now, for this request ("" for the schedule); None: none is due."""

    status: BackupStatus | None = None
    findings: tuple[Finding, ...] = ()
    start: str | None = None
    due_ms: int | None = None
    """When the next one is due."""


def plan_backup(
    cluster: BrokerCluster, outcome: BackupOutcome | None, *, usable: bool, running: bool, now_ms: int
) -> BackupPlan:
    """Plan for one reconciliation. `outcome`: of a backup that ended since the last one."""
    spec, before = cluster.spec.backup, cluster.status.backup or BackupStatus()
    if spec is None:
        return BackupPlan()
    if outcome is not None:
        before = _after(before, outcome)
    request = cluster.metadata.annotations.get(BACKUP_ANNOTATION, "")
    requested = bool(request) and request != before.handled_request
    since = before.last_successful_at or cluster.metadata.creation_timestamp or iso_time(now_ms)
    due_ms = None if spec.schedule is None else next_after(spec.schedule, parse_iso_time(since))
    failed = bool(before.last_attempt_at) and before.last_attempt_at != before.last_successful_at
    if failed and due_ms is not None:
        due_ms = max(due_ms, parse_iso_time(before.last_attempt_at) + RETRY_MS)
    due = requested or (due_ms is not None and due_ms <= now_ms)
    status = before.model_copy(update={"next_at": "" if due_ms is None else iso_time(due_ms)})
    start = request if requested else ""
    return BackupPlan(
        status,
        (_finding(status, failed=failed),),
        start if due and usable and not running and not cluster.metadata.deleting else None,
        due_ms,
    )


def _after(before: BackupStatus, outcome: BackupOutcome) -> BackupStatus:
    at = iso_time(outcome.ended_ms)
    changes = {"last_attempt_at": at, "message": outcome.message}
    if outcome.request:
        changes["handled_request"] = outcome.request
    if outcome.url:
        changes |= {"last_successful_at": at, "last_object": outcome.url}
    return before.model_copy(update=changes)


def _finding(status: BackupStatus, *, failed: bool) -> Finding:
    if failed:
        return no("BackedUp", "BackupFailed", status.message)
    if status.last_object:
        return yes("BackedUp", "Completed", f"{status.last_object}: {status.message}")
    return unknown("BackedUp", "Pending", "no backup has been taken yet")


def next_after(schedule: str, after_ms: int) -> int:
    """The first time of a cron schedule, in UTC, after this one."""
    from cronsim import CronSim

    found = next(CronSim(schedule, datetime.fromtimestamp(after_ms / 1000, UTC)))
    return int(found.timestamp() * 1000)

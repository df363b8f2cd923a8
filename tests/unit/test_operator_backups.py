"""Scheduled and requested backups of a cluster's metadata: when one is due, and what the status says."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ottla_operator.backup.document import Backup, BackupError, TopicRecord, loaded
from ottla_operator.backup.objects import Folder, credentials_in
from ottla_operator.conditions import iso_time, parse_iso_time
from ottla_operator.planning.backups import RETRY_MS, BackupOutcome, BackupPlan, next_after, plan_backup
from ottla_operator.planning.observed import Secret
from ottla_operator.platform.backups import BackupRunner
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.backup import schedule_problem
from ottla_operator.resources.loading import parse_resource
from tests.worlds.operator_simulation import OperatorSimulation

CREATED = "2026-11-27T12:00:00Z"
CREATED_MS = parse_iso_time(CREATED)
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
HOURLY = {"destination": "s3://b/x", "schedule": "0 * * * *", "credentialsSecret": "s3"}


def cluster(backup: Mapping[str, Any] | None = None, request: str = "", **status: Any) -> BrokerCluster:
    annotations = {"ottla.dev/backup-requested-at": request} if request else {}
    metadata = {"name": "demo", "creationTimestamp": CREATED, "annotations": annotations}
    spec = {"replicas": 1, "backup": dict(HOURLY if backup is None else backup)}
    found, problems = parse_resource("BrokerCluster", metadata, spec, {"backup": status} if status else {})
    assert isinstance(found, BrokerCluster), problems
    return found


def planned(
    of: BrokerCluster,
    at_ms: int,
    outcome: BackupOutcome | None = None,
    *,
    usable: bool = True,
    running: bool = False,
) -> BackupPlan:
    return plan_backup(of, outcome, usable=usable, running=running, now_ms=CREATED_MS + at_ms)


def test_a_backup_is_due_at_the_first_time_of_the_schedule_after_the_last_one() -> None:
    before = planned(cluster(), HOUR_MS - 1)
    assert (before.start, before.due_ms) == (None, CREATED_MS + HOUR_MS)
    assert planned(cluster(), HOUR_MS).start == ""
    after = cluster(
        lastSuccessfulAt=iso_time(CREATED_MS + HOUR_MS), lastAttemptAt=iso_time(CREATED_MS + HOUR_MS)
    )
    assert planned(after, HOUR_MS + 1).start is None
    assert planned(after, 5 * HOUR_MS).start == "", "one that the operator missed is taken once"


@pytest.mark.parametrize("state", [{"usable": False}, {"running": True}])
def test_none_begins_while_the_cluster_is_unusable_or_one_runs(state: dict[str, bool]) -> None:
    assert planned(cluster(), HOUR_MS, **state).start is None


def test_a_request_is_answered_once_and_needs_no_schedule() -> None:
    asked = cluster({"destination": "s3://b", "credentialsSecret": "s3"}, request="now")
    assert planned(asked, 1).start == "now"
    outcome = BackupOutcome(CREATED_MS + 5000, "s3://b/demo-1", "1 topic", "now")
    done = planned(asked, 6000, outcome)
    assert done.status is not None
    assert done.start is None
    assert done.status.handled_request == "now"
    assert (done.status.last_object, done.status.message) == ("s3://b/demo-1", "1 topic")
    assert [(f.type, f.status) for f in done.findings] == [("BackedUp", "True")]


def test_a_failed_backup_is_reported_and_tried_again_later() -> None:
    outcome = BackupOutcome(CREATED_MS + HOUR_MS, message="no bucket")
    failed = planned(cluster(), HOUR_MS + 1, outcome)
    assert [(f.status, f.reason, f.message) for f in failed.findings] == [
        ("False", "BackupFailed", "no bucket")
    ]
    assert failed.start is None
    assert failed.due_ms == CREATED_MS + HOUR_MS + RETRY_MS
    again = cluster(lastAttemptAt=iso_time(CREATED_MS + HOUR_MS), message="no bucket")
    assert planned(again, HOUR_MS + RETRY_MS - 1).start is None
    assert planned(again, HOUR_MS + RETRY_MS).start == ""


def test_without_the_field_nothing_is_planned() -> None:
    assert (
        planned(
            BrokerCluster.model_validate(cluster().model_dump(by_alias=True) | {"spec": {"replicas": 1}}),
            HOUR_MS,
        )
        == BackupPlan()
    )


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("30 3 * * *", "2026-11-28T03:30:00Z"),
        ("*/15 * * * *", "2026-11-27T12:15:00Z"),
        ("0 0 * * sun", "2026-11-29T00:00:00Z"),
    ],
)
def test_schedules_are_in_utc(schedule: str, expected: str) -> None:
    assert iso_time(next_after(schedule, CREATED_MS)) == expected


@pytest.mark.parametrize("schedule", ["61 * * * *", "* * * *", "0 0 31 2 *", "often"])
def test_an_impossible_schedule_is_a_problem(schedule: str) -> None:
    assert schedule_problem(schedule)


# ---- taking them


class Secrets:
    """Secrets by name, as the platforms read them."""

    def __init__(self, data: Mapping[str, bytes]) -> None:
        self._data = data

    async def read(self, names: Any) -> Mapping[str, Secret]:
        return {"s3": Secret("s3", self._data)} if "s3" in names else {}


async def ended(runner: BackupRunner, of: BrokerCluster) -> BackupOutcome:
    runner.begin(of, "now")
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
    outcome = runner.outcome()
    assert outcome is not None
    assert runner.outcome() is None
    return outcome


def taken(spec: Mapping[str, Any], *, fails: Exception | None = None) -> BackupOutcome:
    async def take(now_ms: int) -> Backup:
        if fails is not None:
            raise fails
        return Backup("id", iso_time(now_ms), {"orders": TopicRecord("orders", 1, 1)})

    runner = BackupRunner(take, Secrets({}), lambda: CREATED_MS)  # type: ignore[arg-type]
    return asyncio.run(ended(runner, cluster(spec)))


def test_a_backup_is_written_and_the_oldest_are_deleted(tmp_path: Path) -> None:
    for day in ("01", "02", "03"):
        (tmp_path / f"demo-202611{day}T000000Z.ndjson.gz").write_bytes(b"old")
    outcome = taken({"destination": f"file://{tmp_path}", "retention": 2})
    assert outcome.url == f"file://{tmp_path}/demo-20261127T120000Z.ndjson.gz"
    assert outcome.message.startswith("1 topic, 0 settings")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "demo-20261103T000000Z.ndjson.gz",
        "demo-20261127T120000Z.ndjson.gz",
    ]
    assert loaded(asyncio.run(Folder(f"file://{tmp_path}").get("demo-20261127T120000Z.ndjson.gz"))).topics


@pytest.mark.parametrize(
    ("spec", "fails", "message"),
    [
        ({"destination": "s3://b", "credentialsSecret": "none"}, None, "there is no Secret none"),
        ({"destination": "s3://b", "credentialsSecret": "s3"}, None, "needs AWS_ACCESS_KEY_ID and"),
        ({"destination": "file:///proc/none"}, None, "file:///proc/none"),
        ({"destination": "file:///tmp/x"}, OSError("no broker"), "no broker"),
        ({"destination": "file:///tmp/x"}, ZeroDivisionError("bug"), "ZeroDivisionError"),
    ],
)
def test_a_failure_is_the_outcome(spec: Mapping[str, Any], fails: Exception | None, message: str) -> None:
    outcome = taken(spec, fails=fails)
    assert (outcome.url, message in outcome.message) == ("", True), outcome
    assert outcome.request == "now"


def test_only_credentials_are_taken_from_a_secret() -> None:
    keys = {"AWS_ACCESS_KEY_ID": b"key\n", "AWS_SECRET_ACCESS_KEY": b"secret"}
    given = {
        **keys,
        "AWS_WEB_IDENTITY_TOKEN_FILE": b"/var/run/token",
        "AWS_ENDPOINT_URL": b"http://elsewhere",
    }
    assert credentials_in("s3://b", given) == {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    with pytest.raises(BackupError, match="GOOGLE_SERVICE_ACCOUNT_KEY"):
        credentials_in("gs://b", keys)


# ---- in a reconciliation


class FakeBackups:
    """Backups that end when the test says so."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: BackupOutcome | None = None

    @property
    def running(self) -> bool:
        return bool(self.begun) and self.ended is None

    def outcome(self) -> BackupOutcome | None:
        ended, self.ended = self.ended, None
        if ended is not None:
            self.begun.clear()
        return ended

    def begin(self, of: BrokerCluster, request: str) -> None:
        self.begun.append(request)


def test_a_reconciliation_begins_a_backup_and_writes_its_end_into_the_status() -> None:
    sim = OperatorSimulation()
    backups = FakeBackups()
    sim.backups = backups
    spec = {"destination": "s3://b", "credentialsSecret": "s3"}
    sim.apply("BrokerCluster", "demo", {"replicas": 1, "backup": spec}, backup_requested_at="1")
    sim.reconcile_until(lambda: backups.begun == ["1"])
    sim.reconcile()
    assert backups.begun == ["1"]
    backups.ended = BackupOutcome(sim.cluster.now_ms, "s3://b/demo-1", "1 topic", "1")
    sim.reconcile()
    sim.reconcile()
    assert backups.begun == []
    assert sim.condition("BrokerCluster/demo", "BackedUp")[:2] == ("True", "Completed")
    assert sim.condition("BrokerCluster/demo")[0] == "True"

"""A new cluster starts from a backup, once: when an attempt is due, what waits for it, and operators that die
in the middle of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ottla_operator.backup.cluster import Restored
from ottla_operator.backup.document import Backup, TopicRecord, dumped
from ottla_operator.conditions import iso_time, parse_iso_time
from ottla_operator.planning.observed import Secret
from ottla_operator.planning.recovery import RETRY_MS, RecoveryOutcome, RecoveryPlan, plan_recovery
from ottla_operator.platform.backups import RecoveryRunner
from ottla_operator.platform.interfaces import StepFailed
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.loading import parse_resource
from tests.worlds.kubernetes_simulation import KubernetesSimulation
from tests.worlds.operator_simulation import OperatorSimulation, SimulatedCluster

pytestmark = pytest.mark.budget(5)

FOLDER = "s3://b/x"
SOURCE = f"{FOLDER}/old-20261127T120000Z.ndjson.gz"
RECOVERY = {"source": FOLDER, "credentialsSecret": "s3"}
NOW_MS = parse_iso_time("2026-11-27T12:00:00Z")
NOW = iso_time(NOW_MS)
FOUND = {"source": SOURCE, "startedAt": NOW, "message": "2 topics"}


def cluster(spec: Mapping[str, Any] | None = None, **status: Any) -> BrokerCluster:
    recovery = RECOVERY if spec is None else spec
    content = {"replicas": 1, "bootstrap": {"recovery": recovery} if recovery else {}}
    found, problems = parse_resource(
        "BrokerCluster", {"name": "demo"}, content, {"recovery": status} if status else {}
    )
    assert isinstance(found, BrokerCluster), problems
    return found


def planned(of: BrokerCluster, outcome: RecoveryOutcome | None = None, **more: Any) -> RecoveryPlan:
    given = {"topics": (), "not_ready": "", "running": False, "now_ms": NOW_MS, **more}
    return plan_recovery(of, outcome, **given)


def reasons(plan: RecoveryPlan) -> dict[str, str]:
    return {finding.type: finding.reason for finding in plan.findings}


# ---- the plan


def test_an_attempt_begins_when_the_brokers_are_ready() -> None:
    early = planned(cluster(), topics=None, not_ready="0 of 1 brokers are ready")
    assert (early.attempt, reasons(early)) == (None, {"Recovered": "WaitingForBrokers"})
    assert "0 of 1 brokers are ready" in early.waits
    plan = planned(cluster())
    assert (plan.attempt, reasons(plan)) == ("", {"Ready": "Recovering", "Recovered": "Recovering"})
    assert planned(cluster(), running=True).attempt is None


def test_the_backup_that_was_found_is_recorded_before_it_is_restored() -> None:
    plan = planned(cluster(), RecoveryOutcome(NOW_MS, SOURCE, "2 topics"))
    assert plan.attempt is None
    assert plan.status is not None
    assert (plan.status.source, plan.status.started_at) == (SOURCE, NOW)
    assert plan.event == ("RecoveryStarted", f"{SOURCE}: 2 topics")
    assert planned(cluster(**FOUND)).attempt == SOURCE


def test_a_completed_recovery_is_never_begun_again() -> None:
    end = RecoveryOutcome(NOW_MS, SOURCE, "2 topics", restored=True, left=("the password of user anna",))
    plan = planned(cluster(**FOUND), end, topics=("orders",))
    assert (plan.waits, reasons(plan)) == ("", {"Recovered": "Completed"})
    assert plan.status is not None
    assert (plan.status.completed_at, plan.status.left) == (NOW, ["the password of user anna"])
    later = cluster({**RECOVERY, "source": "s3://b/other"}, **plan.status.model_dump(by_alias=True))
    again = planned(later)
    assert (again.attempt, again.waits, reasons(again)) == (None, "", {"Recovered": "Completed"})


def test_a_cluster_with_topics_is_refused_and_nothing_waits() -> None:
    for outcome in (None, RecoveryOutcome(NOW_MS, SOURCE, "2 topics")):
        plan = planned(cluster(), outcome, topics=("d", "c", "b", "a"))
        assert (plan.attempt, plan.waits) == (None, "")
        assert reasons(plan) == {"Ready": "RecoveryRefused", "Recovered": "ClusterNotEmpty"}
        assert "(a, b, c and 1 more)" in plan.findings[0].message
        assert plan.status is not None
        assert not plan.status.source


def test_topics_that_an_interrupted_restore_has_made_do_not_refuse_it() -> None:
    assert planned(cluster(**FOUND), topics=("orders",)).attempt == SOURCE


def test_a_failed_attempt_is_reported_and_repeated() -> None:
    plan = planned(cluster(**FOUND), RecoveryOutcome(NOW_MS, message="no bucket"))
    assert (plan.attempt, plan.event, plan.failed) == (None, ("RecoveryFailed", "no bucket"), True)
    assert reasons(plan) == {"Ready": "RecoveryFailed", "Recovered": "RecoveryFailed"}
    assert plan.due_ms == NOW_MS + RETRY_MS
    after = cluster(**FOUND, lastAttemptAt=NOW)
    assert planned(after, now_ms=NOW_MS + RETRY_MS - 1).attempt is None
    assert planned(after, now_ms=NOW_MS + RETRY_MS).attempt == SOURCE


def test_a_source_that_was_corrected_is_looked_for_again() -> None:
    corrected = cluster({**RECOVERY, "source": "s3://b/other"}, **FOUND, lastAttemptAt=NOW)
    assert planned(corrected, now_ms=NOW_MS + RETRY_MS, topics=("orders",)).attempt == ""


def test_without_the_field_nothing_is_planned() -> None:
    assert planned(cluster({})) == RecoveryPlan()


def test_a_recovery_cannot_be_added_to_an_existing_cluster() -> None:
    old, new = cluster({}), cluster()
    assert [problem.path for problem in new.transition_problems(old)] == ["spec.bootstrap.recovery"]
    assert [*old.transition_problems(new), *new.transition_problems(new)] == []


# ---- attempts


BACKUP = Backup("id", NOW, {"orders": TopicRecord("orders", 1, 1)}, left_out=("ACLs",))


NOTHING_LEFT = Restored()


class Secrets:
    """One Secret, without entries."""

    async def read(self, names: Any) -> Mapping[str, Secret]:
        return {"s3": Secret("s3", {})} if "s3" in names else {}


def attempt(
    spec: Mapping[str, Any], source: str = "", restored: Restored | Exception = NOTHING_LEFT
) -> RecoveryOutcome:
    async def restore(backup: Backup, now_ms: int) -> Restored:
        assert backup == BACKUP
        if isinstance(restored, Exception):
            raise restored
        return restored

    async def run() -> RecoveryOutcome:
        runner = RecoveryRunner(restore, Secrets(), lambda: NOW_MS)  # type: ignore[arg-type]
        runner.begin(cluster(spec), source)
        assert runner.running
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
        outcome = runner.outcome()
        assert outcome is not None
        assert (runner.outcome(), runner.running) == (None, False)
        return outcome

    return asyncio.run(run())


def test_the_newest_backup_is_found_and_then_restored(tmp_path: Path) -> None:
    for day in ("01", "02"):
        (tmp_path / f"old-202611{day}T000000Z.ndjson.gz").write_bytes(dumped(BACKUP))
    (tmp_path / "more-20261103T000000Z.ndjson.gz").write_bytes(dumped(BACKUP))
    spec = {"source": f"file://{tmp_path}", "name": "old"}
    newest = f"file://{tmp_path}/old-20261102T000000Z.ndjson.gz"
    found = attempt(spec)
    assert (found.source, found.restored) == (newest, False)
    assert found.message.startswith("1 topic, 0 settings")
    done = attempt(spec, newest, Restored(("user anna has no password yet",)))
    assert (done.source, done.restored) == (newest, True)
    assert done.left == ("ACLs", "user anna has no password yet")


@pytest.mark.parametrize(
    ("spec", "restored", "message"),
    [
        ({}, Restored(failed=("topic a: no", "topic b: no")), "topic a: no (and 1 more)"),
        ({}, StepFailed("Unreachable", "no broker is running"), "no broker is running"),
        ({}, ZeroDivisionError("bug"), "ZeroDivisionError"),
        ({"credentialsSecret": "none"}, Restored(), "there is no Secret none"),
        ({"source": "file:///proc/none"}, Restored(), "file:///proc/none"),
        ({"source": "cut"}, Restored(), "it is no backup of Ottla, or it is damaged"),
        ({"source": "folder"}, Restored(), "there is no backup"),
    ],
)
def test_a_failure_is_the_outcome(
    tmp_path: Path, spec: Mapping[str, Any], restored: Restored | Exception, message: str
) -> None:
    whole, cut = tmp_path / "old-20261101T000000Z.ndjson.gz", tmp_path / "cut-20261101T000000Z.ndjson.gz"
    whole.write_bytes(dumped(BACKUP))
    cut.write_bytes(dumped(BACKUP)[:-20])
    (tmp_path / "empty").mkdir()
    names = {"cut": f"file://{cut}", "folder": f"file://{tmp_path}/empty"}
    source = str(spec.get("source", f"file://{whole}"))
    given = {**spec, "source": names.get(source, source)}
    outcome = attempt(given, "" if "source" in spec else f"file://{whole}", restored)
    assert (outcome.source, outcome.restored) == ("", False)
    assert message in outcome.message


# ---- in reconciliations


TOPICS = {"clicks": 2, "orders": 4}


class Operator:
    """The recovery as one operator runs it: an attempt takes some steps, one in each reconciliation. An
    operator that dies takes the attempt with it, and leaves what it has restored."""

    def __init__(
        self, simulated: SimulatedCluster | None, newest: Callable[[], str] = lambda: SOURCE
    ) -> None:
        self._cluster, self._newest = simulated, newest
        self._work: list[str] | None = None
        self.restored: list[str] = []
        """The backups of all operators."""

    def die(self) -> None:
        self._work = None

    @property
    def running(self) -> bool:
        return bool(self._work)

    def begin(self, of: BrokerCluster, source: str) -> None:
        assert not self.running
        self._work = [*sorted(TOPICS), source] if source else ["", ""]

    def outcome(self) -> RecoveryOutcome | None:
        if not self._work:
            return None
        step = self._work.pop(0)
        if self._cluster is not None and step in TOPICS and step not in self._cluster.topics:
            self._cluster.create_topic(step, TOPICS[step], 1)
        if self._work:
            return None
        self._work = None
        if not step:
            return RecoveryOutcome(NOW_MS, self._newest(), "2 topics")
        self.restored.append(step)
        return RecoveryOutcome(NOW_MS, step, "2 topics", restored=True)


def a_new_cluster(sim: OperatorSimulation) -> None:
    sim.apply("BrokerCluster", "demo", {"replicas": 1, "bootstrap": {"recovery": RECOVERY}})
    sim.apply_topic("orders", partitions=4, replicas=1)


def test_topics_of_the_repository_wait_for_the_backup_and_find_it() -> None:
    sim = OperatorSimulation()
    sim.recoveries = operator = Operator(sim.cluster)
    a_new_cluster(sim)
    sim.reconcile_until(lambda: operator.running)
    sim.reconcile()
    reason, message = sim.condition("Topic/orders")[1:]
    assert (reason, sim.cluster.topics) == ("ClusterNotReady", {})
    assert "is recovered from a backup first" in message
    assert sim.condition("BrokerCluster/demo")[:2] == ("False", "Recovering")
    sim.reconcile_until_ready()
    assert sim.cluster.topics.keys() == TOPICS.keys()
    assert not any("create topic" in line for line in sim.cluster.log), "the backup has made it"
    assert sim.condition("BrokerCluster/demo", "Recovered")[:2] == ("True", "Completed")
    sim.apply("BrokerCluster", "demo", {"replicas": 1, "bootstrap": {"recovery": {**RECOVERY, "name": "x"}}})
    del sim.cluster.topics["clicks"]
    sim.reconcile_until_ready()
    for _ in range(20):
        sim.reconcile()
    assert operator.restored == [SOURCE]


@pytest.mark.parametrize("died_after", range(1, 14))
def test_an_operator_that_dies_at_any_step_is_followed_by_one_that_completes_it(died_after: int) -> None:
    sim = OperatorSimulation()
    newer = [f"{FOLDER}/old-2026112{day}T000000Z.ndjson.gz" for day in range(9)]
    recorded: list[str] = []
    sim.recoveries = operator = Operator(sim.cluster, lambda: newer.pop(0))
    a_new_cluster(sim)
    for _ in range(died_after):
        sim.reconcile()
    operator.die()
    recovery = sim.store.stored["BrokerCluster/demo"].status.recovery  # type: ignore[union-attr]
    if recovery is not None and recovery.source:
        recorded = [recovery.source]
    sim.reconcile_until_ready()
    assert sim.cluster.topics.keys() == TOPICS.keys()
    assert operator.restored[0] in (recorded or operator.restored)
    assert len(set(operator.restored)) == 1, "the backup that was begun with is restored again, no other"
    assert not sim.cluster.violations
    assert sim.condition("BrokerCluster/demo", "Recovered")[:2] == ("True", "Completed")


def test_a_paused_cluster_begins_nothing_and_its_topics_wait() -> None:
    sim = OperatorSimulation()
    sim.recoveries = operator = Operator(sim.cluster)
    a_new_cluster(sim)
    sim.reconcile_until(lambda: bool(sim.cluster.live()))
    spec = {"replicas": 1, "bootstrap": {"recovery": RECOVERY}}
    operator.die()
    sim.apply("BrokerCluster", "demo", spec, pause_reconciliation="true")
    for _ in range(10):
        sim.reconcile()
    assert (operator.running, sim.cluster.topics) == (False, {})
    sim.apply("BrokerCluster", "demo", spec)
    sim.reconcile_until_ready()
    assert operator.restored == [SOURCE]


def test_a_cluster_with_topics_of_others_goes_on_without_the_backup() -> None:
    sim = OperatorSimulation()
    sim.apply("BrokerCluster", "demo", {"replicas": 1})
    sim.reconcile_until_ready()
    sim.cluster.create_topic("theirs", 1, 1)
    sim.recoveries = operator = Operator(sim.cluster)
    a_new_cluster(sim)
    sim.reconcile_until(lambda: "orders" in sim.cluster.topics)
    assert sim.condition("BrokerCluster/demo")[:2] == ("False", "RecoveryRefused")
    sim.reconcile_until(lambda: sim.condition("Topic/orders")[0] == "True")
    assert operator.restored == []
    sim.apply("BrokerCluster", "demo", {"replicas": 1})
    sim.reconcile_until_ready()


def test_no_backup_is_taken_of_a_cluster_that_is_not_recovered_yet() -> None:
    """It would be the newest one in the folder that the recovery reads."""

    sim = OperatorSimulation()
    sim.recoveries = operator = Operator(sim.cluster)

    class Backups:
        running = False
        begun = 0

        def outcome(self) -> None:
            return None

        def begin(self, of: BrokerCluster, request: str) -> None:
            assert operator.restored
            self.begun += 1

    sim.backups = backups = Backups()
    spec = {
        "replicas": 1,
        "bootstrap": {"recovery": RECOVERY},
        "backup": {"destination": FOLDER, "credentialsSecret": "s3"},
    }
    sim.apply("BrokerCluster", "demo", spec, backup_requested_at="1")
    sim.reconcile_until(lambda: backups.begun > 0)


# ---- over the API server


@pytest.mark.parametrize("number", range(0, 40, 3))
def test_a_write_that_fails_at_any_time_leaves_one_restored_backup(number: int) -> None:
    sim = KubernetesSimulation()
    sim.recoveries = operator = Operator(None)
    sim.apply_cluster(replicas=1, bootstrap={"recovery": RECOVERY})
    sim.fail_write(number)
    while sim.status().get("recovery", {}).get("completedAt") is None:
        steps = sim.reconcile()
        if any(step.startswith("failed: ") for step in steps):
            operator.die()
    sim.reconcile_until_ready()
    assert set(operator.restored) == {SOURCE}
    assert sim.status()["recovery"]["source"] == SOURCE
    assert sim.condition("Recovered") == ("True", "Completed")
    restored = len(operator.restored)
    for _ in range(10):
        sim.reconcile()
    assert len(operator.restored) == restored

"""Pipeline resources: when a driver is started and stopped, and their conditions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ottla_operator.conditions import Finding, parse_iso_time
from ottla_operator.planning.observed import BatchProgress, DriverInstance, JobProgress
from ottla_operator.planning.pipeline_config import DriverLaunch, Login, complete_config, heap_mib
from ottla_operator.planning.pipelines import DELETION_TIMEOUT_MS, ClusterView, plan_pipeline
from ottla_operator.planning.steps import StartDriver, StopDriver
from ottla_operator.platform.processes import progress_of
from ottla_operator.resources import BrokerCluster, Pipeline, PipelineStatus
from ottla_operator.resources.loading import parse_resource
from tests.worlds.operator_simulation import OperatorSimulation

NOW_MS = parse_iso_time("2026-01-02T03:04:05Z")
WORKS = JobProgress("app-1", 0, True, BatchProgress(3, 100, 250, "2026-01-02T03:04:01Z"))
SPEC: dict[str, Any] = {
    "clusterRef": {"name": "demo"},
    "job": "lake",
    "config": {"source": {"topics": ["a"]}, "kafka": {"options": {"fetch.max.bytes": "1"}}},
}


def a_pipeline(
    status: dict[str, Any] | None = None, metadata: dict[str, Any] | None = None, **spec: Any
) -> Pipeline:
    found, problems = parse_resource(
        "Pipeline", {"name": "flights", "generation": 1, **(metadata or {})}, {**SPEC, **spec}, status
    )
    assert isinstance(found, Pipeline), problems
    return found


def a_cluster(**spec: Any) -> BrokerCluster:
    found, problems = parse_resource("BrokerCluster", {"name": "demo"}, {"replicas": 1, **spec})
    assert isinstance(found, BrokerCluster), problems
    return found


VIEW = ClusterView(a_cluster(), "", True, "host:9092")


def revision_of(pipeline: Pipeline, view: ClusterView = VIEW) -> str:
    launch = plan_pipeline(pipeline, DriverInstance(), view, {}, NOW_MS).launch
    assert launch is not None
    return launch.revision


def of_type(findings: tuple[Finding, ...], type_: str) -> tuple[str, str]:
    found = next(finding for finding in findings if finding.type == type_)
    return found.status, found.reason


RUNS = DriverInstance("Running", "driver-0", "mine", progress=WORKS)
START = (StartDriver("flights"),)
AGAIN = (StopDriver("flights", "its configuration or image has changed", again=True),)

# The observed driver ("mine": it runs the target revision), and the expected steps and conditions: Ready,
# Running, CaughtUp, Failing.
TABLE = [
    ("none", DriverInstance(), START, "Starting", "False", "Unknown", "False"),
    ("comes up", DriverInstance("Starting", revision="mine"), (), "Starting", "False", "Unknown", "False"),
    ("works", RUNS, (), "Running", "True", "True", "False"),
    (
        "is behind",
        replace(RUNS, progress=replace(WORKS, lag=7, caught_up=False)),
        *((), "Running", "True", "False", "False"),
    ),
    (
        "has no batch yet",
        replace(RUNS, progress=JobProgress("app-1")),
        *((), "Running", "True", "Unknown", "False"),
    ),
    ("does not answer", replace(RUNS, progress=None), (), "NotAnswering", "False", "Unknown", "False"),
    (
        "tells of an error",
        replace(RUNS, progress=replace(WORKS, error="boom")),
        *((), "JobFailed", "True", "True", "True"),
    ),
    (
        "crashed, and is started by the platform",
        DriverInstance("Crashed", revision="mine", backing_off=True, exit_code=1, message="boom"),
        *((), "DriverFailed", "False", "Unknown", "True"),
    ),
    (
        "crashed, and is started by us",
        DriverInstance("Crashed", revision="mine", exit_code=1, message="boom"),
        *(START, "DriverFailed", "False", "Unknown", "True"),
    ),
    (
        "starts again after a crash",
        DriverInstance("Running", revision="mine", exit_code=1, progress=JobProgress("app-2")),
        *((), "DriverFailed", "True", "Unknown", "True"),
    ),
    (
        "has worked since its crash",
        replace(RUNS, exit_code=1, message="boom"),
        *((), "Running", "True", "True", "False"),
    ),
    (
        "has no image",
        DriverInstance("Crashed", revision="mine", backing_off=True, message="the image cannot be pulled"),
        *((), "DriverNotStarted", "False", "Unknown", "True"),
    ),
    ("runs what was before", replace(RUNS, revision="old"), AGAIN, "Upgrading", "False", "Unknown", "False"),
    (
        "crashes with what was before",
        DriverInstance("Crashed", revision="old", backing_off=True, exit_code=2),
        *(AGAIN, "Upgrading", "False", "Unknown", "False"),
    ),
    ("ends", DriverInstance("Stopping", revision="old"), (), "Stopping", "False", "Unknown", "False"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("driver", "steps", "ready", "running", "caught_up", "failing"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_each_driver_state_has_its_steps_and_conditions(
    driver: DriverInstance, steps: Any, ready: str, running: str, caught_up: str, failing: str
) -> None:
    pipeline = a_pipeline()
    if driver.revision == "mine":
        driver = replace(driver, revision=revision_of(pipeline))
    plan = plan_pipeline(pipeline, driver, VIEW, {}, NOW_MS)
    assert plan.steps == steps
    assert of_type(plan.findings, "Ready")[1] == ready
    statuses = [of_type(plan.findings, type_)[0] for type_ in ("Running", "CaughtUp", "Failing")]
    assert statuses == [running, caught_up, failing]
    assert (of_type(plan.findings, "Ready")[0] == "True") == (ready == "Running")


def test_a_suspended_pipeline_is_stopped_and_then_ready() -> None:
    suspended = a_pipeline(suspend=True)
    stopping = plan_pipeline(suspended, RUNS, VIEW, {}, NOW_MS)
    assert stopping.steps == (StopDriver("flights", "Suspended"),)
    assert stopping.launch is None
    down = plan_pipeline(suspended, DriverInstance(), VIEW, {}, NOW_MS)
    assert down.steps == ()
    assert of_type(down.findings, "Ready") == ("True", "Suspended")
    assert of_type(down.findings, "Running") == ("False", "Suspended")


def test_every_field_but_suspend_is_part_of_the_revision() -> None:
    before = revision_of(a_pipeline())
    assert plan_pipeline(
        a_pipeline(suspend=True), replace(RUNS, revision=before), VIEW, {}, NOW_MS
    ).steps == (StopDriver("flights", "Suspended"),)
    others = [
        a_pipeline(config={"source": {"topics": ["b"]}}),
        a_pipeline(image="other"),
        a_pipeline(executor={"instances": 3}),
        a_pipeline(driver={"resources": {"limits": {"memory": "4Gi"}}}),
    ]
    revisions = {before, *map(revision_of, others), revision_of(a_pipeline(), replace(VIEW, bootstrap="x:1"))}
    assert len(revisions) == 6
    traits = plan_pipeline(a_pipeline(), DriverInstance(), VIEW, {"image": "new"}, NOW_MS).launch
    assert traits is not None
    assert traits.revision not in revisions


def test_a_driver_waits_for_brokers_to_start_and_keeps_running_without_them() -> None:
    away = replace(VIEW, usable=False)
    waiting = plan_pipeline(a_pipeline(), DriverInstance(), away, {}, NOW_MS)
    assert (waiting.steps, of_type(waiting.findings, "Ready")) == ((), ("False", "ClusterNotReady"))
    running = replace(RUNS, revision=revision_of(a_pipeline()))
    assert of_type(plan_pipeline(a_pipeline(), running, away, {}, NOW_MS).findings, "Ready")[0] == "True"


def test_a_pipeline_without_its_cluster_is_stopped() -> None:
    plan = plan_pipeline(a_pipeline(), RUNS, ClusterView(None, "is gone"), {}, NOW_MS)
    assert plan.steps == (StopDriver("flights", "ClusterNotFound"),)
    plan = plan_pipeline(a_pipeline(), DriverInstance(), ClusterView(None, "is gone"), {}, NOW_MS)
    assert of_type(plan.findings, "Ready") == ("False", "ClusterNotFound")


def test_an_invalid_configuration_is_reported_with_the_path_of_the_field() -> None:
    message = (
        "ended with code 2: lake: /etc/ottla/pipeline.yaml: source.topics: must be a list\n"
        "lake: /etc/ottla/pipeline.yaml: checkpoint: is missing"
    )
    pipeline = a_pipeline()
    driver = DriverInstance(
        "Crashed", revision=revision_of(pipeline), backing_off=True, exit_code=2, message=message
    )
    plan = plan_pipeline(pipeline, driver, VIEW, {}, NOW_MS)
    failing = next(finding for finding in plan.findings if finding.type == "Failing")
    assert (failing.status, failing.reason) == ("True", "InvalidConfig")
    assert failing.message == (
        "spec.config.source.topics: must be a list; spec.config.checkpoint: is missing"
    )
    driver = replace(driver, message="ended with code 2: lake: host:9092 does not answer")
    plan = plan_pipeline(pipeline, driver, VIEW, {}, NOW_MS)
    assert of_type(plan.findings, "Failing") == ("True", "CannotBegin")


def test_a_completed_job_starts_again_only_when_the_spec_changes() -> None:
    pipeline = a_pipeline()
    ended = DriverInstance("Crashed", revision=revision_of(pipeline), backing_off=True, exit_code=0)
    plan = plan_pipeline(pipeline, ended, VIEW, {}, NOW_MS)
    assert plan.steps == (StopDriver("flights", "Completed"),)
    completed = a_pipeline({"completedRevision": plan.status.completed_revision})
    plan = plan_pipeline(completed, DriverInstance(), VIEW, {}, NOW_MS)
    assert (plan.steps, of_type(plan.findings, "Ready")) == ((), ("True", "Completed"))
    changed = a_pipeline({"completedRevision": plan.status.completed_revision}, config={})
    assert plan_pipeline(changed, DriverInstance(), VIEW, {}, NOW_MS).steps == START


def test_a_deletion_waits_for_the_driver_until_its_deadline() -> None:
    leaving = a_pipeline(metadata={"deletionTimestamp": "2026-01-02T03:04:00Z"})
    plan = plan_pipeline(leaving, RUNS, VIEW, {}, NOW_MS)
    assert (plan.deletion_complete, plan.steps) == (False, (StopDriver("flights", "Deleting"),))
    ending = replace(RUNS, state="Stopping")
    assert plan_pipeline(leaving, ending, VIEW, {}, NOW_MS).steps == ()
    assert plan_pipeline(leaving, ending, VIEW, {}, NOW_MS + DELETION_TIMEOUT_MS).deletion_complete
    assert plan_pipeline(
        leaving, DriverInstance(), ClusterView(None, "is gone"), {}, NOW_MS
    ).deletion_complete


def test_the_status_is_written_at_most_every_five_seconds() -> None:
    pipeline = a_pipeline()
    running = replace(RUNS, revision=revision_of(pipeline))
    reported = plan_pipeline(pipeline, running, VIEW, {}, NOW_MS).status
    assert (reported.application_id, reported.lag) == ("app-1", 0)
    assert reported.last_batch is not None
    assert reported.last_batch.records == 100
    before = a_pipeline(reported.model_dump(by_alias=True, exclude_none=True))
    newer = replace(WORKS, last_batch=BatchProgress(4, 50, 100, "2026-01-02T03:04:05Z"))

    def status(progress: JobProgress, now_ms: int) -> PipelineStatus:
        return plan_pipeline(before, replace(running, progress=progress), VIEW, {}, now_ms).status

    assert status(newer, NOW_MS) == reported
    behind = status(replace(newer, lag=9, caught_up=False), NOW_MS)
    assert behind.lag == 9
    later = status(newer, NOW_MS + 10_000)
    assert later.last_batch is not None
    assert later.last_batch.id == 4


# ---- the configuration


def path_of(secret: str, entry: str) -> str:
    return f"/secrets/{secret}/{entry}"


def test_the_configuration_is_completed_with_brokers_name_and_checkpoint() -> None:
    launch = DriverLaunch("r", "host:9092")
    config = complete_config(
        a_pipeline(config={"a": {"b": [1]}, "spark": {"settings": {"x": "1", "y": "2"}}}),
        launch,
        checkpoint="/data/checkpoint",
        path_of=path_of,
        settings={"y": "3"},
    )
    assert config == {
        "name": "flights",
        "a": {"b": [1]},
        "kafka": {"bootstrap": "host:9092"},
        "checkpoint": "/data/checkpoint",
        "spark": {"settings": {"x": "1", "y": "3"}},
    }
    own = complete_config(
        a_pipeline(config={"name": "mine", "checkpoint": "s3a://b/c"}),
        launch,
        checkpoint="/data",
        path_of=path_of,
    )
    assert (own["name"], own["checkpoint"]) == ("mine", "s3a://b/c")


def test_credentials_are_completed_as_paths_of_files() -> None:
    def kafka(login: Login) -> dict[str, Any]:
        launch = DriverLaunch("r", "host:9092", login)
        found: dict[str, Any] = complete_config(a_pipeline(), launch, checkpoint=None, path_of=path_of)[
            "kafka"
        ]
        return found

    scram = kafka(Login("scram-sha-512", True, "alice", "alice", "1", "ca"))
    assert scram["sasl"] == {
        "mechanism": "SCRAM-SHA-512",
        "username": "alice",
        "passwordFile": "/secrets/alice/password",
    }
    assert scram["tls"] == {"ca": "/secrets/ca/ca.crt"}
    assert scram["options"] == {"fetch.max.bytes": "1"}
    tls = kafka(Login("tls", True, "bob", "bob", "", "ca"))
    assert tls["tls"] == {
        "ca": "/secrets/ca/ca.crt",
        "certificate": "/secrets/bob/user.crt",
        "key": "/secrets/bob/user.key",
    }


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"config": {"kafka": {"bootstrap": "x:1"}}}, "spec.config.kafka.bootstrap"),
        ({"config": {"kafka": {"sasl": {}}}}, "spec.config.kafka.sasl"),
        ({"driver": {"resources": {"limits": {"memory": "512Mi"}}}}, "spec.driver.resources.memory"),
        ({"executor": {"resources": {"requests": 1}}}, "spec.executor.resources.requests"),
        ({"storage": {"size": "much"}}, "spec.storage.size"),
        ({"job": "No Job"}, "spec.job"),
    ],
)
def test_an_invalid_pipeline_is_rejected_with_the_path_of_the_field(spec: dict[str, Any], path: str) -> None:
    _, problems = parse_resource("Pipeline", {"name": "flights"}, {**SPEC, **spec})
    assert [problem.path for problem in problems] == [path]


def test_the_java_heap_leaves_memory_for_python() -> None:
    assert heap_mib(1 << 30) == 563
    assert heap_mib(4 << 30) == 2252
    assert heap_mib(100 << 20) == 512


def test_a_status_response_with_invalid_fields_is_parsed_without_errors() -> None:
    batch = {"id": 1, "records": 2, "durationMs": 3, "endedAt": "t", "more": 1}
    response = {
        "applicationId": "a",
        "lastBatch": batch,
        "lag": 4,
        "caughtUp": False,
        "error": None,
        "state": "x",
    }
    assert progress_of(response) == JobProgress("a", 4, False, BatchProgress(1, 2, 3, "t"))
    assert progress_of({"applicationId": None, "lastBatch": None, "lag": None}) == JobProgress()
    assert progress_of({"lastBatch": {"id": "x"}, "lag": True}) == JobProgress()
    assert progress_of([1]) is None


# ---- over a simulated cluster


@pytest.fixture
def sim() -> OperatorSimulation:
    sim = OperatorSimulation()
    sim.apply_cluster(1)
    sim.apply("Pipeline", "flights", SPEC)
    sim.reconcile_until_ready()
    return sim


def test_a_pipeline_is_started_upgraded_suspended_and_resumed(
    sim: OperatorSimulation,
) -> None:
    drivers = sim.drivers
    first = drivers.launches["Pipeline/flights"]
    assert first.bootstrap == "host:9092"
    assert drivers.log == [f"start {first.revision}"]
    sim.apply("Pipeline", "flights", {**SPEC, "config": {}})
    sim.reconcile_until_ready()
    second = drivers.launches["Pipeline/flights"]
    assert drivers.log[1:] == ["stop to restart", f"start {second.revision}"]
    drivers.stops_slowly = True
    sim.apply("Pipeline", "flights", {**SPEC, "config": {}, "suspend": True})
    for _ in range(3):
        sim.reconcile()
    assert drivers.log[3:] == ["stop"]
    del drivers.running["Pipeline/flights"]
    sim.reconcile_until_ready()
    sim.apply("Pipeline", "flights", {**SPEC, "config": {}})
    sim.reconcile_until_ready()
    assert drivers.log[4:] == [f"start {second.revision}"]


def test_a_new_image_is_an_upgrade(sim: OperatorSimulation) -> None:
    sim.drivers.image = "two"
    sim.reconcile_until_ready()
    sim.reconcile()
    assert sim.drivers.log[1] == "stop to restart"


def test_a_deleted_pipeline_stops_its_driver_also_without_a_cluster(sim: OperatorSimulation) -> None:
    sim.store.delete("BrokerCluster/demo")
    sim.store.delete("Pipeline/flights")
    for _ in range(40):
        sim.reconcile()
    assert sim.drivers.log[1:] == ["stop", "remove"]
    assert not sim.store.stored


def test_a_paused_pipeline_is_not_changed(sim: OperatorSimulation) -> None:
    sim.apply("Pipeline", "flights", {**SPEC, "suspend": True}, pause_reconciliation="true")
    for _ in range(3):
        sim.reconcile()
    assert len(sim.drivers.log) == 1

"""Plans Pipeline resources: whether a driver should run, on which revision, and the status.

Called by `reconcile` for each Pipeline, also without a cluster. Invariants: a driver is started only when
none runs, so that no two drivers share a checkpoint; a running driver is not stopped because the brokers are
temporarily unreachable; a deletion waits for the driver's end, with a time-out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from ottla_operator.conditions import Finding, no, parse_iso_time, unknown, yes
from ottla_operator.planning.observed import DriverInstance, JobProgress
from ottla_operator.planning.pipeline_config import DriverLaunch, LaunchRefused, launch_of
from ottla_operator.planning.steps import DriverStep, ResourcePlan, StartDriver, StopDriver
from ottla_operator.resources import BrokerCluster, Pipeline, PipelineStatus, User
from ottla_operator.resources.pipeline import LastBatch

DELETION_TIMEOUT_MS: Final = 180_000
CONFIG_FILE: Final = "pipeline.yaml"
EXIT_CANNOT_START: Final = 2
"""The exit code of a job that cannot start."""

# Batches may end each second: the status is written at most this often for them.
_STATUS_INTERVAL_MS: Final = 5_000
_MESSAGE_MAX: Final = 1_500


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The state of a pipeline's cluster that its driver depends on."""

    cluster: BrokerCluster | None
    problem: str = ""
    """Why there is no cluster."""
    usable: bool = False
    bootstrap: str = ""
    users: Mapping[str, User] = field(default_factory=dict)


def plan_pipeline(
    pipeline: Pipeline, driver: DriverInstance, view: ClusterView, traits: Mapping[str, str], now_ms: int
) -> ResourcePlan[PipelineStatus]:
    """The plan of one Pipeline from its driver's state. `traits`: the platform's part of the revision."""
    if pipeline.metadata.deleting:
        return _plan_deletion(pipeline, driver, now_ms)
    if view.cluster is None:
        return _not_to_run(pipeline, driver, no("Ready", "ClusterNotFound", view.problem))
    if pipeline.spec.suspend:
        return _not_to_run(
            pipeline, driver, yes("Ready", "Suspended", "spec.suspend is true: the driver is stopped")
        )
    launch = launch_of(pipeline, view.cluster, view.bootstrap, view.users, traits)
    if isinstance(launch, LaunchRefused):
        if driver.state == "Stopped":
            return _not_to_run(pipeline, driver, no("Ready", launch.reason, launch.message))
        # A running driver continues: it has what it needs.
        launch = DriverLaunch(driver.revision, view.bootstrap)
        return _running(pipeline, driver, None, launch.revision, now_ms)
    if _has_completed(pipeline, driver, launch.revision):
        ended = yes("Ready", "Completed", "the job has completed; a change of the spec starts it again")
        plan = _not_to_run(pipeline, driver, ended)
        status = plan.status.model_copy(update={"completed_revision": launch.revision})
        return ResourcePlan(pipeline, plan.findings, status, plan.steps)
    if driver.state == "Stopped" and not view.usable:
        waits = no("Ready", "ClusterNotReady", "the driver starts when the brokers are reachable")
        return _not_to_run(pipeline, driver, waits)
    if driver.state == "Stopped":
        findings = _down_findings("Starting", "the driver is being started", "Starting")
        return ResourcePlan(
            pipeline, findings, _stopped(pipeline), (StartDriver(pipeline.metadata.name),), launch=launch
        )
    if driver.state == "Stopping":
        findings = _down_findings("Stopping", "the driver finishes its batch", "Stopping")
        return ResourcePlan(pipeline, findings, _status(pipeline, driver, now_ms), (), launch=launch)
    if driver.revision != launch.revision:
        step = StopDriver(pipeline.metadata.name, "its configuration or image has changed", again=True)
        findings = _down_findings(
            "Upgrading", "the driver of the previous revision finishes its batch", "Upgrading"
        )
        return ResourcePlan(pipeline, findings, _status(pipeline, driver, now_ms), (step,), launch=launch)
    return _running(pipeline, driver, launch, launch.revision, now_ms)


def _has_completed(pipeline: Pipeline, driver: DriverInstance, revision: str) -> bool:
    ended = driver.exit_code == 0 and driver.revision == revision and driver.progress is None
    return ended or pipeline.status.completed_revision == revision


# ---- a driver that should run


def _running(
    pipeline: Pipeline, driver: DriverInstance, launch: DriverLaunch | None, revision: str, now_ms: int
) -> ResourcePlan[PipelineStatus]:
    failing = _failing(driver)
    running = _runs(driver)
    if failing.status == "True":
        ready = no("Ready", failing.reason, failing.message)
    elif running.status == "True":
        ready = yes("Ready", "Running", running.message)
    else:
        ready = no("Ready", running.reason, running.message)
    status = _status(pipeline, driver, now_ms).model_copy(update={"revision": revision})
    steps: tuple[DriverStep, ...] = ()
    if driver.state == "Crashed" and not driver.backing_off and launch is not None:
        steps = (StartDriver(pipeline.metadata.name),)
    return ResourcePlan(
        pipeline, (ready, running, _caught_up(driver.progress), failing), status, steps, launch=launch
    )


def _runs(driver: DriverInstance) -> Finding:
    progress = driver.progress
    if driver.state == "Running" and progress is not None and progress.application_id:
        return yes("Running", "Running", f"{driver.name} is application {progress.application_id}")
    if driver.state == "Crashed":
        return no("Running", "Crashed", "the driver is restarted after a back-off")
    if driver.state == "Running" and progress is None:
        return no("Running", "NotAnswering", f"the status port of {driver.name} does not respond")
    return no("Running", "Starting", f"{driver.name} is starting Spark")


def _is_healthy(progress: JobProgress | None) -> bool:
    """Whether the job has made progress: the failure of a previous driver no longer counts."""
    if progress is None or progress.error:
        return False
    return progress.last_batch is not None or progress.caught_up


def _failing(driver: DriverInstance) -> Finding:
    progress = driver.progress
    if progress is not None and progress.error:
        return yes("Failing", "JobFailed", progress.error[:_MESSAGE_MAX])
    ended_badly = driver.exit_code not in (None, 0) or (driver.exit_code is None and bool(driver.message))
    if not ended_badly or _is_healthy(progress):
        return no("Failing", "NotFailing")
    reason, message = _why(driver)
    return yes("Failing", reason, message[:_MESSAGE_MAX])


def _why(driver: DriverInstance) -> tuple[str, str]:
    """(reason, message) of a failed driver; an invalid configuration is reported with the field's path."""
    if driver.exit_code is None:
        return "DriverNotStarted", driver.message
    if driver.exit_code != EXIT_CANNOT_START:
        return "DriverFailed", driver.message
    lines = [line for line in driver.message.splitlines() if f"{CONFIG_FILE}: " in line]
    if not lines:
        return "CannotBegin", driver.message
    problems = [line.rpartition(f"{CONFIG_FILE}: ")[2].strip() for line in lines]
    return "InvalidConfig", "; ".join(f"spec.config.{line}" for line in problems)


def _caught_up(progress: JobProgress | None) -> Finding:
    if progress is None or progress.lag is None:
        return unknown("CaughtUp", "NotKnown", "no batch has been committed yet")
    if progress.caught_up:
        return yes("CaughtUp", "CaughtUp", "all records have been read")
    return no("CaughtUp", "CatchingUp", "records are still to be read; status.lag counts them")


# ---- a driver that should not run


def _not_to_run(pipeline: Pipeline, driver: DriverInstance, ready: Finding) -> ResourcePlan[PipelineStatus]:
    """The plan when no driver should run; `ready` has the reason."""
    if driver.state == "Stopped":
        running = no("Running", ready.reason, ready.message)
        findings = (ready, running, unknown("CaughtUp", ready.reason), no("Failing", "NotFailing"))
        return ResourcePlan(pipeline, findings, _stopped(pipeline))
    steps = () if driver.state == "Stopping" else (StopDriver(pipeline.metadata.name, ready.reason),)
    stopping = _down_findings("Stopping", "the driver finishes its batch", ready.reason)
    return ResourcePlan(pipeline, stopping, pipeline.status, steps)


def _down_findings(reason: str, message: str, why_not_running: str) -> tuple[Finding, ...]:
    return (
        no("Ready", reason, message),
        no("Running", why_not_running, message),
        unknown("CaughtUp", reason),
        no("Failing", "NotFailing"),
    )


def _plan_deletion(pipeline: Pipeline, driver: DriverInstance, now_ms: int) -> ResourcePlan[PipelineStatus]:
    """The group's offsets are kept; `storage.deleteClaim` decides about the driver's volume."""
    findings = _down_findings("Deleting", "the driver finishes its batch", "Deleting")
    deleted_at = pipeline.metadata.deletion_timestamp
    assert deleted_at is not None
    overdue = now_ms - parse_iso_time(deleted_at) > DELETION_TIMEOUT_MS
    if driver.state == "Stopped" or overdue or not pipeline.metadata.managed:
        return ResourcePlan(pipeline, findings, pipeline.status, deletion_complete=True)
    steps = () if driver.state == "Stopping" else (StopDriver(pipeline.metadata.name, "Deleting"),)
    return ResourcePlan(pipeline, findings, pipeline.status, steps)


# ---- the status


def _stopped(pipeline: Pipeline) -> PipelineStatus:
    """The status without a driver; the last batch and the lag stay."""
    return pipeline.status.model_copy(update={"application_id": "", "driver": "", "restarts": 0})


def _status(pipeline: Pipeline, driver: DriverInstance, now_ms: int) -> PipelineStatus:
    status, progress = pipeline.status, driver.progress
    update = {"driver": driver.name, "revision": driver.revision, "restarts": driver.crashes}
    if progress is None or _is_current(status, progress, now_ms):
        return status.model_copy(update=update)
    batch = progress.last_batch
    last = status.last_batch
    if batch is not None:
        last = LastBatch(
            id=batch.id, records=batch.records, duration_ms=batch.duration_ms, ended_at=batch.ended_at
        )
    lag = progress.lag if progress.lag is not None else status.lag
    return status.model_copy(
        update={**update, "application_id": progress.application_id, "lag": lag, "last_batch": last}
    )


def _is_current(status: PipelineStatus, progress: JobProgress, now_ms: int) -> bool:
    """Whether the status is recent enough, and right about the application and about a lag of 0."""
    if status.last_batch is None or status.application_id != progress.application_id:
        return False
    if (status.lag == 0) != progress.caught_up:
        return False
    try:
        ended_ms = datetime.fromisoformat(status.last_batch.ended_at).timestamp() * 1000
    except ValueError:
        return False
    return now_ms - ended_ms < _STATUS_INTERVAL_MS

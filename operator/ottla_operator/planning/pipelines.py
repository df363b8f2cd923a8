"""Pipeline resources: whether a driver should run, on which revision, and what is told of it.

Called by `reconcile` for each Pipeline, also where there is no cluster (any more). Invariants: a driver is
started only when there is none, so that no two work on one checkpoint; one that runs is not stopped because
the brokers are away for a while; a deletion waits for the driver's end, and not for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from ottla_operator.conditions import Finding, no, parse_iso_time, unknown, yes
from ottla_operator.planning.observed import DriverInstance, JobProgress
from ottla_operator.planning.pipeline_config import DriverLaunch, Refused, launch_of
from ottla_operator.planning.steps import DriverStep, StartDriver, StopDriver
from ottla_operator.resources import BrokerCluster, Pipeline, PipelineStatus, User
from ottla_operator.resources.pipeline import LastBatch

LET_GO_MS: Final = 180_000
CONFIG_FILE: Final = "pipeline.yaml"
UNUSABLE: Final = 2
"""The exit code of a job that could not begin."""

# A batch may end each second: the status is not written for each of them.
_TOLD_MS: Final = 5_000
_MESSAGE_MAX: Final = 1_500


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    findings: tuple[Finding, ...]
    status: PipelineStatus
    steps: tuple[DriverStep, ...] = ()
    launch: DriverLaunch | None = None
    """What the driver is to run with; None when there is to be none."""
    done: bool = False
    """Of a deletion: the resource may go."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster of a pipeline, as far as its driver needs it."""

    cluster: BrokerCluster | None
    problem: str = ""
    """Why there is none."""
    usable: bool = False
    bootstrap: str = ""
    users: Mapping[str, User] = field(default_factory=dict)


def plan_pipeline(
    pipeline: Pipeline, driver: DriverInstance, view: ClusterView, traits: Mapping[str, str], now_ms: int
) -> PipelinePlan:
    if pipeline.metadata.deleting:
        return _plan_deletion(pipeline, driver, now_ms)
    if view.cluster is None:
        return _kept_down(pipeline, driver, no("Ready", "ClusterNotFound", view.problem))
    if pipeline.spec.suspend:
        return _kept_down(pipeline, driver, yes("Ready", "Suspended", "stopped, as spec.suspend says"))
    launch = launch_of(pipeline, view.cluster, view.bootstrap, view.users, traits)
    if isinstance(launch, Refused):
        if driver.state == "Stopped":
            return _kept_down(pipeline, driver, no("Ready", launch.reason, launch.message))
        # Whoever runs goes on: it has what it needs.
        launch = DriverLaunch(driver.revision, view.bootstrap)
        return _running(pipeline, driver, None, launch.revision, now_ms)
    if _has_completed(pipeline, driver, launch.revision):
        ended = yes("Ready", "Completed", "the job came to its end; a change of the spec starts it again")
        plan = _kept_down(pipeline, driver, ended)
        status = plan.status.model_copy(update={"completed_revision": launch.revision})
        return PipelinePlan(plan.findings, status, plan.steps)
    if driver.state == "Stopped" and not view.usable:
        waits = no("Ready", "ClusterNotReady", "the driver starts when the brokers can be asked")
        return _kept_down(pipeline, driver, waits)
    if driver.state == "Stopped":
        findings = _down("Starting", "the driver is started", "Starting")
        return PipelinePlan(findings, _stopped(pipeline), (StartDriver(pipeline.metadata.name),), launch)
    if driver.state == "Stopping":
        findings = _down("Stopping", "the driver ends its batch", "Stopping")
        return PipelinePlan(findings, _status(pipeline, driver, now_ms), (), launch)
    if driver.revision != launch.revision:
        step = StopDriver(pipeline.metadata.name, "its configuration or image has changed", again=True)
        findings = _down("Upgrading", "the driver of the former revision ends its batch", "Upgrading")
        return PipelinePlan(findings, _status(pipeline, driver, now_ms), (step,), launch)
    return _running(pipeline, driver, launch, launch.revision, now_ms)


def _has_completed(pipeline: Pipeline, driver: DriverInstance, revision: str) -> bool:
    ended = driver.exit_code == 0 and driver.revision == revision and driver.progress is None
    return ended or pipeline.status.completed_revision == revision


# ---- a driver that is to run


def _running(
    pipeline: Pipeline, driver: DriverInstance, launch: DriverLaunch | None, revision: str, now_ms: int
) -> PipelinePlan:
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
    if driver.state == "Crashed" and not driver.resting and launch is not None:
        steps = (StartDriver(pipeline.metadata.name),)
    return PipelinePlan((ready, running, _caught_up(driver.progress), failing), status, steps, launch)


def _runs(driver: DriverInstance) -> Finding:
    progress = driver.progress
    if driver.state == "Running" and progress is not None and progress.application_id:
        return yes("Running", "Running", f"{driver.name} is application {progress.application_id}")
    if driver.state == "Crashed":
        return no("Running", "Crashed", "the driver is started again after a pause")
    if driver.state == "Running" and progress is None:
        return no("Running", "NotAnswering", f"{driver.name} does not tell of its job")
    return no("Running", "Starting", f"{driver.name} starts Spark")


def _is_healthy(progress: JobProgress | None) -> bool:
    """It has worked: what a driver before it died of is over."""
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
    """Where the configuration is at fault, with the path of the field in the resource."""
    if driver.exit_code is None:
        return "DriverNotStarted", driver.message
    if driver.exit_code != UNUSABLE:
        return "DriverFailed", driver.message
    lines = [line for line in driver.message.splitlines() if f"{CONFIG_FILE}: " in line]
    if not lines:
        return "CannotBegin", driver.message
    told = [line.rpartition(f"{CONFIG_FILE}: ")[2].strip() for line in lines]
    return "InvalidConfig", "; ".join(f"spec.config.{line}" for line in told)


def _caught_up(progress: JobProgress | None) -> Finding:
    if progress is None or progress.lag is None:
        return unknown("CaughtUp", "NotKnown", "no batch has ended yet")
    if progress.caught_up:
        return yes("CaughtUp", "CaughtUp", "nothing is left to read")
    return no("CaughtUp", "CatchingUp", "records are there to read: status.lag")


# ---- one that is not


def _kept_down(pipeline: Pipeline, driver: DriverInstance, ready: Finding) -> PipelinePlan:
    """No driver is to run, for the reason of `ready`."""
    if driver.state == "Stopped":
        running = no("Running", ready.reason, ready.message)
        findings = (ready, running, unknown("CaughtUp", ready.reason), no("Failing", "NotFailing"))
        return PipelinePlan(findings, _stopped(pipeline))
    steps = () if driver.state == "Stopping" else (StopDriver(pipeline.metadata.name, ready.reason),)
    stopping = _down("Stopping", "the driver ends its batch", ready.reason)
    return PipelinePlan(stopping, pipeline.status, steps)


def _down(reason: str, message: str, why_not_running: str) -> tuple[Finding, ...]:
    return (
        no("Ready", reason, message),
        no("Running", why_not_running, message),
        unknown("CaughtUp", reason),
        no("Failing", "NotFailing"),
    )


def _plan_deletion(pipeline: Pipeline, driver: DriverInstance, now_ms: int) -> PipelinePlan:
    """The group's offsets stay; what the driver's volume holds, by `storage.deleteClaim`."""
    findings = _down("Deleting", "the driver ends its batch", "Deleting")
    deleted_at = pipeline.metadata.deletion_timestamp
    assert deleted_at is not None
    overdue = now_ms - parse_iso_time(deleted_at) > LET_GO_MS
    if driver.state == "Stopped" or overdue or not pipeline.metadata.managed:
        return PipelinePlan(findings, pipeline.status, done=True)
    steps = () if driver.state == "Stopping" else (StopDriver(pipeline.metadata.name, "Deleting"),)
    return PipelinePlan(findings, pipeline.status, steps)


# ---- the status


def _stopped(pipeline: Pipeline) -> PipelineStatus:
    """What the last driver was told of last stays to be seen."""
    return pipeline.status.model_copy(update={"application_id": "", "driver": "", "restarts": 0})


def _status(pipeline: Pipeline, driver: DriverInstance, now_ms: int) -> PipelineStatus:
    status, progress = pipeline.status, driver.progress
    told = {"driver": driver.name, "revision": driver.revision, "restarts": driver.crashes}
    if progress is None:
        return status.model_copy(update=told)
    if _is_told(status, progress, now_ms):
        return status.model_copy(update=told)
    batch = progress.last_batch
    last = status.last_batch
    if batch is not None:
        last = LastBatch(
            id=batch.id, records=batch.records, duration_ms=batch.duration_ms, ended_at=batch.ended_at
        )
    lag = progress.lag if progress.lag is not None else status.lag
    return status.model_copy(
        update={**told, "application_id": progress.application_id, "lag": lag, "last_batch": last}
    )


def _is_told(status: PipelineStatus, progress: JobProgress, now_ms: int) -> bool:
    """Whether the status is new enough, and says of the lag what matters."""
    if status.last_batch is None or status.application_id != progress.application_id:
        return False
    if (status.lag == 0) != progress.caught_up:
        return False
    try:
        ended_ms = datetime.fromisoformat(status.last_batch.ended_at).timestamp() * 1000
    except ValueError:
        return False
    return now_ms - ended_ms < _TOLD_MS

"""Plans Connectors: what to change in Kafka Connect, and their status.

Pure. The state of Connect is observed through its REST API; what it validates as wrong is never put into it.
Invariants: a requested restart is executed once; automatic restarts have a back-off; a deletion waits for
Connect no longer than a deadline, which the reconciler has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ottla_operator.conditions import Finding, iso_time, no, parse_iso_time, yes
from ottla_operator.planning.steps import (
    ChangeConnectorState,
    ChangeOffsets,
    ConnectorStep,
    DeleteConnector,
    PutConnector,
    ResourcePlan,
    RestartConnector,
    RestartTask,
)
from ottla_operator.resources import Connector, ConnectorStatus
from ottla_operator.resources.common import RESTART_ANNOTATION, RESTART_TASK_ANNOTATION, config_texts
from ottla_operator.resources.connect import AutoRestartStatus, ConnectorOffset, TaskStatus, task_of

_TRACE_MAX: Final = 600
_MESSAGE_MAX: Final = 1_500
_OFFSETS_MAX: Final = 500
_FAILED: Final = "FAILED"
_STOPPED: Final = "STOPPED"
_MINUTE_MS: Final = 60_000
_BACK_OFF_MAX_MINUTES: Final = 60


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """A connector of the workers' plugin path."""

    class_name: str
    type: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class TaskState:
    id: int
    state: str
    worker_id: str = ""
    trace: str = ""


@dataclass(frozen=True, slots=True)
class ConnectorState:
    """A connector in Kafka Connect."""

    config: Mapping[str, str] = field(default_factory=dict)
    type: str = ""
    state: str = ""
    """"" while no worker has reported it."""
    worker_id: str = ""
    trace: str = ""
    tasks: Sequence[TaskState] = ()
    topics: Sequence[str] = ()
    offsets: Sequence[Mapping[str, Any]] | None = None
    """Pairs of partition and offset; None when they were not asked for."""

    @property
    def has_failed(self) -> bool:
        return self.state == _FAILED or any(task.state == _FAILED for task in self.tasks)


@dataclass(frozen=True, slots=True)
class ConnectState:
    """What the REST API of the workers says."""

    answers: bool = False
    problem: str = "no worker is ready"
    """Why it does not answer."""
    version: str = ""
    plugins: Sequence[PluginInfo] = ()
    connectors: Mapping[str, ConnectorState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FieldError:
    """A setting that Connect refuses, and why."""

    name: str
    messages: Sequence[str]

    def __str__(self) -> str:
        return f"spec.config[{self.name}]: {' '.join(self.messages)}"


def wanted_config(connector: Connector) -> dict[str, str]:
    """The connector's configuration, as Connect stores it."""
    return {
        **config_texts(connector.spec.config),
        "name": connector.metadata.name,
        "connector.class": connector.spec.class_name,
        "tasks.max": str(connector.spec.tasks_max),
    }


def needs_validation(connector: Connector, connect: ConnectState) -> bool:
    """Whether the configuration is to be put into Connect."""
    live = connect.connectors.get(connector.metadata.name)
    return not connector.metadata.deleting and (live is None or dict(live.config) != wanted_config(connector))


def lists_offsets(connector: Connector) -> bool:
    """Whether the status has the connector's offsets."""
    return connector.spec.list_offsets or connector.spec.state == "stopped"


def plan_without_workers(
    connector: Connector, reason: str, message: str, *, gone: bool
) -> ResourcePlan[ConnectorStatus]:
    """The plan of a Connector whose workers cannot be reached. `gone`: there is no ConnectCluster."""
    return ResourcePlan(
        connector, (no("Ready", reason, message),), connector.status, (), gone and connector.metadata.deleting
    )


def plan_connector(
    connector: Connector, connect: ConnectState, errors: Sequence[FieldError], now_ms: int
) -> ResourcePlan[ConnectorStatus]:
    """The plan of a Connector whose workers answer. `errors`: of the validation, if it was needed."""
    name = connector.metadata.name
    live = connect.connectors.get(name)
    if connector.metadata.deleting:
        step = () if live is None else (DeleteConnector(name),)
        findings = (no("Ready", "Deleting", "the connector is being deleted"),)
        return ResourcePlan(connector, findings, connector.status, step, live is None)
    status = _status(connector, live)
    if errors:
        message = "; ".join(map(str, errors))[:_MESSAGE_MAX]
        return ResourcePlan(connector, (no("Ready", "InvalidConfig", message),), status)
    if needs_validation(connector, connect):
        put = PutConnector(name, wanted_config(connector), connector.spec.state, live is None)
        findings = (no("Ready", "Applying", str(put)),)
        steps: tuple[ConnectorStep, ...] = (put,)
        if live is not None and _state_of(live) != connector.spec.state:
            steps = (*steps, ChangeConnectorState(name, connector.spec.state))
        # A new configuration restarts everything.
        done = status.model_copy(update={"handled_restart": _requested(connector), "auto_restart": None})
        return ResourcePlan(connector, findings, status, steps, status_when_done=done)
    assert live is not None, "one that does not exist has been validated"
    if _state_of(live) != connector.spec.state:
        change = ChangeConnectorState(name, connector.spec.state)
        return ResourcePlan(connector, (no("Ready", "Applying", str(change)),), status, (change,))
    return _of_current(connector, live, status, now_ms)


def _of_current(
    connector: Connector, live: ConnectorState, status: ConnectorStatus, now_ms: int
) -> ResourcePlan[ConnectorStatus]:
    """The plan of a connector whose configuration and state are those of the spec."""
    name, requested = connector.metadata.name, _requested(connector)
    if requested and requested != status.handled_restart and connector.spec.state == "running":
        step = RestartConnector(name, f"{RESTART_ANNOTATION} requests it", only_failed=False)
        done = status.model_copy(update={"handled_restart": requested})
        return ResourcePlan(connector, (_ready(live),), status, (step,), status_when_done=done)
    of_task = connector.metadata.annotations.get(RESTART_TASK_ANNOTATION, "")
    task = None if of_task == status.handled_task_restart else task_of(of_task)
    if task is not None and connector.spec.state == "running":
        done = status.model_copy(update={"handled_task_restart": of_task})
        return ResourcePlan(
            connector, (_ready(live),), status, (RestartTask(name, task),), status_when_done=done
        )
    alter = connector.spec.alter_offsets
    if alter is not None and alter.request_id != status.handled_offsets and live.state == _STOPPED:
        done = status.model_copy(update={"handled_offsets": alter.request_id})
        change = ChangeOffsets(
            name, None if alter.offsets is None else [_pair(each) for each in alter.offsets]
        )
        findings = (no("Ready", "Applying", str(change)),)
        return ResourcePlan(connector, findings, status, (change,), status_when_done=done)
    automatic, is_due = _automatic(connector, live, now_ms)
    status = status.model_copy(update={"auto_restart": automatic if not is_due else status.auto_restart})
    if is_due:
        count = automatic.count if automatic is not None else 1
        step = RestartConnector(name, f"it has failed (automatic restart {count})", only_failed=True)
        done = status.model_copy(update={"auto_restart": automatic})
        return ResourcePlan(connector, (_ready(live),), status, (step,), status_when_done=done)
    return ResourcePlan(connector, (_ready(live),), status)


def _pair(each: ConnectorOffset) -> dict[str, Any]:
    """As the REST API has it: without an offset, null."""
    return {"partition": dict(each.partition), "offset": None if each.offset is None else dict(each.offset)}


def _requested(connector: Connector) -> str:
    return connector.metadata.annotations.get(RESTART_ANNOTATION, "")


def _state_of(live: ConnectorState) -> str:
    """The state that was asked for: a connector that has failed was asked to run."""
    return {"PAUSED": "paused", "STOPPED": "stopped"}.get(live.state, "running")


def back_off_ms(count: int) -> int:
    """The time between an automatic restart and the next one, as with Strimzi: n² + n minutes."""
    return min(count * count + count, _BACK_OFF_MAX_MINUTES) * _MINUTE_MS


def _automatic(
    connector: Connector, live: ConnectorState, now_ms: int
) -> tuple[AutoRestartStatus | None, bool]:
    """(the status of automatic restarts, whether one is due). Restarts in a row are counted until it has run
    for as long as the back-off."""
    wanted, before = connector.spec.auto_restart, connector.status.auto_restart
    if wanted is None or not wanted.enabled:
        return None, False
    since_ms = now_ms - parse_iso_time(before.last_restart) if before is not None else 0
    if not live.has_failed:
        kept = before is not None and since_ms < back_off_ms(before.count)
        return (before if kept else None), False
    count = 0 if before is None else before.count
    if wanted.max_restarts is not None and count >= wanted.max_restarts:
        return before, False
    if before is not None and since_ms < back_off_ms(count):
        return before, False
    return AutoRestartStatus(count=count + 1, last_restart=iso_time(now_ms)), True


def _ready(live: ConnectorState) -> Finding:
    failed = [task for task in live.tasks if task.state == _FAILED]
    if live.state == _FAILED:
        return no("Ready", "ConnectorFailed", _first_line(live.trace))
    if failed:
        first = f"task {failed[0].id}: {_first_line(failed[0].trace)}"
        message = f"{len(failed)} of {len(live.tasks)} tasks have failed; {first}"
        return no("Ready", "TaskFailed", message)
    if live.state in ("PAUSED", "STOPPED"):
        return yes(
            "Ready", live.state.capitalize(), f"the connector is {live.state.lower()}, as spec.state says"
        )
    if live.state != "RUNNING":
        return no("Ready", "NotRunning", f"the connector is {live.state or 'not assigned yet'}")
    waiting = [task for task in live.tasks if task.state != "RUNNING"]
    if waiting:
        return no("Ready", "TasksNotRunning", f"task {waiting[0].id} is {waiting[0].state}")
    if not live.tasks:
        return no("Ready", "TasksNotRunning", "the connector has no tasks yet")
    return yes("Ready", "Running", f"{len(live.tasks)} tasks run")


def _first_line(trace: str) -> str:
    """The first line of a stack trace, and its causes."""
    lines = trace.splitlines()
    causes = [line.strip() for line in lines[1:] if line.startswith("Caused by:")]
    return " ".join(filter(None, (*lines[:1], *causes)))[:_TRACE_MAX]


def _status(connector: Connector, live: ConnectorState | None) -> ConnectorStatus:
    if live is None:
        return connector.status.model_copy(
            update={
                "state": "",
                "tasks": [],
                "tasks_running": 0,
                "worker_id": "",
                "trace": "",
                "offsets": [],
            }
        )
    offsets = [
        ConnectorOffset(partition=each["partition"], offset=each["offset"])
        for each in (live.offsets or ())[:_OFFSETS_MAX]
    ]
    tasks = [
        TaskStatus(id=task.id, state=task.state, worker_id=task.worker_id, trace=task.trace[:_TRACE_MAX])
        for task in live.tasks
    ]
    return connector.status.model_copy(
        update={
            "type": live.type,
            "state": live.state,
            "worker_id": live.worker_id,
            "trace": live.trace[:_TRACE_MAX],
            "tasks": tasks,
            "tasks_running": sum(task.state == "RUNNING" for task in tasks),
            "topics": sorted(live.topics),
            "offsets": offsets,
        }
    )

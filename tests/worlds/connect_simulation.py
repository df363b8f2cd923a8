"""Kafka Connect for the operator's tests: a store in memory, workers that run, and a simulated REST API.

`Connect` reconciles resources over them. The simulated API has one class, `Copy`, which needs `topic`; its
tasks run until a test fails them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ottla_operator.conditions import Condition, find, iso_time
from ottla_operator.planning.connect import WorkerLaunch, WorkerPod, WorkersState
from ottla_operator.planning.connectors import (
    ConnectorState,
    ConnectState,
    FieldError,
    PluginInfo,
    TaskState,
)
from ottla_operator.planning.steps import (
    ChangeConnectorState,
    ChangeOffsets,
    ConnectorStep,
    DeleteConnector,
    PutConnector,
    RestartConnector,
    RestartTask,
)
from ottla_operator.platform.connect import ConnectApi
from ottla_operator.platform.interfaces import Ensured, StepFailed
from ottla_operator.reconcile_connect import ConnectEnvironment, ConnectReconciler
from ottla_operator.resources import AnyResource, BrokerCluster, ConnectCluster, User
from ottla_operator.resources.common import Status
from ottla_operator.resources.loading import parse_resource
from ottla_operator.step_executor import ReconcileResult

CONNECT = {"bootstrapServers": "127.0.0.1:9092"}


@dataclass
class ResourcesInMemory:
    """The `Store`: resources by key."""

    items: dict[str, AnyResource] = field(default_factory=dict)

    def put(self, kind: str, name: str, spec: Mapping[str, Any], **metadata: Any) -> None:
        """Create a resource, or change its spec and metadata."""
        key = f"{kind}/{name}"
        old = self.items.get(key)
        generation = 1 if old is None else old.metadata.generation + 1
        about = {"name": name, "namespace": "shop", "uid": key, "generation": generation, **metadata}
        status = None if old is None else old.status.model_dump(by_alias=True)
        resource, problems = parse_resource(kind, about, dict(spec), status)
        assert resource is not None, problems
        self.items[key] = resource

    def delete(self, key: str, now_ms: int) -> None:
        old = self.items[key]
        metadata = old.metadata.model_copy(update={"deletion_timestamp": iso_time(now_ms)})
        self.items[key] = old.model_copy(update={"metadata": metadata})

    async def resources(self) -> Sequence[AnyResource]:
        return list(self.items.values())

    async def update_status(self, resource: AnyResource, status: Status) -> None:
        self.items[resource.key] = self.items[resource.key].model_copy(update={"status": status})

    async def release(self, resource: AnyResource) -> None:
        del self.items[resource.key]


@dataclass
class RunningWorkers:
    """The `Workers`: as many as the spec wants, at once, on the latest revision."""

    url: str = "http://connect"
    clusters: dict[str, BrokerCluster] = field(default_factory=dict)
    users: dict[str, User] = field(default_factory=dict)
    launch: WorkerLaunch | None = None

    async def cluster(self, name: str) -> BrokerCluster | None:
        return self.clusters.get(name)

    async def user(self, name: str) -> User | None:
        return self.users.get(name)

    async def observe(self, connect: ConnectCluster) -> WorkersState:
        revision = "" if self.launch is None else self.launch.revision
        pods = [WorkerPod(f"worker-{n}", True, revision) for n in range(connect.spec.replicas)]
        return WorkersState(pods if self.launch is not None else (), "a=b", self.url)

    def traits(self, connect: ConnectCluster) -> Mapping[str, str]:
        return {"image": connect.spec.image or "default"}

    async def ensure_children(self, connect: ConnectCluster, launch: WorkerLaunch) -> Ensured:
        changed = self.launch != launch
        self.launch = launch
        return Ensured(steps=["apply"] if changed else [])


@dataclass
class SimulatedConnect:
    """The `ConnectApi`: connectors by name."""

    connectors: dict[str, ConnectorState] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    offsets: dict[str, dict[str, int]] = field(default_factory=dict)
    """By connector and file."""
    reachable: bool = True
    refuses: str = ""
    """The reason with which it refuses every step, as during a rebalance."""

    async def observe(self, url: str, offsets: Collection[str] = ()) -> ConnectState:
        if not self.reachable:
            return ConnectState(problem=f"{url}: refused")
        found = {
            name: replace(live, offsets=self._pairs(name) if name in offsets else None)
            for name, live in self.connectors.items()
        }
        return ConnectState(True, "", "3.9.1", (PluginInfo("Copy", "source", "1"),), found)

    def _pairs(self, name: str) -> list[dict[str, Any]]:
        found = self.offsets.get(name, {})
        return [{"partition": {"file": file}, "offset": {"at": at}} for file, at in sorted(found.items())]

    async def validate(self, url: str, config: Mapping[str, str]) -> list[FieldError]:
        if config["connector.class"] != "Copy":
            return [FieldError("connector.class", ("is not found",))]
        return [] if config.get("topic") else [FieldError("topic", ("is required",))]

    async def execute(self, url: str, step: ConnectorStep) -> None:
        if self.refuses:
            raise StepFailed(self.refuses, "not now")
        self.steps.append(str(step))
        name = step.connector
        match step:
            case PutConnector():
                tasks = [TaskState(n, "RUNNING") for n in range(int(step.config["tasks.max"]))]
                self.connectors[name] = ConnectorState(step.config, "source", "RUNNING", "w", "", tasks)
                if step.is_new and step.state != "running":
                    self._change(name, step.state)
            case ChangeConnectorState():
                self._change(name, step.state)
            case RestartConnector():
                self._change(name, "running")
            case RestartTask():
                tasks = [
                    replace(t, state="RUNNING", trace="") if t.id == step.task else t
                    for t in self.connectors[name].tasks
                ]
                self.connectors[name] = replace(self.connectors[name], tasks=tasks)
            case ChangeOffsets():
                assert self.connectors[name].state == "STOPPED", "Connect refuses it"
                if step.offsets is None:
                    self.offsets[name] = {}
                for each in step.offsets or ():
                    if each["offset"] is None:
                        self.offsets[name].pop(each["partition"]["file"], None)
                    else:
                        self.offsets[name][each["partition"]["file"]] = each["offset"]["at"]
            case DeleteConnector():
                self.connectors.pop(name, None)

    def _change(self, name: str, state: str) -> None:
        text = {"running": "RUNNING", "paused": "PAUSED", "stopped": "STOPPED"}[state]
        live = self.connectors[name]
        count = 0 if state == "stopped" else int(live.config["tasks.max"])
        tasks = [TaskState(n, text) for n in range(count)]
        self.connectors[name] = replace(live, state=text, tasks=tasks)

    def fail_task(self, name: str, trace: str) -> None:
        live = self.connectors[name]
        tasks = [TaskState(0, "FAILED", "w", trace), *live.tasks[1:]]
        self.connectors[name] = replace(live, tasks=tasks)


class Connect:
    """A ConnectCluster `main` and its Connectors, reconciled in virtual time."""

    def __init__(self, api: ConnectApi, workers: RunningWorkers | None = None) -> None:
        self.now_ms = 1_700_000_000_000
        self.store = ResourcesInMemory()
        self.workers = workers or RunningWorkers()
        self._reconciler = ConnectReconciler(
            ConnectEnvironment(self.store, self.workers, api, lambda: self.now_ms)
        )

    async def reconcile(self, times: int = 1, seconds: int = 1) -> ReconcileResult:
        for _ in range(times):
            result = await self._reconciler.reconcile()
            self.now_ms += 1000 * seconds
        return result

    def run(self, times: int = 3, seconds: int = 1) -> ReconcileResult:
        return asyncio.run(self.reconcile(times, seconds))

    def ready(self, key: str) -> Condition:
        found = find(self.store.items[key].status.conditions, "Ready")
        assert found is not None
        return found

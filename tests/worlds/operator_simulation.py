"""The operator over a simulated cluster in virtual time, with fake resources, Secrets and drivers.

The cluster is the model of `ottla_operator.rehearsal`. Invariant violations of the operator are collected in
`SimulatedCluster.violations`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ottla_operator.conditions import find
from ottla_operator.planning.observed import DriverInstance, JobProgress, Secret
from ottla_operator.planning.pipeline_config import DriverLaunch
from ottla_operator.platform.interfaces import Backups, Ensured, Environment, Loads, Recoveries
from ottla_operator.reconcile import Reconciler, is_ready
from ottla_operator.rehearsal.model import SimulatedCluster, SimulatedKafka
from ottla_operator.resources import AnyResource, Pipeline
from ottla_operator.resources.common import Status
from ottla_operator.resources.loading import parse_resource

__all__ = ["FakeDrivers", "FakeSecrets", "FakeStore", "OperatorSimulation", "SimulatedCluster"]


class FakeDrivers:
    """The Drivers interface. Drivers start and stop at once; with `stops_slowly`, they stay in Stopping."""

    def __init__(self) -> None:
        self.running: dict[str, DriverInstance] = {}
        self.launches: dict[str, DriverLaunch] = {}
        self.log: list[str] = []
        self.image = "one"
        self.stops_slowly = False

    def traits(self, pipeline: Pipeline) -> Mapping[str, str]:
        return {"image": self.image}

    async def observe(self, pipelines: Iterable[Pipeline]) -> Mapping[str, DriverInstance]:
        return {p.key: self.running[p.key] for p in pipelines if p.key in self.running}

    async def ensure_children(self, pipeline: Pipeline, launch: DriverLaunch) -> Ensured:
        return Ensured()

    async def start(self, pipeline: Pipeline, launch: DriverLaunch) -> None:
        known = self.running.get(pipeline.key)
        assert known is None or known.state in ("Stopped", "Crashed"), f"a driver runs already: {known}"
        self.log.append(f"start {launch.revision}")
        self.launches[pipeline.key] = launch
        progress = JobProgress("app-1", 0, True)
        self.running[pipeline.key] = DriverInstance(
            "Running", "driver", launch.revision, exit_code=known.exit_code if known else None,
            message=known.message if known else "", progress=progress,
        )  # fmt: skip

    async def stop(self, pipeline: Pipeline, after: DriverLaunch | None) -> None:
        self.log.append("stop" if after is None else "stop to restart")
        now = self.running[pipeline.key]
        if self.stops_slowly:
            self.running[pipeline.key] = replace(now, state="Stopping", progress=None)
        else:
            del self.running[pipeline.key]

    async def remove(self, pipeline: Pipeline) -> None:
        self.log.append("remove")
        self.running.pop(pipeline.key, None)


class FakeSecrets:
    """The Secrets interface in memory."""

    def __init__(self) -> None:
        self.stored: dict[str, Secret] = {}
        self._versions = itertools.count(1)

    def write(self, name: str, data: Mapping[str, bytes], owner: str = "") -> None:
        self.stored[name] = Secret(name, dict(data), owner, str(next(self._versions)))

    async def read(self, names: Collection[str]) -> Mapping[str, Secret]:
        return {name: secret for name, secret in self.stored.items() if name in names}

    async def put(self, owner: AnyResource, name: str, data: Mapping[str, bytes]) -> None:
        known = self.stored.get(name)
        assert known is None or known.owner == owner.key, f"{name} is of {known}"
        self.write(name, data, owner.key)

    async def delete(self, owner: AnyResource, name: str) -> None:
        assert self.stored[name].owner == owner.key
        del self.stored[name]

    async def release(self, owner: AnyResource) -> None:
        self.stored = {name: secret for name, secret in self.stored.items() if secret.owner != owner.key}


class FakeStore:
    """The Store interface in memory, with generations as the API server counts them."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self.stored: dict[str, AnyResource] = {}
        self._ages = itertools.count(1)

    def apply(self, kind: str, name: str, spec: Mapping[str, object], **annotations: str) -> None:
        key = f"{kind}/{name}"
        old = self.stored.get(key)
        metadata = {
            "name": name,
            "uid": key,
            "generation": old.metadata.generation + 1 if old else 1,
            "creationTimestamp": old.metadata.creation_timestamp
            if old
            else f"2024-01-01T00:{next(self._ages):02}:00Z",
            "annotations": {f"ottla.dev/{n.replace('_', '-')}": value for n, value in annotations.items()},
        }
        status = old.status.model_dump(by_alias=True, exclude_none=True) if old else None
        resource, problems = parse_resource(kind, metadata, spec, status)
        assert resource is not None, problems
        self.stored[key] = resource

    def delete(self, key: str) -> None:
        resource = self.stored[key]
        metadata = resource.metadata.model_copy(update={"deletion_timestamp": "2024-02-01T00:00:00Z"})
        self.stored[key] = resource.model_copy(update={"metadata": metadata})

    async def resources(self) -> Sequence[AnyResource]:
        return list(self.stored.values())

    def withheld(self) -> Sequence[str]:
        return ()

    async def update_status(self, resource: AnyResource, status: Status) -> None:
        self.stored[resource.key] = self.stored[resource.key].model_copy(update={"status": status})

    async def release(self, resource: AnyResource) -> None:
        del self.stored[resource.key]


class OperatorSimulation:
    """A simulated cluster with its resources. Each reconciliation has a new Reconciler, without any state."""

    def __init__(self, cluster: SimulatedCluster | None = None) -> None:
        self.cluster = cluster or SimulatedCluster()
        self.store = FakeStore(self.cluster)
        self.secrets = FakeSecrets()
        self.drivers = FakeDrivers()
        self.loads: Loads | None = None
        self.backups: Backups | None = None
        self.recoveries: Recoveries | None = None

    def apply(self, kind: str, name: str, spec: Mapping[str, object], **annotations: str) -> None:
        self.store.apply(kind, name, spec, **annotations)

    def apply_cluster(
        self, replicas: int = 3, *, config: Mapping[str, str] | None = None, **spec: object
    ) -> None:
        self.apply("BrokerCluster", "demo", {"replicas": replicas, "config": dict(config or {}), **spec})

    def apply_topic(self, name: str, *, partitions: int = 4, replicas: int = 3, **spec: object) -> None:
        self.apply(
            "Topic",
            name,
            {"clusterRef": {"name": "demo"}, "partitions": partitions, "replicas": replicas, **spec},
        )

    def apply_pool(self, name: str, replicas: int, **spec: object) -> None:
        self.apply("BrokerPool", name, {"clusterRef": {"name": "demo"}, "replicas": replicas, **spec})

    def reconcile(self, ms: int = 500) -> list[str]:
        """Reconcile once, then let time pass. Returns the steps."""
        reconciler = Reconciler(
            Environment(
                self.cluster,
                SimulatedKafka(self.cluster),
                self.store,
                self.secrets,
                self.drivers,
                lambda: self.cluster.now_ms,
                loads=self.loads,
                backups=self.backups,
                recoveries=self.recoveries,
            )
        )
        result = asyncio.run(reconciler.reconcile())
        self.cluster.advance(ms)
        return result.steps

    def reconcile_until_ready(self, reconciles_max: int = 400) -> None:
        """Reconcile until all resources are Ready, or none is left."""
        for _ in range(reconciles_max):
            self.reconcile()
            if all(is_ready(resource) for resource in self.store.stored.values()):
                return
        raise AssertionError("not converged: " + "; ".join(self.describe_conditions()))

    def reconcile_until(self, condition: Callable[[], bool], reconciles_max: int = 200) -> None:
        for _ in range(reconciles_max):
            if condition():
                return
            self.reconcile()
        raise AssertionError("the condition did not become true: " + "; ".join(self.describe_conditions()))

    def describe_conditions(self) -> list[str]:
        return [f"{key}: {self.condition(key)}" for key in self.store.stored]

    def condition(self, key: str, type_: str = "Ready") -> tuple[str, str, str]:
        condition = find(self.store.stored[key].status.conditions, type_)
        assert condition is not None, f"{key} has no condition {type_}"
        return condition.status, condition.reason, condition.message

    def status(self, key: str = "BrokerCluster/demo") -> Status:
        return self.store.stored[key].status

"""One reconciliation of a ConnectCluster and its Connectors: observe, plan, execute, write the statuses.

Called by the controller on Kubernetes, apart from the reconciliation of the BrokerCluster: workers that do
not answer never hold up brokers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ottla_operator.conditions import no, parse_iso_time
from ottla_operator.planning.connect import WorkerLaunch, WorkersState, launch_of_workers, plan_connect
from ottla_operator.planning.connectors import (
    ConnectState,
    lists_offsets,
    needs_validation,
    plan_connector,
    plan_without_workers,
    wanted_config,
)
from ottla_operator.planning.pipeline_config import LaunchRefused
from ottla_operator.planning.steps import ConnectorStep, ResourcePlan, Step
from ottla_operator.platform.connect import ConnectApi
from ottla_operator.platform.interfaces import Ensured, Recorder, StepFailed, Store
from ottla_operator.resources import BrokerCluster, ConnectCluster, Connector, ConnectorStatus, User
from ottla_operator.resources.common import Status
from ottla_operator.step_executor import ReconcileResult, StepRunner

log = logging.getLogger(__name__)

# After this time, a deleted Connector whose workers cannot be reached loses its finalizer.
_DELETION_DEADLINE_MS = 60_000
_CONCURRENT_CONNECTORS = 8


class Workers(Protocol):
    """Runs the workers of a ConnectCluster. Methods raise StepFailed."""

    async def cluster(self, name: str) -> BrokerCluster | None: ...

    async def user(self, name: str) -> User | None: ...

    async def observe(self, connect: ConnectCluster) -> WorkersState: ...

    def traits(self, connect: ConnectCluster) -> Mapping[str, str]:
        """What workers consist of on this platform besides their settings, such as the image."""
        ...

    async def ensure_children(self, connect: ConnectCluster, launch: WorkerLaunch) -> Ensured:
        """Create and repair all objects of the workers, which restarts those of another revision."""
        ...


@dataclass(frozen=True, slots=True)
class ConnectEnvironment:
    """Everything outside of the reconciler that it reaches."""

    store: Store
    workers: Workers
    api: ConnectApi
    clock_ms: Callable[[], int]
    recorder: Recorder | None = None


class ConnectReconciler:
    """Reconciles one ConnectCluster and the Connectors that refer to it."""

    def __init__(self, environment: ConnectEnvironment) -> None:
        self._store = environment.store
        self._workers = environment.workers
        self._api = environment.api
        self._clock_ms = environment.clock_ms
        self._runner = StepRunner(environment.store, environment.clock_ms, environment.recorder)

    async def reconcile(self) -> ReconcileResult:
        """Reconcile all resources of the store once."""
        resources = await self._store.resources()
        result = ReconcileResult()
        connectors = [each for each in resources if isinstance(each, Connector)]
        connect = next((each for each in resources if isinstance(each, ConnectCluster)), None)
        if connect is None or connect.metadata.deleting:
            for connector in connectors:
                message = f"ConnectCluster {connector.spec.connect_ref.name} does not exist"
                planned = plan_without_workers(connector, "ConnectNotFound", message, gone=True)
                await self._finish(planned, result)
            return result
        try:
            listed = [each.metadata.name for each in connectors if lists_offsets(each)]
            state, url = await self._reconcile_workers(connect, listed, result)
        except StepFailed as failure:
            findings = (no("Ready", failure.reason, failure.message),)
            await self._runner.finish(ResourcePlan(connect, findings, connect.status), [], result)
            state, url = ConnectState(problem=failure.message), ""
        limit = asyncio.Semaphore(_CONCURRENT_CONNECTORS)

        async def reconcile_one(connector: Connector) -> None:
            async with limit:
                await self._reconcile_connector(connector, state, url, result)

        await asyncio.gather(*(reconcile_one(connector) for connector in connectors))
        return result

    async def _reconcile_workers(
        self, connect: ConnectCluster, listed: Sequence[str], result: ReconcileResult
    ) -> tuple[ConnectState, str]:
        """Returns what the workers say, and their URL. `listed`: connectors whose offsets are wanted."""
        workers = await self._workers.observe(connect)
        launch = await self._launch(connect)
        ensured = Ensured()
        if connect.metadata.acted_upon and isinstance(launch, WorkerLaunch):
            try:
                ensured = await self._workers.ensure_children(connect, launch)
            except StepFailed as failure:
                ensured = Ensured(failures=[failure])
            result.steps += ensured.steps
            for step in ensured.steps:
                self._runner.record(connect, "Applied", step)
        state = await self._api.observe(workers.url, listed) if workers.ready else ConnectState()
        planned = plan_connect(connect, launch, workers, state)
        planned = replace(planned, findings=(*planned.findings, *ensured.findings))
        await self._runner.finish(planned, ensured.failures, result)
        return state, workers.url

    async def _launch(self, connect: ConnectCluster) -> WorkerLaunch | LaunchRefused:
        spec = connect.spec
        cluster = None if spec.cluster_ref is None else await self._workers.cluster(spec.cluster_ref.name)
        user = None if spec.user is None else await self._workers.user(spec.user)
        return launch_of_workers(connect, cluster, user, self._workers.traits(connect))

    async def _reconcile_connector(
        self, connector: Connector, state: ConnectState, url: str, result: ReconcileResult
    ) -> None:
        if not state.answers:
            message = f"the workers do not answer: {state.problem}"
            await self._finish(
                plan_without_workers(connector, "ConnectNotReady", message, gone=False), result
            )
            return
        try:
            errors = (
                await self._api.validate(url, wanted_config(connector))
                if needs_validation(connector, state)
                else []
            )
        except StepFailed as failure:
            findings = (no("Ready", failure.reason, failure.message),)
            await self._finish(ResourcePlan(connector, findings, connector.status), result)
            return
        planned = plan_connector(connector, state, errors, self._clock_ms())
        failures: Sequence[StepFailed] = ()
        if connector.metadata.acted_upon:

            async def run_step(step: Step) -> None:
                assert isinstance(step, ConnectorStep), f"{step} is not a step of a Connector"
                await self._api.execute(url, step)

            failures = await self._runner.execute_all(planned, run_step, result)
            if planned.status_when_done is not None and not failures:
                planned = replace(planned, status=planned.status_when_done)
        await self._finish(planned, result, failures)

    async def _finish(
        self,
        planned: ResourcePlan[ConnectorStatus],
        result: ReconcileResult,
        failures: Sequence[StepFailed] = (),
    ) -> None:
        deleted_at = planned.resource.metadata.deletion_timestamp
        overdue = (
            deleted_at is not None and self._clock_ms() - parse_iso_time(deleted_at) >= _DELETION_DEADLINE_MS
        )
        if overdue and not planned.deletion_complete:
            message = "released without a deletion in Kafka Connect: the workers do not do it"
            self._runner.record(planned.resource, "Released", message, warning=True)
            planned = replace(planned, deletion_complete=True)
        plan: ResourcePlan[Status] = planned
        await self._runner.finish(plan, failures, result)

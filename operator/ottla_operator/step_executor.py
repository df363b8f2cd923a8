"""Executes the planned steps, and writes the results into statuses and Events.

Called by `reconcile`, resource by resource. A failed step becomes a condition of its resource; the steps that
follow it are still executed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from ottla_operator.conditions import Condition, Finding, find, is_true, merge, no, yes
from ottla_operator.planning.certificates import RandomBytes, Subject, issue, new_password, pkcs12
from ottla_operator.planning.observed import Observed
from ottla_operator.planning.pipeline_config import DriverLaunch
from ottla_operator.planning.revision import PerBroker, Revision
from ottla_operator.planning.steps import (
    ChangeConnectorState,
    ChangeOffsets,
    DeleteConnector,
    DeleteSecret,
    EnsureZooKeeper,
    PutCertificate,
    PutConnector,
    PutPassword,
    RemoveBroker,
    ReplaceBroker,
    ResourcePlan,
    RestartConnector,
    RestartTask,
    StartBroker,
    StartDriver,
    Step,
    StopBroker,
    StopDriver,
    StopZooKeeper,
)
from ottla_operator.planning.users import jaas_config
from ottla_operator.platform.interfaces import BrokerLaunch, Ensured, Environment, Recorder, StepFailed, Store
from ottla_operator.resources import (
    AnyResource,
    BrokerCluster,
    BrokerClusterStatus,
    ConsumerGroup,
    ConsumerGroupStatus,
    Pipeline,
)
from ottla_operator.resources.common import Status
from ottla_operator.resources.loading import invalid_finding

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Status)

_WARNINGS_MAX: Final = 50

# Reasons of Ready that a reconciliation replaces also when it cannot observe the cluster.
_PROVISIONAL: Final = ("Pending", "InvalidSpec", "NotWatched")


@dataclass(slots=True)
class ReconcileResult:
    """What one reconciliation did and found."""

    steps: list[str] = field(default_factory=list)
    observed: Observed | None = None

    cluster: BrokerClusterStatus | None = None
    """The BrokerCluster's new status."""
    unready: list[str] = field(default_factory=list)
    """The kinds of the resources that are not Ready, one entry for each resource."""
    failures: list[str] = field(default_factory=list)
    """The reasons of failed steps."""
    group_lags: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    """By the id of each observed consumer group: its lag, and spec.maxLag."""
    converged: bool = True
    """All resources are Ready: nothing is expected to change without an event."""
    due_ms: int | None = None
    """When something changes without an event: a maintenance window begins."""

    @property
    def idle(self) -> bool:
        """Whether no step was executed."""
        return not self.steps


class StepRunner:
    """Executes the steps of a plan and writes its status, for resources of all kinds."""

    def __init__(self, store: Store, clock_ms: Callable[[], int], recorder: Recorder | None) -> None:
        self._store = store
        self._clock_ms = clock_ms
        self._recorder = recorder

    def record(self, resource: AnyResource, reason: str, message: str, *, warning: bool = False) -> None:
        """Record an Event about a resource."""
        if self._recorder is not None:
            self._recorder.record(resource, reason, message, warning=warning)

    async def execute_all(
        self,
        planned: ResourcePlan[Status],
        run_step: Callable[[Step], Awaitable[None]],
        result: ReconcileResult,
    ) -> list[StepFailed]:
        """Execute a resource's steps in order. A failed step does not stop the ones after it."""
        failures = []
        for step in planned.steps:
            try:
                await run_step(step)
                self.record(planned.resource, type(step).__name__, str(step))
            except StepFailed as failure:
                failures.append(failure)
                self.record(planned.resource, failure.reason, failure.message, warning=True)
            except Exception as error:
                # A bug in the operator. It must not affect the other resources.
                log.exception("%s failed", step)
                failures.append(StepFailed("InternalError", f"{step}: {error!r}"))
            result.steps.append(str(step))
        return failures

    async def finish(
        self, planned: ResourcePlan[Status], failures: Sequence[StepFailed], result: ReconcileResult
    ) -> None:
        """Write the status, or remove the finalizer of a resource whose deletion is complete."""
        resource = planned.resource
        if planned.deletion_complete and resource.metadata.deleting:
            await self._store.release(resource)
            result.steps.append(f"{resource.key} is deleted")
            return
        ready = find(resource.status.conditions, "Ready")
        current = ready is not None and ready.observed_generation == resource.metadata.generation
        kept = current and ready is not None and ready.reason not in _PROVISIONAL
        if planned.keep_status and kept and not resource.refused:
            result.converged = False
            result.unready.append(resource.kind)
            return
        findings = list(planned.findings)
        result.failures += [failure.reason for failure in failures]
        if failures:
            message = "; ".join(failure.message for failure in failures)
            findings = [f for f in findings if f.type != "Ready"]
            findings.insert(0, no("Ready", failures[0].reason, message))
        metadata = resource.metadata
        observed_generation = metadata.generation
        if not metadata.acted_upon:
            why = "Paused" if metadata.paused else "Unmanaged"
            findings = [_as_paused(finding, why, planned.steps) for finding in findings]
            findings.append(
                yes(
                    "ReconciliationPaused",
                    why,
                    "an annotation of the resource pauses reconciliation; it is only observed",
                )
            )
            observed_generation = resource.status.observed_generation
        in_force = next((f for f in findings if f.type == "Ready"), None)
        if in_force is not None and in_force.status != "True":
            result.converged = False
        if resource.refused:
            findings = [f for f in findings if f.type != "Ready"]
            findings.insert(0, invalid_finding(resource.refused, in_force))
        warnings = [*resource.notes(), *planned.warnings][:_WARNINGS_MAX]
        status = with_conditions(
            planned.status.model_copy(update={"warnings": warnings}),
            merge(
                resource.status.conditions,
                findings,
                generation=observed_generation,
                now_ms=self._clock_ms(),
            ),
            observed_generation,
        )
        if not is_true(status.conditions, "Ready"):
            result.unready.append(resource.kind)
        catching_up = find(status.conditions, "CaughtUp")
        if catching_up is not None and catching_up.status == "False":
            # Users follow the lag in the status.
            result.converged = False
        if isinstance(status, BrokerClusterStatus):
            result.cluster = status
            if is_true(status.conditions, "Rolling") or is_true(status.conditions, "Scaling"):
                # ZooKeeper servers may roll, and replicas move by load, while the cluster is Ready; their
                # progress causes no event.
                result.converged = False
        within_limit = find(status.conditions, "LagWithinLimit")
        is_observed = within_limit is not None and within_limit.status != "Unknown"
        if isinstance(resource, ConsumerGroup) and isinstance(status, ConsumerGroupStatus) and is_observed:
            result.group_lags[resource.group_id] = (status.total_lag, resource.spec.max_lag)
        if status != resource.status:
            await self._store.update_status(resource, status)


class StepExecutor:
    """Executes the plans of one reconciliation through the interfaces of `platform.interfaces`."""

    def __init__(self, environment: Environment) -> None:
        self._drivers = environment.drivers
        self._platform = environment.platform
        self._kafka = environment.kafka
        self._secrets = environment.secrets
        self._clock_ms = environment.clock_ms
        self._random_bytes = environment.random_bytes
        self._runner = StepRunner(environment.store, environment.clock_ms, environment.recorder)

    async def execute(
        self,
        planned: ResourcePlan[Status],
        cluster: BrokerCluster,
        targets: PerBroker[Revision],
        result: ReconcileResult,
        ensured: Ensured,
    ) -> None:
        """Execute a resource's steps and write its status. `ensured`: the result of its `ensure_children`."""
        metadata, failures = planned.resource.metadata, ensured.failures
        planned = replace(planned, findings=(*planned.findings, *ensured.findings))
        if metadata.acted_upon:

            async def run_step(step: Step) -> None:
                await self._execute_step(planned.resource, step, cluster, targets)

            failures = failures + await self._runner.execute_all(planned, run_step, result)
            if planned.status_when_done is not None and not failures:
                planned = replace(planned, status=planned.status_when_done)
        await self.finish(planned, failures, result)

    async def execute_driver_steps(
        self, planned: ResourcePlan[Status], pipeline: Pipeline, result: ReconcileResult
    ) -> None:
        """Execute a Pipeline's steps and write its status; this works without a cluster."""
        metadata, failures = pipeline.metadata, list[StepFailed]()
        if metadata.acted_upon:
            if planned.launch is not None and not any(isinstance(s, StartDriver) for s in planned.steps):
                ensured = await self._ensure_driver_children(pipeline, planned.launch, result)
                failures = ensured.failures
                planned = replace(planned, findings=(*planned.findings, *ensured.findings))

            async def run_step(step: Step) -> None:
                match step:
                    case StartDriver():
                        assert planned.launch is not None, "a driver is started with a launch configuration"
                        await self._drivers.start(pipeline, planned.launch)
                    case StopDriver():
                        await self._drivers.stop(pipeline, planned.launch if step.again else None)
                    case _:
                        raise AssertionError(f"{step} is not a step of a driver")

            if not failures:
                failures = await self._runner.execute_all(planned, run_step, result)
        await self.finish(planned, failures, result)

    async def _ensure_driver_children(
        self, pipeline: Pipeline, launch: DriverLaunch, result: ReconcileResult
    ) -> Ensured:
        try:
            ensured = await self._drivers.ensure_children(pipeline, launch)
        except StepFailed as failure:
            ensured = Ensured(failures=[failure])
        self._record_ensured(pipeline, "Kept", ensured, result)
        return ensured

    async def ensure_children(
        self,
        cluster: BrokerCluster,
        targets: PerBroker[Revision],
        observed: Observed,
        result: ReconcileResult,
        *,
        hold_servers: bool = False,
    ) -> Ensured:
        """Create and repair the objects around the brokers, unless the resource is paused, unmanaged or
        deleted."""
        metadata = cluster.metadata
        if metadata.deleting or not metadata.acted_upon:
            return Ensured()
        lagging = any(partition.under_replicated for partition in observed.kafka.partitions())
        try:
            ensured = await self._platform.ensure_children(
                cluster, launches_of(targets), under_replicated=lagging, hold_servers=hold_servers
            )
        except StepFailed as failure:
            ensured = Ensured(failures=[failure])
        self._record_ensured(cluster, "Applied", ensured, result)
        return ensured

    def _record_ensured(
        self, resource: BrokerCluster | Pipeline, reason: str, ensured: Ensured, result: ReconcileResult
    ) -> None:
        """Record Events: for each change, each failure, and each finding with a new message."""
        result.steps += ensured.steps
        for what in ensured.steps:
            self.record(resource, reason, what)
        for failure in ensured.failures:
            self.record(resource, failure.reason, failure.message, warning=True)
        for finding in ensured.findings:
            known = find(resource.status.conditions, finding.type)
            if known is None or known.message != finding.message:
                self.record(resource, finding.reason, finding.message, warning=True)

    def record(self, resource: AnyResource, reason: str, message: str, *, warning: bool = False) -> None:
        """Record an Event about a resource."""
        self._runner.record(resource, reason, message, warning=warning)

    async def _execute_step(
        self, resource: AnyResource, step: Step, cluster: BrokerCluster, targets: PerBroker[Revision]
    ) -> None:
        match step:
            case EnsureZooKeeper():
                await self._platform.ensure_zookeeper(cluster)
            case StopZooKeeper():
                await self._platform.stop_zookeeper(cluster)
            case StartBroker():
                launch = launch_of(targets.of(step.broker)) if step.on_target else None
                await self._platform.start_broker(cluster, step.broker, launch)
            case StopBroker():
                after = launch_of(targets.of(step.broker)) if step.bounce else None
                await self._platform.stop_broker(cluster, step.broker, after)
            case ReplaceBroker():
                await self._platform.replace_broker(cluster, step.broker)
            case RemoveBroker():
                await self._platform.remove_broker(cluster, step.broker, delete_volume=step.delete_volume)
            case PutPassword():
                await self._secrets.put(resource, step.secret, _password_data(step, self._random_bytes))
            case PutCertificate():
                data = _certificate_data(step, self._clock_ms(), self._random_bytes)
                await self._secrets.put(resource, step.secret, data)
            case DeleteSecret():
                await self._secrets.delete(resource, step.secret)
            case StartDriver() | StopDriver():
                raise AssertionError(f"{step} belongs to a Pipeline")
            case (
                PutConnector()
                | ChangeConnectorState()
                | RestartConnector()
                | RestartTask()
                | ChangeOffsets()
                | DeleteConnector()
            ):
                raise AssertionError(f"{step} belongs to a Connector")
            case _:
                await self._kafka.execute(step)

    async def finish(
        self, planned: ResourcePlan[Status], failures: Sequence[StepFailed], result: ReconcileResult
    ) -> None:
        """Write the status, or remove the finalizer of a resource whose deletion is complete."""
        resource = planned.resource
        if planned.deletion_complete and resource.metadata.deleting:
            await self._secrets.release(resource)
            if isinstance(resource, Pipeline):
                await self._drivers.remove(resource)
        await self._runner.finish(planned, failures, result)


def launch_of(target: Revision) -> BrokerLaunch:
    """The launch configuration of a revision."""
    return BrokerLaunch(target.hash, target.described, target.properties)


def launches_of(targets: PerBroker[Revision]) -> PerBroker[BrokerLaunch]:
    """The launch configuration of each broker's revision."""
    of_pools = {broker: launch_of(target) for broker, target in targets.of_pools.items()}
    return PerBroker(launch_of(targets.default), of_pools)


def with_conditions(status: S, conditions: list[Condition], generation: int) -> S:
    """The status with these conditions for this generation."""
    return status.model_copy(update={"conditions": conditions, "observed_generation": generation})


def _as_paused(finding: Finding, why: str, steps: Sequence[Step]) -> Finding:
    """The finding without the claim that the planned steps are being executed."""
    if finding.type != "Ready" or finding.status == "True" or not steps:
        return finding
    due = ", ".join(str(step) for step in steps)
    return no(
        "Ready", why, f"not executed, because an annotation of the resource pauses reconciliation: {due}"
    )


# ---- Secrets of Users, with the entry names of Strimzi


def _password_data(step: PutPassword, random_bytes: RandomBytes) -> Mapping[str, bytes]:
    password = step.password or new_password(random_bytes)
    return {
        "password": password.encode(),
        "sasl.jaas.config": jaas_config(step.user, password).encode(),
    }


def _certificate_data(step: PutCertificate, now_ms: int, random_bytes: RandomBytes) -> Mapping[str, bytes]:
    pair = issue(step.authority, Subject(step.user), step.lifetime, now_ms, random_bytes)
    password = new_password(random_bytes)
    return {
        "ca.crt": step.authority.certificate,
        "user.crt": pair.certificate,
        "user.key": pair.key,
        "user.p12": pkcs12(pair, step.authority.certificate, password),
        "user.password": password.encode(),
    }

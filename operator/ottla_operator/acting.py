"""Taking the steps that were planned, and writing what became of them into statuses and Events.

Called by `reconcile`, resource by resource. A step that fails becomes a condition of its resource and keeps
no other from being tried.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ottla_operator.conditions import Condition, Finding, find, is_true, merge, no, yes
from ottla_operator.planning.observed import Observed
from ottla_operator.planning.pipeline_config import DriverLaunch
from ottla_operator.planning.revision import Revision
from ottla_operator.planning.steps import (
    DeleteSecret,
    EnsureZooKeeper,
    PutCertificate,
    PutPassword,
    RemoveBroker,
    ReplaceBroker,
    StartBroker,
    StartDriver,
    Step,
    StopBroker,
    StopDriver,
    StopZooKeeper,
)
from ottla_operator.platform.credentials import take_secret_step
from ottla_operator.platform.port import (
    Drivers,
    Kafka,
    Launch,
    Platform,
    Recorder,
    Secrets,
    StepFailed,
    Store,
)
from ottla_operator.resources import AnyResource, BrokerCluster, BrokerClusterStatus, Pipeline
from ottla_operator.resources.common import Status

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Status)


@dataclass(frozen=True, slots=True)
class Planned:
    """What one resource's planner said."""

    resource: AnyResource
    findings: Sequence[Finding]
    status: Status
    steps: Sequence[Step] = ()
    done: bool = False
    keep: bool = False
    """What the status says stays, unless the spec changed since or nothing was ever said."""
    once_done: Status | None = None
    """The status in its place when all steps could be taken."""
    launch: DriverLaunch | None = None
    """Of a Pipeline: what its driver is to run with."""


@dataclass(slots=True)
class Pass:
    """What a pass did."""

    steps: list[str] = field(default_factory=list)
    observed: Observed | None = None

    cluster: BrokerClusterStatus | None = None
    """What the BrokerCluster's status says now."""
    unready: list[str] = field(default_factory=list)
    """The kinds of the resources that are not Ready, one for each."""
    failures: list[str] = field(default_factory=list)
    """The reasons of steps that could not be taken."""
    settled: bool = True
    """All resources are Ready: nothing is expected to change by itself."""

    @property
    def idle(self) -> bool:
        return not self.steps


class Actor:
    """Does what a pass has planned, through the ports."""

    def __init__(
        self,
        platform: Platform,
        kafka: Kafka,
        secrets: Secrets,
        store: Store,
        clock_ms: Callable[[], int],
        recorder: Recorder | None,
        drivers: Drivers,
    ) -> None:
        self._drivers = drivers
        self._platform = platform
        self._kafka = kafka
        self._secrets = secrets
        self._store = store
        self._clock_ms = clock_ms
        self._recorder = recorder

    async def act(
        self,
        planned: Planned,
        cluster: BrokerCluster,
        target: Revision,
        result: Pass,
        failures: list[StepFailed],
    ) -> None:
        """Take a resource's steps and write its status; `failures`: of what was tried for it before."""
        metadata = planned.resource.metadata
        if metadata.acted_upon:

            async def take(step: Step) -> None:
                await self._take(planned.resource, step, cluster, target)

            failures = failures + await self._take_all(planned, take, result)
            if planned.once_done is not None and not failures:
                planned = replace(planned, status=planned.once_done)
        await self.finish(planned, failures, result)

    async def act_on_driver(self, planned: Planned, pipeline: Pipeline, result: Pass) -> None:
        """The same of a Pipeline, which needs no cluster for it."""
        metadata, failures = pipeline.metadata, list[StepFailed]()
        if metadata.acted_upon:
            if planned.launch is not None and not any(isinstance(s, StartDriver) for s in planned.steps):
                failures = await self._keep_driver(pipeline, planned.launch, result)

            async def take(step: Step) -> None:
                match step:
                    case StartDriver():
                        assert planned.launch is not None, "a driver is started with something"
                        await self._drivers.start(pipeline, planned.launch)
                    case StopDriver():
                        await self._drivers.stop(pipeline, planned.launch if step.again else None)
                    case _:
                        raise AssertionError(f"{step} is none of a driver's")

            if not failures:
                failures = await self._take_all(planned, take, result)
        await self.finish(planned, failures, result)

    async def _keep_driver(self, pipeline: Pipeline, launch: DriverLaunch, result: Pass) -> list[StepFailed]:
        try:
            done = await self._drivers.keep(pipeline, launch)
        except StepFailed as failure:
            self.record(pipeline, failure.reason, failure.message, warning=True)
            return [failure]
        result.steps += done
        for what in done:
            self.record(pipeline, "Kept", what)
        return []

    async def keep(
        self, cluster: BrokerCluster, target: Revision, observed: Observed, result: Pass
    ) -> list[StepFailed]:
        """Put right what surrounds the brokers, unless we are to keep our hands off."""
        metadata = cluster.metadata
        if metadata.deleting or not metadata.acted_upon:
            return []
        lagging = any(partition.under_replicated for partition in observed.kafka.partitions())
        try:
            done = await self._platform.keep(cluster, launch_of(target), under_replicated=lagging)
        except StepFailed as failure:
            self.record(cluster, failure.reason, failure.message, warning=True)
            return [failure]
        result.steps += done
        for what in done:
            self.record(cluster, "Applied", what)
        return []

    def record(self, resource: AnyResource, reason: str, message: str, *, warning: bool = False) -> None:
        if self._recorder is not None:
            self._recorder.record(resource, reason, message, warning=warning)

    async def _take_all(
        self, planned: Planned, take: Callable[[Step], Awaitable[None]], result: Pass
    ) -> list[StepFailed]:
        """Take a resource's steps in order; what fails does not keep the others from being tried."""
        failures = []
        for step in planned.steps:
            try:
                await take(step)
                self.record(planned.resource, type(step).__name__, str(step))
            except StepFailed as failure:
                failures.append(failure)
                self.record(planned.resource, failure.reason, failure.message, warning=True)
            except Exception as error:
                # A bug of ours; the other resources are not to suffer from it.
                log.exception("%s failed", step)
                failures.append(StepFailed("InternalError", f"{step}: {error!r}"))
            result.steps.append(str(step))
        return failures

    async def _take(
        self, resource: AnyResource, step: Step, cluster: BrokerCluster, target: Revision
    ) -> None:
        match step:
            case EnsureZooKeeper():
                await self._platform.ensure_zookeeper(cluster)
            case StopZooKeeper():
                await self._platform.stop_zookeeper(cluster)
            case StartBroker():
                launch = launch_of(target) if step.on_target else None
                await self._platform.start_broker(cluster, step.broker, launch)
            case StopBroker():
                after = launch_of(target) if step.bounce else None
                await self._platform.stop_broker(cluster, step.broker, after)
            case ReplaceBroker():
                await self._platform.replace_broker(cluster, step.broker)
            case RemoveBroker():
                await self._platform.remove_broker(cluster, step.broker, delete_volume=step.delete_volume)
            case PutPassword() | PutCertificate() | DeleteSecret():
                await take_secret_step(self._secrets, resource, step, self._clock_ms())
            case StartDriver() | StopDriver():
                raise AssertionError(f"{step} is a pipeline's")
            case _:
                await self._kafka.take(step)

    async def finish(self, planned: Planned, failures: Sequence[StepFailed], result: Pass) -> None:
        """Write the status, or let go of a resource whose deletion is complete."""
        resource = planned.resource
        if planned.done and resource.metadata.deleting:
            await self._secrets.release(resource)
            if isinstance(resource, Pipeline):
                await self._drivers.remove(resource)
            await self._store.release(resource)
            result.steps.append(f"{resource.key} is gone")
            return
        ready = find(resource.status.conditions, "Ready")
        current = ready is not None and ready.observed_generation == resource.metadata.generation
        if planned.keep and current and ready is not None and ready.reason != "Pending":
            result.settled = False
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
            findings.append(yes("ReconciliationPaused", why, "observed only, because of its annotation"))
            observed_generation = resource.status.observed_generation
        status = with_conditions(
            planned.status,
            merge(
                resource.status.conditions,
                findings,
                generation=observed_generation,
                now_ms=self._clock_ms(),
            ),
            observed_generation,
        )
        if not is_true(status.conditions, "Ready"):
            result.settled = False
            result.unready.append(resource.kind)
        catching_up = find(status.conditions, "CaughtUp")
        if catching_up is not None and catching_up.status == "False":
            # How far it is, people want to see.
            result.settled = False
        if isinstance(status, BrokerClusterStatus):
            result.cluster = status
        if status != resource.status:
            await self._store.update_status(resource, status)


def launch_of(target: Revision) -> Launch:
    return Launch(target.hash, target.described, target.properties)


def with_conditions(status: S, conditions: list[Condition], generation: int) -> S:
    return status.model_copy(update={"conditions": conditions, "observed_generation": generation})


def _as_paused(finding: Finding, why: str, steps: Sequence[Step]) -> Finding:
    """Ready must not say that something is being done when it is not."""
    if finding.type != "Ready" or finding.status == "True" or not steps:
        return finding
    due = ", ".join(str(step) for step in steps)
    return no("Ready", why, f"not done, because of its annotation: {due}")

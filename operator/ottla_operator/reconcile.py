"""One pass: observe everything, plan, take the next safe steps, write the statuses.

Called by `ottla up` and by the controller on Kubernetes, again and again. Level-triggered: a pass knows
nothing of the one before but what stands in statuses and can be observed, so it may be killed between any two
instructions. A step that fails becomes a condition of its resource; the next pass tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ottla_operator.conditions import Condition, Finding, find, is_true, merge, no, parse_iso_time, yes
from ottla_operator.planning.cluster import ClusterPlan, Placement, plan_cluster
from ottla_operator.planning.groups import plan_group
from ottla_operator.planning.observed import Observed
from ottla_operator.planning.quotas import default_client_is_elsewhere, plan_quotas
from ottla_operator.planning.resets import query_of
from ottla_operator.planning.revision import Revision, target_revision
from ottla_operator.planning.steps import (
    EnsureZooKeeper,
    Reassign,
    RemoveBroker,
    ReplaceBroker,
    StartBroker,
    Step,
    StopBroker,
    StopZooKeeper,
)
from ottla_operator.planning.throttle import Throttling, plan_throttle
from ottla_operator.planning.topics import Defaults, plan_topics
from ottla_operator.planning.versions import plan_upgrade
from ottla_operator.platform.port import Kafka, Launch, Platform, Recorder, StepFailed, Store
from ottla_operator.resources import (
    AnyResource,
    BrokerCluster,
    BrokerClusterStatus,
    ConsumerGroup,
    Quota,
    Topic,
)
from ottla_operator.resources.common import Status

log = logging.getLogger(__name__)

# Past this, a resource whose cluster cannot be reached is let go rather than kept for ever.
DELETION_DEADLINE_MS = 60_000

# Resources that are acted upon at the same time, beside the cluster itself.
_AT_ONCE = 16

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


class Reconciler:
    """Drives one BrokerCluster and the resources that refer to it."""

    def __init__(
        self,
        platform: Platform,
        kafka: Kafka,
        store: Store,
        clock_ms: Callable[[], int],
        recorder: Recorder | None = None,
    ) -> None:
        self._recorder = recorder
        self._platform = platform
        self._kafka = kafka
        self._store = store
        self._clock_ms = clock_ms

    async def reconcile(self) -> Pass:
        resources = await self._store.resources()
        clusters = sorted(
            (r for r in resources if isinstance(r, BrokerCluster)), key=lambda c: c.metadata.age_key
        )
        result = Pass()
        if not clusters:
            for planned in self._without_cluster(resources, None):
                await self._finish(planned, [], result)
            return result
        cluster = clusters[0]
        members = [r for r in resources if not isinstance(r, BrokerCluster)]
        ours = [r for r in members if r.spec.cluster_ref.name == cluster.metadata.name]
        observed = await self._observe(cluster, ours)
        result.observed = observed
        traits = self._platform.traits(cluster)
        upgrade = plan_upgrade(cluster.spec, observed, traits, cluster.status.upgrade)
        target = target_revision(cluster.spec, traits, upgrade.version)
        elsewhere = default_client_is_elsewhere(r for r in ours if isinstance(r, Quota))
        plan = plan_cluster(cluster, observed, target, upgrade, default_client_elsewhere=elsewhere)
        if cluster.metadata.deleting:
            planned_all = [self._of_cluster(cluster, plan), *self._without_cluster(ours, cluster)]
        else:
            planned_all = self._of_members(cluster, ours, observed, plan, target)
        others = {c.metadata.name for c in clusters[1:]}
        planned_all += self._without_cluster([r for r in members if r not in ours], None, others)
        planned_all += [_one_cluster_only(other, cluster) for other in clusters[1:]]
        kept = await self._keep(cluster, target, observed, result)
        await self._act(planned_all[0], cluster, target, result, kept)
        for news in plan.news:
            self._record(cluster, news.reason, news.message, warning=news.warning)
        room = asyncio.Semaphore(_AT_ONCE)

        async def act(planned: Planned) -> None:
            async with room:
                await self._act(planned, cluster, target, result, [])

        # They are of different things, and many: none waits for the answers that another waits for.
        ended = await asyncio.gather(*(act(planned) for planned in planned_all[1:]), return_exceptions=True)
        for error in ended:
            if error is not None:
                raise error
        return result

    # ---- observing

    async def _observe(self, cluster: BrokerCluster, ours: Iterable[AnyResource]) -> Observed:
        zookeeper, brokers = await self._platform.observe(cluster)
        answering = [broker for broker, instance in brokers.items() if instance.ready]
        groups = {r.group_id: query_of(r) for r in ours if isinstance(r, ConsumerGroup)}
        kafka = await self._kafka.observe(self._platform.addresses(cluster, answering), groups)
        return Observed(zookeeper, brokers, kafka, self._clock_ms())

    # ---- planning

    def _of_cluster(
        self, cluster: BrokerCluster, plan: ClusterPlan, throttling: Throttling | None = None
    ) -> Planned:
        more: dict[str, object] = {
            "bootstrap_servers": self._platform.bootstrap(cluster),
            "listeners": list(self._platform.listeners(cluster)),
        }
        steps: Sequence[Step] = plan.steps
        if throttling is not None:
            more["throttle"] = throttling.record
            steps = (*throttling.steps, *throttling.let_through(steps))
        return Planned(cluster, plan.findings, plan.status.model_copy(update=more), steps, plan.done)

    def _of_members(
        self,
        cluster: BrokerCluster,
        ours: Sequence[AnyResource],
        observed: Observed,
        plan: ClusterPlan,
        target: Revision,
    ) -> list[Planned]:
        """The cluster itself, and what refers to it."""
        placement: Placement = plan.placement
        busy = {key for step in plan.steps if isinstance(step, Reassign) for key in step.assignment}
        topics = [r for r in ours if isinstance(r, Topic)]
        topic_plans = plan_topics(topics, observed, placement, Defaults.of(target.properties), busy)
        quotas = [r for r in ours if isinstance(r, Quota)]
        quota_plans = plan_quotas(quotas, observed, placement.usable, cluster)
        acted_upon = (t.key for t in topics if t.metadata.managed and not t.metadata.paused)
        moves = {key: to for topic in acted_upon for key, to in topic_plans[topic].moves.items()}
        throttling = plan_throttle(cluster, observed, {**moves, **plan.moves})
        planned = []
        for resource in ours:
            if isinstance(resource, Topic):
                t = topic_plans[resource.key]
                steps = throttling.let_through(t.steps)
                planned.append(Planned(resource, t.findings, t.status, steps, t.done, t.keep))
            elif isinstance(resource, Quota):
                q = quota_plans[resource.key]
                planned.append(Planned(resource, q.findings, q.status, q.steps, q.done, q.keep))
            elif isinstance(resource, ConsumerGroup):
                g = plan_group(resource, observed, placement.usable)
                planned.append(Planned(resource, g.findings, g.status, g.steps, g.done, g.keep, g.once_done))
        of_members = [self._past_deadline(p, placement.usable) for p in planned]
        return [self._of_cluster(cluster, plan, throttling), *of_members]

    def _past_deadline(self, planned: Planned, usable: bool) -> Planned:
        deleted_at = planned.resource.metadata.deletion_timestamp
        if deleted_at is None or planned.done or usable:
            return planned
        if self._clock_ms() - parse_iso_time(deleted_at) < DELETION_DEADLINE_MS:
            return planned
        log.warning("%s is let go: its cluster cannot be reached", planned.resource.key)
        message = "let go, with nothing deleted in Kafka: the cluster cannot be reached"
        self._record(planned.resource, "Released", message, warning=True)
        return Planned(planned.resource, planned.findings, planned.status, (), done=True)

    def _without_cluster(
        self,
        resources: Iterable[AnyResource],
        leaving: BrokerCluster | None,
        not_run: Collection[str] = (),
    ) -> list[Planned]:
        planned = []
        for resource in resources:
            if isinstance(resource, BrokerCluster):
                continue
            name = resource.spec.cluster_ref.name
            gone = "is being deleted" if leaving is not None else "does not exist"
            if name in not_run:
                gone = "is not run: one data folder runs one BrokerCluster"
            if resource.metadata.deleting:
                message = f"let go, with nothing deleted in Kafka: BrokerCluster {name} {gone}"
                self._record(resource, "Released", message)
            findings = (no("Ready", "ClusterNotFound", f"BrokerCluster {name} {gone}"),)
            planned.append(Planned(resource, findings, resource.status, (), resource.metadata.deleting))
        return planned

    # ---- acting

    async def _act(
        self,
        planned: Planned,
        cluster: BrokerCluster,
        target: Revision,
        result: Pass,
        failures: list[StepFailed],
    ) -> None:
        """Take a resource's steps and write its status; `failures`: of what was tried for it before."""
        metadata = planned.resource.metadata
        if metadata.managed and not metadata.paused:
            failures = failures + await self._take_all(planned, cluster, target, result)
            if planned.once_done is not None and not failures:
                planned = replace(planned, status=planned.once_done)
        await self._finish(planned, failures, result)

    async def _keep(
        self, cluster: BrokerCluster, target: Revision, observed: Observed, result: Pass
    ) -> list[StepFailed]:
        """Put right what surrounds the brokers, unless we are to keep our hands off."""
        metadata = cluster.metadata
        if metadata.deleting or metadata.paused or not metadata.managed:
            return []
        lagging = any(partition.under_replicated for partition in observed.kafka.partitions())
        try:
            done = await self._platform.keep(cluster, launch_of(target), under_replicated=lagging)
        except StepFailed as failure:
            self._record(cluster, failure.reason, failure.message, warning=True)
            return [failure]
        result.steps += done
        for what in done:
            self._record(cluster, "Applied", what)
        return []

    def _record(self, resource: AnyResource, reason: str, message: str, *, warning: bool = False) -> None:
        if self._recorder is not None:
            self._recorder.record(resource, reason, message, warning=warning)

    async def _take_all(
        self, planned: Planned, cluster: BrokerCluster, target: Revision, result: Pass
    ) -> list[StepFailed]:
        """Take a resource's steps in order; what fails does not keep the others from being tried."""
        failures = []
        for step in planned.steps:
            try:
                await self._take(step, cluster, target)
                self._record(planned.resource, type(step).__name__, str(step))
            except StepFailed as failure:
                failures.append(failure)
                self._record(planned.resource, failure.reason, failure.message, warning=True)
            except Exception as error:
                # A bug of ours; the other resources are not to suffer from it.
                log.exception("%s failed", step)
                failures.append(StepFailed("InternalError", f"{step}: {error!r}"))
            result.steps.append(str(step))
        return failures

    async def _take(self, step: Step, cluster: BrokerCluster, target: Revision) -> None:
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
            case _:
                await self._kafka.take(step)

    async def _finish(self, planned: Planned, failures: Sequence[StepFailed], result: Pass) -> None:
        """Write the status, or let go of a resource whose deletion is complete."""
        resource = planned.resource
        if planned.done and resource.metadata.deleting:
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
        if metadata.paused or not metadata.managed:
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


def _one_cluster_only(other: BrokerCluster, cluster: BrokerCluster) -> Planned:
    message = f"one data folder runs one BrokerCluster, and {cluster.metadata.name} is it"
    findings = (no("Ready", "NotSupported", message),)
    return Planned(other, findings, other.status, (), other.metadata.deleting)


def is_ready(resource: AnyResource) -> bool:
    """Ready, and about the spec as it is now."""
    status = resource.status
    ready = find(status.conditions, "Ready")
    return (
        is_true(status.conditions, "Ready")
        and ready is not None
        and ready.observed_generation == resource.metadata.generation
    )

"""One reconciliation: observe everything, plan, execute the next safe steps, write the statuses.

Called repeatedly by `ottla up` and by the controller on Kubernetes. Reconciliation is level-triggered: it
keeps no state of its own besides what statuses record and what can be observed, so it may be killed between
any two instructions. A failed step becomes a condition of its resource; the next reconciliation tries it
again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ottla_operator.conditions import find, is_true, no, parse_iso_time
from ottla_operator.planning.audits import Audits, with_audit
from ottla_operator.planning.backups import plan_backup
from ottla_operator.planning.cluster import ClusterPlan, Placement, cluster_members, plan_cluster
from ottla_operator.planning.groups import plan_group, query_of
from ottla_operator.planning.holds import Holds, due_rolls, holds_of, window_hold
from ottla_operator.planning.observed import DriverInstance, Observed
from ottla_operator.planning.pipelines import ClusterView, plan_pipeline
from ottla_operator.planning.pools import assign_brokers, plan_pool
from ottla_operator.planning.quotas import plan_quotas, quota_owns_default_client
from ottla_operator.planning.rebalance_run import is_measured, question_of
from ottla_operator.planning.recovery import plan_recovery
from ottla_operator.planning.restarts import handled_restarts
from ottla_operator.planning.revision import (
    VOLUMES,
    PerBroker,
    Revision,
    Upgrade,
    plan_upgrade,
    target_revision,
)
from ottla_operator.planning.steps import Reassign, ResourcePlan, Step
from ottla_operator.planning.throttle import Throttling, plan_throttle
from ottla_operator.planning.topics import Defaults, plan_topics
from ottla_operator.planning.users import plan_users, secrets_of
from ottla_operator.platform.interfaces import Ensured, Environment, StepFailed
from ottla_operator.resources import (
    AnyResource,
    BrokerCluster,
    BrokerPool,
    ConnectCluster,
    Connector,
    ConsumerGroup,
    Pipeline,
    Quota,
    Topic,
    User,
)
from ottla_operator.resources.common import Status, parse_duration_ms
from ottla_operator.step_executor import ReconcileResult, StepExecutor

log = logging.getLogger(__name__)

# After this time, a deleted resource whose cluster cannot be reached loses its finalizer.
DELETION_DEADLINE_MS = 60_000

# Resources whose steps are executed at the same time, after those of the cluster itself.
_CONCURRENT_RESOURCES = 16


class Reconciler:
    """Reconciles one BrokerCluster and the resources that refer to it."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._drivers = environment.drivers
        self._platform = environment.platform
        self._clock_ms = environment.clock_ms
        self._executor = StepExecutor(environment)

    async def reconcile(self) -> ReconcileResult:
        """Reconcile all resources of the store once."""
        resources = _without_connect(await self._environment.store.resources())
        clusters = sorted(
            (r for r in resources if isinstance(r, BrokerCluster)), key=lambda c: c.metadata.age_key
        )
        pipelines = [r for r in resources if isinstance(r, Pipeline)]
        drivers = await self._drivers.observe(pipelines) if pipelines else {}
        result = ReconcileResult()
        if not clusters:
            for planned in self._without_cluster(resources, None, drivers):
                if isinstance(planned.resource, Pipeline):
                    await self._executor.execute_driver_steps(planned, planned.resource, result)
                else:
                    await self._executor.finish(planned, [], result)
            return result
        cluster = clusters[0]
        non_clusters = [r for r in resources if not isinstance(r, BrokerCluster)]
        members = [r for r in non_clusters if r.spec.cluster_ref.name == cluster.metadata.name]
        try:
            observed = await self._observe(cluster, members)
            self._check_pools(observed)
        except StepFailed as failure:
            await self._without_observation(cluster, members, failure, result)
            return result
        result.observed = observed
        pools = [r for r in members if isinstance(r, BrokerPool) and not r.metadata.deleting]
        cluster = cluster.with_pools(assign_brokers(cluster, pools, observed, self._platform.kept_volumes()))
        traits = self._platform.traits(cluster)
        upgrade = plan_upgrade(cluster.spec, cluster.broker_ids, observed, traits, cluster.status.upgrade)
        restarts = handled_restarts(cluster, observed, self._platform.restart_request())
        targets = self._targets(cluster, traits, upgrade, restarts[-1] if restarts else "")
        elsewhere = quota_owns_default_client(r for r in members if isinstance(r, Quota))
        holds = self._holds(cluster, observed, targets)
        result.due_ms = holds.until_ms
        if holds.servers is not None:
            observed = replace(observed, zookeeper=observed.zookeeper.held(holds.servers.message))
        question = question_of(cluster, observed, cluster_members(cluster, observed))
        plan = plan_cluster(
            cluster,
            observed,
            targets,
            upgrade,
            restarts=restarts,
            proposed=await self._environment.compute(question.answer) if question is not None else None,
            quota_owns_default_client=elsewhere,
            holds=holds,
        )
        plan, waits = self._with_recovery(cluster, observed, plan, result)
        if cluster.metadata.deleting:
            planned_all = [self._of_cluster(cluster, plan), *self._without_cluster(members, cluster, drivers)]
        else:
            audits = Audits.of((r for r in members if isinstance(r, Pipeline)), drivers)
            waiting = [r for r in members if waits and isinstance(r, _OF_KAFKA)]
            going = [r for r in members if r not in waiting]
            planned_all = self._of_members(cluster, going, observed, plan, targets.default, audits)
            planned_all += [self._waiting(each, waits) for each in waiting]
            planned_all += self._of_pipelines(cluster, members, drivers, plan.placement.usable)
        planned_all[0] = self._with_backup(planned_all[0], cluster, plan.placement.usable, result)
        others = {c.metadata.name for c in clusters[1:]}
        orphans = [r for r in non_clusters if r.spec.cluster_ref.name != cluster.metadata.name]
        planned_all += self._without_cluster(orphans, None, drivers, others)
        planned_all += [_one_cluster_only(other, cluster) for other in clusters[1:]]
        kept = await self._executor.ensure_children(
            cluster, targets, observed, result, hold_servers=holds.servers is not None
        )
        await self._executor.execute(planned_all[0], cluster, targets, result, kept)
        for event_record in plan.event_records:
            self._executor.record(
                cluster, event_record.reason, event_record.message, warning=event_record.warning
            )
        limit = asyncio.Semaphore(_CONCURRENT_RESOURCES)

        async def execute(planned: ResourcePlan[Status]) -> None:
            async with limit:
                if isinstance(planned.resource, Pipeline):
                    await self._executor.execute_driver_steps(planned, planned.resource, result)
                else:
                    await self._executor.execute(planned, cluster, targets, result, Ensured())

        # The resources are independent of each other, so their requests run concurrently.
        ended = await asyncio.gather(
            *(execute(planned) for planned in planned_all[1:]), return_exceptions=True
        )
        for error in ended:
            if error is not None:
                raise error
        return result

    # ---- observing

    async def _observe(self, cluster: BrokerCluster, members: Sequence[AnyResource]) -> Observed:
        zookeeper, brokers = await self._platform.observe(cluster)
        answering = [broker for broker, instance in brokers.items() if instance.ready]
        groups = {r.group_id: query_of(r) for r in members if isinstance(r, ConsumerGroup)}
        users = [r for r in members if isinstance(r, User)]
        addresses = self._platform.addresses(cluster, answering)
        several = any(VOLUMES in instance.settings for instance in brokers.values())
        kafka = await self._environment.kafka.observe(addresses, groups, access=bool(users), log_dirs=several)
        secrets = await self._environment.secrets.read(secrets_of(users, cluster)) if users else {}
        load = None
        if self._environment.loads is not None and kafka.has_controller and is_measured(cluster):
            window_ms = parse_duration_ms(cluster.spec.rebalance.window)
            load = await self._environment.loads.observe(answering, kafka, self._clock_ms(), window_ms)
        return Observed(zookeeper, brokers, kafka, self._clock_ms(), secrets, load)

    async def _without_observation(
        self,
        cluster: BrokerCluster,
        members: Sequence[AnyResource],
        failure: StepFailed,
        result: ReconcileResult,
    ) -> None:
        """Report that the cluster cannot be observed. Nothing is changed meanwhile."""
        findings = (no("Ready", failure.reason, failure.message),)
        await self._executor.finish(ResourcePlan(cluster, findings, cluster.status), [], result)
        message = f"the cluster cannot be observed: {failure.message}"
        for member in members:
            findings = (no("Ready", "ClusterNotReady", message),)
            await self._executor.finish(ResourcePlan(member, findings, member.status), [], result)

    def _check_pools(self, observed: Observed) -> None:
        """Raise StepFailed when the pool of a broker exists and cannot be used: without it, its brokers
        would leave."""
        pools = {instance.pool for instance in observed.brokers.values() if instance.pool}
        for key in sorted(self._environment.store.withheld()):
            kind, _, name = key.partition("/")
            if kind == BrokerPool.definition.kind and name in pools:
                message = f"{key} has brokers, and neither a valid spec nor a record of the last valid one"
                raise StepFailed("PoolInvalid", message)

    # ---- planning

    def _with_backup(
        self, planned: ResourcePlan[Status], cluster: BrokerCluster, usable: bool, result: ReconcileResult
    ) -> ResourcePlan[Status]:
        """The plan of the cluster with the state of its backups; begins one when it is due."""
        backups = self._environment.backups
        if backups is None or not cluster.metadata.acted_upon:
            return planned
        outcome = backups.outcome()
        plan = plan_backup(cluster, outcome, usable=usable, running=backups.running, now_ms=self._clock_ms())
        if outcome is not None:
            reason = "BackupCompleted" if outcome.url else "BackupFailed"
            message = f"{outcome.url}: {outcome.message}" if outcome.url else outcome.message
            self._executor.record(cluster, reason, message, warning=not outcome.url)
        if plan.start is not None:
            backups.begin(cluster, plan.start)
        elif plan.due_ms is not None:
            result.due_ms = min(plan.due_ms, result.due_ms or plan.due_ms)
        return replace(
            planned,
            findings=(*planned.findings, *plan.findings),
            status=planned.status.model_copy(update={"backup": plan.status}),
        )

    def _with_recovery(
        self, cluster: BrokerCluster, observed: Observed, plan: ClusterPlan, result: ReconcileResult
    ) -> tuple[ClusterPlan, str]:
        """The plan of the cluster with the state of its recovery, and what its members wait for; begins an
        attempt when it is due."""
        recoveries, kafka = self._environment.recoveries, observed.kafka
        if recoveries is None:
            return plan, ""
        ready = next(finding for finding in plan.findings if finding.type == "Ready")
        own = [name for name, topic in kafka.topics.items() if not topic.internal]
        recovery = plan_recovery(
            cluster,
            recoveries.outcome(),
            topics=own if kafka.has_controller else None,
            not_ready="" if ready.status == "True" else ready.message,
            running=recoveries.running,
            now_ms=self._clock_ms(),
        )
        if recovery.event is not None:
            self._executor.record(cluster, *recovery.event, warning=recovery.failed)
            result.steps.append(": ".join(recovery.event))
        if recovery.attempt is not None:
            recoveries.begin(cluster, recovery.attempt)
        elif recovery.due_ms is not None:
            result.due_ms = min(recovery.due_ms, result.due_ms or recovery.due_ms)
        findings = {finding.type: finding for finding in plan.findings}
        for finding in recovery.findings:
            if finding.type != "Ready" or ready.status == "True":
                findings[finding.type] = finding
        usable = plan.placement.usable and not recovery.waits
        status = plan.status.model_copy(update={"recovery": recovery.status})
        placement = replace(plan.placement, usable=usable)
        plan = replace(plan, findings=tuple(findings.values()), status=status, placement=placement)
        return plan, recovery.waits

    def _waiting(self, resource: AnyResource, waits: str) -> ResourcePlan[Status]:
        """The plan of a resource whose cluster is being recovered from a backup."""
        findings = (no("Ready", "ClusterNotReady", waits),)
        return self._past_deadline(ResourcePlan(resource, findings, resource.status), usable=False)

    def _targets(
        self, cluster: BrokerCluster, traits: Mapping[str, str], upgrade: Upgrade, restart: str
    ) -> PerBroker[Revision]:
        """The target revision of each broker."""
        count = len(cluster.broker_ids)
        of_pools: dict[int, Revision] = {}
        for pool in cluster.pools:
            for broker in (*pool.brokers, *pool.leaving)[:1]:
                target = target_revision(
                    pool.spec,
                    self._platform.traits(cluster.of_broker(broker)),
                    upgrade.version,
                    restart,
                    rack=pool.rack,
                    brokers=count,
                )
                of_pools |= dict.fromkeys((*pool.brokers, *pool.leaving), target)
        default = target_revision(cluster.spec, traits, upgrade.version, restart, brokers=count)
        return PerBroker(default, of_pools)

    def _holds(self, cluster: BrokerCluster, observed: Observed, targets: PerBroker[Revision]) -> Holds:
        working = cluster_members(cluster, observed).working
        active = [broker for broker in working if not cluster.is_paused(broker)]
        due = due_rolls(cluster, observed, targets, active)
        window, others = window_hold(cluster, observed.now_ms), None
        if self._environment.gate is not None:
            idle = cluster.hibernates or cluster.metadata.deleting or not cluster.metadata.acted_upon
            others = self._environment.gate.ask(None if idle or window is not None else due)
        return holds_of(due, window, others)

    def _of_cluster(
        self, cluster: BrokerCluster, plan: ClusterPlan, throttling: Throttling | None = None
    ) -> ResourcePlan[Status]:
        more: dict[str, object] = {
            "bootstrap_servers": self._platform.bootstrap(cluster),
            "listeners": list(self._platform.listeners(cluster)),
        }
        steps: Sequence[Step] = plan.steps
        if throttling is not None:
            more["throttle"] = throttling.record
            steps = (*throttling.steps, *throttling.let_through(steps))
        return ResourcePlan(
            cluster, plan.findings, plan.status.model_copy(update=more), steps, plan.deletion_complete
        )

    def _of_members(
        self,
        cluster: BrokerCluster,
        members: Sequence[AnyResource],
        observed: Observed,
        plan: ClusterPlan,
        target: Revision,
        audits: Audits,
    ) -> list[ResourcePlan[Status]]:
        """The plans of the cluster and of the resources that refer to it, without its Pipelines."""
        placement: Placement = plan.placement
        busy = {key for step in plan.steps if isinstance(step, Reassign) for key in step.assignment}
        topics = [r for r in members if isinstance(r, Topic)]
        of_brokers = Defaults.of({**target.properties, **target.live})
        topic_plans = plan_topics(topics, observed, placement, of_brokers, busy, cluster.spec.topic_defaults)
        quotas = [r for r in members if isinstance(r, Quota)]
        quota_plans = plan_quotas(quotas, observed, placement.usable, cluster)
        users = [r for r in members if isinstance(r, User)]
        user_plans = plan_users(users, observed, placement.usable, cluster)
        acted_upon = (t.key for t in topics if t.metadata.acted_upon)
        moves = {key: to for topic in acted_upon for key, to in topic_plans[topic].moves.items()}
        throttling = plan_throttle(cluster, observed, {**moves, **plan.moves})
        planned: list[ResourcePlan[Status]] = []
        for resource in members:
            if isinstance(resource, Topic):
                topic_plan = with_audit(topic_plans[resource.key], resource, audits)
                planned.append(replace(topic_plan, steps=throttling.let_through(topic_plan.steps)))
            elif isinstance(resource, BrokerPool):
                planned.append(plan_pool(resource, cluster, observed, plan.waiting))
            elif isinstance(resource, Quota):
                planned.append(quota_plans[resource.key])
            elif isinstance(resource, User):
                planned.append(user_plans[resource.key])
            elif isinstance(resource, ConsumerGroup):
                planned.append(plan_group(resource, observed, placement.usable))
        unseen = {User} if observed.kafka.access is None else set()
        of_members = [
            self._past_deadline(p, placement.usable and type(p.resource) not in unseen) for p in planned
        ]
        return [self._of_cluster(cluster, plan, throttling), *of_members]

    def _of_pipelines(
        self,
        cluster: BrokerCluster,
        members: Sequence[AnyResource],
        drivers: Mapping[str, DriverInstance],
        usable: bool,
    ) -> list[ResourcePlan[Status]]:
        users = {r.metadata.name: r for r in members if isinstance(r, User)}
        view = ClusterView(cluster, "", usable, self._platform.bootstrap(cluster), users)
        return [self._of_pipeline(r, drivers, view) for r in members if isinstance(r, Pipeline)]

    def _of_pipeline(
        self, pipeline: Pipeline, drivers: Mapping[str, DriverInstance], view: ClusterView
    ) -> ResourcePlan[Status]:
        driver = drivers.get(pipeline.key, DriverInstance())
        return plan_pipeline(pipeline, driver, view, self._drivers.traits(pipeline), self._clock_ms())

    def _past_deadline(self, planned: ResourcePlan[Status], usable: bool) -> ResourcePlan[Status]:
        deleted_at = planned.resource.metadata.deletion_timestamp
        if deleted_at is None or planned.deletion_complete or usable:
            return planned
        if self._clock_ms() - parse_iso_time(deleted_at) < DELETION_DEADLINE_MS:
            return planned
        log.warning("%s is released: its cluster cannot be reached", planned.resource.key)
        message = "released without a deletion in Kafka: the cluster cannot be reached"
        self._executor.record(planned.resource, "Released", message, warning=True)
        return ResourcePlan(planned.resource, planned.findings, planned.status, (), deletion_complete=True)

    def _without_cluster(
        self,
        resources: Iterable[ClusterResource],
        leaving: BrokerCluster | None,
        drivers: Mapping[str, DriverInstance],
        not_run: Collection[str] = (),
    ) -> list[ResourcePlan[Status]]:
        planned = []
        for resource in resources:
            if isinstance(resource, BrokerCluster):
                continue
            name = resource.spec.cluster_ref.name
            problem = "is being deleted" if leaving is not None else "does not exist"
            if name in not_run:
                problem = "is not run: a data folder runs one BrokerCluster"
            if isinstance(resource, Pipeline):
                view = ClusterView(None, f"BrokerCluster {name} {problem}")
                planned.append(self._of_pipeline(resource, drivers, view))
                continue
            if resource.metadata.deleting and resource.deletes_in_kafka:
                message = f"released without a deletion in Kafka: BrokerCluster {name} {problem}"
                self._executor.record(resource, "Released", message)
            findings = (no("Ready", "ClusterNotFound", f"BrokerCluster {name} {problem}"),)
            planned.append(ResourcePlan(resource, findings, resource.status, (), resource.metadata.deleting))
        return planned


_OF_KAFKA = (Topic, Quota, User, ConsumerGroup)
"""Kinds of what a backup has, too."""

ClusterResource = BrokerCluster | BrokerPool | Topic | Quota | ConsumerGroup | User | Pipeline


def _without_connect(resources: Iterable[AnyResource]) -> list[ClusterResource]:
    """`reconcile_connect` reconciles those of Kafka Connect."""
    return [resource for resource in resources if not isinstance(resource, ConnectCluster | Connector)]


def _one_cluster_only(other: BrokerCluster, cluster: BrokerCluster) -> ResourcePlan[Status]:
    message = f"a data folder runs one BrokerCluster: {cluster.metadata.name}, the oldest one"
    findings = (no("Ready", "NotSupported", message),)
    return ResourcePlan(other, findings, other.status, (), other.metadata.deleting)


def is_ready(resource: AnyResource) -> bool:
    """Whether the resource is Ready for its current generation."""
    status = resource.status
    ready = find(status.conditions, "Ready")
    return (
        is_true(status.conditions, "Ready")
        and ready is not None
        and ready.observed_generation == resource.metadata.generation
    )

"""One pass: observe everything, plan, take the next safe steps, write the statuses.

Called by `ottla up` and by the controller on Kubernetes, again and again. Level-triggered: a pass knows
nothing of the one before but what stands in statuses and can be observed, so it may be killed between any two
instructions. A step that fails becomes a condition of its resource; the next pass tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from ottla_operator.acting import Actor, Pass, Planned
from ottla_operator.conditions import find, is_true, no, parse_iso_time
from ottla_operator.planning.audits import Audits, with_audit
from ottla_operator.planning.cluster import ClusterPlan, Placement, plan_cluster
from ottla_operator.planning.groups import plan_group
from ottla_operator.planning.observed import DriverInstance, Observed
from ottla_operator.planning.pipelines import ClusterView, plan_pipeline
from ottla_operator.planning.quotas import default_client_is_elsewhere, plan_quotas
from ottla_operator.planning.resets import query_of
from ottla_operator.planning.revision import Revision, target_revision
from ottla_operator.planning.steps import Reassign, Step
from ottla_operator.planning.throttle import Throttling, plan_throttle
from ottla_operator.planning.topics import Defaults, plan_topics
from ottla_operator.planning.users import plan_users, secrets_of
from ottla_operator.planning.versions import plan_upgrade
from ottla_operator.platform.port import Drivers, Kafka, Platform, Recorder, Secrets, Store
from ottla_operator.resources import (
    AnyResource,
    BrokerCluster,
    ConsumerGroup,
    Pipeline,
    Quota,
    Topic,
    User,
)

log = logging.getLogger(__name__)

# Past this, a resource whose cluster cannot be reached is let go rather than kept for ever.
DELETION_DEADLINE_MS = 60_000

# Resources that are acted upon at the same time, beside the cluster itself.
_AT_ONCE = 16


class Reconciler:
    """Drives one BrokerCluster and the resources that refer to it."""

    def __init__(
        self,
        platform: Platform,
        kafka: Kafka,
        store: Store,
        clock_ms: Callable[[], int],
        recorder: Recorder | None = None,
        *,
        secrets: Secrets,
        drivers: Drivers,
    ) -> None:
        self._drivers = drivers
        self._platform = platform
        self._kafka = kafka
        self._secrets = secrets
        self._store = store
        self._clock_ms = clock_ms
        self._actor = Actor(platform, kafka, secrets, store, clock_ms, recorder, drivers)

    async def reconcile(self) -> Pass:
        resources = await self._store.resources()
        clusters = sorted(
            (r for r in resources if isinstance(r, BrokerCluster)), key=lambda c: c.metadata.age_key
        )
        pipelines = [r for r in resources if isinstance(r, Pipeline)]
        drivers = await self._drivers.observe(pipelines) if pipelines else {}
        result = Pass()
        if not clusters:
            for planned in self._without_cluster(resources, None, drivers):
                if isinstance(planned.resource, Pipeline):
                    await self._actor.act_on_driver(planned, planned.resource, result)
                else:
                    await self._actor.finish(planned, [], result)
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
            planned_all = [self._of_cluster(cluster, plan), *self._without_cluster(ours, cluster, drivers)]
        else:
            audits = Audits.of((r for r in ours if isinstance(r, Pipeline)), drivers)
            planned_all = self._of_members(cluster, ours, observed, plan, target, audits)
            planned_all += self._of_pipelines(cluster, ours, drivers, plan.placement.usable)
        others = {c.metadata.name for c in clusters[1:]}
        strangers = [r for r in members if r.spec.cluster_ref.name != cluster.metadata.name]
        planned_all += self._without_cluster(strangers, None, drivers, others)
        planned_all += [_one_cluster_only(other, cluster) for other in clusters[1:]]
        kept = await self._actor.keep(cluster, target, observed, result)
        await self._actor.act(planned_all[0], cluster, target, result, kept)
        for news in plan.news:
            self._actor.record(cluster, news.reason, news.message, warning=news.warning)
        room = asyncio.Semaphore(_AT_ONCE)

        async def act(planned: Planned) -> None:
            async with room:
                if isinstance(planned.resource, Pipeline):
                    await self._actor.act_on_driver(planned, planned.resource, result)
                else:
                    await self._actor.act(planned, cluster, target, result, [])

        # They are of different things, and many: none waits for the answers that another waits for.
        ended = await asyncio.gather(*(act(planned) for planned in planned_all[1:]), return_exceptions=True)
        for error in ended:
            if error is not None:
                raise error
        return result

    # ---- observing

    async def _observe(self, cluster: BrokerCluster, ours: Sequence[AnyResource]) -> Observed:
        zookeeper, brokers = await self._platform.observe(cluster)
        answering = [broker for broker, instance in brokers.items() if instance.ready]
        groups = {r.group_id: query_of(r) for r in ours if isinstance(r, ConsumerGroup)}
        users = [r for r in ours if isinstance(r, User)]
        addresses = self._platform.addresses(cluster, answering)
        kafka = await self._kafka.observe(addresses, groups, access=bool(users))
        secrets = await self._secrets.read(secrets_of(users, cluster)) if users else {}
        return Observed(zookeeper, brokers, kafka, self._clock_ms(), secrets)

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
        audits: Audits,
    ) -> list[Planned]:
        """The cluster itself, and what refers to it."""
        placement: Placement = plan.placement
        busy = {key for step in plan.steps if isinstance(step, Reassign) for key in step.assignment}
        topics = [r for r in ours if isinstance(r, Topic)]
        topic_plans = plan_topics(topics, observed, placement, Defaults.of(target.properties), busy)
        quotas = [r for r in ours if isinstance(r, Quota)]
        quota_plans = plan_quotas(quotas, observed, placement.usable, cluster)
        users = [r for r in ours if isinstance(r, User)]
        user_plans = plan_users(users, observed, placement.usable, cluster)
        acted_upon = (t.key for t in topics if t.metadata.acted_upon)
        moves = {key: to for topic in acted_upon for key, to in topic_plans[topic].moves.items()}
        throttling = plan_throttle(cluster, observed, {**moves, **plan.moves})
        planned = []
        for resource in ours:
            if isinstance(resource, Topic):
                t = with_audit(topic_plans[resource.key], resource, audits)
                steps = throttling.let_through(t.steps)
                planned.append(Planned(resource, t.findings, t.status, steps, t.done, t.keep))
            elif isinstance(resource, Quota):
                q = quota_plans[resource.key]
                planned.append(Planned(resource, q.findings, q.status, q.steps, q.done, q.keep))
            elif isinstance(resource, User):
                u = user_plans[resource.key]
                planned.append(Planned(resource, u.findings, u.status, u.steps, u.done, u.keep, u.once_done))
            elif isinstance(resource, ConsumerGroup):
                g = plan_group(resource, observed, placement.usable)
                planned.append(Planned(resource, g.findings, g.status, g.steps, g.done, g.keep, g.once_done))
        unseen = {User} if observed.kafka.access is None else set()
        of_members = [
            self._past_deadline(p, placement.usable and type(p.resource) not in unseen) for p in planned
        ]
        return [self._of_cluster(cluster, plan, throttling), *of_members]

    def _of_pipelines(
        self,
        cluster: BrokerCluster,
        ours: Sequence[AnyResource],
        drivers: Mapping[str, DriverInstance],
        usable: bool,
    ) -> list[Planned]:
        users = {r.metadata.name: r for r in ours if isinstance(r, User)}
        view = ClusterView(cluster, "", usable, self._platform.bootstrap(cluster), users)
        return [self._of_pipeline(r, drivers, view) for r in ours if isinstance(r, Pipeline)]

    def _of_pipeline(
        self, pipeline: Pipeline, drivers: Mapping[str, DriverInstance], view: ClusterView
    ) -> Planned:
        driver = drivers.get(pipeline.key, DriverInstance())
        plan = plan_pipeline(pipeline, driver, view, self._drivers.traits(pipeline), self._clock_ms())
        return Planned(pipeline, plan.findings, plan.status, plan.steps, plan.done, launch=plan.launch)

    def _past_deadline(self, planned: Planned, usable: bool) -> Planned:
        deleted_at = planned.resource.metadata.deletion_timestamp
        if deleted_at is None or planned.done or usable:
            return planned
        if self._clock_ms() - parse_iso_time(deleted_at) < DELETION_DEADLINE_MS:
            return planned
        log.warning("%s is let go: its cluster cannot be asked", planned.resource.key)
        message = "let go, with nothing deleted in Kafka: the cluster cannot be asked"
        self._actor.record(planned.resource, "Released", message, warning=True)
        return Planned(planned.resource, planned.findings, planned.status, (), done=True)

    def _without_cluster(
        self,
        resources: Iterable[AnyResource],
        leaving: BrokerCluster | None,
        drivers: Mapping[str, DriverInstance],
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
            if isinstance(resource, Pipeline):
                view = ClusterView(None, f"BrokerCluster {name} {gone}")
                planned.append(self._of_pipeline(resource, drivers, view))
                continue
            if resource.metadata.deleting:
                message = f"let go, with nothing deleted in Kafka: BrokerCluster {name} {gone}"
                self._actor.record(resource, "Released", message)
            findings = (no("Ready", "ClusterNotFound", f"BrokerCluster {name} {gone}"),)
            planned.append(Planned(resource, findings, resource.status, (), resource.metadata.deleting))
        return planned


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

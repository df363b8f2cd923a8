"""The brokers of BrokerPools: which ids each pool has, which of its brokers leave, and its status.

Pure; called by `reconcile`, which attaches the result to the BrokerCluster (`BrokerCluster.with_pools`)
before anything else is planned. A pool's ids are in its status; the platform records a broker's pool, so that
a lost status, or an operator that ends before it has written one, changes no id.

Invariants (tested by property): no id is in two pools; a broker that stays keeps its id; a new id belongs to
no broker that exists or is registered, to no replica, and to no volume that another pool has left.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ottla_operator.conditions import Finding, no, yes
from ottla_operator.planning.observed import Observed
from ottla_operator.planning.steps import ResourcePlan
from ottla_operator.resources import BrokerCluster, BrokerPool
from ottla_operator.resources.cluster import PoolBrokers
from ottla_operator.resources.common import (
    NEXT_IDS_ANNOTATION,
    REMOVE_IDS_ANNOTATION,
    Status,
)
from ottla_operator.resources.pool import FIRST_ID, LAST_ID, listed_ids


def assign_brokers(
    cluster: BrokerCluster,
    pools: Sequence[BrokerPool],
    observed: Observed,
    kept: Mapping[int, str] | None = None,
) -> tuple[PoolBrokers, ...]:
    """The brokers of each pool. Brokers of pools that do not exist are in none: they leave. `kept`: the pools
    of the volumes of removed brokers, by broker id."""
    in_order = sorted(pools, key=lambda pool: pool.metadata.age_key)
    existing = {pool.metadata.name: _existing(pool.metadata.name, observed) for pool in in_order}
    current: dict[str, set[int]] = {}
    taken: set[int] = set()
    for pool in in_order:
        name = pool.metadata.name
        recorded = {
            broker
            for broker in pool.status.broker_ids
            if FIRST_ID <= broker <= LAST_ID
            and (broker in existing[name] or (broker not in taken and _is_unclaimed(broker, observed)))
        }
        current[name] = recorded or {*existing[name]}
        taken |= current[name]
    used = (
        taken
        | {*observed.brokers}
        | observed.kafka.brokers
        | {b for p in observed.kafka.partitions() for b in p.replicas}
    )
    # Without a controller, it is unknown which ids are registered or hold replicas.
    may_add = observed.kafka.has_controller or not observed.brokers
    assigned = []
    for pool in in_order:
        name = pool.metadata.name
        brokers = current[name]
        if pool.metadata.acted_upon:
            brokers = _remaining(pool, brokers)
            if may_add:
                left = {broker for broker, owner in (kept or {}).items() if owner != name}
                brokers = brokers | _added(pool, brokers, existing[name], used | left)
        used |= brokers
        leaving = existing[name] - brokers
        assigned.append(pool.brokers_in(cluster, sorted(brokers), sorted(leaving)))
    return tuple(assigned)


def _is_unclaimed(broker: int, observed: Observed) -> bool:
    """Whether there is no such broker, or the record of its pool is lost."""
    instance = observed.brokers.get(broker)
    return instance is None or not instance.pool


def _existing(pool: str, observed: Observed) -> set[int]:
    return {broker for broker, instance in observed.brokers.items() if instance.pool == pool}


def _remaining(pool: BrokerPool, brokers: set[int]) -> set[int]:
    """The brokers that stay: without those that the annotation names, in its order, then without the highest
    ids."""
    count = len(brokers) - pool.spec.replicas
    if count <= 0:
        return brokers
    named, _ = listed_ids(pool.metadata.annotations.get(REMOVE_IDS_ANNOTATION, ""))
    order = [*dict.fromkeys(broker for broker in named if broker in brokers)]
    order += sorted(brokers - {*order}, reverse=True)
    return brokers - {*order[:count]}


def _added(
    pool: BrokerPool, brokers: Collection[int], existing: Collection[int], used: Collection[int]
) -> set[int]:
    """The ids of new brokers: first of those that are leaving, then those that the annotation names, then
    the lowest."""
    count = pool.spec.replicas - len(brokers)
    if count <= 0:
        return set()
    removed, _ = listed_ids(pool.metadata.annotations.get(REMOVE_IDS_ANNOTATION, ""))
    named, _ = listed_ids(pool.metadata.annotations.get(NEXT_IDS_ANNOTATION, ""))
    returning = sorted({*existing} - {*brokers} - {*removed})
    free = (broker for broker in (*named, *range(FIRST_ID, LAST_ID + 1)) if broker not in used)
    return {*[*dict.fromkeys((*returning, *free))][:count]}


def plan_pool(
    pool: BrokerPool, cluster: BrokerCluster, observed: Observed, waiting: Mapping[int, str]
) -> ResourcePlan[Status]:
    """The pool's status. `waiting`: what brokers that leave wait for. Its brokers are started, moved and
    stopped by steps of the BrokerCluster."""
    name = pool.metadata.name
    if pool.metadata.deleting:
        # Its brokers leave as those of no pool; nothing waits for that.
        return ResourcePlan(pool, (), pool.status, (), deletion_complete=True)
    brokers = next(each for each in cluster.pools if each.name == name)
    ready = [broker for broker in brokers.brokers if observed.in_service(broker)]
    status = pool.status.model_copy(
        update={
            "replicas": len(_existing(name, observed)),
            "ready_replicas": len(ready),
            "broker_ids": list(brokers.brokers),
            "leaving_broker_ids": list(brokers.leaving),
            "selector": f"ottla.dev/cluster={cluster.metadata.name},ottla.dev/pool={name}",
        }
    )
    return ResourcePlan(pool, (_ready(pool, brokers, observed, ready, waiting),), status)


def _ready(
    pool: BrokerPool,
    brokers: PoolBrokers,
    observed: Observed,
    ready: Collection[int],
    waiting: Mapping[int, str],
) -> Finding:
    if brokers.leaving:
        leaving = "; ".join(
            f"broker {broker} leaves" + (f": {waiting[broker]}" if waiting.get(broker) else "")
            for broker in brokers.leaving
        )
        return no("Ready", "ScaleDown", leaving)
    if len(brokers.brokers) < pool.spec.replicas:
        reason = "new brokers get their ids when the cluster has a controller"
        if observed.kafka.has_controller or not observed.brokers:
            reason = f"no other id of {FIRST_ID} to {LAST_ID} is free"
        return no("Ready", "ScaleUp", f"{len(brokers.brokers)} of {pool.spec.replicas} brokers: {reason}")
    if len(ready) < len(brokers.brokers):
        out = [broker for broker in brokers.brokers if broker not in ready]
        message = f"{len(ready)} of {len(brokers.brokers)} brokers are ready"
        reasons = [
            f"broker {broker}: {observed.brokers[broker].message}"
            for broker in out
            if broker in observed.brokers and observed.brokers[broker].message
        ]
        return no("Ready", "BrokersNotReady", "; ".join([message, *reasons]))
    return yes("Ready", "AllBrokersReady", f"{len(ready)} brokers are ready")

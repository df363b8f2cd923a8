"""The volumes of the brokers and ZooKeeper servers of one BrokerCluster.

Part of the platform; `volumes` compares them with the spec.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla_operator.conditions import Finding
from ottla_operator.kubernetes import manifests_zookeeper, naming, observing, volumes
from ottla_operator.kubernetes.child_objects import ChildObjects
from ottla_operator.kubernetes.observing import Object, labels_of, name_of
from ottla_operator.planning.volumes import volumes_of
from ottla_operator.platform.interfaces import Ensured, StepFailed
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.storage import DEFAULT_SIZE, BrokerStorage

_NO_DEFAULT_CLASS = "it names no StorageClass, and the Kubernetes cluster has no default one"


class ClusterVolumes:
    def __init__(self, objects: ChildObjects) -> None:
        self._objects = objects

    async def ensure(self, cluster: BrokerCluster, ensured: Ensured) -> None:
        """Check the classes of the volumes, have them deleted with their owner or not, let them grow, and
        delete those that brokers have no more."""
        await self._check_classes(cluster, ensured)
        await self._own_claims(cluster, ensured)
        await self._grow(cluster, ensured)
        await self._delete_left(cluster, ensured)

    async def _delete_left(self, cluster: BrokerCluster, ensured: Ensured) -> None:
        """Delete the claims of volumes that were removed from the spec, with `deleteClaim`, once their
        brokers have restarted without them."""
        listed, name = self._objects.listed, cluster.metadata.name
        pods, configs = observing.pods_of(listed, name), observing.configs_of(listed, name)
        for broker, config in configs.items():
            deleted = naming.is_of_pool(broker) and cluster.pool_of(broker) is None
            if deleted or cluster.is_paused(broker):
                continue
            storage, pod = cluster.of_broker(broker).spec.storage, pods.get(broker)
            _, settings = observing.runs_with(pod, config)
            needed = {*volumes_of(settings), *(volume.id for volume in storage.all_volumes)}
            for volume, claim in observing.claims_of(listed, name, broker).items():
                if volume in needed or not storage.delete_claim or claim["metadata"].get("deletionTimestamp"):
                    continue
                if pod is None or not observing.uses_claim(pod, name_of(claim)):
                    await ensured.attempt(self._delete(broker, volume, claim))

    async def _delete(self, broker: int, volume: int, claim: Object) -> str:
        await self._objects.delete_claim(claim)
        return f"delete {name_of(claim)}: broker {broker} has no volume {volume} any more"

    async def _grow(self, cluster: BrokerCluster, ensured: Ensured) -> None:
        for volume in _volumes(cluster):
            for claim in self._claims(volume):
                if volumes.is_smaller(claim, volume.size):
                    await ensured.attempt(self._objects.grow(claim, volume.size, volume.field))

    async def _check_classes(self, cluster: BrokerCluster, ensured: Ensured) -> None:
        for volume in _volumes(cluster):
            needed = volumes.classes_to_check(self._claims(volume), volume.storage_class, volume.field)
            for name, what in needed.items():
                if name is None:
                    ensured.failures.append(
                        StepFailed("StorageClassNotFound", f"{what}: {_NO_DEFAULT_CLASS}")
                    )
                elif name:
                    await ensured.attempt(self._objects.check_storage_class(name, what))

    async def _own_claims(self, cluster: BrokerCluster, ensured: Ensured) -> None:
        """Have claims deleted with the BrokerCluster, or not: `deleteClaim`. A StatefulSet's own policy would
        delete them whenever a user deletes the StatefulSet."""
        for volume in _volumes(cluster):
            for claim in self._claims(volume):
                await ensured.attempt(self._objects.own_claim(cluster, claim, delete=volume.delete_claim))

    def findings(self, cluster: BrokerCluster) -> list[Finding]:
        return volumes.finding_of(
            difference
            for volume in _volumes(cluster)
            for difference in volumes.differences(
                self._claims(volume), volume.size, volume.storage_class, volume.field
            )
        )

    def _claims(self, volume: _Volume) -> list[Object]:
        claims = self._objects.listed.objects.get("PersistentVolumeClaim", {})
        return [claims[name] for name in sorted(claims) if volume.is_of(claims[name])]


@dataclass(frozen=True, slots=True)
class _Volume:
    """A volume of each pod of a component, or of a BrokerPool, in the spec."""

    component: str
    pool: str
    id: int
    size: str | int
    storage_class: str | None
    delete_claim: bool
    field: str
    """The path in the spec."""

    def is_of(self, claim: Object) -> bool:
        labels, (volume, _) = labels_of(claim), naming.volume_of_claim(name_of(claim))
        component, pool = labels.get(naming.COMPONENT_LABEL), labels.get(naming.POOL_LABEL, "")
        return (component, pool, volume) == (self.component, self.pool, self.id)


def _volumes(cluster: BrokerCluster) -> list[_Volume]:
    found = _of_brokers("", cluster.spec.storage, "spec.storage")
    for pool in cluster.pools:
        if pool.paused:
            continue
        found += _of_brokers(pool.name, pool.spec.storage, f"BrokerPool {pool.name} spec.storage")
    if cluster.spec.zookeeper.connect is None:
        storage = manifests_zookeeper.managed(cluster).storage
        size, field = storage.size or manifests_zookeeper.DEFAULT_SIZE, "spec.zookeeper.managed.storage"
        given = size, storage.storage_class, storage.delete_claim
        found.append(_Volume(naming.ZOOKEEPER, "", 0, *given, field))
    return found


def _of_brokers(pool: str, storage: BrokerStorage, field: str) -> list[_Volume]:
    return [
        _Volume(
            naming.BROKER,
            pool,
            each.id,
            each.size or DEFAULT_SIZE,
            each.storage_class,
            storage.delete_claim,
            field if storage.volumes is None else f"{field}.volumes[id={each.id}]",
        )
        for each in storage.all_volumes
    ]

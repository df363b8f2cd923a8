"""The volumes of the brokers and ZooKeeper servers of one BrokerCluster.

Part of the platform; `volumes` compares them with the spec.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla_operator.conditions import Finding
from ottla_operator.kubernetes import manifests_brokers, manifests_zookeeper, naming, volumes
from ottla_operator.kubernetes.child_objects import ChildObjects
from ottla_operator.kubernetes.observing import Object, labels_of
from ottla_operator.platform.interfaces import Ensured, StepFailed
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.common import Storage

_NO_DEFAULT_CLASS = "it names no StorageClass, and the Kubernetes cluster has no default one"


class ClusterVolumes:
    def __init__(self, objects: ChildObjects) -> None:
        self._objects = objects

    async def ensure(self, cluster: BrokerCluster, ensured: Ensured) -> None:
        """Check the classes of the volumes, have them deleted with their owner or not, and let them grow."""
        await self._check_classes(cluster, ensured)
        await self._own_claims(cluster, ensured)
        await self._grow(cluster, ensured)

    async def _grow(self, cluster: BrokerCluster, ensured: Ensured) -> None:
        for volume in _volumes(cluster):
            for claim in self._claims(volume):
                if volumes.is_smaller(claim, volume.size):
                    await ensured.attempt(self._objects.grow(claim, volume.size))

    async def _check_classes(self, cluster: BrokerCluster, ensured: Ensured) -> None:
        for volume in _volumes(cluster):
            needed = volumes.classes_to_check(
                self._claims(volume), volume.storage.storage_class, volume.field
            )
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
                delete = volume.storage.delete_claim
                await ensured.attempt(self._objects.own_claim(cluster, claim, delete=delete))

    def findings(self, cluster: BrokerCluster) -> list[Finding]:
        return volumes.finding_of(
            difference
            for volume in _volumes(cluster)
            for difference in volumes.differences(
                self._claims(volume), volume.size, volume.storage.storage_class, volume.field
            )
        )

    def _claims(self, volume: _Volume) -> list[Object]:
        claims = self._objects.listed.objects.get("PersistentVolumeClaim", {})
        return [claims[name] for name in sorted(claims) if volume.is_of(claims[name])]


@dataclass(frozen=True, slots=True)
class _Volume:
    """The volumes of a component, or of a BrokerPool, in the spec."""

    component: str
    pool: str
    storage: Storage
    size: str | int
    field: str
    """The path in the spec."""

    def is_of(self, claim: Object) -> bool:
        labels = labels_of(claim)
        component, pool = labels.get(naming.COMPONENT_LABEL), labels.get(naming.POOL_LABEL, "")
        return (component, pool) == (self.component, self.pool)


def _volumes(cluster: BrokerCluster) -> list[_Volume]:
    def of_brokers(pool: str, storage: Storage, field: str) -> _Volume:
        size = storage.size or manifests_brokers.DEFAULT_SIZE
        return _Volume(naming.BROKER, pool, storage, size, field)

    found = [of_brokers("", cluster.spec.storage, "spec.storage")]
    found += [
        of_brokers(pool.name, pool.spec.storage, f"BrokerPool {pool.name} spec.storage")
        for pool in cluster.pools
    ]
    if cluster.spec.zookeeper.connect is None:
        storage = manifests_zookeeper.managed(cluster).storage
        size = storage.size or manifests_zookeeper.DEFAULT_SIZE
        found.append(_Volume(naming.ZOOKEEPER, "", storage, size, "spec.zookeeper.managed.storage"))
    return found

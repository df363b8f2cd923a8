"""The storage of brokers: one volume each, or several (Kafka's JBOD)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pydantic import Field

from ottla_operator.resources.common import Model, Problem, Quantity, Storage, TransitionRule, parse_quantity

DEFAULT_SIZE: Final = "10Gi"
_VOLUMES_MAX: Final = 16


class StorageVolume(Model):
    id: int = Field(
        ge=0,
        le=99,
        description="The volume's id, which it keeps. Volume 0 is the one that a broker without volumes has.",
    )
    size: Quantity | None = Field(
        default=None,
        description="The size of the volume, in bytes or with a suffix such as Gi. Default: storage.size.",
    )
    storage_class: str | None = Field(
        default=None, alias="class", description="The StorageClass of the volume. Default: storage.class."
    )


class BrokerStorage(Storage):
    volumes: list[StorageVolume] | None = Field(
        default=None,
        min_length=1,
        max_length=_VOLUMES_MAX,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"]},
        description="Several volumes of each broker, with a log directory on each (JBOD). Volumes can be "
        "added; one that is removed is emptied first, and one must stay. Default: one volume, with the id 0.",
    )

    @property
    def all_volumes(self) -> list[StorageVolume]:
        """The volumes by id, each with its size and class."""
        return [
            StorageVolume(
                id=volume.id,
                size=volume.size or self.size or DEFAULT_SIZE,
                storage_class=volume.storage_class or self.storage_class,
            )
            for volume in sorted(self.volumes or [StorageVolume(id=0)], key=lambda volume: volume.id)
        ]

    @property
    def total_bytes(self) -> int | None:
        """The size of all volumes of a broker; None for an invalid one."""
        sizes = [parse_quantity(volume.size or "") for volume in self.all_volumes]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def problems(self, path: str) -> Iterator[Problem]:
        """`path`: of this storage in its resource."""
        sizes = [(f"{path}.size", self.size)]
        volumes = self.volumes or ()
        sizes += [(f"{path}.volumes[{n}].size", volume.size) for n, volume in enumerate(volumes)]
        for where, size in sizes:
            if size is not None and parse_quantity(size) is None:
                message = "is not a quantity; allowed: a number, optionally with Ki, Mi, Gi, …"
                yield Problem(where, f"{size!r} {message}")
        ids = [volume.id for volume in volumes]
        for n, each in enumerate(ids):
            if each in ids[:n]:
                yield Problem(f"{path}.volumes[{n}].id", f"{each} is used twice: ids must be unique")


def _ids_cel(spec: str) -> str:
    given = f"has({spec}.storage) && has({spec}.storage.volumes)"
    return f"({given} ? {spec}.storage.volumes.map(v, v.id) : [0])"


def _shares_volume(old: Any, new: Any) -> bool:
    before, after = ({v.id for v in spec.storage.all_volumes} for spec in (old, new))
    return bool(before & after)


VOLUMES_RULE = TransitionRule(
    path="spec.storage.volumes",
    message="storage.volumes: one of the volumes must stay, to which the replicas of the others can move",
    cel=f"{_ids_cel('self')}.exists(i, i in {_ids_cel('oldSelf')})",
    allows=_shares_volume,
)
_BOTH_CEL: Final = "has(self.storage) && has(oldSelf.storage)"
POOL_VOLUMES_RULE = TransitionRule(
    path=VOLUMES_RULE.path,
    message=VOLUMES_RULE.message,
    # Without a storage of its own, it has that of its cluster, which is not known here.
    cel=f"!({_BOTH_CEL}) || {VOLUMES_RULE.cel}",
    allows=lambda old, new: old.storage is None or new.storage is None or _shares_volume(old, new),
)

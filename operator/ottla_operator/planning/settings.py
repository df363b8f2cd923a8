"""Which settings of brokers or of a topic are a resource's, and how those differ from its spec.

Called by the planners of topics and of clusters. A resource owns the settings that its spec names, and those
that it named before until they are reset to their default; the status records their names
(`managedSettings`). All others belong to whoever set them: they are shown (`unmanagedSettings`), and stay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ottla_operator.resources.common import Metadata, UnmanagedSetting


@dataclass(frozen=True, slots=True)
class OwnedSettings:
    """What is due, and what the status says of it."""

    managed: list[str]
    """The names that are the resource's."""
    unmanaged: list[UnmanagedSetting]
    changed: Mapping[str, str] = field(default_factory=dict)
    """To set."""
    deleted: tuple[str, ...] = ()
    """To reset to their default."""
    recorded: bool = True
    """The status has the names already, so that the changes may be made: an operator that is stopped after
    them knows later what it has set."""

    @property
    def is_due(self) -> bool:
        return bool(self.changed or self.deleted)


def plan_settings(
    wanted: Mapping[str, str],
    current: Mapping[str, str | None],
    managed: Collection[str],
    metadata: Metadata,
) -> OwnedSettings:
    """`current`: what is set, with None for values that brokers do not tell; `managed`: the status' record.

    A resource that is only observed takes possession of nothing.
    """
    kept = {name for name in managed if name in wanted or name in current}
    owned = kept.union(wanted) if metadata.acted_upon else kept
    changed = {name: value for name, value in wanted.items() if not is_same(current.get(name), value)}
    return OwnedSettings(
        managed=sorted(owned),
        unmanaged=[
            UnmanagedSetting(name=name, value=value)
            for name, value in sorted(current.items())
            if name not in wanted and name not in managed
        ],
        changed=changed,
        deleted=tuple(sorted(name for name in managed if name in current and name not in wanted)),
        recorded=set(changed) <= set(managed),
    )


def is_same(current: str | None, wanted: str) -> bool:
    """Lists compare without their blanks, as Kafka reads them."""
    return current is not None and _normal(current) == _normal(wanted)


def _normal(value: str) -> str:
    return ",".join(part.strip() for part in value.split(","))

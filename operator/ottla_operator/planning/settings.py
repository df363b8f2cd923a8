"""Which settings of brokers or of a topic a resource owns, and the changes to make them as in its spec.

Called by the planners of topics and of clusters. A resource owns the settings that its spec names, and those
that it named before until they are reset to their default; the status records their names
(`managedSettings`). Settings that other tools have set are shown in the status (`unmanagedSettings`) and not
changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ottla_operator.resources.common import Metadata, UnmanagedSetting


@dataclass(frozen=True, slots=True)
class OwnedSettings:
    """The changes that are due, and the record for the status."""

    managed: list[str]
    """The names of the settings that the resource owns."""
    unmanaged: list[UnmanagedSetting]
    changed: Mapping[str, str] = field(default_factory=dict)
    """Values to set."""
    deleted: tuple[str, ...] = ()
    """Names to reset to their default."""
    recorded: bool = True
    """The status has the names already, so the changes may be made: after a restart, the operator still
    has the record of what it has set."""

    @property
    def is_due(self) -> bool:
        return bool(self.changed or self.deleted)


def plan_settings(
    wanted: Mapping[str, str],
    current: Mapping[str, str | None],
    managed: Collection[str],
    metadata: Metadata,
) -> OwnedSettings:
    """`current`: the values that are set, None for sensitive ones; `managed`: the status' record.

    A resource that is paused or unmanaged takes no ownership.
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
    """Whether the values are equal; lists are compared without blanks, as Kafka parses them."""
    return current is not None and _normal(current) == _normal(wanted)


def _normal(value: str) -> str:
    return ",".join(part.strip() for part in value.split(","))

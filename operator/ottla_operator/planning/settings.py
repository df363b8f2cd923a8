"""How settings that are differ from those that are wanted: for the planners of topics and of clusters."""

from __future__ import annotations

from collections.abc import Mapping


def difference(wanted: Mapping[str, str], current: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """(settings to set, settings to put back to their default)."""
    changed = {
        name: value
        for name, value in wanted.items()
        if name not in current or _normal(current[name]) != _normal(value)
    }
    return changed, [name for name in current if name not in wanted]


def _normal(value: str) -> str:
    """Lists compare without their blanks, as Kafka reads them."""
    return ",".join(part.strip() for part in value.split(","))

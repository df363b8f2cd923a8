"""Settings of topics and brokers as rows of a table: value, source, default, documentation. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ottla.client.admin_types import ConfigEntry
from ottla_console.views import formats
from ottla_console.views.tables import Column, Query, Table, table_of

SOURCES: Final[Mapping[int, str]] = {
    1: "topic",
    2: "broker, dynamic",
    3: "all brokers, dynamic",
    4: "server.properties",
    5: "default",
    6: "logger, dynamic",
}
"""Where the value of a setting comes from (KIP-226)."""
DEFAULT_SOURCE: Final = 5


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting with its source."""

    name: str
    value: str | None
    source: int
    default: str | None
    """What it would be without this value; None: this value is the default."""
    default_source: str
    """Where that would come from; empty for Kafka's default."""
    sensitive: bool
    documentation: str

    @property
    def source_name(self) -> str:
        return SOURCES.get(self.source, "unknown")

    @property
    def readable(self) -> str:
        """Milliseconds and bytes as people say them; empty for other settings, and for no limit."""
        return readable(self.name, self.value)

    @property
    def own(self) -> bool:
        """Set for this very thing, rather than inherited."""
        return self.source in (1, 2, 6)


def readable(name: str, value: str | None) -> str:
    """`7 d` for retention.ms=604800000; empty where that says no more."""
    try:
        number = int(value or "")
    except ValueError:
        return ""
    if not 1000 <= number < 2**62:
        return ""
    if name.endswith(".ms"):
        return formats.duration(number)
    return formats.size(number) if name.endswith(".bytes") else ""


SETTINGS: Final[tuple[Column[SettingRow], ...]] = (
    Column("name", "Setting", lambda row: row.name),
    Column("value", "Value"),
    Column("source", "Source", lambda row: (row.source, row.name)),
)


def settings_table(entries: Mapping[str, ConfigEntry], query: Query) -> Table[SettingRow]:
    """All settings; those that were set for this very thing come first."""
    rows = [_row(name, entry) for name, entry in entries.items()]
    return table_of(
        rows, SETTINGS, query, text=lambda row: f"{row.name} {row.documentation}", default_sort="source"
    )


def changed(entries: Mapping[str, ConfigEntry]) -> int:
    """The number of settings that are not at the default."""
    return sum(entry.source != DEFAULT_SOURCE for entry in entries.values())


def _row(name: str, entry: ConfigEntry) -> SettingRow:
    inherited = [each for each in entry.synonyms if each.source != entry.source]
    below = inherited[0].source if inherited else DEFAULT_SOURCE
    return SettingRow(
        name,
        None if entry.sensitive else entry.value,
        entry.source,
        inherited[0].value if inherited else None,
        "" if below == DEFAULT_SOURCE else SOURCES.get(below, "unknown"),
        entry.sensitive,
        entry.documentation or "",
    )

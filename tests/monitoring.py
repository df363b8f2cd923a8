"""The queries of dashboards and alerts, their metrics, and the tables of docs/reference/metrics.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from charts.dashboards import FOLDER
from tests.selection import ROOT

ALERTS = ROOT / "charts/ottla/alerts.yaml"
PAGE = ROOT / "docs/operations/monitoring.md"
METRICS = ROOT / "docs/reference/metrics.md"

_NOT_NAMES = re.compile(
    r'"(?:\\.|[^"\\])*"'  # strings
    r"|\{[^}]*\}|\[[^\]]*\]"  # selectors and ranges
    r"|\b(?:by|without|on|ignoring|group_left|group_right) *\([^)]*\)"
    r"|\b(?:and|or|unless|bool|offset)\b"
)
_NAME = re.compile(r"\b[a-zA-Z_:][a-zA-Z0-9_:]*\b(?! *\()")


class Query(NamedTuple):
    where: str
    text: str


class Row(NamedTuple):
    """A row of a table of metrics."""

    name: str
    kind: str
    labels: frozenset[str]


def dashboards() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def panel_queries(name: str, dashboard: dict[str, Any]) -> Iterator[Query]:
    """The queries of the panels, with the variables as Grafana sets them by default."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield Query(f"{name}: {panel['title']}", with_defaults(target["expr"]))


def with_defaults(query: str, rate: str = "5m") -> str:
    return re.sub(r"\$\w+", ".*", query.replace("$__rate_interval", rate))


def variables(dashboard: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The name, metric and label of each variable."""
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"])
            assert found, variable["definition"]
            yield variable["name"], with_defaults(found[1]), found[2]


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def metrics_of(query: str) -> set[str]:
    """The names of the metrics in a query."""
    return set(_NAME.findall(_NOT_NAMES.sub(" ", query)))


def all_queries() -> Iterator[Query]:
    for name, dashboard in dashboards().items():
        yield from panel_queries(name, dashboard)
        for variable, metric, _ in variables(dashboard):
            yield Query(f"{name}: variable {variable}", metric)
    for rule in alerts():
        yield Query(rule["alert"], rule["expr"])


def tables() -> dict[str, list[Row]]:
    """The rows of the tables of metrics in the page, by the heading above."""
    found: dict[str, list[Row]] = {}
    heading = ""
    for line in METRICS.read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif row := re.match(r"\| `([a-z_]+)` \| (\w+) \| ([^|]*) \|", line):
            labels = frozenset(re.findall(r"`([^`]+)`", row[3]))
            found.setdefault(heading, []).append(Row(row[1], row[2], labels))
    return found

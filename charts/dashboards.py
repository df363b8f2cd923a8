"""Writes Grafana's dashboards into the chart: the JSON of each from its compact description, dashboards.yaml.

`python -m charts.dashboards` writes charts/ottla/dashboards; `--check`, of `make lint`, fails when a file is
outdated. tests/interop/prometheus evaluates every query over a running cluster.

All variables match any value by default, also of a label that does not exist, so that the dashboards do not
need the labels that Prometheus adds on Kubernetes.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

SOURCE: Final = Path(__file__).with_suffix(".yaml")
FOLDER: Final = Path(__file__).parent / "ottla/dashboards"

_CLUSTERS: Final = 'namespace=~"$namespace",cluster=~"$cluster"'
MACROS: Final = {
    "clusters": _CLUSTERS,
    "brokers": f'{_CLUSTERS},instance=~"$broker"',
    "topics": f'{_CLUSTERS},topic=~"$topic",topic!=""',
    "groups": f'{_CLUSTERS},consumergroup=~"$group"',
    "jobs": 'namespace=~"$namespace",instance=~"$instance"',
    "rate": "$__rate_interval",
}
_KINDS: Final = {"stat": "stat", "graph": "timeseries", "table": "table"}
_OPTIONS: Final = {*_KINDS, "about", "unit", "width", "orange", "red", "labels"}
_WIDTH: Final = 24
_WIDTHS: Final = {"stat": 4, "graph": 8, "table": _WIDTH}
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}

Json: TypeAlias = dict[str, Any]


def _expanded(query: str) -> str:
    return re.sub(r"<([a-z]+)>", lambda macro: MACROS[macro[1]], query)


def render(name: str, described: Json) -> Json:
    """Grafana's JSON model of a dashboard."""
    panels: list[Json] = []
    y = 0
    for title, row in described["rows"].items():
        place = {"x": 0, "y": y, "w": _WIDTH, "h": 1}
        number = len(panels) + 1
        panels.append({"id": number, "type": "row", "title": title, "gridPos": place, "panels": []})
        x, y, height = 0, y + 1, 0
        for panel in row:
            (kind,) = _KINDS.keys() & panel
            width, tall = panel.get("width", _WIDTHS[kind]), 4 if kind == "stat" else 8
            if x + width > _WIDTH:
                x, y, height = 0, y + height, 0
            place = {"x": x, "y": y, "w": width, "h": tall}
            panels.append({"id": len(panels) + 1, "gridPos": place, **_panel(kind, panel)})
            x, height = x + width, max(height, tall)
        y += height
    datasource = {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"}
    variables = [_variable(*each) for each in described["variables"].items()]
    others = {"type": "dashboards", "title": "Ottla", "tags": ["ottla"], "asDropdown": True}
    return {
        "uid": f"ottla-{name}",
        "title": described["title"],
        "tags": ["ottla"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [{**others, "includeVars": True, "keepTime": True}],
        "templating": {"list": [datasource, *variables]},
        "annotations": {"list": []},
        "panels": panels,
    }


def _panel(kind: str, panel: Json) -> Json:
    queries = {legend: query for legend, query in panel.items() if legend not in _OPTIONS}
    is_graph = kind == "graph"
    targets = [
        {
            "refId": chr(ord("A") + number),
            "datasource": _DATASOURCE,
            "expr": _expanded(query),
            "instant": not is_graph,
            "range": is_graph,
            **({"format": "table"} if kind == "table" else {"legendFormat": legend}),
        }
        for number, (legend, query) in enumerate(queries.items())
    ]
    curve = {"lineWidth": 1, "fillOpacity": 10, "showPoints": "never", "spanNulls": False}
    colours = [{"color": "green", "value": None}]
    colours += [{"color": colour, "value": panel[colour]} for colour in ("orange", "red") if colour in panel]
    defaults = {
        "unit": panel.get("unit", "short"),
        **({"custom": curve, "min": 0} if is_graph else {}),
        "thresholds": {"mode": "absolute", "steps": colours},
    }
    return {
        "type": _KINDS[kind],
        "title": panel[kind],
        **({"description": panel["about"]} if "about" in panel else {}),
        "datasource": _DATASOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        **_view(kind, panel.get("labels", {}), list(queries)),
    }


def _view(kind: str, labels: Mapping[str, str], columns: Sequence[str]) -> Json:
    """How a panel shows its data. `labels`: of a table, the titles of its columns by label."""
    match kind:
        case "stat":
            reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
            return {"options": {"reduceOptions": reduce, "colorMode": "value", "graphMode": "none"}}
        case "graph":
            legend = {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]}
            return {"options": {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}}
        case _:
            # Grafana calls the values of several queries "Value #A", "Value #B" and so on.
            several = len(columns) > 1
            values = {
                f"Value #{chr(65 + n)}" if several else "Value": title for n, title in enumerate(columns)
            }
            titles = {**labels, **{value: title for value, title in values.items() if title}}
            hidden = [each for each in ("Time", "__name__", "instance", "job", *values) if each not in titles]
            organized = {
                "renameByName": titles,
                "excludeByName": dict.fromkeys(hidden, True),
                "indexByName": {column: place for place, column in enumerate(titles)},
            }
            merge, organize = {"id": "merge", "options": {}}, {"id": "organize", "options": organized}
            return {"options": {"showHeader": True}, "transformations": [merge, organize]}


def _variable(name: str, query: str) -> Json:
    """A choice of several values of a label."""
    return {
        "type": "query",
        "name": name,
        "label": name.capitalize(),
        "datasource": _DATASOURCE,
        "query": {"query": _expanded(query), "refId": name},
        "definition": _expanded(query),
        "refresh": 2,  # when the time range changes
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": "All", "value": "$__all"},
    }


def files() -> dict[Path, str]:
    """The generated files and their content."""
    described: dict[str, Json] = yaml.safe_load(SOURCE.read_text())
    return {
        FOLDER / f"ottla-{name}.json": json.dumps(render(name, dashboard), indent=1) + "\n"
        for name, dashboard in described.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write Grafana's dashboards into the chart.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when they are outdated")
    check = parser.parse_args(arguments).check
    stale = {path: text for path, text in files().items() if not path.is_file() or path.read_text() != text}
    for path, text in stale.items():
        if check:
            print(f"{path} is outdated: run `python -m charts.dashboards`", file=sys.stderr)  # noqa: T201
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return 1 if check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())

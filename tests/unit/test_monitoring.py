"""The chart's dashboards and alerts: current, complete, and explained in docs/operations/monitoring.md."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import pytest

from charts import dashboards
from tests import monitoring

DASHBOARDS = monitoring.dashboards()
OF_PROMETHEUS = {"up"}
OF_KUBELET = {"kubelet_volume_stats_available_bytes", "kubelet_volume_stats_capacity_bytes"}


def anchors() -> set[str]:
    return {
        re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-")
        for line in monitoring.PAGE.read_text().splitlines()
        if line.startswith("#")
    }


def test_the_dashboards_are_current() -> None:
    assert dashboards.main(["--check"]) == 0, "run `python -m charts.dashboards`"
    assert {path.stem for path in dashboards.files()} == DASHBOARDS.keys()


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return all(
        one[at] < other[at] + other[size] and other[at] < one[at] + one[size] for at, size in ("xw", "yh")
    )


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_lie_side_by_side(name: str) -> None:
    panels: list[dict[str, Any]] = DASHBOARDS[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    assert [pair for pair in combinations(places, 2) if overlap(*pair)] == []


@pytest.mark.parametrize("name", DASHBOARDS)
def test_queries_have_no_macro_left_and_use_the_variables_that_exist(name: str) -> None:
    dashboard = DASHBOARDS[name]
    known = {variable["name"] for variable in dashboard["templating"]["list"]} | {"__rate_interval"}
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            assert not re.search(r"<[a-z]+>", target["expr"]), panel["title"]
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= known, panel["title"]


def test_every_metric_of_a_query_is_in_the_tables_of_the_page() -> None:
    tables = monitoring.tables()
    known = {row.name for rows in tables.values() for row in rows} | OF_PROMETHEUS | OF_KUBELET
    known |= {f"{row.name}_bucket" for rows in tables.values() for row in rows if row.kind == "histogram"}
    used = {query.where: monitoring.metrics_of(query.text) for query in monitoring.all_queries()}
    assert all(used.values())
    assert {where: names - known for where, names in used.items() if names - known} == {}


@pytest.mark.parametrize(
    ("query", "metrics"),
    [
        ('sum by (a, b) (rate(x_total{c=~"d",e="f g"}[5m])) / on (a) group_left (z) y', {"x_total", "y"}),
        ("a > 0 unless on (c) d == 1 or e offset 5m", {"a", "d", "e"}),
        ("histogram_quantile(0.99, sum by (le) (rate(x_bucket[1h]))) < 14 * 86400", {"x_bucket"}),
        ('label_replace(a, "b", "$1", "c", "(.+)") and vector(0)', {"a"}),
    ],
)
def test_the_metrics_of_a_query_are_found(query: str, metrics: set[str]) -> None:
    assert monitoring.metrics_of(query) == metrics


@pytest.mark.parametrize("rule", monitoring.alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_says_how_grave_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    name, severity = rule["alert"], rule["labels"]["severity"]
    assert severity in ("critical", "warning")
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/operations/monitoring.md#{name.lower()}"
    assert name.lower() in anchors()
    row = re.search(rf"^\| \[{name}\]\(#{name.lower()}\) \| ([a-z, ]+) \|", monitoring.PAGE.read_text(), re.M)
    assert row, "the table of alerts"
    assert severity in row[1].split(", ")


def test_the_page_explains_no_alert_that_there_is_not() -> None:
    explained = set(re.findall(r"^### (Ottla\w+)$", monitoring.PAGE.read_text(), re.M))
    assert explained == {rule["alert"] for rule in monitoring.alerts()}

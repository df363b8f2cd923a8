"""The health checks of docs/operations/gitops.md, run over statuses of the operator, and examples/gitops."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import celpy
import jsonschema
import pytest
import yaml
from lupa.lua51 import LuaRuntime, lua_type

from ottla_operator.resources import KINDS
from ottla_operator.resources.loading import invalid_finding, parse_resource, status_with
from tests.worlds.operator_simulation import OperatorSimulation

_EXAMPLE = Path("examples/gitops")
_PAGE = Path("docs/operations/gitops.md")
_OPERATOR = Path("operator/ottla_operator")


def blocks() -> dict[str, dict[str, Any]]:
    """The manifests of the page by kind."""
    found = re.findall(r"^```yaml\n(.*?)^```", _PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return {manifest["kind"]: manifest for manifest in map(yaml.safe_load, found)}


def lua_script() -> str:
    customizations = yaml.safe_load(blocks()["ConfigMap"]["data"]["resource.customizations"])
    return str(customizations["ottla.dev/*"]["health.lua"])


def argo_cd(item: dict[str, Any]) -> tuple[str, str]:
    """Status and message, as Argo CD's Lua (5.1) computes them."""
    lua = LuaRuntime(unpack_returned_tuples=True)

    def converted(value: Any) -> Any:
        if isinstance(value, dict):
            return lua.table_from({name: converted(each) for name, each in value.items()})
        return lua.table_from([converted(each) for each in value]) if isinstance(value, list) else value

    run = lua.execute(f"return function(obj)\n{lua_script()}\nend")
    health = run(converted(item))
    assert lua_type(health) == "table"
    return health.status, health.message


def flux(item: dict[str, Any]) -> str:
    """The status by Flux's rules: the generation first, then failed, then current."""
    generation = item["metadata"]["generation"]
    if item["status"].get("observedGeneration", generation) != generation:
        return "InProgress"
    (entry,) = [e for e in blocks()["Kustomization"]["spec"]["healthCheckExprs"] if e["kind"] == item["kind"]]
    environment = celpy.Environment()
    for status in ("failed", "current"):
        program = environment.program(environment.compile(entry[status]))
        if program.evaluate({name: celpy.json_to_cel(item[name]) for name in ("metadata", "status")}):
            return status.capitalize()
    return "InProgress"


def object_of(sim: OperatorSimulation, key: str) -> dict[str, Any]:
    return sim.store.stored[key].model_dump(by_alias=True, exclude_none=True)


@pytest.fixture
def sim() -> OperatorSimulation:
    sim = OperatorSimulation()
    sim.apply_cluster(3)
    sim.apply_topic("orders")
    sim.reconcile_until_ready()
    return sim


def test_a_ready_resource_is_healthy(sim: OperatorSimulation) -> None:
    for key in ("BrokerCluster/demo", "Topic/orders"):
        assert argo_cd(object_of(sim, key))[0] == "Healthy"
        assert flux(object_of(sim, key)) == "Current"


def test_a_new_generation_progresses_until_the_operator_has_seen_it(sim: OperatorSimulation) -> None:
    sim.apply_topic("orders", partitions=8)
    assert argo_cd(object_of(sim, "Topic/orders"))[0] == "Progressing"
    assert flux(object_of(sim, "Topic/orders")) == "InProgress"
    sim.reconcile()
    assert argo_cd(object_of(sim, "Topic/orders")) == ("Progressing", "growing from 4 to 8 partitions")
    assert flux(object_of(sim, "Topic/orders")) == "InProgress"
    sim.reconcile_until_ready()
    assert argo_cd(object_of(sim, "Topic/orders"))[0] == "Healthy"
    assert flux(object_of(sim, "Topic/orders")) == "Current"


def test_a_resource_that_waits_for_a_person_is_degraded_with_the_reason(sim: OperatorSimulation) -> None:
    sim.apply_topic("copy", topicName="orders")
    sim.reconcile()
    status, message = argo_cd(object_of(sim, "Topic/copy"))
    assert (status, "Topic/orders, which is older, owns" in message) == ("Degraded", True)
    assert flux(object_of(sim, "Topic/copy")) == "Failed"


@pytest.mark.parametrize("kind", ["BrokerCluster", "Topic"])
def test_an_invalid_spec_is_degraded_for_its_generation(kind: str) -> None:
    metadata = {"name": "new", "generation": 2}
    status = status_with(kind, metadata, {}, invalid_finding(["spec.x: wrong"], None), 0)
    item = {"kind": kind, "metadata": metadata, "status": status}
    assert argo_cd(item) == ("Degraded", "spec.x: wrong")
    assert flux(item) == "Failed"
    assert argo_cd({**item, "metadata": {**metadata, "generation": 3}})[0] == "Progressing"


def test_without_a_status_it_progresses_and_a_paused_one_is_suspended(sim: OperatorSimulation) -> None:
    for kind in KINDS:
        item: dict[str, Any] = {"kind": kind, "metadata": {"name": "new", "generation": 1}}
        assert argo_cd(item) == ("Progressing", "waiting for the operator")
    item = object_of(sim, "Topic/orders")
    item["metadata"]["annotations"] = {"ottla.dev/pause-reconciliation": "true"}
    assert argo_cd(item)[0] == "Suspended"


def test_every_reason_of_the_page_is_one_of_the_operators() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in _OPERATOR.rglob("*.py"))
    named = set(re.findall(r"(\w+) = true", lua_script()))
    for entry in blocks()["Kustomization"]["spec"]["healthCheckExprs"]:
        named.update(re.findall(r"'(\w+)'", entry["failed"].partition(" in ")[2]))
    assert len(named) > 5
    assert {reason for reason in named if f'"{reason}"' not in source} == set()


# ---- examples/gitops


def example(folder: str) -> list[dict[str, Any]]:
    files = sorted((_EXAMPLE / folder).rglob("*.yaml"))
    return [item for file in files for item in yaml.safe_load_all(file.read_text(encoding="utf-8"))]


def test_the_resources_of_the_example_are_valid() -> None:
    found = [item for item in example("shop") if item["apiVersion"].startswith("ottla.dev/")]
    assert {item["kind"] for item in found} == {"BrokerCluster", "Topic", "User"}
    for item in found:
        resource, problems = parse_resource(item["kind"], item["metadata"], item["spec"])
        assert resource is not None, problems
        assert not problems


def test_the_example_installs_the_chart_with_valid_values_before_the_shop() -> None:
    schema = json.loads(Path("charts/ottla/values.schema.json").read_text())
    by_name = {(item["kind"], item["metadata"]["name"]): item for item in example("argocd") + example("flux")}
    for source, values in (
        (
            by_name["Application", "ottla"]["spec"]["source"]["path"],
            by_name["Application", "ottla"]["spec"]["source"]["helm"]["valuesObject"],
        ),
        (
            by_name["HelmRelease", "ottla"]["spec"]["chart"]["spec"]["chart"],
            by_name["HelmRelease", "ottla"]["spec"]["values"],
        ),
    ):
        assert Path(source) == Path("charts/ottla")
        jsonschema.Draft7Validator(schema).validate(values)
    for path in (
        by_name["Application", "shop"]["spec"]["source"]["path"],
        by_name["Kustomization", "shop"]["spec"]["path"],
        by_name["Kustomization", "operator"]["spec"]["path"],
    ):
        assert list(Path(path).glob("*.yaml")), path
    assert by_name["Kustomization", "shop"]["spec"]["dependsOn"] == [{"name": "operator"}]
    (kustomization,) = [item for item in example("shop") if item["kind"] == "Kustomization"]
    for name in kustomization["resources"]:
        assert (_EXAMPLE / "shop" / name).exists()


def test_the_health_checks_of_the_example_are_those_of_the_page() -> None:
    (shop,) = [item for item in example("flux") if item["metadata"]["name"] == "shop"]
    entries = {entry["kind"]: entry for entry in shop["spec"]["healthCheckExprs"]}
    assert set(entries) == {"BrokerCluster", "Topic", "User"}
    for entry in blocks()["Kustomization"]["spec"]["healthCheckExprs"]:
        assert entries[entry["kind"]] == entry

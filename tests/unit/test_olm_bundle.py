"""The OLM bundle has all that manifests/operator.yaml and manifests/crds have, and nothing twice."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

import ottla
from release import bundle
from release.version import ROOT


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return bundle.files()


@pytest.fixture(scope="module")
def version(files: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(files["manifests/ottla.clusterserviceversion.yaml"])
    return found


@pytest.fixture(scope="module")
def objects() -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all((ROOT / "manifests/operator.yaml").read_text()) if each]


def test_the_deployment_and_its_rights_are_those_of_the_manifests(
    version: dict[str, Any], objects: list[dict[str, Any]]
) -> None:
    install = version["spec"]["install"]["spec"]
    (deployment,) = (each for each in objects if each["kind"] == "Deployment")
    assert [each["spec"] for each in install["deployments"]] == [deployment["spec"]]
    bound = {each["roleRef"]["name"] for each in objects if each["kind"].endswith("Binding")}
    rules = [
        each["rules"]
        for each in objects
        if each["kind"].endswith("Role") and each["metadata"]["name"] in bound
    ]
    assert [each["rules"] for each in (*install["clusterPermissions"], *install["permissions"])] == rules


def test_what_olm_does_not_make_is_a_manifest(files: dict[str, str], objects: list[dict[str, Any]]) -> None:
    beside = [
        yaml.safe_load(text) for name, text in files.items() if "service" in name or "clusterrole" in name
    ]
    names = {(each["kind"], each["metadata"]["name"]) for each in beside}
    assert names == {
        (
            "ClusterServiceVersion",
            yaml.safe_load(files["manifests/ottla.clusterserviceversion.yaml"])["metadata"]["name"],
        ),
        ("Service", "ottla-metrics"),
        *(
            ("ClusterRole", f"ottla-ottla-system-{role}")
            for role in ("admin", "edit", "spark-driver", "view")
        ),
    }
    assert not any(each["metadata"].get("namespace") for each in beside), "OLM chooses the namespace"


def test_every_kind_is_owned_and_has_its_definition(version: dict[str, Any], files: dict[str, str]) -> None:
    owned = {each["name"] for each in version["spec"]["customresourcedefinitions"]["owned"]}
    crds = {path.stem for path in (ROOT / "manifests/crds").iterdir()}
    assert owned == {f"{plural}.ottla.dev" for plural in crds}
    assert {f"manifests/ottla.ottla.dev_{plural}.yaml" for plural in crds} <= files.keys()


def test_it_has_the_version_and_an_example_of_each_kind(version: dict[str, Any]) -> None:
    assert version["spec"]["install"]["spec"]["deployments"][0]["spec"]["template"]["spec"]["containers"][0][
        "image"
    ].endswith(f":{ottla.__version__}")
    examples = json.loads(version["metadata"]["annotations"]["alm-examples"])
    owned = version["spec"]["customresourcedefinitions"]["owned"]
    assert sorted(each["kind"] for each in examples) == [each["kind"] for each in owned]

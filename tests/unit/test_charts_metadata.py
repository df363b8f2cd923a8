"""The charts' READMEs and metadata: current, and complete beside values.yaml and its schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from charts import metadata
from release.version import ROOT

OPEN = {"spec"}
"""Values whose fields the CustomResourceDefinitions check."""


def test_the_generated_parts_are_current() -> None:
    assert metadata.main(["--check"]) == 0, "run `python -m charts.metadata`"


@pytest.mark.parametrize("chart", metadata.CHARTS)
def test_every_value_says_what_it_is(chart: str) -> None:
    values = list(metadata.values(chart))
    assert [value.key for value in values if not value.description] == []


def test_comments_above_and_behind_a_key_are_its_own() -> None:
    values = {value.key: value for value in metadata.values("ottla")}
    assert values["image"].description == "The operator's image, and the default one of brokers."
    assert values["image.tag"] == ("image.tag", "string", '""', "the chart's appVersion")
    assert values["resources.limits"].default == '{"memory": "512Mi"}'
    assert "pools.fast" not in {value.key for value in metadata.values("ottla-cluster")}, "an example"


def keys_of(schema: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The keys that a schema names, without those above others."""
    for name, inner in schema.get("properties", {}).items():
        below = list(keys_of(inner, f"{prefix}{name}."))
        yield from below or [prefix + name]


@pytest.mark.parametrize("chart", metadata.CHARTS)
def test_the_schema_has_the_values_and_no_others(chart: str) -> None:
    schema = json.loads((ROOT / "charts" / chart / "values.schema.json").read_text())
    named = set(keys_of(schema)) - {"global"}
    given = {value.key for value in metadata.values(chart) if value.default}
    assert {
        key
        for key in given
        if not any(key == each or key.startswith(f"{each}.") for each in named)
        and key.partition(".")[0] not in OPEN
    } == set()
    assert {key for key in named if not any(each.startswith(key) for each in given)} == set()


def test_artifact_hub_gets_the_kinds_and_images() -> None:
    annotations = yaml.safe_load((ROOT / "charts/ottla/Chart.yaml").read_text())["annotations"]
    kinds = yaml.safe_load(annotations["artifacthub.io/crds"])
    assert {each["name"] for each in kinds} == {
        f"{path.stem}.ottla.dev" for path in (ROOT / "manifests/crds").iterdir()
    }
    assert {
        each["image"].partition(":")[0] for each in yaml.safe_load(annotations["artifacthub.io/images"])
    } == {
        "ottla",
        "ottla-spark",
        "ottla-connect",
    }

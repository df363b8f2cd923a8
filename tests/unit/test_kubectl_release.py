"""`kubectl ottla release`: takes the finalizer of an operator that is gone off the resources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from ottla_operator.kubectl import command
from ottla_operator.kubernetes.naming import FINALIZER
from tests.unit.test_kubectl_roll import changes

__all__ = ["changes"]


def release(folder: Path, *items: dict[str, Any]) -> tuple[list[str], str]:
    """The commands that change something, and what is printed."""
    (folder / "cluster").write_text(json.dumps({"items": items}))
    result = CliRunner().invoke(command.main, ["release", "-A"])
    assert result.exit_code == 0, result.output
    get, *more = (folder / "calls").read_text().splitlines()
    assert get.startswith("get -o json ")
    assert get.endswith(" -A")
    return more, result.output


def topic(*finalizers: str) -> dict[str, Any]:
    metadata = {
        "name": "orders",
        "namespace": "shop",
        "resourceVersion": "7",
        "finalizers": list(finalizers),
    }
    return {"kind": "Topic", "metadata": metadata}


def test_only_the_operators_finalizer_is_removed(changes: Path) -> None:
    (patch,), output = release(changes, topic("other/one", FINALIZER), topic("other/one"))
    assert patch.startswith("--namespace shop patch topics.ottla.dev orders --type=merge -p ")
    wanted = {"metadata": {"resourceVersion": "7", "finalizers": ["other/one"]}}
    assert json.loads(patch.partition(" -p ")[2]) == wanted
    assert output == "shop/Topic/orders is released\n"


def test_a_release_without_finalizers_says_so(changes: Path) -> None:
    patches, output = release(changes, topic())
    assert not patches
    assert output == "no resource has the operator's finalizer\n"

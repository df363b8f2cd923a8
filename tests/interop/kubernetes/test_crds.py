"""The CustomResourceDefinitions by the API server's own validation: schemas, and the cost of rules."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from ottla_operator.resources.crds import FOLDER

pytestmark = pytest.mark.timeout(900)
_SOURCE = Path(__file__).parents[2] / "judges" / "crd_validator"


@pytest.fixture(scope="module")
def validator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, built from Kubernetes' own modules."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("needs Go, to build the API server's validation")
    binary = tmp_path_factory.mktemp("go") / "crdvalidator"
    environment = {**os.environ, "GOFLAGS": "-mod=readonly"}
    subprocess.run(
        [go, "build", "-o", str(binary), "."], cwd=_SOURCE, check=True, timeout=840, env=environment
    )
    return binary


def said(validator: Path, files: Sequence[Path]) -> str:
    done = subprocess.run(
        [validator, *files], capture_output=True, text=True, timeout=300, check=False, cwd=Path.cwd()
    )
    assert not done.stderr, done.stderr
    return done.stdout


def test_the_api_server_takes_every_definition(validator: Path) -> None:
    files = sorted(FOLDER.glob("*.yaml"))
    assert len(files) >= 6
    assert said(validator, files) == ""


def test_rules_over_unbounded_lists_are_refused(validator: Path, tmp_path: Path) -> None:
    unbounded = tmp_path / "pipelines.yaml"
    text = (FOLDER / "pipelines.yaml").read_text(encoding="utf-8")
    unbounded.write_text("".join(line for line in text.splitlines(True) if "maxItems: " not in line))
    assert "estimated rule cost exceeds budget" in said(validator, [unbounded])

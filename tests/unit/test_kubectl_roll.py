"""`kubectl ottla roll`: requests a restart by an annotation, or approves what waits for approval."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ottla_operator.kubectl import command

_KUBECTL = """#!/bin/sh
printf '%s\\n' "$*" >> "$CALLS"
case "$1" in get) cat "$CLUSTER" ;; esac
"""


@pytest.fixture
def changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake kubectl on the PATH, and the folder of its cluster and its calls."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(_KUBECTL)
    kubectl.chmod(kubectl.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("CLUSTER", str(tmp_path / "cluster"))
    return tmp_path


def roll(changes: Path, strategy: str, status: dict[str, Any]) -> tuple[str, str]:
    """The command line that changes something, and what is printed."""
    spec = {"rollingUpdate": {"strategy": strategy}}
    (changes / "cluster").write_text(json.dumps({"metadata": {}, "spec": spec, "status": status}))
    result = CliRunner().invoke(command.main, ["roll", "demo"])
    assert result.exit_code == 0, result.output
    (change,) = [line for line in (changes / "calls").read_text().splitlines() if not line.startswith("get")]
    return change, result.output


@pytest.mark.parametrize("strategy", ["Auto", "OnApproval"])
def test_a_restart_is_requested_by_an_annotation_and_not_in_the_spec(changes: Path, strategy: str) -> None:
    zookeeper = {"targetHash": "zk", "updated": 3, "total": 3}
    change, output = roll(changes, strategy, {"zookeeper": zookeeper})
    request = r"ottla\.dev/restart-requested-at=20[0-9-]+T[0-9:]+Z"
    assert re.fullmatch(rf"annotate brokerclusters\.ottla\.dev demo {request} --overwrite", change)
    assert "rolling restart of demo requested" in output


def test_restarts_that_wait_for_approval_are_approved(changes: Path) -> None:
    change, output = roll(changes, "OnApproval", {"rollout": {"targetHash": "abc"}})
    assert change == "annotate brokerclusters.ottla.dev demo ottla.dev/approve-rollout=abc --overwrite"
    assert output == "approved: demo rolls brokers to revision abc\n"


def test_zookeeper_and_brokers_are_approved_together(changes: Path) -> None:
    zookeeper = {"targetHash": "zk", "updated": 2, "total": 3}
    change, output = roll(changes, "OnApproval", {"rollout": {"targetHash": "abc"}, "zookeeper": zookeeper})
    assert change.endswith(" ottla.dev/approve-rollout=abc,zk --overwrite")
    assert output == "approved: demo rolls brokers to revision abc, ZooKeeper to revision zk\n"


def test_zookeeper_alone_is_approved(changes: Path) -> None:
    change, _ = roll(changes, "OnApproval", {"zookeeper": {"targetHash": "zk", "updated": 0, "total": 3}})
    assert change.endswith(" ottla.dev/approve-rollout=zk --overwrite")

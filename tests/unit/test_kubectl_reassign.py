"""`kubectl ottla reassign`: its kubectl commands, and how long it waits."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ottla_operator.kubectl import command

# Records its arguments. `get` prints a cluster whose operator has completed the newest request.
_KUBECTL = """#!/bin/sh
printf '%s\\n' "$*" >> "$CALLS"
case "$1" in get) ;; *) exit 0 ;; esac
id=$(sed -n 's/.*reassign={"id": "\\([0-9a-f]*\\)".*/\\1/p' "$CALLS" | tail -n 1)
printf '{"metadata": {}, "status": {"reassignRequest": {"id": "%s", "phase": "%s", "message": "%s"}}}' \\
  "$id" "$PHASE" "so it is"
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake kubectl on the PATH; the file where it records its command lines."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(_KUBECTL)
    kubectl.chmod(kubectl.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("PHASE", "Completed")
    monkeypatch.setattr(command, "_POLL_S", 0.01)
    return tmp_path / "calls"


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(command.main, ["reassign", "demo", *arguments])


def _request(calls: Path) -> dict[str, Any]:
    (line,) = [line for line in calls.read_text().splitlines() if line.startswith("annotate")]
    assert line.startswith("annotate brokerclusters.ottla.dev demo ottla.dev/reassign={")
    assert line.endswith(" --overwrite")
    request: dict[str, Any] = json.loads(line.partition("=")[2].removesuffix(" --overwrite"))
    return request


def test_reassign_without_options_requests_a_rebalance(calls: Path) -> None:
    result = _run()
    assert result.exit_code == 0, result.output
    request = _request(calls)
    assert set(request) == {"id"}
    assert request["id"] in result.output


def test_global_flags_are_accepted_before_and_after_the_command(calls: Path) -> None:
    before = CliRunner().invoke(command.main, ["-n", "shop", "reassign", "demo", "--release"])
    after = CliRunner().invoke(
        command.main, ["--context", "big", "reassign", "demo", "--release", "-n", "shop"]
    )
    assert (before.exit_code, after.exit_code) == (0, 0), after.output
    first, second = calls.read_text().splitlines()
    assert first.startswith("--namespace shop annotate ")
    assert second.startswith("--context big --namespace shop annotate ")


def test_duplicate_broker_ids_are_removed(calls: Path) -> None:
    assert _run("--empty", "3,2,3").exit_code == 0
    assert _request(calls)["empty"] == [2, 3]


def test_an_invalid_list_of_brokers_is_rejected_before_any_request(calls: Path) -> None:
    result = _run("--empty", "two")
    assert result.exit_code == 2
    assert "not a list of broker ids" in result.output
    assert not calls.exists()


def test_release_removes_the_annotation(calls: Path) -> None:
    assert _run("--release").exit_code == 0
    assert calls.read_text().strip() == "annotate brokerclusters.ottla.dev demo ottla.dev/reassign-"


@pytest.mark.parametrize(("phase", "code"), [("Completed", 0), ("Refused", 1)])
def test_wait_exits_with_the_result_of_the_request(
    calls: Path, monkeypatch: pytest.MonkeyPatch, phase: str, code: int
) -> None:
    monkeypatch.setenv("PHASE", phase)
    result = _run("--wait")
    assert result.exit_code == code
    assert f"{phase}: so it is" in result.output

"""`kubectl ottla rebalance`: the table of a proposal, and the annotations that it sets."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from ottla_operator.kubectl import command
from ottla_operator.rebalance_command import rebalance_text
from ottla_operator.rehearsal.report import duration_text, size_text

PROPOSAL: dict[str, Any] = {
    "id": "rebalance-7",
    "reason": "HotSpot",
    "partitions": 2,
    "replicas": 1,
    "leaders": 1,
    "bytes": 1_500_000,
    "seconds": 90,
    "scoreBefore": 60,
    "scoreAfter": 100,
    "goals": [
        {
            "name": "RackAwareness",
            "hard": True,
            "metBefore": True,
            "metAfter": True,
            "before": "0 partitions",
        },
        {
            "name": "DiskUsageDistribution",
            "metBefore": False,
            "metAfter": True,
            "before": "0.40 to 1.90",
            "after": "0.95 to 1.05",
        },
    ],
    "moves": [{"topic": "orders", "partitions": ["3=2,1", "4=1,2"]}],
}


class FakeKubectl(command.Kubectl):
    """Instead of kubectl: a cluster whose operator answers requests at once."""

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        self.state = state or {}
        self.set: list[str] = []

    def items(self, *arguments: str) -> list[dict[str, Any]]:
        return [{"metadata": {"name": "demo"}, "status": {"rebalance": self.state}}]

    def run(self, *arguments: str) -> str:
        value = arguments[3].partition("=")[2]
        self.set.append(value)
        action, _, token = value.partition(":")
        if action == "propose":
            self.state = {"phase": "Proposed", "handledRequest": token, "proposal": PROPOSAL}
        return ""


def invoke(kubectl: FakeKubectl, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(command.main, ["rebalance", "demo", *arguments], obj=kubectl)
    return result.exit_code, result.output


def test_a_proposal_is_printed_as_a_table() -> None:
    text = rebalance_text({"phase": "Proposed", "proposal": PROPOSAL})
    assert [
        line.split() for line in text.splitlines() if line.startswith(("bytes", "time", "score", "Disk"))
    ] == [
        ["bytes", "1.5", "MB"],
        ["time", "1m30s"],
        ["score", "60", "->", "100", "of", "100"],
        *[["DiskUsageDistribution", "soft", "0.40", "to", "1.90", "no", "0.95", "to", "1.05", "yes"]],
    ]
    assert "orders   3           2,1" in text


def test_a_dry_run_requests_a_proposal_and_names_the_command_that_executes_it() -> None:
    kubectl = FakeKubectl()
    code, output = invoke(kubectl, "--dry-run")
    assert code == 0
    assert kubectl.set[0].startswith("propose:")
    assert "kubectl ottla rebalance demo --approve rebalance-7" in output


def test_only_the_current_proposal_can_be_approved() -> None:
    kubectl = FakeKubectl({"phase": "Proposed", "proposal": PROPOSAL})
    assert invoke(kubectl, "--approve", "rebalance-6")[0] == 1
    assert not kubectl.set
    assert invoke(kubectl, "--approve", "rebalance-7")[0] == 0
    assert kubectl.set == ["approve:rebalance-7"]


def test_a_rebalance_can_be_cancelled_as_a_proposal_and_in_progress() -> None:
    assert invoke(FakeKubectl(), "--cancel")[0] == 1
    kubectl = FakeKubectl({"phase": "Moving", "proposal": PROPOSAL})
    assert invoke(kubectl, "--cancel")[0] == 0
    assert kubectl.set == ["cancel:rebalance-7"]


@pytest.mark.parametrize(("count", "text"), [(999, "999 B"), (1500, "1.5 kB"), (2 * 10**12, "2.0 TB")])
def test_sizes_are_printed_with_decimal_units(count: int, text: str) -> None:
    assert size_text(count) == text


def test_durations_are_printed_with_two_units_at_most() -> None:
    assert [duration_text(s) for s in (5, 65, 5400)] == ["5s", "1m05s", "1h30m"]

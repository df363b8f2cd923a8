"""`kubectl ottla restart`, `fence`, `unfence`, `hibernate`, `wake`: the kubectl commands that they run."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from ottla_operator.kubectl import command

_PLURAL = "brokerclusters.ottla.dev"


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The command lines of kubectl."""
    lines: list[tuple[str, ...]] = []
    monkeypatch.setattr(command.Kubectl, "__init__", lambda self: None)
    monkeypatch.setattr(command.Kubectl, "run", lambda self, *arguments: lines.append(arguments))
    return lines


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("restart demo 1", ("annotate", "pod", "demo-brokers-1", "ottla.dev/restart=true", "--overwrite")),
        (
            "fence demo 2,1",
            ("annotate", _PLURAL, "demo", "ottla.dev/fenced=1,2", "ottla.dev/fence-now-", "--overwrite"),
        ),
        (
            "fence demo 1 --now",
            ("annotate", _PLURAL, "demo", "ottla.dev/fenced=1", "ottla.dev/fence-now=true", "--overwrite"),
        ),
        ("unfence demo", ("annotate", _PLURAL, "demo", "ottla.dev/fenced-", "ottla.dev/fence-now-")),
        ("hibernate demo", ("annotate", _PLURAL, "demo", "ottla.dev/hibernate=true", "--overwrite")),
        ("wake demo", ("annotate", _PLURAL, "demo", "ottla.dev/hibernate-")),
    ],
)
def test_a_command_sets_its_annotations(
    typed: str, expected: tuple[str, ...], ran: list[tuple[str, ...]]
) -> None:
    done = CliRunner().invoke(command.main, typed.split())
    assert done.exit_code == 0, done.output
    assert ran == [expected]


@pytest.mark.parametrize("typed", ["restart demo one", "fence demo one", "fence demo 1;2", "restart demo -1"])
def test_a_wrong_broker_is_refused(typed: str, ran: list[tuple[str, ...]]) -> None:
    assert CliRunner().invoke(command.main, typed.split()).exit_code == 2
    assert ran == []

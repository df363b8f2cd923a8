"""The operator as it ships in a simulated cluster: killed at each step, and under faults.

`ottla_operator.simulation.scenarios` says what is checked; more seeds: `python -m ottla_operator.simulation`.
"""

from __future__ import annotations

import pytest

from ottla.simulation.runner import Plan
from ottla_operator.simulation.scenarios import later_steps, one_await_more, simulate

pytestmark = pytest.mark.budget(10)  # whole simulated clusters with the operator


@pytest.mark.parametrize(
    "scenario",
    [
        *("scale", "roll", "factor", "rebalance", "threads", "restart"),
        *("any broker leaves", "pool to pool", "pool deleted", "pool and roll"),
    ],
)
def test_an_operator_that_is_killed_at_each_await_does_what_it_is_asked(scenario: str) -> None:
    result = simulate(Plan(1, 25.0, {}, workloads=(scenario,)), one_await_more)
    assert not result.violation


@pytest.mark.parametrize("scenario", ["load", "load and scale", "load cancelled"])
def test_a_rebalance_by_load_ends_though_the_operator_is_killed_at_each_step(scenario: str) -> None:
    result = simulate(Plan(1, 40.0, {}, workloads=(scenario,)), later_steps)
    assert not result.violation


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_cluster_under_faults_is_as_asked_and_loses_nothing(seed: int) -> None:
    result = simulate(Plan(seed, 20.0))
    assert not result.violation
    assert result.faults


def test_a_seed_gives_the_same_trace() -> None:
    one, again = (simulate(Plan(7, 5.0, workloads=("roll",))) for _ in range(2))
    assert one.trace == again.trace

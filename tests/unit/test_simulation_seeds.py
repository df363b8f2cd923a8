"""Runs of whole simulated clusters under faults: the seeds that have found a bug, and many others.

A seed whose run fails is repeated by `make simulate SEED=…`. When its bug is repaired and no small test shows
it, the seed goes to REGRESSIONS.
"""

from __future__ import annotations

import pytest

from ottla.simulation.runner import Plan, simulate

pytestmark = pytest.mark.budget(30)

REGRESSIONS = (
    # An idempotent producer's record was stored twice.
    Plan(4, 40.0, workloads=("append",)),
    # A follower that had lost its last records with its power was elected.
    Plan(24, 40.0, workloads=("append",)),
    # Stored twice after NOT_LEADER_OR_FOLLOWER that followed an append.
    Plan(202, 40.0, workloads=("append",)),
)
SEEDS = 100
"""How many other seeds run, with all workloads and faults; from 1."""
SECONDS = 60.0


def _name(plan: Plan) -> str:
    return "-".join([*plan.workloads, str(plan.seed)])


@pytest.mark.parametrize("plan", REGRESSIONS, ids=_name)
def test_a_seed_that_has_found_a_bug_passes(plan: Plan) -> None:
    assert not simulate(plan).violation


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_a_seed_passes(seed: int) -> None:
    assert not simulate(Plan(seed, SECONDS)).violation, f"make simulate SEED={seed}"

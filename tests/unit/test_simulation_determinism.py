"""A run of the simulation is a function of its seed: the same trace with another hash seed, and in the other
Python versions that `.ci/run` has installed under `build/python`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.simulation import runner

pytestmark = pytest.mark.budget(15)

ROOT = Path(__file__).parents[2]
SCRIPT = """
from ottla.simulation.runner import Plan, simulate
result = simulate(Plan({seed}, {seconds}, workloads=("append", "groups")))
print(result.trace, result.frames, result.virtual_s, len(result.faults), result.violation)
"""


def run(python: Path | str, hash_seed: int, seed: int, seconds: float) -> str:
    """What a run gives in a process of its own."""
    environment = {
        **os.environ,
        "PYTHONHASHSEED": str(hash_seed),
        "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in ("client", "broker")),
    }
    done = subprocess.run(
        [python, "-W", "ignore", "-c", SCRIPT.format(seed=seed, seconds=seconds)],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.stdout


def test_a_seed_gives_the_same_trace_with_any_hash_seed_and_python_version() -> None:
    seed, seconds = 2, 9.0
    expected = run(sys.executable, 0, seed, seconds)
    faults = int(expected.split()[3])
    assert faults > 3, f"seed {seed} shows nothing with {faults} faults"
    others = sorted(ROOT.glob("build/python/*/bin/python"))
    for hash_seed, python in enumerate([Path(sys.executable), *others], 1):
        assert run(python, hash_seed, seed, seconds) == expected, f"{python}, hash seed {hash_seed}"


def test_another_seed_gives_another_trace() -> None:
    one, other = (runner.simulate(runner.Plan(seed, 1.0, {}, workloads=("append",))) for seed in (1, 2))
    assert one.trace != other.trace

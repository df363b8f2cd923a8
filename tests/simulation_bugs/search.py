"""Runs seeds until one fails, and prints what it found as JSON. Run as a script, with the source to test on
PYTHONPATH: its packages are those of the copy with a bug."""

from __future__ import annotations

import json
import sys
import time

from ottla.simulation.runner import Plan, simulate


def main() -> None:
    wanted = json.loads(sys.argv[1])
    began = time.monotonic()
    for seed in wanted["seeds"]:
        result = simulate(Plan(seed, wanted["seconds"], workloads=tuple(wanted["workloads"])))
        if not result.passed or time.monotonic() - began > wanted["limit_s"]:
            break
    found = {
        "seed": result.seed,
        "violation": result.violation,
        "virtual_s": result.virtual_s,
        "real_s": time.monotonic() - began,
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()

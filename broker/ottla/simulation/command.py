"""The commands `run` and `soak` of simulations: one seed with its timeline, or many seeds with a summary."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import click

from ottla.simulation.faults import RATES
from ottla.simulation.runner import Plan, Result, shrink

SHOWN_EVENTS_MAX = 400


def commands(
    simulate: Callable[[Plan], Result], outcome_of: Callable[[Plan], tuple[int, str, str, float]]
) -> click.Group:
    """The command of one kind of simulation. `outcome_of` runs in worker processes."""

    @click.group()
    def main() -> None:
        """Simulated clusters under faults, each reproducible from its seed."""

    @main.command()
    @click.argument("seed", type=int)
    @click.option("--seconds", default=60.0, show_default=True, help="Virtual seconds with faults.")
    @click.option("--faults/--no-faults", default=True, show_default=True)
    @click.option(
        "--shrink/--no-shrink",
        "shrinks",
        default=True,
        show_default=True,
        help="Look for fewer faults that fail.",
    )
    @click.option("--timeline", is_flag=True, help="Show the timeline of a run that passes, too.")
    @click.option("--workload", "workloads", multiple=True, help="Only these; several times.")
    def run(
        seed: int, seconds: float, faults: bool, shrinks: bool, timeline: bool, workloads: tuple[str, ...]
    ) -> None:
        """Run one seed."""
        plan = Plan(seed, seconds, RATES if faults else {}, workloads=workloads)
        result = simulate(plan)
        if not result.passed and shrinks and result.faults:
            click.echo(f"seed {seed} fails with {len(result.faults)} faults: {first_line(result.violation)}")
            click.echo("looking for fewer faults…")
            result = shrink(plan, result, simulate=simulate)
        if timeline or not result.passed:
            events = result.timeline
            if len(events) > SHOWN_EVENTS_MAX and not timeline:
                click.echo(f"… {len(events) - SHOWN_EVENTS_MAX} earlier events")
                events = events[-SHOWN_EVENTS_MAX:]
            for event in events:
                click.echo(str(event))
            for fault in result.faults:
                click.echo(f"fault at {fault}")
        click.echo(describe(result))
        raise SystemExit(0 if result.passed else 1)

    @main.command()
    @click.argument("first", type=int)
    @click.argument("count", type=int)
    @click.option("--seconds", default=60.0, show_default=True, help="Virtual seconds with faults.")
    @click.option("--processes", default=os.cpu_count() or 1, show_default="the cores")
    @click.option("--results", type=click.Path(path_type=Path), help="Keeps results, to resume.")
    @click.option("--workload", "workloads", multiple=True, help="Only these; several times.")
    def soak(
        first: int,
        count: int,
        seconds: float,
        processes: int,
        results: Path | None,
        workloads: tuple[str, ...],
    ) -> None:
        """Run COUNT seeds, beginning with FIRST."""
        done = dict(_stored(results))
        seeds = [seed for seed in range(first, first + count) if seed not in done]
        failures = {seed: text for seed, text in done.items() if text}
        if done:
            click.echo(f"resuming: {len(done)} seeds are done, {len(failures)} of them failed")
        began = time.monotonic()
        finished = virtual_s = 0.0
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        plans = [Plan(seed, seconds, workloads=workloads) for seed in seeds]
        with Pool(processes, _leave_signals_to_parent, maxtasksperchild=50) as pool:
            for seed, violation, trace, virtual in pool.imap_unordered(outcome_of, plans):
                finished += 1
                virtual_s += virtual
                if results is not None:
                    with results.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({"seed": seed, "violation": violation, "trace": trace}) + "\n")
                if violation:
                    failures[seed] = violation
                    click.echo(f"seed {seed} FAILED: {first_line(violation)}")
                if finished % 50 == 0:
                    elapsed = time.monotonic() - began
                    left_s = elapsed / finished * (len(seeds) - finished)
                    click.echo(
                        f"{finished:.0f} of {len(seeds)} in {elapsed:.0f} s, {left_s:.0f} s left, "
                        f"{len(failures)} failed"
                    )
        elapsed = max(time.monotonic() - began, 0.001)
        click.echo(
            f"{len(seeds)} seeds, {virtual_s:.0f} virtual s in {elapsed:.0f} s, "
            f"{virtual_s / elapsed:.0f} a second, "
            f"{len(failures)} failed{': ' if failures else ''}{', '.join(map(str, sorted(failures)))}"
        )
        raise SystemExit(1 if failures else 0)

    return main


def _leave_signals_to_parent() -> None:
    """In a worker process: the parent ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""


def describe(result: Result) -> str:
    outcome = "passed" if result.passed else f"FAILED: {result.violation}"
    return (
        f"seed {result.seed}: {outcome}\n{result.virtual_s:.1f} virtual s in {result.real_s:.1f} s, "
        f"{result.frames} frames, trace {result.trace}"
    )


def _stored(results: Path | None) -> Iterator[tuple[int, str]]:
    if results is not None and results.exists():
        for line in results.read_text(encoding="utf-8").splitlines():
            stored: dict[str, Any] = json.loads(line)
            yield stored["seed"], stored["violation"]

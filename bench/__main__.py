"""`make bench`: measures Ottla and Apache Kafka 3.9.1 in turns, with Kafka's own tools on both.

All brokers run on core 0, the clients on core 1. README.md beside this file explains the results. `loads.py`
has the loads, `runner.py` runs one of them.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Console

from bench.apache_kafka import JarsUnavailable
from bench.interpreter import say_interpreter
from bench.loads import LOADS, chosen, scaled
from bench.page import write_page
from bench.report import Result, as_json, as_markdown, machine, results_table
from bench.requests import floor_costs
from bench.runner import Plan, run_load
from bench.sides import KafkaSide, OttlaSide, Side
from bench.tools import ToolFailed
from ottla.local.processes import StartFailed

FULL = Plan(runs=3, warm_runs_max=8)
QUICK = Plan(runs=1, warm_runs_max=1)
QUICK_SCALE = 0.1
WIDTH = 132
"""Width of the table where the output is not a terminal."""


@click.command()
@click.argument("keys", nargs=-1)
@click.option(
    "--only", multiple=True, metavar="TEXT", help="Loads whose key or name has this text; repeatable."
)
@click.option(
    "--quick", is_flag=True, help="A tenth of the records, one run: shows whether it works, not how fast."
)
@click.option("--runs", type=int, help=f"Measured runs of each load after the warm-up.  [{FULL.runs}]")
@click.option(
    "-o", "--output", type=click.Choice(["table", "json", "markdown"]), default="table", show_default=True
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Write the JSON to this file, too."
)
@click.option(
    "--page",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write benchmarks.md with the figures and plots to this folder, too.",
)
@click.option("--list", "list_only", is_flag=True, help="List the loads.")
def main(
    keys: tuple[str, ...],
    only: tuple[str, ...],
    quick: bool,
    runs: int | None,
    output: str,
    json_file: Path | None,
    page: Path | None,
    list_only: bool,
) -> None:
    """Measure Ottla beside Apache Kafka on this machine; KEYS are the same as --only."""
    # SIGTERM ends the run like an error: brokers stop, folders are removed, finished results are shown.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    progress, console = Console(stderr=True, soft_wrap=True), Console()
    if not console.is_terminal:
        console.width = WIDTH
    if list_only:
        for load in LOADS:
            console.print(f"{load.key:16} {load.name}")
        return
    loads = [scaled(load, QUICK_SCALE if quick else 1) for load in chosen((*only, *keys))]
    if not loads:
        raise click.UsageError("no load has that text; --list shows all loads")
    plan = QUICK if quick else FULL
    if runs is not None:
        plan = Plan(runs=max(1, runs), warm_runs_max=plan.warm_runs_max)
    say_interpreter()
    results: list[Result] = []
    floors: dict[str, float] = {}
    ran_on, began = machine(), time.monotonic()
    try:
        if any(load.floor for load in loads):
            progress.print("measuring the floor: the system calls of a broker, and nothing else")
            floors = floor_costs()
        for brokers, tls in sorted({(load.brokers, load.tls) for load in loads}):
            with ExitStack() as stack:
                sides = _start(stack, brokers, tls, progress)
                for load in loads:
                    if (load.brokers, load.tls) == (brokers, tls):
                        # Appended one by one, so that an interrupted run keeps the finished loads.
                        measured = run_load(load, sides, plan, progress.print)
                        results.append(Result(load, measured, floors.get(load.floor)))
    except (ToolFailed, StartFailed, JarsUnavailable) as error:
        raise click.ClickException(str(error)) from None
    finally:
        took_s = time.monotonic() - began
        if results:
            ran_on = {**ran_on, "load_average_after": machine()["load_average"], "took_s": round(took_s)}
            data = json.dumps(as_json(results, ran_on), indent=1)
            if json_file is not None:
                json_file.write_text(data + "\n")
            if page is not None:
                write_page(page, results, ran_on)
            if output == "json":
                click.echo(data)
            else:
                table = results_table(results)
                console.print(as_markdown(table) if output == "markdown" else table)
                console.print(f"took {took_s / 60:.1f} min; load average before: {ran_on['load_average']}")
                console.print(f"interpreter: {ran_on['python']}")


def _start(stack: ExitStack, brokers: int, tls: bool, progress: Console) -> list[Side]:
    progress.print(f"starting {brokers} broker{'s' if brokers > 1 else ''} of each kind{' with TLS' * tls}")
    sides: list[Side] = []
    for kind in (OttlaSide, KafkaSide):
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ottla-bench-")))
        sides.append(stack.enter_context(kind(directory, brokers, tls=tls)))
    return sides


if __name__ == "__main__":
    main()

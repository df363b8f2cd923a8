"""How many virtual seconds the simulation runs in a second of one core.

    python -m bench.simulation [--seeds 5] [--seconds 60] [--no-faults] [--profile]

Three brokers, one producer with acks=all and 100 requests of one record in a virtual second, no consumer,
and the faults of the seed. Processor time is measured, so that other load on the machine matters less.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from functools import partial

import click

from bench.interpreter import say_interpreter
from ottla.simulation.cluster import Cluster
from ottla.simulation.faults import RATES
from ottla.simulation.runner import Plan, simulate
from ottla.simulation.workloads.append import Append

REQUESTS_PER_SECOND = 100


class SteadyAppend(Append):
    """Sends without bursts, so that each record is a request."""

    async def prepare(self, cluster: Cluster) -> None:
        cluster.burst_share = 0.0
        await super().prepare(cluster)


@click.command(help=__doc__)
@click.option("--first", default=1)
@click.option("--seeds", default=5)
@click.option("--seconds", default=60.0, help="Virtual seconds with faults.")
@click.option("--faults/--no-faults", default=True)
@click.option("--profile", "profiles", is_flag=True, help="Show where the time goes.")
def main(*, first: int, seeds: int, seconds: float, faults: bool, profiles: bool) -> None:
    say_interpreter()
    rates = RATES if faults else {}
    load = partial(SteadyAppend, producers=1, consumers=0, rate=REQUESTS_PER_SECOND, lingers_ms=(0,))
    simulate(Plan(0, 5.0, available={"load": load}))  # compiles and imports
    profile = cProfile.Profile() if profiles else None
    virtual_s = cpu_s = 0.0
    for seed in range(first, first + seeds):
        began = time.process_time()
        if profile is not None:
            profile.enable()
        result = simulate(Plan(seed, seconds, rates, available={"load": load}))
        if profile is not None:
            profile.disable()
        used = time.process_time() - began
        virtual_s += result.virtual_s
        cpu_s += used
        click.echo(
            f"seed {seed}: {result.virtual_s:.1f} virtual s in {used:.2f} s of processor time, "
            f"{result.virtual_s / used:.1f} a second, {result.frames} frames, "
            f"{result.violation[:60] or 'passed'}"
        )
    click.echo(f"{virtual_s / cpu_s:.1f} virtual seconds in a second of one core")
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(60)


if __name__ == "__main__":
    main()

"""`python -m bench.replication`: CPU time of leader and follower for an acks=all produce.

Three brokers run on core 0, their ZooKeeper and this process on core 1; one partition has three replicas. The
requests are encoded beforehand, five are in flight, as in `bench.requests`. The CPU time of each broker's
main thread comes from /proc. With `--against CHECKOUT` a cluster with that code is measured in turns with
this one, so that other work on the machine affects both.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Table

from bench.connection import RequestConnection
from bench.interpreter import say_interpreter
from bench.processes import main_thread_cpu_s, touch_free_pages
from bench.requests import TOPIC, Load, comparison_options, produce_frame
from bench.sides import OttlaSide, python_path
from bench.tools import CLIENT_CORE

ACKS_ALL = -1
BROKERS = 3
SETTINGS = {"log.retention.bytes": str(1 << 30), "log.segment.bytes": str(256 << 20)}


class Cost(NamedTuple):
    """CPU µs per request of the leader and of each follower; requests per second."""

    leader: float
    follower: float
    rate: float


def loads() -> list[Load]:
    return [
        Load("one record", 2_000, produce_frame(1, ACKS_ALL)),
        Load("16 KiB", 1_000, produce_frame(16 << 10, ACKS_ALL)),
        Load("64 KiB", 500, produce_frame(64 << 10, ACKS_ALL)),
    ]


@contextmanager
def cluster(checkout: Path, directory: Path) -> Iterator[OttlaSide]:
    """A cluster of three brokers with the code of `checkout`, and the topic."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = python_path(checkout)
    try:
        side = OttlaSide(directory, BROKERS, SETTINGS)
        with side:
            side.create_topic(TOPIC)
            yield side
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def measure(side: OttlaSide, load: Load, in_flight: int) -> Cost:
    leader = side.ports.index(side.leader_port(TOPIC))
    connection = RequestConnection(side.ports[leader])
    before = [main_thread_cpu_s(pid) for pid in side.pids]
    began = time.monotonic()
    connection.run(load.frame, load.requests, in_flight)
    took = time.monotonic() - began
    used = [
        (main_thread_cpu_s(pid) - start) / load.requests * 1e6
        for pid, start in zip(side.pids, before, strict=True)
    ]
    connection.close()
    own = used.pop(leader)
    return Cost(own, statistics.mean(used), load.requests / took)


@click.command()
@comparison_options
def main(against: Path | None, rounds: int, only: str, in_flight: int) -> None:
    """CPU time that the brokers' loops spend on one acks=all Produce."""
    say_interpreter()
    os.sched_setaffinity(0, {CLIENT_CORE})
    table = Table("load", "code", "leader µs / request", "each follower", "requests / s")
    for column in table.columns[2:]:
        column.justify = "right"
    with ExitStack() as stack:
        sides: dict[str, OttlaSide] = {}
        for name, checkout in (("before", against), ("now", Path(__file__).parent.parent)):
            if checkout is not None:
                directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ottla-bench-")))
                sides[name] = stack.enter_context(cluster(checkout.absolute(), directory))
        touch_free_pages()
        for load in loads():
            if only not in load.name:
                continue
            samples: dict[str, list[Cost]] = {name: [] for name in sides}
            for number in range(rounds + 1):
                for name in sides if number % 2 else reversed(sides):
                    cost = measure(sides[name], load, in_flight)
                    if number:  # the first round warms up
                        samples[name].append(cost)
            for name, costs in samples.items():
                medians = [statistics.median(column) for column in zip(*costs, strict=True)]
                table.add_row(
                    load.name, name, *(f"{value:,.0f}" for value in medians), end_section=name == "now"
                )
    Console().print(table)


if __name__ == "__main__":
    main()

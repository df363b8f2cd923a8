"""`python -m bench.paper`: the experiment of the Kafka paper, with Ottla as one of the systems.

One producer of 200-byte messages with batches of 1 and of 50, then one consumer, for each system in turn,
with its broker on core 0 and its client on core 1. The table has the paper's figures of 2011, too, from two
machines of eight cores with a gigabit network: compare the ratios, not the rates.
"""

from __future__ import annotations

import json
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.table import Column, Table

from bench.interpreter import say_interpreter
from bench.maven import JarsUnavailable
from bench.paper.activemq import ActiveMq
from bench.paper.rabbitmq import RabbitMq
from bench.paper.systems import KafkaSystem, System, Unavailable
from bench.processes import touch_free_pages, usage_of
from bench.report import as_markdown, machine
from bench.sides import KafkaSide, OttlaSide
from bench.tools import ToolFailed
from ottla.local.processes import StartFailed

SYSTEMS: Final[dict[str, Callable[[Path], System]]] = {
    "Ottla": lambda directory: KafkaSystem(OttlaSide, directory),
    "Kafka": lambda directory: KafkaSystem(KafkaSide, directory),
    "RabbitMQ": RabbitMq,
    "ActiveMQ": ActiveMq,
}


@dataclass(frozen=True)
class Work:
    """A measurement of the experiment."""

    name: str
    run: Callable[[System, str, int], float | None]
    logs: int
    """Messages of a run, for systems with a log."""
    queues: int
    """Messages of a run, for systems with queues, which are slower."""
    papers: dict[str, str]
    """The paper's messages/s, by system."""
    needs_messages: bool = False


_LESS_THAN_HALF, _ORDERS_LESS, _LESS_THAN_A_QUARTER = "< 25,000", "« 50,000", "< 5,500"
WORKS: Final = (
    Work(
        "producer, batches of 1, no acknowledgement",
        lambda system, queue, count: system.produce_singly(queue, count),
        150_000,
        150_000,
        {"Kafka": "50,000", "RabbitMQ": _LESS_THAN_HALF, "ActiveMQ": _ORDERS_LESS},
    ),
    Work(
        "producer, batches of 50, no acknowledgement",
        lambda system, queue, count: system.produce_batches(queue, count),
        1_000_000,
        0,
        {"Kafka": "400,000"},
    ),
    Work(
        "producer, batches of 50, confirmed",
        lambda system, queue, count: system.produce_confirmed(queue, count),
        1_000_000,
        10_000,
        {},
    ),
    Work(
        "one consumer",
        lambda system, queue, count: system.consume(queue, count),
        2_000_000,
        100_000,
        {"Kafka": "22,000", "RabbitMQ": _LESS_THAN_A_QUARTER, "ActiveMQ": _LESS_THAN_A_QUARTER},
        needs_messages=True,
    ),
)


@dataclass(frozen=True)
class Figure:
    """A system's medians of one measurement."""

    system: str
    work: str
    messages_per_s: float
    broker_cpu_s_per_million: float
    rss_mib: float


@click.command()
@click.option("--system", "names", multiple=True, type=click.Choice(list(SYSTEMS)), help="Only these.")
@click.option("--runs", default=3, show_default=True, help="Measured runs of each, after one to warm up.")
@click.option("--quick", is_flag=True, help="A twentieth of the messages, one run: shows whether it works.")
@click.option("--markdown", is_flag=True, help="Print the table in Markdown.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures to this file.")
def main(names: tuple[str, ...], runs: int, quick: bool, markdown: bool, json_file: Path | None) -> None:
    """Measure Ottla, Apache Kafka, RabbitMQ and ActiveMQ as the Kafka paper did."""
    say_interpreter()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # stops the brokers, too
    progress, console = Console(stderr=True, soft_wrap=True), Console()
    if not console.is_terminal:
        console.width = 120
    figures: list[Figure] = []
    notes: list[str] = []
    for name in names or SYSTEMS:
        with tempfile.TemporaryDirectory(prefix="ottla-paper-") as directory:
            system = SYSTEMS[name](Path(directory))
            notes.append(f"{name}: {system.settings}")
            try:
                with system:
                    for work in WORKS:
                        progress.print(f"{name}: {work.name}")
                        try:
                            figure = measure(system, work, 1 if quick else runs, 0.05 if quick else 1.0)
                        except ToolFailed as error:
                            notes.append(f"{name} is missing from '{work.name}': {error}")
                            continue
                        if figure is not None:
                            figures.append(figure)
            except (Unavailable, JarsUnavailable, StartFailed) as error:
                notes.append(f"{name} is missing from the table: {error}")
    console.print(as_markdown(results_table(figures)) if markdown else results_table(figures))
    for note in notes:
        console.print(note)
    if json_file is not None:
        data = {"machine": machine(), "figures": [asdict(figure) for figure in figures]}
        json_file.write_text(json.dumps(data, indent=1) + "\n")


def measure(system: System, work: Work, runs: int, scale: float) -> Figure | None:
    """A warm-up run, then the medians of the others; None if the system does not support the work."""
    count = int((work.logs if isinstance(system, KafkaSystem) else work.queues) * scale)
    rates, cpu_s, memory = [], [], []
    for number in range(runs + 1):
        queue = f"paper-{WORKS.index(work)}-{number}"
        system.make_queue(queue)
        if work.needs_messages and system.produce_batches(queue, count) is None:
            system.produce_singly(queue, count)
        touch_free_pages()
        before = usage_of(system.pids)
        rate = work.run(system, queue, count)
        if rate is None:
            return None
        if number:
            after = usage_of(system.pids)
            rates.append(rate)
            cpu_s.append((after.cpu_s - before.cpu_s) / count * 1e6)
            memory.append(after.rss_mib)
    medians = (statistics.median(values) for values in (rates, cpu_s, memory))
    return Figure(system.name, work.name, *medians)


def results_table(figures: list[Figure]) -> Table:
    table = Table(
        Column("work", no_wrap=True),
        "system",
        *(
            Column(title, justify="right")
            for title in (
                "messages/s",
                "of Kafka's",
                "broker CPU s / million",
                "RSS MiB",
                "the paper's messages/s",
            )
        ),
        title="The experiment of 2011: 200-byte messages, medians",
    )
    for work in WORKS:
        taken = {figure.system: figure for figure in figures if figure.work == work.name}
        kafka = taken.get("Kafka")
        name = work.name
        for system, figure in taken.items():
            table.add_row(
                name,
                system,
                f"{figure.messages_per_s:,.0f}",
                f"{figure.messages_per_s / kafka.messages_per_s:.2f}" if kafka else "",
                f"{figure.broker_cpu_s_per_million:.2f}",
                f"{figure.rss_mib:.0f}",
                work.papers.get(system, ""),
            )
            name = ""
        table.add_section()
    return table


if __name__ == "__main__":
    main()

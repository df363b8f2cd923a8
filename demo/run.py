"""The main job: `python -m demo.run`, which is what `make run` calls.

It starts a cluster of three brokers, produces a year of flights, kills the controller, which leads
partitions, and reads the events with a consumer group. Spark writes them to a lake, and an audit compares the
produced events with the brokers and the lake. The exit status is 0 only if no event is missing or duplicated,
the group read every event, and the killed broker is in every ISR again. All processes are stopped at the end;
with --console that is after Ctrl-C, until when the web console serves the cluster.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from demo import events, failover, produce, summary
from demo.consume import Readers
from demo.up import Up, UpFailed, choose_port
from ottla_pipeline.lake import manifest

MARKER = ".ottla-run"
BACK_IN_ISR_S = 240.0
CONSOLE_PORT = 8080
"""Or the next free one."""
STOP_S = 5.0


class DemoFailed(Exception):
    """A step of the demo failed; the message names the step and its log."""


@dataclass(frozen=True, slots=True)
class Options:
    data: Path
    port: int | None
    bootstrap: str | None
    limit: int | None
    console: bool = False
    """Serve the web console, and keep the cluster until Ctrl-C."""


def fresh_folder(data: Path) -> None:
    """Empty the folder of a former run. Raises DemoFailed for a folder with other content."""
    if data.exists():
        if any(data.iterdir()) and not (data / MARKER).exists():
            raise DemoFailed(
                f"{data} is not empty and not a former run's folder; give another folder with --data"
            )
        shutil.rmtree(data)
    data.mkdir(parents=True)
    (data / MARKER).touch()


def create_topics(bootstrap: str, topics: Sequence[str]) -> None:
    """Create the topics on an existing cluster, with at most three replicas."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    replicas = min(3, len(admin.list_topics(timeout=60).brokers))
    config = {"min.insync.replicas": str(min(2, replicas))}
    for future in admin.create_topics([NewTopic(t, 4, replicas, config=config) for t in topics]).values():
        future.result()


def job(name: str, arguments: Sequence[str], log: Path, say: Callable[[str], None]) -> int:
    """Run a job of the pipeline as a process; its output goes to `say`, Spark's log to the file `log`."""
    command = [sys.executable, "-m", "ottla_pipeline.command", name, *arguments]
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": str(summary.LOG_WIDTH)}
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, start_new_session=True
        )
        assert process.stdout is not None
        try:
            with process.stdout as output:
                for line in output:
                    say(line.rstrip())
            return process.wait()
        finally:
            if process.poll() is None:  # after Ctrl-C or an error
                process.terminate()
                try:
                    process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)


def land(options: Options, bootstrap: str, topics: Sequence[str], say: Callable[[str], None]) -> int:
    """Run the lake job until the end of the topics; the number of dead letters."""
    data = options.data
    event: dict[str, str] = json.loads(events.FIELDS_SCHEMA.read_text())
    config = {
        "name": "flights",
        "kafka": {"bootstrap": bootstrap},
        "source": {"topics": list(topics)},
        "format": {"type": "json", "fields": event["fields"]},
        "event": {"id": event["id"], "time": event["time"]},
        "sink": {
            "type": "parquet",
            "path": str(data / "lake"),
            "deadLetters": str(data / "dead-letters"),
        },
        "checkpoint": str(data / "checkpoint"),
        "trigger": {"availableNow": True},
    }
    file = data / "lake.yaml"
    file.write_text(json.dumps(config, indent=2))  # JSON is YAML
    if job("lake", ["--config", str(file)], data / "lake.log", say) != 0:
        raise DemoFailed(f"the lake job failed; see {data / 'lake.log'}")
    changes = manifest.read(data / "lake").changes
    landed, dead = sum(c.events for c in changes), sum(c.dead_letters for c in changes)
    say(f"lake: done: {len(changes):,} batches, {landed:,} events, {dead:,} dead letters, in {data / 'lake'}")
    return dead


def audit(options: Options, bootstrap: str, say: Callable[[str], None]) -> dict[str, object]:
    """Run the audit; its report, also if it has differences, which the summary shows."""
    data = options.data
    config = {
        "name": "flights",
        "kafka": {"bootstrap": bootstrap},
        "manifest": str(data / "manifest.jsonl"),
        "lake": str(data / "lake"),
        "report": str(data / "audit.json"),
    }
    file = data / "compare.yaml"
    file.write_text(json.dumps(config))  # JSON is YAML
    lines: list[str] = []
    status = job("compare", ["--config", str(file)], data / "audit.log", lines.append)
    if status not in (0, 1):
        raise DemoFailed(f"the audit could not run; see {data / 'audit.log'}")
    for line in lines if status else lines[-1:]:  # the tables only if there are differences
        say(line.replace("compare:", "audit:", 1))
    report: dict[str, object] = json.loads((data / "audit.json").read_text())
    return report


def keep(up: Up, console: int, show: summary.Show) -> None:
    """Wait for Ctrl-C, or for the end of the cluster."""
    show.say(f"the console is at http://127.0.0.1:{console}/ until Ctrl-C, which stops the cluster")
    with suppress(KeyboardInterrupt):
        while up.running:
            time.sleep(0.5)


def run(options: Options, show: summary.Show, flights: list[events.Event], prefix: str) -> summary.Outcome:
    """Run all steps; stops everything that it started. With a console, shows the summary before that."""
    data, topics = options.data, events.topics(prefix)
    clock = produce.AckClock()
    with ExitStack() as stack:
        killer: failover.Killer | None = None
        up: Up | None = None
        console = choose_port(None, CONSOLE_PORT, count=1) if options.console else None
        if options.bootstrap is None:
            port = choose_port(options.port)
            command = f"ottla up -f demo/cluster --data {data / 'cluster'} --port {port}"
            command += "" if console is None else f" --console-port {console}"
            show.say(f"starting three brokers: {command}")
            up = stack.enter_context(Up(data / "cluster", port, data / "up.log", console_port=console))
            bootstrap = up.bootstrap
            if console is not None:
                show.say(f"the console is at http://127.0.0.1:{console}/")
            stack.callback(lambda: show.say("stopping the cluster"))
            killer = failover.Killer(bootstrap, data / "cluster", topics, clock, show.say)
            stack.callback(killer.stop)
        else:
            bootstrap = options.bootstrap
            create_topics(bootstrap, topics)
        show.say(f"brokers at {bootstrap}; a consumer group of two joins")
        readers = stack.enter_context(Readers(bootstrap, f"{prefix}-readers", topics))
        if not readers.wait_joined():
            raise DemoFailed("the consumers were not assigned partitions in time")
        show.say(f"producing {len(flights):,} departures, acks=all")
        began = time.monotonic()
        show.begin_counts()
        stack.callback(show.end_counts)
        produce_s = produce.produce(
            bootstrap,
            flights,
            data / "manifest.jsonl",
            clock,
            progress=lambda done: show.count(produced=done, consumed=readers.unique),
            half_way=killer.start if killer is not None else lambda: None,
        )
        readers.wait_for(len(flights), lambda done: show.count(produced=len(flights), consumed=done))
        consume_s = time.monotonic() - began
        show.end_counts()
        readers.close()
        show.say(f"produced {len(flights):,} in {produce_s:.1f} s; the group read {readers.unique:,} ids")
        with show.busy("writing all events to the lake with Spark"):
            dead_letters = land(options, bootstrap, topics, show.say)
        with show.busy("auditing: compares the ids produced with those in the brokers and in the lake"):
            report = audit(options, bootstrap, show.say)
        if killer is not None and not killer.wait(0):
            with show.busy("waiting for the killed broker to be in sync again"):
                killer.wait(BACK_IN_ISR_S)
        outcome = summary.Outcome(
            produced=len(flights),
            produce_s=produce_s,
            consumed=len(readers.ids & {event.id for event in flights}),
            consumed_again=readers.read_again,
            consume_s=consume_s,
            audit=report,
            dead_letters=dead_letters,
            failover=killer.result if killer is not None else None,
            ack_gap_s=clock.longest_gap_s(),
            data=data,
            elapsed_s=show.elapsed_s,
        )
        if up is not None and console is not None:
            show.summary(outcome)
            keep(up, console, show)
    return outcome


def interrupted(number: int, frame: FrameType | None) -> NoReturn:
    """Handle SIGTERM as Ctrl-C."""
    raise KeyboardInterrupt


@click.command(context_settings={"max_content_width": 110})
@click.option(
    "--data", default="ottla-run", show_default=True, type=click.Path(path_type=Path), help="Emptied first."
)
@click.option(
    "--port", type=click.IntRange(1, 65_000), help="Port of the first broker.  [default: 9092, or free ones]"
)
@click.option("--bootstrap", metavar="HOST:PORT", help="Use this cluster instead; no broker is killed.")
@click.option("--limit", type=click.IntRange(min=2), help="Number of events.")
@click.option("--console", is_flag=True, help="Serve the web console, and keep the cluster until Ctrl-C.")
def main(data: Path, port: int | None, bootstrap: str | None, limit: int | None, console: bool) -> None:
    """Start a cluster, send events through it, kill a broker, fill a lake and audit it."""
    if console and bootstrap is not None:
        raise click.UsageError("--console is for the demo's own cluster; for another: ottla console -b …")
    options = Options(data, port, bootstrap, limit, console)
    signal.signal(signal.SIGTERM, interrupted)
    try:
        prefix = "flights" if bootstrap is None else f"flights-{time.time_ns() // 1_000_000_000}"
        fresh_folder(data)
        flights = events.load(prefix, limit)
        with summary.Show(len(flights)) as show:
            outcome = run(options, show, flights, prefix)
            if not console:
                show.summary(outcome)
        problems = outcome.problems()
    except (DemoFailed, UpFailed, produce.DeliveryFailed, KafkaException, FileNotFoundError) as error:
        click.echo(f"demo: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        click.echo("demo: interrupted; all processes are stopped", err=True)
        sys.exit(130)
    for problem in problems:
        click.echo(f"demo: {problem}", err=True)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()

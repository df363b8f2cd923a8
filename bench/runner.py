"""Runs the loads on both sides: warm-up until three runs agree, then measured runs in turns.

Called by `python -m bench`. `_LoadRunner` runs one load on either side by the same code.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from bench.loads import RECORD_BYTES, Consume, Load, Produce, ProducePaced, Traffic
from bench.processes import make_cold, resident_share, touch_free_pages, usage_of
from bench.report import AGREEING_RUNS, Figures, SideRuns, agree
from bench.sides import Side
from bench.tools import ToolFailed, consumed, consumer_command, pinned, produced, producer_command, run_client
from bench.traffic import Task

FILL_SETTINGS = ("acks=1", "batch.size=65536", "linger.ms=5")
COLD_SHARE_MAX = 0.05
BACKLOG_RECORD_BYTES = 1000


@dataclass(frozen=True)
class Plan:
    """The number of runs of each load."""

    runs: int
    """Measured runs, after the warm-up."""
    warm_runs_max: int
    """Maximum of warm-up runs; a side that never had three agreeing runs is marked in the report."""
    warm_runs_paced: int = 1
    """Warm-up runs of loads at a given rate, whose rates always agree."""


def run_load(
    load: Load, sides: Sequence[Side], plan: Plan, log_progress: Callable[[str], None]
) -> dict[str, SideRuns]:
    """Run one load on all sides; the runs by the side's name."""
    runner = _LoadRunner(load)
    side_runs = {side.name: SideRuns() for side in sides}
    for side in sides:
        runner.prepare(side)
        warm_up(lambda side=side: runner.run(side), side_runs[side.name], load, plan)  # type: ignore[misc]
        runs = side_runs[side.name]
        unreachable = plan.warm_runs_max < AGREEING_RUNS
        note = "" if runs.agreed or unreachable else "; three in a row never agreed within 10 %"
        log_progress(f"{load.name}: {side.name} warm after {len(runs.warm)}{note}")
    for number in range(plan.runs):
        for side in sides if number % 2 == 0 else list(reversed(sides)):
            side_runs[side.name].samples.append(runner.run(side))
    for side in sides:
        runner.clean_up(side)
    return side_runs


def warm_up(run: Callable[[], Figures], side_runs: SideRuns, load: Load, plan: Plan) -> None:
    """Run until three runs in a row agree, at most `plan.warm_runs_max` times."""
    if isinstance(load.work, ProducePaced):
        side_runs.warm.extend(run() for _ in range(plan.warm_runs_paced))
        side_runs.agreed = True
        return
    while not side_runs.agreed and len(side_runs.warm) < plan.warm_runs_max:
        side_runs.warm.append(run())
        side_runs.agreed = agree([sample["records_per_s"] for sample in side_runs.warm])


class _LoadRunner:
    """Makes the topics of one load and runs it."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._topic = f"bench-{load.key}"
        self._backlog = f"bench-{load.key}-backlog"

    def prepare(self, side: Side) -> None:
        load, work = self._load, self._load.work
        side.create_topic(self._topic, work.partitions if isinstance(work, Traffic) else 1)
        if isinstance(work, Traffic) and work.filled:
            self._traffic(side, "keyed", ("linger.ms=20",))
        if isinstance(work, Consume):
            self._fill(side, self._topic, load.records, RECORD_BYTES)
        if isinstance(work, ProducePaced) and work.backlog_mib:
            side.create_topic(self._backlog)
            self._fill(
                side, self._backlog, work.backlog_mib * 2**20 // BACKLOG_RECORD_BYTES, BACKLOG_RECORD_BYTES
            )

    def clean_up(self, side: Side) -> None:
        side.delete_topic(self._topic)
        if isinstance(self._load.work, ProducePaced) and self._load.work.backlog_mib:
            side.delete_topic(self._backlog)

    def run(self, side: Side) -> Figures:
        work = self._load.work
        if isinstance(work, Consume):
            if work.cold:
                self._drop(side, self._topic)
            return self._measured(side, self._consume)
        if isinstance(work, Produce):
            return self._measured(side, lambda s: self._produce(s, work.settings, -1, work.transaction_ms))
        if isinstance(work, Traffic):
            return self._measured(side, lambda s: self._traffic(s, work.kind, work.settings))
        if not work.backlog_mib:
            return self._measured(side, lambda s: self._produce(s, work.settings, work.rate))
        with _backlog_reader(side, self._backlog) as throughput:
            sample = self._measured(side, lambda s: self._produce(s, work.settings, work.rate))
        return {**sample, "reader_mib_s": throughput[0]}

    def _measured(self, side: Side, run: Callable[[Side], dict[str, float]]) -> Figures:
        """One run with the CPU time and memory of the side's brokers, the reader's share included."""
        touch_free_pages()
        before = usage_of(side.pids)
        figures = run(side)
        after = usage_of(side.pids)
        cpu_s = figures.pop("cpu_s", after.cpu_s - before.cpu_s)
        kernel_s = figures.pop("kernel_s", after.kernel_s - before.kernel_s)
        return {
            **figures,
            "cpu_s_per_million": cpu_s / self._load.records * 1e6,
            "kernel_s_per_million": kernel_s / self._load.records * 1e6,
            "rss_mib": after.rss_mib,
            "pss_mib": after.pss_mib,
        }

    def _produce(
        self, side: Side, settings: Sequence[str], rate: int, transaction_ms: int = 0
    ) -> dict[str, float]:
        load, keys = self._load, side.keys
        command = producer_command(
            side.bootstrap if keys is None else side.tls_bootstrap,
            self._topic,
            records=load.records,
            record_bytes=RECORD_BYTES,
            settings=settings if keys is None else (*settings, *keys.client_settings),
            rate=rate,
            transaction_ms=transaction_ms,
        )
        return produced(run_client(command), load.records)

    def _consume(self, side: Side) -> dict[str, float]:
        keys, records = side.keys, self._load.records
        if keys is None:
            command = consumer_command(side.bootstrap, self._topic, records=records)
        else:
            command = consumer_command(
                side.tls_bootstrap, self._topic, records=records, config=keys.client_properties
            )
        return consumed(run_client(command), records)

    def _traffic(self, side: Side, kind: str, settings: tuple[str, ...]) -> dict[str, float]:
        load, work = self._load, self._load.work
        assert isinstance(work, Traffic)
        where = (side.bootstrap, self._topic, work.partitions)
        task = Task(kind, *where, load.records, work.clients, settings, tuple(side.pids))
        figures: dict[str, float] = json.loads(run_client(task.command()))
        return figures

    def _fill(self, side: Side, topic: str, records: int, record_bytes: int) -> None:
        command = producer_command(
            side.bootstrap, topic, records=records, record_bytes=record_bytes, settings=FILL_SETTINGS
        )
        produced(run_client(command), records)

    def _drop(self, side: Side, topic: str) -> None:
        segments = side.segments(topic)
        assert segments, f"{side.name} has no segments of {topic}"
        make_cold(segments)
        warm = max(resident_share(segment) for segment in segments)
        if warm > COLD_SHARE_MAX:
            raise ToolFailed(f"{warm:.0%} of a segment of {topic} stayed in the page cache")


@contextmanager
def _backlog_reader(side: Side, topic: str) -> Iterator[list[float]]:
    """A second consumer while the block runs; its MiB/s are in the list afterwards."""
    files = [str(path) for path in side.segments(topic)]
    command = [sys.executable, "-m", "bench.backlog", str(side.leader_port(topic)), topic, *files]
    reader = subprocess.Popen(pinned(command), stdout=subprocess.PIPE, text=True)
    throughput: list[float] = []
    try:
        yield throughput
        reader.send_signal(signal.SIGTERM)
        output, _ = reader.communicate(timeout=30)
        if reader.returncode or not output:
            raise ToolFailed(f"the backlog reader ended with {reader.returncode}")
        throughput.append(float(output))
    finally:
        if reader.poll() is None:
            reader.kill()
            reader.wait()

"""Runs the loads on both sides: warm-up until three runs agree, then measured runs in turns.

Called by `python -m bench`. What runs is the same for both: `_Trial` knows one load, and does one run of it
on whichever side it is given.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from bench.figures import AGREEING_RUNS, Figures, Taken, agree
from bench.loads import RECORD_BYTES, Consume, Load, Produce, ProducePaced
from bench.memory import touch_free_pages
from bench.page_cache import make_cold, resident_share
from bench.sides import Side
from bench.tools import ToolFailed, consumed, consumer_command, pinned, produced, producer_command, run_client
from bench.usage import usage_of

FILL_SETTINGS = ("acks=1", "batch.size=65536", "linger.ms=5")
COLD_SHARE_MAX = 0.05
BACKLOG_RECORD_BYTES = 1000


@dataclass(frozen=True)
class Plan:
    """How often each load is run."""

    runs: int
    """Measured, after the warm-up."""
    warm_runs_max: int
    """A side that never has three agreeing runs is measured after this many, and the report says so."""
    warm_runs_paced: int = 1
    """For loads at a given rate, where rates agree anyhow."""


def run_load(load: Load, sides: Sequence[Side], plan: Plan, say: Callable[[str], None]) -> dict[str, Taken]:
    """All runs of one load on all sides, by the side's name."""
    trial = _Trial(load)
    taken = {side.name: Taken() for side in sides}
    for side in sides:
        trial.prepare(side)
        warm_up(lambda side=side: trial.run(side), taken[side.name], load, plan)  # type: ignore[misc]
        how = taken[side.name]
        hopeless = plan.warm_runs_max < AGREEING_RUNS
        note = "" if how.agreed or hopeless else "; three in a row never agreed within 10 %"
        say(f"{load.name}: {side.name} warm after {len(how.warm)}{note}")
    for number in range(plan.runs):
        for side in sides if number % 2 == 0 else list(reversed(sides)):
            taken[side.name].samples.append(trial.run(side))
    for side in sides:
        trial.clean_up(side)
    return taken


def warm_up(run: Callable[[], Figures], taken: Taken, load: Load, plan: Plan) -> None:
    """Run until three in a row agree, or until the plan's patience is at its end."""
    if isinstance(load.work, ProducePaced):
        taken.warm.extend(run() for _ in range(plan.warm_runs_paced))
        taken.agreed = True
        return
    while not taken.agreed and len(taken.warm) < plan.warm_runs_max:
        taken.warm.append(run())
        taken.agreed = agree([sample["records_per_s"] for sample in taken.warm])


class _Trial:
    """One load: its topics, and one run of it."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._topic = f"bench-{load.key}"
        self._backlog = f"bench-{load.key}-backlog"

    def prepare(self, side: Side) -> None:
        load, work = self._load, self._load.work
        side.create_topic(self._topic)
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
        if not work.backlog_mib:
            return self._measured(side, lambda s: self._produce(s, work.settings, work.rate))
        with _backlog_reader(side, self._backlog) as got:
            sample = self._measured(side, lambda s: self._produce(s, work.settings, work.rate))
        return {**sample, "reader_mib_s": got[0]}

    def _measured(self, side: Side, run: Callable[[Side], dict[str, float]]) -> Figures:
        """One run, and what the side's brokers used for it, idle threads and the reader's share included."""
        touch_free_pages()
        before = usage_of(side.pids)
        figures = run(side)
        after = usage_of(side.pids)
        return {
            **figures,
            "cpu_s_per_million": (after.cpu_s - before.cpu_s) / self._load.records * 1e6,
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
    """Another consumer beside what runs inside; its MiB/s are in the list afterwards."""
    files = [str(path) for path in side.segments(topic)]
    command = [sys.executable, "-m", "bench.backlog", str(side.leader_port(topic)), topic, *files]
    reader = subprocess.Popen(pinned(command), stdout=subprocess.PIPE, text=True)
    got: list[float] = []
    try:
        yield got
        reader.send_signal(signal.SIGTERM)
        output, _ = reader.communicate(timeout=30)
        if reader.returncode or not output:
            raise ToolFailed(f"the reader of the backlog ended with {reader.returncode}")
        got.append(float(output))
    finally:
        if reader.poll() is None:
            reader.kill()
            reader.wait()

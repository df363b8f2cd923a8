"""`python -m bench.slow_paths`: CPU time of the slow paths of an append, compared with the fast path.

Appends to a log in a temporary folder and conversions for old clients run in this process, without a network.
Batches have 16 KiB: 80 records of 200 bytes that compress to less than half. The paths run in turns; the
table has the medians of the rounds' CPU times.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Table

from bench.interpreter import say_interpreter
from ottla.protocol.compression import Codec
from ottla.protocol.down_conversion import down_converted
from ottla.protocol.legacy_records import encode_message_set
from ottla.protocol.records import MAGIC_V2, Record, TimestampType, build_batch
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.log_validator import SlowPath, slow_paths

RECORDS = 80
RECORD_BYTES = 190
NOW_MS = 1_700_000_000_000
DAY_MS = 24 * 60 * 60 * 1000
SEGMENT_BYTES = 64 << 20
_WORDS = [f"{word:06x}" for word in random.Random(7).choices(range(1 << 24), k=400)]


class Case(NamedTuple):
    """A batch and the slow paths that it must take; the benchmark asserts them."""

    name: str
    paths: SlowPath
    config: LogConfig
    data: bytes


def sample_records() -> list[Record]:
    rng = random.Random(7)
    return [
        Record(at, NOW_MS + at, b"key-%04d" % at, " ".join(rng.choices(_WORDS, k=RECORD_BYTES // 7)).encode())
        for at in range(RECORDS)
    ]


def cases() -> list[Case]:
    records = sample_records()
    plain, gzip, zstd = (build_batch(records, codec=codec) for codec in (Codec.NONE, Codec.GZIP, Codec.ZSTD))
    marked = build_batch(records, timestamp_type=TimestampType.LOG_APPEND_TIME)
    default = LogConfig(segment_bytes=SEGMENT_BYTES)
    compacted = LogConfig(cleanup_policy="compact", segment_bytes=SEGMENT_BYTES)
    limited = LogConfig(message_timestamp_before_max_ms=DAY_MS, segment_bytes=SEGMENT_BYTES)
    stamped = LogConfig(message_timestamp_type="LogAppendTime", segment_bytes=SEGMENT_BYTES)

    def stored_as(codec: str) -> LogConfig:
        return LogConfig(compression_type=codec, segment_bytes=SEGMENT_BYTES)

    return [
        Case("fast path", SlowPath.NONE, default, plain),
        *(
            Case(
                f"compressed, {codec.name.lower()}",
                SlowPath.COMPRESSED,
                default,
                build_batch(records, codec=codec),
            )
            for codec in Codec
            if codec is not Codec.NONE
        ),
        Case("LogAppendTime", SlowPath.LOG_APPEND_TIME, stamped, plain),
        Case("keys", SlowPath.KEYS, compacted, plain),
        Case("keys, gzip", SlowPath.KEYS | SlowPath.COMPRESSED, compacted, gzip),
        Case("timestamps", SlowPath.TIMESTAMPS, limited, plain),
        Case("a client's LogAppendTime", SlowPath.MARKED, default, marked),
        Case("none to lz4", SlowPath.RECOMPRESSION, stored_as("lz4"), plain),
        Case("none to zstd", SlowPath.RECOMPRESSION, stored_as("zstd"), plain),
        Case("none to gzip", SlowPath.RECOMPRESSION, stored_as("gzip"), plain),
        Case("zstd to none", SlowPath.RECOMPRESSION | SlowPath.COMPRESSED, stored_as("uncompressed"), zstd),
        Case("zstd to lz4", SlowPath.RECOMPRESSION | SlowPath.COMPRESSED, stored_as("lz4"), zstd),
        *(
            Case(
                f"from format {magic}{'' if codec is Codec.NONE else ', ' + codec.name.lower()}",
                SlowPath.OLD_FORMAT,
                default,
                encode_message_set(records, magic, codec),
            )
            for magic in (0, 1)
            for codec in (Codec.NONE, Codec.GZIP)
        ),
    ]


def conversions() -> list[tuple[str, Callable[[], object]]]:
    """The conversions of a batch for Fetch 0 to 3."""
    found: list[tuple[str, Callable[[], object]]] = []
    for codec in (Codec.NONE, Codec.GZIP, Codec.LZ4):
        data = build_batch(sample_records(), codec=codec)
        suffix = "" if codec is Codec.NONE else f", {codec.name.lower()}"
        found += [(f"to format {magic}{suffix}", _conversion(data, magic)) for magic in (0, 1)]
    return found


def _conversion(data: bytes, magic: int) -> Callable[[], object]:
    return lambda: down_converted(data, magic, 0)


def appender(case: Case, directory: Path) -> Callable[[], object]:
    magic = case.data[16]
    attributes = int.from_bytes(case.data[21:23], "big") if magic == MAGIC_V2 else 0
    taken = slow_paths(case.config, magic, attributes)
    assert taken == case.paths, f"{case.name} takes {taken}"
    log = Log.open(directory / case.name.replace(" ", "-").replace("'", ""), case.config)
    view = memoryview(case.data)
    return lambda: log.append_as_leader(view, leader_epoch=0, now_ms=NOW_MS)


def cpu_us(run: Callable[[], object], times: int) -> float:
    before = time.process_time_ns()
    for _ in range(times):
        run()
    return (time.process_time_ns() - before) / times / 1000


def measured(runs: list[tuple[str, Callable[[], object]]], rounds: int, times: int) -> dict[str, float]:
    """The median CPU time of each, in microseconds; the first round warms up."""
    samples: dict[str, list[float]] = {name: [] for name, _ in runs}
    for number in range(rounds + 1):
        for name, run in runs:
            taken = cpu_us(run, times)
            if number:
                samples[name].append(taken)
    return {name: statistics.median(taken) for name, taken in samples.items()}


@click.command()
@click.option("--rounds", default=7, show_default=True)
@click.option("--times", default=40, show_default=True, help="Batches of a round.")
def main(rounds: int, times: int) -> None:
    """CPU time of the slow paths of appending and fetching, per batch of 16 KiB and per record."""
    say_interpreter()
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder:
        appends = measured([(case.name, appender(case, Path(folder))) for case in cases()], rounds, times)
    fast = next(iter(appends.values()))
    table = Table("path", "µs / batch", "µs / record", "of the fast path")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, cost in appends.items():
        table.add_row(f"append: {name}", f"{cost:.0f}", f"{cost / RECORDS:.2f}", f"{cost / fast:.1f}")
    table.add_section()
    for name, cost in measured(conversions(), rounds, times).items():
        table.add_row(f"fetch: {name}", f"{cost:.0f}", f"{cost / RECORDS:.2f}", "")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()

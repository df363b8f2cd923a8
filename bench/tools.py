"""Kafka's performance tools: their command lines, and parsers of their output.

Called by `make bench` and by the paper's experiment. `run_client` starts every client, on the client's core.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.apache_kafka import java_command

BROKER_CORE: Final = 0
CLIENT_CORE: Final = 1
_PRODUCED: Final = re.compile(
    r"^(?P<sent>\d+) records sent, (?P<rate>[\d.,]+) records/sec .*?"
    r"(?P<p50>\d+) ms 50th, (?P<p95>\d+) ms 95th, (?P<p99>\d+) ms 99th, (?P<p999>\d+) ms 99\.9th",
    re.MULTILINE,
)


class ToolFailed(Exception):
    """A performance tool ended with an error, or its output could not be parsed."""


def producer_command(
    bootstrap: str,
    topic: str,
    *,
    records: int,
    record_bytes: int,
    settings: Sequence[str],
    rate: int = -1,
    transaction_ms: int = 0,
) -> list[str]:
    """ProducerPerformance; `rate` in records a second, -1: no limit; `transaction_ms` 0: no transactions."""
    transactions = ("--transactional-id", topic, "--transaction-duration-ms", str(transaction_ms))
    return java_command(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(records), "--record-size", str(record_bytes)),
        *(transactions if transaction_ms else ()),
        *("--throughput", str(rate), "--producer-props", f"bootstrap.servers={bootstrap}", *settings),
    )


def consumer_command(bootstrap: str, topic: str, *, records: int, config: Path | None = None) -> list[str]:
    """ConsumerPerformance with a new group, from the start of the topic; `config` has its properties."""
    return java_command(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--topic", topic, "--messages", str(records), "--bootstrap-server", bootstrap),
        *("--timeout", "60000", *(() if config is None else ("--consumer.config", str(config)))),
    )


def produced(output: str, records: int) -> dict[str, float]:
    """Rate and latencies of the last line, which covers the whole run. Raises ToolFailed."""
    lines = list(_PRODUCED.finditer(output))
    if not lines or int(lines[-1]["sent"]) != records:
        raise ToolFailed(f"ProducerPerformance did not send {records} records:\n{output[-500:]}")
    last = lines[-1]
    return {
        "records_per_s": float(last["rate"].replace(",", "")),
        "p50_ms": float(last["p50"]),
        "p99_ms": float(last["p99"]),
        "p999_ms": float(last["p999"]),
    }


def consumed(output: str, records: int) -> dict[str, float]:
    """fetch.nMsg.sec: the rate without the time of the group's rebalance. Raises ToolFailed."""
    rows = [line.split(", ") for line in output.strip().splitlines()]
    header = next((row for row in rows if "fetch.nMsg.sec" in row), None)
    last = rows[-1] if rows else []
    if (
        header is None
        or len(last) != len(header)
        or int(last[header.index("data.consumed.in.nMsg")]) < records
    ):
        raise ToolFailed(f"ConsumerPerformance did not read {records} records:\n{output[-500:]}")
    return {"records_per_s": float(last[header.index("fetch.nMsg.sec")])}


def pinned(command: Sequence[str], core: int = CLIENT_CORE) -> list[str]:
    return ["taskset", "-c", str(core), *command]


def run_client(command: Sequence[str], timeout_s: float = 300) -> str:
    """Run a client on its core; its standard output. Raises ToolFailed."""
    try:
        ran = subprocess.run(pinned(command), capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise ToolFailed(f"not done after {timeout_s:g} s: {' '.join(command)}") from error
    if ran.returncode:
        raise ToolFailed(f"{' '.join(command)}\n{ran.stdout[-500:]}\n{ran.stderr[-1000:]}")
    return ran.stdout

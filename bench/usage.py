"""CPU seconds and memory of processes, from /proc.

Called by the benchmarks before and after a run, with all brokers of a side.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class Usage(NamedTuple):
    cpu_s: float
    """User and system time of the whole processes so far."""
    rss_mib: float
    pss_mib: float
    """RSS with each shared page divided by its users: three brokers count the interpreter's code once."""


def usage_of(pids: Iterable[int]) -> Usage:
    """The sum over the processes. Raises FileNotFoundError when one of them has ended."""
    cpu_s = rss_mib = pss_mib = 0.0
    for pid in pids:
        cpu_s += cpu_s_of(pid)
        rollup = parse_rollup(Path(f"/proc/{pid}/smaps_rollup").read_text())
        rss_mib += rollup["Rss"] / 1024
        pss_mib += rollup["Pss"] / 1024
    return Usage(cpu_s, rss_mib, pss_mib)


def cpu_s_of(pid: int) -> float:
    """CPU time of all threads, by the kernel's ticks. Raises FileNotFoundError after the process ended."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def parse_rollup(text: str) -> dict[str, int]:
    """The fields of smaps_rollup, in KiB."""
    fields = {}
    for line in text.splitlines()[1:]:
        name, _, rest = line.partition(":")
        fields[name] = int(rest.split()[0])
    return fields

"""Samples of `make bench`: agreement of runs, medians and ratios. Pure.

Called by the runner and the report.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

AGREE_WITHIN: Final = 0.10
AGREEING_RUNS: Final = 3

Figures = Mapping[str, float]
"""The values of one run, by the keys of `MEASURES`."""


@dataclass(frozen=True)
class Measure:
    """A figure of a run, and its column in the table."""

    key: str
    title: str
    decimals: int


MEASURES: Final = (
    Measure("records_per_s", "records/s", 0),
    Measure("cpu_s_per_million", "CPU s / million", 2),
    Measure("p50_ms", "p50 ms", 0),
    Measure("p99_ms", "p99 ms", 0),
    Measure("p999_ms", "p99.9 ms", 0),
    Measure("reader_mib_s", "reader MiB/s", 0),
    Measure("rss_mib", "RSS MiB", 0),
    Measure("pss_mib", "PSS MiB", 0),
)


def agree(rates: Sequence[float]) -> bool:
    """Whether the last three rates are within 10 % of the slowest of them."""
    last = rates[-AGREEING_RUNS:]
    return len(last) == AGREEING_RUNS and max(last) <= min(last) * (1 + AGREE_WITHIN)


def medians(samples: Sequence[Figures]) -> dict[str, float]:
    """The median of each figure; `samples` is not empty."""
    assert samples
    return {key: statistics.median(sample[key] for sample in samples) for key in samples[0]}


def spread(samples: Sequence[Figures], key: str) -> float:
    """(highest - lowest) / lowest of a figure; 0 if the lowest is 0."""
    values = [sample[key] for sample in samples]
    return (max(values) - min(values)) / min(values) if min(values) > 0 else 0.0


@dataclass
class SideRuns:
    """All runs of one load on one side."""

    warm: list[Figures] = field(default_factory=list)
    agreed: bool = False
    """Whether three warm-up runs in a row agreed; if not, the side is measured all the same."""
    samples: list[Figures] = field(default_factory=list)

    @property
    def median(self) -> dict[str, float]:
        return medians(self.samples)


def ratios(ours: Figures, theirs: Figures) -> dict[str, float]:
    """ours / theirs, for every figure that both have and that is not 0 in theirs."""
    return {key: ours[key] / theirs[key] for key in ours if theirs.get(key)}

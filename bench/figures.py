"""What the side-by-side bench knows of numbers: samples, when they agree, medians and ratios.

Called by the runner and the report. Pure.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

AGREE_WITHIN: Final = 0.10
AGREEING_RUNS: Final = 3

Figures = Mapping[str, float]
"""Of one run, by name; the names and what they mean are in `MEASURES`."""


@dataclass(frozen=True)
class Measure:
    """One of a run's figures, and how it is shown."""

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
    """Whether the last three runs lie within 10 % of the slowest of them."""
    last = rates[-AGREEING_RUNS:]
    return len(last) == AGREEING_RUNS and max(last) <= min(last) * (1 + AGREE_WITHIN)


def medians(samples: Sequence[Figures]) -> dict[str, float]:
    """The median of every figure that the samples have."""
    assert samples
    return {key: statistics.median(sample[key] for sample in samples) for key in samples[0]}


def spread(samples: Sequence[Figures], key: str) -> float:
    """How far the highest of a figure lies above the lowest, as a share of the lowest."""
    values = [sample[key] for sample in samples]
    return (max(values) - min(values)) / min(values) if min(values) > 0 else 0.0


@dataclass
class Taken:
    """All runs of one load on one side."""

    warm: list[Figures] = field(default_factory=list)
    agreed: bool = False
    """Whether three warm-up runs agreed; if not, the side was measured as it was after the last of them."""
    samples: list[Figures] = field(default_factory=list)

    @property
    def median(self) -> dict[str, float]:
        return medians(self.samples)


def ratios(ours: Figures, theirs: Figures) -> dict[str, float]:
    """Ours over theirs, for every figure that both have and theirs is not 0."""
    return {key: ours[key] / theirs[key] for key in ours if theirs.get(key)}

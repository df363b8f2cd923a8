"""Rate limiting, throughput and latency statistics for `ottla perf` and `ottla produce --rate`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_MB: Final = 1024 * 1024
"""The MB of Kafka's tools."""
PERCENTILES: Final = (0.5, 0.95, 0.99, 0.999)


def due_s(count: int, per_second: float) -> float:
    """Seconds after the start at which the next record after `count` may be sent; 0 without a limit."""
    return count / per_second if per_second > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Throughput:
    records: int
    bytes: int
    elapsed_s: float

    @property
    def records_per_s(self) -> float:
        return self.records / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def mb(self) -> float:
        return self.bytes / _MB

    @property
    def mb_per_s(self) -> float:
        return self.mb / self.elapsed_s if self.elapsed_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Latencies:
    """Statistics of latencies in milliseconds; all 0 without a record."""

    average: float
    most: float
    percentiles: tuple[float, ...]
    """The percentiles of PERCENTILES, in order."""

    @classmethod
    def of(cls, measured_ms: Sequence[float]) -> Latencies:
        if not measured_ms:
            return cls(0.0, 0.0, (0.0,) * len(PERCENTILES))
        ordered = sorted(measured_ms)
        at = (min(len(ordered) - 1, int(share * len(ordered))) for share in PERCENTILES)
        return cls(sum(ordered) / len(ordered), ordered[-1], tuple(ordered[index] for index in at))

"""Families of samples, and their text, written in slices.

The other modules of this package make families; the HTTP server serves their text. prometheus_client
generates the text. Slices keep the event loop responsive: a broker of ten thousand partitions has a hundred
thousand samples.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, Literal, NamedTuple, TypeAlias

from prometheus_client import generate_latest
from prometheus_client.core import Metric

SLICE_SAMPLES: Final = 100
"""Samples per slice: well under a millisecond."""

Sample: TypeAlias = tuple[tuple[str, ...], float]
"""Values of the family's labels, and the number."""


class Family(NamedTuple):
    """A metric and its samples. The name of a counter is without `_total`."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    labels: tuple[str, ...]
    samples: Iterable[Sample]


def gauge(name: str, help: str, value: float) -> Family:
    """One number without labels."""
    return Family(name, "gauge", help, (), (((), value),))


def counter(name: str, help: str, value: float) -> Family:
    return Family(name, "counter", help, (), (((), value),))


class _SingleMetricRegistry:
    """A registry of one metric, for generate_latest."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


async def write(families: Iterable[Family]) -> bytes:
    """The text of all families; yields to the event loop between slices."""
    parts: list[bytes] = []
    for family in families:
        samples = iter(family.samples)
        first = True
        while chunk := list(islice(samples, SLICE_SAMPLES)):
            text = _text(family, chunk)
            parts.append(text if first else _without_head(text))
            first = False
            await asyncio.sleep(0)
    return b"".join(parts)


def _text(family: Family, samples: list[Sample]) -> bytes:
    metric = Metric(family.name, family.help, family.kind)
    name = f"{family.name}_total" if family.kind == "counter" else family.name
    for values, number in samples:
        metric.add_sample(name, dict(zip(family.labels, values, strict=True)), number)
    return generate_latest(_SingleMetricRegistry(metric))


def _without_head(text: bytes) -> bytes:
    """Without the HELP and TYPE lines, which a family has once."""
    return text.split(b"\n", 2)[2]

"""Families of samples, and their text, written in slices.

Families are made by the modules beside this one and written for the HTTP port. The text is
prometheus_client's; the slices are ours: a broker of ten thousand partitions has a hundred thousand
samples, and the loop has others to serve meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, Literal, NamedTuple, TypeAlias

from prometheus_client import generate_latest
from prometheus_client.core import Metric

SLICE_SAMPLES: Final = 100
"""What is written at a time: well under a millisecond."""

Sample: TypeAlias = tuple[tuple[str, ...], float]
"""Values of the family's labels, and the number."""


class Family(NamedTuple):
    """`kind` counter: the name is without its `_total`."""

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


class _One:
    """What generate_latest takes for a registry."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


async def write(families: Iterable[Family]) -> bytes:
    """The text of all of them. Others have their turn of the loop in between."""
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
    return generate_latest(_One(metric))


def _without_head(text: bytes) -> bytes:
    """Without the HELP and TYPE lines, which a family has once."""
    return text.split(b"\n", 2)[2]

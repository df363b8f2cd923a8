"""A compact, exact set of record numbers, with a count that includes duplicates.

Called by the ledger. Pure. Numbers are grouped in buckets of 32,768 bits, as Spark's bitmap functions
produce them (at most 4 KiB; a Python integer is as long as its highest bit). Leading full buckets are only
counted, so numbers without a gap take a few bytes, whatever their amount. Addition is commutative.
Duplicates are the difference between the count and the number of distinct values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

BITS: Final = 32_768
FULL: Final = (1 << BITS) - 1
Ranges = Sequence[tuple[int, int]]


@dataclass(slots=True)
class NumberBitmap:
    """Record numbers of one producer, topic and window. `count` includes duplicates; `full` counts the
    leading full buckets."""

    count: int = 0
    full: int = 0
    buckets: dict[int, int] = field(default_factory=dict)

    def add(self, bucket: int, bits: int, count: int) -> None:
        assert 0 < bits <= FULL
        assert count >= bits.bit_count()
        self.count += count
        if bucket < self.full:
            return
        self.buckets[bucket] = self.buckets.get(bucket, 0) | bits
        while self.buckets.get(self.full) == FULL:
            del self.buckets[self.full]
            self.full += 1

    @property
    def distinct(self) -> int:
        return self.full * BITS + sum(bits.bit_count() for bits in self.buckets.values())

    @property
    def duplicated(self) -> int:
        """Copies beyond the first."""
        return self.count - self.distinct

    def bits(self, bucket: int) -> int:
        return FULL if bucket < self.full else self.buckets.get(bucket, 0)

    def count_within(self, ranges: Ranges) -> int:
        """The number of distinct members in these ranges."""
        return sum((self.bits(bucket) & mask).bit_count() for bucket, mask in masks(ranges))

    def missing(self, ranges: Ranges, most: int) -> list[int]:
        """The first numbers of these ranges that are not members, at most `most`."""
        found: list[int] = []
        for bucket, mask in masks(ranges):
            lacking = mask & ~self.bits(bucket)
            while lacking and len(found) < most:
                lowest = lacking & -lacking
                found.append(bucket * BITS + lowest.bit_length() - 1)
                lacking ^= lowest
        return found

    def union(self, other: NumberBitmap) -> NumberBitmap:
        """The union with another holder, for example the dead letters: a number that is in both is no
        duplicate."""
        both = NumberBitmap(0, max(self.full, other.full))
        for bucket in self.buckets.keys() | other.buckets.keys():
            if bucket < both.full:
                continue
            both.buckets[bucket] = self.bits(bucket) | other.bits(bucket)
        both.count = both.distinct + self.duplicated + other.duplicated
        return both

    def to_json(self) -> list[Any]:
        return [self.count, self.full, {str(bucket): f"{bits:x}" for bucket, bits in self.buckets.items()}]

    @classmethod
    def from_json(cls, raw: Sequence[Any]) -> NumberBitmap:
        count, full, buckets = raw
        return cls(count, full, {int(bucket): int(bits, 16) for bucket, bits in buckets.items()})


def masks(ranges: Ranges) -> Iterator[tuple[int, int]]:
    """Ascending ranges as (bucket, bits), each bucket once."""
    bucket, bits = 0, 0
    for first, last in ranges:
        for this in range(first // BITS, last // BITS + 1):
            low, high = max(first - this * BITS, 0), min(last - this * BITS, BITS - 1)
            if this != bucket:
                if bits:
                    yield bucket, bits
                bucket, bits = this, 0
            bits |= ((1 << (high - low + 1)) - 1) << low
    if bits:
        yield bucket, bits


def bitmap_of(numbers: Iterable[int]) -> NumberBitmap:
    """A bitmap of these numbers, each counted once."""
    seen = NumberBitmap()
    for number in numbers:
        seen.add(number // BITS, 1 << number % BITS, 1)
    return seen

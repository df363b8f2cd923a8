"""Which numbers of a window were seen, and how often in all: exact, and small where nothing is amiss.

Called by the ledger. Pure. Numbers come in buckets of 32,768 bits, as Spark's bitmap functions make them (4
KiB at most; a Python integer is as long as its highest bit). Buckets that are full from 0 on are just
counted, so what has been seen without a gap takes a few bytes, however much it is. Adding is commutative, and
copies show as the difference between what was counted and what is distinct.
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
    """`count` is of records, copies included."""

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

    def within(self, ranges: Ranges) -> int:
        """How many distinct numbers of these ranges were seen."""
        return sum((self.bits(bucket) & mask).bit_count() for bucket, mask in masks(ranges))

    def missing(self, ranges: Ranges, most: int) -> list[int]:
        """The first numbers of these ranges that were not seen, `most` of them."""
        found: list[int] = []
        for bucket, mask in masks(ranges):
            lacking = mask & ~self.bits(bucket)
            while lacking and len(found) < most:
                lowest = lacking & -lacking
                found.append(bucket * BITS + lowest.bit_length() - 1)
                lacking ^= lowest
        return found

    def beside(self, other: NumberBitmap) -> NumberBitmap:
        """What two holders have between them: in each of them a number may be once, and only once."""
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
    """These numbers, each as one record; for what comes one by one."""
    seen = NumberBitmap()
    for number in numbers:
        seen.add(number // BITS, 1 << number % BITS, 1)
    return seen

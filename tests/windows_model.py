"""A model of windows and joins in plain Python: no Spark, no Kafka, times in whole milliseconds.

`Windows` and `Sessions` take records run by run, as the job gets them; between two runs the watermark
advances to the latest event time less the delay. They return records that are late.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Moment(NamedTuple):
    id: str
    time: int
    key: str
    n: int


class Total(NamedTuple):
    """The result of one window and key."""

    count: int
    sum: int
    least: int
    most: int


def total(numbers: Sequence[int]) -> Total:
    return Total(len(numbers), sum(numbers), min(numbers), max(numbers))


def windows_of(time: int, size: int, slide: int) -> list[tuple[int, int]]:
    """All windows [start, end) that begin at a multiple of `slide` and hold `time`, earliest first."""
    first = time - size - (time - size) % slide
    starts = range(first, time + 1, slide)
    return [(start, start + size) for start in starts if start <= time < start + size]


Results = dict[tuple[int, int, str], Total]
Late = dict[str, list[tuple[int, int]]]


@dataclass
class Windows:
    """Tumbling windows have `slide` equal to `size`."""

    size: int
    slide: int
    delay: int
    watermark: int = 0
    open: dict[tuple[int, int, str], list[int]] = field(default_factory=lambda: defaultdict(list))
    results: Results = field(default_factory=dict)
    late: Late = field(default_factory=dict)

    def run(self, events: Iterable[Moment]) -> None:
        latest = self.watermark + self.delay
        for event in events:
            latest = max(latest, event.time)
            for start, end in windows_of(event.time, self.size, self.slide):
                if end <= self.watermark:
                    self.late.setdefault(event.id, []).append((start, end))
                else:
                    self.open[start, end, event.key].append(event.n)
        self.watermark = latest - self.delay
        for window in [window for window in self.open if window[1] <= self.watermark]:
            assert window not in self.results
            self.results[window] = total(self.open.pop(window))


@dataclass
class Sessions:
    gap: int
    delay: int
    watermark: int = 0
    open: dict[str, list[Moment]] = field(default_factory=lambda: defaultdict(list))
    results: Results = field(default_factory=dict)
    late: Late = field(default_factory=dict)

    def run(self, events: Iterable[Moment]) -> None:
        latest = self.watermark + self.delay
        for event in events:
            latest = max(latest, event.time)
            if event.time + self.gap <= self.watermark:
                self.late[event.id] = [(event.time, event.time + self.gap)]
            else:
                self.open[event.key].append(event)
        self.watermark = latest - self.delay
        for key, held in self.open.items():
            kept: list[Moment] = []
            for session in self.split(held):
                start, end = session[0].time, session[-1].time + self.gap
                if end <= self.watermark:
                    self.results[start, end, key] = total([event.n for event in session])
                else:
                    kept += session
            self.open[key] = kept

    def split(self, events: list[Moment]) -> list[list[Moment]]:
        sessions: list[list[Moment]] = []
        for event in sorted(events, key=lambda e: e.time):
            if sessions and event.time <= sessions[-1][-1].time + self.gap:
                sessions[-1].append(event)
            else:
                sessions.append([event])
        return sessions

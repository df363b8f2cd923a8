"""The translation of source offsets to target offsets.

Pure; called by the writer (`runs_of`: the records of a transaction, from its delivery reports) and by the
group sync (`OffsetSyncStore.translate`). Each transaction writes an `OffsetSync`: runs of records that are
consecutive on both sides. Offset syncs are kept in a compacted topic of the target, as in MirrorMaker 2, each
under a key of its partition and its *slot*.

Slots thin out old syncs: transaction number n has the level "how often does 2 divide n", and each level keeps
its latest `RING` syncs. So the last 2 · RING transactions are all present, and at a distance of d
transactions from the end one in d / RING is: a few hundred records per partition, permanently, where
MirrorMaker 2 keeps the newest ones only.

Invariants of a translation T of the source offset g (tests/unit/test_pipeline_mirror_translation.py):

- it never skips: each mirrored record at g or after is at T or after;
- it is exact for the last 2 · RING transactions: T is the offset of the first record at g or after, or
  follows the record before it;
- it is monotonic: a greater g has no smaller T.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

RING: Final = 64
"""Syncs kept of each level."""
RUNS_MAX: Final = 200
"""Runs of one transaction: a compacted source has many gaps. About 5 kB."""
FIRST: Final = "first"
"""The slot of a partition's first transaction, which is the start of the mirrored offsets."""


class Run(NamedTuple):
    """`length` records at consecutive offsets, on the source and on the target."""

    source: int
    target: int
    length: int


class Lineage(NamedTuple):
    """The topic ids on both sides: a topic that is deleted and created again has the same name and other
    offsets."""

    source: str
    """The source's cluster id and topic id."""
    target: str


@dataclass(frozen=True, slots=True)
class OffsetSync:
    """The records that one transaction wrote for a partition."""

    lineage: Lineage
    number: int
    """0 for the partition's first transaction, then one more each."""
    position: int
    """The source offset from which the next transaction goes on."""
    runs: tuple[Run, ...]

    def encode(self) -> bytes:
        body = {
            "source": self.lineage.source,
            "target": self.lineage.target,
            "number": self.number,
            "position": self.position,
            "runs": self.runs,
        }
        return json.dumps(body, separators=(",", ":")).encode()

    @staticmethod
    def decode(value: bytes) -> OffsetSync:
        body = json.loads(value)
        runs = tuple(Run(*run) for run in body["runs"])
        return OffsetSync(Lineage(body["source"], body["target"]), body["number"], body["position"], runs)


class OffsetSyncKey(NamedTuple):
    """The key of a sync; a newer sync of the same key replaces it."""

    topic: str
    partition: int
    slot: str

    def encode(self) -> bytes:
        return json.dumps(self, separators=(",", ":")).encode()

    @staticmethod
    def decode(key: bytes) -> OffsetSyncKey:
        return OffsetSyncKey(*json.loads(key))


def slot_of(number: int) -> str:
    """The slot of a partition's transaction, by its number."""
    if number == 0:
        return FIRST
    level = (number & -number).bit_length() - 1
    return f"{level}.{(number >> (level + 1)) % RING}"


def runs_of(sources: Sequence[int], reports: Sequence[tuple[int, int]]) -> list[Run]:
    """The runs of one transaction. `sources`: the offsets of its records, ascending, in write order;
    `reports`: (index in `sources`, target offset) of some of them, including the first, ascending.

    If there are as many target offsets between two reports as records, no other record is between them,
    and all offsets are known. Otherwise other producers wrote to that partition too, and only the reported
    offsets are known.
    """
    assert bool(sources) == bool(reports), "records without a report"
    assert not reports or reports[0][0] == 0, "the first record is reported"
    runs: list[Run] = []
    for place, (index, target) in enumerate(reports):
        later, at = reports[place + 1] if place + 1 < len(reports) else (index + 1, target + 1)
        end = later if at - target == later - index else index + 1
        if sources[end - 1] - sources[index] == end - 1 - index:
            _extend(runs, Run(sources[index], target, end - index))
            continue
        for here in range(index, end):
            _extend(runs, Run(sources[here], target + here - index, 1))
    return thinned(runs)


def _extend(runs: list[Run], run: Run) -> None:
    if runs:
        last = runs[-1]
        if run.source == last.source + last.length and run.target == last.target + last.length:
            runs[-1] = Run(last.source, last.target, last.length + run.length)
            return
    runs.append(run)


def thinned(runs: list[Run], most: int = RUNS_MAX) -> list[Run]:
    """At most `most` of the runs, including the first and the last: coarser, and as safe."""
    if len(runs) <= most:
        return runs
    return [runs[place * (len(runs) - 1) // (most - 1)] for place in range(most)]


@dataclass(slots=True)
class _Partition:
    lineage: Lineage
    slots: dict[str, OffsetSync] = field(default_factory=dict)
    runs: list[Run] | None = None
    """All runs, sorted; None after a sync was added."""


class OffsetSyncStore:
    """The syncs of one mirror, added in the order of its topic."""

    def __init__(self) -> None:
        self._partitions: dict[tuple[str, int], _Partition] = {}

    def add(self, key: OffsetSyncKey, sync: OffsetSync) -> None:
        """Adds a record of the topic. Syncs of another lineage are older and are dropped."""
        where = (key.topic, key.partition)
        known = self._partitions.get(where)
        if known is None or known.lineage != sync.lineage:
            known = self._partitions[where] = _Partition(sync.lineage)
        known.slots[key.slot] = sync
        known.runs = None

    def latest(self, topic: str, partition: int) -> OffsetSync | None:
        """The sync of the partition's last transaction."""
        known = self._partitions.get((topic, partition))
        return max(known.slots.values(), key=lambda sync: sync.number) if known else None

    def lineage(self, topic: str, partition: int) -> Lineage | None:
        known = self._partitions.get((topic, partition))
        return known.lineage if known else None

    def translate(self, topic: str, partition: int, offset: int) -> int | None:
        """The target's offset for a group whose next source offset is `offset`; None if nothing was
        mirrored."""
        known = self._partitions.get((topic, partition))
        if known is None:
            return None
        if known.runs is None:
            known.runs = merged(run for sync in known.slots.values() for run in sync.runs)
        return translate(known.runs, offset)


def merged(runs: Iterable[Run]) -> list[Run]:
    """The runs, sorted, with consecutive ones merged."""
    result: list[Run] = []
    for run in sorted(runs):
        _extend(result, run)
    return result


def translate(runs: Sequence[Run], offset: int) -> int | None:
    """The translation (see the module): never skips. `runs` are sorted and do not overlap."""
    if not runs:
        return None
    place = bisect_right(runs, offset, key=lambda run: run.source) - 1
    if place < 0:
        return runs[0].target  # before all that was mirrored
    run = runs[place]
    return run.target + min(offset - run.source, run.length)

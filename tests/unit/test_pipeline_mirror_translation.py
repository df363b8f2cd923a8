"""Offsets translated from source to target: nothing is ever skipped, and little read again."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ottla_pipeline.mirroring.translation import (
    FIRST,
    RING,
    Lineage,
    OffsetSync,
    OffsetSyncKey,
    OffsetSyncStore,
    Run,
    merged,
    runs_of,
    slot_of,
    thinned,
    translate,
)

LINEAGE = Lineage("cluster/source", "target")


class Mirror:
    """Writes transactions as the mirror does, and knows where each record went."""

    def __init__(self) -> None:
        self.sources: list[int] = []
        self.targets: list[int] = []
        self.kept: dict[bytes, bytes] = {}
        self.number = self.next_source = self.next_target = 0

    def write(self, gaps: list[int], others: list[int], every: int) -> None:
        """One record for each gap (how many source offsets lie before it); `others`: foreign records on the
        target before it. Each `every`-th delivery is reported, and the last one."""
        sources: list[int] = []
        reports: list[tuple[int, int]] = []
        for index, gap in enumerate(gaps):
            self.next_source += gap
            self.next_target += others[index % len(others)] if others else 0
            if index % every == 0 or index == len(gaps) - 1:
                reports.append((index, self.next_target))
            sources.append(self.next_source)
            self.targets.append(self.next_target)
            self.next_source += 1
            self.next_target += 1
        self.next_target += 1  # the transaction's marker
        self.sources += sources
        sync = OffsetSync(LINEAGE, self.number, self.next_source, tuple(runs_of(sources, reports)))
        self.kept[OffsetSyncKey("t", 0, slot_of(self.number)).encode()] = sync.encode()
        self.number += 1

    def table(self) -> OffsetSyncStore:
        table = OffsetSyncStore()
        for key, value in self.kept.items():
            table.add(OffsetSyncKey.decode(key), OffsetSync.decode(value))
        return table

    def first_at_or_after(self, offset: int) -> int:
        """Where the first record at this source offset or after is; behind all if there is none."""
        place = bisect_left(self.sources, offset)
        return self.targets[place] if place < len(self.targets) else self.next_target


TRANSACTIONS = st.lists(
    st.tuples(
        st.lists(st.sampled_from([0, 0, 0, 1, 5]), min_size=1, max_size=12),
        st.lists(st.sampled_from([0, 0, 3]), max_size=3),
        st.integers(1, 6),
    ),
    min_size=1,
    max_size=300,
)


@given(TRANSACTIONS)
def test_a_translated_offset_never_skips_a_record_and_never_falls_back(
    transactions: list[tuple[list[int], list[int], int]],
) -> None:
    mirror = Mirror()
    for transaction in transactions:
        mirror.write(*transaction)
    table = mirror.table()
    before = -1
    for offset in range(mirror.next_source + 3):
        translated = table.translate("t", 0, offset)
        assert translated is not None
        assert translated <= mirror.first_at_or_after(offset)
        assert translated >= before
        before = translated


@given(st.lists(st.lists(st.sampled_from([0, 0, 2]), min_size=1, max_size=20), min_size=1, max_size=2 * RING))
def test_nothing_is_read_again_where_the_mirror_alone_writes(transactions: list[list[int]]) -> None:
    """However few deliveries were reported: no mirrored record lies between T and the first wanted."""
    mirror = Mirror()
    for gaps in transactions:
        mirror.write(gaps, [], 1000)
    table = mirror.table()
    for offset in range(mirror.next_source + 1):
        translated = table.translate("t", 0, offset)
        assert translated is not None
        again = [t for t in mirror.targets if translated <= t < mirror.first_at_or_after(offset)]
        assert not again, offset


def test_positions_of_the_latest_transactions_are_kept_and_ever_fewer_of_older_ones() -> None:
    slots: dict[str, int] = {}
    total = 100_000
    for number in range(total):
        slots[slot_of(number)] = number
    kept = sorted(slots.values())
    assert set(range(total - 2 * RING, total)) <= set(kept)
    assert slots[FIRST] == 0
    assert len(kept) <= RING * 18
    for older, newer in pairwise(kept[1:]):
        assert newer - older <= max(1, (total - older) // (RING // 4))


def test_before_the_first_mirrored_record_a_group_starts_with_it() -> None:
    assert translate([Run(100, 7, 3)], 5) == 7
    assert translate([Run(100, 7, 3)], 102) == 9
    assert translate([Run(100, 7, 3)], 1000) == 10
    assert translate([], 5) is None


def test_a_partition_that_was_not_mirrored_has_no_translation() -> None:
    assert OffsetSyncStore().translate("t", 0, 5) is None


def test_two_reports_are_enough_where_nobody_else_writes() -> None:
    assert runs_of([5, 6, 7, 8], [(0, 50), (3, 53)]) == [Run(5, 50, 4)]


def test_with_records_of_others_in_between_only_what_was_reported_is_known() -> None:
    assert runs_of([5, 6, 7, 8], [(0, 50), (3, 54)]) == [Run(5, 50, 1), Run(8, 54, 1)]


def test_gaps_of_the_source_end_a_run() -> None:
    assert runs_of([5, 6, 9], [(0, 50), (2, 52)]) == [Run(5, 50, 2), Run(9, 52, 1)]


def test_runs_that_follow_each_other_are_one() -> None:
    assert merged([Run(10, 110, 5), Run(0, 100, 10)]) == [Run(0, 100, 15)]


@given(st.integers(1, 2000))
def test_thinned_runs_keep_the_first_and_the_last(count: int) -> None:
    runs = [Run(2 * n, n, 1) for n in range(count)]
    few = thinned(runs)
    assert len(few) <= 200
    assert (few[0], few[-1]) == (runs[0], runs[-1])
    assert sorted(set(few)) == few


def test_a_topic_made_anew_has_no_translations_of_the_former_one() -> None:
    table = OffsetSyncStore()
    table.add(OffsetSyncKey("t", 0, slot_of(9)), OffsetSync(LINEAGE, 9, 1001, (Run(1000, 1005, 1),)))
    anew = Lineage(LINEAGE.source, "another")
    table.add(OffsetSyncKey("t", 0, slot_of(0)), OffsetSync(anew, 0, 2001, (Run(2000, 0, 1),)))
    assert table.translate("t", 0, 1500) == 0
    latest = table.latest("t", 0)
    assert latest is not None
    assert (latest.number, latest.position, table.lineage("t", 0)) == (0, 2001, anew)


def test_keys_and_syncs_survive_their_encoding() -> None:
    key, sync = (
        OffsetSyncKey("a-topic", 3, slot_of(12)),
        OffsetSync(LINEAGE, 12, 99, (Run(1, 2, 3), Run(7, 8, 1))),
    )
    assert (OffsetSyncKey.decode(key.encode()), OffsetSync.decode(sync.encode())) == (key, sync)

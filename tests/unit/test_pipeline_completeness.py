"""What the audit says of windows, out of counts and audit events."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_pipeline.auditing.events import AuditEvent, ConsumerEvent, Receipt, WindowCount
from ottla_pipeline.completeness import auditor, number_bitmap
from ottla_pipeline.completeness.config import AuditConfig
from ottla_pipeline.completeness.ledger import EVENTS, CountRow, Ledger
from ottla_pipeline.completeness.number_bitmap import BITS, FULL, NumberBitmap
from ottla_pipeline.completeness.verdicts import (
    TierRule,
    WindowVerdict,
    evaluate,
    problems,
    silent_clients,
    verdict,
)
from ottla_pipeline.config.common import validate

MINUTE_MS = 60_000
RULES = {"brokers": TierRule(1_000), "lake": TierRule(5_000)}
NUMBERS = st.one_of(st.integers(0, 300), st.integers(BITS - 100, BITS + 100))


@given(
    st.lists(NUMBERS),
    st.lists(st.tuples(st.sampled_from([0, 1, 70, BITS - 200]), st.integers(0, 150)), max_size=5),
)
def test_a_bitmap_counts_numbers_as_sets_do(numbers: list[int], raw: list[tuple[int, int]]) -> None:
    found, at, ranges = number_bitmap.bitmap_of(numbers), 0, []
    for gap, length in raw:
        ranges.append((at + gap, at + gap + length))
        at = ranges[-1][1] + 2
    expected = {number for first, last in ranges for number in range(first, last + 1)}
    assert found.count == len(numbers)
    assert found.distinct == len(set(numbers))
    assert found.duplicated == len(numbers) - len(set(numbers))
    assert found.count_within(ranges) == len(expected & set(numbers))
    assert found.missing(ranges, 7) == sorted(expected - set(numbers))[:7]
    assert NumberBitmap.from_json(found.to_json()) == found


@given(st.permutations([0, 1, 2, 3]), st.booleans())
def test_full_buckets_take_no_room_in_whatever_order_they_fill(order: list[int], again: bool) -> None:
    found = NumberBitmap()
    for bucket in order:
        found.add(bucket, FULL >> 1, BITS - 1)
        found.add(bucket, 1 << BITS - 1, 1)
    if again:
        found.add(order[0], 1, 1)
    assert (found.full, found.buckets) == (4, {})
    assert (found.distinct, found.duplicated) == (4 * BITS, int(again))


def event(report: int, *windows: WindowCount, final: bool = False, producer: str = "p/1") -> AuditEvent:
    return AuditEvent(producer, "p", report, 1_000 * report, MINUTE_MS, final, windows)


def window(count: int, start_ms: int = 0, *, closed: bool = True, topic: str = "a") -> WindowCount:
    numbers = ((0, count - 1),) if closed else None
    return WindowCount(topic, start_ms, count, 0, 0 if closed else 3, closed, numbers)


def held(*numbers: int, start_ms: int = 0, producer: str | None = "p/1", topic: str = "a") -> list[CountRow]:
    """As Spark gives them: each bucket of a batch once."""
    buckets = Counter(number // BITS for number in numbers)
    return [
        CountRow(
            topic,
            producer,
            start_ms,
            bucket,
            sum({1 << number % BITS for number in numbers if number // BITS == bucket}),
            count,
        )
        for bucket, count in buckets.items()
    ]


class Audit:
    """A ledger of two tiers; `rows` are told when all has been read up to a time."""

    def __init__(self) -> None:
        self.ledger = Ledger(MINUTE_MS, ("brokers", "lake"))

    def both(self, rows: list[CountRow]) -> None:
        for tier in self.ledger.tiers:
            self.ledger.add_counts(tier, rows)

    def rows(self, read_until_ms: int = 2 * MINUTE_MS) -> dict[tuple[int, str], WindowVerdict]:
        for stream in (*self.ledger.tiers, EVENTS):
            self.ledger.advance_horizon(stream, read_until_ms)
        self.ledger = Ledger.from_json(self.ledger.to_json())  # nothing may hang on what is not written down
        return {(row.start_ms, row.tier): row for row in evaluate(self.ledger, RULES, read_until_ms)}

    def lake(self, read_until_ms: int = 2 * MINUTE_MS) -> WindowVerdict:
        return self.rows(read_until_ms)[0, "lake"]


@pytest.fixture
def audit() -> Audit:
    return Audit()


def test_a_window_is_complete_when_each_tier_holds_each_record_once(audit: Audit) -> None:
    audit.ledger.add_events([event(0, window(3))])
    audit.both(held(0, 1, 2))
    rows = audit.rows(30_000)
    assert {row.status for row in rows.values()} == {"complete"}
    assert rows[0, "lake"].completed_ms == 30_000
    assert audit.lake(10 * MINUTE_MS).completed_ms == 30_000
    assert verdict(list(rows.values()), []) == "complete"


def test_one_record_in_a_million_is_missed_by_name(audit: Audit) -> None:
    audit.ledger.add_events([event(0, window(1_000_000))])
    for bucket, bits in number_bitmap.masks([(0, 999_999)]):
        for tier in audit.ledger.tiers:
            lost = 1 << 777_777 % BITS if (tier, bucket) == ("lake", 777_777 // BITS) else 0
            kept = bits & ~lost
            audit.ledger.add_counts(tier, [CountRow("a", "p/1", 0, bucket, kept, kept.bit_count())])
    rows = audit.rows()
    assert rows[0, "brokers"].status == "complete"
    lake = rows[0, "lake"]
    assert (lake.status, lake.missing, lake.samples) == ("missing", 1, ("p/1 number 777777",))


def test_a_loss_and_a_copy_that_make_up_for_each_other_are_both_found(audit: Audit) -> None:
    audit.ledger.add_events([event(0, window(3))])
    audit.both(held(0, 1, 1))
    lake = audit.lake()
    assert (lake.acknowledged, lake.counted) == (3, 3)
    assert (lake.status, lake.missing, lake.duplicated) == ("missing, duplicated", 1, 1)


def test_a_copy_is_found_across_batches(audit: Audit) -> None:
    audit.ledger.add_events([event(0, window(2))])
    audit.both(held(0))
    audit.both(held(0, 1))
    assert (audit.lake().status, audit.lake().duplicated) == ("duplicated", 1)


def test_missing_records_are_pending_until_the_tier_was_read_beyond_its_grace(audit: Audit) -> None:
    audit.ledger.add_events([event(0, window(3))])
    audit.both(held(0, 1))
    assert {tier: row.status for (_, tier), row in audit.rows(MINUTE_MS + 1_000).items()} == {
        "brokers": "missing",
        "lake": "pending",
    }
    audit.both(held(2))
    assert audit.lake(MINUTE_MS + 4_999).status == "complete"


def test_a_record_that_comes_after_the_verdict_mends_it(audit: Audit) -> None:
    audit.ledger.add_events([event(0, window(3))])
    audit.both(held(0, 1))
    assert audit.lake().status == "missing"
    audit.both(held(2))
    assert audit.lake().status == "complete"


def test_the_clock_alone_decides_nothing_while_a_tier_has_not_been_read(audit: Audit) -> None:
    audit.ledger.add_events([event(0, window(3))])
    audit.ledger.advance_horizon(EVENTS, 100 * MINUTE_MS)
    audit.ledger.advance_horizon("brokers", 100 * MINUTE_MS)
    found = {row.tier: row.status for row in evaluate(audit.ledger, RULES, 100 * MINUTE_MS)}
    assert found == {"brokers": "missing", "lake": "pending"}


def test_a_killed_producer_leaves_its_open_window_unknown_and_its_closed_ones_certain(audit: Audit) -> None:
    audit.ledger.add_events([event(0, window(2)), event(1, window(1, MINUTE_MS, closed=False))])
    audit.both(held(0, 1))
    audit.both(held(0, 1, 2, start_ms=MINUTE_MS))
    rows = audit.rows(3 * MINUTE_MS)
    assert [rows[0, "lake"].status, rows[MINUTE_MS, "lake"].status] == ["complete", "unknown"]
    assert (rows[MINUTE_MS, "lake"].acknowledged, rows[MINUTE_MS, "lake"].unacknowledged) == (1, 2)
    assert silent_clients(audit.ledger, after_ms=MINUTE_MS) == ["p/1"]
    audit.ledger.add_events([event(2, final=True)])
    assert silent_clients(audit.ledger, after_ms=MINUTE_MS) == []


def test_less_than_was_acknowledged_is_a_loss_though_the_window_stays_open(audit: Audit) -> None:
    audit.ledger.add_events([event(0, window(4, closed=False))])
    audit.both(held(0, 1))
    assert (audit.lake().status, audit.lake().missing) == ("missing", 2)


def test_records_of_which_no_report_has_come_are_unknown(audit: Audit) -> None:
    audit.both(held(0, 1))
    assert (audit.lake().status, audit.lake().unreported) == ("unknown", 2)


def test_numbers_that_failed_are_neither_missed_nor_an_error_when_they_are_there(audit: Audit) -> None:
    told = WindowCount("a", 0, 2, 2, 0, True, ((0, 0), (3, 3)))
    audit.ledger.add_events([event(0, told)])
    audit.both(held(0, 1, 3))
    assert (audit.lake().status, audit.lake().missing, audit.lake().unacknowledged) == ("complete", 0, 1)


def test_a_lost_report_is_told_from_one_that_the_producer_gave_up(audit: Audit) -> None:
    audit.ledger.add_events([event(0), event(3), event(4)])
    assert problems(audit.ledger) == ["2 audit events of p/1 were published but not read"]
    audit.ledger.add_events([replace(event(5), lost_reports=(1, 2))])
    assert problems(audit.ledger) == []


def test_events_read_twice_or_out_of_order_change_nothing(audit: Audit) -> None:
    audit.ledger.add_events([event(1, window(3)), event(0, window(1, closed=False)), event(1, window(3))])
    audit.both(held(0, 1, 2))
    assert audit.lake().status == "complete"
    audit.ledger.add_events([event(1, window(3))])
    assert audit.lake().status == "complete"


def test_records_of_a_complete_window_are_copies_unless_another_producer_wrote_them(audit: Audit) -> None:
    audit.ledger.add_events([event(0, window(2))])
    audit.both(held(0, 1))
    assert audit.lake().status == "complete"
    assert audit.ledger.windows["a", 0].folded is not None
    late = "late/1"
    audit.both(held(0, producer=late))
    audit.ledger.add_events([event(0, window(1), producer=late)])
    assert (audit.lake().status, audit.lake().acknowledged, audit.lake().counted) == ("complete", 3, 3)
    audit.both(held(1))
    assert (audit.lake().status, audit.lake().duplicated, audit.lake().missing) == ("duplicated", 1, 0)


def test_records_without_the_headers_are_counted_apart(audit: Audit) -> None:
    audit.both([CountRow("a", None, 0, 0, 0, 7)])
    assert audit.ledger.unaudited == {"brokers": {"a": 7}, "lake": {"a": 7}}
    assert audit.rows() == {}


def test_a_batch_is_added_once(audit: Audit) -> None:
    assert audit.ledger.is_new("lake", 0)
    ledger = Ledger.from_json(audit.ledger.to_json())
    assert not ledger.is_new("lake", 0)
    assert ledger.is_new("lake", 1)
    assert ledger.is_new("brokers", 0)


def test_old_windows_are_forgotten_and_what_comes_for_them_is_told(audit: Audit) -> None:
    audit.ledger.add_events([event(0, window(1)), event(1, window(1, 5 * MINUTE_MS), final=True)])
    audit.rows(7 * MINUTE_MS)
    audit.ledger.expire(5 * MINUTE_MS)
    assert list(audit.ledger.windows) == [("a", 5 * MINUTE_MS)]
    audit.both(held(0))
    assert problems(audit.ledger) == [
        "1 records in brokers belong to windows that are no longer kept",
        "1 records in lake belong to windows that are no longer kept",
    ]


def test_a_producer_of_other_windows_is_named(audit: Audit) -> None:
    audit.ledger.add_events([replace(event(0), window_ms=1_000)])
    (said,) = problems(audit.ledger)
    assert "windows of 1000 ms, this job in windows of 60000 ms" in said


def test_the_whole_is_as_bad_as_its_worst_part() -> None:
    row = WindowVerdict("a", 0, "lake", "complete", 1, 1)
    assert verdict([row, replace(row, status="pending")], []) == "pending"
    assert verdict([row], ["an audit event got lost"]) == "unknown"
    assert verdict([row, replace(row, status="missing")], ["…"]) == "missing"
    both = [replace(row, status="missing"), replace(row, status="duplicated")]
    assert verdict(both, []) == "missing, duplicated"


def test_a_dead_letter_has_landed_and_may_be_replayed_once(audit: Audit) -> None:
    audit.ledger.add_events([event(0, window(3))])
    audit.ledger.add_counts("brokers", held(0, 1, 2))
    audit.ledger.add_counts("lake", held(0, 1))
    assert audit.lake().missing == 1
    audit.ledger.add_counts("lake", held(2), dead_letters=True)
    assert (audit.lake().status, audit.lake().counted) == ("complete", 3)
    audit.ledger.add_counts("lake", held(2))
    assert (audit.lake().status, audit.lake().counted) == ("complete", 3)
    audit.ledger.add_counts("lake", held(2))
    assert (audit.lake().status, audit.lake().duplicated) == ("duplicated", 1)


# --- applications ---

APPLICATION = validate(
    {
        "name": "test",
        "kafka": {"bootstrap": "localhost:9092"},
        "checkpoint": "/c",
        "topics": {"topicPattern": "a|b"},
        "tiers": [
            {"name": "brokers"},
            {"name": "billing", "application": "billing", "topics": {"topics": ["a"]}, "grace": "1 second"},
            {"name": "once", "application": "billing", "exactlyOnce": True, "grace": "1 second"},
            {"name": "copy", "application": "eu", "topicPrefix": "eu.", "grace": "1 second"},
        ],
    },
    AuditConfig,
    "test",
)


def processed(
    report: int, *receipts: Receipt, application: str = "billing", unaudited: int = 0, final: bool = False
) -> ConsumerEvent:
    told = {"a": unaudited} if unaudited else {}
    return ConsumerEvent("c/1", "c", application, report, 1_000 * report, MINUTE_MS, final, receipts, told)


def receipt(*numbers: int, topic: str = "a", copies: int = 0, rejected: int = 0, first: int = 0) -> Receipt:
    bits = sum(1 << number - first for number in set(numbers))
    return Receipt(topic, "p/1", 0, len(set(numbers)) + copies, rejected, first, bits)


class Applications:
    """A ledger in which the brokers hold ten records of topic `a`."""

    def __init__(self) -> None:
        self.ledger = Ledger(MINUTE_MS, tuple(tier.name for tier in APPLICATION.tiers))
        self.ledger.add_events([event(0, window(10))])
        self.ledger.add_counts("brokers", held(*range(10)))

    def process(self, *events: ConsumerEvent) -> None:
        for each in events:
            auditor.add_consumer_event(self.ledger, APPLICATION, each)

    def row(self, tier: str) -> WindowVerdict:
        for stream in (*self.ledger.tiers, EVENTS):
            self.ledger.advance_horizon(stream, 2 * MINUTE_MS)
        self.ledger = Ledger.from_json(self.ledger.to_json())
        rows = evaluate(self.ledger, APPLICATION.rules(), 2 * MINUTE_MS)
        (found,) = [row for row in rows if (row.topic, row.tier) == ("a", tier)]
        return found


@pytest.fixture
def apps() -> Applications:
    return Applications()


def test_an_application_is_complete_when_its_consumers_together_processed_each_record(
    apps: Applications,
) -> None:
    apps.process(processed(0, receipt(0, 2, 4, 6)), processed(1, receipt(8, 9, first=8), final=True))
    assert (apps.row("billing").status, apps.row("billing").missing) == ("missing", 4)
    assert apps.row("billing").samples == ("p/1 number 1", "p/1 number 3", "p/1 number 5", "p/1 number 7")
    apps.process(replace(processed(0, receipt(1, 3, 5, 7)), consumer="c/2"))
    assert (apps.row("billing").status, apps.row("billing").counted) == ("complete", 10)
    assert apps.row("once").status == "complete"
    assert apps.row("copy").missing == 10, "another application"


def test_a_consumers_event_is_added_once_however_often_it_was_published(apps: Applications) -> None:
    apps.process(*[processed(0, receipt(*range(10)), unaudited=2)] * 3)
    assert (apps.row("once").status, apps.row("once").counted) == ("complete", 10)
    assert apps.ledger.unaudited["billing"] == {"a": 2}
    apps.process(processed(2))
    assert problems(apps.ledger) == ["1 audit events of c/1 were published but not read"]


def test_records_processed_again_are_counted_and_differ_for_exactly_once_only(
    apps: Applications,
) -> None:
    apps.process(processed(0, receipt(*range(10), copies=1)), processed(1, receipt(3, 4)))
    assert (apps.row("billing").status, apps.row("billing").duplicated) == ("complete", 3)
    assert (apps.row("once").status, apps.row("once").duplicated) == ("duplicated", 3)
    apps.process(processed(2, receipt(*range(10))))  # a rewind, of a window that keeps sums only
    assert (apps.row("billing").status, apps.row("billing").duplicated) == ("complete", 13)


def test_an_application_is_held_to_the_topics_that_it_reads_under_the_names_of_their_sources(
    apps: Applications,
) -> None:
    apps.ledger.add_events([event(1, window(2, topic="b"))])
    apps.process(processed(0, receipt(0, 1, topic="b")))
    apps.process(replace(processed(0, receipt(*range(10), topic="eu.a"), application="eu"), consumer="c/3"))
    assert apps.row("copy").status == "complete"
    assert apps.ledger.windows["b", 0].entries["p/1"].tiers.keys() == {"once"}
    rows = evaluate(apps.ledger, APPLICATION.rules(), 2 * MINUTE_MS)
    assert [row.tier for row in rows if row.topic == "b"] == ["brokers", "once", "copy"]


def test_records_that_an_application_rejected_are_processed(apps: Applications) -> None:
    apps.process(processed(0, receipt(*range(10), rejected=3)), processed(1, receipt(9, rejected=1)))
    row = apps.row("billing")
    assert (row.status, row.counted, row.rejected, row.missing) == ("complete", 11, 4, 0)


def test_numbers_beyond_one_bucket_are_counted_where_they_are(apps: Applications) -> None:
    numbers = (BITS - 3, BITS + 4, 3 * BITS)
    apps.process(processed(0, receipt(*numbers, first=BITS - 8, copies=2)))
    entry = apps.ledger.windows["a", 0].entries["p/1"].tiers["billing"]
    assert entry == NumberBitmap(5, 0, {0: 1 << BITS - 3, 1: 1 << 4, 3: 1})


def test_a_rewind_to_windows_that_are_no_longer_kept_is_no_problem(apps: Applications) -> None:
    apps.row("billing")
    apps.ledger.advance_horizon("brokers", 0)
    apps.ledger.expire(0)
    apps.process(processed(0, receipt(1)))
    assert problems(apps.ledger) == []


def test_a_killed_consumer_is_named(apps: Applications) -> None:
    apps.process(processed(0))
    apps.row("billing")
    assert silent_clients(apps.ledger, after_ms=MINUTE_MS) == ["c/1", "p/1"]
    apps.process(processed(1, final=True))
    assert silent_clients(apps.ledger, after_ms=MINUTE_MS) == ["p/1"]

"""What audited producers and consumers count, and what they say of it."""

from __future__ import annotations

import json
from base64 import b64decode
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_pipeline.auditing import consumer_counts
from ottla_pipeline.auditing.consumer_counts import ConsumerCounter
from ottla_pipeline.auditing.events import (
    AuditEvent,
    ConsumerEvent,
    EventError,
    Receipt,
    WindowCount,
    read,
)
from ottla_pipeline.auditing.producer_counts import ProducerCounter

MINUTE_MS = 60_000


def counter() -> ProducerCounter:
    return ProducerCounter("web-17/1", "web-17", MINUTE_MS)


def send(counts: ProducerCounter, topic: str, now_ms: int, fate: str) -> tuple[str, int, int]:
    window = counts.window(topic, now_ms)
    number = window.sent
    window.sent += 1
    if fate == "delivered":
        window.acknowledged += 1
    elif fate == "failed":
        window.fail(number, number)
    return topic, window.start_ms, number


def told(event: AuditEvent) -> dict[tuple[str, int], WindowCount]:
    return {(window.topic, window.start_ms): window for window in event.windows}


def test_records_are_counted_by_topic_and_window_and_numbered_from_0_in_each() -> None:
    counts = counter()
    names = [send(counts, topic, at, "delivered") for topic, at in (("a", 0), ("a", 59_999), ("b", 5))]
    names.append(send(counts, "a", 60_000, "delivered"))
    assert names == [("a", 0, 0), ("a", 0, 1), ("b", 0, 0), ("a", MINUTE_MS, 0)]
    found = told(counts.report(60_001))
    assert {name: window.acknowledged for name, window in found.items()} == {
        ("a", 0): 2,
        ("b", 0): 1,
        ("a", MINUTE_MS): 1,
    }
    assert [found["a", 0].closed, found["a", MINUTE_MS].closed] == [True, False]


def test_a_window_stays_open_while_a_record_of_it_is_on_its_way() -> None:
    counts = counter()
    send(counts, "a", 0, "delivered")
    send(counts, "a", 1, "on its way")
    (window,) = counts.report(MINUTE_MS).windows
    assert (window.acknowledged, window.in_flight, window.closed, window.numbers) == (1, 1, False, None)


def test_records_without_acknowledgement_are_not_counted() -> None:
    counts = counter()
    for fate in ("failed", "delivered", "delivered", "failed", "delivered"):
        send(counts, "a", 0, fate)
    (window,) = counts.report(MINUTE_MS).windows
    assert (window.acknowledged, window.failed, window.numbers) == (3, 2, ((1, 2), (4, 4)))


def test_a_report_tells_what_changed_since_the_last_that_arrived() -> None:
    counts = counter()
    send(counts, "a", 0, "delivered")
    first = counts.report(1)
    second = counts.report(2)
    assert first.windows == second.windows
    counts.lost(first.report)
    counts.arrived(second.report)
    third = counts.report(3)
    assert (third.windows, third.lost_reports) == ((), (0,))
    send(counts, "a", 4, "delivered")
    fourth = counts.report(5)
    assert fourth.windows[0].acknowledged == 2
    send(counts, "a", 6, "delivered")
    counts.arrived(fourth.report)  # of what it told, and that has changed since
    assert counts.report(7).windows[0].acknowledged == 3


def test_a_window_is_forgotten_when_its_last_report_has_arrived_and_not_before() -> None:
    counts = counter()
    send(counts, "a", 0, "delivered")
    closing = counts.report(MINUTE_MS)
    assert closing.windows[0].closed
    assert counts.report(MINUTE_MS + 1).windows == closing.windows
    counts.arrived(closing.report)
    assert counts.report(MINUTE_MS + 2).windows == ()
    assert not counts._windows


def test_the_last_report_closes_every_window_that_nothing_is_on_its_way_of() -> None:
    counts = counter()
    send(counts, "a", 0, "delivered")
    send(counts, "b", 0, "on its way")
    last = counts.report(1, final=True)
    assert last.final
    assert {window.topic: window.closed for window in last.windows} == {"a": True, "b": False}


def test_a_clock_set_back_takes_no_number_of_a_closed_window() -> None:
    counts = counter()
    send(counts, "a", MINUTE_MS - 1, "delivered")
    assert counts.report(MINUTE_MS).windows[0].closed
    assert send(counts, "a", MINUTE_MS - 1, "delivered") == ("a", MINUTE_MS, 0)


def test_a_transaction_counts_when_it_is_committed() -> None:
    counts = counter()
    counts.begin_transaction()
    send(counts, "a", 0, "in a transaction")
    send(counts, "a", 1, "in a transaction")
    assert counts.report(2).windows[0].acknowledged == 0
    counts.end_transaction(committed=True)
    (window,) = counts.report(MINUTE_MS).windows
    assert (window.acknowledged, window.numbers, window.closed) == (2, ((0, 1),), True)


def test_an_aborted_transaction_takes_back_its_own_records_and_no_others() -> None:
    counts = counter()
    for committed in (True, False, True):
        counts.begin_transaction()
        send(counts, "a", 0, "in a transaction")
        send(counts, "b", MINUTE_MS, "in a transaction")
        counts.end_transaction(committed=committed)
    found = told(counts.report(2 * MINUTE_MS))
    assert found["b", MINUTE_MS].numbers == ((0, 0), (2, 2))
    assert found["a", 0].numbers == ((0, 0),)
    assert found["a", MINUTE_MS].numbers == ((1, 1),)  # time had gone on by the second transaction
    assert (found["a", MINUTE_MS].failed, found["b", MINUTE_MS].failed) == (1, 1)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.integers(0, 40_000),
        st.sampled_from(["delivered", "failed", "on its way", "report", "report lost", "late delivery"]),
    ),
    max_size=60,
)


@given(STEPS)
def test_whatever_happens_the_reports_that_arrive_name_just_what_was_acknowledged(
    steps: list[tuple[str, int, str]],
) -> None:
    counts, now_ms = counter(), 0
    acknowledged: set[tuple[str, int, int]] = set()
    flying: list[tuple[str, int, int]] = []
    reader: dict[tuple[str, int], WindowCount] = {}

    def report(arrives: bool, final: bool = False) -> None:
        event = read(counts.report(now_ms, final=final).to_json())
        assert isinstance(event, AuditEvent)
        if arrives:
            assert not any(reader[name].closed for name in told(event) if name in reader)
            reader.update(told(event))
            counts.arrived(event.report)
        else:
            counts.lost(event.report)

    def land(name: tuple[str, int, int]) -> None:
        (window,) = [w for w in counts._windows if (w.topic, w.start_ms) == name[:2]]
        window.acknowledged += 1
        acknowledged.add(name)

    for topic, step_ms, what in steps:
        now_ms += step_ms
        if what.startswith("report"):
            report(what == "report")
        elif what == "late delivery":
            if flying:
                land(flying.pop(0))
        else:
            name = send(counts, topic, now_ms, what)
            if what == "delivered":
                acknowledged.add(name)
            elif what == "on its way":
                flying.append(name)
    while flying:
        land(flying.pop())
    report(arrives=True, final=True)
    assert all(window.closed for window in reader.values())
    listed = {
        (topic, start_ms, number)
        for (topic, start_ms), window in reader.items()
        for first, last in window.numbers or ()
        for number in range(first, last + 1)
    }
    assert listed == acknowledged


EVENT = AuditEvent(
    producer="web-17/1",
    server="web-17",
    report=3,
    published_at_ms=60_007,
    window_ms=MINUTE_MS,
    final=False,
    windows=(WindowCount("a", 0, 4, 1, 0, True, ((0, 1), (3, 4))),),
    lost_reports=(1,),
)


def test_an_audit_event_is_read_as_it_was_written_and_unknown_keys_are_left_out() -> None:
    body = json.loads(EVENT.to_json())
    assert read(EVENT.to_json()) == EVENT
    assert read(json.dumps(body | {"more": 1}).encode()) == EVENT


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"version": 2}, "version is 2; known is 1"),
        ({"producer": ""}, "producer must be a string"),
        ({"report": -1}, "report must be a whole number"),
        ({"report": True}, "report must be a whole number"),
        ({"final": 1}, "final must be true or false"),
        ({"window_ms": 0}, "window_ms must be above 0"),
        ({"windows": "a"}, "windows must be a list"),
        ({"windows": [3]}, "a window must be an object"),
        ({"lost_reports": ["a"]}, "lost_reports must be a list"),
    ],
)
def test_an_event_that_cannot_be_trusted_is_refused_with_the_reason(
    change: dict[str, object], what: str
) -> None:
    body = json.loads(EVENT.to_json()) | change
    with pytest.raises(EventError, match=what):
        read(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"start_ms": 7}, "start 7 is no start of a window of 60000 ms"),
        ({"numbers": ((0, 2),)}, "numbers are 3, acknowledged 4"),
        ({"numbers": ((3, 4), (0, 1))}, "must be ranges that ascend"),
        ({"numbers": ((0, 1), (2, 3))}, "must be ranges that ascend"),
    ],
)
def test_a_window_that_contradicts_itself_is_refused(change: dict[str, object], what: str) -> None:
    window = replace(EVENT.windows[0], **change)  # type: ignore[arg-type]
    with pytest.raises(EventError, match=what):
        read(replace(EVENT, windows=(window,)).to_json())


@pytest.mark.parametrize("value", [None, b"", b"{", b"[]", b"3", b"\xff"])
def test_a_value_that_is_no_object_is_refused(value: bytes | None) -> None:
    with pytest.raises(EventError):
        read(value)


# --- consumers ---


def receipts() -> ConsumerCounter:
    return ConsumerCounter("app-3/1", "app-3", "billing", MINUTE_MS)


def headers(number: int, at_ms: int = 0, producer: str = "web-17/1") -> list[tuple[str, bytes | None]]:
    return [
        ("own", None),
        ("ottla-producer", producer.encode()),
        ("ottla-produced", b"%d/%d" % (at_ms, number)),
    ]


def counts_of(events: list[ConsumerEvent]) -> tuple[dict[tuple[str, str, int, int], int], int]:
    """How often each name was told, going by the documented format alone; and how many records in all."""
    names: Counter[tuple[str, str, int, int]] = Counter()
    records = 0
    for event in events:
        for window in json.loads(event.to_json())["windows"]:
            bitmap = b64decode(window["numbers"])
            records += window["received"]
            names.update(
                (window["topic"], window["producer"], window["start"], window["first"] + 8 * j + i)
                for j, byte in enumerate(bitmap)
                for i in range(8)
                if byte >> i & 1
            )
    return dict(names), records


def test_a_record_counts_when_the_application_is_done_with_it() -> None:
    counts = receipts()
    for offset in range(5):
        counts.delivered("a", 0, offset, headers(10 + offset, 61_000))
    assert not counts.waiting
    counts.processed({("a", 0): 3, ("a", 1): 7})
    assert counts.waiting
    event = counts.report(99)
    assert counts_of([event]) == ({("a", "web-17/1", MINUTE_MS, number): 1 for number in (10, 11, 12)}, 3)
    counts.arrived()
    assert not counts.waiting
    counts.processed({("a", 0): 3})
    assert counts.report(100).receipts == ()


def test_a_report_that_did_not_arrive_is_made_again_as_it_was() -> None:
    counts = receipts()
    counts.delivered("a", 0, 0, headers(0))
    counts.processed({("a", 0): 1})
    first = counts.report(5)
    counts.delivered("a", 0, 1, headers(1))
    counts.processed({("a", 0): 2})
    assert counts.report(6, final=True) is first
    counts.arrived()
    last = counts.report(7, final=True)
    assert (last.report, last.final, last.receipts[0].first, last.receipts[0].bits) == (1, True, 0, 2)


def test_records_of_lost_partitions_count_as_often_as_they_were_processed() -> None:
    counts = receipts()
    counts.delivered("a", 0, 0, headers(0))
    counts.delivered("a", 1, 0, headers(1))
    counts.retain({("a", 1)})
    counts.processed({("a", 0): 1, ("a", 1): 1})
    counts.delivered("a", 1, 0, headers(1))
    counts.processed({("a", 1): 1})
    assert counts_of([counts.report(0)]) == ({("a", "web-17/1", 0, 1): 1}, 2)


def test_records_that_an_application_rejects_are_told_and_must_be_pending() -> None:
    counts = receipts()
    for offset in range(3):
        counts.delivered("a", 0, offset, headers(offset))
    counts.reject("a", 0, 1)
    counts.processed({("a", 0): 2})
    with pytest.raises(ValueError, match="a-0: the record at offset 1 is not pending"):
        counts.reject("a", 0, 1)
    (receipt,) = counts.report(0).receipts
    assert (receipt.received, receipt.rejected) == (2, 1)


@pytest.mark.parametrize(
    "given",
    [
        [],
        [("ottla-producer", b"p")],
        [("ottla-producer", b""), ("ottla-produced", b"0/1")],
        [("ottla-producer", None), ("ottla-produced", b"0/1")],
        [("ottla-producer", b"p"), ("ottla-produced", b"0")],
        [("ottla-producer", b"p"), ("ottla-produced", b"-1/1")],
        [("ottla-producer", b"p"), ("ottla-produced", b"253402300800000/1")],
    ],
)
def test_records_without_a_name_are_counted_apart(given: list[tuple[str, bytes | None]]) -> None:
    counts = receipts()
    counts.delivered("a", 0, 0, given)
    counts.processed({("a", 0): 1})
    event = counts.report(0)
    assert (event.receipts, event.unaudited) == ((), {"a": 1})


def test_an_application_that_never_commits_is_warned_and_takes_bounded_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(consumer_counts, "PENDING_MAX", 10)
    counts = receipts()
    for offset in range(15):
        counts.delivered("a", 0, offset, headers(offset))
    assert caplog.text.count("were read and not committed") == 1
    counts.processed({("a", 0): 15})
    assert counts_of([counts.report(0)])[1] == 10


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b"]),
            st.integers(0, 1),
            st.integers(0, 80_000),
            st.sampled_from([0, 70_000]),
        )
    ),
    st.integers(1, 50),
    st.data(),
)
def test_reports_of_any_size_tell_each_processed_record_once(
    given: list[tuple[str, int, int, int]], room: int, data: st.DataObject
) -> None:
    expected: Counter[tuple[str, str, int, int]] = Counter()
    counts, events = receipts(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumer_counts, "BITMAPS_BYTES_MAX", room)
        for offset, (topic, producer, number, at_ms) in enumerate(given):
            counts.delivered(topic, 0, offset, headers(number, at_ms, f"p/{producer}"))
            expected[topic, f"p/{producer}", at_ms - at_ms % MINUTE_MS, number] += 1
            if data.draw(st.booleans()):
                counts.processed({(topic, 0): offset + 1})
            if data.draw(st.booleans()):
                events.append(counts.report(offset))
                counts.arrived()
        counts.processed({("a", 0): len(given), ("b", 0): len(given)})
        while not (events and events[-1].final):
            events.append(counts.report(0, final=True))
            counts.arrived()
    names, records = counts_of(events)
    assert (names.keys(), records) == (expected.keys(), len(given))
    assert [event.report for event in events] == list(range(len(events)))
    assert [read(event.to_json()) for event in events] == events


RECEIPT = Receipt("a", "web-17/1", MINUTE_MS, 4, 1, 40, 0b1011)
PROCESSED = ConsumerEvent("app-3/1", "app-3", "billing", 7, 60_007, MINUTE_MS, False, (RECEIPT,), {"a": 2})


def test_the_documented_consumer_event_is_the_one_that_is_written() -> None:
    documented = (
        b'{"version":1,"consumer":"app-3/1","server":"app-3","application":"billing","report":7,'
        b'"published_at":60007,"window_ms":60000,"final":false,"unaudited":{"a":2},"windows":[{"topic":"a",'
        b'"producer":"web-17/1","start":60000,"received":4,"rejected":1,"first":40,"numbers":"Cw=="}]}'
    )
    assert PROCESSED.to_json() == documented
    assert read(documented) == PROCESSED


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"application": ""}, "application must be a string"),
        ({"consumer": 3}, "consumer must be a string"),
        ({"unaudited": [1]}, "unaudited must be an object"),
        ({"unaudited": {"a": -1}}, "a must be a whole number"),
        ({"windows": [3]}, "a window must be an object"),
        ({"window": {"start": 7}}, "start 7 is no start of a window of 60000 ms"),
        ({"window": {"numbers": "???"}}, "numbers must be a bitmap in base64"),
        ({"window": {"numbers": ""}}, "numbers are 0, received 4"),
        ({"window": {"received": 2}}, "numbers are 3, received 2"),
        ({"window": {"rejected": 5}}, "rejected are 5, received 4"),
        ({"window": {"first": -1}}, "first must be a whole number"),
    ],
)
def test_a_consumer_event_that_cannot_be_trusted_is_refused_with_the_reason(
    change: dict[str, Any], what: str
) -> None:
    body = json.loads(PROCESSED.to_json())
    body["windows"][0] |= change.pop("window", {})
    with pytest.raises(EventError, match=what):
        read(json.dumps(body | change).encode())

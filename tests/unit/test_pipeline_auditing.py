"""What audited producers count, and what they say of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_pipeline.auditing.counting import Counter
from ottla_pipeline.auditing.events import AuditEvent, EventError, WindowCount

MINUTE_MS = 60_000


def counter() -> Counter:
    return Counter("web-17/1", "web-17", MINUTE_MS)


def send(counts: Counter, topic: str, now_ms: int, fate: str) -> tuple[str, int, int]:
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


def test_what_was_not_acknowledged_is_not_among_the_numbers() -> None:
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
        event = AuditEvent.from_json(counts.report(now_ms, final=final).to_json())
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
    assert AuditEvent.from_json(EVENT.to_json()) == EVENT
    assert AuditEvent.from_json(json.dumps(body | {"more": 1}).encode()) == EVENT


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
        AuditEvent.from_json(json.dumps(body).encode())


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
        AuditEvent.from_json(replace(EVENT, windows=(window,)).to_json())


@pytest.mark.parametrize("value", [None, b"", b"{", b"[]", b"3", b"\xff"])
def test_what_is_no_object_is_refused(value: bytes | None) -> None:
    with pytest.raises(EventError):
        AuditEvent.from_json(value)

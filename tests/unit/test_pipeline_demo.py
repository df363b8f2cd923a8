"""The parts of the demo that decide something: its events, its victim, its clock and its verdict."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from demo import events, run, summary
from demo.failover import ClusterView, Failover, NoTarget, target
from demo.produce import AckClock
from demo.summary import Outcome
from demo.up import READY, choose_port


@pytest.fixture(scope="module")
def flights() -> list[events.Event]:
    return events.load()


def test_a_year_of_departures_has_unique_ids_in_the_order_of_time(flights: list[events.Event]) -> None:
    assert len(flights) == 336_776
    assert len({flight.id for flight in flights}) == len(flights)
    times = [flight.time for flight in flights]
    assert times == sorted(times)
    assert Counter(flight.topic for flight in flights) == {
        "flights.ewr": 120_835,
        "flights.jfk": 111_279,
        "flights.lga": 104_662,
    }


def test_an_event_is_the_flight_as_json(flights: list[events.Event]) -> None:
    first = json.loads(flights[0].value)
    assert first["id"] == flights[0].id == "2013-01-01T0515-UA1545-EWR"
    # Scheduled 5:15 in New York, which is 10:15 in UTC, and two minutes late.
    assert first["event_time"] == flights[0].time == "2013-01-01T10:17:00Z"
    assert (first["dep_delay"], first["dest"], first["cancelled"]) == (2, "IAH", False)


def test_a_cancelled_flight_counts_at_its_scheduled_time() -> None:
    row = {"time_hour": "2013-01-01T21:00:00Z", "minute": "30", "dep_delay": "NA"}
    when, departed = events.departure(row)
    assert (when.isoformat(), departed) == ("2013-01-01T21:30:00+00:00", False)


def view(controller: int, leaders: list[int], in_sync: tuple[int, ...] = (0, 1, 2)) -> ClusterView:
    partitions = [("t", number) for number in range(len(leaders))]
    return ClusterView(
        controller,
        dict(zip(partitions, leaders, strict=True)),
        dict.fromkeys(partitions, frozenset(in_sync)),
    )


def test_the_victim_is_the_controller_if_it_leads_a_partition() -> None:
    assert target(view(2, [0, 1, 2])) == 2
    with pytest.raises(NoTarget, match="leads no partition"):
        target(view(2, [0, 1, 1]))
    with pytest.raises(NoTarget, match="no controller"):
        target(view(-1, [0, 1, 2]))


def test_fail_over_is_over_when_others_lead_everything() -> None:
    assert not view(1, [0, 1, 2]).led_without(2)
    assert not view(1, [0, -1, 1]).led_without(2)
    assert view(1, [0, 1, 1]).led_without(2)
    assert not view(1, [0, 1, 1], in_sync=(0, 1)).in_every_isr(2)


def test_the_longest_wait_is_that_of_the_watched_partitions_after_the_kill() -> None:
    clock = AckClock()
    clock.acknowledged(("t", 0), 1.0)
    clock.acknowledged(("t", 1), 1.0)
    clock.acknowledged(("t", 0), 9.0)  # a pause before the kill is none of its business
    clock.watch([("t", 0)], 10.0)
    clock.acknowledged(("t", 1), 60.0)
    clock.acknowledged(("t", 0), 15.5)
    clock.acknowledged(("t", 0), 16.0)
    assert clock.longest_gap_s() == 6.5


def test_ports_are_the_first_that_are_free_together() -> None:
    taken = {9093, 9096}
    assert choose_port(None, in_use=lambda port: port in taken) == 9098
    assert choose_port(None, in_use=lambda port: False) == 9092
    assert choose_port(7000, in_use=lambda port: True) == 7000
    assert choose_port(None, 8080, lambda port: port == 8080, count=1) == 8081


def test_the_ready_line_is_found_among_others() -> None:
    text = "broker 0 Running\nready bootstrap=127.0.0.1:9092,127.0.0.1:9093 zookeeper=127.0.0.1:2181\nmore\n"
    found = READY.search(text)
    assert found is not None
    assert found[1] == "127.0.0.1:9092,127.0.0.1:9093"


def test_only_a_former_run_is_emptied(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("years of work")
    with pytest.raises(run.DemoFailed, match="not a former run"):
        run.fresh_folder(theirs)
    assert (theirs / "thesis.txt").exists()
    ours = tmp_path / "ours"
    run.fresh_folder(ours)
    (ours / "lake").mkdir()
    run.fresh_folder(ours)
    assert not (ours / "lake").exists()


def audit_of(count: int, **lake: int) -> dict[str, Any]:
    whole = {"held": count, "missing": 0, "duplicated": 0, "unexpected": 0}
    return {"passed": not lake, "total": {"produced": count, "brokers": whole, "lake": whole | lake}}


GOOD = Outcome(
    produced=10,
    produce_s=2.0,
    consumed=10,
    consumed_again=3,
    consume_s=2.5,
    audit=audit_of(10),
    dead_letters=0,
    failover=Failover(1, 4, 2, leaders_back_s=6.2, in_sync_s=9.0),
    ack_gap_s=6.5,
    data=Path("ottla-run"),
    elapsed_s=80.0,
)


def test_all_is_well_though_the_group_read_some_again() -> None:
    assert GOOD.problems() == []


@pytest.mark.parametrize(
    ("outcome", "problem"),
    [
        (replace(GOOD, consumed=9), "the group read 9 of 10"),
        (replace(GOOD, audit=audit_of(10, missing=1)), "differences"),
        (replace(GOOD, audit=audit_of(9)), "has 9 of 10 produced events"),
        (replace(GOOD, failover=Failover(1, 4, 2, 6.2, None)), "broker 1 is not back in every ISR"),
        (replace(GOOD, failover=Failover(problem="NoTarget: x")), "NoTarget"),
    ],
)
def test_a_failed_step_is_reported(outcome: Outcome, problem: str) -> None:
    assert len(outcome.problems()) == 1
    assert problem in outcome.problems()[0]


def test_the_summary_tells_the_numbers() -> None:
    console = Console(width=140, file=io.StringIO(), record=True)
    console.print(summary.table(GOOD))
    text = console.export_text()
    for told in (
        "10 events",
        "5 records/s",
        "3 read again",
        "6.2 s until all partitions",
        "acknowledgement 6.5 s",
    ):
        assert told in text

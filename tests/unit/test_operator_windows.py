"""Maintenance windows: when they are open, over clock changes and midnight; restarts wait for them."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_operator.conditions import iso_time, parse_iso_time
from ottla_operator.planning.windows import next_start_ms
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.loading import parse_resource
from ottla_operator.resources.windows import WEEKDAYS, MaintenanceWindow
from tests.worlds.operator_simulation import OperatorSimulation

OPEN = "open"
NIGHT = {"start": "22:00", "duration": "4h"}
BERLIN_NIGHT = {"start": "02:30", "duration": "1h", "timeZone": "Europe/Berlin"}


def opening(now: str, *windows: dict[str, object]) -> str:
    """When the next window begins."""
    start_ms = next_start_ms(
        [MaintenanceWindow.model_validate(each) for each in windows], parse_iso_time(now)
    )
    return OPEN if start_ms is None else iso_time(start_ms)


# 27 November 2026 is a Friday.
@pytest.mark.parametrize(
    ("now", "windows", "expected"),
    [
        pytest.param("2026-11-27T12:00:00Z", [], OPEN, id="without windows, at any time"),
        pytest.param("2026-11-27T21:59:59Z", [NIGHT], "2026-11-27T22:00:00Z", id="before it begins"),
        pytest.param("2026-11-27T22:00:00Z", [NIGHT], OPEN, id="when it begins"),
        pytest.param("2026-11-28T01:59:59Z", [NIGHT], OPEN, id="after midnight"),
        pytest.param("2026-11-28T02:00:00Z", [NIGHT], "2026-11-28T22:00:00Z", id="when it has ended"),
        pytest.param(
            "2026-11-27T12:00:00Z",
            [{**NIGHT, "days": ["Sunday"]}],
            "2026-11-29T22:00:00Z",
            id="on one day of the week",
        ),
        pytest.param(
            "2026-11-30T01:00:00Z",
            [{**NIGHT, "days": ["Sunday"]}],
            OPEN,
            id="a window that began on the day before",
        ),
        pytest.param(
            "2026-11-28T01:00:00Z",
            [{**NIGHT, "days": ["Saturday"]}],
            "2026-11-28T22:00:00Z",
            id="the days are those on which it begins",
        ),
        pytest.param(
            "2026-11-27T12:00:00Z",
            [{**NIGHT, "days": ["Thursday"]}],
            "2026-12-03T22:00:00Z",
            id="in six days",
        ),
        pytest.param(
            "2026-11-27T23:00:00Z",
            [{"start": "00:00", "duration": "168h", "days": ["Saturday"]}],
            OPEN,
            id="a window of a week is always open",
        ),
        pytest.param(
            "2026-11-27T12:00:00Z",
            [{**NIGHT, "days": ["Sunday"]}, {"start": "13:00", "duration": "1h"}],
            "2026-11-27T13:00:00Z",
            id="the first of several",
        ),
        pytest.param(
            "2026-11-27T13:30:00Z",
            [{**NIGHT, "days": ["Sunday"]}, {"start": "13:00", "duration": "1h"}],
            OPEN,
            id="one of several is enough",
        ),
        pytest.param("2026-07-01T12:00:00Z", [BERLIN_NIGHT], "2026-07-02T00:30:00Z", id="in summer time"),
        pytest.param("2026-11-27T12:00:00Z", [BERLIN_NIGHT], "2026-11-28T01:30:00Z", id="in standard time"),
        # At 2:00 on 29 March clocks go to 3:00: 2:30 does not exist.
        pytest.param(
            "2026-03-28T12:00:00Z", [BERLIN_NIGHT], "2026-03-29T01:30:00Z", id="a start that is skipped"
        ),
        # At 3:00 on 25 October clocks go back to 2:00: 2:30 comes twice.
        pytest.param(
            "2026-10-24T12:00:00Z", [BERLIN_NIGHT], "2026-10-25T00:30:00Z", id="a start that comes twice"
        ),
        pytest.param("2026-10-25T01:29:59Z", [BERLIN_NIGHT], OPEN, id="the duration is elapsed time"),
        pytest.param(
            "2026-10-25T01:30:00Z", [BERLIN_NIGHT], "2026-10-26T01:30:00Z", id="the second 2:30 begins none"
        ),
        pytest.param(
            "2026-11-27T10:00:00Z",
            [{"start": "00:30", "duration": "1h", "timeZone": "Pacific/Kiritimati", "days": ["Saturday"]}],
            "2026-11-27T10:30:00Z",
            id="the day is that of the time zone",
        ),
    ],
)
def test_a_window_is_open_from_its_local_start_for_its_duration(
    now: str, windows: list[dict[str, object]], expected: str
) -> None:
    assert opening(now, *windows) == expected


ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu")


@given(
    st.integers(1_700_000_000, 1_900_000_000),
    st.sampled_from(ZONES),
    st.integers(0, 23),
    st.integers(1, 168 * 60),
    st.sets(st.sampled_from(WEEKDAYS)),
)
def test_the_next_start_is_at_the_local_time_on_one_of_the_days(
    now_s: int, zone: str, hour: int, minutes: int, days: set[str]
) -> None:
    window = MaintenanceWindow.model_validate(
        {
            "start": f"{hour:02}:00",
            "duration": f"{minutes}m",
            "timeZone": zone,
            "days": [day for day in WEEKDAYS if day in days],
        }
    )
    start_ms = next_start_ms([window], now_s * 1000)
    if start_ms is None:
        return
    assert 0 < start_ms - now_s * 1000 <= 8 * 86_400_000
    assert next_start_ms([window], start_ms) is None, "it is open when it begins"
    local = datetime.fromtimestamp(start_ms / 1000, ZoneInfo(zone))
    assert not days or WEEKDAYS[local.weekday()] in days
    # Of these zones, clocks skip an hour at most.
    assert (local.hour, local.minute) in ((hour, 0), (hour, 30), ((hour + 1) % 24, 0))


@pytest.mark.parametrize(
    ("window", "problem"),
    [
        ({"timeZone": "Europe/Berlim"}, "timeZone: 'Europe/Berlim' is not a time zone"),
        ({"timeZone": "../zoneinfo"}, "timeZone: '../zoneinfo' is not a time zone"),
        ({"timeZone": "Europe"}, "timeZone: 'Europe' is not a time zone"),
        ({"duration": "30s"}, "duration: 30s is not allowed: must be between 1m and 168h"),
        ({"duration": "169h"}, "duration: 169h is not allowed"),
        ({"start": "24:00"}, "start"),
        ({"days": ["Sun"]}, "days"),
    ],
)
def test_a_window_that_cannot_be_is_refused(window: dict[str, object], problem: str) -> None:
    spec = {"replicas": 3, "rollingUpdate": {"windows": [{**NIGHT, **window}]}}
    cluster, problems = parse_resource("BrokerCluster", {"name": "demo"}, spec)
    assert cluster is None
    assert problem in str(problems[0])


# ---- the operator

HOUR_MS = 3_600_000
CONFIG = {"queued.max.requests": "77"}


def at_noon() -> OperatorSimulation:
    """A cluster that is Ready, at noon in UTC, with a window in the night."""
    sim = OperatorSimulation()
    sim.cluster.now_ms = parse_iso_time("2026-11-27T11:58:00Z")
    sim.apply_cluster(rollingUpdate={"windows": [NIGHT], "minReadySeconds": 0})
    sim.apply_topic("orders", config={"min.insync.replicas": 2})
    sim.reconcile_until_ready()
    return sim


def change(sim: OperatorSimulation, replicas: int = 3) -> None:
    sim.apply_cluster(replicas, config=CONFIG, rollingUpdate={"windows": [NIGHT], "minReadySeconds": 0})


def stops(sim: OperatorSimulation) -> list[str]:
    return [line for line in sim.cluster.log if line.startswith("stop")]


def test_a_roll_waits_for_the_window_and_the_cluster_stays_ready() -> None:
    sim = at_noon()
    change(sim)
    for _ in range(50):
        sim.reconcile()
    assert stops(sim) == []
    opens = "the maintenance window that begins at 2026-11-27T22:00:00Z"
    message = f"0 of 3 brokers are updated; broker 0 waits for {opens}"
    assert sim.condition("BrokerCluster/demo", "Rolling") == ("False", "WaitingForWindow", message)
    assert sim.condition("BrokerCluster/demo")[0] == "True"
    applied = sim.condition("BrokerCluster/demo", "ConfigApplied")
    assert applied[:2] == ("False", "Outdated")
    assert opens in applied[2]
    sim.cluster.now_ms = parse_iso_time("2026-11-27T22:00:00Z")
    sim.reconcile_until_ready()
    sim.reconcile_until(lambda: sim.condition("BrokerCluster/demo", "ConfigApplied")[0] == "True")
    assert sorted(stops(sim)) == ["stop 0", "stop 1", "stop 2"]
    assert sim.cluster.violations == []


def test_a_restart_that_has_begun_is_completed_after_the_window() -> None:
    sim = at_noon()
    change(sim)
    sim.reconcile()
    sim.cluster.now_ms = parse_iso_time("2026-11-28T01:59:59Z")
    sim.reconcile(1)
    assert len(stops(sim)) == 1
    sim.cluster.now_ms = parse_iso_time("2026-11-28T02:00:00Z")
    for _ in range(50):
        sim.reconcile()
    assert len(stops(sim)) == 1
    assert all(broker.state == "Running" for broker in sim.cluster.brokers.values())
    assert sim.condition("BrokerCluster/demo", "Rolling")[:2] == ("False", "WaitingForWindow")
    assert "1 of 3 brokers are updated" in sim.condition("BrokerCluster/demo", "Rolling")[2]


def test_a_requested_restart_waits_for_no_window() -> None:
    sim = at_noon()
    annotations = {"restart_requested_at": "now"}
    spec = {"replicas": 3, "rollingUpdate": {"windows": [NIGHT], "minReadySeconds": 0}}
    sim.apply("BrokerCluster", "demo", spec, **annotations)
    sim.reconcile_until(lambda: sim.condition("BrokerCluster/demo", "Rolling")[0] == "True")
    sim.reconcile_until_ready()
    assert sorted(stops(sim)) == ["stop 0", "stop 1", "stop 2"]


def test_a_broker_that_cannot_come_up_waits_for_no_window() -> None:
    sim = at_noon()
    sim.cluster.crash(1)
    sim.cluster.brokers[1].crashes = 2
    change(sim)
    for _ in range(50):
        sim.reconcile()
    hashes = {broker.id: broker.launch.config_hash for broker in sim.cluster.brokers.values()}
    assert hashes[1] != hashes[0] == hashes[2]
    assert stops(sim) == []


def test_scaling_does_not_wait_for_the_roll_that_waits_for_the_window() -> None:
    sim = at_noon()
    change(sim, 4)
    sim.reconcile_until(lambda: any(line.startswith("reassign") for line in sim.cluster.log))
    sim.reconcile_until(lambda: sim.condition("BrokerCluster/demo")[0] == "True")
    change(sim, 3)
    sim.reconcile_until(lambda: "remove 3" in sim.cluster.log)
    assert [line for line in stops(sim) if line != "stop 3"] == []
    assert sim.cluster.violations == []


def test_a_requested_reassignment_does_not_wait_for_the_roll_that_waits() -> None:
    sim = at_noon()
    spec = {"replicas": 3, "config": CONFIG, "rollingUpdate": {"windows": [NIGHT]}}
    sim.apply("BrokerCluster", "demo", spec, reassign='{"id": "one"}')
    sim.reconcile()
    cluster = sim.store.stored["BrokerCluster/demo"]
    assert isinstance(cluster, BrokerCluster)
    assert cluster.status.reassign_request is not None
    assert cluster.status.reassign_request.phase == "Completed"


def test_an_approved_roll_waits_for_the_window() -> None:
    sim = at_noon()
    spec = {
        "replicas": 3,
        "config": CONFIG,
        "rollingUpdate": {"strategy": "OnApproval", "windows": [NIGHT], "minReadySeconds": 0},
    }
    sim.apply("BrokerCluster", "demo", spec)
    sim.reconcile()
    sim.reconcile()
    stored = sim.store.stored["BrokerCluster/demo"]
    assert isinstance(stored, BrokerCluster)
    assert stored.status.rollout is not None
    assert "approval" in stored.status.brokers[0].waiting_for
    sim.apply("BrokerCluster", "demo", spec, approve_rollout=stored.status.rollout.target_hash)
    sim.reconcile()
    sim.reconcile()
    assert sim.condition("BrokerCluster/demo", "Rolling")[:2] == ("False", "WaitingForWindow")
    sim.cluster.now_ms = parse_iso_time("2026-11-27T22:00:00Z")
    sim.reconcile_until(lambda: len(stops(sim)) == 3)

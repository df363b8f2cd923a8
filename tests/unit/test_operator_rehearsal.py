"""A plan names the steps that the operator then takes, in their order, and what they mean for clients."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ottla_operator.planning.observed import Observed
from ottla_operator.rehearsal.effects import Effect
from ottla_operator.rehearsal.model import SimulatedKafka, Timing
from ottla_operator.rehearsal.rehearse import Rehearsal, Situation, rehearse, rehearse_loss
from ottla_operator.rehearsal.report import Change, Clients, Group, Planned, json_of, text_of
from ottla_operator.resources.common import FENCE_ANNOTATION, HIBERNATE_ANNOTATION
from ottla_operator.resources.loading import parse_resource
from tests.worlds.operator_simulation import OperatorSimulation, SimulatedCluster

pytestmark = pytest.mark.budget(8)  # whole reconciliations over a model of the cluster

MIN_ISR = "min.insync.replicas"
GB = 10**9


def a_cluster(replicas: int = 3, **spec: object) -> OperatorSimulation:
    """A cluster of these brokers with two topics, which is Ready."""
    sim = OperatorSimulation(SimulatedCluster(racks={n: f"rack-{n % 3}" for n in range(6)}))
    apply_cluster(sim, replicas, **spec)
    sim.apply_topic("orders", partitions=4, config={MIN_ISR: 2})
    sim.apply_topic("clicks", partitions=2, replicas=2)
    sim.reconcile_until_ready()
    return sim


def apply_cluster(sim: OperatorSimulation, replicas: int = 3, **spec: object) -> None:
    annotations = spec.pop("annotations", {})
    assert isinstance(annotations, dict)
    names = {name.removeprefix("ottla.dev/").replace("-", "_"): value for name, value in annotations.items()}
    content = {"replicas": replicas, "rollingUpdate": {"minReadySeconds": 0}, **spec}
    sim.apply("BrokerCluster", "demo", content, **names)


def situation_of(sim: OperatorSimulation, **more: Any) -> Situation:
    """What is observed of the simulated cluster now, with the resources as they are now."""
    cluster = sim.store.stored["BrokerCluster/demo"]
    zookeeper, brokers = asyncio.run(sim.cluster.observe(cluster))  # type: ignore[arg-type]
    kafka = asyncio.run(SimulatedKafka(sim.cluster).observe([], {}))
    observed = Observed(zookeeper, brokers, kafka, sim.cluster.now_ms)
    return Situation(observed, list(sim.store.stored.values()), restarts=False, **more)


def steps_of(rehearsal: Rehearsal) -> list[str]:
    return [step.text for step in rehearsal.steps]


def taken(sim: OperatorSimulation) -> list[str]:
    """The steps that the operator takes to the end, without those that it repeats."""
    found: list[str] = []
    quiet = 0
    for _ in range(2000):
        steps = sim.reconcile(250)
        quiet = 0 if steps else quiet + 1
        found += [step for step in steps if not found or step != found[-1]]
        if quiet > 40:
            return found
    raise AssertionError("the operator does not come to an end")


CHANGES: Mapping[str, dict[str, Any]] = {
    "scale up": {"replicas": 5},
    "scale down": {"replicas": 3},
    "a setting that needs a restart": {"config": {"queued.max.requests": 77}},
    "a live setting": {"config": {"message.max.bytes": 77_777}},
    "both kinds of settings and a scale up": {
        "replicas": 5,
        "config": {"queued.max.requests": 77, "message.max.bytes": 77_777},
    },
    "a roll over racks": {
        "config": {"queued.max.requests": 77},
        "rollingUpdate": {"maxUnavailablePerRack": 2, "minReadySeconds": 0},
    },
    "throttled": {"replicas": 5, "rebalance": {"replicationThrottle": "1M"}},
    "two volumes": {"storage": {"volumes": [{"id": 0}, {"id": 1}]}},
    "hibernation": {"annotations": {HIBERNATE_ANNOTATION: "true"}},
    "a fence": {"annotations": {FENCE_ANNOTATION: "1"}},
    "nothing": {},
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_plan_has_the_steps_that_the_operator_takes_in_their_order(change: str) -> None:
    sim = a_cluster(5 if change == "scale down" else 4 if change == "nothing" else 3)
    spec = {"replicas": 4 if change == "nothing" else 3, **CHANGES[change]}
    apply_cluster(sim, **spec)
    planned = rehearse(situation_of(sim, timing=Timing()))
    assert bool(planned.waiting) == (change in ("hibernation", "a fence"))
    assert steps_of(planned) == taken(sim)
    assert bool(planned.steps) == (change != "nothing")


@pytest.mark.parametrize(
    ("replicas", "partitions", "config"),
    [(3, 4, {}), (2, 4, {}), (3, 9, {}), (3, 4, {"retention.ms": 5})],
)
def test_the_plan_has_the_steps_of_a_changed_topic(
    replicas: int, partitions: int, config: dict[str, object]
) -> None:
    sim = a_cluster(4)
    sim.apply_topic("orders", partitions=partitions, replicas=replicas, config={MIN_ISR: 1, **config})
    planned = rehearse(situation_of(sim))
    assert steps_of(planned) == taken(sim)
    assert planned.converged


def test_the_steps_of_a_rehearsal_leave_the_cluster_as_it_is() -> None:
    sim = a_cluster()
    apply_cluster(sim, 5)
    before = situation_of(sim)
    rehearse(before)
    assert situation_of(sim) == before


def test_bytes_and_time_are_those_of_the_replicas_that_move() -> None:
    sim = a_cluster()
    apply_cluster(sim, 5)
    sizes = {(topic, n): GB for topic in ("orders", "clicks") for n in range(4)}
    slow = rehearse(situation_of(sim, sizes=sizes, timing=Timing(bytes_per_s=10e6)))
    fast = rehearse(situation_of(sim, sizes=sizes, timing=Timing(bytes_per_s=100e6)))
    assert slow.moved_bytes == fast.moved_bytes > 0
    assert slow.moved_bytes % GB == 0
    at_least_s = slow.moved_bytes / 10e6 / 2, fast.moved_bytes / 100e6 / 2
    assert slow.duration_ms / 1000 > at_least_s[0] > fast.duration_ms / 1000 > at_least_s[1]


def test_a_volume_is_emptied_before_the_restarts_in_the_plan_too() -> None:
    volumes = [{"id": 0}, {"id": 1}]
    sim = a_cluster(storage={"volumes": volumes})
    apply_cluster(sim, storage={"volumes": volumes[1:]})
    situation = situation_of(
        sim, sizes={("orders", n): GB for n in range(4)}, timing=Timing(bytes_per_s=10e6)
    )
    described = asyncio.run(SimulatedKafka(sim.cluster).observe([], {}, log_dirs=True))
    planned = rehearse(replace(situation, observed=replace(situation.observed, kafka=described)))
    assert planned.converged
    assert planned.moved_bytes == 6 * GB
    assert [text.partition(" replicas")[2] for text in steps_of(planned)[:3]] == [
        f" of broker {n} off volume 0" for n in range(3)
    ]
    first = next(step for step in planned.steps if step.kind == "StopBroker")
    assert 2 * GB / 10e6 < first.at_ms / 1000 < 3 * GB / 10e6
    sim.cluster.timing = Timing()
    assert steps_of(rehearse(replace(situation, timing=Timing()))) == taken(sim)


def test_a_roll_brings_partitions_to_their_min_isr_and_moves_leaders() -> None:
    sim = a_cluster()
    apply_cluster(sim, config={"queued.max.requests": 77})
    planned = rehearse(situation_of(sim))
    assert set(planned.at_min) == {("orders", n) for n in range(4)} | {
        key for key in planned.at_min if key[0] == "clicks"
    }
    assert not planned.under_min
    assert not planned.offline
    assert {topic for topic, _ in planned.new_leaders} == {"orders", "clicks"}


def test_a_partition_without_a_spare_replica_is_named() -> None:
    sim = a_cluster()
    sim.apply_topic("single", partitions=1, replicas=1)
    sim.reconcile_until_ready()
    apply_cluster(sim, config={"queued.max.requests": 77})
    planned = rehearse(situation_of(sim))
    assert set(planned.offline) == {("single", 0)}
    assert planned.offline["single", 0] >= 1


def test_conditions_that_the_operator_waits_for_are_named() -> None:
    sim = a_cluster(4)
    sim.apply_topic("orders", partitions=4, replicas=3, config={MIN_ISR: 2})
    sim.reconcile_until_ready()
    apply_cluster(sim, 3, scaleDown={"policy": "Block"})
    planned = rehearse(situation_of(sim))
    assert not planned.converged
    assert "scaleDown.policy is Block" in planned.waiting[0]


def test_a_roll_waits_for_its_window_in_the_plan_too() -> None:
    sim = a_cluster()
    window = {"windows": [{"start": "03:00", "duration": "1h"}], "minReadySeconds": 0}
    apply_cluster(sim, config={"queued.max.requests": 77}, rollingUpdate=window)
    planned = rehearse(situation_of(sim))
    first = next(step for step in planned.steps if step.kind == "StopBroker")
    assert first.at_ms > 60_000
    assert (sim.cluster.now_ms + first.at_ms) % 86_400_000 // 3_600_000 == 3


# ---- the loss of a broker


def test_the_loss_of_another_broker_during_a_roll_leaves_one_replica_and_stops_the_roll() -> None:
    sim = a_cluster()
    apply_cluster(sim, config={"queued.max.requests": 77})
    situation = situation_of(sim)
    undisturbed = rehearse(situation, 2)
    assert undisturbed.worst is not None
    loss = rehearse_loss(situation, 2, undisturbed.worst)
    assert loss.after is not None
    assert loss.after.text.startswith("stop broker")
    assert "broker 2" not in loss.after.text
    assert {("orders", n) for n in range(4)} <= loss.moment.health.under_min
    assert any("broker 2" in reason for reason in loss.waiting)
    assert not any(
        step.text.startswith(f"stop broker {n}: rolling") for n in (0, 1) for step in loss.rest[1:]
    )


def test_a_live_setting_is_altered_without_a_broker() -> None:
    sim = a_cluster()
    apply_cluster(sim, config={"message.max.bytes": 77_777})
    situation = situation_of(sim)
    undisturbed = rehearse(situation, 1)
    assert undisturbed.worst is not None
    loss = rehearse_loss(situation, 1, undisturbed.worst)
    assert not loss.moment.health.under_min


# ---- the report


def planned_roll(**more: Any) -> Planned:
    sim = a_cluster()
    apply_cluster(sim, config={"queued.max.requests": 77})
    situation = situation_of(sim)
    return Planned(
        situation, [Change("BrokerCluster/demo", paths=["spec.config"])], rehearse(situation), **more
    )


def test_the_report_names_restarts_with_reasons_and_clients_that_notice() -> None:
    groups = [
        Group("billing", "Stable", 1, ["app@10.0.0.1"], ["orders"]),
        Group("idle", "Empty", 1, [], ["orders"]),
        Group("elsewhere", "Stable", 9, ["other@10.0.0.2"], ["other"]),
    ]
    report = json_of(planned_roll(clients=Clients(groups, {1: {"PLAIN": 2, "REPLICATION": 0}})))
    assert {each["broker"] for each in report["restarts"]["brokers"]} == {0, 1, 2}
    assert report["restarts"]["brokers"][0]["reason"] == "queued.max.requests has changed"
    assert [each.get("group") for each in report["clients"]] == ["billing", None]
    assert report["clients"][0]["why"] == [
        "4 of its partitions change their leader",
        "orders at or below min.insync.replicas",
        "its coordinator, broker 1, restarts",
    ]
    assert report["clients"][1] == {
        "broker": 1,
        "listener": "PLAIN",
        "connections": 2,
        "why": ["broker 1 restarts"],
    }


def test_effects_on_users_and_groups_are_told_with_their_clients() -> None:
    effects = [
        Effect(
            "User/app", ("remove ACL: Allow Read on topic orders",), "User:app", why=("lose: Allow Read",)
        ),
        Effect("ConsumerGroup/billing", ("reset the offsets",), group="billing", why=("the reset waits",)),
    ]
    groups = [Group("billing", "Stable", 9, ["app@10.0.0.1"], ["other"])]
    report = json_of(planned_roll(clients=Clients(groups), effects=effects))
    assert report["effects"][1] == {"resource": "ConsumerGroup/billing", "steps": ["reset the offsets"]}
    assert report["clients"][0]["why"] == ["the reset waits"]
    assert report["clients"][1] == {"principal": "User:app", "why": ["lose: Allow Read"]}
    lines = text_of(report).splitlines()
    assert "   User/app: remove ACL: Allow Read on topic orders" in lines
    assert "   clients of User:app: lose: Allow Read" in lines
    without = json_of(planned_roll(clients=Clients([replace(groups[0], members=())]), effects=effects))
    assert [each.get("group") for each in without["clients"]] == [None]


def test_the_text_says_what_the_json_says() -> None:
    text = text_of(json_of(planned_roll(assumptions=["a broker starts in 3s (assumed)"])))
    lines = text.splitlines()
    assert lines[0] == "change BrokerCluster/demo: spec.config"
    assert "restart broker 1: queued.max.requests has changed" in text
    assert "restarts: brokers 1, 2, 0" in text
    assert "bytes to move: 0 B" in text
    assert "   a broker starts in 3s (assumed)" in lines


def test_a_setting_with_a_typing_error_is_a_warning_of_the_report() -> None:
    planned = planned_roll()
    cluster = planned.situation.cluster
    spec = {"replicas": 3, "config": {"num.partition.s": 3}}
    wrong, _ = parse_resource("BrokerCluster", {"name": "demo"}, spec)
    assert wrong is not None
    others = [each for each in planned.situation.resources if each is not cluster]
    situation = replace(planned.situation, resources=[wrong, *others])
    report = json_of(replace(planned, situation=situation))
    assert any("num.partition.s" in warning for warning in report["warnings"])

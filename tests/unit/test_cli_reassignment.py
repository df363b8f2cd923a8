"""Reassignment plans, their throttles, and the filters of kafka-topics.sh for unhealthy partitions."""

from __future__ import annotations

import json

import pytest

from ottla.cli import reassignment_plan
from ottla.cli.reassign import log_dir_state
from ottla.cli.reassignment_plan import BadPlan, parse_plan, parse_topics
from ottla.cli.topics import problems_of
from ottla.cli.transactions import hanging_transactions
from ottla.client.admin_types import (
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    ConfigType,
    Node,
    PartitionDescription,
    ProducerState,
    Reassignment,
    ReplicaLogDirs,
    TopicPartition,
    TopicPartitionReplica,
    TransactionDescription,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_a_plan_has_the_format_of_kafkas_tool() -> None:
    text = json.dumps(
        {
            "version": 1,
            "partitions": [
                {"topic": "t", "partition": 1, "replicas": [2, 0], "log_dirs": ["/a", "any"]},
                {"topic": "t", "partition": 0, "replicas": [1]},
            ],
        }
    )
    plan = parse_plan(text)
    assert plan.replicas == {T0: [1], T1: [2, 0]}
    assert plan.log_dirs == {TopicPartitionReplica("t", 1, 2): "/a"}
    assert plan.brokers == {0, 1, 2}
    assert parse_plan(json.dumps(reassignment_plan.document(plan.replicas))).replicas == plan.replicas


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"topics": [{"topic": "t"}, {"topic": "t"}]}', "a topic is given twice"),
        ('{"topics": [{}]}', "each needs topic"),
        ('{"topics": {}}', 'a list "topics"'),
    ],
)
def test_bad_lists_of_topics_are_refused(text: str, says: str) -> None:
    with pytest.raises(BadPlan, match=says):
        parse_topics(text)


def test_a_proposal_spreads_over_brokers_and_racks_and_is_the_same_each_time() -> None:
    current = {TopicPartition("t", p): (0, 1) for p in range(6)}
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "b", 4: "b"}
    proposed = reassignment_plan.propose(current, racks)
    assert all(reassignment_plan.propose(current, racks) == proposed for _ in range(20))
    assert all({racks[b] for b in replicas} == {"a", "b"} for replicas in proposed.values())
    assert {b for replicas in proposed.values() for b in replicas} == {1, 2, 3, 4}
    with pytest.raises(BadPlan, match="2 replicas, which 1 brokers cannot hold"):
        reassignment_plan.propose(current, {1: None})


def test_throttles_name_senders_and_receivers_of_new_and_running_moves() -> None:
    plan = parse_plan(json.dumps(reassignment_plan.document({T0: [1, 2]})))
    other = TopicPartition("u", 0)
    moving = {T0: Reassignment((3, 0, 1), (3,), (0,)), other: Reassignment((5, 6), (6,), (5,))}
    changes = reassignment_plan.throttle(plan, {T0: (3, 0, 1)}, moving, 1000)
    topics = {each.name: rows for each, rows in changes.items() if each.type is ConfigType.TOPIC}
    assert topics["t"] == [
        ConfigChange(reassignment_plan.LEADER_REPLICAS, "0:0,0:1"),
        ConfigChange(reassignment_plan.FOLLOWER_REPLICAS, "0:2"),
    ]
    assert topics["u"] == [
        ConfigChange(reassignment_plan.LEADER_REPLICAS, "0:5"),
        ConfigChange(reassignment_plan.FOLLOWER_REPLICAS, "0:6"),
    ]
    brokers = {each.name: rows for each, rows in changes.items() if each.type is ConfigType.BROKER}
    assert set(brokers) == {"0", "1", "2", "5", "6"}
    assert brokers["2"] == [
        ConfigChange(reassignment_plan.LEADER_RATE, "1000"),
        ConfigChange(reassignment_plan.FOLLOWER_RATE, "1000"),
    ]


def test_unthrottling_deletes_what_throttling_sets() -> None:
    changes = reassignment_plan.unthrottle(["t"], [1])
    assert {change.operation for rows in changes.values() for change in rows} == {ConfigOperation.DELETE}
    assert [change.name for change in changes[ConfigResource(ConfigType.BROKER, "1")]] == [
        reassignment_plan.LEADER_RATE,
        reassignment_plan.FOLLOWER_RATE,
        reassignment_plan.LOG_DIR_RATE,
    ]


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (None, "in no live log directory of the broker"),
        (ReplicaLogDirs("/a", 0), "completed"),
        (ReplicaLogDirs("/b", 0), "not moving: it is in /b"),
        (ReplicaLogDirs("/b", 0, "/a", 5), "in progress"),
        (ReplicaLogDirs("/b", 0, "/c", 5), "moving to /c instead"),
    ],
)
def test_states_of_moves_between_log_directories(found: ReplicaLogDirs | None, state: str) -> None:
    assert log_dir_state(found, "/a") == state


def test_unhealthy_partitions_are_those_of_kafka_topics() -> None:
    def problems(leader: int, isr: tuple[int, ...], move: Reassignment | None = None) -> set[str]:
        replicas = (1, 2, 3)
        return problems_of(PartitionDescription(0, leader, 1, replicas, isr), 2, {1, 2, 3}, move)

    assert problems(1, (1, 2, 3)) == set()
    assert problems(1, (1, 2)) == {"under_replicated", "at_min_isr"}
    assert problems(1, (1,)) == {"under_replicated", "under_min_isr"}
    assert problems(-1, (1, 2, 3)) == {"unavailable", "under_min_isr"}
    assert problems(4, (1, 2, 3)) == {"unavailable"}
    assert problems(1, (1, 2), Reassignment((1, 2, 3), (3,), ())) == {"at_min_isr"}


def test_a_transaction_is_hanging_if_no_coordinator_lists_the_partition() -> None:
    def state(producer_id: int) -> ProducerState:
        return ProducerState(producer_id, 0, 1, 0, 0, 5)

    def described(*partitions: TopicPartition) -> TransactionDescription:
        return TransactionDescription(Node(0, "h", 1), "Ongoing", 1, 0, 60_000, 0, partitions)

    candidates = [(T0, state(1)), (T1, state(1)), (T0, state(2)), (T0, state(3))]
    ids = {1: "one", 3: "three"}
    found = list(hanging_transactions(candidates, ids, {"one": described(T0)}))
    assert found == [(T1, state(1)), (T0, state(2)), (T0, state(3))]

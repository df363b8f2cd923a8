"""The controller's requests: results for administrators, leaders and stopping brokers, and their effects."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID, uuid4

import pytest

from ottla.metadata import znodes
from ottla.metadata.store import Create, SetData, StoreConflict
from ottla.metadata.znodes import NO_LEADER
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionRequest,
    ControlledShutdownRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
    LeaderAndIsrRequest,
    ListPartitionReassignmentsRequest,
    UpdateMetadataRequest,
)
from tests.worlds.clocks import run_in_virtual_time
from tests.worlds.controller_harness import Cluster, creatable, run

# CreateTopics

_TURNS_OF_A_CREATION = 12


def test_a_created_topic_is_written_as_kafka_writes_it_and_known_here_when_answered() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            result = await cluster.create(
                "flights", partitions=4, replication_factor=2, configs={"retention.ms": "1000"}
            )
            assert (result.error_code, result.error_message) == (0, None)
            assert (result.num_partitions, result.replication_factor) == (4, 2)
            configs = {c.name: c for c in result.configs or []}
            assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("1000", 1)
            assert configs["cleanup.policy"].config_source == 5
            data = cluster.data(znodes.topic_path("flights"))
            assert data is not None
            node = json.loads(data)
            assert node["version"] == 3
            assert sorted(node["partitions"]) == ["0", "1", "2", "3"]
            assert (node["adding_replicas"], node["removing_replicas"]) == ({}, {})
            assert znodes.decode_uuid(node["topic_id"]) == result.topic_id
            assert cluster.data(znodes.topic_config_path("flights")) == (
                b'{"version":1,"config":{"retention.ms":"1000"}}'
            )
            state = cluster.data(znodes.state_path("flights", 0))
            assert state is not None
            assert json.loads(state) == {
                "controller_epoch": 1,
                "leader": node["partitions"]["0"][0],
                "version": 1,
                "leader_epoch": 0,
                "isr": node["partitions"]["0"],
            }
            known = cluster.active.fake.cache.partitions("flights")
            assert known is not None
            assert sorted(known) == [0, 1, 2, 3], "the controller's own broker knows it already"

    run(scenario)


def test_a_topic_that_a_java_broker_creates_concurrently_is_one_topic_and_the_controller_stays() -> None:
    """Kafka's brokers write the nodes of topics that they create for clients, settings first, without asking
    the controller. Both steps are tried after each turn of the loop that our creation takes."""

    async def race(cluster: Cluster, name: str, settings_after: int, node_after: int) -> None:
        theirs = znodes.encode_config({"retention.ms": "5"})
        path, node = znodes.topic_config_path(name), znodes.TopicAssignment({0: (0,)}, topic_id=uuid4())
        creating = asyncio.ensure_future(cluster.create(name, partitions=1, replication_factor=1))
        both_wrote = False
        for turn in range(node_after + 1):
            await asyncio.sleep(0)
            if turn == settings_after:
                both_wrote = cluster.data(path) is not None
                cluster.tree.apply([SetData(path, theirs) if both_wrote else Create(path, theirs)], 0)
        first = True
        try:
            cluster.tree.apply([Create(znodes.topic_path(name), znodes.encode_topic(node))], 0)
        except StoreConflict:
            first = False
        result = await creating
        assert result.error_code == (ErrorCode.TOPIC_ALREADY_EXISTS if first else ErrorCode.NONE)
        if not first and not both_wrote:
            theirs = znodes.encode_config({})
        assert cluster.data(path) == theirs, "the settings are those of who made the topic"
        await cluster.until(lambda: cluster.leader(name) == 0, f"{name} has a leader")
        written = znodes.decode_topic(name, cluster.data(znodes.topic_path(name)) or b"")
        assert written.topic_id == (node.topic_id if first else result.topic_id)
        outcomes.add(first)

    outcomes = set[bool]()

    async def scenario() -> None:
        async with Cluster(1) as cluster:
            for settings_after in range(_TURNS_OF_A_CREATION):
                for node_after in range(settings_after, _TURNS_OF_A_CREATION):
                    await race(cluster, f"t-{settings_after}-{node_after}", settings_after, node_after)
            assert cluster.controller.epoch == 1, "it did not have to resign"

    run(scenario)
    assert outcomes == {True, False}


def test_a_topic_is_one_request_per_broker_however_many_its_partitions() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            for node in cluster.nodes.values():
                node.fake.received.clear()
            await cluster.create("t", partitions=30, replication_factor=3)
            for node in cluster.nodes.values():
                await node.fake.until(lambda fake: len(fake.received) == 2)
                assert len(node.fake.partition_states("t", 29)) == 1

    run(scenario)


def test_more_partitions_than_fit_one_multi_are_created_all_the_same() -> None:
    async def scenario() -> None:
        async with Cluster(1) as cluster:
            assert (await cluster.create("big", partitions=1_200)).error_code == 0
            assert {cluster.leader("big", p) for p in range(1_200)} == {0}

    run(scenario)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"name": ""}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": ".."}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "a" * 250}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "a b"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "there.is"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "there_is"}, ErrorCode.TOPIC_ALREADY_EXISTS),
        ({"partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"partitions": -2}, ErrorCode.INVALID_PARTITIONS),
        ({"partitions": 2**31 - 1}, ErrorCode.INVALID_PARTITIONS),
        ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 3}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"configs": {"no.such.config": "1"}}, ErrorCode.INVALID_CONFIG),
        ({"configs": {"retention.ms": "soon"}}, ErrorCode.INVALID_CONFIG),
        ({"configs": {"retention.ms": None}}, ErrorCode.INVALID_CONFIG),
        ({"assignments": {0: [0]}, "partitions": 1}, ErrorCode.INVALID_REQUEST),
        ({"assignments": {1: [0]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": {0: [0, 0]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": {0: [0], 1: [0, 1]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": {0: []}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
    ids=lambda value: str(value)[:40],
)
def test_invalid_topics_are_refused_with_kafkas_code(asked: dict[str, Any], error: ErrorCode) -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            await cluster.create("there_is")
            writes = cluster.tree.writes
            result = await cluster.create(**{"name": "new", **asked})
            assert result.error_code == error
            assert result.error_message
            assert cluster.tree.writes == writes

    run(scenario)


def test_topics_of_a_request_are_independent_and_duplicates_are_refused() -> None:
    async def scenario() -> None:
        async with Cluster(1) as cluster:
            request = CreateTopicsRequest(
                topics=[creatable("good"), creatable("b d"), creatable("twice"), creatable("twice")]
            )
            response = await cluster.controller.create_topics(request)
            assert [(t.name, t.error_code) for t in response.topics] == [
                ("good", ErrorCode.NONE),
                ("b d", ErrorCode.INVALID_TOPIC_EXCEPTION),
                ("twice", ErrorCode.INVALID_REQUEST),
                ("twice", ErrorCode.INVALID_REQUEST),
            ]

    run(scenario)


def test_validate_only_answers_and_writes_nothing() -> None:
    async def scenario() -> None:
        async with Cluster(1, num_partitions="3") as cluster:
            writes = cluster.tree.writes
            result = await cluster.create("t", validate_only=True)
            assert (result.error_code, result.num_partitions, result.topic_id) == (0, 3, UUID(int=0))
            assert cluster.tree.writes == writes

    run(scenario)


def test_a_topic_that_gets_no_leaders_in_time_is_created_but_reported_late() -> None:
    async def scenario() -> None:
        async with Cluster(1) as cluster:
            result = await cluster.create("t", assignments={0: [7]}, timeout_ms=20)
            assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
            assert cluster.data(znodes.topic_path("t")) is not None
            await cluster.start(7)
            await cluster.until(lambda: cluster.leader("t") == 7)

    run(scenario)


def test_replicas_are_spread_over_racks() -> None:
    async def scenario() -> None:
        async with Cluster(4, racks={0: "a", 1: "a", 2: "b", 3: "b"}) as cluster:
            await cluster.create("t", partitions=8, replication_factor=2)
            for p in range(8):
                state = cluster.state("t", p)
                assert state is not None
                assert len({replica // 2 for replica in state.isr}) == 2

    run(scenario)


# DeleteTopics


def delete(*names: str, timeout_ms: int = 5_000) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(
        topics=[DeleteTopicsRequest.DeleteTopicState(name=name) for name in names], timeout_ms=timeout_ms
    )


def test_a_deleted_topic_is_gone_from_the_metadata_then_from_the_disks_then_from_the_store() -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            created = await cluster.create("t", partitions=2, replication_factor=2)
            response = await cluster.controller.delete_topics(delete("t"))
            (result,) = response.responses
            assert (result.name, result.topic_id, result.error_code) == ("t", created.topic_id, 0)
            assert cluster.active.fake.cache.partitions("t") is None
            await cluster.until(lambda: cluster.data(znodes.topic_path("t")) is None)
            assert cluster.data(znodes.topic_config_path("t")) is None
            assert cluster.data(znodes.delete_topic_path("t")) is None
            for node in cluster.nodes.values():
                assert sorted(node.fake.stops()) == [("t", 0, -2, True), ("t", 1, -2, True)]
            again = await cluster.create("t")
            assert again.error_code == 0
            assert again.topic_id != created.topic_id

    run(scenario)


def test_topics_are_deleted_by_id_too() -> None:
    async def scenario() -> None:
        async with Cluster(1) as cluster:
            created = await cluster.create("t")
            state = DeleteTopicsRequest.DeleteTopicState
            request = DeleteTopicsRequest(
                topics=[
                    state(topic_id=created.topic_id),
                    state(topic_id=UUID(int=99)),
                    state(name="none"),
                    state(name="t", topic_id=created.topic_id),
                    state(),
                ],
                timeout_ms=60_000,
            )
            response = await cluster.controller.delete_topics(request)
            assert [r.error_code for r in response.responses] == [
                ErrorCode.NONE,
                ErrorCode.UNKNOWN_TOPIC_ID,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.INVALID_REQUEST,
                ErrorCode.INVALID_REQUEST,
            ]
            assert response.responses[0].name == "t"

    run(scenario)


def test_a_topic_with_a_replica_on_a_dead_broker_stays_queued_until_it_is_back() -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            await cluster.create("t", assignments={0: [0, 1]})
            await cluster.crash(1)
            await cluster.wait_until_quiet()
            response = await cluster.controller.delete_topics(delete("t", timeout_ms=20))
            assert response.responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT
            assert cluster.data(znodes.delete_topic_path("t")) is not None
            assert (await cluster.create("t")).error_code == ErrorCode.TOPIC_ALREADY_EXISTS
            await cluster.start(1)
            await cluster.until(lambda: cluster.data(znodes.topic_path("t")) is None)

    run(scenario)


def test_a_deletion_asked_for_in_the_store_itself_is_carried_out() -> None:
    async def scenario() -> None:
        async with Cluster(1) as cluster:
            await cluster.create("t")
            await cluster.nodes[0].store.create(znodes.delete_topic_path("t"))
            await cluster.until(lambda: cluster.data(znodes.topic_path("t")) is None)

    run(scenario)


@pytest.mark.parametrize(
    ("version", "error"), [(2, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)]
)
def test_deletion_can_be_disabled(version: int, error: ErrorCode) -> None:
    async def scenario() -> None:
        async with Cluster(1, delete_topic_enable="false") as cluster:
            await cluster.create("t")
            request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000)
            response = await cluster.controller.delete_topics(request, version)
            assert response.responses[0].error_code == error
            assert cluster.data(znodes.topic_path("t")) is not None

    run(scenario)


def test_a_deletion_that_is_requested_in_the_store_is_dropped_while_deletion_is_disabled() -> None:
    async def scenario() -> None:
        async with Cluster(1, delete_topic_enable="false") as cluster:
            await cluster.create("t")
            store = cluster.nodes[0].store
            await store.create(znodes.delete_topic_path("t"))
            await cluster.until(lambda: cluster.tree.find(znodes.delete_topic_path("t")) is None)
            assert cluster.data(znodes.topic_path("t")) is not None

    run(scenario)


# CreatePartitions


def grow(
    name: str, count: int, assignments: list[list[int]] | None = None, *, validate_only: bool = False
) -> CreatePartitionsRequest:
    wrap = CreatePartitionsRequest.CreatePartitionsAssignment
    return CreatePartitionsRequest(
        topics=[
            CreatePartitionsRequest.CreatePartitionsTopic(
                name=name,
                count=count,
                assignments=None if assignments is None else [wrap(broker_ids=ids) for ids in assignments],
            )
        ],
        timeout_ms=60_000,
        validate_only=validate_only,
    )


def test_a_topic_grows_and_its_old_partitions_stay_as_they_are() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            await cluster.create("t", partitions=2, replication_factor=2)
            before = [cluster.state("t", p) for p in (0, 1)]
            response = await cluster.controller.create_partitions(grow("t", 5))
            assert [(r.name, r.error_code) for r in response.results] == [("t", 0)]
            assert [cluster.state("t", p) for p in (0, 1)] == before
            assert all(cluster.leader("t", p) is not None for p in range(5))
            known = cluster.active.fake.cache.partitions("t")
            assert known is not None
            assert sorted(known) == list(range(5))
            await cluster.controller.create_partitions(grow("t", 6, [[2, 1]]))
            state = cluster.state("t", 5)
            assert state is not None
            assert state.isr == (2, 1)

    run(scenario)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (grow("none", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (grow("t", 2), ErrorCode.INVALID_PARTITIONS),
        (grow("t", 1), ErrorCode.INVALID_PARTITIONS),
        (grow("t", 2**31 - 1), ErrorCode.INVALID_PARTITIONS),
        (grow("t", 3, [[0, 1], [1, 0]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (grow("t", 3, [[0]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (grow("t", 3, [[0, 9]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (grow("moving", 3), ErrorCode.REASSIGNMENT_IN_PROGRESS),
        (grow("t", 3, validate_only=True), ErrorCode.NONE),
    ],
    ids=lambda value: str(value)[:80],
)
def test_invalid_partition_counts_are_refused(request_: CreatePartitionsRequest, error: ErrorCode) -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            await cluster.create("t", partitions=2, replication_factor=2)
            await cluster.create("moving", assignments={0: [0]})
            await cluster.controller.alter_partition_reassignments(reassign("moving", [1]))
            writes = cluster.tree.writes
            response = await cluster.controller.create_partitions(request_)
            assert response.results[0].error_code == error
            assert cluster.tree.writes == writes

    run(scenario)


# Reassignments


def reassign(name: str, replicas: list[int] | None, partition: int = 0) -> AlterPartitionReassignmentsRequest:
    return AlterPartitionReassignmentsRequest(
        topics=[
            AlterPartitionReassignmentsRequest.ReassignableTopic(
                name=name,
                partitions=[
                    AlterPartitionReassignmentsRequest.ReassignablePartition(
                        partition_index=partition, replicas=replicas
                    )
                ],
            )
        ]
    )


async def ask_isr(cluster: Cluster, topic: str, isr: list[int]) -> int:
    state, node = cluster.state(topic), cluster.tree.find(znodes.state_path(topic, 0))
    assert state is not None
    assert node is not None
    response = await cluster.controller.alter_partition(
        AlterPartitionRequest(
            broker_id=state.leader,
            broker_epoch=cluster.nodes[state.leader].epoch,
            topics=[
                AlterPartitionRequest.TopicData(
                    topic_name=topic,
                    partitions=[
                        AlterPartitionRequest.PartitionData(
                            leader_epoch=state.leader_epoch, new_isr=isr, partition_epoch=node.version
                        )
                    ],
                )
            ],
        ),
        1,
    )
    assert response.error_code == 0
    return response.topics[0].partitions[0].error_code


def test_a_partition_moves_to_other_brokers() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            await cluster.create("t", assignments={0: [0, 1]})
            response = await cluster.controller.alter_partition_reassignments(reassign("t", [2, 1]))
            assert (response.error_code, response.error_message) == (0, None)
            assert response.responses[0].partitions[0].error_code == 0
            listed = await cluster.controller.list_partition_reassignments(
                ListPartitionReassignmentsRequest()
            )
            (moving,) = listed.topics[0].partitions
            assert (moving.replicas, moving.adding_replicas, moving.removing_replicas) == (
                [2, 1, 0],
                [2],
                [0],
            )
            assert await ask_isr(cluster, "t", [0, 1, 2]) == 0
            state = cluster.state("t")
            assert state is not None
            assert (state.leader, set(state.isr)) == (2, {1, 2})
            await cluster.until(lambda: cluster.nodes[0].fake.stops() == [("t", 0, state.leader_epoch, True)])
            listed = await cluster.controller.list_partition_reassignments(
                ListPartitionReassignmentsRequest()
            )
            assert listed.topics == []
            known = cluster.nodes[1].fake.cache.partition("t", 0)
            assert known is not None

    run(scenario)


def test_a_reassignment_that_is_no_longer_listed_is_complete_in_the_metadata() -> None:
    """A client that lists reassignments and then replicas never sees a partial reassignment as complete."""

    async def scenario() -> None:
        async with Cluster(3) as cluster:
            await cluster.create("t", assignments={0: [0, 1]})
            own = cluster.active.fake
            await cluster.controller.alter_partition_reassignments(reassign("t", [2, 1]))
            own.reachable = False
            assert await ask_isr(cluster, "t", [0, 1, 2]) == 0
            listing = asyncio.ensure_future(
                cluster.controller.list_partition_reassignments(ListPartitionReassignmentsRequest())
            )
            done, _ = await asyncio.wait([listing], timeout=1)
            assert not done
            own.reachable = True
            assert (await listing).topics == []
            known = own.cache.partition("t", 0)
            assert known is not None
            assert list(known.replicas) == [2, 1]

    run(scenario)


def test_reassignment_errors_are_per_partition() -> None:
    async def scenario() -> None:
        async with Cluster(1) as cluster:
            await cluster.create("t")
            for name, replicas, error in (
                ("none", [0], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                ("t", [9], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
                ("t", None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
            ):
                response = await cluster.controller.alter_partition_reassignments(reassign(name, replicas))
                result = response.responses[0].partitions[0]
                assert (response.error_code, result.error_code) == (0, error)
                assert result.error_message

    run(scenario)


# ElectLeaders, ControlledShutdown, AlterPartition


def elect(kind: int, *partitions: tuple[str, int]) -> ElectLeadersRequest:
    return ElectLeadersRequest(
        election_type=kind,
        topic_partitions=[
            ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[partition])
            for topic, partition in partitions
        ]
        or None,
    )


def test_preferred_leaders_are_elected_on_request_and_by_themselves() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            await cluster.create("t", assignments={0: [2, 1, 0], 1: [1, 2, 0]})
            await cluster.crash(2)
            await cluster.wait_until_quiet()
            assert cluster.leader("t") == 1
            unavailable = await cluster.controller.elect_leaders(elect(0, ("t", 0), ("t", 1), ("none", 0)))
            assert [
                p.error_code for r in unavailable.replica_election_results for p in r.partition_result
            ] == [
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                ErrorCode.ELECTION_NOT_NEEDED,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ]
            await cluster.start(2)
            await cluster.wait_until_quiet()
            await ask_isr(cluster, "t", [0, 1, 2])
            assert cluster.leader("t") == 1
            everything = await cluster.controller.elect_leaders(elect(0))
            (elected,) = everything.replica_election_results
            assert [(p.partition_id, p.error_code) for p in elected.partition_result] == [(0, 0)]
            assert cluster.leader("t") == 2

    run(scenario)


def test_leaders_are_rebalanced_when_the_imbalance_is_too_large() -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            await cluster.create("t", assignments={0: [1, 0]})
            await cluster.crash(1)
            await cluster.wait_until_quiet()
            await cluster.start(1)
            await cluster.wait_until_quiet()
            await ask_isr(cluster, "t", [0, 1])
            assert cluster.leader("t") == 0
            await cluster.controller.rebalance()
            assert cluster.leader("t") == 1

    run(scenario)


def test_leaders_are_rebalanced_five_seconds_after_an_election_and_then_at_intervals() -> None:
    """As Kafka's controller does, whatever leader.imbalance.check.interval.seconds is."""

    async def scenario() -> None:
        async with Cluster(2, leader_imbalance_check_interval_seconds="300") as cluster:
            await cluster.create("t", assignments={0: [1, 0]})

            async def lose_the_preferred_leader() -> None:
                await cluster.crash(1)
                await cluster.wait_until_quiet()
                await cluster.start(1)
                await cluster.wait_until_quiet()
                await ask_isr(cluster, "t", [0, 1])
                assert cluster.leader("t") == 0

            async def step_to(seconds: float) -> None:
                await asyncio.sleep(seconds - asyncio.get_running_loop().time())

            await lose_the_preferred_leader()
            await step_to(4.5)
            assert cluster.leader("t") == 0
            await step_to(5.5)
            await cluster.until(lambda: cluster.leader("t") == 1)
            await lose_the_preferred_leader()
            await step_to(304.5)
            assert cluster.leader("t") == 0
            await step_to(306)
            await cluster.until(lambda: cluster.leader("t") == 1)

    run_in_virtual_time(scenario())


def test_an_unclean_election_is_done_on_request_or_where_the_topic_allows_it() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            for name in ("asked", "allowed", "kept"):
                await cluster.create(name, assignments={0: [1, 2]})
                await ask_isr(cluster, name, [1])
            store = cluster.nodes[0].store
            allow = znodes.encode_config({"unclean.leader.election.enable": "true"})
            await store.set(znodes.topic_config_path("allowed"), allow)
            await cluster.crash(1)
            await cluster.wait_until_quiet()
            assert [cluster.leader(name) for name in ("asked", "allowed", "kept")] == [
                NO_LEADER,
                2,
                NO_LEADER,
            ]
            response = await cluster.controller.elect_leaders(elect(1, ("asked", 0), ("allowed", 0)))
            assert [r.partition_result[0].error_code for r in response.replica_election_results] == [
                ErrorCode.NONE,
                ErrorCode.ELECTION_NOT_NEEDED,
            ]
            assert cluster.leader("asked") == 2
            await store.set(znodes.topic_config_path("kept"), allow)
            await store.create(
                znodes.CONFIG_CHANGE_PREFIX, znodes.encode_config_change("topics/kept"), sequential=True
            )
            await cluster.until(lambda: cluster.leader("kept") == 2)

    run(scenario)


def test_a_controlled_shutdown_leaves_no_leader_behind() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            await cluster.create("t", assignments={0: [1, 2], 1: [2, 1], 2: [1, 0]})
            leaving = cluster.nodes[1]
            stale = ControlledShutdownRequest(broker_id=1, broker_epoch=leaving.epoch - 1)
            assert (await cluster.controller.controlled_shutdown(stale)).error_code == (
                ErrorCode.STALE_BROKER_EPOCH
            )
            unknown = ControlledShutdownRequest(broker_id=8, broker_epoch=1)
            assert (await cluster.controller.controlled_shutdown(unknown)).error_code == (
                ErrorCode.BROKER_NOT_AVAILABLE
            )
            response = await cluster.controller.controlled_shutdown(
                ControlledShutdownRequest(broker_id=1, broker_epoch=leaving.epoch)
            )
            assert (response.error_code, response.remaining_partitions) == (0, [])
            assert [cluster.leader("t", p) for p in range(3)] == [2, 2, 0]
            for p in range(3):
                state = cluster.state("t", p)
                assert state is not None
                assert 1 not in state.isr
            before = [cluster.state("t", p) for p in range(3)]
            await leaving.crash()
            await cluster.wait_until_quiet()
            assert [cluster.state("t", p) for p in range(3)] == before

    run(scenario)


def test_a_replica_whose_disk_failed_gives_up_its_leadership() -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            created = await cluster.create("t", assignments={0: [0, 1]})
            cluster.nodes[0].fake.failed_disk = {(created.topic_id, 0)}
            # Any LeaderAndIsr will do; this one comes of the follower's bounce.
            await cluster.crash(1)
            await cluster.until(lambda: cluster.leader("t") == NO_LEADER)
            await cluster.start(1)
            await cluster.wait_until_quiet()
            assert cluster.leader("t") == NO_LEADER, "its only in-sync replica is on a dead disk"

    run(scenario)


def test_a_restarted_broker_is_sent_all_its_replicas() -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            await cluster.create("t", partitions=3, replication_factor=2)
            await cluster.crash(1)
            await cluster.wait_until_quiet()
            back = await cluster.start(1)
            await cluster.until(lambda: back.fake.of(LeaderAndIsrRequest))
            first = back.fake.of(LeaderAndIsrRequest)[0]
            assert first.type == 2
            assert first.broker_epoch == back.epoch
            assert len(first.topic_states[0].partition_states) == 3
            assert first.live_leaders[0].host_name == "host"

    run(scenario)


def test_update_metadata_precedes_leader_and_isr_with_a_new_leader() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            await cluster.create("t", assignments={0: [1, 0], 1: [0, 1]})
            await cluster.create("alone", assignments={0: [1, 0]})
            await ask_isr(cluster, "alone", [1])
            await cluster.crash(1)
            await cluster.wait_until_quiet()
            other = cluster.nodes[0].fake
            await other.until(lambda fake: fake.partition_states("alone")[-1].leader == NO_LEADER)
            back = await cluster.start(1)
            await cluster.until(lambda: cluster.leader("alone") == 1)
            for fake in (back.fake, other):
                await fake.until(lambda fake: [s.leader for s in fake.partition_states("alone")][-1:] == [1])
                known = {NO_LEADER}
                for message in fake.received:
                    if isinstance(message, UpdateMetadataRequest):
                        known = {NO_LEADER, *(broker.id for broker in message.live_brokers)}
                    elif isinstance(message, LeaderAndIsrRequest):
                        named = {s.leader for t in message.topic_states for s in t.partition_states}
                        assert named <= known

    run(scenario)

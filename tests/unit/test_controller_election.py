"""Election, fencing and failover of the controller itself."""

from __future__ import annotations

import asyncio
import json

from ottla.metadata import znodes
from ottla.metadata.memory import MemoryStore
from ottla.metadata.store import Delete, SetData
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    AlterPartitionRequest,
    ControlledShutdownRequest,
    CreatePartitionsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
    LeaderAndIsrRequest,
    ListPartitionReassignmentsRequest,
    UpdateMetadataRequest,
)
from tests.worlds.controller_harness import Cluster, run


def test_one_broker_is_elected_and_all_brokers_know_it() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            assert [node.controller.controller_id for node in cluster.nodes.values()] == [0, 0, 0]
            assert cluster.controller.epoch == 1
            assert [n.controller.epoch for n in cluster.nodes.values()] == [1, -1, -1]
            data = cluster.data(znodes.CONTROLLER)
            assert data is not None
            assert json.loads(data) == {
                "version": 2,
                "brokerid": 0,
                "timestamp": "1000",
                "kraftControllerEpoch": -1,
            }
            assert cluster.data(znodes.CONTROLLER_EPOCH) == b"1"
            assert {n.fake.cache.controller_id for n in cluster.nodes.values()} == {0}

    run(scenario)


def test_a_controller_that_stops_hands_over_at_once() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            await cluster.create("t", partitions=3, replication_factor=3)
            before = {p: cluster.state("t", p) for p in range(3)}
            await cluster.nodes[0].controller.stop()
            await cluster.until(lambda: any(n.controller.is_active for n in cluster.nodes.values()))
            assert cluster.active.id != 0
            assert cluster.controller.epoch == 2
            assert {p: cluster.state("t", p) for p in range(3)} == before, "no leader has to move"

            def reported() -> bool:
                last = [node.fake.of(LeaderAndIsrRequest)[-1] for node in cluster.nodes.values()]
                return all(request.controller_epoch == 2 and request.type == 2 for request in last)

            await cluster.until(reported, "everybody is told everything, in full, by the new controller")

    run(scenario)


def test_when_the_controller_crashes_another_takes_over_its_partitions_too() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            await cluster.create("t", assignments={0: [0, 1, 2], 1: [1, 2, 0]})
            await cluster.crash(0)
            await cluster.wait_until_quiet()
            led, followed = cluster.state("t", 0), cluster.state("t", 1)
            assert led is not None
            assert followed is not None
            assert (led.leader, led.isr, led.leader_epoch, led.controller_epoch) == (1, (1, 2), 1, 2)
            assert (followed.leader, followed.isr) == (1, (1, 2))

    run(scenario)


def test_a_lost_session_ends_the_controllership_at_once_and_the_broker_registers_again() -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            await cluster.create("t", assignments={0: [0, 1]})
            node = cluster.nodes[0]
            node.store.expire()
            await cluster.until(lambda: not node.controller.is_active)
            await cluster.until(lambda: cluster.nodes[1].controller.is_active)
            await cluster.until(lambda: cluster.leader("t") == 1)
            assert await cluster.until(lambda: node.controller.controller_id == 1)
            await node.controller.start(await node.registration.register())
            await cluster.wait_until_quiet()
            assert cluster.active.id == 1
            state = cluster.state("t")
            assert state is not None
            assert state.isr == (1,), "it has to catch up first"

    run(scenario)


def test_a_controller_that_has_missed_its_own_replacement_cannot_write() -> None:
    async def scenario() -> None:
        async with Cluster(1) as cluster:
            controller = cluster.controller
            # Another broker has been elected, and no watch has fired here yet.
            cluster.tree._watches.clear()
            cluster.tree.apply(
                [Delete(znodes.CONTROLLER), SetData(znodes.CONTROLLER_EPOCH, b"41")], session=0
            )
            result = await cluster.create("t")
            assert result.error_code == ErrorCode.NOT_CONTROLLER
            assert cluster.data(znodes.topic_path("t")) is None
            assert cluster.data(znodes.topic_config_path("t")) is None
            # With nobody in office, it is elected again, by a fresh look, and now it can.
            await cluster.until(lambda: controller.is_active)
            assert controller.epoch == 42
            assert (await cluster.create("t")).error_code == ErrorCode.NONE

    run(scenario)


def test_a_write_of_unknown_outcome_ends_the_controllership_and_the_next_controller_reads_the_store() -> None:
    async def scenario() -> None:
        async with Cluster(1) as cluster:
            controller = cluster.controller
            cluster.tree.available = False
            result = await cluster.create("t")
            assert result.error_code == ErrorCode.NOT_CONTROLLER
            assert not controller.is_active
            cluster.tree.available = True
            await cluster.until(lambda: controller.is_active)
            assert (await cluster.create("t")).error_code == ErrorCode.NONE

    run(scenario)


def test_damaged_nodes_do_not_prevent_the_start_of_a_controller() -> None:
    async def scenario() -> None:
        cluster = Cluster(1)
        store = MemoryStore(cluster.tree)
        await store.connect()
        good = znodes.encode_topic(znodes.TopicAssignment({0: (0,), 1: (0,)}))
        for path, data in (
            (znodes.topic_path("damaged"), b"not json"),
            (znodes.topic_path("half"), good),
            (znodes.state_path("half", 0), b"not json"),
            (znodes.broker_path(9), b"not json"),
        ):
            await store.create(path, data, make_parents=True)
        async with cluster:
            await cluster.until(lambda: cluster.leader("half", 1) == 0)
            assert cluster.data(znodes.state_path("half", 0)) == b"not json", "left for people to look at"

    run(scenario)


def test_other_brokers_answer_with_not_controller() -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            other = cluster.nodes[1].controller
            assert (await other.alter_partition(AlterPartitionRequest())).error_code == 41
            assert (await other.controlled_shutdown(ControlledShutdownRequest())).error_code == 41
            assert (await other.elect_leaders(ElectLeadersRequest())).error_code == 41
            listed = await other.list_partition_reassignments(ListPartitionReassignmentsRequest())
            assert listed.error_code == ErrorCode.NOT_CONTROLLER
            deleted = await other.delete_topics(DeleteTopicsRequest(topic_names=["t"]), 5)
            assert [r.error_code for r in deleted.responses] == [ErrorCode.NOT_CONTROLLER]
            grown = await other.create_partitions(
                CreatePartitionsRequest(
                    topics=[CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=2)]
                )
            )
            assert [r.error_code for r in grown.results] == [ErrorCode.NOT_CONTROLLER]

    run(scenario)


def test_a_new_controller_resumes_a_move_and_a_deletion() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            await cluster.create("moving", assignments={0: [0, 1]})
            await cluster.create("going", assignments={0: [1, 2]})
            moving = znodes.TopicAssignment(
                {0: (1, 2, 0)}, {0: (2,)}, {0: (0,)}, cluster.nodes[0].fake.cache.topic_id("moving")
            )
            cluster.nodes[2].fake.stop_error = ErrorCode.KAFKA_STORAGE_ERROR
            await cluster.controller.delete_topics(
                DeleteTopicsRequest(topic_names=["going"], timeout_ms=1000), 5
            )
            await cluster.nodes[0].controller.stop()
            cluster.tree.apply([SetData(znodes.topic_path("moving"), znodes.encode_topic(moving))], 0)
            cluster.nodes[2].fake.stop_error = ErrorCode.NONE
            await cluster.until(lambda: any(n.controller.is_active for n in cluster.nodes.values()))
            await cluster.until(lambda: cluster.data(znodes.topic_path("going")) is None)
            assert cluster.data(znodes.delete_topic_path("going")) is None
            await cluster.until(lambda: cluster.nodes[2].fake.partition_states("moving"))
            listed = await cluster.controller.list_partition_reassignments(
                ListPartitionReassignmentsRequest()
            )
            assert listed.topics[0].partitions[0].adding_replicas == [2]

    run(scenario)


def test_topics_without_an_id_get_one_from_the_controller() -> None:
    async def scenario() -> None:
        cluster = Cluster(1)
        node = await cluster.start(0)
        old = znodes.encode_topic(znodes.TopicAssignment({0: (0,)}))
        await node.store.create(znodes.topic_path("old"), old)
        await cluster.until(lambda: cluster.leader("old") == 0, "made by a tool: it gets a leader")
        data = cluster.data(znodes.topic_path("old"))
        assert data is not None
        topic_id = znodes.decode_topic("old", data).topic_id
        assert topic_id is not None
        await cluster.until(lambda: node.fake.cache.topic_id("old") == topic_id)
        await node.stop()

    run(scenario)


def test_requests_reach_a_broker_in_order_and_again_until_it_answers() -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            slow = cluster.nodes[1].fake
            slow.reachable = False
            slow.received.clear()
            for name in ("a", "b", "c"):
                assert (await cluster.create(name, assignments={0: [0, 1]})).error_code == 0
            assert slow.received == []
            slow.reachable = True
            await cluster.until(lambda: len(slow.received) >= 6)
            reported = [
                [topic.topic_name for topic in message.topic_states]
                for message in slow.received
                if isinstance(message, LeaderAndIsrRequest | UpdateMetadataRequest)
            ]
            assert reported == [["a"], ["a"], ["b"], ["b"], ["c"], ["c"]]

    run(scenario)


def test_a_cancelled_request_still_finishes_its_decision() -> None:
    async def scenario() -> None:
        async with Cluster(1) as cluster:
            task = asyncio.ensure_future(cluster.create("t"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            await cluster.until(lambda: cluster.leader("t") == 0)
            assert cluster.controller.is_active
            await cluster.until(lambda: cluster.nodes[0].fake.cache.partition("t", 0))

    run(scenario)

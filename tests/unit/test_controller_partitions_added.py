"""Partitions that an old tool adds by writing the topic's node."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from uuid import UUID

import pytest

from ottla.metadata import znodes
from ottla.metadata.memory import MemoryStore
from ottla.metadata.znodes import TopicAssignment
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import AlterPartitionReassignmentsRequest, LeaderAndIsrRequest
from tests.worlds.controller_harness import Cluster, run


def node_of(cluster: Cluster, topic: str = "t") -> TopicAssignment:
    data = cluster.data(znodes.topic_path(topic))
    assert data is not None
    return znodes.decode_topic(topic, data)


def version_1(partitions: Mapping[int, Sequence[int]]) -> bytes:
    """The format of kafka-topics of 0.8 to 1.0 and topicctl: no topic id, and no reassignments."""
    rows = {str(p): list(replicas) for p, replicas in partitions.items()}
    return json.dumps({"version": 1, "partitions": rows}).encode()


async def overwrite(cluster: Cluster, partitions: Mapping[int, Sequence[int]], topic: str = "t") -> None:
    tool = MemoryStore(cluster.tree)
    await tool.connect()
    await tool.set(znodes.topic_path(topic), version_1(partitions))
    await tool.close()


def new_on(cluster: Cluster, broker: int, partition: int) -> list[bool]:
    return [state.is_new for state in cluster.nodes[broker].fake.partition_states("t", partition)]


async def with_topic(cluster: Cluster) -> UUID:
    result = await cluster.create("t", assignments={0: [0, 1], 1: [1, 2]})
    assert result.error_code == ErrorCode.NONE
    await cluster.wait_until_quiet()
    return result.topic_id


def test_new_partitions_get_leaders_and_the_topic_keeps_its_id() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            topic_id = await with_topic(cluster)
            await overwrite(cluster, {0: [0, 1], 1: [1, 2], 2: [2, 0], 3: [1, 0]})
            await cluster.until(lambda: cluster.leader("t", 2) == 2 and cluster.leader("t", 3) == 1)
            await cluster.until(lambda: node_of(cluster).topic_id == topic_id)
            assert node_of(cluster).partitions == {0: (0, 1), 1: (1, 2), 2: (2, 0), 3: (1, 0)}
            await cluster.wait_until_quiet()
            assert new_on(cluster, 2, 2) == new_on(cluster, 0, 3) == [True]
            for node in cluster.nodes.values():
                assert sorted(node.fake.cache.partitions("t") or ()) == [0, 1, 2, 3]
            (order,) = [r for r in cluster.nodes[2].fake.of(LeaderAndIsrRequest) if r.type != 2][-1:]
            assert order.topic_states[0].topic_id == topic_id
            # The partitions that were there hear nothing.
            assert cluster.state("t", 0) == znodes.PartitionState(0, 0, (0, 1), 1)

    run(scenario)


def test_the_next_controller_continues_to_watch() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            topic_id = await with_topic(cluster)
            await cluster.crash(cluster.active.id)
            await cluster.wait_until_quiet()
            alive = sorted(cluster.active.cluster.nodes.keys() - {0})
            await overwrite(cluster, {0: [0, 1], 1: [1, 2], 2: [alive[0]]})
            await cluster.until(lambda: cluster.leader("t", 2) == alive[0])
            await cluster.until(lambda: node_of(cluster).topic_id == topic_id)

    run(scenario)


def test_a_write_between_loading_and_watch_is_detected() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            await with_topic(cluster)
            # The watches are not set yet when this is written: the election ends before.
            await cluster.crash(cluster.active.id)
            await cluster.until(lambda: any(n.controller.is_active for n in cluster.nodes.values()))
            await overwrite(cluster, {0: [0, 1], 1: [1, 2], 2: [1]})
            await cluster.until(lambda: cluster.leader("t", 2) == 1)

    run(scenario)


def test_partitions_that_are_missing_or_moved_in_the_node_are_restored() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            topic_id = await with_topic(cluster)
            before = node_of(cluster)
            await overwrite(cluster, {1: [0, 2], 2: [2]})
            await cluster.until(lambda: cluster.leader("t", 2) == 2)
            await cluster.until(lambda: node_of(cluster).topic_id == topic_id)
            assert node_of(cluster).partitions == {**before.partitions, 2: (2,)}
            assert cluster.leader("t", 0) == 0
            assert cluster.leader("t", 1) == 1

    run(scenario)


def test_a_reassignment_in_progress_survives_the_write() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            await with_topic(cluster)
            row = AlterPartitionReassignmentsRequest.ReassignableTopic(
                name="t",
                partitions=[
                    AlterPartitionReassignmentsRequest.ReassignablePartition(
                        partition_index=0, replicas=[2, 1]
                    )
                ],
            )
            await cluster.controller.alter_partition_reassignments(
                AlterPartitionReassignmentsRequest(topics=[row])
            )
            moving = node_of(cluster)
            assert moving.adding == {0: (2,)}
            await overwrite(cluster, {**moving.partitions, 2: [0]})
            await cluster.until(lambda: cluster.leader("t", 2) == 0)
            await cluster.until(lambda: node_of(cluster).topic_id is not None)
            after = node_of(cluster)
            assert (after.adding, after.removing) == (moving.adding, moving.removing)

    run(scenario)


def test_no_partition_is_added_to_a_topic_that_is_being_deleted(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            await with_topic(cluster)
            before = node_of(cluster)
            gone = next(broker for broker in (1, 2) if not cluster.nodes[broker].controller.is_active)
            await cluster.crash(gone)  # so that the deletion waits
            await cluster.wait_until_quiet()
            tool = MemoryStore(cluster.tree)
            await tool.connect()
            await tool.create(znodes.delete_topic_path("t"))
            context = cluster.controller.context
            assert context is not None
            await cluster.until(lambda: context.is_deleting("t"))
            with caplog.at_level(logging.WARNING):
                await overwrite(cluster, {**before.partitions, 2: [0]})
                await cluster.until(lambda: node_of(cluster) == before)
            assert "since it is currently being deleted" in caplog.text
            assert cluster.state("t", 2) is None
            await tool.close()

    run(scenario)


def test_an_invalid_node_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            await with_topic(cluster)
            tool = MemoryStore(cluster.tree)
            await tool.connect()
            await tool.set(znodes.topic_path("t"), b"not json")
            await cluster.until(lambda: "Ignoring a change of topic t" in caplog.text)
            assert cluster.controller.is_active
            await overwrite(cluster, {0: [0, 1], 1: [1, 2], 2: [2]})
            await cluster.until(lambda: cluster.leader("t", 2) == 2)
            await tool.close()

    run(scenario)


def test_the_watch_of_a_deleted_topic_ends_and_a_new_topic_of_its_name_is_watched() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            await with_topic(cluster)
            tool = MemoryStore(cluster.tree)
            await tool.connect()
            await tool.create(znodes.delete_topic_path("t"))
            await cluster.until(lambda: cluster.data(znodes.topic_path("t")) is None)
            await cluster.wait_until_quiet()
            topic_id = await with_topic(cluster)
            await overwrite(cluster, {0: [0, 1], 1: [1, 2], 2: [2]})
            await cluster.until(lambda: cluster.leader("t", 2) == 2)
            await cluster.until(lambda: node_of(cluster).topic_id == topic_id)
            await tool.close()

    run(scenario)

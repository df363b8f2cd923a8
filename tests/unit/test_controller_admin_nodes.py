"""Reassignments, elections and deletions that old tools request through nodes under /admin."""

from __future__ import annotations

import json

from ottla.metadata import znodes
from ottla.metadata.memory import MemoryStore
from ottla.metadata.znodes import TopicPartition
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionRequest,
)
from tests.worlds.controller_harness import Cluster, run

T0, T1, T2 = (TopicPartition("t", partition) for partition in range(3))


async def write(cluster: Cluster, path: str, data: bytes) -> MemoryStore:
    """Writes a node as an administrator's tool does."""
    tool = MemoryStore(cluster.tree)
    await tool.connect()
    await tool.create(path, data)
    return tool


def replicas(cluster: Cluster, tp: TopicPartition) -> tuple[int, ...]:
    data = cluster.data(znodes.topic_path(tp.topic))
    assert data is not None
    return znodes.decode_topic(tp.topic, data).partitions[tp.partition]


def listed(cluster: Cluster) -> dict[TopicPartition, tuple[int, ...]] | None:
    data = cluster.data(znodes.REASSIGN_PARTITIONS)
    return None if data is None else znodes.decode_reassignment(data)


async def join(cluster: Cluster, tp: TopicPartition, isr: list[int]) -> None:
    """The leader reports that these replicas are in sync."""
    state, node = cluster.state(*tp), cluster.tree.find(znodes.state_path(*tp))
    data = cluster.data(znodes.topic_path(tp.topic))
    assert state is not None
    assert node is not None
    assert data is not None
    topic_id = znodes.decode_topic(tp.topic, data).topic_id
    assert topic_id is not None
    partition = AlterPartitionRequest.PartitionData(
        partition_index=tp.partition,
        leader_epoch=state.leader_epoch,
        partition_epoch=node.version,
        new_isr_with_epochs=[AlterPartitionRequest.BrokerState(broker_id=broker) for broker in isr],
    )
    request = AlterPartitionRequest(
        broker_id=state.leader,
        broker_epoch=cluster.nodes[state.leader].epoch,
        topics=[AlterPartitionRequest.TopicData(topic_id=topic_id, partitions=[partition])],
    )
    answer = await cluster.controller.alter_partition(request)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE, answer


def test_reassignments_start_and_are_removed_from_the_list_as_they_end() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            await cluster.create("t", assignments={0: [0, 1], 1: [0, 1], 2: [0, 1]})
            moves = {T0: (1, 2), T1: (2, 0), T2: (0, 1)}
            await write(cluster, znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment(moves))
            await cluster.until(lambda: listed(cluster) == {T0: (1, 2), T1: (2, 0)}, "the third is in place")
            assert set(replicas(cluster, T0)) == set(replicas(cluster, T1)) == {0, 1, 2}
            await join(cluster, T1, [0, 1, 2])
            await cluster.until(lambda: listed(cluster) == {T0: (1, 2)})
            assert replicas(cluster, T1) == (2, 0)
            await join(cluster, T0, [0, 1, 2])
            await cluster.until(lambda: listed(cluster) is None)
            assert replicas(cluster, T0) == (1, 2)

    run(scenario)


def test_invalid_reassignments_are_removed_from_the_list() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            await cluster.create("t", assignments={0: [0, 1]})
            strange = {TopicPartition("nobody's", 0): (0,), T1: (0, 1), T0: (0, 9)}
            await write(cluster, znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment(strange))
            await cluster.until(lambda: listed(cluster) is None)
            assert replicas(cluster, T0) == (0, 1)
            assert cluster.controller.is_active

    run(scenario)


def test_the_next_controller_continues_with_the_list() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            await cluster.create("t", assignments={0: [1, 2]})
            moves = {T0: (2, 0), T1: (0,)}
            await write(cluster, znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment(moves))
            await cluster.until(lambda: listed(cluster) == {T0: (2, 0)})
            before = cluster.active.id
            await cluster.nodes[before].controller.stop()
            await cluster.until(lambda: any(n.controller.is_active for n in cluster.nodes.values()))
            term = cluster.controller._active
            assert cluster.active.id != before
            assert term is not None
            await cluster.until(lambda: term.node_reassignments == {T0: (2, 0)})
            await join(cluster, T0, [0, 1, 2])
            await cluster.until(lambda: listed(cluster) is None)
            assert replicas(cluster, T0) == (2, 0)

    run(scenario)


def test_a_request_of_the_api_removes_a_partition_from_the_list() -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            await cluster.create("t", assignments={0: [0, 1], 1: [0, 1]})
            moves = {T0: (1, 2), T1: (1, 2)}
            await write(cluster, znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment(moves))
            await cluster.until(lambda: set(replicas(cluster, T1)) == {0, 1, 2})
            for target, partition in (([0, 3], 0), (None, 1)):
                row = AlterPartitionReassignmentsRequest.ReassignablePartition(
                    partition_index=partition, replicas=target
                )
                topic = AlterPartitionReassignmentsRequest.ReassignableTopic(name="t", partitions=[row])
                answer = await cluster.controller.alter_partition_reassignments(
                    AlterPartitionReassignmentsRequest(topics=[topic])
                )
                assert answer.responses[0].partitions[0].error_code == ErrorCode.NONE, answer
            await cluster.until(lambda: listed(cluster) is None)
            assert set(replicas(cluster, T1)) == {0, 1}, "cancelled"
            assert set(replicas(cluster, T0)) == {0, 1, 3}, "goes elsewhere"

    run(scenario)


def test_an_invalid_list_is_left_alone() -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            await cluster.create("t", assignments={0: [0, 1]})
            await write(cluster, znodes.REASSIGN_PARTITIONS, b"{}")
            tool = await write(cluster, znodes.PREFERRED_ELECTION, b"no json")
            await cluster.until(lambda: cluster.data(znodes.PREFERRED_ELECTION) is None)
            assert cluster.data(znodes.REASSIGN_PARTITIONS) == b"{}"
            await tool.set(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment({T0: (1, 0)}))
            await cluster.until(lambda: listed(cluster) is None)
            assert replicas(cluster, T0) == (1, 0)

    run(scenario)


def test_preferred_leaders_are_elected_where_they_can_lead() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            await cluster.create("t", assignments={0: [1, 2], 1: [1, 2], 2: [2, 1]})
            await cluster.crash(1)
            await cluster.until(lambda: {cluster.leader("t", p) for p in range(3)} == {2})
            await cluster.start(1)
            await cluster.wait_until_quiet()
            await join(cluster, T0, [1, 2])
            rows = [{"topic": "t", "partition": p} for p in (0, 1, 2, 7)]
            data = json.dumps({"version": 1, "partitions": rows}).encode()
            await write(cluster, znodes.PREFERRED_ELECTION, data)
            await cluster.until(lambda: cluster.data(znodes.PREFERRED_ELECTION) is None)
            assert [cluster.leader("t", p) for p in range(3)] == [1, 2, 2], "the second is not in sync"

    run(scenario)


def test_a_deletion_of_an_unknown_topic_is_dropped_and_does_not_affect_a_later_topic() -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            await cluster.create("t", assignments={0: [0, 1]})
            stale, wanted = znodes.delete_topic_path("later"), znodes.delete_topic_path("t")
            tool = await write(cluster, stale, b"")
            await cluster.until(lambda: cluster.data(stale) is None)
            await tool.create(wanted, b"")
            await cluster.until(lambda: cluster.data(znodes.topic_path("t")) is None)
            await cluster.create("later", assignments={0: [0, 1]})
            await cluster.wait_until_quiet()
            assert cluster.data(znodes.topic_path("later")) is not None

    run(scenario)


def test_a_new_controller_drops_deletions_of_unknown_topics() -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            stale = znodes.delete_topic_path("nobody's")
            for broker in (0, 1):
                await cluster.crash(broker)
            await write(cluster, stale, b"")
            await cluster.start(0)
            await cluster.until(lambda: cluster.data(stale) is None)

    run(scenario)

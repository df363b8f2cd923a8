"""Frames of a controller that arrive after their topic was deleted, and created again; brokers without logs.

Nothing that was acknowledged to acks=all is lost, and the partition goes on. The frames carry the present
controller epoch and broker epochs, as TCP's retransmission on an abandoned connection would deliver them.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from ottla.metadata import znodes
from ottla.metadata.store import Create, SetData
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import FetchRequest, LeaderAndIsrRequest, StopReplicaRequest
from ottla.simulation.cluster import Cluster
from ottla.simulation.disk import ProcessFiles
from ottla.simulation.loop import Process
from tests.worlds.simulated_brokers import (
    broker_epoch,
    call,
    controller,
    create,
    folders,
    in_sync,
    produce,
    read,
    replica,
    restart,
    run,
    state_of,
    until,
)

VALUES = [f"value-{n}" for n in range(20)]
DURING_DELETE = -2


def controller_epoch(cluster: Cluster) -> int:
    node = cluster.ensemble.tree.find(znodes.CONTROLLER_EPOCH)
    assert node is not None
    return znodes.decode_controller_epoch(node.data)


def leader_and_isr(cluster: Cluster, topic: str, leader_epoch: int = 0) -> dict[int, LeaderAndIsrRequest]:
    """What the controller sends each broker of the topic as it is now; its partition is new."""
    node = cluster.topics()[topic]
    assert node.topic_id is not None
    replicas = list(node.partitions[0])
    state = LeaderAndIsrRequest.LeaderAndIsrPartitionState(
        controller_epoch=controller_epoch(cluster),
        leader=replicas[0],
        leader_epoch=leader_epoch,
        isr=replicas,
        replicas=replicas,
        is_new=leader_epoch == 0,
    )
    of_topic = LeaderAndIsrRequest.LeaderAndIsrTopicState(
        topic_name=topic, topic_id=node.topic_id, partition_states=[state]
    )
    return {
        broker: LeaderAndIsrRequest(
            controller_id=controller(cluster),
            controller_epoch=controller_epoch(cluster),
            broker_epoch=broker_epoch(cluster, broker),
            topic_states=[of_topic],
        )
        for broker in cluster.machines
    }


async def delete(cluster: Cluster, topic: str) -> None:
    """Returns when ZooKeeper has no node of it."""
    await cluster.admin(lambda admin: admin.delete_topic(topic))
    tree = cluster.ensemble.tree
    paths = znodes.delete_topic_path(topic), znodes.topic_path(topic)
    await until(lambda: not any(map(tree.find, paths)), f"{topic} to be forgotten")


@pytest.mark.parametrize("leader_epoch", [0, 9])
def test_a_leader_and_isr_of_the_former_topic_is_refused(leader_epoch: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "former")
        late = leader_and_isr(cluster, "former", leader_epoch)
        await delete(cluster, "former")
        for broker, request in late.items():
            answer = await call(cluster, broker, request)
            error = answer.topics[0].partition_errors[0].error_code
            assert error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert folders(cluster, "former") == set(), "the replica came back"

        await create(cluster, "former")
        for broker, request in late.items():
            answer = await call(cluster, broker, request)
            assert answer.topics[0].partition_errors[0].error_code == ErrorCode.INCONSISTENT_TOPIC_ID
        await produce(cluster, "former", VALUES)
        assert await read(cluster, "former") == [VALUES]

    run(scenario)


def test_a_stop_replica_of_the_former_topic_is_fenced() -> None:
    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "stopped")
        await delete(cluster, "stopped")
        await create(cluster, "stopped")
        await produce(cluster, "stopped", VALUES)
        leader = state_of(cluster, "stopped").leader

        row = StopReplicaRequest.StopReplicaPartitionState(
            partition_index=0, leader_epoch=DURING_DELETE, delete_partition=True
        )
        late = StopReplicaRequest(
            controller_id=controller(cluster),
            controller_epoch=controller_epoch(cluster),
            broker_epoch=broker_epoch(cluster, leader),
            topic_states=[
                StopReplicaRequest.StopReplicaTopicState(topic_name="stopped", partition_states=[row])
            ],
        )
        answer = await call(cluster, leader, late)
        assert answer.partition_errors[0].error_code == ErrorCode.FENCED_LEADER_EPOCH

        await cluster.stop_broker(next(broker for broker in cluster.machines if broker != leader))
        await restart(cluster)
        await produce(cluster, "stopped", ["last"])
        assert await read(cluster, "stopped") == [[*VALUES, "last"]]

    run(scenario)


def test_a_fetch_of_a_followers_former_registration_is_refused() -> None:
    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "fetched")
        await produce(cluster, "fetched", VALUES)
        leader = state_of(cluster, "fetched").leader
        follower = next(broker for broker in cluster.machines if broker != leader)
        topic_id = cluster.topics()["fetched"].topic_id
        assert isinstance(topic_id, UUID)

        async def fetch(epoch: int) -> ErrorCode:
            asked = FetchRequest.FetchPartition(
                partition=0, fetch_offset=len(VALUES), log_start_offset=0, partition_max_bytes=1
            )
            named = FetchRequest.FetchTopic(topic_id=topic_id, partitions=[asked])
            state = FetchRequest.ReplicaState(replica_id=follower, replica_epoch=epoch)
            request = FetchRequest(replica_state=state, session_epoch=-1, topics=[named])
            answer = await call(cluster, leader, request)
            return ErrorCode(answer.responses[0].partitions[0].error_code)

        assert await fetch(broker_epoch(cluster, follower) - 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await fetch(broker_epoch(cluster, follower)) == ErrorCode.NONE

    run(scenario)


def lose_log(cluster: Cluster, broker: int, topic: str) -> None:
    """Remove a log from the disk of a broker that does not run."""
    machine = cluster.machines[broker]
    files = ProcessFiles(machine.disk, Process(cluster.loop, "vandal"))
    files.rmtree(machine.log_dir / f"{topic}-0")


def test_a_leader_that_comes_back_without_its_log_gets_it_from_the_others() -> None:
    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "lost")
        await produce(cluster, "lost", VALUES)
        leader = state_of(cluster, "lost").leader
        cluster.kill(leader)
        lose_log(cluster, leader, "lost")
        await restart(cluster)
        await produce(cluster, "lost", ["last"])
        assert await read(cluster, "lost") == [[*VALUES, "last"]]
        others = set(cluster.machines) - {leader}
        for broker in others:
            cluster.kill(broker)
        await until(lambda: state_of(cluster, "lost").leader == leader, "it to lead again")
        partition = replica(cluster, leader, "lost")
        assert partition is not None
        assert partition.log.log_end_offset == len(VALUES) + 1
        await restart(cluster)
        assert await read(cluster, "lost") == [[*VALUES, "last"]]

    run(scenario)


def test_a_member_of_the_isr_without_its_log_neither_leads_nor_stays_in_it() -> None:
    """The controller believes that it has everything; the others say that it has not."""

    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "emptied")
        await produce(cluster, "emptied", VALUES)
        replicas = cluster.topics()["emptied"].partitions[0]
        for broker in cluster.machines:
            await cluster.stop_broker(broker)
        first = replicas[0]
        lose_log(cluster, first, "emptied")
        tree, state = cluster.ensemble.tree, state_of(cluster, "emptied")
        session = cluster.ensemble.open_session(60)
        everyone = znodes.PartitionState(first, state.leader_epoch + 1, replicas, state.controller_epoch, 0)
        states = SetData(znodes.state_path("emptied", 0), znodes.encode_partition_state(everyone))
        # Whoever is elected finds all three alive, and so no reason to change what is written.
        absent = Create(znodes.CONTROLLER, znodes.encode_controller(99, 0), ephemeral=True)
        tree.apply([states, absent], session.id)
        for broker in cluster.machines:
            cluster.start_broker(broker)
        paths = [znodes.broker_path(broker) for broker in cluster.machines]
        await until(lambda: all(map(tree.find, paths)), "all to register")
        cluster.ensemble.expire(session)
        await until(lambda: first not in in_sync(cluster, "emptied"), "it to leave the ISR")
        assert state_of(cluster, "emptied").leader != first
        await restart(cluster)
        await produce(cluster, "emptied", ["last"])
        assert await read(cluster, "emptied") == [[*VALUES, "last"]]

    run(scenario)

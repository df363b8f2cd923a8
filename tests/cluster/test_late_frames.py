"""Frames of a controller that arrive after their topic was deleted, and created again; brokers without logs.

Nothing that was acknowledged to acks=all is lost, and the partition goes on. The frames carry the present
controller epoch and broker epochs, as TCP's retransmission on an abandoned connection would deliver them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from uuid import UUID

import pytest
from faults import bring_back, cluster_for_faults, partition_of, wait_until_forgotten, znodes_of
from oracles import needs_kafka_jars
from stubborn import send_to
from verify import read_topic

from ottla.local.cluster import LocalCluster
from ottla.metadata import znodes
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import FetchRequest, LeaderAndIsrRequest, ProduceRequest, StopReplicaRequest
from ottla.protocol.records import Record, build_batch

pytestmark = pytest.mark.timeout(420)
VALUES = [f"value-{n}" for n in range(1000)]
DURING_DELETE = -2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    needs_kafka_jars()
    with cluster_for_faults(tmp_path_factory.mktemp("late")) as running:
        yield running


@pytest.fixture(autouse=True)
def all_brokers_back(cluster: LocalCluster) -> Iterator[None]:
    yield
    bring_back(cluster)


def epochs(cluster: LocalCluster) -> tuple[int, dict[int, int]]:
    """The controller epoch, and the broker epochs."""
    with znodes_of(cluster.zookeeper.connect) as tree:
        controller_epoch = znodes.decode_controller_epoch(tree.get(znodes.CONTROLLER_EPOCH)[0])
        return controller_epoch, {b: tree.get(znodes.broker_path(b))[1].czxid for b in cluster.brokers}


def leader_and_isr(
    cluster: LocalCluster, topic: str, leader_epoch: int = 0
) -> dict[int, LeaderAndIsrRequest]:
    """What the controller sends each broker of the topic as it is now; its partition is new."""
    with znodes_of(cluster.zookeeper.connect) as tree:
        node = znodes.decode_topic(topic, tree.get(znodes.topic_path(topic))[0])
    assert node.topic_id is not None
    replicas = list(node.partitions[0])
    controller_epoch, broker_epochs = epochs(cluster)
    state = LeaderAndIsrRequest.LeaderAndIsrPartitionState(
        controller_epoch=controller_epoch,
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
            controller_id=cluster.controller(),
            controller_epoch=controller_epoch,
            broker_epoch=broker_epoch,
            topic_states=[of_topic],
        )
        for broker, broker_epoch in broker_epochs.items()
    }


def stop_replica(cluster: LocalCluster, topic: str, broker: int) -> StopReplicaRequest:
    """What the controller sends a broker when it deletes the topic."""
    controller_epoch, broker_epochs = epochs(cluster)
    row = StopReplicaRequest.StopReplicaPartitionState(
        partition_index=0, leader_epoch=DURING_DELETE, delete_partition=True
    )
    return StopReplicaRequest(
        controller_id=cluster.controller(),
        controller_epoch=controller_epoch,
        broker_epoch=broker_epochs[broker],
        topic_states=[StopReplicaRequest.StopReplicaTopicState(topic_name=topic, partition_states=[row])],
    )


def described_id(cluster: LocalCluster, topic: str) -> UUID:
    with znodes_of(cluster.zookeeper.connect) as tree:
        topic_id = znodes.decode_topic(topic, tree.get(znodes.topic_path(topic))[0]).topic_id
    assert topic_id is not None
    return topic_id


def create(cluster: LocalCluster, topic: str) -> None:
    cluster.create_topic(topic, partitions=1, replicas=3, min_insync_replicas="2")


def delete(cluster: LocalCluster, topic: str) -> None:
    cluster.admin(lambda client: client.delete_topics([topic]))
    wait_until_forgotten(cluster, topic)


def produce(cluster: LocalCluster, topic: str, values: list[str]) -> None:
    """With acks=all, until it is acknowledged; no longer than a request may take."""
    batch = build_batch([Record(n, 1_700_000_000_000, None, v.encode(), []) for n, v in enumerate(values)])
    part = ProduceRequest.PartitionProduceData(index=0, records=batch)
    rows = [ProduceRequest.TopicProduceData(name=topic, partition_data=[part])]

    def acknowledged() -> bool:
        leader = cluster.brokers[partition_of(cluster, topic).leader]
        answer = send_to(leader, ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=rows))
        return answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE

    cluster.wait_until(acknowledged, "acks=all to succeed", timeout_s=30)


def check_all_there(cluster: LocalCluster, topic: str, values: list[str]) -> None:
    expected = {(0, offset) for offset in range(len(values))}
    stored = read_topic(cluster.bootstrap, topic, 1, expected=expected)
    assert [stored[place] for place in sorted(stored)] == values


@pytest.mark.parametrize("leader_epoch", [0, 9])
def test_a_leader_and_isr_of_the_former_topic(cluster: LocalCluster, leader_epoch: int) -> None:
    topic = f"former-{leader_epoch}"
    create(cluster, topic)
    late = leader_and_isr(cluster, topic, leader_epoch)
    delete(cluster, topic)

    for broker, request in late.items():
        answer = send_to(cluster.brokers[broker], request)
        assert answer.topics[0].partition_errors[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not [*cluster.brokers[broker].data_dir.glob(f"**/{topic}-0")], "the replica came back"

    create(cluster, topic)
    for broker, request in late.items():
        answer = send_to(cluster.brokers[broker], request)
        assert answer.topics[0].partition_errors[0].error_code == ErrorCode.INCONSISTENT_TOPIC_ID
    produce(cluster, topic, VALUES)
    check_all_there(cluster, topic, VALUES)


def test_a_stop_replica_of_the_former_topic(cluster: LocalCluster) -> None:
    topic = "stopped"
    create(cluster, topic)
    delete(cluster, topic)
    create(cluster, topic)
    produce(cluster, topic, VALUES)
    described = partition_of(cluster, topic)

    late = stop_replica(cluster, topic, described.leader)
    answer = send_to(cluster.brokers[described.leader], late)
    assert answer.partition_errors[0].error_code == ErrorCode.FENCED_LEADER_EPOCH

    other = cluster.brokers[next(r for r in described.replicas if r != described.leader)]
    assert other.stop(), "an orderly stop"
    other.start_and_wait()
    bring_back(cluster)
    produce(cluster, topic, ["last"])
    check_all_there(cluster, topic, [*VALUES, "last"])


def test_a_fetch_of_a_followers_former_registration(cluster: LocalCluster) -> None:
    topic = "fetched"
    create(cluster, topic)
    produce(cluster, topic, VALUES)
    described = partition_of(cluster, topic)
    follower = next(r for r in described.replicas if r != described.leader)
    _, broker_epochs = epochs(cluster)

    def fetch(broker_epoch: int) -> ErrorCode:
        asked = FetchRequest.FetchPartition(
            partition=0, fetch_offset=len(VALUES), log_start_offset=0, partition_max_bytes=1
        )
        named = FetchRequest.FetchTopic(topic_id=described_id(cluster, topic), partitions=[asked])
        state = FetchRequest.ReplicaState(replica_id=follower, replica_epoch=broker_epoch)
        request = FetchRequest(replica_state=state, session_epoch=-1, topics=[named])
        answer = send_to(cluster.brokers[described.leader], request)
        return ErrorCode(answer.responses[0].partitions[0].error_code)

    assert fetch(broker_epochs[follower] - 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert fetch(broker_epochs[follower]) == ErrorCode.NONE


def test_a_leader_comes_back_without_its_log(cluster: LocalCluster) -> None:
    topic = "lost"
    create(cluster, topic)
    produce(cluster, topic, VALUES)
    leader = cluster.brokers[partition_of(cluster, topic).leader]
    leader.kill()
    for directory in leader.data_dir.glob(f"**/{topic}-0"):
        shutil.rmtree(directory)
    leader.start_and_wait()
    bring_back(cluster)
    produce(cluster, topic, ["last"])
    check_all_there(cluster, topic, [*VALUES, "last"])
    wanted = {(0, offset) for offset in range(len(VALUES) + 1)}
    for broker in cluster.brokers.values():
        if broker is not leader:
            broker.kill()
    cluster.wait_until(lambda: partition_of(cluster, topic).leader == leader.broker_id, "it to lead again")
    assert read_topic(cluster.bootstrap, topic, 1, expected=wanted).keys() == wanted


def test_a_member_of_the_isr_without_its_log_neither_leads_nor_stays_in_it(cluster: LocalCluster) -> None:
    """The controller believes that it has everything; the others say that it has not."""
    topic = "emptied"
    create(cluster, topic)
    produce(cluster, topic, VALUES)
    described = partition_of(cluster, topic)
    for broker in cluster.brokers.values():
        assert broker.stop() or not broker.running
    first = cluster.brokers[described.replicas[0]]
    for directory in first.data_dir.glob(f"**/{topic}-0"):
        shutil.rmtree(directory)
    with znodes_of(cluster.zookeeper.connect) as tree:
        path = znodes.state_path(topic, 0)
        state = znodes.decode_partition_state(topic, 0, tree.get(path)[0])
        everyone = znodes.PartitionState(
            first.broker_id, state.leader_epoch + 1, described.replicas, state.controller_epoch, 0
        )
        tree.set(path, znodes.encode_partition_state(everyone))
        # Whoever is elected finds all three alive, and so no reason to change what is written.
        tree.create(znodes.CONTROLLER, znodes.encode_controller(99, 0), ephemeral=True)
        for broker in cluster.brokers.values():
            broker.start()
        cluster.wait_until(lambda: len(tree.get_children(znodes.BROKER_IDS)) == 3, "all to register")
        tree.delete(znodes.CONTROLLER)
    bring_back(cluster)
    assert partition_of(cluster, topic).leader != first.broker_id
    produce(cluster, topic, ["last"])
    check_all_there(cluster, topic, [*VALUES, "last"])

"""Topics are deleted and reassigned while brokers die: the operation completes, and no replica comes back."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer
from faults import (
    bring_back,
    close_session_of,
    cluster_for_faults,
    partition_of,
    wait_until_forgotten,
)
from oracles import needs_kafka_jars
from stubborn import send_to
from verify import VerifiableProducer, check_all_kept, read_topic

from ottla.client.admin_types import Reassignment, TopicPartition
from ottla.client.errors import InvalidReplicaAssignmentError
from ottla.local.brokers import BrokerProcess
from ottla.local.cluster import LocalCluster
from ottla.protocol.errors import ErrorCode
from ottla.protocol.errors import KafkaError as RequestError
from ottla.protocol.messages import DeleteTopicsRequest, DeleteTopicsResponse

pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    needs_kafka_jars()
    # None ends while a broker is stopped: `kill` ends it. So long, too, does a killed one wait for others to
    # lead what it led of a topic that is to be deleted, which nobody will.
    sessions = {"zookeeper_session_timeout_ms": "10000"}
    with cluster_for_faults(tmp_path_factory.mktemp("topics"), **sessions) as running:
        yield running


def kill(cluster: LocalCluster, broker: int) -> None:
    """And its session, which ZooKeeper would end later."""
    cluster.brokers[broker].kill()
    close_session_of(cluster, cluster.brokers[broker])


@pytest.fixture(autouse=True)
def all_brokers_back(cluster: LocalCluster) -> Iterator[None]:
    yield
    bring_back(cluster)


def controller_and_others(cluster: LocalCluster) -> tuple[int, int, int]:
    controller = cluster.controller()
    one, two = (broker for broker in cluster.brokers if broker != controller)
    return controller, one, two


def produce(cluster: LocalCluster, topic: str, values: list[str]) -> None:
    errors: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error) if error else None)
    assert producer.flush(60) == 0
    assert errors == []


def folders(cluster: LocalCluster, topic: str) -> set[tuple[int, str]]:
    """(broker, folder) of a topic's logs; those renamed to `-delete` are out of use, and go in time."""
    return {
        (broker.broker_id, path.name)
        for broker in cluster.brokers.values()
        for path in broker.data_dir.glob(f"{topic}-*")
        if not path.name.endswith("-delete")
    }


@pytest.mark.parametrize("controller_dies_too", [False, True])
def test_a_topic_deleted_during_downtime_of_a_broker_is_deleted_after_its_restart(
    cluster: LocalCluster, controller_dies_too: bool
) -> None:
    topic = f"doomed-{controller_dies_too}"
    controller, away, _ = controller_and_others(cluster)
    cluster.create_topic(topic, partitions=3, replicas=3)
    produce(cluster, topic, ["old"] * 30)
    old = cluster.topic(topic)
    assert old is not None
    kill(cluster, away)
    cluster.wait_until(lambda: len(cluster.describe().brokers) == 2, "its session to end")

    delete = DeleteTopicsRequest(
        topics=[DeleteTopicsRequest.DeleteTopicState(name=topic)],
        timeout_ms=500,
    )

    def deleted() -> bool:
        """By whoever is the controller: the other one, if the machine has kept it from its ZooKeeper."""
        nonlocal controller
        controller = cluster.controller()
        answer: DeleteTopicsResponse = send_to(cluster.brokers[controller], delete)
        code = answer.responses[0].error_code
        assert code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER), "it goes on, as in Kafka"
        return bool(code == ErrorCode.REQUEST_TIMED_OUT)

    cluster.wait_until(deleted, "the deletion to begin")

    def refused() -> bool:
        with pytest.raises(RequestError) as error:
            cluster.admin(lambda client: client.create_topic(topic, partitions=1, replication_factor=1))
        if error.value.code.retriable:
            raise error.value  # the controller has just changed, say
        return error.value.code == ErrorCode.TOPIC_ALREADY_EXISTS

    cluster.wait_until(refused, "its name to be taken as long")
    if controller_dies_too:
        kill(cluster, controller)
        cluster.wait_until(
            lambda: cluster.describe().controller_id not in (controller, -1), "another controller"
        )
        cluster.brokers[controller].start()
    cluster.brokers[away].start()
    cluster.wait_until(lambda: cluster.gone(topic), "the topic to be gone")
    cluster.wait_until(lambda: not folders(cluster, topic), "its files to be gone")
    wait_until_forgotten(cluster, topic)

    cluster.create_topic(topic, partitions=3, replicas=3)
    new = cluster.topic(topic)
    assert new is not None
    assert new.topic_id != old.topic_id
    assert read_topic(cluster.bootstrap, topic, 3) == {}
    produce(cluster, topic, ["new"] * 5)
    stored: dict[tuple[int, int], str] = {}

    def all_read() -> bool:
        stored.update(read_topic(cluster.bootstrap, topic, 3))
        return len(stored) >= 5

    cluster.wait_until(all_read, "five records to be there")
    assert list(stored.values()) == ["new"] * 5
    cluster.brokers[away].kill()
    cluster.brokers[away].start()
    bring_back(cluster)
    assert read_topic(cluster.bootstrap, topic, 3, expected=stored) == stored


class Move:
    """A partition with replicas on the controller and one other broker, on its way to the third.

    The third is stopped when the move begins, so that it cannot end before the test has done its mischief.
    """

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self.cluster, self.topic = cluster, topic
        self.place = TopicPartition(topic, 0)
        self.controller, self.other, self.target = controller_and_others(cluster)
        self.after = (self.target, self.other)
        cluster.create_topic(topic, assignment={0: (self.controller, self.other)})

    @property
    def target_broker(self) -> BrokerProcess:
        return self.cluster.brokers[self.target]

    @contextlib.contextmanager
    def begun(self) -> Iterator[None]:
        broker = self.target_broker
        broker.signal(signal.SIGSTOP)
        try:
            while not self.alter(self.after):  # on a slow machine, the target's session ends before
                broker.signal(signal.SIGCONT)
                bring_back(self.cluster)
                broker.signal(signal.SIGSTOP)
            under_way = Reassignment(
                replicas=(*self.after, self.controller), adding=(self.target,), removing=(self.controller,)
            )
            assert self.under_way() == under_way
            yield
        finally:
            broker.signal(signal.SIGCONT)

    def alter(self, replicas: tuple[int, ...] | None) -> bool:
        """Whether it was taken: nothing moves to a broker that is dead."""
        refused: list[Exception] = []

        def answered() -> bool:
            found = self.cluster.admin(
                lambda client: client.alter_partition_reassignments({self.place: replicas})
            )
            for error in found.errors.values():
                if isinstance(error, TimeoutError):
                    raise error
            refused[:] = found.errors.values()
            return True

        self.cluster.wait_until(answered, "the controller to answer")
        assert all(isinstance(e, InvalidReplicaAssignmentError) for e in refused), refused
        return not refused

    def under_way(self) -> Reassignment | None:
        moves: dict[TopicPartition, Reassignment] = {}

        def listed() -> bool:
            moves.update(self.cluster.admin(lambda client: client.list_partition_reassignments()))
            return True

        self.cluster.wait_until(listed, "the controller to answer")
        return moves.get(self.place)

    def replicas(self) -> tuple[int, ...]:
        return partition_of(self.cluster, self.topic).replicas

    def wait_for_end(self, replicas: tuple[int, ...], *, left_behind: tuple[int, ...] = ()) -> None:
        self.cluster.wait_until(
            lambda: self.under_way() is None and self.replicas() == replicas, f"replicas {replicas}"
        )
        bring_back(self.cluster)
        wanted = {(broker, f"{self.topic}-0") for broker in (*replicas, *left_behind)}
        self.cluster.wait_until(
            lambda: folders(self.cluster, self.topic) == wanted, f"the logs to be {wanted} and no more"
        )


def test_a_reassignment_continues_after_its_target_restarts(cluster: LocalCluster, tmp_path: Path) -> None:
    move = Move(cluster, "to-a-dead-target")
    with VerifiableProducer(cluster.bootstrap, move.topic, tmp_path) as producer:
        producer.wait_for(300)
        with move.begun():
            kill(cluster, move.target)
        cluster.wait_until(lambda: len(cluster.describe().brokers) == 2, "the target's session to end")
        assert move.under_way() is not None
        producer.wait_for_more(200)
        move.target_broker.start()
        move.wait_for_end(move.after)
        producer.wait_for_more(200)
    check_all_kept(producer, 1)


def test_a_cancelled_reassignment_leaves_no_replica_behind(cluster: LocalCluster, tmp_path: Path) -> None:
    move = Move(cluster, "cancelled")
    with VerifiableProducer(cluster.bootstrap, move.topic, tmp_path) as producer:
        producer.wait_for(300)
        before = (move.other, move.controller)  # the order that Kafka, too, leaves them in
        with move.begun():
            assert move.alter(None)
            cluster.wait_until(lambda: move.under_way() is None, "the move to be cancelled")
            cluster.wait_until(lambda: move.replicas() == before, "all to know it")
        move.wait_for_end(before)
        producer.wait_for_more(200)
    check_all_kept(producer, 1)


def test_a_reassignment_survives_its_controller(cluster: LocalCluster, tmp_path: Path) -> None:
    move = Move(cluster, "without-its-controller")
    with VerifiableProducer(cluster.bootstrap, move.topic, tmp_path) as producer:
        producer.wait_for(300)
        with move.begun():
            kill(cluster, move.controller)
        cluster.wait_until(
            lambda: cluster.describe().controller_id not in (move.controller, -1), "another controller"
        )
        cluster.wait_until(lambda: move.replicas() == move.after, "the move to end")
        producer.wait_for_more(200)
        cluster.brokers[move.controller].start()
        # It was told to delete its copy while it was away, and nobody tells it again: as in Kafka.
        move.wait_for_end(move.after, left_behind=(move.controller,))
    check_all_kept(producer, 1)

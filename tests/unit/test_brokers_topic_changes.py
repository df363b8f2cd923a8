"""Topics are deleted and reassigned while brokers die: the operation completes, and no replica comes back."""

from __future__ import annotations

import pytest

from ottla.client.admin import AdminClient, TopicPartition
from ottla.client.admin_types import Reassignment
from ottla.client.errors import TopicAlreadyExistsError
from ottla.metadata import znodes
from ottla.metadata.store import Create, SetData
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import DeleteTopicsRequest
from ottla.simulation.cluster import Cluster
from tests.worlds.simulated_brokers import (
    Load,
    broker_epoch,
    call,
    controller,
    create,
    folders,
    produce,
    read,
    replica,
    restart,
    run,
    until,
)

SETTINGS = {"zookeeper.session.timeout.ms": "10000"}
"""No session ends while a broker is paused for a short time."""


def controller_and_others(cluster: Cluster) -> tuple[int, int, int]:
    elected = controller(cluster)
    one, two = (broker for broker in cluster.machines if broker != elected)
    return elected, one, two


async def kill(cluster: Cluster, broker: int) -> None:
    """Returns when its session has ended."""
    cluster.kill(broker)
    await until(lambda: broker_epoch(cluster, broker) < 0, "its session to end")


@pytest.mark.parametrize("controller_dies_too", [False, True])
def test_a_topic_deleted_during_downtime_of_a_broker_is_deleted_after_its_restart(
    controller_dies_too: bool,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        partitions = {n: (n, (n + 1) % 3, (n + 2) % 3) for n in range(3)}
        elected, away, _ = controller_and_others(cluster)
        await create(cluster, "doomed", partitions)
        await produce(cluster, "doomed", ["old"] * 30, partitions=3)
        former = cluster.topics()["doomed"].topic_id
        await kill(cluster, away)

        doomed = [DeleteTopicsRequest.DeleteTopicState(name="doomed")]
        answer = await call(cluster, elected, DeleteTopicsRequest(topics=doomed, timeout_ms=500))
        assert answer.responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT, "it goes on, as in Kafka"
        with pytest.raises(TopicAlreadyExistsError):
            await cluster.admin(lambda admin: admin.create_topic("doomed", partitions=1))

        if controller_dies_too:
            await kill(cluster, elected)
            await until(lambda: controller(cluster) not in (elected, -1), "another controller")
            cluster.start_broker(elected)
        cluster.start_broker(away)
        await until(lambda: folders(cluster, "doomed") == set(), "its files to be gone")
        await until(lambda: "doomed" not in cluster.topics(), "the topic to be gone")

        await create(cluster, "doomed", partitions)
        assert cluster.topics()["doomed"].topic_id != former
        assert await read(cluster, "doomed", 3) == [[], [], []]
        await produce(cluster, "doomed", ["new"] * 6, partitions=3)
        cluster.kill(away)
        await restart(cluster)
        assert await read(cluster, "doomed", 3) == [["new", "new"]] * 3

    run(scenario, settings=SETTINGS, files_are_checked=True)


class Move:
    """A partition with replicas on the controller and one other broker, on its way to the third, which is
    paused while the move begins, so that it cannot end."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.place = TopicPartition("moved", 0)
        self.controller, self.other, self.target = controller_and_others(cluster)
        self.after = (self.target, self.other)

    async def begin(self) -> Load:
        await create(self.cluster, "moved", {0: (self.controller, self.other)})
        load = Load(self.cluster, "moved")
        await load.more()
        self.cluster.pause(self.target)
        await self.alter(self.after)
        assert await self.under_way() == Reassignment(
            replicas=(*self.after, self.controller), adding=(self.target,), removing=(self.controller,)
        )
        return load

    async def alter(self, replicas: tuple[int, ...] | None) -> None:
        async def request(admin: AdminClient) -> None:
            (await admin.alter_partition_reassignments({self.place: replicas})).raise_first()

        await self.cluster.admin(request)

    async def under_way(self) -> Reassignment | None:
        moves = await self.cluster.admin(lambda admin: admin.list_partition_reassignments())
        return moves.get(self.place)

    def has_ended(self, replicas: tuple[int, ...]) -> bool:
        assignment = self.cluster.topics()["moved"]
        return not assignment.adding and not assignment.removing and assignment.partitions[0] == replicas

    async def wait_for_end(self, replicas: tuple[int, ...], *, left_behind: tuple[int, ...] = ()) -> None:
        await until(lambda: self.has_ended(replicas), f"replicas {replicas}")
        await restart(self.cluster)
        wanted = {(broker, "moved-0") for broker in (*replicas, *left_behind)}
        await until(lambda: folders(self.cluster, "moved") == wanted, f"the logs to be {wanted} and no more")


def test_a_reassignment_continues_after_its_target_restarts() -> None:
    async def scenario(cluster: Cluster) -> None:
        move = Move(cluster)
        load = await move.begin()
        await kill(cluster, move.target)
        assert await move.under_way() is not None
        await load.more()
        cluster.start_broker(move.target)
        await move.wait_for_end(move.after)
        await load.more()
        await load.check()

    run(scenario, settings=SETTINGS, files_are_checked=True)


def test_a_cancelled_reassignment_leaves_no_replica_behind() -> None:
    async def scenario(cluster: Cluster) -> None:
        move = Move(cluster)
        load = await move.begin()
        before = (move.other, move.controller)  # the order that Kafka, too, leaves them in
        await move.alter(None)
        await until(lambda: move.has_ended(before), "the move to be cancelled")
        cluster.resume(move.target)
        await move.wait_for_end(before)
        await load.more()
        await load.check()

    run(scenario, settings=SETTINGS, files_are_checked=True)


def test_a_reassignment_survives_its_controller() -> None:
    async def scenario(cluster: Cluster) -> None:
        move = Move(cluster)
        load = await move.begin()
        cluster.kill(move.controller)
        cluster.resume(move.target)
        await until(lambda: controller(cluster) not in (move.controller, -1), "another controller")
        await until(lambda: move.has_ended(move.after), "the move to end")
        await load.more()
        cluster.start_broker(move.controller)
        # The request to delete its replica was sent while it was down, and is not sent again: as in Kafka.
        await move.wait_for_end(move.after, left_behind=(move.controller,))
        await load.check()

    run(scenario, settings=SETTINGS)


def test_a_partition_that_is_added_in_zookeeper_leads_within_a_second() -> None:
    """As topicctl and older kafka-topics write the node."""

    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "written", {0: [0]})
        topic_id = cluster.topics()["written"].topic_id
        for number in (1, 2, 3):
            node = cluster.topics()["written"]
            grown = znodes.TopicAssignment({**node.partitions, number: (0,)}, topic_id=topic_id)
            data = znodes.encode_topic(grown)
            cluster.ensemble.tree.apply([SetData(znodes.topic_path("written"), data)], 0)
            await until(lambda n=number: is_led(cluster, "written", n), "a leader", timeout_s=1.0)  # type: ignore[misc]
        assert cluster.topics()["written"].topic_id == topic_id

    run(scenario)


def is_led(cluster: Cluster, topic: str, partition: int) -> bool:
    leader = replica(cluster, 0, topic, partition)
    return leader is not None and leader.is_leader


def test_a_deletion_of_a_missing_topic_is_ignored() -> None:
    async def scenario(cluster: Cluster) -> None:
        path = znodes.delete_topic_path("nobodys")
        cluster.ensemble.tree.apply([Create(path)], 0)
        await until(lambda: cluster.ensemble.tree.find(path) is None, "the node to be gone")

    run(scenario)

"""Failed log directories: brokers notify the controller, which finds the replicas that are offline."""

from __future__ import annotations

from ottla.metadata import znodes
from ottla.metadata.znodes import NO_LEADER
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import DeleteTopicsRequest
from tests.worlds.controller_harness import Cluster, Node, run

WORDS_OF_KAFKA = b'{"version":1,"broker":1,"event":1}'


async def write_event(node: Node, data: bytes) -> None:
    await node.store.create(znodes.LOG_DIR_EVENT_PREFIX, data, sequential=True)


async def no_events(cluster: Cluster) -> None:
    def gone() -> bool:
        node = cluster.tree.find(znodes.LOG_DIR_EVENTS)
        return node is not None and not node.children

    await cluster.until(gone, "the events are taken in")


def test_a_failed_directory_moves_the_leadership_of_its_partitions() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            pair = await cluster.create("t", assignments={0: [1, 2], 1: [1, 2], 2: [2, 1]})
            alone = await cluster.create("alone", assignments={0: [1]})
            cluster.nodes[1].fake.failed_disk = {
                (pair.topic_id, 0),
                (pair.topic_id, 2),
                (alone.topic_id, 0),
            }
            await write_event(cluster.nodes[1], WORDS_OF_KAFKA)
            await cluster.until(lambda: cluster.leader("t", 0) == 2, "in sync, on a disk that works")
            await cluster.until(lambda: cluster.leader("alone") == NO_LEADER, "nobody else has it")
            await cluster.until(lambda: getattr(cluster.state("t", 2), "isr", None) == (2,))
            assert cluster.leader("t", 1) == 1, "it is in another directory"
            await no_events(cluster)
            other = cluster.nodes[0].fake.cache

            def offline() -> list[tuple[int, ...]]:
                known = [other.partition("t", n) for n in range(3)]
                return [p.offline_replicas for p in known if p is not None]

            await cluster.until(lambda: offline() == [(1,), (), (1,)], "all brokers know")

            # Its next start mends it.
            await cluster.crash(1)
            await cluster.start(1)
            await cluster.until(lambda: cluster.leader("alone") == 1)

    run(scenario)


def test_a_replica_that_serves_again_is_online_again() -> None:
    """A broker that lost a replica's log creates it again once the replica is out of the ISR."""

    async def scenario() -> None:
        async with Cluster(3) as cluster:
            created = await cluster.create("t", assignments={0: [1, 2]})
            cluster.nodes[1].fake.failed_disk = {(created.topic_id, 0)}
            await write_event(cluster.nodes[1], WORDS_OF_KAFKA)
            await cluster.until(lambda: cluster.leader("t") == 2, "the other leads")
            other = cluster.nodes[0].fake.cache

            def offline() -> tuple[int, ...] | None:
                known = other.partition("t", 0)
                return None if known is None else known.offline_replicas

            await cluster.until(lambda: offline() == (1,), "all brokers know")
            cluster.nodes[1].fake.failed_disk = set()
            await write_event(cluster.nodes[1], WORDS_OF_KAFKA)
            await cluster.until(lambda: offline() == (), "all brokers know")
            last = cluster.nodes[1].fake.partition_states("t")[-1]
            assert (last.leader, last.isr) == (2, [2])
            await cluster.crash(2)
            await cluster.until(lambda: cluster.leader("t") == NO_LEADER, "it is not in sync yet")

    run(scenario)


def test_an_invalid_event_has_no_effect() -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            await cluster.create("t", assignments={0: [0, 1]})
            before = cluster.state("t")
            for data in (b"", b"[]", b'{"version":1}', b'{"version":1,"broker":7,"event":1}'):
                await write_event(cluster.nodes[0], data)
            await no_events(cluster)
            assert cluster.state("t") == before
            assert cluster.controller.is_active

    run(scenario)


def test_events_that_the_former_controller_did_not_process_are_processed_by_the_next() -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            created = await cluster.create("t", assignments={0: [1, 0]})
            cluster.nodes[1].fake.failed_disk = {(created.topic_id, 0)}
            cluster.nodes[0].controller._eligible = False
            await cluster.nodes[0].controller.stop()
            await write_event(cluster.nodes[1], WORDS_OF_KAFKA)
            await cluster.until(lambda: cluster.leader("t") == 0)
            await no_events(cluster)

    run(scenario)


def test_a_topic_on_a_failed_disk_is_deleted_after_its_broker_has_restarted() -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            await cluster.create("t", assignments={0: [1, 0]})
            cluster.nodes[1].fake.stop_error = ErrorCode.KAFKA_STORAGE_ERROR
            request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=100)
            await cluster.controller.delete_topics(request, 1)
            await cluster.until(lambda: cluster.nodes[1].fake.stops())
            assert cluster.data(znodes.topic_path("t")) is not None
            await cluster.crash(1)
            await cluster.start(1)
            await cluster.until(lambda: cluster.data(znodes.topic_path("t")) is None)

    run(scenario)

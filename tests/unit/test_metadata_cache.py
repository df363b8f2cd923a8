"""The metadata cache after updates by the controller."""

from __future__ import annotations

from uuid import UUID

from ottla.metadata.cache import LEADER_DURING_DELETE, BrokerEndpoint, MetadataCache
from ottla.protocol.messages import UpdateMetadataRequest

ID_1, ID_2 = UUID(int=1001), UUID(int=1002)


def brokers(*ids: int) -> list[UpdateMetadataRequest.UpdateMetadataBroker]:
    return [
        UpdateMetadataRequest.UpdateMetadataBroker(
            id=i,
            rack=f"rack{i}",
            endpoints=[
                UpdateMetadataRequest.UpdateMetadataEndpoint(
                    host=f"in{i}", port=9092, listener="PLAINTEXT", security_protocol=0
                ),
                UpdateMetadataRequest.UpdateMetadataEndpoint(
                    host=f"out{i}", port=9094, listener="EXTERNAL", security_protocol=1
                ),
            ],
        )
        for i in ids
    ]


def update(
    topic: str = "t", topic_id: UUID = ID_1, leaders: dict[int, int] | None = None, epoch: int = 0
) -> UpdateMetadataRequest:
    return UpdateMetadataRequest(
        controller_id=1,
        live_brokers=brokers(1, 2),
        topic_states=[
            UpdateMetadataRequest.UpdateMetadataTopicState(
                topic_name=topic,
                topic_id=topic_id,
                partition_states=[
                    UpdateMetadataRequest.UpdateMetadataPartitionState(
                        partition_index=p,
                        leader=leader,
                        leader_epoch=epoch,
                        isr=[1, 2],
                        replicas=[1, 2, 3],
                        offline_replicas=[3],
                        zk_version=5,
                        controller_epoch=2,
                    )
                    for p, leader in (leaders or {0: 1}).items()
                ],
            )
        ],
    )


def test_an_update_sets_brokers_partitions_and_the_controller() -> None:
    cache = MetadataCache()
    assert cache.controller_id is None
    assert cache.update(update(leaders={0: 1, 1: 2})) == []
    assert cache.controller_id == 1
    assert cache.brokers() == [
        BrokerEndpoint(1, "in1", 9092, "rack1"),
        BrokerEndpoint(2, "in2", 9092, "rack2"),
    ]
    assert cache.broker(2, "EXTERNAL") == BrokerEndpoint(2, "out2", 9094, "rack2", "EXTERNAL", "SSL")
    assert cache.broker(3) is None
    assert cache.topics() == ["t"]
    partitions = cache.partitions("t")
    assert partitions is not None
    assert [(p.leader, p.isr, p.offline_replicas, p.partition_epoch) for p in partitions.values()] == [
        (1, (1, 2), (3,), 5),
        (2, (1, 2), (3,), 5),
    ]
    assert (cache.topic_id("t"), cache.topic_name(ID_1)) == (ID_1, "t")


def test_updates_are_increments_but_for_the_brokers() -> None:
    cache = MetadataCache()
    cache.update(update("a", ID_1))
    cache.update(update("b", ID_2))
    cache.update(UpdateMetadataRequest(controller_id=2, live_brokers=brokers(2)))
    assert cache.topics() == ["a", "b"]
    assert [broker.id for broker in cache.brokers()] == [2]
    assert not cache.is_alive(1)


def test_a_deleted_topic_is_removed_and_reported() -> None:
    cache = MetadataCache()
    cache.update(update(leaders={0: 1, 1: 2}))
    gone = LEADER_DURING_DELETE
    assert cache.update(update(leaders={0: gone, 1: gone})) == [("t", 0), ("t", 1)]
    assert cache.partitions("t") is None
    assert cache.topic_id("t") is None
    assert cache.topic_name(ID_1) is None
    assert cache.update(update(leaders={0: gone})) == [], "what was not there is not reported"


def test_a_topic_created_again_under_the_old_name_starts_empty() -> None:
    cache = MetadataCache()
    cache.update(update(leaders={0: 1, 1: 1, 2: 1}))
    cache.update(update(topic_id=ID_2, leaders={0: 2}))
    partitions = cache.partitions("t")
    assert partitions is not None
    assert list(partitions) == [0]
    assert (cache.topic_id("t"), cache.topic_name(ID_1)) == (ID_2, None)


def test_listeners_are_called_after_each_update() -> None:
    cache = MetadataCache()
    received: list[int | None] = []
    cache.on_update.append(lambda: received.append(cache.controller_id))
    cache.update(update())
    assert received == [1], "after it has taken effect"

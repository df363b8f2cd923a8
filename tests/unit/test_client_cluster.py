"""A client's metadata of its cluster, and its next metadata request."""

from __future__ import annotations

import math
from uuid import UUID

from ottla.client.core.cluster import GROUP, Cluster
from ottla.client.core.types import Leader, Node, TopicPartition
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
from ottla.protocol.types import ZERO_UUID

OLD_ID, NEW_ID = UUID(int=1), UUID(int=2)
TP = TopicPartition("orders", 0)


def a_cluster(**settings: object) -> Cluster:
    return Cluster(uniform=lambda low, high: 1.0, **settings)  # type: ignore[arg-type]


def topic(
    name: str, *leaders: tuple[int, int], error: ErrorCode = ErrorCode.NONE, topic_id: UUID = OLD_ID
) -> m.MetadataResponse.MetadataResponseTopic:
    partition = m.MetadataResponse.MetadataResponsePartition
    return m.MetadataResponse.MetadataResponseTopic(
        error_code=error,
        name=name,
        topic_id=topic_id,
        partitions=[
            partition(partition_index=i, leader_id=node, leader_epoch=epoch, replica_nodes=[1, 2])
            for i, (node, epoch) in enumerate(leaders)
        ],
    )


def answer(*topics: m.MetadataResponse.MetadataResponseTopic) -> m.MetadataResponse:
    broker = m.MetadataResponse.MetadataResponseBroker
    brokers = [broker(node_id=i, host="here", port=9000 + i) for i in (1, 2)]
    return m.MetadataResponse(brokers=brokers, topics=list(topics))


def reported(cluster: Cluster, now: float, *topics: m.MetadataResponse.MetadataResponseTopic) -> None:
    assert cluster.request(now) is not None
    cluster.take(answer(*topics), now)


def asked(request: m.MetadataRequest | None) -> list[str | None]:
    assert request is not None
    return [entry.name for entry in request.topics or []]


def test_metadata_is_requested_at_once_and_when_it_is_old() -> None:
    cluster = a_cluster()
    cluster.want(["orders"])
    assert asked(cluster.request(0.0)) == ["orders"]
    assert cluster.request(0.0) is None, "one request is on its way at most"
    assert cluster.next_time(0.0) == math.inf
    cluster.take(answer(topic("orders", (1, 0), (2, 0))), 0.0)
    assert cluster.partitions("orders") == 2
    assert cluster.leader(TP) == Leader(1, 0)
    assert cluster.next_time(0.0) == 300.0
    assert cluster.request(299.9) is None
    assert asked(cluster.request(300.0)) == ["orders"]


def test_a_new_topic_is_requested_alone_and_at_once() -> None:
    cluster = a_cluster()
    cluster.add("orders", 0.0)
    reported(cluster, 0.0, topic("orders", (1, 0)))
    cluster.add("clicks", 0.01)
    assert asked(cluster.request(0.01)) == ["clicks"]
    cluster.take(answer(topic("clicks", (2, 0))), 0.02)
    assert cluster.leader(TP) == Leader(1, 0), "what was not asked for stays"


def test_failed_requests_back_off_exponentially() -> None:
    cluster = a_cluster()
    pauses = []
    now = 0.0
    for _ in range(6):
        assert cluster.request(now) is not None
        cluster.failed(now)
        pauses.append(round(cluster.next_time(now) - now, 3))
        now = cluster.next_time(now)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_an_unknown_topic_is_requested_with_backoff() -> None:
    cluster = a_cluster()
    cluster.add("orders", 0.0)
    pauses = []
    now = 0.0
    for _ in range(5):
        reported(cluster, now, topic("orders", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        pauses.append(round(cluster.next_time(now) - now, 3))
        now = cluster.next_time(now)
    assert pauses == [0.1, 0.1, 0.2, 0.4, 0.8]
    assert cluster.error("orders") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    reported(cluster, now, topic("orders", (1, 0)))
    assert (cluster.partitions("orders"), cluster.error("orders")) == (1, ErrorCode.NONE)


def test_an_unauthorized_topic_is_not_requested_again_soon() -> None:
    cluster = a_cluster()
    cluster.add("orders", 0.0)
    reported(cluster, 0.0, topic("orders", error=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    assert cluster.next_time(0.0) == 300.0


def test_leader_epochs_never_go_back() -> None:
    cluster = a_cluster()
    cluster.want(["orders"])
    reported(cluster, 0.0, topic("orders", (1, 5)))
    cluster.invalidate(TP)
    reported(cluster, 1.0, topic("orders", (2, 4)))
    assert cluster.leader(TP) == Leader(1, 5)
    cluster.invalidate(TP)
    reported(cluster, 2.0, topic("orders", (2, 6)))
    assert cluster.leader(TP) == Leader(2, 6)


def test_epochs_restart_with_a_topic_that_was_deleted_and_created_again() -> None:
    cluster = a_cluster()
    cluster.want(["orders"])
    reported(cluster, 0.0, topic("orders", (1, 5)))
    cluster.invalidate("orders")
    reported(cluster, 1.0, topic("orders", (2, 0), topic_id=NEW_ID))
    assert cluster.leader(TP) == Leader(2, 0)
    assert (cluster.topic_name(OLD_ID), cluster.topic_name(NEW_ID)) == (None, "orders")


def test_brokers_without_topic_ids_are_understood() -> None:
    cluster = a_cluster()
    cluster.want(["orders"])
    reported(cluster, 0.0, topic("orders", (1, -1), topic_id=ZERO_UUID))
    assert cluster.topic_id("orders") is None
    assert cluster.leader(TP) == Leader(1, -1)


def test_a_partition_without_leader_causes_another_request() -> None:
    cluster = a_cluster()
    cluster.want(["orders"])
    reported(cluster, 0.0, topic("orders", (-1, 3)))
    assert cluster.leader(TP) is None
    assert cluster.next_time(0.0) == 0.1


def test_a_newer_leader_in_a_response_is_taken() -> None:
    cluster = a_cluster()
    cluster.want(["orders"])
    reported(cluster, 0.0, topic("orders", (1, 5)))
    assert not cluster.take_leader(TP, Leader(2, 5))
    assert not cluster.take_leader(TP, Leader(3, 6)), "nobody has said where broker 3 is"
    assert cluster.take_leader(TP, Leader(3, 6), [Node(3, "here", 9003)])
    assert cluster.leader(TP) == Leader(3, 6)


def test_idle_topics_are_forgotten() -> None:
    cluster = a_cluster(metadata_max_idle_ms=60_000, metadata_max_age_ms=50_000)
    cluster.add("orders", 0.0)
    cluster.add("clicks", 0.0)
    reported(cluster, 0.0, topic("orders", (1, 0)), topic("clicks", (1, 0)))
    cluster.add("clicks", 40.0)
    assert asked(cluster.request(61.0)) == ["clicks"]
    cluster.take(answer(topic("clicks", (1, 0))), 61.0)
    assert cluster.partitions("orders") is None


def test_metadata_without_brokers_is_ignored() -> None:
    cluster = a_cluster()
    cluster.want([])
    assert cluster.request(0.0) is not None
    cluster.take(m.MetadataResponse(), 0.0)
    assert cluster.next_time(0.0) == 0.1


def test_metadata_of_all_topics_can_be_requested() -> None:
    cluster = a_cluster()
    cluster.want(None)
    request = cluster.request(0.0)
    assert request is not None
    assert request.topics is None
    cluster.take(answer(topic("orders", (1, 0)), topic("clicks", (1, 0))), 0.0)
    assert set(cluster.topics) == {"orders", "clicks"}


def test_coordinators_are_remembered_until_they_move() -> None:
    cluster = a_cluster()
    cluster.take_coordinator(GROUP, "readers", Node(2, "here", 9002))
    assert cluster.coordinator(GROUP, "readers") == 2
    cluster.forget_coordinator(GROUP, "readers")
    assert cluster.coordinator(GROUP, "readers") is None

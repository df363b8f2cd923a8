"""Requests and scenarios of authorization for test_acls_like_kafka: ACLs of a client, and its requests in
order.

The client is a `raw_client.RawClient`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from ottla.protocol import messages as m
from ottla.protocol.types import Message
from ottla.security.acls import (
    CLUSTER_NAME,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from tests.judges.raw_client import ABSENT, BATCH, SECRET, allow

OTHER: Final = "other"
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTION = ResourceType.TRANSACTIONAL_ID
Op = Operation


class Broker(NamedTuple):
    port: int
    topic_ids: dict[str, UUID]
    connect: str
    """Its ZooKeeper."""
    log: Path


NOWHERE: Final = Broker(0, {}, "", Path())


# --- requests ------------------------------------------------------------------------------------------

Ask = tuple[int, Callable[[Broker], Message]]
"""The version, and the request to that broker."""


def ask(version: int, request: Message) -> Ask:
    return version, lambda broker: request


def metadata(version: int, *names: str, create: bool = False, operations: bool = False) -> Ask:
    row = m.MetadataRequest.MetadataRequestTopic
    request = m.MetadataRequest(
        topics=[row(name=name) for name in names] or (None if version else []),
        allow_auto_topic_creation=create or version < 4,
        include_topic_authorized_operations=operations,
        include_cluster_authorized_operations=operations and version < 11,
    )
    return ask(version, request)


def metadata_by_id(*names: str, beside: str | None = None) -> Ask:
    """`beside` is the name in the rows that have an id."""
    row = m.MetadataRequest.MetadataRequestTopic

    def request(broker: Broker) -> Message:
        ids = [broker.topic_ids.get(name, UUID(int=77)) for name in names]
        return m.MetadataRequest(topics=[row(name=beside, topic_id=each) for each in ids])

    return 12, request


def offsets_to_commit(group: str, *topics: str) -> m.OffsetCommitRequest:
    part = m.OffsetCommitRequest.OffsetCommitRequestPartition
    topic = m.OffsetCommitRequest.OffsetCommitRequestTopic
    return m.OffsetCommitRequest(
        group_id=group,
        topics=[
            topic(name=t, partitions=[part(partition_index=0, committed_offset=5, committed_metadata="")])
            for t in topics
        ],
    )


def offsets_to_fetch(version: int, *topics: str, groups: Sequence[str] = ("g",)) -> Ask:
    """An OffsetFetch request; without topics, for all of them."""
    if version < 8:
        row = m.OffsetFetchRequest.OffsetFetchRequestTopic
        asked = [row(name=t, partition_indexes=[0]) for t in topics] or None
        return ask(version, m.OffsetFetchRequest(group_id=groups[0], topics=asked))
    rows = m.OffsetFetchRequest.OffsetFetchRequestTopics
    group = m.OffsetFetchRequest.OffsetFetchRequestGroup
    return ask(
        version,
        m.OffsetFetchRequest(
            groups=[
                group(group_id=g, topics=[rows(name=t, partition_indexes=[0]) for t in topics] or None)
                for g in groups
            ]
        ),
    )


def fetch(version: int, *topics: str, replica: int = -1) -> Ask:
    part = m.FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)

    def request(broker: Broker) -> Message:
        return m.FetchRequest(
            replica_id=replica if version < 15 else -1,
            replica_state=m.FetchRequest.ReplicaState(replica_id=replica if version >= 15 else -1),
            max_wait_ms=50,
            min_bytes=1,
            topics=[
                m.FetchRequest.FetchTopic(
                    topic=t if version < 13 else "",
                    topic_id=broker.topic_ids.get(t, UUID(int=77)),
                    partitions=[part],
                )
                for t in topics
            ],
        )

    return version, request


def produce(*topics: str) -> Ask:
    data = m.ProduceRequest.PartitionProduceData(index=0, records=BATCH)
    row = m.ProduceRequest.TopicProduceData
    return ask(
        9,
        m.ProduceRequest(
            acks=1, timeout_ms=30_000, topic_data=[row(name=t, partition_data=[data]) for t in topics]
        ),
    )


def list_offsets(version: int, *topics: str) -> Ask:
    part = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-2)
    row = m.ListOffsetsRequest.ListOffsetsTopic
    return ask(
        version,
        m.ListOffsetsRequest(replica_id=-1, topics=[row(name=t, partitions=[part]) for t in topics]),
    )


def create_topics(version: int, *names: str) -> Ask:
    row = m.CreateTopicsRequest.CreatableTopic
    return ask(
        version,
        m.CreateTopicsRequest(
            topics=[row(name=name, num_partitions=1, replication_factor=1) for name in names],
            validate_only=version > 0,
        ),
    )


def delete_by_id(*names: str) -> Ask:
    row = m.DeleteTopicsRequest.DeleteTopicState

    def request(broker: Broker) -> Message:
        ids = [broker.topic_ids.get(name, UUID(int=77)) for name in names]
        return m.DeleteTopicsRequest(topics=[row(name=None, topic_id=each) for each in ids], timeout_ms=1000)

    return 6, request


def delete_records(*topics: str) -> Ask:
    part = m.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=0)
    row = m.DeleteRecordsRequest.DeleteRecordsTopic
    return ask(
        2, m.DeleteRecordsRequest(topics=[row(name=t, partitions=[part]) for t in topics], timeout_ms=30_000)
    )


def describe_configs(*resources: tuple[int, str]) -> Ask:
    row = m.DescribeConfigsRequest.DescribeConfigsResource
    keys = ["retention.ms", "log.retention.ms"]
    return ask(
        1,
        m.DescribeConfigsRequest(
            resources=[row(resource_type=k, resource_name=n, configuration_keys=keys) for k, n in resources]
        ),
    )


def alter_configs(*resources: tuple[int, str]) -> Ask:
    row = m.IncrementalAlterConfigsRequest.AlterConfigsResource
    change = m.IncrementalAlterConfigsRequest.AlterableConfig
    names = {2: "retention.ms", 4: "log.retention.ms"}
    return ask(
        1,
        m.IncrementalAlterConfigsRequest(
            validate_only=True,
            resources=[
                row(resource_type=k, resource_name=n, configs=[change(name=names[k], value="1000000")])
                for k, n in resources
            ],
        ),
    )


def leader_epochs(*topics: str) -> Ask:
    part = m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    row = m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    return ask(3, m.OffsetForLeaderEpochRequest(topics=[row(topic=t, partitions=[part]) for t in topics]))


def describe_producers(*topics: str) -> Ask:
    row = m.DescribeProducersRequest.TopicRequest
    return ask(0, m.DescribeProducersRequest(topics=[row(name=t, partition_indexes=[0]) for t in topics]))


def add_partitions(*topics: str) -> Ask:
    row = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return ask(
        3,
        m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="tx",
            v3_and_below_producer_id=1,
            v3_and_below_topics=[row(name=t, partitions=[0]) for t in topics],
        ),
    )


OPERATIONS = metadata(9, SECRET, ABSENT, operations=True)
CLUSTER_OPERATIONS = ask(0, m.DescribeClusterRequest(include_cluster_authorized_operations=True))
SCENARIOS: dict[str, tuple[list[AclBinding], list[Ask]]] = {
    "describing a topic": (
        allow(TOPIC, SECRET, Op.DESCRIBE),
        [
            metadata(0),
            metadata(0, SECRET, OTHER),
            metadata(0, ABSENT),
            metadata(1),
            metadata(12),
            metadata(12, SECRET, OTHER, ABSENT),
            metadata_by_id(SECRET, OTHER, ABSENT),
            metadata_by_id(SECRET, OTHER, ABSENT, beside=""),
            metadata_by_id(SECRET, beside=OTHER),
            OPERATIONS,
            list_offsets(0, SECRET, OTHER),
            list_offsets(5, SECRET, OTHER, ABSENT),
            leader_epochs(SECRET, OTHER, ABSENT),
            fetch(4, SECRET),
            produce(SECRET),
            delete_by_id(SECRET, OTHER, ABSENT),
            ask(5, m.DeleteTopicsRequest(topic_names=[SECRET, OTHER, ABSENT], timeout_ms=1000)),
            describe_configs((2, SECRET), (2, OTHER), (4, "0")),
            describe_producers(SECRET, OTHER, "not/legal"),
        ],
    ),
    "reading a topic": (
        allow(TOPIC, SECRET, Op.READ),
        [
            fetch(4, SECRET, OTHER, ABSENT),
            fetch(11, OTHER, ABSENT, SECRET),
            fetch(17, SECRET, OTHER, ABSENT),
            fetch(12, SECRET, replica=5),
            fetch(17, SECRET, ABSENT, replica=5),
            metadata(9, operations=True),
            describe_producers(ABSENT, OTHER, SECRET),
            delete_records(SECRET, OTHER),
        ],
    ),
    "reading it as long as nobody denies it": (
        [
            *allow(TOPIC, SECRET, Op.ALL),
            *allow(TOPIC, "sec", Op.READ, pattern=PatternType.PREFIXED, permission=Permission.DENY),
        ],
        [fetch(4, SECRET), OPERATIONS, metadata(12), list_offsets(5, SECRET)],
    ),
    "writing to topics by a prefix": (
        allow(TOPIC, "s", Op.WRITE, pattern=PatternType.PREFIXED),
        [
            produce(SECRET, OTHER, ABSENT),
            ask(4, m.InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=1000)),
            OPERATIONS,
        ],
    ),
    "describing the cluster": (
        allow(CLUSTER, CLUSTER_NAME, Op.DESCRIBE),
        [
            CLUSTER_OPERATIONS,
            metadata(8, SECRET, operations=True),
            ask(4, m.ListGroupsRequest()),
            ask(0, m.ListPartitionReassignmentsRequest(topics=None)),
        ],
    ),
    "everything with the cluster but creating": (
        [
            *allow(CLUSTER, CLUSTER_NAME, Op.ALL),
            *allow(CLUSTER, CLUSTER_NAME, Op.CREATE, permission=Permission.DENY),
        ],
        [
            CLUSTER_OPERATIONS,
            create_topics(4, ABSENT),
            leader_epochs(SECRET, ABSENT),
            describe_configs((2, SECRET), (4, "0")),
            alter_configs((2, SECRET), (4, "0")),
            fetch(12, SECRET, replica=5),
        ],
    ),
    "creating topics": (
        [
            *allow(TOPIC, "new-", Op.CREATE, pattern=PatternType.PREFIXED),
            *allow(TOPIC, "new-2", Op.DESCRIBE_CONFIGS),
        ],
        [
            create_topics(4, "new-1", ABSENT),
            create_topics(7, "new-1", ABSENT, "new-2", SECRET),
            create_topics(7, "new-1", "new-1", ABSENT, ABSENT),
            metadata(12, "new-3", ABSENT, SECRET, create=True),
        ],
    ),
    "having topics created": (
        [*allow(TOPIC, "*", Op.DESCRIBE), *allow(TOPIC, "made", Op.CREATE)],
        [
            metadata(12, ABSENT, SECRET, create=True),
            metadata(12, ABSENT, SECRET),
            metadata(3, ABSENT, SECRET),
        ],
    ),
    "a group": (
        [*allow(GROUP, "g", Op.READ), *allow(TOPIC, SECRET, Op.READ)],
        [
            ask(8, offsets_to_commit("g", SECRET, OTHER, ABSENT)),
            ask(8, offsets_to_commit("h", SECRET)),
            offsets_to_fetch(1, SECRET, OTHER),
            offsets_to_fetch(5, SECRET, OTHER),
            offsets_to_fetch(5),
            offsets_to_fetch(8, SECRET, OTHER, groups=("g", "h")),
            offsets_to_fetch(8, groups=("h", "g")),
            ask(5, m.DescribeGroupsRequest(groups=["g", "h"], include_authorized_operations=True)),
            ask(4, m.ListGroupsRequest()),
            ask(3, m.FindCoordinatorRequest(key="h", key_type=0)),
            ask(4, m.FindCoordinatorRequest(coordinator_keys=["g", "h"], key_type=0)),
            ask(2, m.DeleteGroupsRequest(groups_names=["g", "h"])),
            ask(4, m.HeartbeatRequest(group_id="g", generation_id=1, member_id="x")),
        ],
    ),
    "deleting a group's offsets": (
        [*allow(GROUP, "g", Op.DELETE), *allow(TOPIC, ABSENT, Op.READ)],
        [
            ask(
                0,
                m.OffsetDeleteRequest(
                    group_id="g",
                    topics=[
                        m.OffsetDeleteRequest.OffsetDeleteRequestTopic(
                            name=name,
                            partitions=[
                                m.OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
                            ],
                        )
                        for name in (SECRET, ABSENT)
                    ],
                ),
            )
        ],
    ),
    "altering a topic": (
        [*allow(TOPIC, SECRET, Op.ALTER_CONFIGS), *allow(TOPIC, ABSENT, Op.ALTER)],
        [
            alter_configs((2, SECRET), (2, OTHER), (4, "0")),
            describe_configs((2, SECRET), (2, OTHER), (2, ABSENT)),
            ask(
                2,
                m.CreatePartitionsRequest(
                    topics=[
                        m.CreatePartitionsRequest.CreatePartitionsTopic(name=n, count=3, assignments=None)
                        for n in (SECRET, ABSENT, OTHER, OTHER)
                    ],
                    timeout_ms=1000,
                    validate_only=True,
                ),
            ),
        ],
    ),
    "a transactional id": (
        [*allow(TRANSACTION, "tx", Op.WRITE), *allow(TOPIC, SECRET, Op.WRITE)],
        [
            add_partitions(SECRET, OTHER, ABSENT),
            add_partitions(SECRET, ABSENT),
            ask(3, m.FindCoordinatorRequest(key="ty", key_type=1)),
        ],
    ),
}

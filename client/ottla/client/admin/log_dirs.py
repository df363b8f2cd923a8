"""The log directories of brokers, and the replicas in them (KIP-113, KIP-827)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any

from ottla.client import errors
from ottla.client.admin.fan_out import BROKER
from ottla.client.admin.network import AdminNetwork, by_topic, outcome, raise_error
from ottla.client.admin_types import (
    LogDirDescription,
    Node,
    ReplicaInfo,
    ReplicaLogDirs,
    Results,
    TopicPartition,
    TopicPartitionReplica,
)
from ottla.client.errors import ClientError
from ottla.protocol import messages as m


async def describe_log_dirs(
    network: AdminNetwork, brokers: Iterable[int] | None = None
) -> Results[int, tuple[LogDirDescription, ...]]:
    """The log directories of these brokers with their replicas; None: of all live brokers."""

    async def ask(node: Node) -> tuple[LogDirDescription, ...]:
        return await _log_dirs(network, node, None)

    return await network.at_brokers(brokers, ask)


async def describe_replica_log_dirs(
    network: AdminNetwork, replicas: Iterable[tuple[str, int, int]]
) -> Results[TopicPartitionReplica, ReplicaLogDirs]:
    """The current and the future log directory of replicas."""

    async def ask(
        node: Node, share: list[TopicPartitionReplica]
    ) -> dict[TopicPartitionReplica, ReplicaLogDirs | ClientError]:
        found = await _log_dirs(network, node, by_topic(TopicPartition(r.topic, r.partition) for r in share))
        return {replica: _replica_log_dirs(found, replica) for replica in share}

    wanted = [TopicPartitionReplica(*each) for each in replicas]
    return await network.by_node(wanted, partial(_find_brokers, network), ask, BROKER)


async def alter_replica_log_dirs(
    network: AdminNetwork, targets: Mapping[TopicPartitionReplica, str] | Mapping[tuple[str, int, int], str]
) -> Results[TopicPartitionReplica, None]:
    """Move replicas between log directories of their brokers. For a replica that does not exist yet the
    result is REPLICA_NOT_AVAILABLE, and it will be created in the given directory, as in Kafka."""
    request = m.AlterReplicaLogDirsRequest
    wanted = {TopicPartitionReplica(*each): path for each, path in targets.items()}

    async def ask(
        node: Node, share: list[TopicPartitionReplica]
    ) -> dict[TopicPartitionReplica, ClientError | None]:
        paths: defaultdict[str, list[TopicPartition]] = defaultdict(list)
        for replica in share:
            paths[wanted[replica]].append(TopicPartition(replica.topic, replica.partition))
        row = request.AlterReplicaLogDirTopic
        dirs = [
            request.AlterReplicaLogDir(
                path=path, topics=[row(name=t, partitions=p) for t, p in by_topic(moved).items()]
            )
            for path, moved in paths.items()
        ]
        response = await network.send_to(node, request(dirs=dirs))
        return {
            replica: outcome(p.error_code, None, replica)
            for t in response.results
            for p in t.partitions
            for replica in [TopicPartitionReplica(t.topic_name, p.partition_index, node.id)]
        }

    return await network.by_node(wanted, partial(_find_brokers, network), ask, BROKER)


async def _find_brokers(
    network: AdminNetwork, keys: Collection[TopicPartitionReplica]
) -> Mapping[TopicPartitionReplica, Node | ClientError]:
    nodes = await network.nodes({key.broker for key in keys})
    return {key: nodes[key.broker] for key in keys}


async def _log_dirs(
    network: AdminNetwork, node: Node, topics: Mapping[str, list[int]] | None
) -> tuple[LogDirDescription, ...]:
    row = m.DescribeLogDirsRequest.DescribableLogDirTopic
    wanted = None if topics is None else [row(topic=t, partitions=p) for t, p in topics.items()]
    response = await network.send_to(node, m.DescribeLogDirsRequest(topics=wanted))
    raise_error(response.error_code)
    return tuple(_log_dir(each) for each in response.results)


def _log_dir(directory: Any) -> LogDirDescription:
    return LogDirDescription(
        directory.log_dir,
        outcome(directory.error_code, None, directory.log_dir),
        directory.total_bytes,
        directory.usable_bytes,
        {
            TopicPartition(topic.name, p.partition_index): ReplicaInfo(
                p.partition_size, p.offset_lag, p.is_future_key
            )
            for topic in directory.topics
            for p in topic.partitions
        },
    )


def _replica_log_dirs(
    found: Iterable[LogDirDescription], replica: TopicPartitionReplica
) -> ReplicaLogDirs | ClientError:
    current: tuple[str | None, int] = None, -1
    future: tuple[str | None, int] = None, -1
    for directory in found:
        if directory.error is not None and not isinstance(directory.error, errors.KafkaStorageError):
            return directory.error
        info = directory.replicas.get(TopicPartition(replica.topic, replica.partition))
        if info is not None and info.is_future:
            future = directory.path, info.offset_lag
        elif info is not None:
            current = directory.path, info.offset_lag
    return ReplicaLogDirs(*current, *future)

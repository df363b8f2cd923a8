"""Creation of topics and partitions: validation, replica placement, and the nodes to write.

Called by `topic_requests` for CreateTopics and CreatePartitions. `validate_topic` and `validate_partitions`
change nothing; `create_topic` and `add_partitions` change the state.

Invariant: a topic is in the state only after its own node is written. Its partitions' states follow, in as
few multis as their sizes allow; `leadership.elect_if_needed` completes missing ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from ottla.controller import leadership
from ottla.controller.context import ControllerContext, ReplicaAssignment, Topic
from ottla.controller.effects import Effects
from ottla.controller.placement import place_replicas
from ottla.metadata import znodes
from ottla.metadata.config import validate_topic_config
from ottla.metadata.store import Operation, SetData
from ottla.metadata.znodes import TopicPartition
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import CreatePartitionsRequest, CreateTopicsRequest
from ottla.protocol.topics import topic_name_problem

log = logging.getLogger(__name__)

# About 600 bytes a partition: well under ZooKeeper's limit of 1 MiB a request (jute.maxbuffer).
PARTITIONS_PER_MULTI_MAX = 500
NODE_BYTES_MAX = (1 << 20) - 1
"""The same limit for the topic's node, which has the replicas of all its partitions."""
_DEFAULT = -1

Random = Callable[[int], int]
"""A random number from 0 up to, not including, its argument."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A validated topic to create: replicas by partition, and configuration overrides."""

    name: str
    assignments: Mapping[int, tuple[int, ...]]
    configs: Mapping[str, str]

    @property
    def replication_factor(self) -> int:
        return len(next(iter(self.assignments.values())))

    def topic(self, topic_id: UUID) -> Topic:
        return Topic(self.name, topic_id, {p: ReplicaAssignment(r) for p, r in self.assignments.items()})


def check_name(name: str) -> None:
    """Raise KafkaError if this is not a legal topic name."""
    reason = topic_name_problem(name)
    if reason is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def validate_topic(
    context: ControllerContext,
    requested: CreateTopicsRequest.CreatableTopic,
    *,
    default_partitions: int,
    default_replication_factor: int,
    random: Random,
) -> NewTopic:
    """The topic to create for a request, with its replicas placed. Raises KafkaError with Kafka's error
    codes."""
    name = requested.name
    check_name(name)
    if context.is_deleting(name):
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' is marked for deletion.")
    if name in context.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    # Metric names have an underscore in place of a dot.
    in_metrics = name.replace(".", "_")
    colliding = [other for other in context.topics if other.replace(".", "_") == in_metrics]
    if colliding:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topics: {colliding[0]}"
        )
    configs = _validate_configs(requested)
    if requested.assignments:
        if requested.num_partitions != _DEFAULT or requested.replication_factor != _DEFAULT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Either assignments, or numbers of partitions and replicas can be given, not both.",
            )
        return NewTopic(name, _validate_manual_assignment(requested.assignments), configs)
    partitions = default_partitions if requested.num_partitions == _DEFAULT else requested.num_partitions
    replication_factor = (
        default_replication_factor
        if requested.replication_factor == _DEFAULT
        else requested.replication_factor
    )
    if partitions <= 0:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
    brokers = _usable_brokers(context)
    if replication_factor <= 0:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0.")
    if replication_factor > len(brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor: {replication_factor} larger than available brokers: {len(brokers)}.",
        )
    _check_size(partitions, replication_factor)
    placed = place_replicas(
        brokers, partitions, replication_factor, start=random(len(brokers)), shift=random(len(brokers))
    )
    return NewTopic(name, placed, configs)


def _check_size(partitions: int, replication_factor: int) -> None:
    """Raise KafkaError if the topic's node would exceed ZooKeeper's limit, before any replica is placed.

    Kafka places all of them, and fails when ZooKeeper rejects the node or when it runs out of memory.
    """
    each = len(f'"{partitions}":[],') + 2 * replication_factor
    if partitions * each > NODE_BYTES_MAX:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"{partitions} partitions of {replication_factor} replicas are more than a topic's node holds.",
        )


def _usable_brokers(context: ControllerContext) -> dict[int, str | None]:
    return {b: info.rack for b, info in context.brokers.items() if b not in context.shutting_down}


def _validate_configs(requested: CreateTopicsRequest.CreatableTopic) -> dict[str, str]:
    missing = [config.name for config in requested.configs if config.value is None]
    if missing:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(missing)}"
        )
    configs = {config.name: config.value or "" for config in requested.configs}
    for name, value in configs.items():
        problem = validate_topic_config(name, value)
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, problem)
    return configs


def _validate_manual_assignment(
    assignments: Sequence[CreateTopicsRequest.CreatableReplicaAssignment],
) -> dict[int, tuple[int, ...]]:
    placed: dict[int, tuple[int, ...]] = {}
    for assignment in assignments:
        if assignment.partition_index in placed:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Partition {assignment.partition_index} is assigned twice.",
            )
        placed[assignment.partition_index] = tuple(assignment.broker_ids)
    if sorted(placed) != list(range(len(placed))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Partitions must be numbered from 0, without a gap."
        )
    _validate_replica_lists(list(placed.values()))
    return dict(sorted(placed.items()))


def _validate_replica_lists(
    replica_lists: Sequence[Sequence[int]], replication_factor: int | None = None
) -> None:
    for replicas in replica_lists:
        problem = None
        if not replicas:
            problem = "A partition needs at least one replica."
        elif len(set(replicas)) != len(replicas):
            problem = f"Replicas {list(replicas)} name a broker twice."
        elif any(broker < 0 for broker in replicas):
            problem = f"Replicas {list(replicas)} have a negative broker id."
        elif len(replicas) != (replication_factor or len(replica_lists[0])):
            problem = "All partitions need the same number of replicas."
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)


def create_topic(context: ControllerContext, effects: Effects, topic: Topic) -> None:
    """Add a topic whose node is written: write its partitions' nodes, and send their states to the brokers.

    Partitions without an online replica get no leader yet.
    """
    context.add_topic(topic)
    log.info("New topics: [%s], partitions: %d", topic.name, len(topic.assignments))
    _write_partitions(context, effects, list(topic.partitions()), [])


def _write_partitions(
    context: ControllerContext,
    effects: Effects,
    partitions: Sequence[TopicPartition],
    operations: list[Operation],
) -> None:
    """Write `operations` and the partitions' nodes, in as few multis as their sizes allow."""
    for position, tp in enumerate(partitions):
        if position and position % PARTITIONS_PER_MULTI_MAX == 0:
            effects.write(*operations)
            operations = []
        first = leadership.first_leadership(context, tp)
        operations += leadership.create_operations(context, tp, first=first)
        if first is not None:
            assignment = context.assignment(tp)
            assert assignment is not None
            context.leaders[tp] = first
            leadership.send_state(context, effects, tp, new_on=assignment.replicas)
    effects.write(*operations)


def validate_partitions(
    context: ControllerContext, requested: CreatePartitionsRequest.CreatePartitionsTopic
) -> dict[int, tuple[int, ...]]:
    """The replicas of the partitions to add, by partition. Raises KafkaError."""
    topic = context.topics.get(requested.name)
    if topic is None or context.is_deleting(requested.name):
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{requested.name}' does not exist."
        )
    if any(assignment.is_being_reassigned for assignment in topic.assignments.values()):
        raise KafkaError(
            ErrorCode.REASSIGNMENT_IN_PROGRESS,
            f"A partition reassignment is in progress for the topic '{requested.name}'.",
        )
    existing = len(topic.assignments)
    if requested.count < existing:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic currently has {existing} partitions, "
            f"which is higher than the requested {requested.count}.",
        )
    if requested.count == existing:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {existing} partitions.")
    added = requested.count - existing
    pattern = topic.assignments[min(topic.assignments)].replicas
    _check_size(requested.count, len(pattern))
    brokers = _usable_brokers(context)
    if requested.assignments is not None:
        lists = [tuple(assignment.broker_ids) for assignment in requested.assignments]
        if len(lists) != added:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Increasing the number of partitions by {added} but {len(lists)} assignments provided.",
            )
        _validate_replica_lists(lists, len(pattern))
        unknown = sorted({broker for replicas in lists for broker in replicas} - set(context.brokers))
        if unknown:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Unknown broker(s) in replica assignment: {unknown}."
            )
        return {existing + position: replicas for position, replicas in enumerate(lists)}
    if len(pattern) > len(brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor: {len(pattern)} larger than available brokers: {len(brokers)}.",
        )
    # Continue the round robin of the existing partitions: the first partition's leader is its start.
    ids = sorted(brokers)
    start = ids.index(pattern[0]) if pattern[0] in ids else 0
    return place_replicas(brokers, added, len(pattern), start=start, shift=start, first_partition=existing)


def add_partitions(
    context: ControllerContext, effects: Effects, name: str, placed: Mapping[int, tuple[int, ...]]
) -> None:
    """Write the topic's node and the new partitions' nodes, and send their states to the brokers."""
    topic = context.topics[name]
    topic.assignments.update({p: ReplicaAssignment(replicas) for p, replicas in placed.items()})
    operations: list[Operation] = [SetData(znodes.topic_path(name), znodes.encode_topic(topic.node()))]
    _write_partitions(context, effects, [TopicPartition(name, p) for p in sorted(placed)], operations)

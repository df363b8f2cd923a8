"""New topics and new partitions: what is asked for, judged; and the nodes that make it so.

Called by the shell's CreateTopics and CreatePartitions. `judge_*` only look; `create_topic` and
`add_partitions` change the state.

Invariant: a topic is in the state only once its own node is written, which others may do first. Its first
leaders follow, in as few multis as their sizes allow; `settle` completes what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from ottla.controller import leadership
from ottla.controller.effects import Effects
from ottla.controller.placement import place_replicas
from ottla.controller.state import Assignment, ClusterState, Topic
from ottla.metadata import znodes
from ottla.metadata.config import validate_topic_config
from ottla.metadata.store import Operation, SetData
from ottla.metadata.znodes import TopicPartition
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import CreatePartitionsRequest, CreateTopicsRequest
from ottla.protocol.topic_names import topic_name_problem

# About 600 bytes a partition: well under ZooKeeper's limit of 1 MiB a request (jute.maxbuffer).
PARTITIONS_PER_MULTI_MAX = 500
NODE_BYTES_MAX = (1 << 20) - 1
"""The same limit, for the one node that has all of a topic's partitions."""
_DEFAULT = -1

Random = Callable[[int], int]
"""A random number from 0 up to, not including, its argument."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    assignments: Mapping[int, tuple[int, ...]]
    configs: Mapping[str, str]

    @property
    def replication_factor(self) -> int:
        return len(next(iter(self.assignments.values())))

    def topic(self, topic_id: UUID) -> Topic:
        return Topic(self.name, topic_id, {p: Assignment(r) for p, r in self.assignments.items()})


def check_name(name: str) -> None:
    """Raise KafkaError if a topic cannot be called that."""
    reason = topic_name_problem(name)
    if reason is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def judge_topic(
    state: ClusterState,
    asked: CreateTopicsRequest.CreatableTopic,
    *,
    default_partitions: int,
    default_replication_factor: int,
    random: Random,
) -> NewTopic:
    """What creating the topic would make. Raises KafkaError with Kafka's code for each fault."""
    name = asked.name
    check_name(name)
    if state.is_deleting(name):
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' is marked for deletion.")
    if name in state.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    twin = name.replace(".", "_")
    colliding = [other for other in state.topics if other.replace(".", "_") == twin]
    if colliding:
        # Metrics know no difference between a dot and an underscore.
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topics: {colliding[0]}"
        )
    configs = _judge_configs(asked)
    if asked.assignments:
        if asked.num_partitions != _DEFAULT or asked.replication_factor != _DEFAULT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Either assignments, or numbers of partitions and replicas can be given, not both.",
            )
        return NewTopic(name, _judge_manual(asked.assignments), configs)
    partitions = default_partitions if asked.num_partitions == _DEFAULT else asked.num_partitions
    replication_factor = (
        default_replication_factor if asked.replication_factor == _DEFAULT else asked.replication_factor
    )
    if partitions <= 0:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
    brokers = _usable(state)
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
    """Whether the topic's node can hold so many partitions, before any of them is made.

    Kafka makes them all, and fails when ZooKeeper takes no such node, or for want of memory.
    """
    each = len(f'"{partitions}":[],') + 2 * replication_factor
    if partitions * each > NODE_BYTES_MAX:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"{partitions} partitions of {replication_factor} replicas are more than a topic's node holds.",
        )


def _usable(state: ClusterState) -> dict[int, str | None]:
    return {b: info.rack for b, info in state.brokers.items() if b not in state.shutting_down}


def _judge_configs(asked: CreateTopicsRequest.CreatableTopic) -> dict[str, str]:
    missing = [config.name for config in asked.configs if config.value is None]
    if missing:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(missing)}"
        )
    configs = {config.name: config.value or "" for config in asked.configs}
    for name, value in configs.items():
        problem = validate_topic_config(name, value)
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, problem)
    return configs


def _judge_manual(
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
    _judge_replica_lists(list(placed.values()))
    return dict(sorted(placed.items()))


def _judge_replica_lists(
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


def create_topic(state: ClusterState, effects: Effects, topic: Topic) -> None:
    """Write the nodes of the partitions of a topic that has its own, and tell the brokers.

    Partitions with no live replica get no leader yet.
    """
    state.add_topic(topic)
    _write_partitions(state, effects, list(topic.partitions()), [])


def _write_partitions(
    state: ClusterState, effects: Effects, partitions: Sequence[TopicPartition], operations: list[Operation]
) -> None:
    """Write `operations` and the partitions' nodes, in as many multis as their sizes demand."""
    for position, tp in enumerate(partitions):
        if position and position % PARTITIONS_PER_MULTI_MAX == 0:
            effects.write(*operations)
            operations = []
        first = leadership.first_leadership(state, tp)
        operations += leadership.create_operations(state, tp, first=first)
        if first is not None:
            assignment = state.assignment(tp)
            assert assignment is not None
            state.leaders[tp] = first
            leadership.tell(state, effects, tp, new_on=assignment.replicas)
    effects.write(*operations)


def judge_partitions(
    state: ClusterState, asked: CreatePartitionsRequest.CreatePartitionsTopic
) -> dict[int, tuple[int, ...]]:
    """The new partitions' replicas. Raises KafkaError."""
    topic = state.topics.get(asked.name)
    if topic is None or state.is_deleting(asked.name):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{asked.name}' does not exist.")
    if any(assignment.moving for assignment in topic.assignments.values()):
        raise KafkaError(
            ErrorCode.REASSIGNMENT_IN_PROGRESS,
            f"A partition reassignment is in progress for the topic '{asked.name}'.",
        )
    existing = len(topic.assignments)
    if asked.count < existing:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic currently has {existing} partitions, which is higher than the requested {asked.count}.",
        )
    if asked.count == existing:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {existing} partitions.")
    added = asked.count - existing
    pattern = topic.assignments[min(topic.assignments)].replicas
    _check_size(asked.count, len(pattern))
    brokers = _usable(state)
    if asked.assignments is not None:
        lists = [tuple(assignment.broker_ids) for assignment in asked.assignments]
        if len(lists) != added:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Increasing the number of partitions by {added} but {len(lists)} assignments provided.",
            )
        _judge_replica_lists(lists, len(pattern))
        unknown = sorted({broker for replicas in lists for broker in replicas} - set(state.brokers))
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
    # Go on where the first partition's leader says that the round began.
    ids = sorted(brokers)
    start = ids.index(pattern[0]) if pattern[0] in ids else 0
    return place_replicas(brokers, added, len(pattern), start=start, shift=start, first_partition=existing)


def add_partitions(
    state: ClusterState, effects: Effects, name: str, placed: Mapping[int, tuple[int, ...]]
) -> None:
    topic = state.topics[name]
    topic.assignments.update({p: Assignment(replicas) for p, replicas in placed.items()})
    operations: list[Operation] = [SetData(znodes.topic_path(name), znodes.encode_topic(topic.node()))]
    _write_partitions(state, effects, [TopicPartition(name, p) for p in sorted(placed)], operations)

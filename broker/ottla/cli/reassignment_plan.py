"""Reassignment plans in the JSON format of kafka-reassign-partitions.sh, and replication throttles.

Pure; called by `ottla reassign`. A plan has the replicas of partitions, the preferred leader first, and
optionally their log directories (KIP-113). A throttle (KIP-73) is a rate on each participating broker, and a
list of throttled replicas on each topic: a partition's current replicas as leaders, the new ones as
followers.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from zlib import crc32

from ottla.client.admin_types import (
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    ConfigType,
    Reassignment,
    TopicPartition,
    TopicPartitionReplica,
)
from ottla.controller.placement import place_replicas

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LOG_DIR_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
_VERSION: Final = 1
_ANY: Final = "any"
"""A log directory that the broker chooses."""

Assignment = Mapping[TopicPartition, Sequence[int]]
Changes = dict[ConfigResource, list[ConfigChange]]


class BadPlan(ValueError):
    """A plan is invalid; the message has the position and the problem."""


@dataclass(frozen=True)
class Plan:
    replicas: dict[TopicPartition, list[int]]
    log_dirs: dict[TopicPartitionReplica, str] = field(default_factory=dict)
    """Only replicas whose directory the plan sets."""

    @property
    def brokers(self) -> set[int]:
        return {broker for replicas in self.replicas.values() for broker in replicas}


def parse_plan(text: str) -> Plan:
    """Raises BadPlan."""
    replicas: dict[TopicPartition, list[int]] = {}
    log_dirs: dict[TopicPartitionReplica, str] = {}
    for at, row in enumerate(_rows(text, "partitions")):
        where = f"partitions[{at}]"
        try:
            tp = TopicPartition(str(row["topic"]), int(row["partition"]))
            brokers = [int(broker) for broker in row["replicas"]]
            paths = [str(path) for path in row.get("log_dirs", [_ANY] * len(brokers))]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadPlan(f"{where}: {error!r}; needs topic, partition and replicas") from None
        if tp in replicas:
            raise BadPlan(f"{where}: {tp} is given twice")
        if not brokers:
            raise BadPlan(f"{where}: {tp} has no replicas")
        if len(set(brokers)) < len(brokers):
            raise BadPlan(f"{where}: {tp} has a broker twice: {brokers}")
        if len(paths) != len(brokers):
            raise BadPlan(f"{where}: {tp} has {len(brokers)} replicas and {len(paths)} log_dirs")
        replicas[tp] = brokers
        for broker, path in zip(brokers, paths, strict=True):
            if path != _ANY:
                log_dirs[TopicPartitionReplica(tp.topic, tp.partition, broker)] = path
    if not replicas:
        raise BadPlan("partitions: empty")
    return Plan(replicas, log_dirs)


def parse_topics(text: str) -> list[str]:
    """The file of `--topics-to-move-json-file`. Raises BadPlan."""
    try:
        names = [str(row["topic"]) for row in _rows(text, "topics")]
    except (KeyError, TypeError) as error:
        raise BadPlan(f"topics: {error!r}; each needs topic") from None
    if len(set(names)) < len(names):
        raise BadPlan("topics: a topic is given twice")
    return names


def _rows(text: str, name: str) -> list[Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise BadPlan(f"not JSON: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get(name), list):
        raise BadPlan(f'must be an object with "version": {_VERSION} and a list "{name}"')
    if document.get("version", _VERSION) != _VERSION:
        raise BadPlan(f"version: {document['version']}; allowed: {_VERSION}")
    return list(document[name])


def document(assignment: Assignment) -> dict[str, Any]:
    """The JSON document of an assignment's plan."""
    return {
        "version": _VERSION,
        "partitions": [
            {"topic": tp.topic, "partition": tp.partition, "replicas": list(replicas)}
            for tp, replicas in sorted(assignment.items())
        ],
    }


def propose(current: Assignment, brokers: Mapping[int, str | None]) -> dict[TopicPartition, list[int]]:
    """Propose an assignment of the topics of `current` to `brokers` (with racks), by the placement of new
    topics.

    The start indexes are derived from the topic's name, so that repeated proposals are equal. Raises BadPlan.
    """
    by_topic: defaultdict[str, list[TopicPartition]] = defaultdict(list)
    for tp in sorted(current):
        by_topic[tp.topic].append(tp)
    proposed: dict[TopicPartition, list[int]] = {}
    for topic, partitions in by_topic.items():
        factor = len(current[partitions[0]])
        if factor > len(brokers):
            raise BadPlan(f"{topic} has {factor} replicas, which {len(brokers)} brokers cannot hold")
        start, shift = crc32(topic.encode()), crc32(topic[::-1].encode())
        placed = place_replicas(
            brokers, len(partitions), factor, start=start % len(brokers), shift=shift % len(brokers)
        )
        proposed |= {tp: list(placed[tp.partition]) for tp in partitions}
    return proposed


# --- throttles ---


def throttle(
    plan: Plan, current: Assignment, moving: Mapping[TopicPartition, Reassignment], rate: int
) -> Changes:
    """The settings that throttle these moves and those in progress. `rate`: bytes per second and broker."""
    moves: dict[TopicPartition, tuple[set[int], set[int]]] = {
        tp: (set(move.replicas) - set(move.adding), set(move.adding)) for tp, move in moving.items()
    }
    for tp, replicas in plan.replicas.items():
        sources = moves[tp][0] if tp in moves else set(current[tp])
        moves[tp] = sources, set(replicas) - sources
    senders: defaultdict[str, list[str]] = defaultdict(list)
    receivers: defaultdict[str, list[str]] = defaultdict(list)
    for tp, (sources, targets) in sorted(moves.items()):
        senders[tp.topic] += [f"{tp.partition}:{broker}" for broker in sorted(sources)]
        receivers[tp.topic] += [f"{tp.partition}:{broker}" for broker in sorted(targets)]
    changes: Changes = {
        ConfigResource(ConfigType.TOPIC, topic): [
            ConfigChange(LEADER_REPLICAS, ",".join(senders[topic])),
            ConfigChange(FOLLOWER_REPLICAS, ",".join(receivers[topic])),
        ]
        for topic in senders
    }
    involved = {broker for sources, targets in moves.values() for broker in sources | targets}
    return changes | _set_on(involved, (LEADER_RATE, FOLLOWER_RATE), rate)


def throttle_log_dirs(plan: Plan, rate: int) -> Changes:
    return _set_on({replica.broker for replica in plan.log_dirs}, (LOG_DIR_RATE,), rate)


def _set_on(brokers: Iterable[int], names: Iterable[str], rate: int) -> Changes:
    return {
        ConfigResource(ConfigType.BROKER, str(broker)): [ConfigChange(name, str(rate)) for name in names]
        for broker in sorted(brokers)
    }


def unthrottle(topics: Iterable[str], brokers: Iterable[int]) -> Changes:
    """The changes that remove all throttles; on every broker, since earlier moves are unknown."""
    names = {
        ConfigType.TOPIC: (LEADER_REPLICAS, FOLLOWER_REPLICAS),
        ConfigType.BROKER: (LEADER_RATE, FOLLOWER_RATE, LOG_DIR_RATE),
    }
    resources = [ConfigResource(ConfigType.TOPIC, topic) for topic in sorted(set(topics))]
    resources += [ConfigResource(ConfigType.BROKER, str(broker)) for broker in sorted(brokers)]
    return {
        each: [ConfigChange(name, None, ConfigOperation.DELETE) for name in names[each.type]]
        for each in resources
    }

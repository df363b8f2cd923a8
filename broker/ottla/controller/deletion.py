"""Deleting topics: announce, stop and delete every replica, then remove the topic's nodes.

Called by the shell for DeleteTopics and /admin/delete_topics, for answers to StopReplica, and whenever a
broker comes or goes. A deletion survives anything: the request is a node, and what has been confirmed is
only remembered to know when all is done; a new controller simply asks again.

Invariants: a topic with a replica on a broker that is down is not begun (Kafka calls it ineligible), and
is resumed when the broker is back; nodes are removed only after each replica confirmed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.controller.effects import EPOCH_DURING_DELETE, Effects
from ottla.controller.state import ClusterState, Deletion, Topic
from ottla.metadata import znodes
from ottla.metadata.store import Create
from ottla.metadata.znodes import TopicPartition
from ottla.protocol.errors import ErrorCode


def request(state: ClusterState, effects: Effects, topics: Iterable[str]) -> None:
    """Mark the topics for deletion, in the store too, and begin."""
    for topic in topics:
        if topic in state.topics and topic not in state.deletions:
            effects.write(Create(znodes.delete_topic_path(topic)))
            state.deletions[topic] = Deletion()
    resume(state, effects)


def enqueue(state: ClusterState, effects: Effects, topics: Iterable[str]) -> None:
    """Take over deletions that are in the store already."""
    for topic in topics:
        if topic in state.topics:
            state.deletions.setdefault(topic, Deletion())
    resume(state, effects)


def resume(state: ClusterState, effects: Effects) -> None:
    """Take the step that is due for each topic that is to be deleted."""
    for name, deletion in list(state.deletions.items()):
        topic = state.topics[name]
        replicas = _replicas(topic)
        waiting = replicas - deletion.confirmed
        if not waiting:
            effects.removed_topics.append(name)
            state.forget_topic(name)
            continue
        if not all(broker in state.brokers for _, broker in waiting):
            continue
        if not deletion.announced:
            deletion.announced = True
            for tp in topic.partitions():
                effects.tell_everyone(tp)
        for partition, broker in sorted(waiting):
            epoch = state.brokers[broker].epoch
            if deletion.asked.get((partition, broker)) != epoch:
                deletion.asked[partition, broker] = epoch
                tp = TopicPartition(name, partition)
                effects.stop(broker, tp, delete=True, leader_epoch=EPOCH_DURING_DELETE)


def _replicas(topic: Topic) -> set[tuple[int, int]]:
    return {(p, broker) for p, assignment in topic.assignments.items() for broker in assignment.replicas}


def brokers_came(state: ClusterState, came: Iterable[int]) -> None:
    """A broker that has restarted is asked again, whatever became of the last request."""
    back = set(came)
    for deletion in state.deletions.values():
        for key in [key for key in deletion.asked if key[1] in back and key not in deletion.confirmed]:
            del deletion.asked[key]


def replicas_stopped(
    state: ClusterState,
    effects: Effects,
    broker: int,
    outcome: Mapping[TopicPartition, ErrorCode],
) -> None:
    """A broker has answered a StopReplica. What failed is asked again on the next `retry`."""
    for tp, error in outcome.items():
        deletion = state.deletions.get(tp.topic)
        if deletion is None or (tp.partition, broker) not in deletion.asked:
            continue
        if error == ErrorCode.NONE:
            deletion.confirmed.add((tp.partition, broker))
    resume(state, effects)


def retry(state: ClusterState, effects: Effects, broker: int, partitions: Iterable[TopicPartition]) -> None:
    """Ask again for replicas whose deletion failed."""
    for tp in partitions:
        deletion = state.deletions.get(tp.topic)
        if deletion is not None and (tp.partition, broker) not in deletion.confirmed:
            deletion.asked.pop((tp.partition, broker), None)
    resume(state, effects)

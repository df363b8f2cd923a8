"""Topic deletion (TopicDeletionManager): update metadata, delete every replica, delete the topic's nodes.

Called for DeleteTopics and /admin/delete_topics, for StopReplica responses, and whenever a broker starts or
fails. The request for a deletion is a node, so a new controller continues it: the set of confirmed replicas
is kept in memory only, and a new controller sends StopReplica again.

Invariants: the deletion of a topic with a replica on an offline broker does not start (Kafka calls the topic
ineligible for deletion), and resumes when the broker is back. Nodes are deleted only after every replica
confirmed its deletion.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from ottla.controller.context import ControllerContext, Topic, TopicDeletion
from ottla.controller.effects import EPOCH_DURING_DELETE, Effects
from ottla.metadata import znodes
from ottla.metadata.store import Create
from ottla.metadata.znodes import TopicPartition
from ottla.protocol.errors import ErrorCode

log = logging.getLogger(__name__)


def request(context: ControllerContext, effects: Effects, topics: Iterable[str]) -> None:
    """Mark the topics for deletion, in the store as well, and start their deletion."""
    for topic in topics:
        if topic in context.topics and topic not in context.deletions:
            effects.write(Create(znodes.delete_topic_path(topic)))
            context.deletions[topic] = TopicDeletion()
    resume(context, effects)


def enqueue(context: ControllerContext, effects: Effects, topics: Iterable[str]) -> None:
    """Queue topics that the store already marks for deletion (enqueueTopicsForDeletion)."""
    for topic in topics:
        if topic in context.topics:
            context.deletions.setdefault(topic, TopicDeletion())
    resume(context, effects)


def resume(context: ControllerContext, effects: Effects) -> None:
    """Take the next step of each deletion that can go on (resumeDeletions). Level-triggered."""
    for name, deletion in list(context.deletions.items()):
        topic = context.topics[name]
        replicas = _replicas(topic)
        waiting = replicas - deletion.confirmed
        if not waiting:
            effects.removed_topics.append(name)
            context.remove_topic(name)
            continue
        if not all(broker in context.brokers for _, broker in waiting):
            continue
        if not deletion.announced:
            deletion.announced = True
            log.info("Deletion of topic %s (re)started", name)
            for tp in topic.partitions():
                effects.add_update_metadata(tp)
        for partition, broker in sorted(waiting):
            epoch = context.brokers[broker].epoch
            if deletion.requested.get((partition, broker)) != epoch:
                deletion.requested[partition, broker] = epoch
                tp = TopicPartition(name, partition)
                effects.add_stop_replica(broker, tp, delete=True, leader_epoch=EPOCH_DURING_DELETE)


def _replicas(topic: Topic) -> set[tuple[int, int]]:
    return {(p, broker) for p, assignment in topic.assignments.items() for broker in assignment.replicas}


def on_brokers_started(context: ControllerContext, new_brokers: Iterable[int]) -> None:
    """Forget the requests that were sent to these brokers before they restarted, so that they are
    repeated."""
    back = set(new_brokers)
    for deletion in context.deletions.values():
        for key in [key for key in deletion.requested if key[1] in back and key not in deletion.confirmed]:
            del deletion.requested[key]


def replicas_stopped(
    context: ControllerContext,
    effects: Effects,
    broker: int,
    outcome: Mapping[TopicPartition, ErrorCode],
) -> None:
    """Handle a broker's StopReplica response. Failed replicas are requested again by `retry`."""
    for tp, error in outcome.items():
        deletion = context.deletions.get(tp.topic)
        if deletion is None or (tp.partition, broker) not in deletion.requested:
            continue
        if error == ErrorCode.NONE:
            deletion.confirmed.add((tp.partition, broker))
    resume(context, effects)


def retry(
    context: ControllerContext, effects: Effects, broker: int, partitions: Iterable[TopicPartition]
) -> None:
    """Request the deletion of replicas again that failed to be deleted."""
    for tp in partitions:
        deletion = context.deletions.get(tp.topic)
        if deletion is not None and (tp.partition, broker) not in deletion.confirmed:
            deletion.requested.pop((tp.partition, broker), None)
    resume(context, effects)

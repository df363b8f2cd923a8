"""Requests to the brokers, built from effects: LeaderAndIsr, UpdateMetadata and StopReplica.

Called by `ActiveController.apply` after a decision's writes: at most one LeaderAndIsr and one StopReplica
per broker and decision. Pure. The messages suit all versions that inter.broker.protocol.version allows
(LeaderAndIsr 4-7, UpdateMetadata 6-8, StopReplica 3-4); the connection selects the highest of them that the
broker supports.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.controller.context import ControllerContext
from ottla.controller.effects import Effects
from ottla.metadata.cache import LEADER_DURING_DELETE
from ottla.metadata.inter_broker import LATEST, InterBrokerVersion
from ottla.metadata.znodes import TopicPartition
from ottla.protocol.messages import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest
from ottla.protocol.topics import by_topic
from ottla.protocol.types import Message

TYPE_UNKNOWN = 0
TYPE_INCREMENTAL = 1
TYPE_FULL = 2
"""LeaderAndIsr's Type: the request names every replica of the broker."""

_SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


def build_requests(
    context: ControllerContext,
    effects: Effects,
    listener: str,
    inter_broker_protocol_version: InterBrokerVersion = LATEST,
) -> dict[int, list[Message]]:
    """The requests for each broker, in the order in which they must be sent.

    `listener` is the inter-broker listener, by which followers reach their leaders.
    """
    has_type = inter_broker_protocol_version.is_at_least("2.8-IV1")
    requests: dict[int, list[Message]] = {}
    partitions = _metadata_states(context, effects.metadata)
    everything = _metadata_states(context, context.partitions()) if effects.full_metadata else []
    for broker in sorted(context.brokers):
        messages: list[Message] = []
        # Kafka's brokers do not become followers of a leader that their metadata does not list as alive, and
        # do not retry: the metadata with a new broker must precede the first LeaderAndIsr that names it.
        full = broker in effects.full_metadata
        if full or effects.brokers_changed:
            messages.append(_update_metadata(context, broker, everything if full else []))
        states = effects.leader_and_isr.get(broker)
        if states:
            is_full = has_type and broker in effects.full_leader_and_isr
            request = _leader_and_isr(context, broker, states, listener, full=is_full)
            if not has_type:
                request.type = TYPE_UNKNOWN
            messages.append(request)
        # In all other cases LeaderAndIsr comes first: metadata must not send clients to a broker that has not
        # become the leader yet.
        if partitions and not full:
            messages.append(_update_metadata(context, broker, partitions))
        if broker in effects.stop_replicas:
            messages.append(_stop_replica(context, effects, broker))
        if messages:
            requests[broker] = messages
    return requests


def full_update_metadata(context: ControllerContext) -> UpdateMetadataRequest:
    """UpdateMetadata with all partitions and brokers of the state, without a broker epoch."""
    return UpdateMetadataRequest(
        controller_id=context.controller_id,
        controller_epoch=context.controller_epoch,
        topic_states=_metadata_states(context, context.partitions()),
        live_brokers=_live_brokers(context),
    )


def _update_metadata(
    context: ControllerContext, broker: int, topics: list[UpdateMetadataRequest.UpdateMetadataTopicState]
) -> UpdateMetadataRequest:
    return UpdateMetadataRequest(
        controller_id=context.controller_id,
        controller_epoch=context.controller_epoch,
        broker_epoch=context.brokers[broker].epoch,
        topic_states=topics,
        live_brokers=_live_brokers(context),
    )


def _leader_and_isr(
    context: ControllerContext, broker: int, states: dict[TopicPartition, bool], listener: str, *, full: bool
) -> LeaderAndIsrRequest:
    request = LeaderAndIsrRequest(
        controller_id=context.controller_id,
        controller_epoch=context.controller_epoch,
        broker_epoch=context.brokers[broker].epoch,
        type=TYPE_FULL if full else TYPE_INCREMENTAL,
    )
    leaders: set[int] = set()
    for name, partitions in by_topic(states.items()).items():
        topic = context.topics[name]
        topic_state = LeaderAndIsrRequest.LeaderAndIsrTopicState(topic_name=name, topic_id=topic.topic_id)
        for partition, is_new in partitions:
            current, assignment = (
                context.leaders[TopicPartition(name, partition)],
                topic.assignments[partition],
            )
            leaders.add(current.leader)
            topic_state.partition_states.append(
                LeaderAndIsrRequest.LeaderAndIsrPartitionState(
                    partition_index=partition,
                    controller_epoch=current.controller_epoch,
                    leader=current.leader,
                    leader_epoch=current.leader_epoch,
                    isr=list(current.isr),
                    partition_epoch=current.partition_epoch,
                    replicas=list(assignment.replicas),
                    adding_replicas=list(assignment.adding),
                    removing_replicas=list(assignment.removing),
                    is_new=is_new,
                    leader_recovery_state=current.recovery,
                )
            )
        request.topic_states.append(topic_state)
    for leader in sorted(leaders):
        endpoint = context.brokers[leader].endpoint(listener) if leader in context.brokers else None
        if endpoint is not None:
            request.live_leaders.append(
                LeaderAndIsrRequest.LeaderAndIsrLiveLeader(
                    broker_id=leader, host_name=endpoint.host, port=endpoint.port
                )
            )
    return request


def _metadata_states(
    context: ControllerContext, partitions: Iterable[TopicPartition]
) -> list[UpdateMetadataRequest.UpdateMetadataTopicState]:
    topics: dict[str, UpdateMetadataRequest.UpdateMetadataTopicState] = {}
    for tp in partitions:
        topic, current = context.topics.get(tp.topic), context.leaders.get(tp)
        deleting = context.is_deleting(tp.topic)
        if topic is None or (current is None and not deleting):
            continue  # a partition that never had a leader is not part of the metadata
        replicas = topic.assignments[tp.partition].replicas
        partition = UpdateMetadataRequest.UpdateMetadataPartitionState(
            partition_index=tp.partition,
            controller_epoch=context.controller_epoch,
            leader=LEADER_DURING_DELETE,
            replicas=list(replicas),
            offline_replicas=[
                r for r in replicas if not context.is_online(r, tp, include_shutting_down=True)
            ],
        )
        if current is not None:
            partition.isr = list(current.isr)
            if not deleting:
                partition.controller_epoch = current.controller_epoch
                partition.leader = current.leader
                partition.leader_epoch = current.leader_epoch
                partition.zk_version = current.partition_epoch
        entry = topics.get(tp.topic)
        if entry is None:
            entry = topics[tp.topic] = UpdateMetadataRequest.UpdateMetadataTopicState(
                topic_name=tp.topic, topic_id=topic.topic_id
            )
        entry.partition_states.append(partition)
    return list(topics.values())


def _live_brokers(context: ControllerContext) -> list[UpdateMetadataRequest.UpdateMetadataBroker]:
    return [
        UpdateMetadataRequest.UpdateMetadataBroker(
            id=broker.id,
            rack=broker.rack,
            endpoints=[
                UpdateMetadataRequest.UpdateMetadataEndpoint(
                    host=endpoint.host,
                    port=endpoint.port,
                    listener=endpoint.listener,
                    security_protocol=_SECURITY_PROTOCOLS[endpoint.security_protocol],
                )
                for endpoint in broker.endpoints
            ],
        )
        for broker in sorted(context.brokers.values(), key=lambda info: info.id)
    ]


def _stop_replica(context: ControllerContext, effects: Effects, broker: int) -> StopReplicaRequest:
    request = StopReplicaRequest(
        controller_id=context.controller_id,
        controller_epoch=context.controller_epoch,
        broker_epoch=context.brokers[broker].epoch,
    )
    for name, partitions in by_topic(effects.stop_replicas[broker].items()).items():
        topic_state = StopReplicaRequest.StopReplicaTopicState(topic_name=name)
        for partition, stop in partitions:
            topic_state.partition_states.append(
                StopReplicaRequest.StopReplicaPartitionState(
                    partition_index=partition,
                    leader_epoch=stop.leader_epoch,
                    delete_partition=stop.delete,
                )
            )
        request.topic_states.append(topic_state)
    return request

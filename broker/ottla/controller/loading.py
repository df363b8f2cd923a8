"""Loading of the controller's state from the metadata store, many nodes at a time.

Called when this broker is elected, and (brokers, single topics) for watch events. Nodes that cannot be
decoded are logged and left out: one invalid node must not stop the cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ottla.controller.context import ControllerContext, LeaderAndIsr, ReplicaAssignment, Topic, TopicDeletion
from ottla.metadata import znodes
from ottla.metadata.store import MetadataStore, children_of_many
from ottla.metadata.znodes import BrokerInfo, InvalidNode, TopicAssignment
from ottla.protocol.topics import is_legal_topic_name
from ottla.protocol.types import ZERO_UUID

log = logging.getLogger(__name__)


async def read_brokers(store: MetadataStore) -> dict[int, BrokerInfo]:
    """The registered brokers by id."""
    ids = [int(name) for name in await store.children(znodes.BROKER_IDS) if name.isdecimal()]
    brokers: dict[int, BrokerInfo] = {}
    found = await store.get_many([znodes.broker_path(broker) for broker in ids])
    for broker, entry in zip(ids, found, strict=True):
        if entry is None:
            continue  # deleted since it was listed
        try:
            brokers[broker] = znodes.decode_broker(broker, entry[0], entry[1].czxid)
        except InvalidNode as error:
            log.error("Ignoring a broker: %s", error)
    return brokers


async def read_assignments(store: MetadataStore, topics: Iterable[str]) -> dict[str, TopicAssignment]:
    """The decoded nodes of these topics, without missing and invalid ones."""
    names = list(topics)
    found = await store.get_many([znodes.topic_path(name) for name in names])
    assignments: dict[str, TopicAssignment] = {}
    for name, entry in zip(names, found, strict=True):
        if entry is None:
            continue
        if not is_legal_topic_name(name):
            log.error("Ignoring a topic: %r is not a legal topic name", name)
            continue
        try:
            assignments[name] = znodes.decode_topic(name, entry[0])
        except InvalidNode as error:
            log.error("Ignoring a topic: %s", error)
    return assignments


def topic_from_node(name: str, node: TopicAssignment) -> Topic:
    """The topic as its node has it; the id is zero if the node has none."""
    return Topic(
        name,
        node.topic_id or ZERO_UUID,
        {
            p: ReplicaAssignment(replicas, node.adding.get(p, ()), node.removing.get(p, ()))
            for p, replicas in sorted(node.partitions.items())
            if replicas
        },
    )


async def read_leaders(store: MetadataStore, context: ControllerContext, topics: Iterable[str]) -> None:
    """Load leader and ISR of these topics' partitions, and which nodes exist of partitions without a
    state."""
    partitions = [tp for name in topics for tp in context.topics[name].partitions()]
    found = await store.get_many([znodes.state_path(*tp) for tp in partitions])
    incomplete: dict[str, None] = {}
    for tp, entry in zip(partitions, found, strict=True):
        if entry is None:
            incomplete[tp.topic] = None
            continue
        context.existing_paths.add(znodes.partitions_path(tp.topic))
        try:
            node = znodes.decode_partition_state(*tp, entry[0])
        except InvalidNode as error:
            log.error("Ignoring a partition: %s", error)
            context.invalid_partitions.add(tp)
            continue
        context.leaders[tp] = LeaderAndIsr(
            node.leader,
            node.leader_epoch,
            node.isr,
            entry[1].version,
            node.controller_epoch,
            node.leader_recovery_state,
        )
    names = list(incomplete)
    parents = [znodes.partitions_path(name) for name in names]
    for name, parent, children in zip(names, parents, await children_of_many(store, parents), strict=True):
        if children or await store.exists(parent) is not None:
            context.existing_paths.add(parent)
        context.existing_paths.update(
            znodes.partition_path(name, int(child)) for child in children if child.isdecimal()
        )


async def load(store: MetadataStore, context: ControllerContext) -> None:
    """Load brokers, topics, leaders and deletions into an empty state."""
    context.brokers = await read_brokers(store)
    for name, node in (await read_assignments(store, await store.children(znodes.TOPICS))).items():
        context.add_topic(topic_from_node(name, node))
    await read_leaders(store, context, context.topics)
    for name in await store.children(znodes.DELETE_TOPICS):
        if name in context.topics:
            context.deletions[name] = TopicDeletion()


async def read_topic_configs(store: MetadataStore, topics: Iterable[str]) -> dict[str, dict[str, str]]:
    """The topics' configuration overrides as they are in the store; empty for an invalid node."""
    names = list(topics)
    paths = [znodes.topic_config_path(name) for name in names]
    configs: dict[str, dict[str, str]] = {}
    for name, path, entry in zip(names, paths, await store.get_many(paths), strict=True):
        try:
            configs[name] = znodes.decode_config(path, entry[0]) if entry else {}
        except InvalidNode as error:
            log.error("Ignoring a topic's configuration: %s", error)
            configs[name] = {}
    return configs

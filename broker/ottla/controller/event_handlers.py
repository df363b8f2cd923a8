"""Event handlers of the active controller: for watched nodes, for responses of brokers, and periodic ones.

Called by `controller` under the active controller's lock, once for several events of a kind: each handler
compares the store or the queued responses with the state, and decides what is due. An exception makes the
controller resign.
"""

from __future__ import annotations

import logging

from ottla.controller import broker_changes, leadership, loading, reassignment, topic_deletion
from ottla.controller.active_controller import ActiveController
from ottla.controller.effects import Effects
from ottla.metadata import znodes
from ottla.metadata.config import BrokerConfig
from ottla.metadata.znodes import TopicPartition

log = logging.getLogger(__name__)


async def brokers_changed(active: ActiveController, config: BrokerConfig) -> None:
    """Brokers that registered, restarted or failed."""
    context, before = active.context, active.context.brokers
    new_brokers, failed_brokers = broker_changes.update_brokers(
        context, await loading.read_brokers(active.store)
    )
    if context.brokers == before:
        return
    log.info(
        "Newly added brokers: %s, deleted brokers: %s, all live brokers: %s",
        sorted(new_brokers),
        sorted(failed_brokers),
        sorted(context.brokers),
    )
    active.update_channels()
    await active.refresh_unclean_topics()
    effects = Effects()
    broker_changes.on_brokers_changed(context, effects, new_brokers, failed_brokers)
    await active.apply(effects)


async def topics_changed(active: ActiveController, config: BrokerConfig) -> None:
    """Topics whose nodes ZooKeeper-based tools created or deleted."""
    context = active.context
    names = set(await active.store.children(znodes.TOPICS))
    for name in [name for name in context.topics if name not in names]:
        log.warning("The node of topic %s was deleted without a topic deletion", name)
        context.remove_topic(name)
    active.watches.watch(names)
    new = sorted(names - set(context.topics))
    if not new:
        return
    assignments = await loading.read_assignments(active.store, new)
    for name, node in assignments.items():
        context.add_topic(loading.topic_from_node(name, node))
    await active.assign_topic_ids([name for name, node in assignments.items() if node.topic_id is None])
    await loading.read_leaders(active.store, context, assignments)
    effects = Effects()
    for name in assignments:
        for tp in list(context.topics[name].partitions()):
            leadership.elect_if_needed(context, effects, tp)
    await active.apply(effects)


async def partitions_changed(active: ActiveController, config: BrokerConfig) -> None:
    """Partitions that ZooKeeper-based tools added by writing the topics' nodes.

    As in Kafka, only new partitions count, and none are added to a topic that is being deleted. Everything
    else in the node is restored: such tools drop topic ids and ongoing reassignments, which a later
    controller needs.
    """
    context, effects = active.context, Effects()
    modified, active.modified_topics = active.modified_topics, {}
    names = [name for name in modified if name in context.topics]
    grown: dict[str, list[int]] = {}
    for name, found in zip(names, await active.store.get_many(map(znodes.topic_path, names)), strict=True):
        if found is None:
            continue  # `topics_changed` handles deleted nodes
        try:
            node = znodes.decode_topic(name, found[0])
        except znodes.InvalidNode as error:
            log.error("Ignoring a change of topic %s: %s", name, error)
            continue
        topic = context.topics[name]
        added = {
            p: a
            for p, a in loading.topic_from_node(name, node).assignments.items()
            if p not in topic.assignments
        }
        if added and context.is_deleting(name):
            log.warning(
                "Skipping adding partitions %s for topic %s since it is currently being deleted",
                sorted(added),
                name,
            )
        elif added:
            log.info("New partitions to be added to topic %s: %s", name, sorted(added))
            topic.assignments.update(added)
            grown[name] = sorted(added)
        if topic.node() != node:
            log.info("Restoring the partition replica assignment for topic %s", name)
            await active.restore_topic_node(name, found[1].version)
    await loading.read_leaders(active.store, context, grown)
    for name, partitions in grown.items():
        for partition in partitions:
            leadership.elect_if_needed(context, effects, TopicPartition(name, partition))
    await active.apply(effects)


async def deletions_requested(active: ActiveController, config: BrokerConfig) -> None:
    """Topics that are marked for deletion in /admin/delete_topics."""
    names = await active.store.children(znodes.DELETE_TOPICS)
    if not config["delete.topic.enable"]:
        await active.delete_nodes(znodes.delete_topic_path(name) for name in names)
        return
    await _ignore_missing_topics(active, names)
    effects = Effects()
    topic_deletion.enqueue(active.context, effects, names)
    if not effects.empty:
        await active.apply(effects)


async def _ignore_missing_topics(active: ActiveController, names: list[str]) -> None:
    """Delete the marks of topics that do not exist, as Kafka: a later topic of such a name would be
    deleted."""
    unknown = [name for name in names if name not in active.context.topics]
    found = await active.store.get_many(map(znodes.topic_path, unknown))
    missing = [name for name, node in zip(unknown, found, strict=True) if node is None]
    if missing:
        log.warning("Ignoring request to delete non-existing topics %s", ", ".join(sorted(missing)))
        await active.delete_nodes(map(znodes.delete_topic_path, missing))


async def configs_changed(active: ActiveController, config: BrokerConfig) -> None:
    """Topics that may have got unclean.leader.election.enable=true."""
    await active.refresh_unclean_topics()
    if not active.context.unclean_topics:
        return
    effects = Effects()
    for name in sorted(active.context.unclean_topics):
        for tp in list(active.context.topics[name].partitions()):
            leadership.elect_if_needed(active.context, effects, tp)
    await active.apply(effects)


async def replicas_stopped(active: ActiveController, config: BrokerConfig) -> None:
    """Queued StopReplica responses of topic deletions."""
    effects = Effects()
    stopped, active.stopped = active.stopped, []
    for broker, outcome in stopped:
        topic_deletion.replicas_stopped(active.context, effects, broker, outcome)
    await active.apply(effects)


async def replicas_failed(active: ActiveController, config: BrokerConfig) -> None:
    """Queued LeaderAndIsr responses: replicas that went offline or online on a live broker."""
    context, effects = active.context, Effects()
    failed, active.failed = active.failed, []
    for broker, offline, online in failed:
        if broker in context.brokers:
            replicas = context.failed_replicas.setdefault(broker, set())
            replicas.update(offline)
            replicas.difference_update(online)
    await active.refresh_unclean_topics()
    for _, offline, online in failed:
        for tp in [*offline, *online]:
            if context.assignment(tp) is not None:
                leadership.elect_if_needed(context, effects, tp)
                effects.add_update_metadata(tp)
    await active.apply(effects)


async def log_dirs_failed(active: ActiveController, config: BrokerConfig) -> None:
    """Brokers with a failed log directory (KIP-112).

    The notification does not name the replicas. A broker that gets LeaderAndIsr for all its replicas again
    returns KAFKA_STORAGE_ERROR for the offline ones.
    """
    context, effects = active.context, Effects()
    names = [f"{znodes.LOG_DIR_EVENTS}/{name}" for name in await active.store.children(znodes.LOG_DIR_EVENTS)]
    brokers = set()
    for name, found in zip(names, await active.store.get_many(names), strict=True):
        try:
            if found is not None:
                brokers.add(znodes.decode_log_dir_event(found[0]))
        except znodes.InvalidNode as error:
            log.error("Ignoring %s: %s", name, error)
    brokers &= context.brokers.keys()
    if brokers:
        log.warning("Log directories of brokers %s failed", sorted(brokers))
        for tp, assignment in context.partitions_on(brokers):
            if tp in context.leaders and not context.is_deleting(tp.topic):
                effects.add_leader_and_isr(tp, [r for r in assignment.replicas if r in brokers])
        await active.apply(effects)
    await active.delete_nodes(names)


async def rebalance(active: ActiveController, config: BrokerConfig) -> None:
    """Elect the preferred leaders of imbalanced brokers (checkAndTriggerAutoLeaderRebalance)."""
    effects = Effects()
    percentage = config.get_int("leader.imbalance.per.broker.percentage")
    for tp in leadership.imbalanced(active.context, percentage):
        leadership.elect_preferred(active.context, effects, tp)
    await active.apply(effects)


async def maintain(active: ActiveController, config: BrokerConfig) -> None:
    """Retry failed replica deletions, and complete reassignments that are due."""
    effects = Effects()
    active.retry_deletions(effects)
    reassignment.advance_all(active.context, effects)
    if not effects.empty:
        await active.apply(effects)

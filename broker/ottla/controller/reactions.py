"""What an active controller does when something has changed: a node it watches, an answer, the time.

Called by the shell, under the term's lock, once for many changes of a kind; so each looks at the whole of
what is, and decides what is due. Anything raised here ends the term.
"""

from __future__ import annotations

import logging

from ottla.controller import deletion, leadership, loading, membership, reassignment
from ottla.controller.effects import Effects
from ottla.controller.term import Term
from ottla.metadata import znodes
from ottla.metadata.config import BrokerConfig
from ottla.metadata.store import get_many
from ottla.metadata.znodes import TopicPartition

log = logging.getLogger(__name__)


async def brokers_changed(term: Term, config: BrokerConfig) -> None:
    state, before = term.state, term.state.brokers
    came, went = membership.update_brokers(state, await loading.read_brokers(term.store))
    if state.brokers == before:
        return
    log.info("brokers came: %s, went: %s", sorted(came), sorted(went))
    term.follow_brokers()
    await term.refresh_unclean()
    effects = Effects()
    membership.react(state, effects, came, went)
    await term.carry_out(effects)


async def topics_changed(term: Term, config: BrokerConfig) -> None:
    """Topics that appeared without us (tools of old write the node themselves), or vanished."""
    state = term.state
    names = set(await term.store.children(znodes.TOPICS))
    for name in set(state.topics) - names:
        log.warning("the node of topic %s has been removed behind our back", name)
        state.forget_topic(name)
    term.watches.follow(names)
    new = sorted(names - set(state.topics))
    if not new:
        return
    assignments = await loading.read_assignments(term.store, new)
    for name, node in assignments.items():
        state.add_topic(loading.topic_of(name, node))
    await term.give_ids([name for name, node in assignments.items() if node.topic_id is None])
    await loading.read_leaders(term.store, state, assignments)
    effects = Effects()
    for name in assignments:
        for tp in list(state.topics[name].partitions()):
            leadership.settle(state, effects, tp)
    await term.carry_out(effects)


async def partitions_changed(term: Term, config: BrokerConfig) -> None:
    """Topics' nodes were written, perhaps by others: tools of old add partitions in this way.

    As in Kafka, only partitions that are new count, and none are added to a topic that is being deleted.
    Apart from them the node gets back what was there: such tools know neither topic ids nor moves, and a
    later controller would miss them.
    """
    state, effects = term.state, Effects()
    modified, term.modified_topics = term.modified_topics, {}
    names = [name for name in modified if name in state.topics]
    grown: dict[str, list[int]] = {}
    for name, found in zip(names, await get_many(term.store, map(znodes.topic_path, names)), strict=True):
        if found is None:
            continue  # `topics_changed` is for that
        try:
            node = znodes.decode_topic(name, found[0])
        except znodes.InvalidNode as error:
            log.error("ignoring a change of topic %s: %s", name, error)
            continue
        topic = state.topics[name]
        added = {
            p: a for p, a in loading.topic_of(name, node).assignments.items() if p not in topic.assignments
        }
        if added and state.is_deleting(name):
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
            await term.restore_topic(name, found[1].version)
    await loading.read_leaders(term.store, state, grown)
    for name, partitions in grown.items():
        for partition in partitions:
            leadership.settle(state, effects, TopicPartition(name, partition))
    await term.carry_out(effects)


async def deletions_requested(term: Term, config: BrokerConfig) -> None:
    names = await term.store.children(znodes.DELETE_TOPICS)
    if not config["delete.topic.enable"]:
        await term.drop_nodes(znodes.delete_topic_path(name) for name in names)
        return
    await _drop_deletions_of_no_topic(term, names)
    effects = Effects()
    deletion.enqueue(term.state, effects, names)
    if not effects.empty:
        await term.carry_out(effects)


async def _drop_deletions_of_no_topic(term: Term, names: list[str]) -> None:
    """As in Kafka: otherwise a topic that is created later under such a name would be deleted."""
    unknown = [name for name in names if name not in term.state.topics]
    found = await get_many(term.store, map(znodes.topic_path, unknown))
    missing = [name for name, node in zip(unknown, found, strict=True) if node is None]
    if missing:
        log.warning("Ignoring request to delete non-existing topics %s", ", ".join(sorted(missing)))
        await term.drop_nodes(map(znodes.delete_topic_path, missing))


async def configs_changed(term: Term, config: BrokerConfig) -> None:
    """A topic may have been allowed an unclean election."""
    await term.refresh_unclean()
    if not term.state.unclean_topics:
        return
    effects = Effects()
    for name in term.state.unclean_topics:
        for tp in list(term.state.topics[name].partitions()):
            leadership.settle(term.state, effects, tp)
    await term.carry_out(effects)


async def replicas_stopped(term: Term, config: BrokerConfig) -> None:
    effects = Effects()
    stopped, term.stopped = term.stopped, []
    for broker, outcome in stopped:
        deletion.replicas_stopped(term.state, effects, broker, outcome)
    await term.carry_out(effects)


async def replicas_failed(term: Term, config: BrokerConfig) -> None:
    state, effects = term.state, Effects()
    failed, term.failed = term.failed, []
    for broker, offline, online in failed:
        if broker in state.brokers:
            replicas = state.failed_replicas.setdefault(broker, set())
            replicas.update(offline)
            replicas.difference_update(online)
    await term.refresh_unclean()
    for _, offline, online in failed:
        for tp in [*offline, *online]:
            if state.assignment(tp) is not None:
                leadership.settle(state, effects, tp)
                effects.tell_everyone(tp)
    await term.carry_out(effects)


async def log_dirs_failed(term: Term, config: BrokerConfig) -> None:
    """Brokers say that one of their log directories has failed (KIP-112), and not which replicas were in it:
    told of all its replicas again, a broker answers which of them it cannot serve."""
    state, effects = term.state, Effects()
    names = [f"{znodes.LOG_DIR_EVENTS}/{name}" for name in await term.store.children(znodes.LOG_DIR_EVENTS)]
    brokers = set()
    for name, found in zip(names, await get_many(term.store, names), strict=True):
        try:
            if found is not None:
                brokers.add(znodes.decode_log_dir_event(found[0]))
        except znodes.InvalidNode as error:
            log.error("ignoring %s: %s", name, error)
    brokers &= state.brokers.keys()
    if brokers:
        log.warning("log directories of brokers %s have failed", sorted(brokers))
        for tp, assignment in state.partitions_on(brokers):
            if tp in state.leaders and not state.is_deleting(tp.topic):
                effects.tell_replicas(tp, [r for r in assignment.replicas if r in brokers])
        await term.carry_out(effects)
    await term.drop_nodes(names)


async def rebalance(term: Term, config: BrokerConfig) -> None:
    effects = Effects()
    percentage = config.get_int("leader.imbalance.per.broker.percentage")
    for tp in leadership.imbalanced(term.state, percentage):
        leadership.elect_preferred(term.state, effects, tp)
    await term.carry_out(effects)


async def housekeeping(term: Term, config: BrokerConfig) -> None:
    effects = Effects()
    term.retry_deletions(effects)
    reassignment.advance_all(term.state, effects)
    if not effects.empty:
        await term.carry_out(effects)

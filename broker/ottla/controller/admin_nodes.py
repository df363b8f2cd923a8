"""Reassignments and preferred leader elections that ZooKeeper-based tools request through admin nodes.

Called by `controller` when one of the nodes is created or changed, on election, and when a reassignment of
the node ends. As in Kafka, /admin/reassign_partitions lists the partitions whose reassignment is not
complete, and the controller deletes it after the last one. An AlterPartitionReassignments request for one of
its partitions removes that partition from the list. Deleting the node cancels nothing. The controller deletes
/admin/preferred_replica_election after the election, with or without success.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ottla.controller import leadership, reassignment
from ottla.controller.active_controller import ActiveController
from ottla.controller.context import ControllerContext
from ottla.controller.effects import Effects
from ottla.metadata import znodes
from ottla.metadata.config import BrokerConfig
from ottla.metadata.store import Delete, SetData, StoreConflict
from ottla.metadata.znodes import InvalidNode, TopicPartition
from ottla.protocol.errors import KafkaError

log = logging.getLogger(__name__)

Moves = Mapping[TopicPartition, tuple[int, ...]]


async def reassignments_requested(active: ActiveController, config: BrokerConfig) -> None:
    """Start the reassignments of /admin/reassign_partitions, and remove the completed ones from it."""
    found = await active.store.get(znodes.REASSIGN_PARTITIONS)
    if found is None:
        active.node_reassignments.clear()
        return
    try:
        requested = znodes.decode_reassignment(found[0])
    except InvalidNode as error:
        log.error("Ignoring the partition reassignment: %s", error)
        return
    effects = Effects()
    remaining = start_reassignments(active.context, effects, requested, active.node_reassignments)
    active.node_reassignments = dict(remaining)
    await active.apply(effects)
    if not remaining:
        await _change(active, Delete(znodes.REASSIGN_PARTITIONS))
    elif remaining != requested:
        data = znodes.encode_reassignment(remaining)
        await _change(active, SetData(znodes.REASSIGN_PARTITIONS, data, found[1].version))


def start_reassignments(
    context: ControllerContext, effects: Effects, requested: Moves, started: Moves
) -> dict[TopicPartition, tuple[int, ...]]:
    """Start the reassignments in `requested` that are not in `started`. Returns the ongoing ones. Pure."""
    remaining: dict[TopicPartition, tuple[int, ...]] = {}
    for tp, target in requested.items():
        if started.get(tp) != target:
            try:
                reassignment.alter(context, effects, tp, target)
            except KafkaError as error:
                log.warning("Cannot reassign %s to %s: %s", tp, list(target), error)
                continue
        assignment = context.assignment(tp)
        # A different target: an AlterPartitionReassignments request has replaced the node's.
        if assignment is not None and assignment.is_being_reassigned and assignment.target == target:
            remaining[tp] = target
    return remaining


async def preferred_leaders_requested(active: ActiveController, config: BrokerConfig) -> None:
    """Elect the preferred leaders of the partitions in /admin/preferred_replica_election."""
    found = await active.store.get(znodes.PREFERRED_ELECTION)
    if found is None:
        return
    effects = Effects()
    try:
        requested = znodes.decode_preferred_election(found[0])
    except InvalidNode as error:
        log.error("Ignoring the preferred replica election: %s", error)
        requested = []
    for tp in requested:
        if active.context.is_deleting(tp.topic) or not leadership.elect_preferred(
            active.context, effects, tp
        ):
            log.warning("The preferred replica of %s is not online and in sync; it is not elected", tp)
    await active.apply(effects)
    await _change(active, Delete(znodes.PREFERRED_ELECTION))


async def _change(active: ActiveController, operation: Delete | SetData) -> None:
    """Write the node, unless a tool changed it meanwhile; the watch then triggers this module again."""
    try:
        await active.fenced_multi([operation])
    except StoreConflict as conflict:
        if conflict.failed is not operation:
            raise
        log.info("%s was changed concurrently: %s", operation.path, conflict)

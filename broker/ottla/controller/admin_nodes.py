"""What tools of old ask of a controller through nodes: moves of partitions, and preferred leaders.

Called by the shell when one of the nodes appears or changes, on election, and when a move that a node asks
for has ended. As Kafka: /admin/reassign_partitions lists what is yet to be done, and goes with the last of
it; a request of AlterPartitionReassignments for one of its partitions takes that from the list; removing the
node cancels nothing. /admin/preferred_replica_election goes at once, whatever came of it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ottla.controller import leadership, reassignment
from ottla.controller.effects import Effects
from ottla.controller.state import ClusterState
from ottla.controller.term import Term
from ottla.metadata import znodes
from ottla.metadata.config import BrokerConfig
from ottla.metadata.store import Delete, SetData, StoreConflict
from ottla.metadata.znodes import InvalidNode, TopicPartition
from ottla.protocol.errors import KafkaError

log = logging.getLogger(__name__)

Moves = Mapping[TopicPartition, tuple[int, ...]]


async def reassignments_requested(term: Term, config: BrokerConfig) -> None:
    """Begin the moves of /admin/reassign_partitions, and take those from it that are over."""
    found = await term.store.get(znodes.REASSIGN_PARTITIONS)
    if found is None:
        term.moves_of_node.clear()
        return
    try:
        asked = znodes.decode_reassignment(found[0])
    except InvalidNode as error:
        log.error("partitions are not moved: %s", error)
        return
    effects = Effects()
    remaining = begin(term.state, effects, asked, term.moves_of_node)
    term.moves_of_node = dict(remaining)
    await term.carry_out(effects)
    if not remaining:
        await _change(term, Delete(znodes.REASSIGN_PARTITIONS))
    elif remaining != asked:
        data = znodes.encode_reassignment(remaining)
        await _change(term, SetData(znodes.REASSIGN_PARTITIONS, data, found[1].version))


def begin(
    state: ClusterState, effects: Effects, asked: Moves, begun: Moves
) -> dict[TopicPartition, tuple[int, ...]]:
    """Begin what was not begun yet, and return what is under way afterwards. Pure."""
    remaining: dict[TopicPartition, tuple[int, ...]] = {}
    for tp, target in asked.items():
        if begun.get(tp) != target:
            try:
                reassignment.alter(state, effects, tp, target)
            except KafkaError as error:
                log.warning("%s is not moved to %s: %s", tp, list(target), error)
                continue
        assignment = state.assignment(tp)
        # Another target than the node's: somebody has asked for that by the API meanwhile.
        if assignment is not None and assignment.moving and assignment.target == target:
            remaining[tp] = target
    return remaining


async def preferred_leaders_requested(term: Term, config: BrokerConfig) -> None:
    """Elect the preferred leaders of the partitions in /admin/preferred_replica_election."""
    found = await term.store.get(znodes.PREFERRED_ELECTION)
    if found is None:
        return
    effects = Effects()
    try:
        asked = znodes.decode_preferred_election(found[0])
    except InvalidNode as error:
        log.error("no preferred leaders are elected: %s", error)
        asked = []
    for tp in asked:
        if term.state.is_deleting(tp.topic) or not leadership.elect_preferred(term.state, effects, tp):
            log.warning("the preferred replica of %s cannot lead it", tp)
    await term.carry_out(effects)
    await _change(term, Delete(znodes.PREFERRED_ELECTION))


async def _change(term: Term, operation: Delete | SetData) -> None:
    """Others write these nodes too: what they did meanwhile is seen with the next event."""
    try:
        await term.fenced([operation])
    except StoreConflict as conflict:
        if conflict.failed is not operation:
            raise
        log.info("%s has changed meanwhile: %s", operation.path, conflict)

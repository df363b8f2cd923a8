"""Leader elections and partition state changes (PartitionStateMachine, PartitionLeaderElectionStrategies).

Called by every other decision module. `elect_if_needed` is level-triggered: it compares a partition with the
online brokers and takes the step that is due (first leader, election, shrinking of the ISR), so it can be
called at any time and repeatedly.

Invariants, asserted in `change`: every change made here increments the leader epoch; a leader is in the
ISR; the ISR is never empty and contains replicas only. Only `_elect_offline` with unclean election allowed
elects a leader from outside the ISR.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ottla.controller.context import RECOVERED, RECOVERING, ControllerContext, LeaderAndIsr, ReplicaAssignment
from ottla.controller.effects import Effects
from ottla.metadata import znodes
from ottla.metadata.store import Create, Operation, SetData
from ottla.metadata.znodes import NO_LEADER, TopicPartition, intern_brokers

FIRST_LEADER_EPOCH = 0
FIRST_PARTITION_EPOCH = 0


def change(
    context: ControllerContext,
    effects: Effects,
    tp: TopicPartition,
    leader: int,
    isr: Sequence[int],
    *,
    recovery: int | None = None,
    with_operations: Sequence[Operation] = (),
    new_on: Iterable[int] = (),
) -> LeaderAndIsr:
    """Write this leader and ISR with the next leader epoch, and send them to the brokers.

    `with_operations` are written in the same multi; `new_on` are the brokers on which the replica is new.
    """
    before, assignment = context.leaders[tp], context.assignment(tp)
    assert assignment is not None, f"{tp} has no assignment"
    assert isr, f"{tp}: the ISR cannot be empty"
    assert set(isr) <= set(assignment.replicas), f"{tp}: ISR {isr} outside of {assignment.replicas}"
    assert leader == NO_LEADER or leader in isr, f"{tp}: leader {leader} is not in the ISR {isr}"
    after = LeaderAndIsr(
        leader,
        before.leader_epoch + 1,
        intern_brokers(isr),
        before.partition_epoch + 1,
        context.controller_epoch,
        before.recovery if recovery is None else recovery,
    )
    context.elections += leader not in (NO_LEADER, before.leader)
    path = znodes.state_path(*tp)
    effects.write(
        *with_operations, SetData(path, znodes.encode_partition_state(after.node()), before.partition_epoch)
    )
    context.leaders[tp] = after
    send_state(context, effects, tp, new_on=new_on)
    return after


def send_state(
    context: ControllerContext, effects: Effects, tp: TopicPartition, *, new_on: Iterable[int] = ()
) -> None:
    """Send LeaderAndIsr to the partition's online replicas, and its metadata to every broker."""
    assignment = context.assignment(tp)
    assert assignment is not None
    new = set(new_on)
    for replica in assignment.replicas:
        if context.is_online(replica, tp, include_shutting_down=True):
            effects.add_leader_and_isr(tp, [replica], new=replica in new)
    effects.add_update_metadata(tp)


def create_operations(
    context: ControllerContext, tp: TopicPartition, *, first: LeaderAndIsr | None
) -> list[Operation]:
    """Operations that create the partition's missing nodes, with its state `first` if it has one."""
    paths = [znodes.partitions_path(tp.topic), znodes.partition_path(*tp)]
    operations: list[Operation] = [Create(path) for path in paths if path not in context.existing_paths]
    context.existing_paths.add(paths[0])
    if first is None:
        context.existing_paths.add(paths[1])
    else:
        # The path is looked up only for partitions without a state.
        context.existing_paths.discard(paths[1])
        data = znodes.encode_partition_state(first.node())
        operations.append(Create(znodes.state_path(*tp), data))
    return operations


def first_leadership(context: ControllerContext, tp: TopicPartition) -> LeaderAndIsr | None:
    """A new partition's first state: its first online replica is the leader, all online ones are in sync.

    None while no replica is online.
    """
    assignment = context.assignment(tp)
    assert assignment is not None
    alive = intern_brokers(r for r in assignment.replicas if context.is_online(r, tp))
    if not alive:
        return None
    return LeaderAndIsr(
        alive[0], FIRST_LEADER_EPOCH, alive, FIRST_PARTITION_EPOCH, context.controller_epoch, RECOVERED
    )


def elect_if_needed(context: ControllerContext, effects: Effects, tp: TopicPartition) -> None:
    """Elect a leader or shrink the ISR if the partition's replicas on online brokers require it."""
    if context.is_deleting(tp.topic) or tp in context.invalid_partitions:
        return
    assignment, current = context.assignment(tp), context.leaders.get(tp)
    assert assignment is not None
    if current is None:
        first = first_leadership(context, tp)
        if first is not None:
            effects.write(*create_operations(context, tp, first=first))
            context.leaders[tp] = first
            send_state(context, effects, tp, new_on=assignment.replicas)
        return
    if context.has_live_leader(tp):
        isr = tuple(r for r in current.isr if context.is_online(r, tp, include_shutting_down=True))
        if isr != current.isr:
            change(context, effects, tp, current.leader, isr)
        return
    elected = _elect_offline(context, tp, assignment, current, unclean=tp.topic in context.unclean_topics)
    if elected is not None:
        leader, isr = elected
        change(context, effects, tp, leader, isr, recovery=_recovery_state(context, leader, current))
    elif current.leader != NO_LEADER:
        # No replica can be elected. The ISR stays as it is: each of its members has every committed record,
        # and the first one that comes back becomes the leader.
        change(context, effects, tp, NO_LEADER, current.isr)


def _elect_offline(
    context: ControllerContext,
    tp: TopicPartition,
    assignment: ReplicaAssignment,
    current: LeaderAndIsr,
    *,
    unclean: bool,
) -> tuple[int, tuple[int, ...]] | None:
    """Leader and ISR: the first online replica in the ISR; without one, and `unclean`, the first online one.

    None if no replica can be elected.
    """
    online = [r for r in assignment.replicas if context.is_online(r, tp)]
    leaving = [
        r
        for r in assignment.replicas
        if r not in online and context.is_online(r, tp, include_shutting_down=True)
    ]
    for replicas in (online, leaving):
        # A broker in controlled shutdown is preferred to having no leader and to an unclean election.
        for replica in replicas:
            if replica in current.isr:
                return replica, tuple(r for r in current.isr if r in replicas)
    if unclean and online:
        return online[0], (online[0],)
    return None


def topics_without_live_isr(context: ControllerContext) -> set[str]:
    """Topics with a partition whose ISR is offline: only an unclean election can elect its leader."""
    return {
        tp.topic
        for tp, current in context.leaders.items()
        if not context.is_deleting(tp.topic)
        and not any(context.is_online(r, tp, include_shutting_down=True) for r in current.isr)
    }


def elect_preferred(context: ControllerContext, effects: Effects, tp: TopicPartition) -> bool:
    """Elect the first replica if it is online and in the ISR. False if it is not."""
    assignment, current = context.assignment(tp), context.leaders.get(tp)
    if assignment is None or current is None:
        return False
    preferred = assignment.replicas[0]
    if preferred not in current.isr or not context.is_online(preferred, tp):
        return False
    if current.leader != preferred:
        change(context, effects, tp, preferred, current.isr)
    return True


def elect_unclean(context: ControllerContext, effects: Effects, tp: TopicPartition) -> bool:
    """Elect a leader for a leaderless partition, from outside the ISR if necessary (KIP-460)."""
    assignment, current = context.assignment(tp), context.leaders.get(tp)
    if assignment is None or current is None:
        return False
    elected = _elect_offline(context, tp, assignment, current, unclean=True)
    if elected is None:
        return False
    leader, isr = elected
    change(context, effects, tp, leader, isr, recovery=_recovery_state(context, leader, current))
    return True


def _recovery_state(context: ControllerContext, elected: int, before: LeaderAndIsr) -> int:
    """The leader recovery state after an election: RECOVERING after an unclean one (KIP-704)."""
    unclean = elected not in before.isr
    context.unclean_elections += unclean
    return RECOVERING if unclean and context.has_leader_recovery else RECOVERED


def imbalanced(context: ControllerContext, percentage_max: int) -> list[TopicPartition]:
    """The partitions whose preferred leader is to be elected.

    A broker is imbalanced when more than `percentage_max` of the partitions whose preferred replica it has
    are led by other brokers (leader.imbalance.per.broker.percentage).
    """
    preferring: dict[int, list[TopicPartition]] = {}
    for topic in context.topics.values():
        if not context.is_deleting(topic.name):
            for partition, assignment in topic.assignments.items():
                preferring.setdefault(assignment.replicas[0], []).append(
                    TopicPartition(topic.name, partition)
                )
    moves: list[TopicPartition] = []
    for broker, partitions in sorted(preferring.items()):
        if broker not in context.brokers or broker in context.shutting_down:
            continue
        not_preferred = [
            tp for tp in partitions if tp in context.leaders and context.leaders[tp].leader != broker
        ]
        if len(not_preferred) * 100 > percentage_max * len(partitions):
            moves += [tp for tp in not_preferred if _can_elect_preferred(context, tp, broker)]
    return moves


def _can_elect_preferred(context: ControllerContext, tp: TopicPartition, preferred: int) -> bool:
    assignment = context.assignment(tp)
    assert assignment is not None
    return (
        not assignment.is_being_reassigned
        and preferred in context.leaders[tp].isr
        and context.is_online(preferred, tp)
        and context.has_live_leader(tp)
    )

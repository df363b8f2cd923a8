"""Who leads: the elections, and the one place where a partition's state changes.

Called by every other decision module. `settle` is level-triggered: it compares a partition with the brokers
that are online and takes the one step that is due (first leader, election, shrinking of the ISR), so it may
be called at any time, for any reason, any number of times.

Invariants, asserted in `change`: the leader epoch grows with every change made here; a leader is in the
ISR; the ISR is never empty and holds replicas only. Only `_elect_offline` with unclean election allowed
chooses from outside the ISR.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ottla.controller.effects import Effects
from ottla.controller.state import RECOVERED, RECOVERING, Assignment, ClusterState, LeaderAndIsr
from ottla.metadata import znodes
from ottla.metadata.sharing import shared
from ottla.metadata.store import Create, Operation, SetData
from ottla.metadata.znodes import NO_LEADER, TopicPartition

FIRST_LEADER_EPOCH = 0
FIRST_PARTITION_EPOCH = 0


def change(
    state: ClusterState,
    effects: Effects,
    tp: TopicPartition,
    leader: int,
    isr: Sequence[int],
    *,
    recovery: int | None = None,
    with_operations: Sequence[Operation] = (),
    new_on: Iterable[int] = (),
) -> LeaderAndIsr:
    """Give the partition this leader and ISR under the next leader epoch; tell replicas and everyone.

    `with_operations` are written in the same multi, `new_on` are brokers that get the replica just now.
    """
    before, assignment = state.leaders[tp], state.assignment(tp)
    assert assignment is not None, f"{tp} has no assignment"
    assert isr, f"{tp}: the ISR cannot be empty"
    assert set(isr) <= set(assignment.replicas), f"{tp}: ISR {isr} outside of {assignment.replicas}"
    assert leader == NO_LEADER or leader in isr, f"{tp}: leader {leader} is not in the ISR {isr}"
    after = LeaderAndIsr(
        leader,
        before.leader_epoch + 1,
        shared(isr),
        before.partition_epoch + 1,
        state.controller_epoch,
        before.recovery if recovery is None else recovery,
    )
    path = znodes.state_path(*tp)
    effects.write(
        *with_operations, SetData(path, znodes.encode_partition_state(after.node()), before.partition_epoch)
    )
    state.leaders[tp] = after
    tell(state, effects, tp, new_on=new_on)
    return after


def tell(state: ClusterState, effects: Effects, tp: TopicPartition, *, new_on: Iterable[int] = ()) -> None:
    """Send the partition's state to its replicas that can hear it, and its metadata to every broker."""
    assignment = state.assignment(tp)
    assert assignment is not None
    new = set(new_on)
    for replica in assignment.replicas:
        if state.is_online(replica, tp, also_leaving=True):
            effects.tell_replicas(tp, [replica], new=replica in new)
    effects.tell_everyone(tp)


def create_operations(
    state: ClusterState, tp: TopicPartition, *, first: LeaderAndIsr | None
) -> list[Operation]:
    """Create the partition's nodes that do not exist yet, with its state if it has one."""
    paths = [znodes.partitions_path(tp.topic), znodes.partition_path(*tp)]
    operations: list[Operation] = [Create(path) for path in paths if path not in state.existing_paths]
    state.existing_paths.add(paths[0])
    if first is None:
        state.existing_paths.add(paths[1])
    else:
        # Nobody is going to ask again for the node of a partition that has a state.
        state.existing_paths.discard(paths[1])
        data = znodes.encode_partition_state(first.node())
        operations.append(Create(znodes.state_path(*tp), data))
    return operations


def first_leadership(state: ClusterState, tp: TopicPartition) -> LeaderAndIsr | None:
    """A new partition's first state: its first live replica leads, all live ones are in sync.

    None while no replica lives.
    """
    assignment = state.assignment(tp)
    assert assignment is not None
    alive = shared(r for r in assignment.replicas if state.is_online(r, tp))
    if not alive:
        return None
    return LeaderAndIsr(
        alive[0], FIRST_LEADER_EPOCH, alive, FIRST_PARTITION_EPOCH, state.controller_epoch, RECOVERED
    )


def settle(state: ClusterState, effects: Effects, tp: TopicPartition) -> None:
    """Take the step that the partition's replicas' coming or going makes due, if any."""
    if state.is_deleting(tp.topic) or tp in state.damaged:
        return
    assignment, current = state.assignment(tp), state.leaders.get(tp)
    assert assignment is not None
    if current is None:
        first = first_leadership(state, tp)
        if first is not None:
            effects.write(*create_operations(state, tp, first=first))
            state.leaders[tp] = first
            tell(state, effects, tp, new_on=assignment.replicas)
        return
    if state.has_live_leader(tp):
        isr = tuple(r for r in current.isr if state.is_online(r, tp, also_leaving=True))
        if isr != current.isr:
            change(state, effects, tp, current.leader, isr)
        return
    elected = _elect_offline(state, tp, assignment, current, unclean=tp.topic in state.unclean_topics)
    if elected is not None:
        leader, isr = elected
        change(state, effects, tp, leader, isr, recovery=_recovery_of(state, leader, current))
    elif current.leader != NO_LEADER:
        # Nobody may lead. The ISR stays as it is: each of its members has every committed record, and the
        # first to come back leads.
        change(state, effects, tp, NO_LEADER, current.isr)


def _elect_offline(
    state: ClusterState, tp: TopicPartition, assignment: Assignment, current: LeaderAndIsr, *, unclean: bool
) -> tuple[int, tuple[int, ...]] | None:
    """The first replica that is online and in the ISR; failing that, if loss is allowed, the first online."""
    online = [r for r in assignment.replicas if state.is_online(r, tp)]
    leaving = [
        r for r in assignment.replicas if r not in online and state.is_online(r, tp, also_leaving=True)
    ]
    for replicas in (online, leaving):
        # A broker in controlled shutdown is better than nobody, and better than losing records.
        for replica in replicas:
            if replica in current.isr:
                return replica, tuple(r for r in current.isr if r in replicas)
    if unclean and online:
        return online[0], (online[0],)
    return None


def topics_without_live_isr(state: ClusterState) -> set[str]:
    """Topics for which it matters whether they allow unclean election."""
    return {
        tp.topic
        for tp, current in state.leaders.items()
        if not state.is_deleting(tp.topic)
        and not any(state.is_online(r, tp, also_leaving=True) for r in current.isr)
    }


def elect_preferred(state: ClusterState, effects: Effects, tp: TopicPartition) -> bool:
    """Give leadership to the first replica, if it is online and in the ISR. False: it is not."""
    assignment, current = state.assignment(tp), state.leaders.get(tp)
    if assignment is None or current is None:
        return False
    preferred = assignment.replicas[0]
    if preferred not in current.isr or not state.is_online(preferred, tp):
        return False
    if current.leader != preferred:
        change(state, effects, tp, preferred, current.isr)
    return True


def elect_unclean(state: ClusterState, effects: Effects, tp: TopicPartition) -> bool:
    """Elect a leader for a leaderless partition, from outside the ISR if need be (KIP-460)."""
    assignment, current = state.assignment(tp), state.leaders.get(tp)
    if assignment is None or current is None:
        return False
    elected = _elect_offline(state, tp, assignment, current, unclean=True)
    if elected is None:
        return False
    leader, isr = elected
    change(state, effects, tp, leader, isr, recovery=_recovery_of(state, leader, current))
    return True


def _recovery_of(state: ClusterState, elected: int, before: LeaderAndIsr) -> int:
    """Of an election: whether the leader has to recover, and its replicas are to know (KIP-704)."""
    unclean = elected not in before.isr
    state.unclean_elections += unclean
    return RECOVERING if unclean and state.has_leader_recovery else RECOVERED


def imbalanced(state: ClusterState, percentage_max: int) -> list[TopicPartition]:
    """The partitions to hand back to their preferred leaders.

    A broker is imbalanced when more than `percentage_max` of the partitions that prefer it are led by others
    (leader.imbalance.per.broker.percentage).
    """
    preferring: dict[int, list[TopicPartition]] = {}
    for topic in state.topics.values():
        if not state.is_deleting(topic.name):
            for partition, assignment in topic.assignments.items():
                preferring.setdefault(assignment.replicas[0], []).append(
                    TopicPartition(topic.name, partition)
                )
    moves: list[TopicPartition] = []
    for broker, partitions in sorted(preferring.items()):
        if broker not in state.brokers or broker in state.shutting_down:
            continue
        foreign = [tp for tp in partitions if tp in state.leaders and state.leaders[tp].leader != broker]
        if len(foreign) * 100 > percentage_max * len(partitions):
            moves += [tp for tp in foreign if _may_move(state, tp, broker)]
    return moves


def _may_move(state: ClusterState, tp: TopicPartition, preferred: int) -> bool:
    assignment = state.assignment(tp)
    assert assignment is not None
    return (
        not assignment.moving
        and preferred in state.leaders[tp].isr
        and state.is_online(preferred, tp)
        and state.has_live_leader(tp)
    )

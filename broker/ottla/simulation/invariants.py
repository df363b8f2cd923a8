"""What must hold of the brokers at every time, checked while a simulation runs.

`Monitor` looks at the brokers' memory, at their disks and at ZooKeeper, each `INTERVAL_S`; besides, at each
change of partitions in ZooKeeper, and whenever a broker becomes a leader or a high watermark advances. What
clients observe is checked by the workloads. The names are those of Kafka's TLA+ specifications
(KafkaReplication, Kip320) where these have one:

- *LeaderInIsr*: the leader in ZooKeeper is a member of the ISR, or there is none.
- *StrongIsr*: each member of the ISR has all committed records, those below the highest high watermark that a
  leader has had; and no leader takes a member of its ISR to have more records than it has. "Same records":
  below the high watermark all replicas have the same record at the same offset.
- *one leader per epoch*: no two brokers lead a partition with the same leader epoch.
- *leader completeness*: the leader with the highest epoch has every committed record.
- *epochs advance*: leader epochs, controller epochs and partition epochs in ZooKeeper never go back, and
  neither do leader epochs and partition epochs in a broker's memory.
- *fencing*: no former controller writes the state of a partition.
- *ISR*: the ISR is a subset of the replicas, in ZooKeeper and in the leader's memory; what the leader counts
  as the ISR (its maximal ISR, KIP-497) includes the ISR in ZooKeeper; without a new leader epoch it changes
  only as the leader proposes; a follower that stays behind its leader is proposed to leave within 1.5 times
  replica.lag.time.max.ms.
- *reassignment*: a replica that was added is in the ISR when the reassignment is complete.
- *offsets*: log start offset, last stable offset, high watermark and log end offset ascend, and a leader's
  high watermark does not go back; no high watermark of a follower is above that of each leader until then;
- *leader epochs*: no log has an epoch after that of its partition, and a leader has recorded its epoch;
- *min.insync.replicas*: so many replicas hold a record when its producer learns that it is committed
  (`check_acknowledged`, for workloads).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine
from typing import Any, Final
from uuid import UUID

from ottla.metadata import znodes
from ottla.metadata.memory import AppliedChange
from ottla.replication.partition import Partition, ReplicationListener
from ottla.simulation.cluster import Cluster, Machine, Violation
from ottla.simulation.coordinator_invariants import CoordinatorInvariants
from ottla.simulation.log_invariants import LogInvariants
from ottla.simulation.request_invariants import RequestInvariants
from ottla.storage.log import Log

INTERVAL_S: Final = 0.25
LEAVES_S: Final = 5.0
"""A follower that stays behind is proposed to leave the ISR within this time: replica.lag.time.max.ms, half
of it until the next check, which comes with the tick of each second, and a spare second."""
_HEADER: Final = struct.Struct(">qiibIhi")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta."""

_Key = tuple[str, int, int]
"""Topic, topic id as a number, partition: a re-created topic is another one."""


def _number(topic_id: UUID | None) -> int:
    return 0 if topic_id is None else topic_id.int


class Monitor:
    """See the module."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._batches: dict[_Key, dict[int, tuple[int, int, int]]] = {}
        """Of each partition: base offset -> (CRC, last offset delta, leader epoch) of committed batches."""
        self._committed: dict[_Key, tuple[int, int]] = {}
        """The highest high watermark of a leader, and its leader epoch."""
        self._leaders: dict[tuple[_Key, int], int] = {}
        """(partition, leader epoch) -> broker."""
        self._positions: dict[tuple[int, int, _Key], tuple[int, str, int]] = {}
        """(broker, its start, partition) -> next offset to compare, and where its batch is: path and
        position."""
        self._epochs: dict[tuple[str, str], int] = {}
        self._states: dict[_Key, znodes.PartitionState] = {}
        """The states in ZooKeeper."""
        self._assignments: dict[str, znodes.TopicAssignment] = {}
        """The topics in ZooKeeper."""
        self._observed: dict[int, int] = {}
        """The starts of the brokers whose replicas are observed."""
        self._behind: dict[tuple[_Key, int, int], tuple[float, int]] = {}
        """(partition, leader epoch, member of the ISR) -> since when it lacks records, and the leader's end
        then."""
        self._paused_s: dict[int, float] = {}
        """When a broker was seen paused last."""
        self._logs = LogInvariants(cluster)
        self._coordinators = CoordinatorInvariants(cluster)
        self._requests = RequestInvariants()
        self.checks = 0
        cluster.ensemble.tree.on_applied = self._on_applied
        self._check_store()
        self._observe_brokers()

    async def during(self, work: Coroutine[Any, Any, None]) -> None:
        """Check until the work has ended. Raises what it raises, or Violation."""
        tasks = [asyncio.ensure_future(self._run()), asyncio.ensure_future(work)]
        done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        for task in done:
            task.result()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            self.check()

    def check(self) -> None:
        """Raises Violation."""
        self.checks += 1
        cluster = self._cluster
        if cluster.failures:
            raise cluster.failures[0]
        if cluster.problems:
            raise Violation(f"unexpected error: {cluster.problems[0]}")
        self._observe_brokers()
        for machine in cluster.machines.values():
            if machine.process is not None and not machine.process.runs:
                self._paused_s[machine.id] = cluster.loop.now
            if machine.is_serving:
                self._check_broker(machine)
            self._logs.check(machine)
            self._coordinators.check(machine)
            self._requests.check(machine)

    # --- what happens between two checks ---

    def _observe_brokers(self) -> None:
        """Observe the replicas of brokers that have started."""
        for machine in self._cluster.machines.values():
            replication = getattr(machine.broker, "replication", None)
            if replication is None or self._observed.get(machine.id) == machine.starts:
                continue
            self._observed[machine.id] = machine.starts
            replicas = replication.replicas
            replicas._listener = _Observer(self, machine, replicas._listener)
            for partition in replicas.partitions():
                partition.listener = replicas._listener
                self.on_progress(machine, partition)

    def on_progress(self, machine: Machine, partition: Partition) -> None:
        """A high watermark has advanced, or the broker has become the leader."""
        if not partition.is_leader:
            return
        key = (partition.topic, _number(partition.topic_id), partition.partition)
        try:
            self._check_leader(machine, key, partition)
            self._check_isr(key, partition)
        except Violation as violation:
            self._cluster.failures.append(violation)

    # --- ZooKeeper ---

    def _on_applied(self, change: AppliedChange) -> None:
        """Check each change of partitions at once: what follows may hide it from the next check."""
        self._observe_brokers()
        paths = {operation.path for operation in change.operations}
        if not any(path.startswith(znodes.TOPICS) for path in paths):
            return
        before = dict(self._states)
        self._check_store()
        for key, state in self._states.items():
            if znodes.state_path(key[0], key[2]) in paths:
                self._check_proposed(key, before.get(key), state)
                if state.controller_epoch < self._epochs.get(("controller epoch", ""), 0):
                    raise Violation(
                        f"fencing: the controller with epoch {state.controller_epoch} has written {state} of "
                        f"{key[0]}-{key[2]}; the epoch is {self._epochs['controller epoch', '']}"
                    )
                self._check_members(key, state)
                for machine in self._cluster.machines.values():
                    if machine.is_serving and machine.broker is not None:
                        partition = machine.broker.replication.replicas.find(key[0], key[2])
                        if (
                            partition is not None
                            and partition.is_leader
                            and _number(partition.topic_id) == key[1]
                        ):
                            self._check_isr(key, partition)

    def _check_proposed(
        self, key: _Key, before: znodes.PartitionState | None, now: znodes.PartitionState
    ) -> None:
        """The controller changes an ISR without a new leader epoch only as the leader has proposed, and until
        the response the leader knows it."""
        if before is None or before.leader_epoch != now.leader_epoch or set(before.isr) == set(now.isr):
            return
        leader = self._replica(key, now.leader)
        if leader is None:
            return
        change = leader.isr_change
        if leader.leader_epoch != now.leader_epoch or change is None or change.proposed != set(now.isr):
            raise Violation(
                f"ISR: the controller has written {now} of {key[0]}-{key[2]} after {before}; {leader!r} has "
                f"proposed {change}"
            )

    def _check_store(self) -> None:
        cluster = self._cluster
        topics = cluster.topics()
        self._states.clear()
        node = cluster.ensemble.tree.find(znodes.CONTROLLER_EPOCH)
        if node is not None:
            self._advance(("controller epoch", ""), int(node.data))
        for (topic, partition), state in cluster.partition_states():
            self._states[topic, _number(topics[topic].topic_id), partition] = state
            where = f"{topic}-{partition}"
            if state.leader != znodes.NO_LEADER and state.leader not in state.isr:
                raise Violation(f"LeaderInIsr: {where} is led by {state.leader}, and its ISR is {state.isr}")
            if not state.isr:
                raise Violation(f"LeaderInIsr: the ISR of {where} is empty")
            replicas = topics[topic].partitions[partition]
            if not set(state.isr) <= set(replicas):
                raise Violation(f"ISR: that of {where} is {state.isr}, and its replicas are {replicas}")
            self._advance(("leader epoch", f"{where} {topics[topic].topic_id}"), state.leader_epoch)
            self._advance(
                ("controller epoch of", f"{where} {topics[topic].topic_id}"), state.controller_epoch
            )
            self._check_reassignment(topic, partition, topics[topic], state)
        self._assignments.clear()
        self._assignments.update(topics)

    def _check_reassignment(
        self, topic: str, partition: int, now: znodes.TopicAssignment, state: znodes.PartitionState
    ) -> None:
        before = self._assignments.get(topic)
        if before is None or before is now or before.topic_id != now.topic_id:
            return
        if partition not in before.partitions:
            return
        earlier = set(before.partitions[partition]) - set(before.adding.get(partition, ()))
        for replica in now.partitions[partition]:
            if replica not in earlier and replica not in {*now.adding.get(partition, ()), *state.isr}:
                raise Violation(
                    f"reassignment: that of {topic}-{partition} from {before} is complete with {now}, and "
                    f"the added replica {replica} is not in the ISR {state.isr}"
                )

    def _advance(self, name: tuple[str, str], epoch: int) -> None:
        before = self._epochs.get(name, -1)
        if epoch < before:
            raise Violation(f"epochs advance: the {' '.join(name)} went from {before} back to {epoch}")
        self._epochs[name] = epoch

    # --- brokers ---

    def _check_broker(self, machine: Machine) -> None:
        assert machine.broker is not None
        for partition in machine.broker.replication.replicas.partitions():
            key = (partition.topic, _number(partition.topic_id), partition.partition)
            where = f"{partition.topic}-{partition.partition} {key[1]:x} on {machine.host}, {machine.starts}"
            if partition.leader_epoch >= 0:
                self._advance(("leader epoch of", where), partition.leader_epoch)
            if partition.is_leader:
                if not partition.isr <= set(partition.replicas):
                    raise Violation(
                        f"ISR: on {machine.host}, that of {partition!r} is {sorted(partition.isr)}, and its "
                        f"replicas are {partition.replicas}"
                    )
                self._advance(("partition epoch of", where), partition.partition_epoch)
                leader = self._leaders.setdefault((key, partition.leader_epoch), machine.id)
                if leader != machine.id:
                    raise Violation(
                        f"one leader per epoch: brokers {leader} and {machine.id} lead {partition.topic}-"
                        f"{partition.partition} with leader epoch {partition.leader_epoch}"
                    )
                self._check_leader(machine, key, partition)
                self._check_isr(key, partition)
                self._check_lags(machine, key, partition)
            self._check_offsets(where, key, partition)
            if not partition.log.config.compacts and not partition.log.closed:
                self._compare(machine, key, partition.log, partition.high_watermark)

    def _check_offsets(self, where: str, key: _Key, partition: Partition) -> None:
        log, high_watermark = partition.log, partition.high_watermark
        stable = log.last_stable_offset(high_watermark)
        if not log.closed and not log.log_start_offset <= stable <= high_watermark <= log.log_end_offset:
            raise Violation(
                f"offsets: of {where}, the log start offset {log.log_start_offset}, the last stable offset "
                f"{stable}, the high watermark {high_watermark} and the log end offset {log.log_end_offset} "
                "do not ascend"
            )
        if partition.is_leader:
            self._advance(("high watermark of", f"{where} in epoch {partition.leader_epoch}"), high_watermark)
        elif high_watermark > max(self._committed.get(key, (0, 0))[0], log.log_start_offset):
            raise Violation(
                f"offsets: the high watermark {high_watermark} of the follower {where} is after that of each "
                f"leader until now, {self._committed.get(key)}"
            )
        if not log.closed:
            self._check_epochs(where, partition)

    def _check_epochs(self, where: str, partition: Partition) -> None:
        epoch, log_epoch = partition.leader_epoch, partition.log.latest_epoch
        if log_epoch is not None and log_epoch > epoch >= 0:
            raise Violation(f"leader epochs: {where} has {log_epoch} in its log, after {epoch}")
        if partition.is_leader and log_epoch != epoch:
            raise Violation(f"leader epochs: {where} leads with {epoch}, and its log has only {log_epoch}")

    def _check_leader(self, machine: Machine, key: _Key, partition: Partition) -> None:
        committed, committed_epoch = self._committed.get(key, (0, -1))
        epoch, high_watermark = partition.leader_epoch, partition.high_watermark
        end: int = partition.log.log_end_offset
        if epoch >= committed_epoch and end < committed:
            raise Violation(
                f"leader completeness: broker {machine.id} leads {key[0]}-{key[2]} with leader epoch {epoch} "
                f"and log end offset {end}; offset {committed} was committed in epoch {committed_epoch}"
            )
        if high_watermark > committed:
            self._committed[key] = (high_watermark, epoch)

    def _check_isr(self, key: _Key, leader: Partition) -> None:
        """Compare what a leader takes for replicated with its followers, and with the ISR in ZooKeeper."""
        for member in leader.maximal_isr:
            follower, replica = leader.follower(member), self._replica(key, member)
            if follower is None or replica is None or replica.leader_epoch != leader.leader_epoch:
                continue
            is_of_this_start = follower.broker_epoch in (-1, self._broker_epoch(member))
            if is_of_this_start and follower.log_end_offset > replica.log.log_end_offset:
                raise Violation(
                    f"StrongIsr: {leader!r} ends broker {member} at {follower.log_end_offset}; it ends "
                    f"at {replica.log.log_end_offset}"
                )
        state = self._states.get(key)
        if state is None:
            return
        self._check_members(key, state)
        if state.leader_epoch == leader.leader_epoch and not leader.maximal_isr.issuperset(state.isr):
            raise Violation(
                f"ISR: {leader!r} counts {sorted(leader.maximal_isr)}, and ZooKeeper has {state.isr}"
            )

    def _check_members(self, key: _Key, state: znodes.PartitionState) -> None:
        """Each member of the ISR in ZooKeeper has all committed records."""
        committed, epoch = self._committed.get(key, (0, -1))
        for member in state.isr:
            replica = self._replica(key, member)
            if replica is not None and replica.log.log_end_offset < committed:
                raise Violation(
                    f"StrongIsr: broker {member} is in the ISR of {key[0]}-{key[2]}, {state}, and ends at "
                    f"offset {replica.log.log_end_offset}; offset {committed} was committed in epoch {epoch}"
                )

    def _replica(self, key: _Key, broker_id: int) -> Partition | None:
        """The replica on a broker that serves."""
        machine = self._cluster.machines.get(broker_id)
        if machine is None or not machine.is_serving or machine.broker is None:
            return None
        replica: Partition | None = machine.broker.replication.replicas.find(key[0], key[2])
        if replica is None or _number(replica.topic_id) != key[1] or replica.log.closed:
            return None
        return replica

    def _broker_epoch(self, broker_id: int) -> int:
        broker = self._cluster.machines[broker_id].broker
        return -1 if broker is None else broker.broker_epoch

    def _check_lags(self, machine: Machine, key: _Key, leader: Partition) -> None:
        """A follower that stays behind does not stay in the ISR."""
        now, end = self._cluster.loop.now, leader.log.log_end_offset
        runs_since_s = self._paused_s.get(machine.id, 0.0)
        for member in leader.isr:
            follower, replica = leader.follower(member), self._replica(key, member)
            at = (key, leader.leader_epoch, member)
            since_s, expected = self._behind.get(at, (now, end))
            if (
                follower is None
                or replica is None
                or leader.isr_change is not None
                or replica.log.log_end_offset >= expected
                or follower.log_end_offset >= expected  # before it lost its power
                or runs_since_s >= since_s
            ):
                since_s, expected = now, end
            elif now - since_s > LEAVES_S:
                raise Violation(
                    f"ISR: {leader!r} does not propose that broker {member} leaves the ISR, which ends at "
                    f"offset {replica.log.log_end_offset}; the leader had {expected} at {since_s:.2f} s"
                )
            self._behind[at] = since_s, expected

    def _compare(self, machine: Machine, key: _Key, log: Log, high_watermark: int) -> None:
        """Compare the batches below the high watermark with those of the other replicas."""
        start: int = log.log_start_offset
        at = (machine.id, machine.starts, key)
        offset, path, position = self._positions.get(at, (0, "", 0))
        if max(offset, start) >= high_watermark:
            return
        offset = max(offset, start)
        batches = self._batches.setdefault(key, {})
        directory: str = str(log.directory)
        names = machine.disk.names
        bases = [segment.base_offset for segment in log.segments]
        for index, base in enumerate(bases):
            following = bases[index + 1] if index + 1 < len(bases) else 1 << 62
            if following <= offset:
                continue
            segment_path = f"{directory}/{base:020d}.log"
            file = names.get(segment_path)
            if file is None:
                return
            where = position if segment_path == path else 0
            data = file.data
            while where + _HEADER.size <= len(data):
                first, length, epoch, magic, crc, _, delta = _HEADER.unpack_from(data, where)
                if magic != 2 or where + 12 + length > len(data):
                    break
                if first + delta >= high_watermark:
                    break
                if first + delta >= offset:
                    known = batches.setdefault(first, (crc, delta, epoch))
                    if known != (crc, delta, epoch):
                        raise Violation(
                            f"same records: broker {machine.id} has another batch at offset {first} of "
                            f"{key[0]}-{key[2]}, below its high watermark {high_watermark}"
                        )
                    offset = first + delta + 1
                where += 12 + length
            self._positions[at] = (offset, segment_path, where)
            if offset >= high_watermark:
                return


class _Observer:
    """Between the replicas of a broker and the listener that they notify."""

    def __init__(self, monitor: Monitor, machine: Machine, listener: ReplicationListener) -> None:
        self._monitor = monitor
        self._machine = machine
        self._listener = listener
        self.changed = listener.changed
        self.became_follower = listener.became_follower
        self.stopped = listener.stopped

    def high_watermark_advanced(self, p: Partition) -> None:
        self._monitor.on_progress(self._machine, p)
        self._listener.high_watermark_advanced(p)

    def log_appended(self, p: Partition, *, committed: bool) -> None:
        if committed:
            self._monitor.on_progress(self._machine, p)
        self._listener.log_appended(p, committed=committed)

    def became_leader(self, p: Partition) -> None:
        self._monitor.on_progress(self._machine, p)
        self._listener.became_leader(p)


def check_acknowledged(cluster: Cluster, topic: str, partition: int, offset: int, *, sent_s: float) -> None:
    """Check that min.insync.replicas brokers hold a record whose acknowledgement has arrived now, and all
    members of the ISR. Raises Violation.

    A broker that was killed holds what it held. One that has started since the record was sent, or whose
    replica is offline, counts as one that may have held the record.
    """
    assignment = cluster.topics().get(topic)
    states = dict(cluster.partition_states())
    state = states.get((topic, partition))
    assigned = () if assignment is None else assignment.partitions.get(partition, ())
    holding: list[int] = []
    lacking: list[int] = []
    required = 1 << 30
    for machine in cluster.machines.values():
        # A broker that starts has no replicas yet.
        replication = getattr(machine.broker, "replication", None)
        replica = None if replication is None else replication.replicas.find(topic, partition)
        if replica is not None and replica.replicas:
            required = min(required, replica.min_in_sync)
        if machine.started_s >= sent_s or (replica is None and machine.id in assigned):
            holding.append(machine.id)
        elif replica is not None:
            (holding if replica.log.log_end_offset > offset else lacking).append(machine.id)
    if state is not None and set(lacking) & set(state.isr):
        raise Violation(
            f"StrongIsr: offset {offset} of {topic}-{partition} is acknowledged, and brokers {lacking} lack "
            f"it; the ISR is {state.isr}, the leader epoch {state.leader_epoch}"
        )
    if lacking and len(holding) < required < 1 << 30:
        raise Violation(
            f"min.insync.replicas: offset {offset} of {topic}-{partition} is acknowledged, brokers {holding} "
            f"hold it, and {lacking} do not; {required} must hold it"
        )

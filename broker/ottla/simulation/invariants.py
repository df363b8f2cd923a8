"""What must hold of the brokers at every time, checked while a simulation runs.

`Monitor` looks at the brokers' memory, at their disks and at ZooKeeper, each `INTERVAL_S`, and at each change
of partitions in ZooKeeper. What clients observe is checked by
the workloads. The names are those of Kafka's TLA+ specifications (KafkaReplication, Kip320) where these have
one:

- *LeaderInIsr*: the leader in ZooKeeper is a member of the ISR, or there is none.
- *StrongIsr*: each member of the ISR has all records below the leader's high watermark; "same records": below
  the high watermark all replicas have the same record at the same offset.
- *one leader per epoch*: no two brokers lead a partition with the same leader epoch.
- *leader completeness*: the leader with the highest epoch has every committed record.
- *epochs advance*: leader epochs, controller epochs and partition epochs in ZooKeeper never go back, and
  neither do leader epochs and partition epochs in a broker's memory.
- *ISR*: the ISR is a subset of the replicas, in ZooKeeper and in the leader's memory; what the leader counts
  as the ISR (its maximal ISR, KIP-497) includes the ISR in ZooKeeper.
- *offsets*: log start offset, last stable offset, high watermark and log end offset ascend, and a leader's
  high watermark does not go back;
- *leader epochs*: no log has an epoch after that of its partition;
- *min.insync.replicas*: so many replicas hold a record when its producer learns that it is committed
  (`check_acknowledged`, for workloads).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine
from typing import Any, Final

from ottla.metadata import znodes
from ottla.metadata.memory import AppliedChange
from ottla.replication.partition import Partition
from ottla.simulation.cluster import Cluster, Machine, Violation
from ottla.simulation.coordinator_invariants import CoordinatorInvariants
from ottla.simulation.log_invariants import LogInvariants
from ottla.storage.log import Log

INTERVAL_S: Final = 0.25
_HEADER: Final = struct.Struct(">qiibIhi")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta."""

_Key = tuple[str, str, int]
"""Topic, topic id, partition: a re-created topic is another one."""


class Monitor:
    """See the module."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._batches: dict[_Key, dict[int, tuple[int, int]]] = {}
        """Of each partition: base offset -> (CRC, last offset delta) of committed batches."""
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
        self._logs = LogInvariants(cluster)
        self._coordinators = CoordinatorInvariants(cluster)
        self.checks = 0
        cluster.ensemble.tree.on_applied = self._on_applied
        self._check_store()

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
        for machine in cluster.machines.values():
            if machine.is_serving:
                self._check_broker(machine)
            self._logs.check(machine)
            self._coordinators.check(machine)

    # --- ZooKeeper ---

    def _on_applied(self, change: AppliedChange) -> None:
        """Check each change of partitions at once: what follows may hide it from the next check."""
        paths = {operation.path for operation in change.operations}
        if not any(path.startswith(znodes.TOPICS) for path in paths):
            return
        self._check_store()
        for key in self._states:
            if znodes.state_path(key[0], key[2]) in paths:
                for machine in self._cluster.machines.values():
                    if machine.is_serving and machine.broker is not None:
                        partition = machine.broker.replication.replicas.find(key[0], key[2])
                        if (
                            partition is not None
                            and partition.is_leader
                            and str(partition.topic_id) == key[1]
                        ):
                            self._check_isr(key, partition)

    def _check_store(self) -> None:
        cluster = self._cluster
        topics = cluster.topics()
        self._states.clear()
        for (topic, partition), state in cluster.partition_states():
            self._states[topic, str(topics[topic].topic_id), partition] = state
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
        node = cluster.ensemble.tree.find(znodes.CONTROLLER_EPOCH)
        if node is not None:
            self._advance(("controller epoch", ""), int(node.data))

    def _advance(self, name: tuple[str, str], epoch: int) -> None:
        before = self._epochs.get(name, -1)
        if epoch < before:
            raise Violation(f"epochs advance: the {' '.join(name)} went from {before} back to {epoch}")
        self._epochs[name] = epoch

    # --- brokers ---

    def _check_broker(self, machine: Machine) -> None:
        assert machine.broker is not None
        for partition in machine.broker.replication.replicas.partitions():
            key = (partition.topic, str(partition.topic_id), partition.partition)
            where = f"{partition.topic}-{partition.partition} {key[1]} on {machine.host}, {machine.starts}"
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
                self._check_leader(
                    machine, key, partition.leader_epoch, partition.high_watermark, partition.log
                )
                self._check_isr(key, partition)
            self._check_offsets(where, partition)
            if not partition.log.config.compacts and not partition.log.closed:
                self._compare(machine, key, partition.log, partition.high_watermark)

    def _check_offsets(self, where: str, partition: Partition) -> None:
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
        epoch = log.latest_epoch
        if epoch is not None and epoch > partition.leader_epoch >= 0:
            raise Violation(f"leader epochs: {where} has {epoch} in its log, after {partition.leader_epoch}")

    def _check_leader(self, machine: Machine, key: _Key, epoch: int, high_watermark: int, log: Log) -> None:
        committed, committed_epoch = self._committed.get(key, (0, -1))
        end: int = log.log_end_offset
        if epoch >= committed_epoch and end < committed:
            raise Violation(
                f"leader completeness: broker {machine.id} leads {key[0]}-{key[2]} with leader epoch {epoch} "
                f"and log end offset {end}; offset {committed} was committed in epoch {committed_epoch}"
            )
        if high_watermark > committed:
            self._committed[key] = (high_watermark, epoch)

    def _check_isr(self, key: _Key, leader: Partition) -> None:
        """Compare what the current leader takes for replicated with the ISR in ZooKeeper."""
        state = self._states.get(key)
        if state is None or state.leader_epoch != leader.leader_epoch:
            return
        if not leader.maximal_isr.issuperset(state.isr):
            raise Violation(
                f"ISR: {leader!r} counts {sorted(leader.maximal_isr)}, and ZooKeeper has {state.isr}"
            )
        for member in state.isr:
            machine = self._cluster.machines.get(member)
            if machine is None or not machine.is_serving or machine.broker is None:
                continue
            replica = machine.broker.replication.replicas.find(leader.topic, leader.partition)
            if (
                replica is not None
                and replica.leader_epoch == leader.leader_epoch
                and replica.topic_id == leader.topic_id
                and not replica.log.closed
                and replica.log.log_end_offset < leader.high_watermark
            ):
                raise Violation(
                    f"StrongIsr: broker {member} is in the ISR {state.isr} of {leader!r} and ends at offset "
                    f"{replica.log.log_end_offset}, before the high watermark {leader.high_watermark}"
                )

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
                first, length, _, magic, crc, _, delta = _HEADER.unpack_from(data, where)
                if magic != 2 or where + 12 + length > len(data):
                    break
                if first + delta >= high_watermark:
                    break
                if first + delta >= offset:
                    known = batches.setdefault(first, (crc, delta))
                    if known != (crc, delta):
                        raise Violation(
                            f"same records: broker {machine.id} has another batch at offset {first} of "
                            f"{key[0]}-{key[2]}, below its high watermark {high_watermark}"
                        )
                    offset = first + delta + 1
                where += 12 + length
            self._positions[at] = (offset, segment_path, where)
            if offset >= high_watermark:
                return


def check_acknowledged(cluster: Cluster, topic: str, partition: int, offset: int, *, sent_s: float) -> None:
    """Check that min.insync.replicas brokers hold a record whose acknowledgement has arrived now. Raises
    Violation.

    A broker that was killed holds what it held. One that has started since the record was sent, or whose
    replica is offline, counts as one that may have held the record.
    """
    assignment = cluster.topics().get(topic)
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
    if lacking and len(holding) < required < 1 << 30:
        raise Violation(
            f"min.insync.replicas: offset {offset} of {topic}-{partition} is acknowledged, brokers {holding} "
            f"hold it, and {lacking} do not; {required} must hold it"
        )

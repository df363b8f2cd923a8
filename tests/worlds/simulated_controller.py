"""The controller's pure decisions over a tree in memory, with no loop, no tasks and no brokers.

`SimulatedController.decide` takes a decision and writes its effects at once. It then holds the state against
the tree and the house's invariants, so that every test of a decision is also a test of those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar
from uuid import UUID

from ottla.controller import broker_changes, isr, topics
from ottla.controller.context import ControllerContext, LeaderAndIsr
from ottla.controller.effects import Effects
from ottla.metadata import znodes
from ottla.metadata.memory import MemoryTree
from ottla.metadata.store import Create
from ottla.metadata.znodes import NO_LEADER, BrokerInfo, Endpoint, TopicPartition
from ottla.protocol.messages import AlterPartitionRequest, AlterPartitionResponse

CONTROLLER_EPOCH = 7
TOPIC_ID = UUID(int=0x5EED)
T0 = TopicPartition("t", 0)

T = TypeVar("T")


def broker(broker_id: int, epoch: int | None = None, rack: str | None = None) -> BrokerInfo:
    return BrokerInfo(
        broker_id,
        (Endpoint("PLAINTEXT", f"host{broker_id}", 9092),),
        rack,
        epoch=100 + broker_id if epoch is None else epoch,
    )


class SimulatedController:
    def __init__(self, brokers: Iterable[int] = (1, 2, 3)) -> None:
        self.tree = MemoryTree()
        for path in (znodes.TOPICS, znodes.DELETE_TOPICS):
            self._make(path)
        self.context = ControllerContext(controller_id=1, controller_epoch=CONTROLLER_EPOCH)
        self.context.brokers = {b: broker(b) for b in brokers}
        self.effects = Effects()
        self.epochs: dict[TopicPartition, LeaderAndIsr] = {}

    def _make(self, path: str) -> None:
        names = path.strip("/").split("/")
        for depth in range(1, len(names) + 1):
            ancestor = "/" + "/".join(names[:depth])
            if self.tree.find(ancestor) is None:
                self.tree.apply([Create(ancestor)], 0)

    def decide(self, decision: Callable[[ControllerContext, Effects], T]) -> T:
        """Take a decision, write what it says, and check what must hold after every decision."""
        self.effects = Effects()
        before = dict(self.context.leaders)
        result = decision(self.context, self.effects)
        for group in (*self.effects.writes, *self.effects.last_writes):
            self.tree.apply(group, 0)
        self._check_invariants(before)
        return result

    def _check_invariants(self, before: dict[TopicPartition, LeaderAndIsr]) -> None:
        for tp, now in self.context.leaders.items():
            assignment = self.context.assignment(tp)
            assert assignment is not None, f"{tp} has a leader and no assignment"
            assert now.isr, f"{tp}: empty ISR"
            assert set(now.isr) <= set(assignment.replicas), f"{tp}: ISR {now.isr} of {assignment.replicas}"
            assert now.leader == NO_LEADER or now.leader in now.isr, f"{tp}: leader outside the ISR: {now}"
            was = before.get(tp)
            if was is not None:
                assert now.leader_epoch >= was.leader_epoch, f"{tp}: the leader epoch went back"
                assert now.partition_epoch >= was.partition_epoch, f"{tp}: the partition epoch went back"
                if now.leader != was.leader:
                    assert now.leader_epoch > was.leader_epoch, f"{tp}: a new leader under the old epoch"
            node = self.tree.find(znodes.state_path(*tp))
            assert node is not None, f"{tp}: a state that is not written"
            assert znodes.decode_partition_state(*tp, node.data) == now.node(), f"{tp}: not what is written"
            assert node.version == now.partition_epoch, f"{tp}: the partition epoch is not the version"
        for topic in self.context.topics.values():
            node = self.tree.find(znodes.topic_path(topic.name))
            assert node is not None
            assert znodes.decode_topic(topic.name, node.data) == topic.node(), f"{topic.name}: not as written"

    # Stories' words.

    def create(
        self, assignments: dict[int, tuple[int, ...]], name: str = "t", topic_id: UUID = TOPIC_ID
    ) -> None:
        topic = topics.NewTopic(name, assignments, {}).topic(topic_id)
        self.tree.apply([Create(znodes.topic_path(name), znodes.encode_topic(topic.node()))], 0)
        self.decide(lambda s, e: topics.create_topic(s, e, topic))

    def alive(self, *brokers: int, bounced: Sequence[int] = ()) -> None:
        """These brokers are registered now, `bounced` under a new epoch."""

        def decision(context: ControllerContext, effects: Effects) -> None:
            infos = {b: context.brokers.get(b, broker(b)) for b in brokers}
            infos.update({b: broker(b, epoch=infos[b].epoch + 1000) for b in bounced})
            new_brokers, failed_brokers = broker_changes.update_brokers(context, infos)
            broker_changes.on_brokers_changed(context, effects, new_brokers, failed_brokers)

        self.decide(decision)

    def lead(self, tp: TopicPartition = T0) -> LeaderAndIsr:
        return self.context.leaders[tp]

    def reported(self, tp: TopicPartition = T0) -> list[int]:
        """The brokers that got a LeaderAndIsr for the partition in the last decision."""
        return sorted(b for b, states in self.effects.leader_and_isr.items() if tp in states)

    def stopped(self, tp: TopicPartition = T0) -> dict[int, tuple[bool, int]]:
        """broker -> (delete, leader epoch) of the last decision's StopReplica."""
        return {
            b: (stops[tp].delete, stops[tp].leader_epoch)
            for b, stops in self.effects.stop_replicas.items()
            if tp in stops
        }

    def ask_isr(
        self,
        isr_wanted: Iterable[int],
        *,
        tp: TopicPartition = T0,
        by: int | None = None,
        version: int = 3,
        broker_epoch: int | None = None,
        leader_epoch: int | None = None,
        partition_epoch: int | None = None,
        member_epochs: dict[int, int] | None = None,
        recovery: int = 0,
    ) -> AlterPartitionResponse:
        """AlterPartition as the leader would send it, but for what is given."""
        current = self.context.leaders[tp]
        sender = current.leader if by is None else by
        known = self.context.brokers.get(sender)
        members = member_epochs or {}
        topic = self.context.topics[tp.topic]
        partition = AlterPartitionRequest.PartitionData(
            partition_index=tp.partition,
            leader_epoch=current.leader_epoch if leader_epoch is None else leader_epoch,
            partition_epoch=current.partition_epoch if partition_epoch is None else partition_epoch,
            new_isr=list(isr_wanted) if version < 3 else [],
            new_isr_with_epochs=[
                AlterPartitionRequest.BrokerState(broker_id=b, broker_epoch=members.get(b, -1))
                for b in isr_wanted
            ]
            if version >= 3
            else [],
            leader_recovery_state=recovery,
        )
        request = AlterPartitionRequest(
            broker_id=sender,
            broker_epoch=(known.epoch if known else -1) if broker_epoch is None else broker_epoch,
            topics=[
                AlterPartitionRequest.TopicData(
                    topic_name=tp.topic if version < 2 else "",
                    topic_id=topic.topic_id if version >= 2 else UUID(int=0),
                    partitions=[partition],
                )
            ],
        )
        return self.decide(lambda s, e: isr.alter_partition(s, e, request, version))

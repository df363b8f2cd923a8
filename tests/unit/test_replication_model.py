"""Committed records are never lost, and logs never disagree on them, under any order of events.

Hypothesis draws elections, fetches (also delayed ones), produces, lost responses of the controller, crashes
and restarts. The controller elects members of the ISR only, and brokers lose only their memory and the high
watermark that they had not checkpointed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import FetchResponse
from ottla.replication.follower import FollowerFetch, RequestOffsets
from ottla.replication.offsets import offset_for_leader_epoch
from tests.worlds.replication_cluster import LAG_MS_MAX, Cluster, as_answer, values_of

BROKERS = st.integers(1, 3)


class Replication(RuleBasedStateMachine):
    """Three replicas of one partition under faults."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory(prefix="ottla-replication-")
        self.cluster = Cluster(Path(self.directory.name))
        self.produced = 0
        self.committed: list[str] = []
        self.underway: list[tuple[FollowerFetch, FetchResponse.PartitionData]] = []

    def teardown(self) -> None:
        for broker in list(self.cluster.nodes):
            self.cluster.kill(broker)
        self.directory.cleanup()

    def alive(self, broker: int) -> bool:
        return broker in self.cluster.alive

    @rule(broker=BROKERS, count=st.integers(1, 3))
    def produce(self, broker: int, count: int) -> None:
        """Produces to a broker that believes it leads, deposed or not."""
        if self.alive(broker) and self.cluster.nodes[broker].is_leader:
            values = [f"r{self.produced + index}" for index in range(count)]
            self.produced += count
            self.cluster.produce(*values, acks=1, to=broker)

    def can_fetch(self, broker: int) -> bool:
        """A fetcher has one request in flight; after a restart or an election it is a new fetcher."""
        fetch = self.cluster.fetches.get(broker)
        return (
            fetch is not None
            and fetch.partition.leader_id in self.cluster.nodes
            and all(fetch is not other for other, _ in self.underway)
        )

    @rule(broker=BROKERS)
    def fetch(self, broker: int) -> None:
        if self.can_fetch(broker):
            self.cluster.fetch(broker)

    @rule(broker=BROKERS)
    def fetch_slowly(self, broker: int) -> None:
        """The response is in flight while other events happen."""
        if self.can_fetch(broker):
            fetch, request = self.cluster.ask(broker)
            self.underway.append((fetch, as_answer(self.cluster.answer(broker, request))))

    @precondition(lambda self: bool(self.underway))
    @rule()
    def arrive(self) -> None:
        fetch, answer = self.underway.pop(0)
        broker = fetch.partition.broker_id
        if self.cluster.fetches.get(broker) is not fetch:
            return  # the fetcher has gone on to another epoch, or died
        step = fetch.decide(answer)
        if not isinstance(step, RequestOffsets):
            fetch.apply(step, now_ms=0, monotonic_ms=self.cluster.now_ms, backoff_ms=0)

    @rule(elapsed_ms=st.sampled_from([1, LAG_MS_MAX // 2, LAG_MS_MAX + 1]))
    def time_passes(self, elapsed_ms: int) -> None:
        self.cluster.now_ms += elapsed_ms
        for node in self.cluster.nodes.values():
            node.maybe_shrink_isr(self.cluster.now_ms)

    @rule(answer=st.booleans())
    def controller_decides(self, answer: bool) -> None:
        self.cluster.decide_proposals(answer=answer)

    @rule(leader=BROKERS, informed=st.sets(BROKERS))
    def elect(self, leader: int, informed: set[int]) -> None:
        """A clean election of a live member of the ISR. Some brokers learn of it later."""
        cluster = self.cluster
        if leader in cluster.isr and self.alive(leader):
            isr = [broker for broker in cluster.isr if self.alive(broker)]
            cluster.elect(leader, isr=isr, informed=informed & cluster.alive)

    @rule(broker=BROKERS)
    def hear(self, broker: int) -> None:
        if self.alive(broker):
            self.cluster.leader_and_isr(broker)

    @rule(broker=BROKERS)
    def crash(self, broker: int) -> None:
        if self.alive(broker):
            self.cluster.kill(broker)

    @rule(broker=BROKERS, forgotten=st.integers(0, 3))
    def restart(self, broker: int, forgotten: int) -> None:
        if not self.alive(broker):
            known = max(0, len(self.committed) - forgotten)
            self.cluster.start(broker, high_watermark=known if broker in self.cluster.isr else 0)
            self.cluster.leader_and_isr(broker)

    @invariant()
    def what_was_committed_stays(self) -> None:
        for node in self.cluster.nodes.values():
            assert node.log.log_start_offset <= node.high_watermark <= node.log.log_end_offset
            visible = values_of(node, node.high_watermark)
            shared = min(len(visible), len(self.committed))
            assert visible[:shared] == self.committed[:shared], f"{node!r} shows another history"
            if len(visible) > len(self.committed):
                self.committed = visible

    @invariant()
    def every_electable_replica_has_all_that_is_committed(self) -> None:
        for broker in self.cluster.isr:
            node = self.cluster.nodes.get(broker)
            if node is not None:
                assert values_of(node)[: len(self.committed)] == self.committed, f"{node!r} lacks some"

    @invariant()
    def no_follower_is_ahead_of_a_leader_in_its_epoch(self) -> None:
        leader = self.cluster.nodes.get(self.cluster.leader_id)
        if leader is not None and leader.is_leader and leader.leader_epoch == self.cluster.leader_epoch:
            assert leader.log.latest_epoch == leader.leader_epoch
            assert offset_for_leader_epoch(leader, -1, leader.leader_epoch)[0] == ErrorCode.NONE


Replication.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestReplication = Replication.TestCase

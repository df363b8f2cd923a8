"""The fetcher against a model of a cluster's logs: every record is returned once and in order."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.client.core.assigned import Assigned, OffsetAndMetadata, Phase
from ottla.client.core.baseline import Baseline
from ottla.client.core.cluster import Cluster
from ottla.client.core.consumer_config import ConsumerConfig
from ottla.client.core.fetch_buffer import FetchBuffer
from ottla.client.core.fetcher import Fetcher
from ottla.client.core.positions import Positions
from ottla.client.core.stats import FetchStats, Window
from ottla.client.core.types import TopicPartition, UnsentRequest
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from ottla.protocol.records import Record, build_batch

PLACES = [TopicPartition("t", n) for n in range(3)]
RECORD_BYTES = 100
BATCH = 4
MOST_BYTES = 6000
MOST_PARTITION_BYTES = 2000


class Broker:
    """One node of the model: its fetch session."""

    def __init__(self) -> None:
        self.session = 0
        self.epoch = 0
        self.wanted: dict[TopicPartition, FetchRequest.FetchPartition] = {}


class FetcherMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        config = ConsumerConfig.of(
            bootstrap_servers="h:1",
            auto_offset_reset="earliest",
            fetch_max_bytes=MOST_BYTES,
            max_partition_fetch_bytes=MOST_PARTITION_BYTES,
        )

        def uniform(low: float, high: float) -> float:
            return (low + high) / 2

        self.cluster = Cluster(uniform=uniform)
        self.assigned = Assigned()
        self.positions = Positions(config, self.cluster, self.assigned, uniform, Baseline(self.cluster))
        self.buffer = FetchBuffer(self.assigned, None)
        self.fetcher = Fetcher(
            config, self.cluster, self.assigned, self.positions, uniform, self.buffer, FetchStats(Window())
        )
        self.starts = dict.fromkeys(PLACES, 0)
        self.ends = dict.fromkeys(PLACES, 0)
        self.leaders = dict.fromkeys(PLACES, 0)
        self.epochs = dict.fromkeys(PLACES, 1)
        self.brokers = [Broker(), Broker()]
        self.sent: list[tuple[Any, UnsentRequest]] = []
        self.next: dict[TopicPartition, int | None] = dict.fromkeys(PLACES)
        """The offset that has to come next, if there is but one that may."""
        self.assigned.assign(PLACES)
        for state in self.assigned:
            self.positions.reset((state,))
        self.cluster.want(["t"])
        self.tell_metadata()

    def tell_metadata(self) -> None:
        self.cluster.invalidate()
        self.now += 10
        assert self.cluster.request(self.now) is not None
        brokers = [MetadataResponse.MetadataResponseBroker(node_id=n, host="h", port=n + 1) for n in (0, 1)]
        partitions = [
            MetadataResponse.MetadataResponsePartition(
                partition_index=tp.partition, leader_id=self.leaders[tp], leader_epoch=self.epochs[tp],
                replica_nodes=[0, 1], isr_nodes=[0, 1],
            )
            for tp in PLACES
        ]  # fmt: skip
        topic = MetadataResponse.MetadataResponseTopic(name="t", partitions=partitions)
        self.cluster.take(MetadataResponse(brokers=brokers, topics=[topic]), self.now)

    # --- what happens ---

    @rule(place=st.sampled_from(PLACES), count=st.integers(1, 12))
    def append(self, place: TopicPartition, count: int) -> None:
        self.ends[place] += BATCH * count

    @rule(place=st.sampled_from(PLACES))
    def elect(self, place: TopicPartition) -> None:
        self.leaders[place] ^= 1
        self.epochs[place] += 1

    @rule(place=st.sampled_from(PLACES), gone=st.integers(1, 3))
    def delete_old_records(self, place: TopicPartition, gone: int) -> None:
        self.starts[place] = min(self.starts[place] + BATCH * gone, self.ends[place])

    @rule()
    def hear_of_leaders(self) -> None:
        self.tell_metadata()

    @rule()
    def poll(self) -> None:
        self.now += 0.2
        for core in (self.positions, self.fetcher):
            self.sent += [(core, unsent) for unsent in core.poll(self.now)]

    @precondition(lambda self: self.sent)
    @rule(number=st.integers(0, 3), lost=st.booleans())
    def answer(self, number: int, lost: bool) -> None:
        core, unsent = self.sent.pop(number % len(self.sent))
        if lost and number == 3:
            core.on_response(unsent.tag, ConnectionError("lost"), self.now)
            return
        message = unsent.message
        response: Any
        if isinstance(message, FetchRequest):
            response = self.fetch(unsent.node_id, message)
        elif isinstance(message, ListOffsetsRequest):
            response = self.list_offsets(unsent.node_id, message)
        else:
            assert isinstance(message, OffsetForLeaderEpochRequest)
            response = self.epoch_ends(unsent.node_id, message)
        core.on_response(unsent.tag, response, self.now)

    @rule(most=st.integers(1, 30))
    def take(self, most: int) -> None:
        taken = self.buffer.take(most)
        assert sum(map(len, taken.values())) <= most
        for place, records in taken.items():
            expected = self.next[place]
            for record in records:
                if expected is not None:
                    # Only what was deleted may be missing.
                    assert record.offset == expected or expected < self.starts[place] <= record.offset
                assert record.value == value_of(place, record.offset)
                expected = record.offset + 1
            self.next[place] = expected
            assert self.assigned[place].position == expected

    @rule(place=st.sampled_from(PLACES), share=st.floats(0, 1))
    def seek(self, place: TopicPartition, share: float) -> None:
        offset = int(share * self.ends[place])
        self.assigned[place].seek(offset)
        self.next[place] = offset

    @rule(place=st.sampled_from(PLACES), paused=st.booleans())
    def pause(self, place: TopicPartition, paused: bool) -> None:
        self.assigned[place].paused = paused

    @rule(kept=st.sets(st.sampled_from(PLACES)))
    def assign_anew(self, kept: set[TopicPartition]) -> None:
        self.assigned.assign(kept)
        self.assigned.assign(PLACES)
        for place in PLACES:
            if place not in kept:
                self.next[place] = None
                self.positions.reset((self.assigned[place],))

    # --- the cluster ---

    def fetch(self, node_id: int, request: FetchRequest) -> FetchResponse:
        broker = self.brokers[node_id]
        if request.session_epoch == 0:
            broker.session += 1
            broker.epoch = 1
            broker.wanted = {}
        elif (request.session_id, request.session_epoch) != (broker.session, broker.epoch):
            return FetchResponse(error_code=int(ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
        else:
            broker.epoch += 1
        for forgotten in request.forgotten_topics_data:
            for number in forgotten.partitions:
                broker.wanted.pop(TopicPartition("t", number), None)
        for topic in request.topics:
            for row in topic.partitions:
                broker.wanted[TopicPartition("t", row.partition)] = row
        rows = []
        left = request.max_bytes
        for place, wanted in broker.wanted.items():
            row = self.read(node_id, place, wanted, left)
            left -= len(row.records or b"")
            rows.append(row)
        topics = [FetchResponse.FetchableTopicResponse(topic="t", partitions=rows)]
        return FetchResponse(session_id=broker.session, responses=topics)

    def read(
        self, node_id: int, place: TopicPartition, wanted: FetchRequest.FetchPartition, left: int
    ) -> FetchResponse.PartitionData:
        row = FetchResponse.PartitionData(partition_index=place.partition, high_watermark=self.ends[place])
        offset = wanted.fetch_offset
        if self.leaders[place] != node_id:
            row.error_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif wanted.current_leader_epoch < self.epochs[place]:
            row.error_code = int(ErrorCode.FENCED_LEADER_EPOCH)
        elif not self.starts[place] <= offset <= self.ends[place]:
            row.error_code = int(ErrorCode.OFFSET_OUT_OF_RANGE)
        else:
            data = b""
            at = offset - offset % BATCH
            while at < self.ends[place]:
                batch = batch_at(place, at, self.epochs[place])
                if data and len(data) + len(batch) > min(left, wanted.partition_max_bytes):
                    data += batch[: len(batch) // 2]
                    break
                data += batch
                at += BATCH
            row.records = data
        return row

    def list_offsets(self, node_id: int, request: ListOffsetsRequest) -> ListOffsetsResponse:
        rows = []
        for row in request.topics[0].partitions:
            place = TopicPartition("t", row.partition_index)
            answer = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=place.partition)
            if self.leaders[place] != node_id:
                answer.error_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            else:
                answer.offset = self.starts[place]
                answer.leader_epoch = self.epochs[place]
            rows.append(answer)
        topic = ListOffsetsResponse.ListOffsetsTopicResponse(name="t", partitions=rows)
        return ListOffsetsResponse(topics=[topic])

    def epoch_ends(self, node_id: int, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        rows = []
        for row in request.topics[0].partitions:
            place = TopicPartition("t", row.partition)
            answer = OffsetForLeaderEpochResponse.EpochEndOffset(
                partition=place.partition, leader_epoch=row.leader_epoch, end_offset=self.ends[place]
            )
            if self.leaders[place] != node_id:
                answer.error_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            rows.append(answer)
        topic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic="t", partitions=rows)
        return OffsetForLeaderEpochResponse(topics=[topic])

    # --- what holds always ---

    @invariant()
    def memory_is_bounded(self) -> None:
        if not hasattr(self, "buffer"):
            return
        one_batch = len(batch_at(PLACES[0], 0, 1))
        paused = len(PLACES) * 2 * (MOST_PARTITION_BYTES + one_batch)
        assert self.buffer.bytes <= len(self.brokers) * (MOST_BYTES + one_batch) + paused
        nodes = [unsent.node_id for core, unsent in self.sent if core is self.fetcher]
        assert len(nodes) == len(set(nodes)), "two fetches on their way to one node"

    def teardown(self) -> None:
        """Without further faults, every record arrives."""
        if not hasattr(self, "buffer"):
            return
        for state in self.assigned:
            state.paused = False
        for _ in range(200):
            self.tell_metadata()
            self.poll()
            while self.sent:
                self.answer(0, False)
            self.take(1000)
            if all(s.phase is Phase.FETCHING and s.position == self.ends[s.tp] for s in self.assigned):
                break
        for state in self.assigned:
            assert (state.phase, state.position) == (Phase.FETCHING, self.ends[state.tp])
        assert not self.positions.problems
        assert not self.buffer.problems
        assert self.buffer.bytes == 0


def value_of(place: TopicPartition, offset: int) -> bytes:
    return f"{place} {offset}".encode().ljust(RECORD_BYTES)


def batch_at(place: TopicPartition, offset: int, epoch: int) -> bytes:
    rows = [Record(n, 1, None, value_of(place, n)) for n in range(offset, offset + BATCH)]
    return build_batch(rows, base_offset=offset, leader_epoch=epoch)


TestFetcher = FetcherMachine.TestCase
TestFetcher.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


def test_a_committed_offset_is_not_validated_at_a_leader_that_is_older() -> None:
    config = ConsumerConfig.of(bootstrap_servers="h:1", auto_offset_reset="earliest", group_id="g")
    cluster, assigned = Cluster(uniform=lambda low, high: low), Assigned()
    positions = Positions(config, cluster, assigned, lambda low, high: low, Baseline(cluster))
    cluster.want(["t"])
    cluster.request(0.0)
    row = MetadataResponse.MetadataResponsePartition(partition_index=0, leader_id=1, leader_epoch=1)
    topic = MetadataResponse.MetadataResponseTopic(name="t", partitions=[row])
    broker = MetadataResponse.MetadataResponseBroker(node_id=1, host="h", port=1)
    cluster.take(MetadataResponse(brokers=[broker], topics=[topic]), 0.0)
    place = TopicPartition("t", 0)
    assigned.assign([place])
    state = assigned.get(place)
    assert state is not None
    positions.begin(state, OffsetAndMetadata(48, "", 2))

    def asked(now: float) -> int:
        (unsent,) = positions.poll(now)
        (sent,) = unsent.message.topics[0].partitions
        answer = OffsetForLeaderEpochResponse.EpochEndOffset(
            partition=0, error_code=int(ErrorCode.UNKNOWN_LEADER_EPOCH)
        )
        result = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic="t", partitions=[answer])
        positions.on_response(unsent.tag, OffsetForLeaderEpochResponse(topics=[result]), now)
        assert (state.phase, state.position) == (Phase.VALIDATION, 48)
        return int(sent.current_leader_epoch)

    assert asked(1.0) == 2, "a leader with epoch 1 rejects it"
    assert asked(60.0) == 2
    assert asked(62.0) == 1, "the topic was created again"

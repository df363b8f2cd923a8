"""Fairness of a consumer's fetches against a simulated cluster of several brokers: a record of any partition
is returned soon, for any state of other partitions and any settings.

Time advances in rounds of 10 ms. The fetcher is polled as the driver polls it: after a response, when the
reader has made room, and at the time that it requested.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client.core.assigned import Assigned
from ottla.client.core.baseline import Baseline
from ottla.client.core.cluster import Cluster
from ottla.client.core.consumer_config import ConsumerConfig
from ottla.client.core.fetch_buffer import FetchBuffer
from ottla.client.core.fetcher import Fetcher
from ottla.client.core.positions import Positions
from ottla.client.core.stats import FetchStats, Window
from ottla.client.core.types import TopicPartition, UnsentRequest
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import FetchRequest, FetchResponse, MetadataResponse
from ottla.protocol.records import Record, build_batch

ROUND_S = 0.01
KiB, MiB = 1024, 1024 * 1024
READ_MAX = 40
"""Batches of one partition in one answer, whatever the limits: enough to be called large here."""


@cache
def batch_at(offset: int, value_bytes: int) -> bytes:
    """One record in a batch of its own."""
    return build_batch([Record(offset, 1, None, bytes(value_bytes))], base_offset=offset)


class SimulatedBroker:
    """Its fetch session; without one it serves partitions in the order in which a request names them."""

    def __init__(self, *, keeps_sessions: bool) -> None:
        self.keeps_sessions = keeps_sessions
        self.session_id = 0
        self.epoch = 0
        self.wanted: dict[TopicPartition, FetchRequest.FetchPartition] = {}
        self.silent = False
        """It takes requests, and answers nothing any more."""

    def open(self, request: FetchRequest) -> bool:
        """Whether the request fits the session."""
        if request.session_epoch == 0:
            self.session_id += self.keeps_sessions
            self.wanted = {}
        elif (request.session_id, request.session_epoch) != (self.session_id, self.epoch):
            return False
        self.epoch = request.session_epoch + 1
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                self.wanted.pop(TopicPartition(forgotten.topic, index), None)
        for topic in request.topics:
            for row in topic.partitions:
                self.wanted[TopicPartition(topic.topic, row.partition)] = row
        return True


class Waiting:
    """A deferred fetch at a broker."""

    def __init__(self, unsent: UnsentRequest, at: float) -> None:
        assert isinstance(unsent.message, FetchRequest)
        self.unsent = unsent
        self.request = unsent.message
        self.opened = False
        self.deadline = at + self.request.max_wait_ms / 1000


class SimulatedCluster:
    """Brokers, their logs, and a consumer of all partitions."""

    def __init__(
        self,
        brokers: int,
        leaders: list[int],
        *,
        topics: int = 1,
        sessions: bool = True,
        followers: bool = False,
        value_bytes: int = 100,
        **configured: object,
    ) -> None:
        """`followers`: the leader redirects fetches of its records to the next broker."""
        self.config = ConsumerConfig.of(bootstrap_servers="h:1", **configured)
        self.value_bytes = value_bytes
        self.followers = followers
        self.now = 0.0
        self.brokers = [SimulatedBroker(keeps_sessions=sessions) for _ in range(brokers)]
        self.leaders = {
            TopicPartition(f"t{n % topics}", n // topics): leader for n, leader in enumerate(leaders)
        }
        self.epochs = dict.fromkeys(self.leaders, 1)
        self.ends = dict.fromkeys(self.leaders, 0)
        self.hot: set[TopicPartition] = set()
        """Their producers are always ahead of the reader."""

        def uniform(low: float, high: float) -> float:
            return (low + high) / 2

        self.cluster = Cluster(uniform=uniform)
        self.assigned = Assigned()
        self.positions = Positions(self.config, self.cluster, self.assigned, uniform, Baseline(self.cluster))
        self.buffer = FetchBuffer(self.assigned, None)
        self.fetcher = Fetcher(
            self.config,
            self.cluster,
            self.assigned,
            self.positions,
            uniform,
            self.buffer,
            FetchStats(Window()),
        )
        self.waiting: list[Waiting] = []
        self.requests: list[FetchRequest] = []
        self.delivered: Counter[TopicPartition] = Counter()
        self.buffered_max = 0
        self.woken = True
        self.assigned.assign(self.leaders)
        for state in self.assigned:
            state.seek(0)
        self.cluster.want({tp.topic for tp in self.leaders})

    @property
    def places(self) -> list[TopicPartition]:
        return list(self.leaders)

    # --- a round ---

    def round(self, *, reads: bool = True) -> None:
        self.now += ROUND_S
        for tp in self.hot:
            self.ends[tp] = max(self.ends[tp], self.assigned[tp].fetch_offset + 2 * READ_MAX)
        self.tell_metadata()
        for waiting in list(self.waiting):
            response = self.respond(waiting)
            if response is not None:
                self.waiting.remove(waiting)
                self.fetcher.on_response(waiting.unsent.tag, response, self.now)
                self.woken = True
        self.buffered_max = max(self.buffered_max, self.buffer.bytes)
        if reads:
            for tp, records in self.buffer.take(self.config.max_poll_records).items():
                for record in records:
                    assert record.offset == self.delivered[tp]
                    self.delivered[tp] += 1
            if self.buffer.freed:
                self.buffer.freed = False
                self.woken = True
        while self.woken or self.fetcher.next_time(self.now - ROUND_S) <= self.now:
            self.woken = False
            out = self.fetcher.poll(self.now)
            self.waiting += [Waiting(unsent, self.now) for unsent in out]
            self.requests += [each for unsent in out if isinstance(each := unsent.message, FetchRequest)]
            nodes = [waiting.unsent.node_id for waiting in self.waiting]
            assert len(nodes) == len(set(nodes)), "two fetches on their way to one broker"
            if not out:
                break

    def tell_metadata(self) -> None:
        if self.cluster.request(self.now) is None:
            return
        nodes = [
            MetadataResponse.MetadataResponseBroker(node_id=n, host="h", port=n + 1)
            for n in range(len(self.brokers))
        ]
        rows: defaultdict[str, list[MetadataResponse.MetadataResponsePartition]] = defaultdict(list)
        for tp, leader in self.leaders.items():
            rows[tp.topic].append(
                MetadataResponse.MetadataResponsePartition(
                    partition_index=tp.partition, leader_id=leader, leader_epoch=self.epochs[tp]
                )
            )
        topics = [
            MetadataResponse.MetadataResponseTopic(name=name, partitions=each) for name, each in rows.items()
        ]
        self.cluster.take(MetadataResponse(brokers=nodes, topics=topics), self.now)
        self.woken = True

    # --- a broker ---

    def respond(self, waiting: Waiting) -> FetchResponse | None:
        """Returns None while the fetch waits."""
        broker, request = self.brokers[waiting.unsent.node_id], waiting.request
        if broker.silent:
            return None
        if not waiting.opened and not broker.open(request):
            return FetchResponse(error_code=int(ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
        waiting.opened = True
        rows: defaultdict[str, list[FetchResponse.PartitionData]] = defaultdict(list)
        size, urgent = 0, False
        sent = []
        for tp, wanted in broker.wanted.items():
            row = self.read(waiting.unsent.node_id, tp, wanted, request.max_bytes - size, first=size == 0)
            size += len(row.records or b"")
            urgent |= bool(row.error_code) or row.preferred_read_replica >= 0
            rows[tp.topic].append(row)
            if row.records:
                sent.append(tp)
        if not urgent and size < min(request.min_bytes, request.max_bytes) and self.now < waiting.deadline:
            return None
        for tp in sent:
            broker.wanted[tp] = broker.wanted.pop(tp)
        topics = [
            FetchResponse.FetchableTopicResponse(topic=topic, partitions=partitions)
            for topic, partitions in rows.items()
        ]
        return FetchResponse(session_id=broker.session_id, responses=topics)

    def read(
        self, node_id: int, tp: TopicPartition, wanted: FetchRequest.FetchPartition, left: int, *, first: bool
    ) -> FetchResponse.PartitionData:
        end = self.ends[tp]
        row = FetchResponse.PartitionData(partition_index=tp.partition, high_watermark=end)
        reader = (self.leaders[tp] + 1) % len(self.brokers) if self.followers else self.leaders[tp]
        if wanted.current_leader_epoch < self.epochs[tp]:
            row.error_code = int(ErrorCode.FENCED_LEADER_EPOCH)
        elif node_id != reader and node_id == self.leaders[tp]:
            row.preferred_read_replica = reader
        elif node_id != reader:
            row.error_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            limit = min(left, wanted.partition_max_bytes)
            data = b""
            for offset in range(wanted.fetch_offset, min(end, wanted.fetch_offset + READ_MAX)):
                batch = batch_at(offset, self.value_bytes)
                if len(data) + len(batch) > limit and (data or not first):
                    break
                data += batch
            row.records = data
        return row


# --- idle partitions: a record is there with the next answers ---


@given(
    brokers=st.integers(1, 4),
    partitions=st.integers(1, 60),
    number=st.integers(0, 59),
    topics=st.integers(1, 3),
    sessions=st.booleans(),
    fetch_max_bytes=st.sampled_from([0, 1, 3 * KiB, 50 * MiB]),
    max_partition_fetch_bytes=st.sampled_from([0, 1, 2 * KiB, MiB, 100 * MiB]),
    max_poll_records=st.sampled_from([1, 500]),
)
@settings(max_examples=60, deadline=None)
def test_a_record_of_an_idle_partition_does_not_wait_for_fetches_from_other_brokers(
    brokers: int, partitions: int, number: int, topics: int, **more: int
) -> None:
    simulated = SimulatedCluster(
        brokers, [n % brokers for n in range(partitions)], topics=topics, fetch_max_wait_ms=20_000, **more
    )
    for _ in range(5):
        simulated.round()
    place = simulated.places[number % partitions]
    simulated.ends[place] = 1
    for _ in range(3):
        simulated.round()
    assert simulated.delivered == {place: 1}


def test_180_idle_partitions_on_three_brokers_have_a_fetch_at_each() -> None:
    simulated = SimulatedCluster(3, [n % 3 for n in range(180)])
    for _ in range(3):
        simulated.round()
    assert {waiting.unsent.node_id for waiting in simulated.waiting} == {0, 1, 2}
    assert {request.max_bytes for request in simulated.requests} == {50 * MiB}


# --- a backlog: all of it, and nobody ahead of the others ---


def test_a_backlog_of_40_partitions_is_read_evenly_with_little_memory() -> None:
    """fetch.max.bytes is a tenth of what one fetch of all partitions could bring."""
    simulated = SimulatedCluster(
        3,
        [n % 3 for n in range(40)],
        value_bytes=KiB,
        fetch_max_bytes=40 * KiB,
        max_partition_fetch_bytes=10 * KiB,
    )
    simulated.ends = dict.fromkeys(simulated.places, 200)
    while sum(simulated.delivered.values()) < 40 * 100:
        before = sum(simulated.delivered.values())
        for _ in range(3):
            simulated.round()
        assert sum(simulated.delivered.values()) > before, "the backlog stands still"
    assert min(simulated.delivered[tp] for tp in simulated.places) >= 70
    for _ in range(200):
        simulated.round()
    assert simulated.delivered == simulated.ends
    assert simulated.buffered_max <= 3 * 40 * KiB


@given(
    brokers=st.integers(1, 3),
    leaders=st.lists(st.integers(0, 2), min_size=2, max_size=12),
    hot=st.sets(st.integers(0, 11), max_size=6),
    topics=st.integers(1, 2),
    sessions=st.booleans(),
    followers=st.booleans(),
    fetch_max_bytes=st.sampled_from([0, 1, 400, 2 * KiB, 50 * MiB]),
    max_partition_fetch_bytes=st.sampled_from([0, 1, 400, 2 * KiB, MiB]),
    max_poll_records=st.sampled_from([1, 7, 500]),
    fetch_min_bytes=st.sampled_from([0, 1, 500, MiB]),
    fetch_max_wait_ms=st.sampled_from([0, 50, 500]),
    trouble=st.sampled_from(["none", "pause", "silence", "election"]),
    reads_every=st.sampled_from([1, 5]),
)
@settings(max_examples=250, deadline=None)
@pytest.mark.budget(3)  # 250 examples of Hypothesis
def test_hot_partitions_do_not_starve_the_others(
    brokers: int,
    leaders: list[int],
    hot: set[int],
    topics: int,
    sessions: bool,
    followers: bool,
    trouble: str,
    reads_every: int,
    **configured: int,
) -> None:
    simulated = SimulatedCluster(
        brokers,
        [leader % brokers for leader in leaders],
        topics=topics,
        sessions=sessions,
        followers=followers and brokers > 1,
        **configured,
    )
    places = simulated.places
    simulated.hot = {places[n % len(places)] for n in hot}
    cold = [tp for tp in places if tp not in simulated.hot]
    for number in range(30):
        simulated.round(reads=number % reads_every == 0)
    held_up = set()
    if trouble == "pause":
        for tp in sorted(simulated.hot)[::2]:
            simulated.assigned[tp].paused = True
        simulated.woken = True  # as Consumer.pause does
    elif trouble == "silence":
        simulated.brokers[0].silent = True
        behind = brokers - 1 if simulated.followers else 0
        held_up = {tp for tp in cold if simulated.leaders[tp] in (0, behind)}
    elif trouble == "election":
        for tp in places[::2]:
            simulated.leaders[tp] = (simulated.leaders[tp] + 1) % brokers
            simulated.epochs[tp] += 1
    for tp in cold:
        simulated.ends[tp] += 1
    config = simulated.config
    batch = len(batch_at(0, simulated.value_bytes))
    each = min(READ_MAX, config.max_partition_fetch_bytes // batch + 1)
    ahead = min(brokers * (config.fetch_max_bytes // batch + 1), 2 * each * len(places)) + len(places)
    """How many records may lie in the buffer."""
    turn = reads_every * math.ceil(ahead / config.max_poll_records) + config.fetch_max_wait_ms // 10 + 3
    rounds = 3 * turn * (len(places) + 5) + 100
    awaited = set(cold) - held_up
    number = 0
    while any(simulated.delivered[tp] < simulated.ends[tp] for tp in awaited):
        number += 1
        assert number < rounds, (
            f"unread: {[tp for tp in awaited if simulated.delivered[tp] < simulated.ends[tp]]}"
        )
        simulated.round(reads=number % reads_every == 0)
    if trouble in ("none", "silence"):
        assert simulated.buffered_max <= brokers * (config.fetch_max_bytes + batch)


def test_a_paused_partition_with_buffered_records_does_not_block_its_broker() -> None:
    simulated = SimulatedCluster(
        1, [0, 0], value_bytes=KiB, fetch_max_bytes=8 * KiB, max_partition_fetch_bytes=KiB
    )
    paused, other = simulated.places
    simulated.hot = {paused}
    for _ in range(20):
        simulated.round(reads=False)
    assert simulated.assigned[paused].buffered_bytes > KiB
    simulated.assigned[paused].paused = True
    simulated.woken = True
    simulated.ends[other] = 1
    for _ in range(3):
        simulated.round()
    assert simulated.delivered == {other: 1}
    simulated.assigned[paused].paused = False
    simulated.round()
    assert simulated.delivered[paused] > 0


@pytest.mark.parametrize("sessions", [True, False])
def test_responses_with_room_for_one_batch_serve_each_partition_in_turn(sessions: bool) -> None:
    simulated = SimulatedCluster(1, [0] * 10, topics=3, sessions=sessions, fetch_max_bytes=1)
    simulated.hot = set(simulated.places)
    while sum(simulated.delivered.values()) < 100:
        simulated.round()
    assert set(simulated.delivered.values()) == {10}


def test_records_fetched_before_a_seek_are_neither_counted_nor_kept() -> None:
    simulated = SimulatedCluster(
        1, [0, 0], value_bytes=KiB, fetch_max_bytes=4 * KiB, max_partition_fetch_bytes=4 * KiB
    )
    simulated.hot = set(simulated.places)
    state = simulated.assigned[simulated.places[0]]
    for number in itertools.count():
        simulated.round(reads=False)
        state.seek(number)
        simulated.woken = True
        if number > 50:
            break
    assert simulated.buffer.bytes <= 3 * 5 * KiB

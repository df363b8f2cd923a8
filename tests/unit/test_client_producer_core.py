"""The producer's core step by step: batches, partitions, limits, retries, epochs, transactions."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from producer_world import TOPIC, World, offsets_committed, partitions_added

from ottla.client import errors
from ottla.client.core.accumulator import BATCH_FULL, BUFFER_FULL, TOPIC_FULL
from ottla.client.core.batches import Batch
from ottla.client.core.partitioners import BY_NAME, fnv1a, partition_for_key
from ottla.client.core.transactions import State
from ottla.client.core.types import GroupMetadata, OffsetToCommit, TopicPartition
from ottla.protocol import messages as m
from ottla.protocol.compression import Codec
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import Record, build_batch, parse_batch_header, verify_crc

TP = TopicPartition(TOPIC, 0)


def sent_batches(world: World) -> list[bytes]:
    return [
        bytes(entry.records)
        for wire in world.wire.values()
        for unsent in wire
        for entry in unsent.message.topic_data[0].partition_data  # type: ignore[attr-defined]
    ]


# --- batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_batch_is_what_the_protocols_own_builder_makes(codec: Codec) -> None:
    records = [
        Record(0, 1_700_000_000_000, b"k", b"v", [("name", b"x"), ("none", None)]),
        Record(1, 1_700_000_000_005, None, b"w" * 300),
        Record(2, 1_699_999_999_000, b"", None),
        *(Record(3 + i, 1_700_000_000_005, b"%d" % i, b"z" * i) for i in range(200)),
    ]
    batch = Batch(TP, 0.0, 1)
    batch.records = [(r.timestamp, r.key, r.value, r.headers) for r in records]
    batch.stamp(7, 3, 11)
    data = batch.encode(codec, None, transactional=True)
    assert data == build_batch(
        records, codec=codec, producer_id=7, producer_epoch=3, base_sequence=11, transactional=True
    )
    assert verify_crc(data, 0, parse_batch_header(data))


def test_records_without_a_key_leave_a_partition_when_told_and_go_to_one_with_a_leader() -> None:
    world = World(partitions=2)
    world.learn()

    def partition_of(value: bytes) -> int:
        world.send(value)
        return next(b.tp.partition for b in world.accumulator.incomplete if value in b.deliveries)

    first = partition_of(b"first")
    world.leaders[first] = -1
    world.cluster.invalidate(TOPIC)
    world.tick(1)
    world.poll()
    assert partition_of(b"stays") == first
    world.accumulator.leave_partition(TOPIC)
    assert partition_of(b"leaves") == 1 - first
    world.accumulator.leave_partition("a topic that was never sent to")


def test_what_a_batch_is_said_to_take_is_no_less_than_it_takes() -> None:
    world = World(partitions=1, batch_size=100_000)
    world.learn()
    for size in (0, 1, 63, 64, 8000, 9000):
        world.send(b"v" * size, 0, b"k" * (size // 3))
    (batch,) = world.accumulator.incomplete
    assert len(batch.encode(Codec.NONE, None)) <= batch.size


def test_records_linger_until_the_batch_is_full_or_the_time_is_over() -> None:
    world = World(linger_ms=10, batch_size=1000)
    world.send(b"a", 0)
    world.poll()
    world.poll()
    assert not sent_batches(world)
    world.tick(0.0101)
    world.poll()
    assert len(sent_batches(world)) == 1
    full = [world.send(b"x" * 300, 1) for _ in range(3)]
    assert full[-1] == BATCH_FULL
    world.poll()
    assert len(sent_batches(world)) == 2


def test_a_flush_does_not_let_them_linger() -> None:
    world = World(linger_ms=100_000)
    world.send(b"a", 0)
    world.accumulator.flushing = 1
    world.poll()
    world.poll()
    assert len(sent_batches(world)) == 1


def test_memory_is_bounded_and_comes_back() -> None:
    world = World(partitions=1, buffer_memory=1000, buffer_memory_per_topic=1000, linger_ms=100_000)
    world.learn()
    count = 0
    while world.send(b"%d" % count + b"x" * 100, 0) != BUFFER_FULL:
        count += 1
    assert count == 8
    world.poll()
    world.poll()
    assert sent_batches(world), "what waits for room does not linger"
    world.settle()
    assert world.accumulator.used_bytes == 0
    assert world.send(b"again", 0) != BUFFER_FULL


def fill(world: World, topic: str, size: int = 87) -> tuple[int, int]:
    """How many records of `size` bytes, and 13 around them, a topic takes; what the next one is told."""
    append = world.accumulator.append
    for count in range(100):
        result = append(topic, None, b"x" * size, (), None, 0, topic, lambda: world.now)
        if result >= BUFFER_FULL:
            return count, result
    raise AssertionError("there is always room")


def test_topics_that_stand_still_leave_room_for_others() -> None:
    world = World(buffer_memory=1200)
    assert [fill(world, topic) for topic in "abcd"] == [
        (6, TOPIC_FULL),  # half of all
        (3, TOPIC_FULL),  # half of what is left
        (2, TOPIC_FULL),
        (1, TOPIC_FULL),  # a topic that holds nothing may begin
    ]
    assert fill(world, "e") == (0, BUFFER_FULL)


def test_a_topic_may_begin_with_a_record_larger_than_its_share() -> None:
    world = World(buffer_memory=1200)
    assert fill(world, "a", 900) == (1, TOPIC_FULL)
    assert fill(world, "b") == (1, TOPIC_FULL)


@pytest.mark.parametrize(
    ("per_topic", "expected"),
    [(300, (3, TOPIC_FULL)), (0, (1, TOPIC_FULL)), (1199, (11, TOPIC_FULL)), (1200, (12, BUFFER_FULL))],
)
def test_the_share_of_a_topic_in_bytes(per_topic: int, expected: tuple[int, int]) -> None:
    world = World(buffer_memory=1200, buffer_memory_per_topic=per_topic)
    assert fill(world, "a") == expected


def test_what_a_topic_holds_keeps_its_place_when_others_have_come() -> None:
    world = World(partitions=1, buffer_memory=1200)
    world.topic_exists = False
    assert fill(world, TOPIC) == (6, TOPIC_FULL)
    assert fill(world, "b") == (3, TOPIC_FULL)  # by now TOPIC has more than is free
    world.topic_exists = True
    world.cluster.invalidate(TOPIC)
    world.tick(1)
    world.learn()
    for _ in range(4):
        world.poll()
        for node in (1, 2):
            world.serve(node)
    assert len(world.logs[0].values) == 6
    assert [outcome.error for outcome in world.outcomes[TOPIC]] == [None] * 6
    assert fill(world, TOPIC)[0] > 0


def test_a_record_larger_than_a_request_is_refused() -> None:
    world = World(max_request_size=1000)
    with pytest.raises(errors.MessageTooLargeError, match=r"max\.request\.size is 1000"):
        world.send(b"x" * 1000)


# --- partitions ----------------------------------------------------------------------------------


def test_keys_go_where_the_java_client_puts_them() -> None:
    world = World(partitions=7)
    world.send(b"first")
    world.poll()
    for n in range(50):
        world.send(b"v%d" % n, key=b"key-%d" % n)
    world.settle()
    for n in range(50):
        assert world.written(b"v%d" % n).partition == partition_for_key(b"key-%d" % n, 7)


def test_records_without_a_key_stick_to_a_partition_for_a_batch_and_reach_all() -> None:
    world = World(partitions=4, batch_size=1000, linger_ms=5)
    world.send(b"first")
    world.poll()
    values = [b"%04d" % n + b"x" * 100 for n in range(400)]
    for value in values:
        world.send(value)
    world.settle()
    partitions = [world.written(value).partition for value in values]
    changes = sum(a != b for a, b in pairwise(partitions))
    assert set(partitions) == {0, 1, 2, 3}
    assert changes < 60
    assert max(Counter(partitions).values()) < 200


def test_records_without_a_key_avoid_a_partition_without_leader() -> None:
    world = World(partitions=2, batch_size=200)
    world.leaders[0] = -1
    world.send(b"first")
    world.poll()
    values = [b"%d" % n + b"x" * 50 for n in range(40)]
    for value in values:
        world.send(value)
    for _ in range(100):
        world.poll()
        world.serve(2)
    assert {world.written(value).partition for value in values} == {1}


def test_a_partitioner_of_ones_own_is_asked_and_checked() -> None:
    chosen = [1]
    world = World(partitioner=lambda topic, key, value, partitions: chosen[0])
    world.send(b"a")
    world.settle()
    assert world.written(b"a").partition == 1
    chosen[0] = 2
    with pytest.raises(ValueError, match="orders has partitions 0 to 1"):
        world.send(b"b")
    with pytest.raises(errors.ConfigError, match="partitioner='best'"):
        World(partitioner="best")


def test_librdkafkas_partitioners_by_name() -> None:
    crc32 = BY_NAME["consistent_random"]
    assert crc32 is not None
    assert crc32(TOPIC, b"123456789", None, 1000) == 0xCBF43926 % 1000
    assert crc32(TOPIC, None, None, 1000) is None
    assert fnv1a(b"") == 0x100000000 - 0x811C9DC5
    assert fnv1a(b"foobar") == 0x100000000 - 0xBF9CF968


# --- topics that are not known -------------------------------------------------------------------


def test_records_wait_for_their_topic_in_order() -> None:
    world = World(partitions=1, max_block_ms=1000)
    world.topic_exists = False
    for n in range(5):
        world.send(b"%d" % n)
    world.poll()
    world.tick(0.5)
    world.poll()
    world.topic_exists = True
    world.tick(0.2)
    world.settle()
    assert world.logs[0].values == [b"0", b"1", b"2", b"3", b"4"]


def test_a_topic_that_does_not_come_fails_its_records_after_max_block() -> None:
    world = World(max_block_ms=1000)
    world.topic_exists = False
    world.send(b"a")
    world.poll()
    assert world.sender.next_time(world.now) <= world.now + 1.0
    world.tick(1.0)
    world.poll()
    (outcome,) = world.outcomes[b"a"]
    assert isinstance(outcome.error, errors.RequestTimedOutError)
    assert "orders is not in the cluster's metadata after 1 s" in str(outcome.error)
    assert world.accumulator.used_bytes == 0


def test_who_is_not_let_in_is_told_so() -> None:
    world = World()
    refusal = KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, "wrong password")
    world.send(b"a")
    assert world.cluster.request(world.now) is not None
    world.cluster.failed(world.now, refusal)
    world.sender.poll(world.now)
    (outcome,) = world.outcomes[b"a"]
    assert isinstance(outcome.error, errors.SaslAuthenticationFailedError)


# --- what fails ----------------------------------------------------------------------------------


def test_a_batch_that_is_too_large_is_split_until_it_fits() -> None:
    world = World(partitions=1, linger_ms=5)
    values = [b"%d" % n for n in range(20)]
    for value in values:
        world.send(value, 0)
    world.max_records = 3
    world.settle()
    assert world.logs[0].values == values
    assert world.sender.stats.figures(0)["batch-split-total"] >= 7


def test_a_record_that_is_refused_for_good_fails_alone() -> None:
    world = World(partitions=1)
    world.send(b"bad", 0)
    world.poll()
    world.poll()
    world.serve(1, error=ErrorCode.INVALID_RECORD)
    world.send(b"good", 0)
    world.settle()
    (outcome,) = world.outcomes[b"bad"]
    assert isinstance(outcome.error, errors.InvalidRecordError)
    assert world.logs[0].values == [b"good"]


def test_delivery_timeout_ends_a_batch_wherever_it_is() -> None:
    world = World(partitions=2, delivery_timeout_ms=30_000, linger_ms=0)
    world.learn()
    world.down.add(2)
    world.send(b"on the wire", 0)
    world.send(b"in the queue", 1)
    world.poll()
    world.poll()
    world.tick(30.0)
    world.poll()
    for value in (b"on the wire", b"in the queue"):
        (outcome,) = world.outcomes[value]
        assert isinstance(outcome.error, errors.DeliveryTimeoutError)
    assert "after 1 attempts" in str(world.outcomes[b"on the wire"][0].error)
    assert world.accumulator.used_bytes == 0


def test_numbers_begin_anew_when_it_is_not_known_whether_an_expired_batch_was_written() -> None:
    world = World(partitions=1, delivery_timeout_ms=30_000)
    world.send(b"in doubt", 0)
    world.poll()
    world.poll()
    world.disconnect(1)
    world.tick(30.0)
    world.send(b"next", 0)
    world.settle()
    assert world.written(b"next") == TP
    assert world.transactions is not None
    assert world.transactions.epoch == 1


def test_a_broker_that_has_forgotten_the_producer_gets_a_new_epoch() -> None:
    world = World(partitions=1)
    world.send(b"a", 0)
    world.settle()
    world.logs[0].forget()
    for value in (b"b", b"c", b"d"):
        world.send(value, 0)
        world.poll()
    world.settle()
    assert world.logs[0].values == [b"a", b"b", b"c", b"d"]


def test_a_leader_that_an_answer_names_is_asked_at_once() -> None:
    world = World(partitions=1)
    world.send(b"a", 0)
    world.poll()
    world.poll()
    world.move(0)
    unsent = world.wire[1].popleft()
    part = m.ProduceResponse.PartitionProduceResponse(
        index=0,
        error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
        current_leader=m.ProduceResponse.LeaderIdAndEpoch(leader_id=2, leader_epoch=1),
    )
    topic = m.ProduceResponse.TopicProduceResponse(name=TOPIC, partition_responses=[part])
    world.sender.on_response(unsent.tag, m.ProduceResponse(responses=[topic]), world.now)
    assert [unsent.node_id for unsent in world.sender.poll(world.now)] == [2]


def test_no_broker_gets_a_larger_request_than_allowed() -> None:
    world = World(partitions=8, batch_size=1000, max_request_size=2500, linger_ms=1)
    world.learn()
    for n in range(160):
        world.send(b"%d" % n + b"x" * 100, n % 8)
    world.tick(1)
    world.poll()
    world.poll()
    for wire in world.wire.values():
        for unsent in wire:
            data = unsent.message.topic_data[0].partition_data  # type: ignore[attr-defined]
            assert sum(len(entry.records) for entry in data) <= 2500
            assert len(data) >= 2


# --- transactions --------------------------------------------------------------------------------


class Said:
    """Remembers what came of a call."""

    def __init__(self) -> None:
        self.heard: list[BaseException | None] = []

    def __call__(self, error: BaseException | None) -> None:
        self.heard.append(error)


def transactional(**settings: object) -> tuple[World, Any]:
    world = World(transactional_id="t", **settings)  # type: ignore[arg-type]
    transactions = world.transactions
    assert transactions is not None
    ready = Said()
    transactions.initialize(ready)
    settle_requests(world)
    assert ready.heard == [None]
    return world, transactions


def settle_requests(world: World) -> None:
    for _ in range(12):
        world.poll()
        world.tick(0.2)


def asked(world: World) -> list[str]:
    return [type(request).__name__.removesuffix("Request") for request in world.asked]


def test_a_transaction_from_begin_to_commit() -> None:
    world, transactions = transactional()
    with pytest.raises(errors.IllegalStateError, match="begin a transaction"):
        transactions.check_sending()
    transactions.begin()
    world.send(b"a", 0)
    committed, offsets = Said(), Said()
    group = GroupMetadata("readers", 5, "me")
    transactions.send_offsets({TP: OffsetToCommit(7)}, group, offsets)
    settle_requests(world)
    assert world.outcomes == {}
    transactions.commit(committed)
    settle_requests(world)
    assert not committed.heard, "the record is not acknowledged yet"
    world.settle()
    settle_requests(world)
    assert committed.heard == offsets.heard == [None]
    assert asked(world) == [
        "FindCoordinator",
        "InitProducerId",
        "AddPartitionsToTxn",
        "AddOffsetsToTxn",
        "FindCoordinator",
        "TxnOffsetCommit",
        "EndTxn",
    ]
    assert world.asked[-1].committed
    assert transactions.state is State.READY


def test_nothing_is_asked_for_an_empty_transaction() -> None:
    world, transactions = transactional()
    before = len(world.asked)
    transactions.begin()
    done = Said()
    transactions.commit(done)
    settle_requests(world)
    assert done.heard == [None]
    assert len(world.asked) == before


def test_an_abort_fails_what_was_not_sent() -> None:
    world, transactions = transactional(linger_ms=1000, delivery_timeout_ms=60_000)
    transactions.begin()
    world.send(b"a", 0)
    aborted = Said()
    transactions.abort(aborted)
    settle_requests(world)
    (outcome,) = world.outcomes[b"a"]
    assert isinstance(outcome.error, errors.TransactionAbortedError)
    assert aborted.heard == [None]


def test_a_refused_record_spoils_the_transaction_until_it_is_aborted() -> None:
    world, transactions = transactional()
    transactions.begin()
    world.send(b"a", 0)
    settle_requests(world)
    world.serve(1, error=ErrorCode.MESSAGE_TOO_LARGE)
    with pytest.raises(errors.MessageTooLargeError):
        transactions.check_sending()
    with pytest.raises(errors.MessageTooLargeError):
        transactions.commit(Said())
    aborted = Said()
    transactions.abort(aborted)
    settle_requests(world)
    assert aborted.heard == [None]
    assert asked(world)[-2:] == ["EndTxn", "InitProducerId"], "sequences begin anew under a new epoch"
    assert world.asked[-1].producer_id == 1
    transactions.begin()
    world.send(b"b", 0)
    world.settle()
    assert world.written(b"b") == TP


def test_a_fenced_producer_is_done_for() -> None:
    world, transactions = transactional()
    transactions.begin()
    world.send(b"a", 0)
    assert poll_until_asked(world, m.AddPartitionsToTxnRequest)
    done = Said()
    transactions.commit(done)
    world.expects_response.append(m.EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED))
    world.settle()
    settle_requests(world)
    assert [type(error) for error in done.heard] == [errors.ProducerFencedError]
    with pytest.raises(errors.ProducerFencedError):
        transactions.begin()


def poll_until_asked(world: World, kind: type[Any]) -> list[Any]:
    for _ in range(10):
        world.poll()
        world.tick(0.1)
        found = [request for request in world.asked if isinstance(request, kind)]
        if found:
            return found
    raise AssertionError(f"{kind.__name__} was not sent")


def test_a_coordinator_that_has_moved_is_looked_up_again() -> None:
    world, transactions = transactional()
    transactions.begin()
    world.send(b"a", 0)
    world.expects_response.append(
        partitions_added(
            m.AddPartitionsToTxnRequest(
                v3_and_below_topics=[
                    m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])
                ]
            ),
            ErrorCode.NOT_COORDINATOR,
        )
    )
    world.settle()
    assert asked(world)[-3:] == ["AddPartitionsToTxn", "FindCoordinator", "AddPartitionsToTxn"]
    assert world.written(b"a") == TP


def test_offsets_of_a_member_that_was_thrown_out_spoil_the_transaction() -> None:
    world, transactions = transactional()
    transactions.begin()
    told = Said()
    offsets = {TP: OffsetToCommit(7)}
    transactions.send_offsets(offsets, GroupMetadata("readers", 5, "me"), told)
    commit = m.TxnOffsetCommitRequest(
        topics=[
            m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                name=TOPIC,
                partitions=[
                    m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                        partition_index=0, committed_offset=7, committed_metadata=""
                    )
                ],
            )
        ]
    )
    found = m.FindCoordinatorResponse(node_id=1, host="here", port=9001)
    refused = offsets_committed(commit, ErrorCode.ILLEGAL_GENERATION)
    world.expects_response.extend([m.AddOffsetsToTxnResponse(), found, refused])
    settle_requests(world)
    assert [type(error) for error in told.heard] == [errors.CommitFailedError]
    assert transactions.state is State.ABORTABLE_ERROR

"""The producer's core step by step: batches, partitions, limits, retries, epochs, transactions."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

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
from tests.worlds.producer_simulation import TOPIC, ProducerSimulation, offsets_committed, partitions_added

TP = TopicPartition(TOPIC, 0)


def sent_batches(simulation: ProducerSimulation) -> list[bytes]:
    return [
        bytes(entry.records)
        for wire in simulation.wire.values()
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


def test_records_without_a_key_switch_partitions_on_request_and_avoid_leaderless_ones() -> None:
    simulation = ProducerSimulation(partitions=2)
    simulation.learn()

    def partition_of(value: bytes) -> int:
        simulation.send(value)
        return next(b.tp.partition for b in simulation.accumulator.incomplete if value in b.deliveries)

    first = partition_of(b"first")
    simulation.leaders[first] = -1
    simulation.cluster.invalidate(TOPIC)
    simulation.tick(1)
    simulation.poll()
    assert partition_of(b"stays") == first
    simulation.accumulator.leave_partition(TOPIC)
    assert partition_of(b"leaves") == 1 - first
    simulation.accumulator.leave_partition("a topic that was never sent to")


def test_the_estimated_size_of_a_batch_is_an_upper_bound() -> None:
    simulation = ProducerSimulation(partitions=1, batch_size=100_000)
    simulation.learn()
    for size in (0, 1, 63, 64, 8000, 9000):
        simulation.send(b"v" * size, 0, b"k" * (size // 3))
    (batch,) = simulation.accumulator.incomplete
    assert len(batch.encode(Codec.NONE, None)) <= batch.size


def test_records_linger_until_the_batch_is_full_or_linger_ms_is_over() -> None:
    simulation = ProducerSimulation(linger_ms=10, batch_size=1000)
    simulation.send(b"a", 0)
    simulation.poll()
    simulation.poll()
    assert not sent_batches(simulation)
    simulation.tick(0.0101)
    simulation.poll()
    assert len(sent_batches(simulation)) == 1
    full = [simulation.send(b"x" * 300, 1) for _ in range(3)]
    assert full[-1] == BATCH_FULL
    simulation.poll()
    assert len(sent_batches(simulation)) == 2


def test_a_flush_ends_lingering() -> None:
    simulation = ProducerSimulation(linger_ms=100_000)
    simulation.send(b"a", 0)
    simulation.accumulator.flushing = 1
    simulation.poll()
    simulation.poll()
    assert len(sent_batches(simulation)) == 1


def test_buffer_memory_is_bounded_and_released() -> None:
    simulation = ProducerSimulation(
        partitions=1, buffer_memory=1000, buffer_memory_per_topic=1000, linger_ms=100_000
    )
    simulation.learn()
    count = 0
    while simulation.send(b"%d" % count + b"x" * 100, 0) != BUFFER_FULL:
        count += 1
    assert count == 8
    simulation.poll()
    simulation.poll()
    assert sent_batches(simulation), "what waits for room does not linger"
    simulation.run_until_idle()
    assert simulation.accumulator.used_bytes == 0
    assert simulation.send(b"again", 0) != BUFFER_FULL


def fill(simulation: ProducerSimulation, topic: str, size: int = 87) -> tuple[int, int]:
    """How many records of `size` bytes plus 13 a topic can buffer, and the result of the next one."""
    append = simulation.accumulator.append
    for count in range(100):
        result = append(topic, None, b"x" * size, (), None, 0, topic, lambda: simulation.now)
        if result >= BUFFER_FULL:
            return count, result
    raise AssertionError("there is always room")


def test_topics_that_make_no_progress_leave_room_for_others() -> None:
    simulation = ProducerSimulation(buffer_memory=1200)
    assert [fill(simulation, topic) for topic in "abcd"] == [
        (6, TOPIC_FULL),  # half of all
        (3, TOPIC_FULL),  # half of what is left
        (2, TOPIC_FULL),
        (1, TOPIC_FULL),  # a topic that holds nothing may begin
    ]
    assert fill(simulation, "e") == (0, BUFFER_FULL)


def test_a_topic_may_begin_with_a_record_larger_than_its_share() -> None:
    simulation = ProducerSimulation(buffer_memory=1200)
    assert fill(simulation, "a", 900) == (1, TOPIC_FULL)
    assert fill(simulation, "b") == (1, TOPIC_FULL)


@pytest.mark.parametrize(
    ("per_topic", "expected"),
    [(300, (3, TOPIC_FULL)), (0, (1, TOPIC_FULL)), (1199, (11, TOPIC_FULL)), (1200, (12, BUFFER_FULL))],
)
def test_the_share_of_a_topic_in_bytes(per_topic: int, expected: tuple[int, int]) -> None:
    simulation = ProducerSimulation(buffer_memory=1200, buffer_memory_per_topic=per_topic)
    assert fill(simulation, "a") == expected


def test_buffered_records_of_a_topic_stay_when_others_appear() -> None:
    simulation = ProducerSimulation(partitions=1, buffer_memory=1200)
    simulation.topic_error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert fill(simulation, TOPIC) == (6, TOPIC_FULL)
    assert fill(simulation, "b") == (3, TOPIC_FULL)  # by now TOPIC has more than is free
    simulation.topic_error = ErrorCode.NONE
    simulation.cluster.invalidate(TOPIC)
    simulation.tick(1)
    simulation.learn()
    for _ in range(4):
        simulation.poll()
        for node in (1, 2):
            simulation.serve(node)
    assert len(simulation.logs[0].values) == 6
    assert [outcome.error for outcome in simulation.outcomes[TOPIC]] == [None] * 6
    assert fill(simulation, TOPIC)[0] > 0


def test_a_record_larger_than_a_request_is_refused() -> None:
    simulation = ProducerSimulation(max_request_size=1000)
    with pytest.raises(errors.MessageTooLargeError, match=r"max\.request\.size is 1000"):
        simulation.send(b"x" * 1000)


# --- partitions ----------------------------------------------------------------------------------


def test_keys_go_where_the_java_client_puts_them() -> None:
    simulation = ProducerSimulation(partitions=7)
    simulation.send(b"first")
    simulation.poll()
    for n in range(50):
        simulation.send(b"v%d" % n, key=b"key-%d" % n)
    simulation.run_until_idle()
    for n in range(50):
        assert simulation.written(b"v%d" % n).partition == partition_for_key(b"key-%d" % n, 7)


def test_records_without_a_key_stick_to_a_partition_for_a_batch_and_reach_all() -> None:
    simulation = ProducerSimulation(partitions=4, batch_size=1000, linger_ms=5)
    simulation.send(b"first")
    simulation.poll()
    values = [b"%04d" % n + b"x" * 100 for n in range(400)]
    for value in values:
        simulation.send(value)
    simulation.run_until_idle()
    partitions = [simulation.written(value).partition for value in values]
    changes = sum(a != b for a, b in pairwise(partitions))
    assert set(partitions) == {0, 1, 2, 3}
    assert changes < 60
    assert max(Counter(partitions).values()) < 200


def test_records_without_a_key_avoid_a_partition_without_leader() -> None:
    simulation = ProducerSimulation(partitions=2, batch_size=200)
    simulation.leaders[0] = -1
    simulation.send(b"first")
    simulation.poll()
    values = [b"%d" % n + b"x" * 50 for n in range(40)]
    for value in values:
        simulation.send(value)
    for _ in range(100):
        simulation.poll()
        simulation.serve(2)
    assert {simulation.written(value).partition for value in values} == {1}


def test_a_custom_partitioner_is_called_and_checked() -> None:
    chosen = [1]
    simulation = ProducerSimulation(partitioner=lambda topic, key, value, partitions: chosen[0])
    simulation.send(b"a")
    simulation.run_until_idle()
    assert simulation.written(b"a").partition == 1
    chosen[0] = 2
    with pytest.raises(ValueError, match="orders has partitions 0 to 1"):
        simulation.send(b"b")
    with pytest.raises(errors.ConfigError, match="partitioner='best'"):
        ProducerSimulation(partitioner="best")


def test_the_hashes_of_partitioners_are_librdkafkas() -> None:
    crc32 = BY_NAME["consistent_random"]
    assert crc32 is not None
    assert crc32(TOPIC, b"123456789", None, 1000) == 0xCBF43926 % 1000
    assert crc32(TOPIC, None, None, 1000) is None
    assert fnv1a(b"") == 0x100000000 - 0x811C9DC5
    assert fnv1a(b"foobar") == 0x100000000 - 0xBF9CF968


# --- topics that are not known -------------------------------------------------------------------


def test_records_wait_for_their_topic_in_order() -> None:
    simulation = ProducerSimulation(partitions=1, max_block_ms=1000)
    simulation.topic_error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for n in range(5):
        simulation.send(b"%d" % n)
    simulation.poll()
    simulation.tick(0.5)
    simulation.poll()
    simulation.topic_error = ErrorCode.NONE
    simulation.tick(0.2)
    simulation.run_until_idle()
    assert simulation.logs[0].values == [b"0", b"1", b"2", b"3", b"4"]


def test_records_wait_for_a_topic_that_a_starting_broker_cannot_create() -> None:
    """A broker of Kafka that has just started knows no brokers and no topics yet."""
    simulation = ProducerSimulation(max_block_ms=1000)
    simulation.topic_error = ErrorCode.INVALID_REPLICATION_FACTOR
    simulation.send(b"a", 0)
    simulation.poll()
    simulation.poll()
    assert not simulation.outcomes
    simulation.topic_error = ErrorCode.NONE
    simulation.tick(0.3)
    simulation.run_until_idle()
    assert simulation.logs[0].values == [b"a"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ErrorCode.INVALID_TOPIC_EXCEPTION, errors.InvalidTopicError),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, errors.AuthorizationError),
    ],
)
def test_records_of_a_topic_that_no_broker_accepts_fail_at_once(
    error: ErrorCode, expected: type[Exception]
) -> None:
    simulation = ProducerSimulation()
    simulation.topic_error = error
    simulation.send(b"a")
    simulation.poll()
    simulation.poll()
    (outcome,) = simulation.outcomes[b"a"]
    assert isinstance(outcome.error, expected)


def test_records_of_an_unknown_topic_fail_after_max_block() -> None:
    simulation = ProducerSimulation(max_block_ms=1000)
    simulation.topic_error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    simulation.send(b"a")
    simulation.poll()
    assert simulation.sender.next_time(simulation.now) <= simulation.now + 1.0
    simulation.tick(1.0)
    simulation.poll()
    (outcome,) = simulation.outcomes[b"a"]
    assert isinstance(outcome.error, errors.RequestTimedOutError)
    text = "orders is not in the cluster's metadata after 1 s: UNKNOWN_TOPIC_OR_PARTITION"
    assert text in str(outcome.error)
    assert simulation.accumulator.used_bytes == 0


def test_authentication_failures_fail_the_records() -> None:
    simulation = ProducerSimulation()
    refusal = KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, "wrong password")
    simulation.send(b"a")
    assert simulation.cluster.request(simulation.now) is not None
    simulation.cluster.failed(simulation.now, refusal)
    simulation.sender.poll(simulation.now)
    (outcome,) = simulation.outcomes[b"a"]
    assert isinstance(outcome.error, errors.SaslAuthenticationFailedError)


# --- what fails ----------------------------------------------------------------------------------


def test_a_batch_that_is_too_large_is_split_until_it_fits() -> None:
    simulation = ProducerSimulation(partitions=1, linger_ms=5)
    values = [b"%d" % n for n in range(20)]
    for value in values:
        simulation.send(value, 0)
    simulation.max_records = 3
    simulation.run_until_idle()
    assert simulation.logs[0].values == values
    assert simulation.sender.stats.figures(0)["batch-split-total"] >= 7


def test_a_permanently_refused_record_fails_alone() -> None:
    simulation = ProducerSimulation(partitions=1)
    simulation.send(b"bad", 0)
    simulation.poll()
    simulation.poll()
    simulation.serve(1, error=ErrorCode.INVALID_RECORD)
    simulation.send(b"good", 0)
    simulation.run_until_idle()
    (outcome,) = simulation.outcomes[b"bad"]
    assert isinstance(outcome.error, errors.InvalidRecordError)
    assert simulation.logs[0].values == [b"good"]


def test_delivery_timeout_ends_a_batch_wherever_it_is() -> None:
    simulation = ProducerSimulation(partitions=2, delivery_timeout_ms=30_000, linger_ms=0)
    simulation.learn()
    simulation.down.add(2)
    simulation.send(b"on the wire", 0)
    simulation.send(b"in the queue", 1)
    simulation.poll()
    simulation.poll()
    simulation.tick(30.0)
    simulation.poll()
    for value in (b"on the wire", b"in the queue"):
        (outcome,) = simulation.outcomes[value]
        assert isinstance(outcome.error, errors.DeliveryTimeoutError)
    assert "after 1 attempts" in str(simulation.outcomes[b"on the wire"][0].error)
    assert simulation.accumulator.used_bytes == 0


def test_a_batch_expires_at_the_time_that_the_sender_waits_for() -> None:
    simulation = ProducerSimulation(partitions=1, delivery_timeout_ms=60_000, linger_ms=0)
    simulation.learn()
    simulation.now = 1000.1  # 1060.1 - 60 is less than 1000.1 in binary
    simulation.down.add(simulation.leaders[0])
    simulation.send(b"late", 0)
    simulation.poll()
    simulation.now = simulation.accumulator.next_expiry()
    simulation.poll()
    assert isinstance(simulation.outcomes[b"late"][0].error, errors.DeliveryTimeoutError)


def test_sequences_restart_when_the_outcome_of_an_expired_batch_is_unknown() -> None:
    simulation = ProducerSimulation(partitions=1, delivery_timeout_ms=30_000)
    simulation.send(b"in doubt", 0)
    simulation.poll()
    simulation.poll()
    simulation.disconnect(1)
    simulation.tick(30.0)
    simulation.send(b"next", 0)
    simulation.run_until_idle()
    assert simulation.written(b"next") == TP
    assert simulation.transactions is not None
    assert simulation.transactions.epoch == 1


def test_a_batch_that_may_have_been_written_fails_when_sequences_restart_and_others_are_sent() -> None:
    simulation = ProducerSimulation(partitions=2, delivery_timeout_ms=30_000, linger_ms=0)
    simulation.learn()
    simulation.send(b"expires", 0)
    simulation.poll()
    simulation.poll()
    simulation.tick(20.0)
    simulation.send(b"in doubt", 0)
    simulation.poll()
    simulation.disconnect(simulation.leaders[0])
    simulation.tick(10.0)
    simulation.send(b"other", 1)
    simulation.run_until_idle()
    assert simulation.outcomes[b"in doubt"][0].error is not None
    assert simulation.written(b"other") == TopicPartition(TOPIC, 1)


def test_a_broker_that_has_forgotten_the_producer_gets_a_new_epoch() -> None:
    simulation = ProducerSimulation(partitions=1)
    simulation.send(b"a", 0)
    simulation.run_until_idle()
    simulation.logs[0].forget()
    for value in (b"b", b"c", b"d"):
        simulation.send(value, 0)
        simulation.poll()
    simulation.run_until_idle()
    assert simulation.logs[0].values == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize(
    "answer",
    [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT],
)
def test_a_batch_that_a_deposed_leader_may_have_written_is_not_sent_under_a_new_epoch(
    answer: ErrorCode,
) -> None:
    simulation = ProducerSimulation(partitions=1)
    simulation.send(b"a", 0)
    simulation.run_until_idle()
    simulation.send(b"in doubt", 0)
    simulation.poll()
    simulation.serve(1, error_after=answer)
    simulation.logs[0].forget()
    simulation.run_until_idle()
    assert simulation.logs[0].values == [b"a", b"in doubt"]
    (outcome,) = simulation.outcomes[b"in doubt"]
    assert isinstance(outcome.error, errors.OutOfOrderSequenceNumberError)


def test_a_leader_named_in_a_response_is_used_at_once() -> None:
    simulation = ProducerSimulation(partitions=1)
    simulation.send(b"a", 0)
    simulation.poll()
    simulation.poll()
    simulation.move(0)
    unsent = simulation.wire[1].popleft()
    part = m.ProduceResponse.PartitionProduceResponse(
        index=0,
        error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
        current_leader=m.ProduceResponse.LeaderIdAndEpoch(leader_id=2, leader_epoch=1),
    )
    topic = m.ProduceResponse.TopicProduceResponse(name=TOPIC, partition_responses=[part])
    simulation.sender.on_response(unsent.tag, m.ProduceResponse(responses=[topic]), simulation.now)
    assert [unsent.node_id for unsent in simulation.sender.poll(simulation.now)] == [2]


def test_no_broker_gets_a_larger_request_than_allowed() -> None:
    simulation = ProducerSimulation(partitions=8, batch_size=1000, max_request_size=2500, linger_ms=1)
    simulation.learn()
    for n in range(160):
        simulation.send(b"%d" % n + b"x" * 100, n % 8)
    simulation.tick(1)
    simulation.poll()
    simulation.poll()
    for wire in simulation.wire.values():
        for unsent in wire:
            data = unsent.message.topic_data[0].partition_data  # type: ignore[attr-defined]
            assert sum(len(entry.records) for entry in data) <= 2500
            assert len(data) >= 2


# --- transactions --------------------------------------------------------------------------------


class RecordingCallback:
    """A callback that records its arguments."""

    def __init__(self) -> None:
        self.results: list[BaseException | None] = []

    def __call__(self, error: BaseException | None) -> None:
        self.results.append(error)


def transactional(**settings: object) -> tuple[ProducerSimulation, Any]:
    simulation = ProducerSimulation(transactional_id="t", **settings)  # type: ignore[arg-type]
    transactions = simulation.transactions
    assert transactions is not None
    ready = RecordingCallback()
    transactions.initialize(ready)
    poll_repeatedly(simulation)
    assert ready.results == [None]
    return simulation, transactions


def poll_repeatedly(simulation: ProducerSimulation) -> None:
    for _ in range(12):
        simulation.poll()
        simulation.tick(0.2)


def asked(simulation: ProducerSimulation) -> list[str]:
    return [type(request).__name__.removesuffix("Request") for request in simulation.asked]


def test_a_transaction_from_begin_to_commit() -> None:
    simulation, transactions = transactional()
    with pytest.raises(errors.IllegalStateError, match="begin a transaction"):
        transactions.check_sending()
    transactions.begin()
    simulation.send(b"a", 0)
    committed, offsets = RecordingCallback(), RecordingCallback()
    group = GroupMetadata("readers", 5, "me")
    transactions.send_offsets({TP: OffsetToCommit(7)}, group, offsets)
    poll_repeatedly(simulation)
    assert simulation.outcomes == {}
    transactions.commit(committed)
    poll_repeatedly(simulation)
    assert not committed.results, "the record is not acknowledged yet"
    simulation.run_until_idle()
    poll_repeatedly(simulation)
    assert committed.results == offsets.results == [None]
    assert asked(simulation) == [
        "FindCoordinator",
        "InitProducerId",
        "AddPartitionsToTxn",
        "AddOffsetsToTxn",
        "FindCoordinator",
        "TxnOffsetCommit",
        "EndTxn",
    ]
    assert simulation.asked[-1].committed
    assert transactions.state is State.READY


def test_an_empty_transaction_sends_no_requests() -> None:
    simulation, transactions = transactional()
    before = len(simulation.asked)
    transactions.begin()
    done = RecordingCallback()
    transactions.commit(done)
    poll_repeatedly(simulation)
    assert done.results == [None]
    assert len(simulation.asked) == before


def test_an_abort_fails_what_was_not_sent() -> None:
    simulation, transactions = transactional(linger_ms=1000, delivery_timeout_ms=60_000)
    transactions.begin()
    simulation.send(b"a", 0)
    aborted = RecordingCallback()
    transactions.abort(aborted)
    poll_repeatedly(simulation)
    (outcome,) = simulation.outcomes[b"a"]
    assert isinstance(outcome.error, errors.TransactionAbortedError)
    assert aborted.results == [None]


def test_a_refused_record_makes_the_transaction_abortable_only() -> None:
    simulation, transactions = transactional()
    transactions.begin()
    simulation.send(b"a", 0)
    poll_repeatedly(simulation)
    simulation.serve(1, error=ErrorCode.MESSAGE_TOO_LARGE)
    with pytest.raises(errors.MessageTooLargeError):
        transactions.check_sending()
    with pytest.raises(errors.MessageTooLargeError):
        transactions.commit(RecordingCallback())
    aborted = RecordingCallback()
    transactions.abort(aborted)
    poll_repeatedly(simulation)
    assert aborted.results == [None]
    assert asked(simulation)[-2:] == ["EndTxn", "InitProducerId"], "sequences begin anew under a new epoch"
    assert simulation.asked[-1].producer_id == 1
    transactions.begin()
    simulation.send(b"b", 0)
    simulation.run_until_idle()
    assert simulation.written(b"b") == TP


@pytest.mark.parametrize("commits_before", [True, False])
def test_a_record_that_expires_unsent_fails_the_commit(commits_before: bool) -> None:
    """Otherwise the transaction would be committed without it (found by a seed of the simulation)."""
    simulation, transactions = transactional(delivery_timeout_ms=30_000)
    simulation.learn()
    simulation.down.add(simulation.leaders[0])
    transactions.begin()
    simulation.send(b"never sent", 0)
    simulation.send(b"sent", 1)
    poll_repeatedly(simulation)
    simulation.serve(simulation.leaders[1])
    assert simulation.written(b"sent") == TopicPartition(TOPIC, 1)
    committed = RecordingCallback()
    if commits_before:
        transactions.commit(committed)
    simulation.tick(30.0)
    poll_repeatedly(simulation)
    assert "after 0 attempts" in str(simulation.outcomes[b"never sent"][0].error)
    if not commits_before:
        with pytest.raises(errors.DeliveryTimeoutError):
            transactions.commit(committed)
    else:
        assert [type(error) for error in committed.results] == [errors.DeliveryTimeoutError]
    aborted = RecordingCallback()
    transactions.abort(aborted)
    simulation.run_until_idle()
    poll_repeatedly(simulation)
    assert aborted.results == [None]
    assert not [r for r in simulation.asked if isinstance(r, m.EndTxnRequest) and r.committed]


def test_a_record_without_a_partition_fails_the_commit() -> None:
    simulation, transactions = transactional(max_block_ms=5_000)
    simulation.topic_error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    transactions.begin()
    simulation.send(b"nowhere")
    committed = RecordingCallback()
    transactions.commit(committed)
    simulation.tick(5.0)
    poll_repeatedly(simulation)
    assert simulation.outcomes[b"nowhere"][0].error is not None
    assert [type(error) for error in committed.results] == [errors.RequestTimedOutError]


def test_a_fenced_producer_stays_failed() -> None:
    simulation, transactions = transactional()
    transactions.begin()
    simulation.send(b"a", 0)
    assert poll_until_asked(simulation, m.AddPartitionsToTxnRequest)
    done = RecordingCallback()
    transactions.commit(done)
    simulation.scripted_responses.append(m.EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED))
    simulation.run_until_idle()
    poll_repeatedly(simulation)
    assert [type(error) for error in done.results] == [errors.ProducerFencedError]
    with pytest.raises(errors.ProducerFencedError):
        transactions.begin()


def poll_until_asked(simulation: ProducerSimulation, kind: type[Any]) -> list[Any]:
    for _ in range(10):
        simulation.poll()
        simulation.tick(0.1)
        found = [request for request in simulation.asked if isinstance(request, kind)]
        if found:
            return found
    raise AssertionError(f"{kind.__name__} was not sent")


def test_a_coordinator_that_has_moved_is_looked_up_again() -> None:
    simulation, transactions = transactional()
    transactions.begin()
    simulation.send(b"a", 0)
    simulation.scripted_responses.append(
        partitions_added(
            m.AddPartitionsToTxnRequest(
                v3_and_below_topics=[
                    m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])
                ]
            ),
            ErrorCode.NOT_COORDINATOR,
        )
    )
    simulation.run_until_idle()
    assert asked(simulation)[-3:] == ["AddPartitionsToTxn", "FindCoordinator", "AddPartitionsToTxn"]
    assert simulation.written(b"a") == TP


def test_offsets_of_a_removed_member_make_the_transaction_abortable_only() -> None:
    simulation, transactions = transactional()
    transactions.begin()
    committed = RecordingCallback()
    offsets = {TP: OffsetToCommit(7)}
    transactions.send_offsets(offsets, GroupMetadata("readers", 5, "me"), committed)
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
    simulation.scripted_responses.extend([m.AddOffsetsToTxnResponse(), found, refused])
    poll_repeatedly(simulation)
    assert [type(error) for error in committed.results] == [errors.CommitFailedError]
    assert transactions.state is State.ABORTABLE_ERROR

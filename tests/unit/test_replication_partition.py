"""One partition on three brokers: committed records, the ISR, and fencing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import ControlType, Record, build_batch, build_control_batch
from ottla.replication.follower import Append, Retry
from ottla.replication.isr import Follower
from ottla.replication.offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    offset_for_leader_epoch,
    offset_for_time,
)
from ottla.replication.reads import read as read_replica
from tests.worlds.replication_cluster import LAG_MS_MAX, Cluster, values_of


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def shrunk_to_leader(cluster: Cluster) -> None:
    """The followers stop fetching, and the leader removes them from the ISR."""
    cluster.now_ms += LAG_MS_MAX + 1
    cluster.produce("wakes nobody", acks=1)
    cluster.leader.maybe_shrink_isr(cluster.now_ms)
    cluster.decide_proposals()
    assert cluster.leader.isr == {1}


# --- the high watermark ----------------------------------------------------------------------------


def test_a_record_is_committed_once_every_member_of_the_isr_has_it(cluster: Cluster) -> None:
    end = cluster.produce("a", "b").last_offset + 1
    assert cluster.leader.enough_replicas_for(end) == (False, ErrorCode.NONE)
    cluster.replicate(2)
    assert cluster.leader.high_watermark == 0
    cluster.replicate(3)
    assert cluster.leader.high_watermark == end
    assert cluster.leader.enough_replicas_for(end) == (True, ErrorCode.NONE)
    assert cluster.consume() == ["a", "b"]


def test_a_consumer_sees_nothing_above_the_high_watermark_and_a_follower_all(cluster: Cluster) -> None:
    cluster.produce("a")
    cluster.replicate()
    cluster.produce("b")
    consumer = read_replica(cluster.leader, 1, 1000, replica_id=-1, now_ms=cluster.now_ms)
    follower = read_replica(cluster.leader, 1, 1000, replica_id=2, now_ms=cluster.now_ms)
    assert (consumer.error, consumer.high_watermark, consumer.read) == (ErrorCode.NONE, 1, None)
    assert follower.read is not None


def test_followers_learn_the_high_watermark_but_never_beyond_their_own_log(cluster: Cluster) -> None:
    cluster.produce("a")
    cluster.replicate()
    cluster.produce("b", "c")
    step = cluster.fetch(2)
    assert isinstance(step, Append)
    assert step.high_watermark == 1
    cluster.replicate()
    assert [cluster.nodes[broker].high_watermark for broker in (1, 2, 3)] == [3, 3, 3]
    fresh = cluster.nodes[2]
    fresh.append_as_follower(b"", leader_high_watermark=99, leader_log_start=0, now_ms=cluster.now_ms)
    assert fresh.high_watermark == fresh.log.log_end_offset


def transaction(number: int, base_offset: int = 0) -> tuple[bytes, bytes]:
    """A batch of a transaction, and the marker that ends it."""
    record = build_batch(
        [Record(base_offset, 1000, None, b"v")],
        base_offset=base_offset,
        producer_id=7,
        producer_epoch=0,
        base_sequence=number,
        leader_epoch=0,
        transactional=True,
    )
    marker = build_control_batch(
        ControlType.COMMIT,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp=1000,
        base_offset=base_offset + 1,
        leader_epoch=0,
    )
    return record, marker


def test_a_follower_keeps_no_completed_transactions(cluster: Cluster) -> None:
    """Nobody reads from it, or asks for its last stable offset."""
    follower = cluster.nodes[2]
    for number in range(50):
        end = follower.log.log_end_offset
        follower.append_as_follower(
            b"".join(transaction(number, end)),
            leader_high_watermark=end,
            leader_log_start=0,
            now_ms=cluster.now_ms,
        )
    assert follower.high_watermark == 98
    assert len(follower.log.producers._unreplicated) == 1


def test_a_leader_without_readers_keeps_no_completed_transactions(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, replicas=1)
    for number in range(50):
        for data in transaction(number):
            cluster.leader.append_as_leader(data, required_acks=1, now_ms=cluster.now_ms, client=False)
    assert not cluster.leader.log.producers._unreplicated
    assert cluster.leader.last_stable_offset == 100


def test_a_leader_alone_in_its_isr_commits_as_it_appends(cluster: Cluster) -> None:
    shrunk_to_leader(cluster)
    cluster.listeners[1].events.clear()
    end = cluster.produce("alone").last_offset + 1
    assert cluster.leader.high_watermark == end
    assert cluster.listeners[1].events == [("appended", end), ("high watermark", end)]


def test_a_single_replica_commits_alone(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, replicas=1, min_insync_replicas=2)
    cluster.produce("a")
    assert cluster.consume() == ["a"]


def test_a_second_read_of_a_deferred_fetch_is_no_progress(cluster: Cluster) -> None:
    cluster.produce("a")
    read_replica(cluster.leader, 1, 1000, replica_id=2, now_ms=cluster.now_ms, record_progress=False)
    follower = cluster.leader.follower(2)
    assert follower is not None
    assert follower.log_end_offset == -1


# --- in-sync replicas ------------------------------------------------------------------------------


def test_a_follower_that_stops_fetching_leaves_the_isr_and_no_longer_blocks_commits(cluster: Cluster) -> None:
    cluster.produce("a")
    cluster.now_ms += LAG_MS_MAX
    cluster.replicate(2)
    cluster.now_ms += 1
    cluster.leader.maybe_shrink_isr(cluster.now_ms)
    [(_, change)] = cluster.proposals
    assert change.proposed == {1, 2}
    assert cluster.leader.high_watermark == 0, "a shrinkage counts only once it is confirmed"
    cluster.decide_proposals()
    assert cluster.leader.isr == {1, 2}
    assert cluster.leader.high_watermark == 1
    assert cluster.listeners[1].events[-1] == ("high watermark", 1)


def test_a_follower_of_a_busy_leader_stays_in_the_isr_without_ever_reaching_its_end(cluster: Cluster) -> None:
    for _ in range(20):
        cluster.produce("more")
        cluster.fetch(2)
        cluster.produce("and more")
        cluster.fetch(3)
        cluster.produce("and still more")
        cluster.now_ms += LAG_MS_MAX // 2
        cluster.leader.maybe_shrink_isr(cluster.now_ms)
    assert not cluster.proposals


def test_a_follower_that_fetches_but_falls_behind_leaves_the_isr(cluster: Cluster) -> None:
    for _ in range(4):
        cluster.produce("much")
        cluster.replicate(3)
        read_replica(cluster.leader, 0, 100, replica_id=2, now_ms=cluster.now_ms)
        cluster.now_ms += LAG_MS_MAX // 2
        cluster.leader.maybe_shrink_isr(cluster.now_ms)
    [(_, change)] = cluster.proposals
    assert change.proposed == {1, 3}


def test_a_follower_that_has_caught_up_joins_and_counts_at_once(cluster: Cluster) -> None:
    shrunk_to_leader(cluster)
    cluster.replicate(2)
    [(_, change)] = cluster.proposals
    assert change.proposed == {1, 2}
    assert cluster.leader.isr == {1}
    assert cluster.leader.maximal_isr == {1, 2}
    cluster.produce("b")
    assert cluster.leader.high_watermark == 1, "an expansion counts before it is confirmed"
    cluster.decide_proposals()
    assert cluster.leader.isr == {1, 2}
    cluster.replicate(2)
    assert cluster.leader.high_watermark == 2


def test_a_follower_in_the_maximal_isr_counts_even_when_it_stops_fetching(cluster: Cluster) -> None:
    """The controller may have granted the expansion, and may elect that follower next."""
    shrunk_to_leader(cluster)
    cluster.replicate(2)
    cluster.decide_proposals(answer=False)
    assert cluster.isr == [1, 2]
    cluster.produce("b", acks=1)
    cluster.now_ms += LAG_MS_MAX + 1
    read_replica(cluster.leader, 1, 1000, replica_id=3, now_ms=cluster.now_ms)
    read_replica(cluster.leader, 2, 1000, replica_id=3, now_ms=cluster.now_ms)
    assert cluster.leader.high_watermark == 1


def test_a_follower_below_the_high_watermark_stays_out(cluster: Cluster) -> None:
    shrunk_to_leader(cluster)
    cluster.produce("b")
    read_replica(cluster.leader, 1, 1000, replica_id=2, now_ms=cluster.now_ms)
    assert not cluster.proposals


def test_a_follower_must_reach_the_start_of_the_leaders_epoch_to_join(cluster: Cluster) -> None:
    cluster.produce("a", "b")
    cluster.elect(1, isr=[1, 2])
    assert cluster.leader.high_watermark == 0
    read_replica(cluster.leader, 1, 1000, replica_id=3, now_ms=cluster.now_ms)
    assert not cluster.proposals, "at 1, above the high watermark 0, but below the epoch's start 2"
    read_replica(cluster.leader, 2, 1000, replica_id=3, now_ms=cluster.now_ms)
    assert [change.proposed for _, change in cluster.proposals] == [{1, 2, 3}]


def test_a_dead_broker_cannot_join(cluster: Cluster) -> None:
    shrunk_to_leader(cluster)
    cluster.alive.discard(2)
    cluster.replicate(2)
    assert not cluster.proposals


def test_one_change_is_in_flight_at_a_time(cluster: Cluster) -> None:
    shrunk_to_leader(cluster)
    cluster.replicate(2, 3)
    assert [change.proposed for _, change in cluster.proposals] == [{1, 2}]
    cluster.decide_proposals()
    cluster.replicate(3)
    assert [change.proposed for _, change in cluster.proposals] == [{1, 2, 3}]


def test_an_ineligible_replica_is_forgotten_and_may_be_proposed_again(cluster: Cluster) -> None:
    shrunk_to_leader(cluster)
    cluster.replicate(2)
    partition, change = cluster.proposals.pop()
    assert partition.isr_change_failed(change, ErrorCode.INELIGIBLE_REPLICA, cluster.now_ms) is False
    assert partition.maximal_isr == {1}
    cluster.replicate(2)
    assert [change.proposed for _, change in cluster.proposals] == [{1, 2}]


@pytest.mark.parametrize(
    "error", [ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_TOPIC_ID]
)
def test_an_ambiguous_refusal_keeps_the_maximal_isr_until_leader_and_isr(
    cluster: Cluster, error: ErrorCode
) -> None:
    shrunk_to_leader(cluster)
    cluster.replicate(2)
    partition, change = cluster.proposals.pop()
    assert partition.isr_change_failed(change, error, cluster.now_ms) is False
    assert partition.maximal_isr == {1, 2}
    cluster.replicate(3)
    assert not cluster.proposals
    cluster.elect(1)
    assert partition.isr_change is None


def test_an_unknown_error_is_retried(cluster: Cluster) -> None:
    shrunk_to_leader(cluster)
    cluster.replicate(2)
    partition, change = cluster.proposals.pop()
    assert partition.isr_change_failed(change, ErrorCode.UNKNOWN_SERVER_ERROR, cluster.now_ms) is True
    assert partition.isr_change is change


def test_an_answer_from_before_an_election_is_ignored(cluster: Cluster) -> None:
    shrunk_to_leader(cluster)
    cluster.replicate(2)
    partition, change = cluster.proposals.pop()
    cluster.elect(1)
    assert not partition.isr_change_committed(
        change, leader_epoch=change.leader_epoch, isr=change.proposed, partition_epoch=99, now_ms=0
    )
    assert partition.isr == {1}


def test_a_new_leader_assumes_members_of_the_isr_to_be_caught_up() -> None:
    follower = Follower(2)
    follower.fetched(5, 0, 5, 1000)
    follower.reset(8, 2000, has_led=False, in_sync=True)
    assert (follower.log_end_offset, follower.last_caught_up_ms) == (-1, 2000)
    follower.fetched(5, 0, 8, 2500)
    follower.reset(8, 3000, has_led=True, in_sync=True)
    assert (follower.log_end_offset, follower.last_caught_up_ms) == (5, 3000)
    follower.reset(8, 4000, has_led=True, in_sync=False)
    assert not follower.is_caught_up(8, LAG_MS_MAX + 1, LAG_MS_MAX)


# --- acks=all and min.insync.replicas --------------------------------------------------------------


def test_acks_all_needs_min_insync_replicas_and_acks_1_does_not(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, min_insync_replicas=2)
    shrunk_to_leader(cluster)
    with pytest.raises(KafkaError) as caught:
        cluster.produce("b")
    assert caught.value.code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert cluster.produce("b", acks=1).last_offset == 1


def test_nothing_is_committed_below_min_insync_replicas(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, min_insync_replicas=2)
    cluster.produce("a")
    cluster.replicate()
    shrunk_to_leader(cluster)
    assert cluster.consume() == ["a"]
    cluster.leader.config_changed(replace(cluster.config, min_insync_replicas=1), cluster.now_ms)
    assert cluster.consume() == ["a", "wakes nobody"]


def test_an_isr_below_the_minimum_fails_deferred_produces(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, min_insync_replicas=3)
    end = cluster.produce("a").last_offset + 1
    cluster.replicate()
    cluster.now_ms += LAG_MS_MAX + 1
    cluster.replicate(2)
    cluster.produce("b", acks=1)
    cluster.leader.maybe_shrink_isr(cluster.now_ms)
    cluster.decide_proposals()
    assert cluster.leader.enough_replicas_for(end) == (True, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


# --- epochs ----------------------------------------------------------------------------------------


def test_fetches_are_fenced_by_leader_epoch(cluster: Cluster) -> None:
    cluster.elect(1)
    epoch = cluster.leader_epoch

    def error(current: int, replica: int = -1) -> ErrorCode:
        read = read_replica(
            cluster.leader, 0, 100, replica_id=replica, current_leader_epoch=current, now_ms=cluster.now_ms
        )
        return read.error

    assert error(epoch - 1) == ErrorCode.FENCED_LEADER_EPOCH
    assert error(epoch + 1) == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert error(epoch) == error(-1) == ErrorCode.NONE
    assert error(epoch, replica=9) == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert error(-1, replica=9) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_follower_serves_only_consumers_that_may_read_from_followers(cluster: Cluster) -> None:
    cluster.produce("a")
    cluster.replicate()
    node = cluster.nodes[2]
    refused = read_replica(node, 0, 100, replica_id=-1, now_ms=cluster.now_ms)
    assert refused.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    served = read_replica(node, 0, 100, replica_id=-1, now_ms=cluster.now_ms, leader_only=False)
    assert served.read is not None
    with pytest.raises(KafkaError) as caught:
        cluster.produce("b", to=2)
    assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert node.enough_replicas_for(1) == (True, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_offsets_outside_the_log_are_out_of_range(cluster: Cluster) -> None:
    cluster.produce("a")
    for offset in (-1, 2):
        read = read_replica(cluster.leader, offset, 100, replica_id=-1, now_ms=cluster.now_ms)
        assert read.error == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (read.high_watermark, read.log_start_offset) == (-1, -1)


def test_a_deposed_leader_refuses_its_former_followers(cluster: Cluster) -> None:
    cluster.elect(2, informed={2, 3})
    fetch, request = cluster.ask(3)
    request_to_old = read_replica(
        cluster.nodes[1],
        request.fetch_offset,
        100,
        replica_id=3,
        current_leader_epoch=request.current_leader_epoch,
        now_ms=cluster.now_ms,
    )
    assert request_to_old.error == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert fetch.is_current


def test_a_fetch_that_comes_too_early_for_the_new_leader_is_retried(cluster: Cluster) -> None:
    cluster.elect(2, informed={3})
    assert cluster.fetch(3) == Retry(ErrorCode.UNKNOWN_LEADER_EPOCH)
    cluster.leader_and_isr(2)
    assert isinstance(cluster.fetch(3), Append)


def test_an_older_partition_epoch_changes_nothing(cluster: Cluster) -> None:
    node = cluster.nodes[2]
    state = replace(cluster.state(), leader=3, leader_epoch=5, partition_epoch=-1)
    node.partition_epoch = 4
    assert node.become_follower(state) is False
    assert node.leader_id == 1


def test_a_new_leader_assumes_no_progress_of_followers(cluster: Cluster) -> None:
    cluster.produce("a")
    cluster.replicate()
    cluster.elect(2)
    assert [cluster.leader.follower(b).log_end_offset for b in (1, 3)] == [-1, -1]  # type: ignore[union-attr]
    cluster.produce("b")
    assert cluster.leader.high_watermark == 1
    cluster.replicate()
    assert values_of(cluster.nodes[1]) == ["a", "b"]


def test_a_leader_that_missed_an_epoch_assumes_no_progress_of_followers(cluster: Cluster) -> None:
    """They may have truncated what they had fetched from it: another broker has led them."""
    cluster.produce("a")
    cluster.replicate()
    cluster.produce("b")
    cluster.fetch(2)
    cluster.fetch(2)
    cluster.elect(3, informed={2, 3})
    cluster.fetch(2)
    assert values_of(cluster.nodes[2]) == ["a"]
    cluster.elect(1)
    for _ in range(3):  # truncates, fetches, and confirms
        cluster.fetch(3)
    assert cluster.leader.high_watermark == 1
    cluster.replicate()
    assert values_of(cluster.nodes[2]) == ["a", "b"]
    assert cluster.leader.high_watermark == 2


# --- offsets ---------------------------------------------------------------------------------------


def test_list_offsets_respects_the_isolation_level_and_role_of_the_client(cluster: Cluster) -> None:
    cluster.produce("a")
    cluster.replicate()
    cluster.produce("b")
    leader = cluster.leader
    assert offset_for_time(leader, EARLIEST_TIMESTAMP, 0) == (0, -1, 0)
    assert offset_for_time(leader, LATEST_TIMESTAMP, 0) == (1, -1, 0)
    assert offset_for_time(leader, LATEST_TIMESTAMP, None) == (2, -1, 0)
    assert offset_for_time(leader, 1000, 0) == (0, 1000, 0)
    assert offset_for_time(leader, 1001, 0) is None
    assert offset_for_time(leader, MAX_TIMESTAMP, 0) == (0, 1000, 0)


def test_latest_is_not_available_until_the_new_leader_knows_what_was_committed(cluster: Cluster) -> None:
    cluster.produce("a")
    for _ in range(2):
        cluster.fetch(2)
    cluster.elect(2)
    with pytest.raises(KafkaError) as caught:
        offset_for_time(cluster.leader, LATEST_TIMESTAMP, 0)
    assert caught.value.code == ErrorCode.OFFSET_NOT_AVAILABLE
    cluster.replicate()
    assert offset_for_time(cluster.leader, LATEST_TIMESTAMP, 0) == (1, -1, 1)


def test_a_transaction_from_before_its_epoch_leaves_a_leaders_latest_available(cluster: Cluster) -> None:
    """It is the high watermark that has to reach the epoch's start, not the last stable offset."""
    open_transaction = build_batch(
        [Record(0, 1, None, b"x", [])], producer_id=5, producer_epoch=0, base_sequence=0, transactional=True
    )
    cluster.leader.append_as_leader(open_transaction, required_acks=-1, now_ms=1)
    cluster.replicate()
    cluster.elect(2)
    cluster.replicate()
    assert offset_for_time(cluster.leader, LATEST_TIMESTAMP, 0) == (1, -1, 1)
    assert offset_for_time(cluster.leader, LATEST_TIMESTAMP, 1) == (0, -1, 1)


def test_the_end_of_an_epoch_is_answered_by_its_leader_only(cluster: Cluster) -> None:
    cluster.produce("a", "b")
    cluster.replicate()
    cluster.elect(2)
    assert offset_for_leader_epoch(cluster.leader, 1, 1) == (ErrorCode.NONE, 1, 2), "it begins empty"
    cluster.produce("c")
    assert offset_for_leader_epoch(cluster.leader, 1, 0) == (ErrorCode.NONE, 0, 2)
    assert offset_for_leader_epoch(cluster.leader, 1, 1) == (ErrorCode.NONE, 1, 3)
    assert offset_for_leader_epoch(cluster.leader, 0, 1)[0] == ErrorCode.FENCED_LEADER_EPOCH
    assert offset_for_leader_epoch(cluster.nodes[1], 1, 1)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_duplicate_batch_notifies_no_listener(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, replicas=1)
    records = build_batch([Record(0, 1, None, b"x", [])], producer_id=5, producer_epoch=0, base_sequence=0)
    first = cluster.leader.append_as_leader(records, required_acks=-1, now_ms=1)
    cluster.listeners[1].events.clear()
    again = cluster.leader.append_as_leader(records, required_acks=-1, now_ms=2)
    assert (first.duplicate, again.duplicate) == (False, True)
    assert again.first_offset == first.first_offset
    assert cluster.listeners[1].events == []


def test_the_checkpointed_high_watermark_is_held_within_the_log(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.produce("a")
    cluster.kill(1)
    assert cluster.start(1, high_watermark=50).high_watermark == 1


# --- what fetch sessions rely on -------------------------------------------------------------------


def test_an_in_sync_follower_with_all_records_need_not_be_read_again(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.produce("a", acks=1)
    assert not cluster.answer(2, cluster.ask(2)[1]).caught_up, "there is something to read"
    cluster.replicate()
    assert cluster.answer(2, cluster.ask(2)[1]).caught_up
    cluster.elect(1, isr=[1, 3])
    cluster.replicate()
    cluster.proposals.clear()
    assert not cluster.answer(2, cluster.ask(2)[1]).caught_up, "the next fetch may let it in"


def test_a_consumer_with_all_committed_records_need_not_be_read_again(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.produce("a", acks=1)
    assert read_replica(cluster.leader, 0, 1 << 20, replica_id=-1, now_ms=cluster.now_ms).caught_up
    cluster.replicate()
    assert not read_replica(cluster.leader, 0, 1 << 20, replica_id=-1, now_ms=cluster.now_ms).caught_up
    assert read_replica(cluster.leader, 1, 1 << 20, replica_id=-1, now_ms=cluster.now_ms).caught_up


def test_a_follower_with_an_empty_fetch_is_caught_up_when_a_record_is_appended(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.replicate()
    cluster.now_ms += 2 * LAG_MS_MAX
    cluster.leader.follower_was_idle(2, cluster.now_ms - 100, cluster.leader.leader_epoch)
    cluster.produce("a", acks=1)
    cluster.leader.maybe_shrink_isr(cluster.now_ms)
    [(_, change)] = cluster.proposals
    assert change.proposed == {1, 2}, "3 did not poll"
    cluster.leader.follower_was_idle(2, 0, cluster.leader.leader_epoch)
    follower = cluster.leader.follower(2)
    assert follower is not None
    assert follower.last_caught_up_ms == cluster.now_ms - 100, "an older session has no say"


def test_an_idle_fetch_of_an_earlier_leader_epoch_holds_back_no_record(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.produce("a", acks=1)
    cluster.replicate()
    cluster.replicate()
    before = cluster.leader.leader_epoch
    cluster.elect(1, isr=[1, 3])  # the log directory of 2 has failed, and 1 still leads
    cluster.leader.follower_was_idle(2, cluster.now_ms, before)
    cluster.produce("b", acks=1)
    cluster.replicate(3)
    assert cluster.leader.high_watermark == cluster.leader.log.log_end_offset


def test_a_moved_log_start_is_notified_once(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.produce("a", "b")
    cluster.replicate()
    assert not cluster.leader.maybe_notify_log_start()
    cluster.leader.log.maybe_increment_log_start_offset(1)
    assert cluster.leader.maybe_notify_log_start()
    assert not cluster.leader.maybe_notify_log_start()
    assert cluster.listeners[1].events.count(("changed", 1)) == 1


@pytest.mark.parametrize("by_tick", [False, True])
def test_a_proposed_replica_that_left_the_cluster_does_not_block_commits(
    tmp_path: Path, by_tick: bool
) -> None:
    cluster = Cluster(tmp_path)
    cluster.replicate()
    cluster.elect(1, isr=[1, 2])
    cluster.replicate()
    cluster.produce("a", acks=1)
    cluster.replicate(2)
    partition, change = cluster.proposals.pop()
    assert partition is cluster.leader
    # The controller knows already that it shuts down.
    partition.isr_change_failed(change, ErrorCode.INELIGIBLE_REPLICA, cluster.now_ms)
    assert partition.high_watermark == 0, "3 was caught up, and to join"
    cluster.kill(3)
    listeners = cluster.listeners[1].events.count(("high watermark", 1))
    if by_tick:
        partition.maybe_shrink_isr(cluster.now_ms)
    else:
        partition.broker_left(cluster.now_ms)
    assert partition.high_watermark == 1
    assert cluster.listeners[1].events.count(("high watermark", 1)) == listeners + 1


def test_a_refused_replica_that_left_the_cluster_does_not_block_commits(
    cluster: Cluster,
) -> None:
    shrunk_to_leader(cluster)
    cluster.replicate(2)
    partition, change = cluster.proposals.pop()
    cluster.produce("late", acks=1)
    held = partition.high_watermark
    cluster.kill(2)
    partition.broker_left(cluster.now_ms)
    assert partition.high_watermark == held, "2 counts until the controller has spoken"
    partition.isr_change_failed(change, ErrorCode.INELIGIBLE_REPLICA, cluster.now_ms)
    assert partition.high_watermark == partition.log.log_end_offset > held

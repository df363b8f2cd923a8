"""Followers that diverge from the leader's log: truncation by leader epoch only."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import FetchResponse
from ottla.replication.follower import (
    Append,
    Ignore,
    RequestOffsets,
    Retry,
    TruncateFullyAndStartAt,
    TruncateTo,
)
from tests.worlds.replication_cluster import Cluster, epochs_of, values_of


def test_a_restarted_follower_keeps_what_lies_above_its_high_watermark(tmp_path: Path) -> None:
    """KIP-101, scenario 1: it used to truncate to its high watermark, and then be elected."""
    cluster = Cluster(tmp_path, replicas=2)
    cluster.produce("m1")
    cluster.replicate(2)
    cluster.produce("m2")
    cluster.fetch(2)
    cluster.fetch(2)
    assert cluster.leader.high_watermark == 2, "m2 is committed"
    cluster.kill(2)
    cluster.start(2, high_watermark=1)
    cluster.elect(1)
    cluster.kill(1)
    cluster.elect(2, isr=[2])
    assert cluster.consume() == ["m1", "m2"]


def test_after_a_double_failure_the_follower_takes_the_new_leaders_record(tmp_path: Path) -> None:
    """KIP-101, scenario 2: both brokers fail, the one with less comes back first and leads."""
    cluster = Cluster(tmp_path, replicas=2)
    cluster.produce("m1")
    cluster.replicate(2)
    cluster.produce("m2", acks=1)
    cluster.kill(1)
    cluster.kill(2)
    cluster.start(2)
    cluster.elect(2, isr=[2])
    cluster.produce("m3")
    cluster.start(1, high_watermark=1)
    cluster.leader_and_isr(1)
    assert cluster.fetch(1) == TruncateTo(1)
    cluster.replicate(1)
    assert values_of(cluster.nodes[1]) == values_of(cluster.nodes[2]) == ["m1", "m3"]
    assert epochs_of(cluster.nodes[1]) == epochs_of(cluster.nodes[2])


def test_a_follower_that_rejoins_truncates_to_the_leaders_epoch_end(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.produce("a", "b")
    cluster.replicate()
    cluster.produce("only on 1", "this too", acks=1)
    cluster.kill(1)
    cluster.elect(2, isr=[2, 3])
    cluster.produce("c")
    cluster.replicate(3)
    cluster.start(1)
    cluster.leader_and_isr(1)
    assert cluster.fetch(1) == TruncateTo(2)
    cluster.replicate()
    assert [values_of(cluster.nodes[b]) for b in (1, 2, 3)] == [["a", "b", "c"]] * 3


def test_epochs_that_only_one_side_has_are_truncated_step_by_step(tmp_path: Path) -> None:
    """KIP-279: fast fail-over leaves each side with an epoch the other never saw, at the same offsets."""
    cluster = Cluster(tmp_path, replicas=2)
    cluster.produce("a")
    cluster.replicate(2)
    cluster.elect(2, informed={2})  # 1 does not hear of epoch 1
    cluster.produce("b1", "b2", acks=1, to=2)
    cluster.kill(2)
    cluster.elect(1, isr=[1], informed={1})  # epoch 2
    cluster.produce("c1", acks=1, to=1)
    cluster.kill(1)
    cluster.start(2)
    cluster.elect(2, isr=[2], informed={2})  # epoch 3: knows epochs 0 and 1
    cluster.produce("d", acks=1)
    cluster.start(1)
    cluster.leader_and_isr(1)
    assert cluster.nodes[1].log.latest_epoch == 2
    assert cluster.fetch(1) == TruncateTo(1), "1 knows no epoch 1: back to the end of epoch 0"
    cluster.replicate(1)
    assert values_of(cluster.nodes[1]) == values_of(cluster.nodes[2]) == ["a", "b1", "b2", "d"]
    assert epochs_of(cluster.nodes[1]) == epochs_of(cluster.nodes[2]) == [(0, 0), (1, 1), (2, 1), (3, 3)]


def test_a_common_epoch_is_truncated_to_its_smaller_end_offset(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, replicas=2)
    cluster.produce("a1")
    cluster.replicate(2)
    cluster.produce("a2", "a3", acks=1)
    cluster.kill(1)
    cluster.elect(2, isr=[2])
    cluster.produce("b")
    cluster.produce("b")
    cluster.kill(2)
    cluster.start(1)
    cluster.elect(1, isr=[1])
    cluster.produce("c")
    cluster.start(2)
    cluster.leader_and_isr(2)
    assert cluster.fetch(2) == TruncateTo(1), "epoch 0 ends at 3 on the leader, but at 1 here"
    cluster.replicate(2)
    assert values_of(cluster.nodes[2]) == values_of(cluster.nodes[1]) == ["a1", "a2", "a3", "c"]


def test_a_leader_that_wrote_nothing_follows_again_without_losing_anything(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, replicas=2)
    cluster.produce("a")
    cluster.replicate(2)
    cluster.elect(2)
    cluster.elect(1)
    cluster.produce("b")
    cluster.replicate(2)
    assert values_of(cluster.nodes[2]) == ["a", "b"]
    assert cluster.leader.high_watermark == 2


def test_a_follower_beyond_the_leaders_end_is_cut_back(tmp_path: Path) -> None:
    """An unclean election: the leader's log is shorter, in the same epoch."""
    cluster = Cluster(tmp_path, replicas=2)
    cluster.produce("a", "b", "c", acks=1)
    cluster.elect(2, isr=[2])
    assert cluster.fetch(1) == TruncateTo(0)
    cluster.produce("z")
    cluster.replicate(1)
    assert values_of(cluster.nodes[1]) == ["z"]


def test_a_follower_without_epochs_is_truncated_to_the_leaders_log_end(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, replicas=2)
    fetch, request = cluster.ask(2)
    request.fetch_offset = 5
    read = cluster.answer(2, request)
    assert read.error == ErrorCode.OFFSET_OUT_OF_RANGE
    fetch.fetch_offset = 0
    assert fetch.decide(FetchResponse.PartitionData(error_code=read.error)) == RequestOffsets()


def test_a_follower_below_the_leaders_log_start_starts_over_there(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, replicas=2)
    cluster.produce("a")
    cluster.replicate(2)
    cluster.elect(1, isr=[1])
    cluster.now_ms += 20_000
    cluster.produce("b", "c", "d")
    cluster.leader.log.maybe_increment_log_start_offset(3)
    assert cluster.fetch(2) == TruncateFullyAndStartAt(3)
    follower = cluster.nodes[2]
    assert (follower.log.log_start_offset, follower.log.log_end_offset, follower.high_watermark) == (3, 3, 3)
    cluster.replicate(2)
    assert values_of(follower) == ["d"], "the leader's log starts amid a batch"
    assert (follower.log.log_start_offset, follower.high_watermark) == (3, 4)


def test_a_follower_deletes_records_below_the_leaders_log_start(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, replicas=2)
    cluster.produce("a")
    cluster.produce("b")
    cluster.replicate(2)
    cluster.leader.log.maybe_increment_log_start_offset(1)
    cluster.fetch(2)
    assert cluster.nodes[2].log.log_start_offset == 1


def test_a_response_of_an_earlier_epoch_is_ignored(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.produce("a")
    fetch, request = cluster.ask(3)
    read = cluster.answer(3, request)
    cluster.elect(2)
    assert fetch.decide(FetchResponse.PartitionData(high_watermark=read.high_watermark)) == Ignore()


def test_errors_are_retried_with_backoff_up_to_the_configured_maximum(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    fetch = cluster.fetches[2]
    pauses = []
    for _ in range(7):
        fetch.apply(Retry(ErrorCode.NOT_LEADER_OR_FOLLOWER), now_ms=0, monotonic_ms=1000, backoff_ms=1000)
        pauses.append(fetch.due_ms - 1000)
    assert pauses == [50, 100, 200, 400, 800, 1000, 1000]
    fetch.apply(Append(None, 0, 0), now_ms=0, monotonic_ms=1000, backoff_ms=1000)
    fetch.apply(Retry(ErrorCode.NOT_LEADER_OR_FOLLOWER), now_ms=0, monotonic_ms=1000, backoff_ms=1000)
    assert fetch.due_ms == 1050


def test_a_leader_never_truncates(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    with pytest.raises(AssertionError):
        cluster.leader.truncate_to(0)

"""A broker's replicas under the controller's requests: fencing, fetching and deletion."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ottla.metadata.stored_topics import StoredTopic, StoredTopics
from ottla.metadata.znodes import TopicAssignment
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    FetchRequest,
    LeaderAndIsrRequest,
    OffsetForLeaderEpochRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from ottla.replication.requests import TYPE_FULL
from ottla.storage.log import Log, LogAppendInfo
from ottla.storage.log_manager import LogManager
from tests.worlds.replication_brokers import NO_ID, TOPIC, TOPIC_ID, Brokers, error_of, until
from tests.worlds.replication_cluster import batch, values_of

Scenario = Callable[[Brokers], Awaitable[None]]


def run_scenario(path: Path, scenario: Scenario, count: int = 2, **settings: str) -> None:
    async def run() -> None:
        brokers = Brokers(path, count, **settings)
        try:
            await scenario(brokers)
        finally:
            await brokers.stop()

    asyncio.run(run())


def stop_replica(
    *, epoch: int = -1, delete: bool = False, partition: int = 0, controller_epoch: int = 1
) -> StopReplicaRequest:
    return StopReplicaRequest(
        controller_id=1,
        controller_epoch=controller_epoch,
        topic_states=[
            StopReplicaRequest.StopReplicaTopicState(
                topic_name=TOPIC,
                partition_states=[
                    StopReplicaRequest.StopReplicaPartitionState(
                        partition_index=partition, leader_epoch=epoch, delete_partition=delete
                    )
                ],
            )
        ],
    )


# --- following -------------------------------------------------------------------------------------


def test_followers_copy_the_leader_and_the_high_watermark_follows(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(leader=1, epoch=0)
        leader, follower = brokers[1].manager.partition(TOPIC, 0), brokers[2].manager.partition(TOPIC, 0)
        brokers[1].produce("a", "b")
        await until(lambda: leader.high_watermark == 2)
        await until(lambda: follower.high_watermark == 2)
        assert values_of(follower) == ["a", "b"]
        assert brokers[1].recorder.events[:2] == [("leader", 0), ("appended", 2)]
        assert brokers[2].recorder.events == [("follower", 0), ("high watermark", 2)]

    run_scenario(tmp_path, scenario)


def test_one_connection_carries_all_partitions_of_a_leader(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(leader=1, epoch=0, partitions=5)
        for partition in range(5):
            brokers[1].produce("x", partition=partition)
        await until(lambda: all(p.high_watermark == 1 for p in brokers[1].manager.partitions()))
        assert brokers.connections == 1
        request, version = brokers[1].requests[0]
        assert version == 17
        assert request.replica_state.replica_id == 2
        assert [topic.topic_id for topic in request.topics] == [TOPIC_ID]
        assert len(request.topics[0].partitions) == 5
        assert request.max_wait_ms == 500

    run_scenario(tmp_path, scenario)


def test_a_failing_partition_does_not_delay_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(leader=1, epoch=0, partitions=3)
        troubled = brokers[2].manager.partition(TOPIC, 1)

        append = Log.append_as_follower

        def fails(log: Log, records: bytes | memoryview, *, now_ms: int) -> LogAppendInfo:
            if log is troubled.log:
                raise RuntimeError("nobody thought of this")
            return append(log, records, now_ms=now_ms)

        monkeypatch.setattr(Log, "append_as_follower", fails)
        for partition in range(3):
            brokers[1].produce("x", partition=partition)
        healthy = [brokers[2].manager.partition(TOPIC, p) for p in (0, 2)]
        await until(lambda: all(p.high_watermark == 1 for p in healthy))
        assert brokers.connections == 1
        monkeypatch.undo()
        await until(lambda: troubled.high_watermark == 1, brokers)

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize(("version", "replica_in_state"), [(12, False), (13, False), (15, True)])
def test_an_older_leader_is_asked_in_its_version(
    tmp_path: Path, version: int, replica_in_state: bool
) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers[1].versions[1] = version
        brokers.leader_and_isr(leader=1, epoch=0)
        brokers[1].produce("x")
        await until(lambda: brokers[1].manager.partition(TOPIC, 0).high_watermark == 1)
        request, used = brokers[1].requests[0]
        assert used == version
        assert request.replica_state.replica_id == (2 if replica_in_state else -1)

    run_scenario(tmp_path, scenario)


def test_a_response_of_a_past_epoch_is_requested_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader's session has already sent it and would not repeat it: a full request is needed."""

    async def scenario(brokers: Brokers) -> None:
        leader = brokers[1]
        read = leader.answer

        async def answer(message: Any) -> Any:
            response = await read(message)
            response.session_id = 9
            return response

        monkeypatch.setattr(leader, "answer", answer)
        brokers.leader_and_isr(leader=1, epoch=0)
        await until(lambda: len(leader.requests) == 1)
        brokers.leader_and_isr(leader=1, epoch=1)
        await until(lambda: len(leader.requests) > 1)
        request, _ = leader.requests[1]
        assert (request.session_id, request.session_epoch) == (9, 0)
        assert len(request.topics) == 1

    run_scenario(tmp_path, scenario)


def test_topics_without_ids_are_fetched_by_name(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(leader=1, epoch=0, topic_id=NO_ID)
        brokers[1].produce("x")
        await until(lambda: brokers[1].manager.partition(TOPIC, 0).high_watermark == 1)
        request, version = brokers[1].requests[0]
        assert (version, request.topics[0].topic) == (12, TOPIC)

    run_scenario(tmp_path, scenario)


def epochs_asked(brokers: Brokers, leader: int) -> int:
    return sum(isinstance(request, OffsetForLeaderEpochRequest) for request, _ in brokers[leader].requests)


@pytest.mark.parametrize("fetch_version", [17, 12, 11])
def test_a_former_leader_truncates_to_where_the_new_leaders_log_diverges(
    tmp_path: Path, fetch_version: int
) -> None:
    """By the answer to its fetch (Fetch 12 and later), else by OffsetForLeaderEpoch, to the same end."""

    async def scenario(brokers: Brokers) -> None:
        for broker in (1, 2):
            brokers[broker].versions[FetchRequest.api_key] = fetch_version
        brokers.leader_and_isr(leader=1, epoch=0)
        brokers[1].produce("both")
        follower = brokers[2].manager.partition(TOPIC, 0)
        await until(lambda: follower.log.log_end_offset == 1, brokers)
        # Cut off from each other, both are leaders in turn, three times: no end of an epoch is the other's.
        for epoch in range(1, 7):
            leader = 1 if epoch % 2 else 2
            order = brokers.order(leader=leader, epoch=epoch, isr=[leader])
            assert not error_of(brokers[leader].manager.apply_leader_and_isr(order, 7))
            for value in range(epoch):
                brokers[leader].produce(f"{epoch}: {value}", acks=1)
        first, second = (brokers[broker].manager.partition(TOPIC, 0) for broker in (1, 2))
        assert values_of(first)[1] != values_of(second)[1]
        asked = epochs_asked(brokers, 2)
        brokers.leader_and_isr(leader=2, epoch=7, isr=[2])
        await until(lambda: first.log.log_end_offset == second.log.log_end_offset, brokers)
        await until(lambda: values_of(first) == values_of(second), brokers)
        assert values_of(second)[:2] == ["both", "2: 0"]
        assert [e for e in first.log.epochs() if e[0] < 7] == [e for e in second.log.epochs() if e[0] < 7]
        brokers[2].produce("and on", acks=1)
        await until(lambda: values_of(first)[-1] == "and on", brokers)
        assert (epochs_asked(brokers, 2) > asked) == (fetch_version < 12)

    run_scenario(tmp_path, scenario)


def test_an_old_leader_that_refuses_is_asked_again(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers[1].versions[FetchRequest.api_key] = 11
        brokers.leader_and_isr(leader=1, epoch=0)
        brokers[1].produce("a")
        follower = brokers[2].manager.partition(TOPIC, 0)
        await until(lambda: follower.log.log_end_offset == 1, brokers)
        # The follower hears of the next epoch first: UNKNOWN_LEADER_EPOCH until the leader does, too.
        brokers.leader_and_isr(2, leader=1, epoch=1)
        await until(lambda: epochs_asked(brokers, 1) > 2, brokers)
        brokers.leader_and_isr(1, leader=1, epoch=1)
        brokers[1].produce("b")
        await until(lambda: values_of(follower) == ["a", "b"], brokers)

    run_scenario(tmp_path, scenario)


def test_a_follower_over_its_quota_does_not_fetch_throttled_replicas(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        quota = brokers[2].manager.follower_quota
        quota.limit = 1000.0
        quota.throttle(TOPIC, frozenset((0,)))
        quota.record(100_000, brokers.now_ms)
        brokers.leader_and_isr(leader=1, epoch=0, partitions=2)
        for partition in range(2):
            brokers[1].produce("x", partition=partition)
        throttled, free = (brokers[2].manager.partition(TOPIC, p) for p in (0, 1))
        await until(lambda: free.high_watermark == 1)
        assert [[p.partition for p in r.topics[0].partitions] for r, _ in brokers[1].requests[:1]] == [[1]]
        assert throttled.log.log_end_offset == 0
        quota.limit = 1e9
        await until(lambda: throttled.high_watermark == 1, brokers)
        brokers[1].produce("y" * 1000)
        await until(lambda: throttled.high_watermark == 2, brokers)
        assert quota.is_exceeded(brokers.now_ms) is False
        quota.limit = 0.0
        assert quota.is_exceeded(brokers.now_ms), "what came counted"
        brokers[1].produce("z")
        await until(lambda: throttled.high_watermark == 3, brokers)  # in sync: never held back

    run_scenario(tmp_path, scenario)


def test_leadership_moves_and_the_old_leader_follows(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(leader=1, epoch=0)
        brokers[1].produce("a")
        await until(lambda: brokers[1].manager.partition(TOPIC, 0).high_watermark == 1)
        brokers[1].produce("lost, for acks=1", acks=1)
        brokers.leader_and_isr(2, leader=2, epoch=1)
        brokers.leader_and_isr(1, leader=2, epoch=1)
        brokers[2].produce("b")
        await until(lambda: brokers[2].manager.partition(TOPIC, 0).high_watermark >= 2)
        await until(
            lambda: (
                values_of(brokers[1].manager.partition(TOPIC, 0))
                == values_of(brokers[2].manager.partition(TOPIC, 0))
            )
        )
        assert values_of(brokers[2].manager.partition(TOPIC, 0))[-1] == "b"

    run_scenario(tmp_path, scenario)


def test_a_leader_that_is_down_is_tried_again_until_it_is_up(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers[1].up = False
        brokers.leader_and_isr(leader=1, epoch=0)
        await until(lambda: brokers.connections >= 3, brokers)
        brokers[1].up = True
        brokers[1].produce("a")
        await until(lambda: brokers[1].manager.partition(TOPIC, 0).high_watermark == 1, brokers)

    run_scenario(tmp_path, scenario)


def test_a_leader_with_an_older_epoch_is_asked_again(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(1, leader=1, epoch=0)
        brokers.leader_and_isr(2, leader=1, epoch=1)
        await until(lambda: len(brokers[1].requests) >= 2, brokers)
        brokers.leader_and_isr(1, leader=1, epoch=1)
        brokers[1].produce("a")
        await until(lambda: brokers[1].manager.partition(TOPIC, 0).high_watermark == 1, brokers)

    run_scenario(tmp_path, scenario)


def test_a_follower_far_behind_starts_over_at_the_leaders_log_start(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(1, leader=1, epoch=0, isr=[1])
        brokers[1].produce("a")
        brokers[1].produce("b")
        leader = brokers[1].manager.partition(TOPIC, 0)
        leader.log.maybe_increment_log_start_offset(1)
        brokers.leader_and_isr(2, leader=1, epoch=0, isr=[1])
        follower = brokers[2].manager.partition(TOPIC, 0)
        await until(lambda: follower.log.log_end_offset == 2, brokers)
        assert follower.log.log_start_offset == 1
        assert values_of(follower) == ["b"]

    run_scenario(tmp_path, scenario)


def test_addresses_missing_in_the_metadata_are_taken_from_leader_and_isr(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(1, leader=1, epoch=0)
        brokers[1].produce("a")
        brokers[2].cache.update(UpdateMetadataRequest())
        order = brokers.order(leader=1, epoch=0)
        order.live_leaders = [
            LeaderAndIsrRequest.LeaderAndIsrLiveLeader(broker_id=1, host_name="here", port=1)
        ]
        brokers[2].manager.apply_leader_and_isr(order, 7)
        await until(lambda: brokers[1].manager.partition(TOPIC, 0).high_watermark == 1)

    run_scenario(tmp_path, scenario)


def test_a_fetcher_without_partitions_is_closed(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(leader=1, epoch=0)
        await until(lambda: bool(brokers[1].requests))
        brokers.leader_and_isr(leader=2, epoch=1)
        before = len(brokers[1].requests)
        await until(lambda: len(brokers[2].requests) > 2)
        assert len(brokers[1].requests) == before
        assert list(brokers[2].manager._fetchers) == []

    run_scenario(tmp_path, scenario)


# --- obeying ---------------------------------------------------------------------------------------


def test_requests_of_a_former_controller_are_fenced(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.controller_epoch = 5
        brokers.leader_and_isr(1, leader=1, epoch=0)
        brokers.controller_epoch = 4
        response = brokers.leader_and_isr(1, leader=2, epoch=1)[1]
        assert response.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
        assert brokers[1].manager.partition(TOPIC, 0).is_leader
        stopped = brokers[1].manager.apply_stop_replica(stop_replica(delete=True), 4)
        assert stopped.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
        assert brokers[1].logs.get(TOPIC, 0) is not None

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("assigned", [None, {0: (1, 2), 1: (2, 3)}, {0: (1, 2), 1: (1, 2)}])
def test_a_replica_that_was_removed_while_the_session_had_ended_is_deleted(
    tmp_path: Path, is_full: bool, assigned: dict[int, tuple[int, ...]] | None
) -> None:
    """Found by the operator's simulation, seed 101: the broker had missed StopReplica, and went on fetching.
    What the store assigns is kept, whatever a late request says; None: its node cannot be read."""

    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(1, leader=2, epoch=0, partitions=2)
        request = brokers.order(leader=2, epoch=1)
        request.type = TYPE_FULL if is_full else 1
        manager = brokers[1].manager
        assert (TOPIC in manager.states_to_verify(request, 7)) == is_full
        stored: StoredTopics = {}
        if assigned is not None:
            stored[TOPIC] = StoredTopic(TopicAssignment(assigned, topic_id=TOPIC_ID), deleting=False)
        manager.apply_leader_and_isr(request, 7, stored)
        assert manager.partition(TOPIC, 0).leader_epoch == 1
        gone = is_full and assigned is not None and 1 not in assigned[1]
        assert (brokers[1].logs.get(TOPIC, 1) is None) == gone
        assert (manager.find(TOPIC, 1) is None) == gone

    run_scenario(tmp_path, scenario)


def test_a_leader_and_isr_with_the_same_epoch_changes_nothing(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(1, leader=1, epoch=3)
        for epoch in (2, 3):
            response = brokers.leader_and_isr(1, leader=2, epoch=epoch)[1]
            assert error_of(response) == ErrorCode.STALE_CONTROLLER_EPOCH
        assert brokers[1].manager.partition(TOPIC, 0).is_leader

    run_scenario(tmp_path, scenario)


def test_another_topic_of_the_same_name_is_refused(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        assert error_of(brokers.leader_and_isr(1, leader=1, epoch=0)[1]) == ErrorCode.NONE
        response = brokers.leader_and_isr(1, leader=1, epoch=1, topic_id=UUID(int=8))[1]
        assert error_of(response) == ErrorCode.INCONSISTENT_TOPIC_ID
        assert brokers[1].manager.partition(TOPIC, 0).topic_id == TOPIC_ID

    run_scenario(tmp_path, scenario)


def test_a_topic_id_may_be_learned_later_in_the_same_epoch(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(1, leader=1, epoch=0, topic_id=NO_ID)
        assert error_of(brokers.leader_and_isr(1, leader=1, epoch=0)[1]) == ErrorCode.NONE
        assert brokers[1].manager.partition(TOPIC, 0).topic_id == TOPIC_ID

    run_scenario(tmp_path, scenario)


def test_a_partition_without_a_replica_here_is_not_created(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        response = brokers.leader_and_isr(1, leader=2, epoch=0, replicas=[2], isr=[2])[1]
        assert error_of(response) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert brokers[1].logs.get(TOPIC, 0) is None

    run_scenario(tmp_path, scenario)


def test_the_response_of_an_old_version_has_topic_names(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        row = LeaderAndIsrRequest.LeaderAndIsrPartitionState(
            topic_name=TOPIC, partition_index=0, leader=1, leader_epoch=0, isr=[1], replicas=[1]
        )
        request = LeaderAndIsrRequest(controller_epoch=1, ungrouped_partition_states=[row])
        response = brokers[1].manager.apply_leader_and_isr(request, 1)
        [answer] = response.partition_errors
        assert (answer.topic_name, answer.partition_index, answer.error_code) == (TOPIC, 0, 0)

    run_scenario(tmp_path, scenario)


def test_looking_up_a_missing_partition_raises_the_reason(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers[1].cache.update(
            UpdateMetadataRequest(
                topic_states=[
                    UpdateMetadataRequest.UpdateMetadataTopicState(
                        topic_name=TOPIC,
                        partition_states=[
                            UpdateMetadataRequest.UpdateMetadataPartitionState(partition_index=0, leader=2)
                        ],
                    )
                ]
            )
        )
        with pytest.raises(KafkaError) as elsewhere:
            brokers[1].manager.partition(TOPIC, 0)
        with pytest.raises(KafkaError) as nowhere:
            brokers[1].manager.partition(TOPIC, 1)
        assert elsewhere.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert nowhere.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run_scenario(tmp_path, scenario)


# --- stopping --------------------------------------------------------------------------------------


def test_a_stopped_replica_stops_fetching_and_keeps_its_log(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(leader=1, epoch=4)
        await until(lambda: bool(brokers[1].requests))
        response = brokers[2].manager.apply_stop_replica(stop_replica(epoch=4), 4)
        assert [row.error_code for row in response.partition_errors] == [0]
        assert brokers[2].recorder.events[-1] == ("stopped", 4)
        assert list(brokers[2].manager._fetchers) == []
        assert brokers[2].logs.get(TOPIC, 0) is not None

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (3, ErrorCode.FENCED_LEADER_EPOCH),
        (4, ErrorCode.NONE),
        (5, ErrorCode.NONE),
        (-1, ErrorCode.NONE),
        (-2, ErrorCode.NONE),
    ],
)
def test_deletion_is_fenced_by_leader_epoch(tmp_path: Path, epoch: int, error: ErrorCode) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(leader=1, epoch=4)
        directory = brokers[1].manager.partition(TOPIC, 0).log.directory
        request = stop_replica(epoch=epoch, delete=True)
        response = brokers[1].manager.apply_stop_replica(request, 4)
        assert [row.error_code for row in response.partition_errors] == [error]
        assert directory.exists() == (error != ErrorCode.NONE)
        assert (brokers[1].manager.find(TOPIC, 0) is None) == (error == ErrorCode.NONE)

    run_scenario(tmp_path, scenario)


def test_references_to_a_deleted_replica_see_no_leader(tmp_path: Path) -> None:
    """A deferred produce with acks=all must fail at once, and not at its time-out."""

    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(1, leader=1, epoch=0)
        leader = brokers[1].manager.partition(TOPIC, 0)
        brokers[1].produce("waits for its follower")
        assert leader.enough_replicas_for(1) == (False, ErrorCode.NONE)
        brokers[1].manager.apply_stop_replica(stop_replica(epoch=1, delete=True), 4)
        assert leader.enough_replicas_for(1) == (True, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        with pytest.raises(KafkaError) as refused:
            leader.append_as_leader(batch("late"), required_acks=1, now_ms=brokers.now_ms)
        assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run_scenario(tmp_path, scenario)


def test_a_failed_disk_affects_only_its_partition_which_does_not_lead_under_an_old_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(leader=2, epoch=0, partitions=3)
        broken = brokers[1].manager.partition(TOPIC, 1)

        assign = Log.assign_epoch_start

        def full(log: Log, epoch: int, offset: int) -> None:
            if log is broken.log:
                raise OSError(errno.ENOSPC, "no space left")
            assign(log, epoch, offset)

        monkeypatch.setattr(Log, "assign_epoch_start", full)
        response = brokers.leader_and_isr(1, leader=1, epoch=1, partitions=3)[1]
        [topic] = response.topics
        errors = {row.partition_index: row.error_code for row in topic.partition_errors}
        assert errors == {0: ErrorCode.NONE, 1: ErrorCode.KAFKA_STORAGE_ERROR, 2: ErrorCode.NONE}
        assert [brokers[1].manager.partition(TOPIC, p).is_leader for p in (0, 2)] == [True, True]
        assert not broken.is_leader
        with pytest.raises(KafkaError) as refused:
            brokers[1].manager.partition(TOPIC, 1)
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_versions_of_stop_replica_delete_all_or_nothing(tmp_path: Path, version: int) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(leader=1, epoch=4)
        request = StopReplicaRequest(controller_epoch=1, delete_partitions=True)
        if version == 0:
            request.ungrouped_partitions = [
                StopReplicaRequest.StopReplicaPartitionV0(topic_name=TOPIC, partition_index=0)
            ]
        else:
            request.topics = [StopReplicaRequest.StopReplicaTopicV1(name=TOPIC, partition_indexes=[0])]
        response = brokers[1].manager.apply_stop_replica(request, version)
        assert [row.error_code for row in response.partition_errors] == [0]
        assert brokers[1].logs.get(TOPIC, 0) is None

    run_scenario(tmp_path, scenario)


def test_a_topic_deleted_during_downtime_is_deleted_by_stop_replica(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers[1].logs.get_or_create(TOPIC, 0, brokers[1].manager.log_config(TOPIC))
        response = brokers[1].manager.apply_stop_replica(stop_replica(epoch=-2, delete=True), 4)
        assert [row.error_code for row in response.partition_errors] == [0]
        assert brokers[1].logs.get(TOPIC, 0) is None

    run_scenario(tmp_path, scenario)


def test_a_topic_created_again_after_deletion_is_empty(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(leader=1, epoch=0)
        brokers[1].produce("a")
        await until(lambda: brokers[2].manager.partition(TOPIC, 0).high_watermark == 1)
        for broker in (1, 2):
            brokers[broker].manager.apply_stop_replica(stop_replica(epoch=-2, delete=True), 4)
        brokers.leader_and_isr(leader=2, epoch=0, topic_id=UUID(int=9))
        partition = brokers[2].manager.partition(TOPIC, 0)
        assert (partition.log.log_end_offset, partition.high_watermark) == (0, 0)
        assert partition.topic_id == UUID(int=9)

    run_scenario(tmp_path, scenario)


# --- checkpoints and settings ----------------------------------------------------------------------


def test_high_watermarks_survive_a_restart_even_if_the_controller_was_silent(tmp_path: Path) -> None:
    def restarted() -> LogManager:
        logs = LogManager([tmp_path / "1"], 1, "cluster")
        logs.load(0)
        return logs

    async def first_run(brokers: Brokers) -> None:
        brokers.leader_and_isr(1, leader=1, epoch=0, isr=[1])
        brokers[1].produce("a", "b")

    async def silent_run(brokers: Brokers) -> None:
        brokers.now_ms += 5_001
        brokers[1].manager.tick(brokers.now_ms)

    async def third_run(brokers: Brokers) -> None:
        brokers.leader_and_isr(1, leader=2, epoch=1)
        assert brokers[1].manager.partition(TOPIC, 0).high_watermark == 2

    run_scenario(tmp_path, first_run, 1)
    run_scenario(tmp_path, silent_run, 1)
    logs = restarted()
    assert logs.read_high_watermarks() == {(TOPIC, 0): 2}
    logs.close(0)
    run_scenario(tmp_path, third_run, 1)


def test_a_high_watermark_covers_no_record_that_a_power_loss_may_have_brought_back(tmp_path: Path) -> None:
    file = tmp_path / "1" / f"{TOPIC}-0" / f"{0:020}.log"
    durable = bytearray()

    async def before_the_power_loss(brokers: Brokers) -> None:
        brokers.leader_and_isr(1, leader=1, epoch=0, isr=[1])
        brokers[1].produce("kept")
        brokers[1].produce("dropped")
        partition = brokers[1].manager.partition(TOPIC, 0)
        partition.log.flush()
        durable.extend(file.read_bytes())
        brokers.leader_and_isr(1, leader=2, epoch=1)
        partition.truncate_to(1)
        brokers.leader_and_isr(1, leader=1, epoch=2, isr=[1])
        brokers[1].produce("new")
        assert partition.high_watermark == 2
        brokers[1].logs.write_high_watermarks({(TOPIC, 0): 2})
        shutil.copytree(tmp_path / "1", tmp_path / "lost its power")

    async def after_it(brokers: Brokers) -> None:
        brokers.leader_and_isr(1, leader=2, epoch=3)
        partition = brokers[1].manager.partition(TOPIC, 0)
        assert partition.log.log_end_offset == 2, "nothing shows that the last record is an old one"
        assert partition.high_watermark <= 1

    run_scenario(tmp_path, before_the_power_loss, 1)
    shutil.rmtree(tmp_path / "1")
    (tmp_path / "lost its power").rename(tmp_path / "1")
    file.write_bytes(durable)
    run_scenario(tmp_path, after_it, 1)


def test_the_high_watermark_is_checkpointed_every_five_seconds(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(1, leader=1, epoch=0, isr=[1])
        brokers[1].produce("a")

        def ticked(after_ms: int) -> bool:
            """Runs all due tasks."""
            brokers[1].manager.tick(brokers.now_ms + after_ms)
            return not brokers[1].logs.has_deferred_tasks(brokers.now_ms + after_ms)

        await until(lambda: ticked(4_999))
        assert brokers[1].logs.read_high_watermarks() == {}
        checkpoint = {(TOPIC, 0): 1}
        await until(lambda: ticked(5_000) and brokers[1].logs.read_high_watermarks() == checkpoint)

    run_scenario(tmp_path, scenario)


def test_high_watermarks_are_checkpointed_only_after_one_has_moved(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(1, leader=1, epoch=0, isr=[1])
        file = tmp_path / "1" / "replication-offset-checkpoint"

        def shows(high_watermark: int) -> bool:
            brokers.now_ms += 5_000
            brokers[1].manager.tick(brokers.now_ms)
            return brokers[1].logs.read_high_watermarks() == {(TOPIC, 0): high_watermark}

        brokers[1].produce("a")
        await until(lambda: shows(1))
        await until(lambda: brokers[1].manager._maintenance._running is None)
        file.unlink()
        brokers.now_ms += 5_000
        brokers[1].manager.tick(brokers.now_ms)
        await until(lambda: brokers[1].manager._maintenance._running is None)
        assert not file.exists()
        brokers[1].produce("b")
        await until(lambda: shows(2))

    run_scenario(tmp_path, scenario)


def test_a_replica_that_fails_keeps_its_place_in_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log may be all right after a restart, and consumers are to see no less of it than before."""

    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(1, leader=1, epoch=0, isr=[1])
        brokers[1].produce("a")

        def full(log: Log, epoch: int, offset: int) -> None:
            raise OSError(errno.ENOSPC, "no space left")

        monkeypatch.setattr(Log, "assign_epoch_start", full)
        brokers.leader_and_isr(1, leader=1, epoch=1, isr=[1])
        assert brokers[1].manager.find(TOPIC, 0) is None

        def is_written() -> bool:
            brokers.now_ms += 5_000
            brokers[1].manager.tick(brokers.now_ms)
            return brokers[1].logs.read_high_watermarks() == {(TOPIC, 0): 1}

        await until(is_written)

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("wall_step_ms", [-3_600_000, 0, 3_600_000])
def test_files_of_a_deleted_replica_are_removed_after_the_delay(tmp_path: Path, wall_step_ms: int) -> None:
    async def scenario(brokers: Brokers) -> None:
        broker = brokers[1]
        brokers.leader_and_isr(1, leader=1, epoch=0, isr=[1])
        broker.produce("a")
        assert not broker.manager.apply_stop_replica(stop_replica(delete=True), 4).error_code
        [doomed] = (tmp_path / "1").glob("*-delete")

        deleted_ms = brokers.now_ms

        def ticked(after_ms: int) -> bool:
            brokers.now_ms = deleted_ms + after_ms
            broker.manager.tick(brokers.now_ms)
            return not broker.logs.has_deferred_tasks(brokers.now_ms)

        await until(lambda: ticked(0))
        brokers.wall_step_ms = wall_step_ms
        assert ticked(59_999)
        assert doomed.exists()
        await until(lambda: ticked(60_000) and not doomed.exists())

    run_scenario(tmp_path, scenario)


def test_topic_settings_apply_to_existing_and_future_logs(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        manager = brokers[1].manager
        assert not manager.knows_config(TOPIC)
        manager.topic_config_changed(TOPIC, {"min.insync.replicas": "2"})
        assert manager.knows_config(TOPIC)
        brokers.leader_and_isr(1, leader=1, epoch=0, isr=[1])
        with pytest.raises(KafkaError) as caught:
            brokers[1].produce("a")
        assert caught.value.code == ErrorCode.NOT_ENOUGH_REPLICAS
        manager.topic_config_changed(TOPIC, {})
        brokers[1].produce("a")

    run_scenario(tmp_path, scenario)


# --- in-sync replicas, through the controller ------------------------------------------------------


def grant(request: AlterPartitionRequest) -> AlterPartitionResponse:
    """A controller that grants every request."""
    return AlterPartitionResponse(
        topics=[
            AlterPartitionResponse.TopicData(
                topic_id=topic.topic_id,
                partitions=[
                    AlterPartitionResponse.PartitionData(
                        partition_index=row.partition_index,
                        leader_id=request.broker_id,
                        leader_epoch=row.leader_epoch,
                        isr=[member.broker_id for member in row.new_isr_with_epochs],
                        partition_epoch=row.partition_epoch + 1,
                    )
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def test_a_silent_follower_leaves_the_isr_and_rejoins(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.alter_answer = grant
        brokers[1].manager.broker_epoch = 42
        brokers.leader_and_isr(1, leader=1, epoch=0, partitions=3)
        partitions = list(brokers[1].manager.partitions())
        for partition in partitions:
            brokers[1].produce("a", partition=partition.partition)
        brokers.now_ms += 30_001
        brokers[1].manager.tick(brokers.now_ms)
        await until(lambda: all(p.isr == {1} for p in partitions))
        assert all(p.high_watermark == 1 for p in partitions)
        [request] = brokers.alterations
        assert (request.broker_id, request.broker_epoch) == (1, 42)
        assert len(request.topics[0].partitions) == 3, "one request for all"
        brokers.leader_and_isr(2, leader=1, epoch=0, partitions=3)
        await until(lambda: all(p.isr == {1, 2} for p in partitions))
        assert all(p.partition_epoch == 2 for p in partitions)

    run_scenario(tmp_path, scenario)


def test_alter_partition_is_retried_until_the_controller_answers(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(1, leader=1, epoch=0)
        brokers[1].produce("a")
        brokers.now_ms += 30_001
        brokers[1].manager.tick(brokers.now_ms)
        await until(lambda: len(brokers.alterations) == 2)
        brokers.alter_answer = lambda request: AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER)
        await until(lambda: len(brokers.alterations) == 3)
        brokers.alter_answer = lambda request: AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        await until(lambda: len(brokers.alterations) == 4)
        brokers.alter_answer = grant
        await until(lambda: brokers[1].manager.partition(TOPIC, 0).isr == {1})

    run_scenario(tmp_path, scenario)


def test_an_isr_proposal_superseded_by_an_election_is_not_retried(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(1, leader=1, epoch=0)
        brokers[1].produce("a")
        brokers.now_ms += 30_001
        brokers[1].manager.tick(brokers.now_ms)
        await until(lambda: len(brokers.alterations) == 1)
        brokers.leader_and_isr(1, leader=1, epoch=1, isr=[1, 2])
        brokers.alter_answer = grant
        brokers.now_ms += 30_001
        brokers[1].manager.tick(brokers.now_ms)
        await until(lambda: brokers[1].manager.partition(TOPIC, 0).isr == {1})
        epochs = [request.topics[0].partitions[0].leader_epoch for request in brokers.alterations]
        assert epochs[-1] == 1
        assert set(epochs) == {0, 1}

    run_scenario(tmp_path, scenario)

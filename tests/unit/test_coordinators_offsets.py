"""Offsets: commits, fetches, expiry and deletion."""

from __future__ import annotations

import asyncio

from ottla.coordinators.offsets import CommittedOffset, GroupOffsets
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    DeleteGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from tests.worlds.simulated_coordinators import SimulatedGroups, commit, finished, run_until_idle, scenario

MINUTE_MS = 60_000
NOTHING = (-1, ErrorCode.NONE)


@scenario
async def test_offsets_that_a_member_commits_can_be_fetched() -> None:
    simulation = await SimulatedGroups().started()
    (one,) = await simulation.members(1)
    assert await simulation.committed() == NOTHING
    assert await one.commit(42, metadata="here") == ErrorCode.NONE
    assert await simulation.committed() == (42, ErrorCode.NONE)
    assert await simulation.committed("another") == NOTHING


@scenario
async def test_simple_consumers_commit_to_groups_without_members() -> None:
    simulation = await SimulatedGroups().started()
    assert await commit(simulation, 1, group="simple") == ErrorCode.NONE
    assert await commit(simulation, 2, group="") == ErrorCode.NONE, "old clients may have no group id"
    assert await simulation.state("simple") == "Empty"
    assert await commit(simulation, 1, partition=99) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await commit(simulation, 1, group="lost", generation=7) == ErrorCode.ILLEGAL_GENERATION
    await simulation.members(1)
    assert await commit(simulation, 1) == ErrorCode.UNKNOWN_MEMBER_ID, "not over the heads of members"


@scenario
async def test_a_commit_is_visible_only_once_replicated() -> None:
    simulation = await SimulatedGroups().started()
    await commit(simulation, 1)
    simulation.log.hold = True
    committing = asyncio.create_task(commit(simulation, 2))
    await run_until_idle()
    assert not committing.done()
    assert await simulation.committed() == (1, ErrorCode.NONE)
    assert await simulation.committed(stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    simulation.log.release()
    assert await finished(committing) == ErrorCode.NONE
    assert await simulation.committed(stable=True) == (2, ErrorCode.NONE)


@scenario
async def test_the_later_of_two_commits_wins_in_any_order_of_acknowledgement() -> None:
    simulation = await SimulatedGroups().started()
    simulation.log.hold = True
    first, second = asyncio.create_task(commit(simulation, 1)), asyncio.create_task(commit(simulation, 2))
    await run_until_idle()
    simulation.log.held[1].set_result(ErrorCode.NONE)
    assert await finished(second) == ErrorCode.NONE
    simulation.log.held[0].set_result(ErrorCode.NONE)
    assert await finished(first) == ErrorCode.NONE
    assert await simulation.committed(stable=True) == (2, ErrorCode.NONE)


@scenario
async def test_a_commit_of_a_disconnected_client_counts() -> None:
    simulation = await SimulatedGroups().started()
    simulation.log.hold = True
    committing = asyncio.create_task(commit(simulation, 9))
    await run_until_idle()
    committing.cancel()
    await run_until_idle()
    simulation.log.release()
    await run_until_idle()
    assert await simulation.committed(stable=True) == (9, ErrorCode.NONE)


@scenario
async def test_a_commit_that_was_not_replicated_leaves_the_old_offset() -> None:
    simulation = await SimulatedGroups().started()
    await commit(simulation, 1)
    for answer, reported in (
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REQUEST_TIMED_OUT),
    ):
        simulation.log.answers = [answer]
        assert await commit(simulation, 2) == reported
        assert await simulation.committed(stable=True) == (1, ErrorCode.NONE)


@scenario
async def test_metadata_and_topics_are_checked_for_each_partition() -> None:
    simulation = await SimulatedGroups(offset_metadata_max_bytes=5).started()
    partitions = [
        OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=1, committed_metadata=text
        )
        for index, text in enumerate(["ééééé", "123456", None])
    ]
    request = OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(name=name, partitions=partitions)
            for name in ("t", "missing")
        ],
    )
    response = await simulation.coordinator.offset_commit(request)
    codes = [[item.error_code for item in topic.partitions] for topic in response.topics]
    assert codes == [
        [ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE],
        [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 3,
    ]


@scenario
async def test_members_commit_during_a_rebalance_but_not_between_join_and_sync() -> None:
    simulation = await SimulatedGroups().started()
    (one,) = await simulation.members(1)
    newcomer = simulation.client("c2").joining()
    await run_until_idle()
    assert await one.commit(10) == ErrorCode.NONE
    one.took(await finished(one.joining()))
    await finished(newcomer)
    assert await one.commit(11) == ErrorCode.REBALANCE_IN_PROGRESS
    assert await simulation.committed() == (10, ErrorCode.NONE)


@scenario
async def test_a_commit_counts_as_a_heartbeat() -> None:
    simulation = await SimulatedGroups().started()
    (one,) = await simulation.members(1)
    for offset in range(4):
        await simulation.time.advance(9_000)
        assert await one.commit(offset) == ErrorCode.NONE


@scenario
async def test_a_fetch_without_topics_returns_all() -> None:
    simulation = await SimulatedGroups().started()
    await commit(simulation, 1, topic="a")
    await commit(simulation, 2, topic="b", partition=3)
    request = OffsetFetchRequest(group_id="g", topics=None)
    response = await simulation.coordinator.offset_fetch(request, 5)
    assert offsets_of(response.topics) == {("a", 0): 1, ("b", 3): 2}
    assert response.topics[0].partitions[0].committed_leader_epoch == 3


@scenario
async def test_many_groups_are_fetched_at_once() -> None:
    simulation = await SimulatedGroups().started()
    await commit(simulation, 1, group="one")
    await commit(simulation, 2, group="two")
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    topic = OffsetFetchRequest.OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1])
    request = OffsetFetchRequest(
        groups=[
            group(group_id="one", topics=[topic]),
            group(group_id="two"),
            group(group_id="x", topics=None),
        ]
    )
    request.groups[1].topics = None
    response = await simulation.coordinator.offset_fetch(request, 8)
    assert [item.group_id for item in response.groups] == ["one", "two", "x"]
    assert [offsets_of(item.topics) for item in response.groups] == [
        {("t", 0): 1, ("t", 1): -1},
        {("t", 0): 2},
        {},
    ]
    simulation.coordinator.unload(0)
    response = await simulation.coordinator.offset_fetch(request, 8)
    assert {item.error_code for item in response.groups} == {ErrorCode.NOT_COORDINATOR}


@scenario
async def test_old_versions_have_errors_only_in_partitions() -> None:
    simulation = await SimulatedGroups().started()
    simulation.coordinator.unload(0)
    wanted = [OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[4])]
    request = OffsetFetchRequest(group_id="g", topics=wanted)
    old = await simulation.coordinator.offset_fetch(request, 1)
    assert old.error_code == ErrorCode.NONE
    assert old.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert old.topics[0].partitions[0].committed_offset == -1
    new = await simulation.coordinator.offset_fetch(request, 2)
    assert (new.error_code, new.topics) == (ErrorCode.NOT_COORDINATOR, [])


def offsets_of(
    topics: list[OffsetFetchResponse.OffsetFetchResponseTopic]
    | list[OffsetFetchResponse.OffsetFetchResponseTopics],
) -> dict[tuple[str, int], int]:
    return {(t.name, p.partition_index): p.committed_offset for t in topics for p in t.partitions}


# -- retention -------------------------------------------------------------------------------------------


@scenario
async def test_simple_consumers_offsets_expire_after_their_commit() -> None:
    simulation = await SimulatedGroups(offsets_retention_minutes=60).started()
    await commit(simulation, 1)
    await simulation.time.advance(59 * MINUTE_MS)
    await commit(simulation, 2, partition=1)
    await simulation.time.advance(11 * MINUTE_MS)
    assert await simulation.committed() == NOTHING
    assert await simulation.committed(partition=1) == (2, ErrorCode.NONE)
    await simulation.time.advance(60 * MINUTE_MS)
    assert await simulation.state() == "Dead", "with its last offset the group goes"


@scenario
async def test_offsets_of_consumers_expire_after_the_group_emptied() -> None:
    simulation = await SimulatedGroups(offsets_retention_minutes=60).started()
    (one,) = await simulation.members(1, session_ms=1_800_000)
    await one.commit(1)
    for _ in range(6):
        await simulation.time.advance(20 * MINUTE_MS)
        await one.heartbeat()
    assert await simulation.committed() == (1, ErrorCode.NONE), "kept while consumers are there"
    await one.leave()
    await simulation.time.advance(59 * MINUTE_MS)
    assert await simulation.committed() == (1, ErrorCode.NONE)
    await simulation.time.advance(11 * MINUTE_MS)
    assert await simulation.committed() == NOTHING
    assert await simulation.state() == "Dead"


@scenario
async def test_offsets_of_an_unsubscribed_topic_expire_in_a_stable_group() -> None:
    simulation = await SimulatedGroups(offsets_retention_minutes=60).started()
    (one,) = await simulation.members(1, topics=("t",), session_ms=1_800_000)
    await one.commit(1, topic="t")
    await one.commit(2, topic="formerly")
    for _ in range(4):
        await simulation.time.advance(20 * MINUTE_MS)
        await one.heartbeat()
    assert await simulation.committed() == (1, ErrorCode.NONE)
    assert await simulation.committed(topic="formerly") == NOTHING
    assert await simulation.state() == "Stable"


@scenario
async def test_clients_may_set_a_retention_time() -> None:
    simulation = await SimulatedGroups(offsets_retention_minutes=600).started()
    await commit(simulation, 1, retention_ms=5 * MINUTE_MS)
    await simulation.time.advance(10 * MINUTE_MS)
    assert await simulation.committed() == NOTHING


@scenario
async def test_an_offset_with_a_commit_in_flight_does_not_expire() -> None:
    simulation = await SimulatedGroups(offsets_retention_minutes=60).started()
    await commit(simulation, 1)
    await simulation.time.advance(59 * MINUTE_MS)
    simulation.log.hold = True
    committing = asyncio.create_task(commit(simulation, 2))
    await simulation.time.advance(11 * MINUTE_MS)
    assert await simulation.committed() == (1, ErrorCode.NONE)
    simulation.log.release()
    assert await finished(committing) == ErrorCode.NONE
    assert await simulation.committed() == (2, ErrorCode.NONE)


@scenario
async def test_expired_offsets_stay_deleted_on_the_next_coordinator() -> None:
    simulation = await SimulatedGroups(offsets_retention_minutes=60).started()
    (one,) = await simulation.members(1)
    await one.commit(1)
    await one.leave()
    await commit(simulation, 5, group="kept")
    await simulation.time.advance(30 * MINUTE_MS)
    await commit(simulation, 6, group="kept")
    await simulation.time.advance(40 * MINUTE_MS)
    other = await simulation.elsewhere()
    assert await other.state() == "Dead"
    assert await other.committed() == NOTHING
    assert await other.committed("kept") == (6, ErrorCode.NONE)


@scenario
async def test_offsets_of_deleted_topics_are_deleted() -> None:
    simulation = await SimulatedGroups().started()
    await commit(simulation, 1, topic="t")
    await commit(simulation, 2, topic="u")
    simulation.coordinator.topics_deleted({"t"})
    await run_until_idle()
    other = await simulation.elsewhere()
    assert await other.committed(topic="t") == NOTHING
    assert await other.committed(topic="u") == (2, ErrorCode.NONE)


# -- OffsetDelete ----------------------------------------------------------------------------------------


def deletion(group: str, *topics: str) -> OffsetDeleteRequest:
    partition = OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
    return OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequest.OffsetDeleteRequestTopic(name=name, partitions=[partition]) for name in topics
        ],
    )


@scenario
async def test_offsets_are_deleted_unless_a_member_subscribes_to_the_topic() -> None:
    simulation = await SimulatedGroups().started()
    (one,) = await simulation.members(1, topics=("t",))
    await one.commit(1, topic="t")
    await one.commit(2, topic="u")
    response = await simulation.coordinator.offset_delete(deletion("g", "t", "u", "missing"))
    assert response.error_code == ErrorCode.NONE
    assert [topic.partitions[0].error_code for topic in response.topics] == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert await simulation.committed(topic="t") == (1, ErrorCode.NONE)
    assert await simulation.committed(topic="u") == NOTHING


@scenario
async def test_deleting_offsets_needs_a_group_of_consumers() -> None:
    simulation = await SimulatedGroups().started()
    await simulation.members(1, group="connect", protocol_type="connect")
    for group, error in (
        ("connect", ErrorCode.NON_EMPTY_GROUP),
        ("nobody", ErrorCode.GROUP_ID_NOT_FOUND),
        ("", ErrorCode.INVALID_GROUP_ID),
    ):
        response = await simulation.coordinator.offset_delete(deletion(group, "t"))
        assert (response.error_code, response.topics) == (error, [])


def test_a_commit_in_flight_does_not_outlive_the_deletion_of_its_offset() -> None:
    offsets = GroupOffsets()
    commits = {("t", 0): CommittedOffset(1)}
    sequence = offsets.begin_commit(commits)
    assert offsets.remove([("t", 0)]) == [("t", 0)], "its record is in the log and needs a tombstone"
    offsets.end_commit(sequence, commits, succeeded=True)
    assert offsets.committed == {}
    later = offsets.begin_commit(commits)
    offsets.end_commit(later, commits, succeeded=True)
    assert offsets.committed == commits


@scenario
async def test_commits_have_the_acks_of_the_settings_and_tombstones_none() -> None:
    simulation = await SimulatedGroups(offsets_commit_required_acks=1).started()
    assert await commit(simulation, 1) == ErrorCode.NONE
    request = DeleteGroupsRequest(groups_names=["g"])
    deleted = await simulation.coordinator.delete_groups(request)
    assert deleted.results[0].error_code == ErrorCode.NONE
    assert simulation.log.records()[-1].value is None
    assert simulation.log.acks == [1, 0]


@scenario
async def test_groups_that_are_unloaded_during_expiry_are_left_alone() -> None:
    simulation = await SimulatedGroups(
        offsets_retention_minutes=60, offsets_retention_check_interval_ms=2**40
    ).started()
    for at in range(250):
        await commit(simulation, 1, group=f"g-{at}")
    await simulation.time.advance(61 * MINUTE_MS)
    expiring = asyncio.create_task(simulation.coordinator.expire_offsets())
    await asyncio.sleep(0)
    simulation.coordinator.unload(0)
    expired_count = await expiring
    tombstones = [record for record in simulation.log.records() if record.value is None]
    assert 0 < expired_count < 250
    assert len(tombstones) == expired_count

"""Rebalances of a consumer group: members join, change and leave."""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import LeaveGroupRequest
from tests.worlds.simulated_coordinators import (
    REBALANCE_MS,
    SESSION_MS,
    SimulatedGroups,
    finished,
    run_until_idle,
    scenario,
)


@scenario
async def test_a_new_member_gets_its_id_and_joins_with_it() -> None:
    simulation = await SimulatedGroups().started()
    client = simulation.client("app")
    first = await client.join_once()
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert first.member_id == "app-1"
    client.member_id = first.member_id
    await simulation.join([client])
    assert client.is_leader
    assert client.generation == 1


@scenario
async def test_old_clients_and_static_members_join_at_once() -> None:
    simulation = await SimulatedGroups().started()
    for options in ({"version": 3}, {"instance_id": "i1", "version": 5}):
        client = simulation.client("app", group=str(options), **options)
        join = client.joining()
        await simulation.time.advance(0)
        assert (await finished(join)).error_code == ErrorCode.NONE


@scenario
async def test_an_id_that_was_never_used_expires_with_the_session() -> None:
    simulation = await SimulatedGroups().started()
    client = simulation.client("app")
    client.member_id = (await client.join_once()).member_id
    await simulation.time.advance(SESSION_MS)
    assert (await client.join_once()).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@scenario
async def test_two_members_share_a_generation_and_only_the_leader_sees_all() -> None:
    simulation = await SimulatedGroups().started()
    one, two = simulation.client("c1"), simulation.client("c2")
    joins = [one.joining(), two.joining()]
    await simulation.time.advance(0)
    first, second = await finished(joins[0]), await finished(joins[1])
    assert first.generation_id == second.generation_id == 1
    assert first.protocol_name == "range"
    assert {member.member_id for member in first.members} == {first.member_id, second.member_id}
    assert second.members == []
    assert second.leader == first.member_id
    one.took(first)
    two.took(second)

    follower = two.syncing()
    await run_until_idle()
    assert not follower.done(), "a follower waits for the leader's assignment"
    leader = one.syncing({one.member_id: b"left", two.member_id: b"right"})
    assert (await finished(leader)).assignment == b"left"
    assert (await finished(follower)).assignment == b"right"
    assert await simulation.state() == "Stable"


@scenario
async def test_the_first_rebalance_waits_for_more_members_to_arrive() -> None:
    simulation = await SimulatedGroups(group_initial_rebalance_delay_ms=3_000).started()
    one = simulation.client("c1").joining()
    await simulation.time.advance(2_000)
    two = simulation.client("c2").joining()
    await simulation.time.advance(1_000)
    assert not one.done(), "someone arrived, so the delay runs once more"
    await simulation.time.advance(2_999)
    assert not one.done()
    await simulation.time.advance(1)
    assert (await finished(one)).generation_id == (await finished(two)).generation_id == 1


@scenario
async def test_a_third_member_makes_the_others_join_again() -> None:
    simulation = await SimulatedGroups().started()
    clients = await simulation.members(2)
    third = simulation.client("c3")
    newcomer = third.joining()
    await run_until_idle()
    assert [await client.heartbeat() for client in clients] == [ErrorCode.REBALANCE_IN_PROGRESS] * 2
    assert await simulation.state() == "PreparingRebalance"
    joins = [client.joining() for client in clients]
    for client, join in zip([*clients, third], [*joins, newcomer], strict=True):
        client.took(await finished(join))
    assert {client.generation for client in [*clients, third]} == {2}
    await simulation.sync([*clients, third])
    assert third.assignment == b"c3"
    assert await clients[0].heartbeat() == ErrorCode.NONE


@scenario
async def test_members_that_do_not_rejoin_in_time_are_out() -> None:
    simulation = await SimulatedGroups().started()
    one, two = await simulation.members(2)
    third = simulation.client("c3").joining()
    await run_until_idle()
    rejoined = two.joining()
    for _ in range(REBALANCE_MS // 5_000):
        await simulation.time.advance(5_000)
        # Its process lives, but its consumer is stuck between two polls.
        await one.heartbeat()
    two.took(await finished(rejoined))
    assert (await finished(third)).generation_id == 2
    assert two.is_leader, "the leader was late: another one leads"
    assert await one.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


@scenario
async def test_when_the_leader_leaves_another_leads() -> None:
    simulation = await SimulatedGroups().started()
    one, two, three = await simulation.members(3)
    assert await one.leave() == ErrorCode.NONE
    assert await two.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    await simulation.rebalance([two, three])
    assert two.is_leader
    assert two.generation == 2
    assert await one.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


@scenario
async def test_the_last_member_leaves_an_empty_group_behind() -> None:
    simulation = await SimulatedGroups().started()
    (one,) = await simulation.members(1)
    assert await one.leave() == ErrorCode.NONE
    described = await simulation.describe()
    assert described.group_state == "Empty"
    assert described.protocol_type == "consumer"
    assert described.members == []


@scenario
async def test_a_member_without_heartbeats_expires() -> None:
    simulation = await SimulatedGroups().started()
    one, two = await simulation.members(2)
    await simulation.time.advance(SESSION_MS - 1)
    assert await one.heartbeat() == ErrorCode.NONE
    await simulation.time.advance(1)
    assert await one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert await two.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    await simulation.rebalance([one])
    assert one.assignment == b"c1"


@scenario
async def test_a_member_that_waits_for_a_response_does_not_expire() -> None:
    simulation = await SimulatedGroups().started()
    one, two = await simulation.members(2)
    join = two.joining()
    await run_until_idle()
    newcomer = simulation.client("c3").joining()
    for _ in range(4):
        await simulation.time.advance(SESSION_MS - 1)
        assert await one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    back = one.joining()
    assert {(await finished(task)).error_code for task in (join, newcomer, back)} == {ErrorCode.NONE}


@scenario
async def test_a_newcomer_waits_five_minutes_at_most() -> None:
    simulation = await SimulatedGroups().started()
    one = (await simulation.members(1, rebalance_ms=600_000, session_ms=1_000_000))[0]
    newcomer = simulation.client("c2", version=3).joining()
    await simulation.time.advance(5 * 60_000 - 1)
    assert not newcomer.done()
    await simulation.time.advance(1)
    assert (await finished(newcomer)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    one.took(await finished(one.joining()))


@scenario
async def test_a_member_that_never_syncs_is_removed() -> None:
    simulation = await SimulatedGroups().started()
    one, two = simulation.client("c1"), simulation.client("c2", session_ms=600_000)
    await simulation.join([one, two])
    await finished(one.syncing({one.member_id: b"1"}))
    for _ in range(REBALANCE_MS // 5_000):
        await simulation.time.advance(5_000)
        await one.heartbeat()
    assert await one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert await two.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


@scenario
async def test_a_new_member_during_the_sync_makes_the_waiting_members_rejoin() -> None:
    simulation = await SimulatedGroups().started()
    one, two = simulation.client("c1"), simulation.client("c2")
    await simulation.join([one, two])
    waiting = two.syncing()
    await run_until_idle()
    simulation.client("c3").joining()
    assert (await finished(waiting)).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    late_leader = one.syncing({one.member_id: b"1", two.member_id: b"2"})
    assert (await finished(late_leader)).error_code == ErrorCode.REBALANCE_IN_PROGRESS


@scenario
async def test_an_outdated_assignment_is_not_returned() -> None:
    simulation = await SimulatedGroups().started()
    one = simulation.client("c1")
    await simulation.join([one])
    simulation.log.hold = True
    sync = one.syncing({one.member_id: b"old"})
    await run_until_idle()
    newcomer = simulation.client("c2").joining()
    assert (await finished(sync)).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    simulation.log.release()
    await run_until_idle()
    assert await simulation.state() == "PreparingRebalance"
    one.took(await finished(one.joining()))
    assert (await finished(newcomer)).generation_id == 2


@scenario
async def test_an_assignment_of_the_last_generation_is_not_handed_out_in_this_one() -> None:
    simulation = await SimulatedGroups().started()
    one = simulation.client("c1")
    await simulation.join([one])
    simulation.log.hold = True
    one.syncing({one.member_id: b"old"})
    two = simulation.client("c2")
    newcomer = two.joining()
    await run_until_idle()
    one.took(await finished(one.joining()))
    two.took(await finished(newcomer))
    sync = two.syncing()
    await run_until_idle()
    simulation.log.release()
    await run_until_idle()
    assert not sync.done()
    assert await simulation.state() == "CompletingRebalance"


@scenario
async def test_a_session_begins_when_the_rebalance_ends() -> None:
    simulation = await SimulatedGroups().started()
    one, two = simulation.client("c1"), simulation.client("c2")
    await simulation.join([one, two])
    await finished(one.syncing())
    await simulation.time.advance(SESSION_MS - 1)
    assert await one.heartbeat() == ErrorCode.NONE
    await simulation.time.advance(1)
    assert await one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert await two.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID, "it was silent, long before its sync was due"


@scenario
async def test_an_assignment_that_cannot_be_stored_is_not_handed_out() -> None:
    simulation = await SimulatedGroups().started()
    one = simulation.client("c1")
    await simulation.join([one])
    simulation.log.answers = [ErrorCode.NOT_ENOUGH_REPLICAS]
    sync = await finished(one.syncing({one.member_id: b"1"}))
    assert sync.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS


@scenario
async def test_requests_of_old_generations_are_fenced() -> None:
    simulation = await SimulatedGroups().started()
    one, two = await simulation.members(2)
    one.generation -= 1
    assert await one.heartbeat() == ErrorCode.ILLEGAL_GENERATION
    assert (await finished(one.syncing())).error_code == ErrorCode.ILLEGAL_GENERATION
    assert await one.commit(5) == ErrorCode.ILLEGAL_GENERATION
    two.member_id = "somebody"
    assert await two.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert (await finished(two.syncing())).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert (await finished(two.joining())).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@scenario
async def test_the_most_preferred_protocol_that_all_members_support_is_chosen() -> None:
    simulation = await SimulatedGroups().started()
    clients = [
        simulation.client("c1", protocols=("range", "roundrobin", "own")),
        simulation.client("c2", protocols=("roundrobin", "range")),
        simulation.client("c3", protocols=("roundrobin", "range")),
    ]
    joins = [client.joining() for client in clients]
    await simulation.time.advance(0)
    assert {(await finished(join)).protocol_name for join in joins} == {"roundrobin"}
    incompatible = await finished(simulation.client("c4", protocols=("own",)).joining())
    assert incompatible.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    connector = await finished(simulation.client("c5", protocol_type="connect").joining())
    assert connector.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@scenario
async def test_a_rejoin_without_changes_causes_no_rebalance() -> None:
    simulation = await SimulatedGroups().started()
    one, two = await simulation.members(2)
    again = await finished(two.joining())
    assert (again.error_code, again.generation_id, again.leader) == (ErrorCode.NONE, 1, one.member_id)
    assert await simulation.state() == "Stable"
    two.topics = ("t", "u")
    two.joining()
    await run_until_idle()
    assert await simulation.state() == "PreparingRebalance", "a new subscription needs a new assignment"


@scenario
async def test_a_rejoin_of_the_leader_causes_a_rebalance() -> None:
    simulation = await SimulatedGroups().started()
    one, _two = await simulation.members(2)
    join = one.joining()
    await run_until_idle()
    assert not join.done()
    assert await simulation.state() == "PreparingRebalance"


@scenario
async def test_session_timeouts_have_limits() -> None:
    simulation = await SimulatedGroups().started()
    for session_ms in (5_999, 1_800_001):
        join = await finished(simulation.client("app", session_ms=session_ms).joining())
        assert join.error_code == ErrorCode.INVALID_SESSION_TIMEOUT


@scenario
async def test_a_full_group_refuses_new_members() -> None:
    simulation = await SimulatedGroups(group_max_size=2).started()
    one, _two = await simulation.members(2)
    third = await finished(simulation.client("c3").joining())
    assert third.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert await one.heartbeat() == ErrorCode.NONE, "and the others hear nothing of it"


@scenario
async def test_requests_without_a_group_id_or_for_another_coordinator_are_refused() -> None:
    simulation = SimulatedGroups(offsets_topic_num_partitions=50)
    client = simulation.client("app")
    assert (await client.join_once()).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    await simulation.started()
    nameless = await simulation.client("app", group="").join_once()
    assert nameless.error_code == ErrorCode.INVALID_GROUP_ID
    simulation.coordinator.unload(simulation.coordinator.partition_for("g"))
    assert (await client.join_once()).error_code == ErrorCode.NOT_COORDINATOR
    assert await client.heartbeat() == ErrorCode.NOT_COORDINATOR


@scenario
async def test_several_members_leave_in_one_request() -> None:
    simulation = await SimulatedGroups().started()
    one, two = await simulation.members(2)
    request = LeaveGroupRequest(
        group_id="g",
        members=[LeaveGroupRequest.MemberIdentity(member_id=name) for name in (two.member_id, "nobody")],
    )
    response = await simulation.coordinator.leave_group(request, 4)
    assert response.error_code == ErrorCode.NONE
    assert [item.error_code for item in response.members] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    old = await simulation.coordinator.leave_group(LeaveGroupRequest(group_id="g", member_id="nobody"), 2)
    assert (old.error_code, old.members) == (ErrorCode.UNKNOWN_MEMBER_ID, [])
    assert await one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS


@scenario
async def test_unloading_a_partition_answers_waiting_members_with_not_coordinator() -> None:
    simulation = await SimulatedGroups().started()
    one = (await simulation.members(1))[0]
    newcomer = simulation.client("c2").joining()
    await run_until_idle()
    simulation.coordinator.unload(0)
    assert (await finished(newcomer)).error_code == ErrorCode.NOT_COORDINATOR
    assert await one.heartbeat() == ErrorCode.NOT_COORDINATOR
    await simulation.time.advance(10 * REBALANCE_MS)


@scenario
async def test_stopping_answers_everyone() -> None:
    simulation = await SimulatedGroups().started()
    one, two = simulation.client("c1"), simulation.client("c2")
    joins = [one.joining(), two.joining()]
    await simulation.time.advance(0)
    two.took(await finished(joins[1]))
    sync = two.syncing()
    await run_until_idle()
    await simulation.coordinator.stop()
    assert (await finished(sync)).error_code == ErrorCode.NOT_COORDINATOR

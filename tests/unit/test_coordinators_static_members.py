"""Static membership (KIP-345, KIP-814): an instance id keeps a member's place over restarts."""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import LeaveGroupRequest
from tests.worlds.simulated_coordinators import (
    SESSION_MS,
    Client,
    SimulatedGroups,
    finished,
    run_until_idle,
    scenario,
)


async def static_pair(simulation: SimulatedGroups, version: int = 9) -> tuple[Client, Client]:
    one = simulation.client("c1", instance_id="i1", version=version)
    two = simulation.client("c2", instance_id="i2", version=version)
    await simulation.rebalance([one, two])
    return one, two


@scenario
async def test_a_restart_keeps_the_assignment_without_a_rebalance() -> None:
    simulation = await SimulatedGroups().started()
    one, two = await static_pair(simulation)
    back = two.restarted()
    back.took(await finished(back.joining()))
    assert back.member_id != two.member_id
    assert back.generation == 1
    assert (await finished(back.syncing())).assignment == b"c2"
    assert await one.heartbeat() == ErrorCode.NONE
    assert await back.heartbeat() == ErrorCode.NONE


@scenario
async def test_the_process_that_was_replaced_is_fenced() -> None:
    simulation = await SimulatedGroups().started()
    _one, two = await static_pair(simulation)
    back = two.restarted()
    back.took(await finished(back.joining()))
    assert await two.heartbeat() == ErrorCode.FENCED_INSTANCE_ID
    assert (await finished(two.syncing())).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert (await finished(two.joining())).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert await two.commit(1) == ErrorCode.FENCED_INSTANCE_ID
    assert await two.leave() == ErrorCode.FENCED_INSTANCE_ID
    assert await back.commit(1) == ErrorCode.NONE


@scenario
async def test_a_duplicate_instance_in_a_rebalance_is_fenced_at_once() -> None:
    simulation = await SimulatedGroups().started()
    _one, two = await static_pair(simulation)
    simulation.client("c3").joining()
    await run_until_idle()
    waiting = two.joining()
    await run_until_idle()
    two.restarted().joining()
    assert (await finished(waiting)).error_code == ErrorCode.FENCED_INSTANCE_ID


@scenario
async def test_a_restarted_leader_stays_leader_and_skips_the_assignment() -> None:
    simulation = await SimulatedGroups().started()
    one, two = await static_pair(simulation)
    back = one.restarted()
    join = await finished(back.joining())
    back.took(join)
    assert back.is_leader
    assert join.skip_assignment
    assert {member.member_id for member in join.members} == {back.member_id, two.member_id}
    assert (await finished(back.syncing())).assignment == b"c1"


@scenario
async def test_before_version_9_a_restarted_leader_gets_its_old_id_as_leader() -> None:
    simulation = await SimulatedGroups().started()
    one, _two = await static_pair(simulation, version=8)
    join = await finished(one.restarted().joining())
    assert join.error_code == ErrorCode.NONE
    assert join.leader == one.member_id != join.member_id
    assert not join.skip_assignment
    assert join.members == []


@scenario
async def test_a_restart_with_another_protocol_rebalances() -> None:
    simulation = await SimulatedGroups().started()
    one = simulation.client("c1", instance_id="i1", protocols=("range", "sticky"))
    await simulation.rebalance([one])
    back = one.restarted()
    back.protocols = ("sticky",)
    join = await finished(back.joining())
    assert (join.generation_id, join.protocol_name) == (2, "sticky")


@scenario
async def test_a_restart_that_cannot_be_stored_is_undone() -> None:
    simulation = await SimulatedGroups().started()
    _one, two = await static_pair(simulation)
    simulation.log.answers = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    join = await finished(two.restarted().joining())
    assert join.error_code == ErrorCode.NOT_COORDINATOR
    assert await two.heartbeat() == ErrorCode.NONE, "the old process is still the member"


@scenario
async def test_a_restart_while_assignments_are_made_rebalances() -> None:
    simulation = await SimulatedGroups().started()
    one = simulation.client("c1", instance_id="i1")
    two = simulation.client("c2", instance_id="i2")
    await simulation.join([one, two])
    waiting = two.syncing()
    await run_until_idle()
    two.restarted().joining()
    assert (await finished(waiting)).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert await simulation.state() == "PreparingRebalance"


@scenario
async def test_a_static_member_keeps_its_place_in_a_rebalance_until_its_session_ends() -> None:
    simulation = await SimulatedGroups().started()
    one = simulation.client("c1", instance_id="i1", rebalance_ms=6_000, session_ms=30_000)
    two = simulation.client("c2", rebalance_ms=6_000)
    await simulation.rebalance([one, two])
    join = simulation.client("c3", rebalance_ms=6_000).joining()
    await run_until_idle()
    rejoin = two.joining()
    await simulation.time.advance(6_000)
    response = await finished(join)
    two.took(await finished(rejoin))
    assert two.is_leader, "of those who came"
    described = await simulation.describe()
    assert len(described.members) == 3
    assert response.generation_id == 2


@scenario
async def test_a_member_that_restarts_before_it_has_synced_is_not_missed() -> None:
    """The leader did not wait for it, and the group is stable."""
    simulation = await SimulatedGroups().started()
    one = simulation.client("c1", instance_id="i1", rebalance_ms=6_000, session_ms=30_000)
    two = simulation.client("c2", instance_id="i2", rebalance_ms=6_000, session_ms=30_000)
    await simulation.join([one, two])
    await finished(one.syncing({"c1": b"c1", two.member_id: b"c2"}))
    back = two.restarted()
    back.took(await finished(back.joining()))
    assert (await finished(back.syncing())).error_code == ErrorCode.NONE
    await simulation.time.advance(6_000)
    assert await one.heartbeat() == ErrorCode.NONE, "no rebalance"
    assert await back.heartbeat() == ErrorCode.NONE


@scenario
async def test_a_static_member_expires_like_any_other() -> None:
    simulation = await SimulatedGroups().started()
    one, two = await static_pair(simulation)
    await simulation.time.advance(SESSION_MS - 1)
    await one.heartbeat()
    await simulation.time.advance(1)
    assert await two.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    await simulation.rebalance([one])
    assert len((await simulation.describe()).members) == 1


@scenario
async def test_an_administrator_removes_a_static_member_by_its_instance_id() -> None:
    simulation = await SimulatedGroups().started()
    one, _two = await static_pair(simulation)
    request = LeaveGroupRequest(
        group_id="g",
        members=[
            LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id=name) for name in ("i2", "i9")
        ],
    )
    response = await simulation.coordinator.leave_group(request, 5)
    assert [item.error_code for item in response.members] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert await one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS

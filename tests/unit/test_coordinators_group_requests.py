"""Listing, describing and deleting groups."""

from __future__ import annotations

import asyncio

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from tests.worlds.simulated_coordinators import (
    SimulatedGroups,
    commit,
    finished,
    run_until_idle,
    scenario,
    subscription,
)


async def listed(
    simulation: SimulatedGroups, *, states: tuple[str, ...] = (), types: tuple[str, ...] = ()
) -> dict[str, str]:
    request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
    response = await simulation.coordinator.list_groups(request)
    assert response.error_code == ErrorCode.NONE
    assert {group.group_type for group in response.groups} <= {"classic"}
    return {group.group_id: group.group_state for group in response.groups}


async def deleted(simulation: SimulatedGroups, *groups: str) -> list[int]:
    response = await simulation.coordinator.delete_groups(DeleteGroupsRequest(groups_names=list(groups)))
    assert [item.group_id for item in response.results] == list(groups)
    return [item.error_code for item in response.results]


@scenario
async def test_groups_are_listed_by_state_and_type() -> None:
    simulation = await SimulatedGroups().started()
    await simulation.members(1, group="busy")
    await commit(simulation, 1, group="idle")
    assert await listed(simulation) == {"busy": "Stable", "idle": "Empty"}
    assert await listed(simulation, states=("stable", "Dead")) == {"busy": "Stable"}
    assert await listed(simulation, types=("Classic",)) == {"busy": "Stable", "idle": "Empty"}
    assert await listed(simulation, types=("consumer",)) == {}


@scenario
async def test_a_stable_group_is_described_with_assignments() -> None:
    simulation = await SimulatedGroups().started()
    (one,) = await simulation.members(1, instance_id="i1")
    described = await simulation.describe()
    assert (described.group_state, described.protocol_type, described.protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    (member,) = described.members
    assert (member.member_id, member.group_instance_id) == (one.member_id, "i1")
    assert (member.client_id, member.client_host) == ("c1", "/127.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (subscription("t"), b"c1")
    simulation.client("c2").joining()
    await run_until_idle()
    described = await simulation.describe()
    assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
    assert {item.member_assignment for item in described.members} == {b""}


@scenario
async def test_an_unknown_group_is_described_as_dead_or_not_coordinated() -> None:
    simulation = await SimulatedGroups(offsets_topic_num_partitions=2).started()
    simulation.coordinator.unload(1)
    here, there = "a", "b"
    assert [simulation.coordinator.partition_for(group) for group in ("b", "a")] == [0, 1]
    response = await simulation.coordinator.describe_groups(DescribeGroupsRequest(groups=[there, here]))
    assert [(item.error_code, item.group_state) for item in response.groups] == [
        (ErrorCode.NONE, "Dead"),
        (ErrorCode.NOT_COORDINATOR, ""),
    ]


@scenario
async def test_only_groups_without_members_are_deleted() -> None:
    simulation = await SimulatedGroups().started()
    (one,) = await simulation.members(1, group="busy")
    await commit(simulation, 1, group="idle")
    assert await deleted(simulation, "busy", "idle", "nobody") == [
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.NONE,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ]
    assert await listed(simulation) == {"busy": "Stable"}
    await one.leave()
    assert await deleted(simulation, "busy") == [ErrorCode.NONE]
    assert await one.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


@scenario
async def test_a_deleted_group_stays_deleted() -> None:
    simulation = await SimulatedGroups().started()
    (one,) = await simulation.members(1)
    await one.commit(3)
    # All in one breath: the record of the emptiness must not come after the tombstone.
    leaving, deleting = asyncio.create_task(one.leave()), asyncio.create_task(deleted(simulation, "g"))
    assert await finished(leaving) == ErrorCode.NONE
    assert await finished(deleting) == [ErrorCode.NONE]
    other = await simulation.elsewhere()
    assert await listed(other) == {}
    assert await other.committed() == (-1, ErrorCode.NONE)


@scenario
async def test_a_commit_in_flight_does_not_revive_a_deleted_group() -> None:
    simulation = await SimulatedGroups().started()
    simulation.log.hold = True
    committing = asyncio.create_task(commit(simulation, 1))
    await run_until_idle()
    deleting = asyncio.create_task(deleted(simulation, "g"))
    await run_until_idle()
    simulation.log.release()
    await finished(committing)
    assert await finished(deleting) == [ErrorCode.NONE]
    other = await simulation.elsewhere()
    assert await listed(other) == {}

"""Rewinds: new offsets for a group with members, which are removed in the same step (OffsetCommit with
`remove_members`)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.coordinators import records
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import OffsetCommitRequest
from ottla.protocol.records import decode_batch
from tests.unit.test_coordinators_transactional_commits import PID, in_transaction, marked
from tests.worlds.simulated_coordinators import (
    Client,
    SimulatedGroups,
    commit,
    finished,
    run_until_idle,
    scenario,
)

OLD, NEW = 500, 20
REFUSED = ErrorCode.UNKNOWN_MEMBER_ID


async def rewind(
    simulation: SimulatedGroups,
    offsets: dict[tuple[str, int], int] | None = None,
    *,
    metadata: str = "",
    **request: Any,
) -> dict[tuple[str, int], ErrorCode]:
    asked = OffsetCommitRequest(
        group_id="g",
        remove_members=True,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        partition_index=partition, committed_offset=offset, committed_metadata=metadata
                    )
                ],
            )
            for (topic, partition), offset in (offsets or {("t", 0): NEW}).items()
        ],
        **request,
    )
    response = await simulation.coordinator.offset_commit(asked)
    return {
        (topic.name, row.partition_index): ErrorCode(row.error_code)
        for topic in response.topics
        for row in topic.partitions
    }


DONE = {("t", 0): ErrorCode.NONE}


async def anew(client: Client) -> Client:
    """What a client does about UNKNOWN_MEMBER_ID: forget its member id, and join."""
    client.member_id, client.generation = "", -1
    return client


async def at_old_offset(count: int = 2, **options: Any) -> tuple[SimulatedGroups, list[Client]]:
    simulation = await SimulatedGroups().started()
    clients = await simulation.members(count, **options)
    assert await clients[0].commit(OLD) is ErrorCode.NONE
    return simulation, clients


@pytest.mark.parametrize("instance_id", [None, "seat"])
def test_members_are_removed_and_fetch_the_new_offset_after_they_rejoin(instance_id: str | None) -> None:
    async def run() -> None:
        simulation, (client,) = await at_old_offset(1, instance_id=instance_id)
        old_generation = client.generation
        assert await rewind(simulation) == DONE
        assert await simulation.state() == "Empty"
        assert await simulation.committed(stable=True) == (NEW, ErrorCode.NONE)
        # Not FENCED_INSTANCE_ID, of which clients die.
        assert await client.heartbeat() is REFUSED
        assert await client.commit(OLD + 1) is REFUSED
        await simulation.rebalance([await anew(client)])
        assert client.generation > old_generation
        assert await simulation.committed(stable=True) == (NEW, ErrorCode.NONE)
        assert await client.commit(NEW + 1) is ErrorCode.NONE

    asyncio.run(run())


@scenario
async def test_a_commit_of_the_old_generation_is_refused_after_others_have_joined() -> None:
    simulation, (first, second) = await at_old_offset()
    stale = (second.member_id, second.generation)
    await rewind(simulation)
    await simulation.rebalance([await anew(first)])
    second.member_id, second.generation = stale
    assert await second.commit(OLD + 1) is REFUSED
    assert await commit(simulation, OLD + 1, generation=stale[1], member_id=stale[0]) is REFUSED
    assert await simulation.committed() == (NEW, ErrorCode.NONE)


@scenario
async def test_offsets_and_the_empty_group_are_one_batch() -> None:
    simulation, _ = await at_old_offset()
    before = len(simulation.log.batches[0])
    await rewind(simulation, {("t", 0): NEW, ("t", 1): 7, ("u", 0): 8})
    assert len(simulation.log.batches[0]) == before + 1
    keys = [records.parse_key(record.key or b"") for record in decode_batch(simulation.log.batches[0][-1])]
    assert [type(key) for key in keys] == [records.OffsetRecordKey] * 3 + [records.GroupRecordKey]


@scenario
async def test_the_next_coordinator_has_the_offsets_and_no_members() -> None:
    simulation, (client, _) = await at_old_offset()
    await rewind(simulation)
    other = await simulation.elsewhere()
    assert await other.state() == "Empty"
    assert await other.committed(stable=True) == (NEW, ErrorCode.NONE)
    client.at(other)
    assert await client.heartbeat() is REFUSED
    assert await client.commit(OLD + 1) is REFUSED


@scenario
async def test_a_member_in_a_join_has_to_rejoin() -> None:
    simulation, (first, _) = await at_old_offset()
    joining = first.joining()
    await run_until_idle()
    assert await simulation.state() == "PreparingRebalance"
    assert await rewind(simulation) == DONE
    assert (await finished(joining)).error_code == REFUSED
    assert await simulation.state() == "Empty"


@scenario
async def test_a_member_in_a_sync_has_to_rejoin() -> None:
    simulation, (leader, follower) = await at_old_offset()
    joins = [leader.joining(), follower.joining()]
    for client, join in zip((leader, follower), joins, strict=True):
        client.took(await finished(join))
    assert await simulation.state() == "CompletingRebalance"
    syncing = follower.syncing()
    await run_until_idle()
    assert not syncing.done()
    assert await rewind(simulation) == DONE
    assert (await finished(syncing)).error_code == REFUSED
    # The timers of what was cut short are gone too.
    await simulation.time.advance(200_000)
    assert await simulation.state() == "Empty"


@scenario
async def test_an_assignment_in_flight_is_discarded() -> None:
    simulation, (client,) = await at_old_offset(1)
    client.took(await finished(client.joining()))
    simulation.log.hold = True
    syncing = client.syncing({client.member_id: b"all"})
    await run_until_idle()
    rewinding = asyncio.get_running_loop().create_task(rewind(simulation))
    await run_until_idle()
    assert (await finished(syncing)).error_code == REFUSED
    simulation.log.release()
    assert await finished(rewinding) == DONE
    assert await simulation.state() == "Empty"
    assert (await (await simulation.elsewhere()).describe()).members == []


@scenario
async def test_no_member_joins_before_the_offsets_are_replicated() -> None:
    simulation, (client, _) = await at_old_offset()
    simulation.log.hold = True
    rewinding = asyncio.get_running_loop().create_task(rewind(simulation))
    await run_until_idle()
    assert await client.heartbeat() is REFUSED
    joining = (await anew(client)).joining()
    await simulation.time.advance(100)
    assert not joining.done()
    assert await simulation.state() == "Empty"
    assert await simulation.committed() == (OLD, ErrorCode.NONE)
    simulation.log.release()
    assert await finished(rewinding) == DONE
    await simulation.time.advance(0)
    client.took(await finished(joining))
    assert await simulation.committed() == (NEW, ErrorCode.NONE)


@scenario
async def test_a_commit_in_flight_is_overwritten_by_the_rewind() -> None:
    simulation, (client, _) = await at_old_offset()
    simulation.log.hold = True
    late = asyncio.get_running_loop().create_task(client.commit(OLD + 1))
    await run_until_idle()
    rewinding = asyncio.get_running_loop().create_task(rewind(simulation))
    await run_until_idle()
    # The acknowledgements come in the other order.
    simulation.log.held[1].set_result(ErrorCode.NONE)
    assert await finished(rewinding) == DONE
    simulation.log.held[0].set_result(ErrorCode.NONE)
    assert await finished(late) is ErrorCode.NONE
    assert await simulation.committed(stable=True) == (NEW, ErrorCode.NONE)
    simulation.log.hold = False
    assert await (await simulation.elsewhere()).committed(stable=True) == (NEW, ErrorCode.NONE)


@scenario
async def test_a_rewind_that_cannot_be_written_leaves_the_old_offset() -> None:
    simulation, (client, _) = await at_old_offset()
    simulation.log.answers = [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert await rewind(simulation) == {("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert await simulation.committed(stable=True) == (OLD, ErrorCode.NONE)
    await simulation.rebalance([await anew(client)])
    assert await client.commit(OLD + 1) is ErrorCode.NONE


@pytest.mark.parametrize("error_of", ["missing", "too large"])
def test_a_rewind_is_atomic(error_of: str) -> None:
    async def run() -> None:
        simulation, (client, _) = await at_old_offset()
        if error_of == "missing":
            found = await rewind(simulation, {("t", 0): NEW, ("missing", 0): 1})
            assert found["missing", 0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert found["t", 0] is ErrorCode.OPERATION_NOT_ATTEMPTED
        else:
            assert await rewind(simulation, metadata="x" * 5_000) == {
                ("t", 0): ErrorCode.OFFSET_METADATA_TOO_LARGE
            }
        assert await client.heartbeat() is ErrorCode.NONE
        assert await simulation.committed() == (OLD, ErrorCode.NONE)

    asyncio.run(run())


@scenario
async def test_a_member_cannot_request_a_rewind() -> None:
    simulation, (client, _) = await at_old_offset()
    for who in (
        {"member_id": client.member_id},
        {"generation_id_or_member_epoch": client.generation},
        {"group_instance_id": "seat"},
    ):
        assert await rewind(simulation, **who) == {("t", 0): ErrorCode.INVALID_REQUEST}
    assert await client.heartbeat() is ErrorCode.NONE


@scenario
async def test_members_of_other_protocol_types_stay() -> None:
    simulation = await SimulatedGroups().started()
    clients = await simulation.members(1, protocol_type="connect")
    assert await rewind(simulation) == {("t", 0): ErrorCode.NON_EMPTY_GROUP}
    assert await clients[0].heartbeat() is ErrorCode.NONE


@scenario
async def test_a_rewind_of_an_empty_group_is_a_plain_commit() -> None:
    simulation = await SimulatedGroups().started()
    assert await rewind(simulation) == DONE
    assert [type(records.parse_key(r.key or b"")) for r in simulation.log.records()] == [
        records.OffsetRecordKey
    ]
    assert await simulation.committed() == (NEW, ErrorCode.NONE)


@scenario
async def test_a_group_whose_members_left_before_its_first_rebalance_ended_is_rewound() -> None:
    simulation = await SimulatedGroups(group_initial_rebalance_delay_ms=3_000).started()
    client = simulation.client("c")
    joining = client.joining()
    await run_until_idle()
    await client.leave()
    assert await simulation.state() == "PreparingRebalance"
    assert await rewind(simulation) == DONE
    assert await simulation.state() == "Empty"
    await simulation.time.advance(10_000)
    assert await simulation.state() == "Empty"
    joining.cancel()


# -- transactions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("fails_over", [True, False])
def test_offsets_of_an_open_transaction_are_discarded(committed: bool, fails_over: bool) -> None:
    async def run() -> None:
        simulation, (client, _) = await at_old_offset()
        who: dict[str, Any] = {"generation": client.generation, "member_id": client.member_id}
        assert await in_transaction(simulation, OLD + 9, **who) is ErrorCode.NONE
        assert await in_transaction(simulation, 33, partition=1, **who) is ErrorCode.NONE
        assert await rewind(simulation) == DONE
        # Who joins need not wait for the transaction to end.
        assert await simulation.committed(stable=True) == (NEW, ErrorCode.NONE)
        if fails_over:
            simulation = await simulation.elsewhere()
        marked(simulation, committed=committed)
        assert await simulation.committed(stable=True) == (NEW, ErrorCode.NONE)
        # Partitions that were not rewound are decided by the transaction.
        assert await simulation.committed(partition=1) == (33 if committed else -1, ErrorCode.NONE)
        assert await (await simulation.elsewhere()).committed() == (NEW, ErrorCode.NONE)

    asyncio.run(run())


@scenario
async def test_a_removed_member_cannot_commit_in_a_transaction() -> None:
    simulation, (client, _) = await at_old_offset()
    await rewind(simulation)
    who: dict[str, Any] = {"generation": client.generation, "member_id": client.member_id}
    assert await in_transaction(simulation, OLD + 9, **who) is REFUSED
    marked(simulation, committed=True)
    assert await simulation.committed(stable=True) == (NEW, ErrorCode.NONE)


@scenario
async def test_a_rewind_that_fails_leaves_the_transaction_its_offsets() -> None:
    simulation, (client, _) = await at_old_offset()
    await in_transaction(simulation, OLD + 9, generation=client.generation, member_id=client.member_id)
    simulation.log.answers = [ErrorCode.NOT_ENOUGH_REPLICAS]
    await rewind(simulation)
    marked(simulation, committed=True)
    assert await simulation.committed(stable=True) == (OLD + 9, ErrorCode.NONE)


@scenario
async def test_transactions_after_the_rewind_count() -> None:
    simulation, (client, _) = await at_old_offset()
    await rewind(simulation)
    await simulation.rebalance([await anew(client)])
    who: dict[str, Any] = {"generation": client.generation, "member_id": client.member_id}
    assert await in_transaction(simulation, NEW + 5, producer_id=PID, **who) is ErrorCode.NONE
    marked(simulation, committed=True)
    assert await simulation.committed(stable=True) == (NEW + 5, ErrorCode.NONE)

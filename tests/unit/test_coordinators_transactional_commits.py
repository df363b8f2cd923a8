"""Offsets committed in a transaction: pending until its marker, then visible or dropped."""

from __future__ import annotations

from itertools import permutations

from ottla.coordinators.offsets import CommittedOffset, GroupOffsets
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import TxnOffsetCommitRequest
from ottla.protocol.records import ControlType, build_control_batch, parse_batch_header
from tests.worlds.simulated_coordinators import SimulatedGroups, commit, run_until_idle, scenario

PID, OTHER = 7, 8


async def in_transaction(
    simulation: SimulatedGroups,
    offset: int,
    *,
    producer_id: int = PID,
    partition: int = 0,
    topic: str = "t",
    metadata: str = "",
    version: int = 3,
    generation: int = -1,
    member_id: str = "",
) -> ErrorCode:
    part = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata=metadata
    )
    request = TxnOffsetCommitRequest(
        transactional_id="tid",
        group_id="g",
        producer_id=producer_id,
        producer_epoch=0,
        generation_id=generation,
        member_id=member_id,
        topics=[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=topic, partitions=[part])],
    )
    response = await simulation.coordinator.txn_offset_commit(request, version)
    return ErrorCode(response.topics[0].partitions[0].error_code)


def marked(simulation: SimulatedGroups, *, committed: bool, producer_id: int = PID) -> None:
    """Appends the marker to the log, and then notifies the coordinator."""
    kind = ControlType.COMMIT if committed else ControlType.ABORT
    simulation.log.put(
        0,
        build_control_batch(
            kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=0
        ),
    )
    simulation.coordinator.transaction_completed(0, producer_id, committed)


UNSTABLE = (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)


@scenario
async def test_a_commit_is_visible_after_the_marker() -> None:
    simulation = await SimulatedGroups().started()
    assert await in_transaction(simulation, 5) is ErrorCode.NONE
    assert await simulation.committed() == (-1, ErrorCode.NONE)
    assert await simulation.committed(stable=True) == UNSTABLE
    marked(simulation, committed=True)
    assert await simulation.committed(stable=True) == (5, ErrorCode.NONE)
    await in_transaction(simulation, 9)
    marked(simulation, committed=False)
    assert await simulation.committed(stable=True) == (5, ErrorCode.NONE)


@scenario
async def test_records_have_the_producer_id_and_are_transactional() -> None:
    simulation = await SimulatedGroups().started()
    await in_transaction(simulation, 5)
    header = parse_batch_header(simulation.log.batches[0][-1])
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (PID, 0, 0)
    assert header.is_transactional


@scenario
async def test_the_later_of_two_commits_stays() -> None:
    simulation = await SimulatedGroups().started()
    await in_transaction(simulation, 5)
    await commit(simulation, 20)
    marked(simulation, committed=True)
    assert await simulation.committed() == (20, ErrorCode.NONE), "the plain commit came later"
    await commit(simulation, 30)
    await in_transaction(simulation, 6)
    marked(simulation, committed=True)
    assert await simulation.committed() == (6, ErrorCode.NONE)


@scenario
async def test_the_next_coordinator_has_the_pending_offsets() -> None:
    for overtaken in (False, True):
        simulation = await SimulatedGroups().started()
        await commit(simulation, 1)
        await in_transaction(simulation, 5)
        if overtaken:
            await commit(simulation, 20)
        heir = await simulation.elsewhere()
        assert await heir.committed(stable=True) == UNSTABLE
        marked(heir, committed=True)
        assert await heir.committed(stable=True) == (20 if overtaken else 5, ErrorCode.NONE)
        again = await heir.elsewhere()
        assert await again.committed(stable=True) == (20 if overtaken else 5, ErrorCode.NONE)


@scenario
async def test_markers_apply_to_their_producer_only() -> None:
    simulation = await SimulatedGroups().started()
    await in_transaction(simulation, 5)
    await in_transaction(simulation, 6, producer_id=OTHER, partition=1)
    marked(simulation, committed=True)
    assert await simulation.committed(stable=True) == (5, ErrorCode.NONE)
    assert await simulation.committed(partition=1, stable=True) == UNSTABLE


@scenario
async def test_a_failed_append_leaves_nothing_pending() -> None:
    simulation = await SimulatedGroups().started()
    simulation.log.answers = [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert await in_transaction(simulation, 5) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    await run_until_idle()
    assert await simulation.committed(stable=True) == (-1, ErrorCode.NONE)


@scenario
async def test_a_failed_append_leaves_the_commit_before_it() -> None:
    """A request that the client has sent again on another connection may arrive, and fail, last."""
    simulation = await SimulatedGroups().started()
    assert await in_transaction(simulation, 5) is ErrorCode.NONE
    for fails_elsewhere in (False, True):
        if fails_elsewhere:
            simulation = await simulation.elsewhere()
        simulation.log.answers = [ErrorCode.NOT_ENOUGH_REPLICAS]
        assert await in_transaction(simulation, 6) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await simulation.committed(stable=True) == UNSTABLE
    marked(simulation, committed=True)
    assert await simulation.committed(stable=True) == (5, ErrorCode.NONE)
    simulation = await simulation.elsewhere()
    assert await simulation.committed(stable=True) == (5, ErrorCode.NONE)


def test_the_last_commit_that_is_written_counts() -> None:
    """Whatever the order in which writes end: with 1, 2, 3 sent in this order and some failed."""
    partition = ("t", 0)
    for ends in permutations((1, 2, 3)):
        for failed in ((), (1,), (2,), (3,), (1, 2), (1, 3), (2, 3), (1, 2, 3)):
            offsets = GroupOffsets()
            for offset in (1, 2, 3):
                assert offsets.begin_transactional(PID, {partition: CommittedOffset(offset)}) == offset
            for sequence in ends:
                offsets.complete_transactional(PID, sequence, [partition], sequence not in failed)
            written = [offset for offset in (1, 2, 3) if offset not in failed]
            assert offsets.is_unstable(partition) == bool(written)
            offsets.end_transaction(PID, True)
            assert [each.offset for each in offsets.committed.values()] == written[-1:]


@scenario
async def test_a_transactional_commit_is_refused_with_kafkas_error() -> None:
    simulation = await SimulatedGroups().started()
    assert await in_transaction(simulation, 5, topic="missing") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await in_transaction(simulation, 5, metadata="x" * 5000) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    (member,) = await simulation.members(1)
    assert await in_transaction(simulation, 5) is ErrorCode.NONE, "old producers say nothing of members"
    assert await in_transaction(simulation, 5, generation=1, member_id="zz") is ErrorCode.UNKNOWN_MEMBER_ID
    fenced = await in_transaction(simulation, 5, generation=member.generation + 1, member_id=member.member_id)
    assert fenced is ErrorCode.ILLEGAL_GENERATION
    known = await in_transaction(simulation, 5, generation=member.generation, member_id=member.member_id)
    assert known is ErrorCode.NONE

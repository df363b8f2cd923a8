"""A group's state is in the log: the next leader of its partition has the state of the last one."""

from __future__ import annotations

import logging

import pytest

from ottla.coordinators import records
from ottla.coordinators.offsets import CommittedOffset
from ottla.protocol.compression import Codec
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import ListGroupsRequest
from ottla.protocol.records import (
    ControlType,
    Record,
    build_batch,
    build_control_batch,
    parse_batch_header,
)
from tests.worlds.simulated_coordinators import (
    SESSION_MS,
    MemoryLog,
    SimulatedGroups,
    commit,
    finished,
    run_until_idle,
    scenario,
)


@scenario
async def test_the_next_coordinator_continues_where_the_last_one_stopped() -> None:
    simulation = await SimulatedGroups().started()
    one, two = await simulation.members(2)
    await one.commit(11)
    await commit(simulation, 7, group="simple")
    before = await simulation.describe()
    other = await simulation.elsewhere()
    assert await other.describe() == before
    assert await other.committed() == (11, ErrorCode.NONE)
    assert await other.committed("simple") == (7, ErrorCode.NONE)
    assert await one.at(other).heartbeat() == ErrorCode.NONE
    assert await two.at(other).commit(12) == ErrorCode.NONE
    assert (await finished(two.syncing())).assignment == b"c2"


@scenario
async def test_loaded_members_must_send_a_heartbeat_within_their_session_timeout() -> None:
    simulation = await SimulatedGroups().started()
    one, _two = await simulation.members(2)
    other = await simulation.elsewhere()
    await simulation.time.advance(SESSION_MS - 1)
    assert await one.at(other).heartbeat() == ErrorCode.NONE
    await simulation.time.advance(1)
    assert await one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    await other.rebalance([one])
    assert [member.member_id for member in (await other.describe()).members] == [one.member_id]


@scenario
async def test_static_members_are_known_after_loading() -> None:
    simulation = await SimulatedGroups().started()
    one = simulation.client("c1", instance_id="i1")
    await simulation.rebalance([one])
    other = await simulation.elsewhere()
    back = one.restarted().at(other)
    back.took(await finished(back.joining()))
    assert (await finished(back.syncing())).assignment == b"c1"
    third = await other.elsewhere()
    assert await back.at(third).heartbeat() == ErrorCode.NONE, "its new member id was stored"


@scenario
async def test_an_empty_group_keeps_its_generation() -> None:
    simulation = await SimulatedGroups().started()
    (one,) = await simulation.members(1)
    await one.leave()
    await run_until_idle()
    other = await simulation.elsewhere()
    assert await other.state() == "Empty"
    newcomer = other.client("c9")
    join = newcomer.joining()
    await simulation.time.advance(0)
    assert (await finished(join)).generation_id == 3


@scenario
async def test_a_group_above_a_lowered_limit_removes_members() -> None:
    simulation = await SimulatedGroups().started()
    clients = await simulation.members(3)
    simulation.settings["group_max_size"] = 2
    other = await simulation.elsewhere()
    assert await clients[0].at(other).heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    joins = []
    for client in clients:
        joins.append(client.at(other).joining())
        await run_until_idle()
    await simulation.time.advance(0)
    codes = [(await finished(join)).error_code for join in joins]
    assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED]


@scenario
async def test_the_log_may_be_compressed() -> None:
    simulation = await SimulatedGroups(offsets_topic_compression_codec=Codec.GZIP).started()
    await commit(simulation, 3)
    (batch,) = simulation.log.batches[0]
    assert parse_batch_header(batch).codec is Codec.GZIP
    assert await (await simulation.elsewhere()).committed() == (3, ErrorCode.NONE)


@scenario
async def test_requests_during_loading_are_answered_with_coordinator_load_in_progress() -> None:
    simulation = SimulatedGroups()
    simulation.coordinator.start()
    loading = simulation.coordinator.load(0)
    client = simulation.client("c1")
    client.member_id, client.generation = "c1-1", 1
    assert (await client.join_once()).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert await client.heartbeat() == ErrorCode.NONE
    assert await client.commit(1) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    listed = await simulation.coordinator.list_groups(ListGroupsRequest())
    assert listed.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert loading is not None
    # Sync comes last: its task lets the loop run, and so the loading end.
    sync = client.syncing()
    await loading
    assert (await finished(sync)).error_code in (
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.UNKNOWN_MEMBER_ID,
    )
    assert (await client.join_once()).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert simulation.coordinator.load(0) is None


@scenario
async def test_a_partition_lost_while_loading_stays_lost() -> None:
    simulation = await SimulatedGroups().started()
    await commit(simulation, 1)
    other = SimulatedGroups(simulation.log, simulation.time, **simulation.settings)
    other.coordinator.start()
    other.coordinator.load(0)
    other.coordinator.unload(0)
    await run_until_idle()
    assert await commit(other, 2) == ErrorCode.NOT_COORDINATOR


@scenario
async def test_failed_loading_is_retried() -> None:
    class FlakyLog(MemoryLog):
        failures = 1

        def read_all(self, partition: int) -> object:  # type: ignore[override]
            if self.failures:
                self.failures -= 1
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk hiccuped")
            return super().read_all(partition)

    simulation = SimulatedGroups(FlakyLog())
    simulation.coordinator.start()
    logging.disable()
    try:
        simulation.coordinator.load(0)
        await run_until_idle()
    finally:
        logging.disable(logging.NOTSET)
    assert await commit(simulation, 1) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await simulation.time.advance(1_000)
    assert await commit(simulation, 1) == ErrorCode.NONE


@scenario
async def test_records_that_cannot_be_read_are_skipped() -> None:
    log = MemoryLog()
    log.batches[0] = [
        build_batch(
            [
                Record(0, 0, b"\x00\x63unknown", b"x"),
                Record(1, 0, b"\x00", b"x"),
                Record(2, 0, records.group_key("g"), b"\x00\x03\xff"),
                Record(3, 0, records.offset_key("g", ("t", 0)), records.offset_value(CommittedOffset(5))),
            ]
        )
    ]
    logging.disable()
    try:
        simulation = await SimulatedGroups(log).started()
    finally:
        logging.disable(logging.NOTSET)
    assert await simulation.committed() == (5, ErrorCode.NONE)


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        (ControlType.COMMIT, (8, ErrorCode.NONE)),
        (ControlType.ABORT, (5, ErrorCode.NONE)),
        (None, (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)),
    ],
)
def test_offsets_in_a_transaction_count_once_it_is_committed(
    ending: ControlType | None, expected: tuple[int, int]
) -> None:
    def batch(offset: int, position: int, producer_id: int = -1) -> bytes:
        record = Record(position, 0, records.offset_key("g", ("t", 0)), value(offset))
        in_transaction = producer_id >= 0
        return build_batch(
            [record],
            base_offset=position,
            producer_id=producer_id,
            producer_epoch=0 if in_transaction else -1,
            base_sequence=0 if in_transaction else -1,
            transactional=in_transaction,
        )

    def value(offset: int) -> bytes:
        return records.offset_value(CommittedOffset(offset, metadata="", commit_timestamp_ms=0))

    @scenario
    async def run() -> None:
        log = MemoryLog()
        log.batches[0] = [batch(5, 0), batch(8, 1, producer_id=4)]
        if ending is not None:
            log.batches[0].append(
                build_control_batch(
                    ending, producer_id=4, producer_epoch=0, coordinator_epoch=0, timestamp=0, base_offset=2
                )
            )
        simulation = await SimulatedGroups(log).started()
        assert await simulation.committed(stable=True) == expected

    run()


def test_the_later_record_of_a_transaction_and_a_commit_wins() -> None:
    @scenario
    async def run() -> None:
        key = records.offset_key("g", ("t", 0))
        transactional = build_batch(
            [Record(0, 0, key, records.offset_value(CommittedOffset(8)))],
            producer_id=4,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        plain = build_batch([Record(1, 0, key, records.offset_value(CommittedOffset(9)))], base_offset=1)
        marker = build_control_batch(
            ControlType.COMMIT,
            producer_id=4,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=0,
            base_offset=2,
        )
        log = MemoryLog()
        log.batches[0] = [transactional + plain + marker]
        simulation = await SimulatedGroups(log).started()
        assert await simulation.committed() == (9, ErrorCode.NONE)

    run()

"""The transaction coordinator over its log: results for producers, and failover to the next coordinator."""

from __future__ import annotations

import asyncio

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import ListTransactionsRequest
from tests.worlds.simulated_coordinators import run_until_idle, scenario
from tests.worlds.simulated_transactions import PARTITIONS, TIMEOUT_MS, SimulatedTransactions


@scenario
async def test_a_commit_from_beginning_to_end() -> None:
    simulation = await SimulatedTransactions().started()
    producer = await simulation.producer()
    assert producer == (1000, 0)
    assert await simulation.add(producer) is ErrorCode.NONE
    assert simulation.state() == "Ongoing"
    assert await simulation.end(producer, commit=True) is ErrorCode.NONE
    await run_until_idle()
    assert simulation.state() == "CompleteCommit"
    assert simulation.log.states() == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]
    assert simulation.partitions.outcomes() == {key: [True] for key in PARTITIONS}
    assert {
        marker.coordinator_epoch for each in simulation.partitions.markers.values() for marker in each
    } == {5}
    assert await simulation.end(producer, commit=True) is ErrorCode.NONE, "a repetition"


@scenario
async def test_the_next_coordinator_completes_the_decision_after_a_crash_at_any_record() -> None:
    """All or nothing, for a crash at any point and any number of sent markers."""
    for commit in (True, False):
        for known in range(1, 5):
            for sent in range(len(PARTITIONS) + 1):
                await take_over(commit, known, sent)


async def take_over(commit: bool, known: int, sent: int) -> None:
    simulation = await SimulatedTransactions().started()
    simulation.partitions.hold = True
    producer = await simulation.producer()
    await simulation.add(producer)
    await simulation.end(producer, commit=commit)
    assert len(simulation.log.batches[0]) == 3
    decided = known >= 3
    for _ in range(sent if decided else 0):
        simulation.partitions.let_one()
    await run_until_idle()
    if known > len(simulation.log.batches[0]):
        return  # Not all markers were sent: there is no fourth record.
    heir = await simulation.taken_over(known)
    heir.partitions.hold = False
    for arrive in simulation.partitions.held:
        arrive()  # Too late: nobody listens to the old coordinator.
    await run_until_idle()
    if not decided:
        assert simulation.partitions.outcomes() == {}, "what is not decided is not told"
        if known == 2:
            assert await heir.end(producer, commit=commit) is ErrorCode.NONE
        else:
            assert await heir.end(producer, commit=commit) is ErrorCode.INVALID_TXN_STATE
            return
    await run_until_idle()
    assert heir.state() == ("CompleteCommit" if commit else "CompleteAbort")
    outcomes = heir.partitions.outcomes()
    assert outcomes.keys() == PARTITIONS
    assert {outcome for each in outcomes.values() for outcome in each} == {commit}
    assert (await heir.producer())[0] == producer[0], "and the next producer begins"


@scenario
async def test_requests_during_marker_writes_get_concurrent_transactions() -> None:
    simulation = await SimulatedTransactions().started()
    producer = await simulation.producer()
    await simulation.add(producer)
    simulation.partitions.hold = True
    assert await simulation.end(producer, commit=False) is ErrorCode.NONE
    assert (await simulation.init()).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert await simulation.add(producer) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert simulation.coordinator.verify("tid", *producer, [("t", 0)]) == {
        ("t", 0): ErrorCode.CONCURRENT_TRANSACTIONS
    }
    simulation.partitions.let_one()
    left = simulation.coordinator.describe("tid")
    assert (left.transaction_state, sum(len(topic.partitions) for topic in left.topics)) == (
        "PrepareAbort",
        2,
    )
    while simulation.partitions.held:
        simulation.partitions.let_one()
    await run_until_idle()
    assert await simulation.add(producer) is ErrorCode.NONE


@scenario
async def test_a_timed_out_transaction_is_aborted_and_its_producer_fenced() -> None:
    simulation = await SimulatedTransactions().started()
    producer = await simulation.producer()
    await simulation.add(producer)
    await simulation.time.advance(TIMEOUT_MS)
    assert simulation.state() == "Ongoing"
    await simulation.time.advance(10_001)
    assert simulation.state() == "CompleteAbort"
    assert simulation.partitions.outcomes() == {key: [False] for key in PARTITIONS}
    assert await simulation.end(producer, commit=True) is ErrorCode.PRODUCER_FENCED
    assert await simulation.producer() == (producer[0], producer[1] + 2)


@scenario
async def test_an_expired_id_leaves_a_tombstone() -> None:
    simulation = await SimulatedTransactions(transactional_id_expiration_ms=1000).started()
    await simulation.producer()
    await simulation.time.advance(3_600_000)
    assert simulation.log.states() == ["Empty", "gone"]
    assert simulation.coordinator.describe("tid").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    heir = await simulation.taken_over()
    assert heir.coordinator.describe("tid").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


@scenario
async def test_a_failed_append_is_a_retriable_error() -> None:
    simulation = await SimulatedTransactions().started()
    producer = await simulation.producer()
    for reported, error in (
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ):
        simulation.log.answers = [reported]
        assert await simulation.add(producer) is error
    assert await simulation.add(producer) is ErrorCode.NONE


@scenario
async def test_the_completion_record_is_retried() -> None:
    simulation = await SimulatedTransactions().started()
    producer = await simulation.producer()
    await simulation.add(producer)
    simulation.log.answers = [ErrorCode.NONE, *[ErrorCode.NOT_ENOUGH_REPLICAS] * 3]
    assert await simulation.end(producer, commit=True) is ErrorCode.NONE
    await run_until_idle()
    assert simulation.state() == "PrepareCommit"
    await simulation.time.advance(1000)
    assert simulation.state() == "CompleteCommit"


@scenario
async def test_an_append_that_completes_after_unload_is_answered_with_not_coordinator() -> None:
    simulation = await SimulatedTransactions().started()
    producer = await simulation.producer()
    simulation.log.hold = True
    adding = asyncio.ensure_future(simulation.add(producer))
    await run_until_idle()
    heir = await simulation.taken_over()
    simulation.log.release()
    assert await adding is ErrorCode.NOT_COORDINATOR
    assert await simulation.add(producer) is ErrorCode.NOT_COORDINATOR
    assert heir.state() == "Ongoing", "its record was in the log"


@scenario
async def test_refused_init_producer_id_requests() -> None:
    simulation = await SimulatedTransactions().started()
    assert (await simulation.coordinator.init_producer_id("", 1, None)).error is ErrorCode.INVALID_REQUEST
    for timeout_ms in (0, -1, 900_001):
        assert (await simulation.init(timeout_ms=timeout_ms)).error is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    simulation.has_producer_ids = False
    assert (await simulation.init()).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert await simulation.add((1, 0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    simulation.coordinator.unload(0)
    assert (await simulation.init()).error is ErrorCode.NOT_COORDINATOR
    await simulation.coordinator.stop()
    assert (await simulation.init()).error is ErrorCode.COORDINATOR_NOT_AVAILABLE


@scenario
async def test_list_transactions_applies_filters() -> None:
    simulation = await SimulatedTransactions().started()
    producer = await simulation.producer()
    await simulation.add(producer)
    await simulation.coordinator.init_producer_id("idle", 5000, None)
    await simulation.time.advance(100)

    def listed(**filters: object) -> set[str]:
        answer = simulation.coordinator.list_transactions(ListTransactionsRequest(**filters))  # type: ignore[arg-type]
        return {each.transactional_id for each in answer.transaction_states}

    assert listed() == {"tid", "idle"}
    assert listed(state_filters=["Ongoing", "Nonsense"]) == {"tid"}
    assert listed(state_filters=["Nonsense"]) == set()
    assert listed(producer_id_filters=[producer[0]]) == {"tid"}
    assert "tid" in listed(duration_filter=99)
    assert "tid" not in listed(duration_filter=100)
    request = ListTransactionsRequest(state_filters=["Nonsense"])
    assert simulation.coordinator.list_transactions(request).unknown_state_filters == ["Nonsense"]

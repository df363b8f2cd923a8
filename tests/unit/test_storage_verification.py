"""A log begins a transaction only with a batch that its coordinator agreed to, and still agrees to
(KIP-890)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import ControlType, build_control_batch
from ottla.storage.log import Log, LogAppendInfo
from ottla.storage.producer_state import VerificationGuard
from tests.worlds.storage_logs import NOW_MS, batch, open_log

PID = 7


@pytest.fixture
def log(tmp_path: Path) -> Log:
    opened = open_log(tmp_path)
    opened.producers.verifies = True
    return opened


def begin(log: Log, sequence: int = 0, epoch: int = 0) -> VerificationGuard | None:
    return log.producers.begin_verification(PID, epoch, sequence, NOW_MS)


def append(
    log: Log, guard: object | None, sequence: int = 0, epoch: int = 0, *, client: bool = True
) -> LogAppendInfo:
    records = batch("value", producer=(PID, epoch, sequence), transactional=True)
    return log.append_as_leader(
        records, leader_epoch=0, now_ms=NOW_MS, client=client, verification_guard=guard
    )


def end(log: Log, epoch: int = 0) -> None:
    marker = build_control_batch(
        ControlType.ABORT, producer_id=PID, producer_epoch=epoch, coordinator_epoch=1, timestamp=NOW_MS
    )
    log.append_as_leader(marker, leader_epoch=0, now_ms=NOW_MS, client=False)


def refused(log: Log, guard: object | None, sequence: int = 0, epoch: int = 0) -> ErrorCode:
    before = log.log_end_offset
    with pytest.raises(KafkaError) as error:
        append(log, guard, sequence, epoch)
    assert log.log_end_offset == before
    return error.value.code


def test_the_first_batch_needs_a_verification_and_the_next_none(log: Log) -> None:
    assert refused(log, None) is ErrorCode.INVALID_TXN_STATE
    guard = begin(log)
    assert guard is not None
    append(log, guard)
    assert begin(log, 1) is None, "the transaction is open"
    append(log, None, 1)
    assert append(log, None, 1).duplicate


def test_an_end_in_between_throws_the_verification_away(log: Log) -> None:
    guard = begin(log)
    end(log)
    assert refused(log, guard) is ErrorCode.INVALID_TXN_STATE
    again = begin(log)
    assert again is not guard
    append(log, again)


def test_a_verification_of_another_transaction_is_worth_nothing(log: Log) -> None:
    late = begin(log)
    append(log, late)
    end(log)
    assert begin(log, 1) is not None
    assert refused(log, late, 1) is ErrorCode.INVALID_TXN_STATE


def test_questions_under_way_are_one_and_the_lowest_sequence_goes_first(log: Log) -> None:
    later, first = begin(log, 5), begin(log, 3)
    assert later is first
    assert refused(log, first, 5) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(log, first, 3)
    append(log, None, 4)


def test_a_new_epoch_begins_its_own_order(log: Log) -> None:
    guard = begin(log, 9)
    assert begin(log, 0, epoch=1) is guard
    append(log, guard, 0, epoch=1)


def test_coordinators_show_theirs_too_and_followers_need_none(log: Log, tmp_path: Path) -> None:
    with pytest.raises(KafkaError):
        append(log, None, client=False)
    append(log, begin(log, -1), client=False)
    follower = open_log(tmp_path / "follower")
    follower.producers.verifies = True
    read = log.read(0, 10_000, up_to=log.log_end_offset)
    follower.append_as_follower(read.to_bytes(), now_ms=NOW_MS)
    assert follower.log_end_offset == log.log_end_offset


def test_without_verification_nothing_is_asked_for(log: Log) -> None:
    log.producers.verifies = False
    append(log, None)


def test_a_question_that_nobody_answers_is_forgotten_with_its_producer(log: Log) -> None:
    guard = begin(log)
    log.producers.remove_expired(NOW_MS + 999, 1000)
    assert begin(log) is guard
    log.producers.remove_expired(NOW_MS + 1000, 1000)
    assert begin(log) is not guard

"""Appending as the leader: offsets, refusals, idempotence, and the named slow paths."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from ottla.protocol.compression import Codec
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import (
    ControlType,
    build_control_batch,
    iter_batches,
    verify_crc,
)
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from tests.worlds.storage_logs import NOW_MS, append, batch, contents, open_log, values


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return open_log(tmp_path)


def refused(log: Log, data: bytes, **options: object) -> ErrorCode:
    end = log.log_end_offset
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(data, leader_epoch=0, now_ms=NOW_MS, **options)  # type: ignore[arg-type]
    assert log.log_end_offset == end, "a refused batch changes nothing"
    return caught.value.code


def everything(log: Log) -> bytes:
    return log.read(log.log_start_offset, 1 << 20, up_to=log.log_end_offset).to_bytes()


def test_offsets_count_on_and_the_batch_is_stored_as_it_came(log: Log) -> None:
    first = batch("a", "b", codec=Codec.ZSTD)
    assert log.append_as_leader(first, leader_epoch=5, now_ms=NOW_MS)[:4] == (0, 1, NOW_MS, -1)
    assert append(log, "c", epoch=5) == 2
    assert contents(log) == [(0, "a"), (1, "b"), (2, "c")]
    stored = everything(log)
    assert stored[16 : len(first)] == first[16:], "only offset and leader epoch are the broker's"
    for pos, header in iter_batches(stored):
        assert header.partition_leader_epoch == 5
        assert verify_crc(stored, pos, header)


def test_a_damaged_batch_is_refused(log: Log) -> None:
    data = bytearray(batch("a"))
    data[-1] ^= 1
    assert refused(log, bytes(data)) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("data", [b"\0" * 16, batch("a")[:-1], batch("a")[:40]])
def test_less_than_a_batch_is_refused(log: Log, data: bytes) -> None:
    assert refused(log, data) in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)


def test_a_length_too_small_for_a_header_is_refused(log: Log) -> None:
    data = bytearray(batch("a"))
    data[8:12] = (20).to_bytes(4, "big")
    assert refused(log, bytes(data)) is ErrorCode.CORRUPT_MESSAGE


def test_two_batches_in_one_append_are_refused(log: Log) -> None:
    assert refused(log, batch("a") + batch("b")) is ErrorCode.INVALID_RECORD


def test_a_partial_second_batch_is_left_out(log: Log) -> None:
    log.append_as_leader(batch("a") + batch("b")[:-3], leader_epoch=0, now_ms=NOW_MS)
    assert values(log) == ["a"]


def with_fields(data: bytes, **fields: int) -> bytes:
    """The batch with header fields changed and its checksum made right again."""
    copy = bytearray(data)
    places = {"base_offset": (">q", 0), "attributes": (">h", 21), "delta": (">i", 23), "count": (">i", 57)}
    for name, value in fields.items():
        layout, at = places[name]
        struct.pack_into(layout, copy, at, value)
    struct.pack_into(">I", copy, 17, crc32c(bytes(copy[21:])))
    return bytes(copy)


@pytest.mark.parametrize(
    "fields",
    [{"base_offset": 1}, {"count": 1}, {"count": -1}, {"delta": -1, "count": 0}, {"attributes": 0x20}],
)
def test_header_fields_that_no_client_may_send_are_refused(log: Log, fields: dict[str, int]) -> None:
    assert refused(log, with_fields(batch("a", "b"), **fields)) is ErrorCode.INVALID_RECORD


def test_an_unknown_codec_is_refused(log: Log) -> None:
    assert refused(log, with_fields(batch("a"), attributes=6)) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_sizes_are_limited(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(max_message_bytes=200, segment_bytes=150))
    assert refused(log, batch("x" * 200)) is ErrorCode.MESSAGE_TOO_LARGE
    assert refused(log, batch("x" * 100)) is ErrorCode.RECORD_LIST_TOO_LARGE
    assert append(log, "x" * 20) == 0


def test_a_closed_log_takes_nothing(log: Log) -> None:
    log.close(NOW_MS)
    assert refused(log, batch("a")) is ErrorCode.KAFKA_STORAGE_ERROR


class TestIdempotence:
    def test_sequences_must_follow_each_other(self, log: Log) -> None:
        append(log, "a", "b", producer=(7, 0, 0))
        assert refused(log, batch("x", producer=(7, 0, 3))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert append(log, "c", producer=(7, 0, 2)) == 2

    @pytest.mark.parametrize("ago", range(5))
    def test_a_retry_of_one_of_the_last_five_gets_the_first_answer(self, log: Log, ago: int) -> None:
        for sequence in range(8):
            append(log, f"v{sequence}", producer=(7, 0, sequence), timestamp=NOW_MS + sequence)
        info = log.append_as_leader(batch("again", producer=(7, 0, 7 - ago)), leader_epoch=0, now_ms=NOW_MS)
        assert info.duplicate
        assert (info.first_offset, info.last_offset) == (7 - ago, 7 - ago)
        assert log.log_end_offset == 8

    def test_a_retry_of_an_older_batch_is_out_of_order(self, log: Log) -> None:
        for sequence in range(6):
            append(log, "v", producer=(7, 0, sequence))
        assert refused(log, batch("v", producer=(7, 0, 0))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_a_newer_epoch_begins_at_0_and_fences_the_older(self, log: Log) -> None:
        append(log, "a", producer=(7, 0, 0))
        assert refused(log, batch("x", producer=(7, 1, 1))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        append(log, "b", producer=(7, 1, 0))
        assert refused(log, batch("x", producer=(7, 0, 1))) is ErrorCode.INVALID_PRODUCER_EPOCH

    def test_an_unknown_producer_may_begin_anywhere(self, log: Log) -> None:
        assert append(log, "a", producer=(7, 3, 1000)) == 0
        assert append(log, "b", producer=(7, 3, 1001)) == 1

    def test_sequences_wrap_to_0(self, log: Log) -> None:
        append(log, "a", "b", producer=(7, 0, 2**31 - 2))
        assert append(log, "c", producer=(7, 0, 0)) == 2

    def test_a_negative_sequence_is_refused(self, log: Log) -> None:
        assert refused(log, batch("a", producer=(7, 0, -1))) is ErrorCode.INVALID_RECORD

    def test_producer_state_survives_a_restart(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        for sequence in range(3):
            append(log, "v", producer=(7, 0, sequence))
        log.close(NOW_MS)
        again = open_log(tmp_path)
        assert again.append_as_leader(batch("v", producer=(7, 0, 2)), leader_epoch=0, now_ms=NOW_MS).duplicate
        assert refused(again, batch("v", producer=(7, 0, 4))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert append(again, "v", producer=(7, 0, 3)) == 3

    def test_truncated_batches_are_forgotten(self, log: Log) -> None:
        for sequence in range(4):
            append(log, "v", producer=(7, 0, sequence))
        log.truncate_to(2)
        assert append(log, "v", producer=(7, 0, 2)) == 2


class TestTransactions:
    def marker(self, log: Log, kind: ControlType, coordinator_epoch: int = 1, epoch: int = 0) -> int:
        data = build_control_batch(
            kind,
            producer_id=7,
            producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=NOW_MS,
        )
        return log.append_as_leader(data, leader_epoch=0, now_ms=NOW_MS, client=False).first_offset

    def test_the_last_stable_offset_waits_for_the_marker_to_be_replicated(self, log: Log) -> None:
        append(log, "plain")
        append(log, "in transaction", producer=(7, 0, 0), transactional=True)
        append(log, "plain")
        assert log.last_stable_offset(3) == 1
        assert self.marker(log, ControlType.COMMIT) == 3
        assert log.last_stable_offset(3) == 1, "the marker is not below the high watermark yet"
        assert log.last_stable_offset(4) == 4

    def test_the_oldest_open_transaction_counts(self, log: Log) -> None:
        append(log, "a", producer=(7, 0, 0), transactional=True)
        append(log, "b", producer=(8, 0, 0), transactional=True)
        self.marker(log, ControlType.ABORT)
        assert log.last_stable_offset(3) == 1

    def test_open_transactions_are_known_after_a_restart(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        append(log, "a", producer=(7, 0, 0), transactional=True)
        self.marker(log, ControlType.COMMIT)
        append(log, "b", producer=(7, 0, 1), transactional=True)
        log.close(NOW_MS)
        assert open_log(tmp_path).last_stable_offset(3) == 2

    def test_a_plain_write_within_a_transaction_is_refused(self, log: Log) -> None:
        append(log, "a", producer=(7, 0, 0), transactional=True)
        assert refused(log, batch("b", producer=(7, 0, 1))) is ErrorCode.INVALID_TXN_STATE

    def test_an_old_coordinator_is_fenced(self, log: Log) -> None:
        append(log, "a", producer=(7, 0, 0), transactional=True)
        self.marker(log, ControlType.COMMIT, coordinator_epoch=4)
        with pytest.raises(KafkaError) as caught:
            self.marker(log, ControlType.COMMIT, coordinator_epoch=3)
        assert caught.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED

    def test_silent_producers_are_forgotten_but_not_in_a_transaction(self, log: Log) -> None:
        append(log, "a", producer=(7, 0, 0), transactional=True)
        append(log, "b", producer=(8, 0, 0))
        assert log.remove_expired_producers(NOW_MS + 1000, 1000) == 1
        assert log.producers.get(8) is None
        assert log.producers.get(7) is not None


class TestFollower:
    def test_batches_are_stored_byte_for_byte(self, tmp_path: Path) -> None:
        leader, follower = open_log(tmp_path / "leader"), open_log(tmp_path / "follower")
        append(leader, "a", "b", epoch=1, producer=(7, 0, 0))
        append(leader, "c", epoch=1)
        append(leader, "d", epoch=4)
        sent = everything(leader)
        info = follower.append_as_follower(memoryview(sent + b"\0" * 20), now_ms=NOW_MS)
        assert (info.first_offset, info.last_offset) == (0, 3)
        assert everything(follower) == sent
        assert follower.latest_epoch == 4
        assert follower.epoch_start(4) == 3
        entry = follower.producers.get(7)
        assert entry is not None
        assert entry.last_sequence == 1

    def test_a_batch_that_does_not_follow_is_refused(self, log: Log) -> None:
        append(log, "a", "b")
        with pytest.raises(KafkaError) as caught:
            log.append_as_follower(batch("x", base_offset=1), now_ms=NOW_MS)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        log.append_as_follower(batch("x", base_offset=10), now_ms=NOW_MS)
        assert contents(log) == [(0, "a"), (1, "b"), (10, "x")]

    def test_damage_on_the_way_is_noticed(self, log: Log) -> None:
        sent = bytearray(batch("a") + batch("b", base_offset=1))
        sent[-1] ^= 1
        with pytest.raises(KafkaError) as caught:
            log.append_as_follower(bytes(sent), now_ms=NOW_MS)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
        assert log.log_end_offset == 0

    def test_a_fetch_larger_than_a_segment_is_spread_over_several(self, tmp_path: Path) -> None:
        leader = open_log(tmp_path / "leader")
        for number in range(10):
            append(leader, f"value {number}" * 10)
        follower = open_log(tmp_path / "follower", LogConfig(segment_bytes=400))
        follower.append_as_follower(everything(leader), now_ms=NOW_MS)
        assert contents(follower) == contents(leader)
        assert len(follower.segments) > 3

"""What a log remembers of producers: snapshots, the transaction index, and both after restarts."""

from __future__ import annotations

import shutil
import struct
import tempfile
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ottla.ports.files import OS_FILES
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import ControlType, build_control_batch
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.log_segment import scan_headers
from ottla.storage.producer_state import BatchMetadata, ProducerStateEntry
from ottla.storage.producer_state_manager import CorruptSnapshot, decode_snapshot, encode_snapshot
from tests.worlds.storage_logs import NOW_MS, append, batch, open_log

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=100)


def end_transaction(log: Log, producer_id: int, kind: ControlType, epoch: int = 0) -> int:
    marker = build_control_batch(
        kind, producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=1, timestamp=NOW_MS
    )
    return log.append_as_leader(marker, leader_epoch=0, now_ms=NOW_MS, client=False).first_offset


def snapshots(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in (directory / "events-0").glob("*.snapshot"))


def state(log: Log) -> bytes:
    """All that a snapshot says of the producers, in their order of ids."""
    return encode_snapshot(dict(sorted(log.producers.all().items())))


def filled(directory: Path) -> Log:
    """Two producers, several segments, a transaction left open."""
    log = open_log(directory, SMALL)
    for number in range(30):
        append(log, f"plain {number}", producer=(7, 0, number))
        append(log, f"number {number}", producer=(8, 0, number), transactional=True)
        if number % 4 == 3 and number < 29:
            end_transaction(log, 8, ControlType.ABORT if number % 8 == 3 else ControlType.COMMIT)
    assert len(log.segments) > 4
    return log


def test_a_log_that_was_closed_recognizes_the_last_five_batches_of_each_producer(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(index_interval_bytes=100))
    for number in range(300):
        append(log, f"one {number}", producer=(7, 0, number))
        append(log, f"other {number}", producer=(8, 0, number))
    log.close(NOW_MS)
    log = open_log(tmp_path, LogConfig(index_interval_bytes=100))
    for producer_id in (7, 8):
        for number in range(295, 300):
            again = append(log, f"one {number}", producer=(producer_id, 0, number))
            assert again == 2 * number + producer_id - 7
        with pytest.raises(KafkaError, match="sequence"):
            append(log, "too old", producer=(producer_id, 0, 294))
    assert log.log_end_offset == 600


def test_a_marker_after_its_last_batch_hides_none_of_a_producers_earlier_batches(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(3):
        append(log, f"{number}", producer=(7, 0, number), transactional=True, timestamp=NOW_MS - 9)
    end_transaction(log, 7, ControlType.COMMIT)
    log.close()
    batches = open_log(tmp_path).producers.all()[7].batches
    assert [batch.last_sequence for batch in batches] == [0, 1, 2]


def test_earlier_batches_are_found_before_an_empty_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(3):
        append(log, f"{number}", producer=(7, 0, number))
    log.roll(NOW_MS)
    log.close()
    batches = open_log(tmp_path).producers.all()[7].batches
    assert [batch.last_sequence for batch in batches] == [0, 1, 2]


def test_a_log_that_begins_with_its_only_segment_is_recovered_with_its_producers(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig())
    append(log, "deleted", producer=(7, 0, 0))
    log.roll(NOW_MS)
    append(log, "kept", producer=(7, 0, 1))
    log.maybe_increment_log_start_offset(1)
    log.delete_old_segments(now_ms=NOW_MS, high_watermark=2)
    log = open_log(tmp_path, LogConfig(), clean=False)
    assert [segment.base_offset for segment in log.segments] == [1]
    assert append(log, "again", producer=(7, 0, 1)) == 1


class TestSnapshotFormat:
    def entry(self) -> ProducerStateEntry:
        entry = ProducerStateEntry()
        entry.epoch, entry.coordinator_epoch, entry.last_timestamp, entry.transaction_start = 3, 2, 999, 50
        entry.batches.append(BatchMetadata(4, 9, 61, 5, 999))
        return entry

    def test_the_bytes_are_kafkas(self) -> None:
        data = encode_snapshot({1000: self.entry()})
        assert data[:2] == b"\0\1"
        assert struct.unpack(">I", data[2:6])[0] == crc32c(data[6:])
        assert data[6:10] == b"\0\0\0\1"
        assert struct.unpack(">qhiqiqiq", data[10:]) == (1000, 3, 9, 61, 5, 999, 2, 50)

    def test_producers_survive_a_snapshot(self) -> None:
        idle = ProducerStateEntry()
        idle.epoch = 1
        found = decode_snapshot(encode_snapshot({1000: self.entry(), 1001: idle}))
        assert list(found[1000].batches) == [BatchMetadata(4, 9, 61, 5, 999)]
        assert (found[1000].transaction_start, found[1000].coordinator_epoch) == (50, 2)
        assert (found[1001].epoch, found[1001].transaction_start, list(found[1001].batches)) == (1, None, [])

    def test_sequences_wrap(self) -> None:
        entry = ProducerStateEntry()
        entry.batches.append(BatchMetadata(2**31 - 2, 1, 10, 3, 5))
        assert decode_snapshot(encode_snapshot({1: entry}))[1].batches[0].first_sequence == 2**31 - 2

    def test_any_damage_is_noticed(self) -> None:
        good = encode_snapshot({1000: self.entry()})
        for damaged in [
            good[:-1],
            good + b"\0",
            b"",
            b"\0\1",
            *(_flipped(good, at) for at in range(len(good))),
        ]:
            with pytest.raises(CorruptSnapshot):
                decode_snapshot(damaged)


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


class TestSnapshots:
    def test_a_log_has_a_snapshot_where_each_segment_begins_and_at_its_end(self, tmp_path: Path) -> None:
        log = filled(tmp_path)
        log.close(NOW_MS)
        bases = sorted(int(path.stem) for path in (tmp_path / "events-0").glob("*.log"))
        assert snapshots(tmp_path) == [*bases[1:], log.log_end_offset]
        open_log(tmp_path, SMALL).close()
        assert snapshots(tmp_path) == [*bases[1:], log.log_end_offset]

    def test_a_log_closed_in_order_is_opened_without_reading_its_batches(self, tmp_path: Path) -> None:
        log = filled(tmp_path)
        log.close(NOW_MS)
        for path in sorted((tmp_path / "events-0").glob("*.log"))[:-1]:
            path.write_bytes(b"\xff" * path.stat().st_size)
        assert state(open_log(tmp_path, SMALL)) == state(log)

    @pytest.mark.parametrize("damage", ["torn", "flipped", "missing", "all missing"])
    def test_a_damaged_one_is_removed_and_made_anew(self, tmp_path: Path, damage: str) -> None:
        log = filled(tmp_path)
        log.close(NOW_MS)
        made = {p.name: p.read_bytes() for p in (tmp_path / "events-0").glob("*.snapshot")}
        paths = sorted((tmp_path / "events-0").glob("*.snapshot"))
        match damage:
            case "torn":
                paths[-1].write_bytes(made[paths[-1].name][:-7])
            case "flipped":
                paths[-1].write_bytes(_flipped(made[paths[-1].name], 20))
            case "missing":
                paths[-1].unlink()
            case _:
                for path in paths:
                    path.unlink()
        again = open_log(tmp_path, SMALL)
        assert state(again) == state(log)
        assert snapshots(tmp_path)[-3:] == [int(path.stem) for path in paths[-3:]]
        assert paths[-1].read_bytes() == made[paths[-1].name]

    def test_snapshots_of_a_lost_tail_are_removed(self, tmp_path: Path) -> None:
        log = filled(tmp_path)
        log.close(NOW_MS)
        last = max((tmp_path / "events-0").glob("*.log"))
        last.write_bytes(b"")
        again = open_log(tmp_path, SMALL, clean=False)
        assert snapshots(tmp_path)[-1] == again.log_end_offset == int(last.stem)

    def test_strays_are_removed(self, tmp_path: Path) -> None:
        log = filled(tmp_path)
        log.close(NOW_MS)
        kept = snapshots(tmp_path)
        for offset in (1, 2, kept[-1] - 1):
            shutil.copy(
                tmp_path / "events-0" / f"{kept[0]:020d}.snapshot",
                tmp_path / "events-0" / f"{offset:020d}.snapshot",
            )
        open_log(tmp_path, SMALL)
        assert snapshots(tmp_path) == kept

    def test_snapshots_of_deleted_segments_are_deleted(self, tmp_path: Path) -> None:
        log = filled(tmp_path)
        log.config = LogConfig(segment_bytes=1000, retention_bytes=1500)
        log.delete_old_segments(now_ms=NOW_MS, high_watermark=log.log_end_offset)
        assert snapshots(tmp_path)[0] == log.log_start_offset
        log.truncate_fully_and_start_at(100)
        assert snapshots(tmp_path) == []
        assert len(log.producers) == 0

    def test_a_truncation_reads_only_the_segment_that_it_ends_in(self, tmp_path: Path) -> None:
        log = filled(tmp_path)
        expected = {}
        for offset in range(log.log_end_offset):
            copy = open_log(tmp_path / f"copy-{offset}", LogConfig())
            data = log_bytes(log, offset)
            if data:
                copy.append_as_follower(data, now_ms=NOW_MS)
            expected[offset] = state(copy)
        bases = [segment.base_offset for segment in log.segments]
        for path in sorted((tmp_path / "events-0").glob("*.log"))[:-2]:
            path.write_bytes(b"\xff" * path.stat().st_size)
        for offset in range(log.log_end_offset - 1, bases[-2] - 1, -1):
            log.truncate_to(offset)
            assert state(log) == expected[offset], offset

    def test_and_of_that_no_more_than_it_must(self, tmp_path: Path) -> None:
        """It goes by the last batches before the cut, however large the segment is."""
        log = open_log(tmp_path)
        for number in range(300):
            append(log, "v" * 10_000, producer=(7, 0, number))
        [path] = (tmp_path / "events-0").glob("*.log")
        with path.open("r+b") as file:
            file.write(b"\xff" * 1_000_000)
        log.truncate_to(280)
        entry = log.producers.get(7)
        assert entry is not None
        assert (entry.last_sequence, entry.batches[-1].last_offset) == (279, 279)
        assert append(log, "v", producer=(7, 0, 280)) == 280

    def test_unless_a_producer_was_silent_for_long(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        for number in range(2):
            append(log, "v", producer=(8, 3, number))
        for _ in range(4):
            append(log, "v" * 500_000)
        for number in range(2, 8):
            append(log, "v", producer=(8, 3, number))
        log.truncate_to(6)
        assert append(log, "v", producer=(8, 3, 2)) == 6

    def test_a_producer_that_is_gone_from_the_log_is_gone(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        append(log, "v")
        append(log, "v", producer=(8, 3, 50), transactional=True)
        log.truncate_to(1)
        assert log.producers.get(8) is None
        assert log.last_stable_offset(1) == 1

    def test_one_below_a_replicated_marker_opens_its_transaction_again(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        append(log, "v", producer=(8, 0, 0), transactional=True)
        end_transaction(log, 8, ControlType.ABORT)
        append(log, "v", producer=(8, 0, 1), transactional=True)
        assert log.last_stable_offset(2) == 2
        log.truncate_to(1)
        assert log.last_stable_offset(1) == 0
        assert log.collect_aborted_transactions(0, 10) == []
        assert refused_plain(log)


def refused_plain(log: Log) -> bool:
    with pytest.raises(KafkaError) as refused:
        append(log, "v", producer=(8, 0, 1))
    return refused.value.code is ErrorCode.INVALID_TXN_STATE


def log_bytes(log: Log, up_to: int) -> bytes:
    """All whole batches that end before `up_to`."""
    found = b""
    for segment in log.segments:
        for position, header in scan_headers(OS_FILES, segment.fd, 0, segment.size):
            if header.last_offset < up_to:
                found += segment.read_batch(position)
    return found


class TestTransactionIndex:
    def test_a_transaction_index_has_no_file_before_the_first_abort(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        append(log, "a", producer=(7, 0, 0), transactional=True)
        end_transaction(log, 7, ControlType.COMMIT)
        assert not list((tmp_path / "events-0").glob("*.txnindex"))
        append(log, "b", producer=(7, 0, 1), transactional=True)
        end_transaction(log, 7, ControlType.ABORT)
        [path] = (tmp_path / "events-0").glob("*.txnindex")
        assert struct.unpack(">hqqqq", path.read_bytes()) == (0, 7, 2, 3, 4)

    def test_an_entry_says_how_far_the_log_was_stable_then(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        append(log, "a", producer=(7, 0, 0), transactional=True)
        append(log, "b", producer=(8, 0, 0), transactional=True)
        end_transaction(log, 7, ControlType.ABORT)
        end_transaction(log, 8, ControlType.ABORT)
        found = log.collect_aborted_transactions(0, 100)
        assert found == [(7, 0, 2, 1), (8, 1, 3, 4)]

    def test_a_transaction_is_told_of_by_any_read_within_it(self, tmp_path: Path) -> None:
        """Also where its marker fell into a later segment."""
        log = open_log(tmp_path)
        append(log, "before")
        append(log, "a", producer=(7, 0, 0), transactional=True)
        log.roll(NOW_MS)
        append(log, "b", producer=(7, 0, 1), transactional=True)
        log.roll(NOW_MS)
        end_transaction(log, 7, ControlType.ABORT)
        append(log, "after")
        told = [bool(log.collect_aborted_transactions(at, at + 1)) for at in range(5)]
        assert told == [False, True, True, True, False]
        for offset in (1, 2, 3):
            read = log.read(offset, 1000, up_to=5)
            assert log.aborted_transactions(offset, read) == [(7, 1)]
        assert log.aborted_transactions(4, log.read(4, 1000, up_to=5)) == []
        assert log.aborted_transactions(5, log.read(5, 1000, up_to=5)) == []

    def test_a_follower_keeps_the_same(self, tmp_path: Path) -> None:
        log = filled(tmp_path)
        follower = open_log(tmp_path / "follower", SMALL)
        follower.append_as_follower(log_bytes(log, log.log_end_offset), now_ms=NOW_MS)
        assert len(log.collect_aborted_transactions(0, 1000)) == 4
        assert follower.collect_aborted_transactions(0, 1000) == log.collect_aborted_transactions(0, 1000)
        assert state(follower) == state(log)
        assert follower.last_stable_offset(1000) == log.last_stable_offset(1000) < log.log_end_offset

    @pytest.mark.parametrize("damage", [b"\0", b"\0\7" + b"\0" * 32, b"\0" * 34])
    def test_a_transaction_index_that_cannot_be_right_is_rebuilt(self, tmp_path: Path, damage: bytes) -> None:
        log = filled(tmp_path)
        aborted = log.collect_aborted_transactions(0, 1000)
        log.close(NOW_MS)
        path = min((tmp_path / "events-0").glob("*.txnindex"))
        good = path.read_bytes()
        path.write_bytes(good + damage)
        again = open_log(tmp_path, SMALL)
        assert path.read_bytes() == good
        assert again.collect_aborted_transactions(0, 1000) == aborted
        assert state(again) == state(log)

    def test_a_marker_that_compaction_emptied_ends_nothing(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        empty = bytearray(batch("x", producer=(7, 0, -1), transactional=True)[:61])
        empty[8:12] = (49).to_bytes(4, "big")
        empty[21:23] = (0x30).to_bytes(2, "big")  # control, transactional
        empty[57:61] = bytes(4)
        empty[17:21] = crc32c(empty[21:]).to_bytes(4, "big")
        log.append_as_follower(bytes(empty), now_ms=NOW_MS)
        assert (log.log_end_offset, len(log.producers)) == (1, 0)


class TransactionMachine(RuleBasedStateMachine):
    """A log's producers against those that a list of its batches tells of, whatever happens to the log."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="ottla-producers-"))
        self.log: Log = open_log(self.directory, SMALL)
        self.appended: list[tuple[int, int, str]] = []
        """(offset, producer, kind) with one record a batch; kinds are data, COMMIT and ABORT."""
        self.sequences = dict.fromkeys(range(3), 0)

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    @rule(producer=st.integers(0, 2))
    def write(self, producer: int) -> None:
        sequence = len([1 for _, each, kind in self.appended if each == producer and kind == "data"])
        offset = append(self.log, "value", producer=(producer, 0, sequence), transactional=producer > 0)
        self.appended.append((offset, producer, "data"))

    @rule(producer=st.integers(1, 2), kind=st.sampled_from(ControlType))
    def end(self, producer: int, kind: ControlType) -> None:
        self.appended.append((end_transaction(self.log, producer, kind), producer, kind.name))

    @rule(back=st.integers(1, 12))
    def truncate(self, back: int) -> None:
        offset = max(0, self.log.log_end_offset - back)
        self.log.truncate_to(offset)
        self.appended = [each for each in self.appended if each[0] < offset]

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW_MS)

    @rule(clean=st.booleans(), recovered=st.floats(0, 1))
    def reopen(self, clean: bool, recovered: float) -> None:
        if clean:
            self.log.close(NOW_MS)
        point = int(self.log.log_end_offset * recovered)
        self.log = open_log(self.directory, SMALL, clean=clean, recovery_point=point)

    @invariant()
    def the_same_is_known(self) -> None:
        opened: dict[int, int] = {}
        aborted = []
        sequences: dict[int, int] = {}
        for offset, producer, kind in self.appended:
            if kind == "data":
                sequences[producer] = sequences.get(producer, -1) + 1
                if producer:
                    opened.setdefault(producer, offset)
            elif producer in opened:
                first = opened.pop(producer)
                if kind == "ABORT":
                    aborted.append((producer, first, offset, min(opened.values(), default=offset + 1)))
        log = self.log
        end = log.log_end_offset
        assert log.collect_aborted_transactions(0, end) == aborted
        assert log.last_stable_offset(end) == min(opened.values(), default=end)
        for producer, sequence in sequences.items():
            entry = log.producers.get(producer)
            assert entry is not None
            assert (entry.last_sequence, entry.transaction_start) == (sequence, opened.get(producer))


TestProducersAgainstAList = TransactionMachine.TestCase
TestProducersAgainstAList.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)

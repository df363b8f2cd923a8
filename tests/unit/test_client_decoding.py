"""The consumer's decoder returns the records of the reference decoder, without those that must not be
read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client import errors
from ottla.client.core.decoding import PartitionData, decode, last_batch
from ottla.client.core.types import ConsumerRecord, TopicPartition
from ottla.protocol.batch_rewrites import without_records
from ottla.protocol.compression import Codec
from ottla.protocol.legacy_records import encode_message_set
from ottla.protocol.messages import FetchResponse
from ottla.protocol.records import (
    BATCH_HEADER,
    ControlType,
    Record,
    TimestampType,
    build_batch,
    build_control_batch,
    decode_records,
    parse_batch_header,
)

TP = TopicPartition("t", 3)
texts = st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
records = st.builds(Record, st.just(0), st.integers(0, 2**41), st.none() | texts, st.none() | texts, headers)
batches = st.lists(
    st.tuples(
        st.lists(records, min_size=1, max_size=5), st.sampled_from(Codec), st.sampled_from(TimestampType)
    ),
    min_size=1,
    max_size=4,
)


def all_of(data: PartitionData) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    while (batch := data.next_batch()) is not None:
        found += batch
    return found


def opened(
    data: bytes, offset: int = 0, aborted: list[FetchResponse.AbortedTransaction] | None = None
) -> PartitionData:
    return PartitionData(TP, memoryview(data), offset, check_crcs=True, aborted=aborted)


@settings(max_examples=30, deadline=None)
@given(batches, st.integers(0, 8), st.integers(0, 60))
def test_records_from_the_requested_offset_are_returned_unchanged(
    written: list[tuple[list[Record], Codec, TimestampType]], skipped: int, cut: int
) -> None:
    data = b""
    offset = 10
    for number, (rows, codec, kind) in enumerate(written):
        data += build_batch(rows, base_offset=offset, codec=codec, timestamp_type=kind, leader_epoch=number)
        offset += len(rows)
    whole = data
    data += whole[: min(cut, len(whole) - 1)]  # a batch that the broker cut off
    reader = opened(data, 10 + skipped)
    found = all_of(reader)
    plain = [record for record in decode_records(whole) if record.offset >= 10 + skipped]
    assert [(r.offset, r.timestamp_ms, r.key, r.value, list(r.headers)) for r in found] == [
        (r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in plain
    ]
    assert all((r.topic, r.partition) == TP for r in found)
    last = last_batch(memoryview(data), 10 + skipped)
    assert last is not None
    assert last.next_offset == offset
    assert reader.next_offset == max(offset, 10 + skipped)


def transaction(producer: int, offset: int, *, codec: Codec = Codec.NONE) -> bytes:
    rows = [Record(0, 1, None, b"%d" % producer)] * 2
    return build_batch(
        rows, base_offset=offset, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True,
        codec=codec,
    )  # fmt: skip


def marker(producer: int, offset: int, kind: ControlType) -> bytes:
    return build_control_batch(
        kind, base_offset=offset, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=1
    )


def test_read_committed_omits_exactly_the_aborted_transactions() -> None:
    data = (
        transaction(1, 0)
        + transaction(2, 2)
        + marker(1, 4, ControlType.ABORT)
        + transaction(1, 5, codec=Codec.GZIP)
        + build_batch([Record(0, 1, None, b"plain")], base_offset=7)
        + marker(2, 8, ControlType.COMMIT)
        + marker(1, 9, ControlType.COMMIT)
    )
    aborted = [FetchResponse.AbortedTransaction(producer_id=1, first_offset=0)]
    assert [r.offset for r in all_of(opened(data, aborted=aborted))] == [2, 3, 5, 6, 7]
    assert [r.offset for r in all_of(opened(data))] == [0, 1, 2, 3, 5, 6, 7]


def test_markers_that_are_left_of_a_compacted_transaction_end_it() -> None:
    """KIP-98: compaction removes an aborted transaction's records before its marker, and the record of a
    marker whose batch stays for the producer's sequence number."""
    data = (
        marker(1, 4, ControlType.ABORT)
        + bytes(without_records(parse_batch_header(marker(1, 5, ControlType.COMMIT))))
        + transaction(1, 6)
        + marker(1, 8, ControlType.COMMIT)
    )
    aborted = [FetchResponse.AbortedTransaction(producer_id=1, first_offset=0)]
    assert [r.offset for r in all_of(opened(data, aborted=aborted))] == [6, 7]


def test_a_fetch_that_begins_at_an_abort_marker_returns_what_the_producer_writes_next() -> None:
    data = b"".join(
        [
            marker(1, 5, ControlType.ABORT),
            transaction(1, 6),
            marker(1, 8, ControlType.COMMIT),
            transaction(1, 9),
        ]
    )
    aborted = [FetchResponse.AbortedTransaction(producer_id=1, first_offset=3)]
    assert [r.offset for r in all_of(opened(data, 5, aborted))] == [6, 7, 9, 10]


def test_a_corrupt_batch_is_an_error_with_its_offset_and_is_not_skipped() -> None:
    good = build_batch([Record(0, 1, None, b"x" * 50)] * 3, base_offset=0)
    bad = bytearray(build_batch([Record(0, 1, None, b"y" * 50)], base_offset=3))
    bad[70] ^= 1
    reader = opened(good + bytes(bad))
    first = reader.next_batch()
    assert first is not None
    assert len(first) == 3
    for _ in range(2):
        with pytest.raises(errors.DeserializationError, match="t-3 at offset 3"):
            reader.next_batch()
    assert reader.next_offset == 3


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_messages_of_old_formats_come_before_batches_of_the_new_one(codec: Codec) -> None:
    rows = [Record(n, 1000 + n, None, b"%d" % n) for n in range(12)]
    sets = [
        encode_message_set(rows[:3], 0, codec),
        encode_message_set(rows[3:6], 1, codec),
        encode_message_set(rows[6:9], 1, codec, append_time=7),
        build_batch(rows[9:], base_offset=9, leader_epoch=4),
    ]
    data = b"".join(sets)
    for offset in range(12):
        found = all_of(opened(data, offset))
        assert [(r.offset, r.value) for r in found] == [(n, b"%d" % n) for n in range(offset, 12)]
    kinds = [(r.timestamp_ms, r.timestamp_type, r.leader_epoch) for r in all_of(opened(data))]
    assert kinds[2:4] == [(-1, -1, -1), (1003, 0, -1)]
    assert kinds[8:10] == [(7, 1, -1), (1009, 0, 4)]
    end = 0
    for message_set, next_offset in zip(sets, (3, 6, 9, 12), strict=True):
        end += len(message_set)
        for cut in (0, 5, 15, 25):  # of what follows
            found_last = last_batch(memoryview(data[: end + cut]), 0)
            assert found_last is not None
            assert found_last.next_offset == next_offset or codec is Codec.NONE
            assert len(all_of(opened(data[: end + cut]))) == found_last.next_offset


def test_a_single_small_message_of_an_old_format_is_read() -> None:
    data = encode_message_set([Record(41, 5, None, b"v")], 0)
    assert len(data) < 61
    found_last = last_batch(memoryview(data), 41)
    assert found_last is not None
    assert found_last.next_offset == 42
    assert [r.offset for r in all_of(opened(data, 41))] == [41]


def test_a_corrupt_old_message_is_an_error_with_its_offset() -> None:
    data = encode_message_set([Record(n, 5, None, b"value") for n in range(2)], 1)
    for broken in (data[:-1] + b"!", data[:8] + bytes(4) + data[12:], data[:16] + b"\x05" + data[17:]):
        last_batch(memoryview(broken), 0)
        with pytest.raises(errors.DeserializationError, match="t-3 at offset"):
            all_of(opened(broken))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_offsets_and_lengths_of_every_width_are_read(data: st.DataObject) -> None:
    kept = data.draw(
        st.sampled_from([range(9_000), range(70), range(0, 9_000, 7), [0, 63, 64, 8_191, 8_192, 1 << 20]])
    )
    sizes = [-1, 0, 1, 63, 64, 200, 8_191, 8_192, 40_000]
    rows = []
    for number, offset in enumerate(kept):
        key, value = (data.draw(st.sampled_from(sizes)) if number < 5 else number % 90 for _ in range(2))
        of_time = data.draw(st.integers(-(2**40), 2**40)) if number < 5 else 3 * number
        rows.append(
            Record(
                100 + offset,
                2**41 + of_time,
                None if key < 0 else b"k" * key,
                None if value < 0 else b"v" * value,
                [("h", b"1")] if number % 50 == 1 else [],
            )
        )
    written = build_batch(rows, base_offset=100, keep_offsets=True)
    assert [
        (r.offset, r.timestamp_ms, r.key, r.value, list(r.headers)) for r in all_of(opened(written, 100))
    ] == [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in rows]


def test_an_offset_delta_with_a_longer_encoding_is_read() -> None:
    plain = build_batch([Record(0, 1, b"k", b"v")] * 2)
    header = list(BATCH_HEADER.unpack_from(plain))
    # length, attributes, timestamp, offset, key, value, no headers; the second with its offset in two bytes
    body = bytes.fromhex("0e 00 00 00 026b 0276 00") + bytes.fromhex("10 00 00 8200 026b 0276 00")
    found = decode(TP, tuple(header), body)
    assert [(r.offset, r.key, r.value) for r in found] == [(0, b"k", b"v"), (1, b"k", b"v")]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40), st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_an_invalid_batch_is_an_error(body: bytes, last_delta: int, count: int) -> None:
    header = list(BATCH_HEADER.unpack_from(build_batch([Record(0, 1, b"k", b"v")])))
    header[6], header[-1] = last_delta, count
    try:
        found = decode(TP, tuple(header), body)
    except (IndexError, ValueError):
        return
    assert len(found) == count

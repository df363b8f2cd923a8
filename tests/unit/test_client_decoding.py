"""The consumer's decoder gives what the plain one gives, and leaves out what must not be read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client import errors
from ottla.client.core.decoding import PartitionData, last_batch
from ottla.client.core.types import ConsumerRecord, TopicPartition
from ottla.protocol.compression import Codec
from ottla.protocol.messages import FetchResponse
from ottla.protocol.records import (
    ControlType,
    Record,
    TimestampType,
    build_batch,
    build_control_batch,
    decode_records,
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
def test_records_come_as_they_were_written_from_the_offset_asked_for(
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


def test_read_committed_leaves_out_aborted_transactions_and_nothing_else() -> None:
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


def test_what_is_corrupt_is_told_with_its_place_and_not_skipped() -> None:
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

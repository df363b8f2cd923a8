"""Record batches v2: built batches are decoded again, damaged ones refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.batch_rewrites import with_log_append_time
from ottla.protocol.compression import Codec
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import (
    ControlType,
    Record,
    TimestampType,
    build_batch,
    build_control_batch,
    decode_batch,
    decode_keys_and_values,
    decode_records,
    iter_batches,
    last_sequence,
    parse_batch_header,
    parse_control_record,
    verify_crc,
)

maybe_bytes = st.none() | st.binary(max_size=300)
records_strategy = st.lists(
    st.builds(
        Record,
        offset=st.just(0),
        timestamp=st.integers(min_value=-1, max_value=2**62),
        key=maybe_bytes,
        value=maybe_bytes,
        headers=st.lists(st.tuples(st.text(max_size=20), maybe_bytes), max_size=3),
    ),
    min_size=1,
    max_size=20,
)


@given(records=records_strategy, codec=st.sampled_from(Codec), base_offset=st.integers(0, 2**40))
def test_records_survive_a_round_trip(records: list[Record], codec: Codec, base_offset: int) -> None:
    data = build_batch(records, codec=codec, base_offset=base_offset)
    expected = [record._replace(offset=base_offset + at) for at, record in enumerate(records)]
    assert decode_batch(data) == expected
    assert decode_keys_and_values(data) == [(r.offset, r.key, r.value) for r in expected]
    header = parse_batch_header(data)
    assert header.size == len(data)
    assert header.codec is codec
    assert header.record_count == len(records)
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert verify_crc(data, 0, header)


def test_the_header_names_the_producer_and_what_the_batch_is() -> None:
    data = build_batch(
        [Record(0, 5, None, b"a"), Record(0, 4, None, b"b")],
        producer_id=77,
        producer_epoch=3,
        base_sequence=2**31 - 1,
        leader_epoch=9,
        transactional=True,
    )
    header = parse_batch_header(data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 2**31 - 1)
    assert header.last_sequence == 0, "sequences wrap to 0 after the largest"
    assert header.partition_leader_epoch == 9
    assert header.is_transactional
    assert not header.is_control
    assert header.last_offset == 1


def test_offset_and_leader_epoch_may_be_rewritten_without_a_new_checksum() -> None:
    data = bytearray(build_batch([Record(0, 5, None, b"a")]))
    data[0:8] = (1234).to_bytes(8, "big")
    data[12:16] = (7).to_bytes(4, "big")
    header = parse_batch_header(data)
    assert verify_crc(data, 0, header)
    assert [record.offset for record in decode_batch(data)] == [1234]


def test_a_flipped_bit_after_the_checksum_is_detected() -> None:
    data = build_batch([Record(0, 5, b"k", b"v")])
    for at in range(21, len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        assert not verify_crc(damaged, 0, parse_batch_header(damaged)), at


def test_gaps_survive_when_offsets_are_kept() -> None:
    kept = [Record(10, 1, b"a", b"1"), Record(14, 1, b"b", b"2")]
    data = build_batch(kept, base_offset=10, keep_offsets=True)
    assert [record.offset for record in decode_batch(data)] == [10, 14]
    assert parse_batch_header(data).next_offset == 15


def test_a_partial_batch_at_the_end_is_left_out() -> None:
    first = build_batch([Record(0, 1, None, b"a")])
    second = build_batch([Record(0, 1, None, b"b")], base_offset=1)
    both = first + second
    for cut in range(len(first), len(both)):
        assert [pos for pos, _ in iter_batches(both[:cut])] == [0]
    assert [record.value for record in decode_records(both)] == [b"a", b"b"]


def test_log_append_time_overrides_the_records_timestamps() -> None:
    data = build_batch([Record(0, 5, None, b"a"), Record(0, 9, None, b"b")], codec=Codec.GZIP)
    stamped = with_log_append_time(data, 1000)
    header = parse_batch_header(stamped)
    assert verify_crc(stamped, 0, header)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert [record.timestamp for record in decode_batch(stamped)] == [1000, 1000]


def test_a_control_batch_has_the_outcome_of_the_transaction() -> None:
    data = build_control_batch(
        ControlType.COMMIT, producer_id=4, producer_epoch=1, coordinator_epoch=12, timestamp=7
    )
    header = parse_batch_header(data)
    assert header.is_control
    assert header.is_transactional
    assert parse_control_record(decode_batch(data)[0]) == (ControlType.COMMIT, 12)


@given(st.binary(max_size=200))
def test_invalid_bytes_raise_only_the_codecs_error(body: bytes) -> None:
    data = bytearray(build_batch([Record(0, 5, b"k", b"v" * 40)]))
    data[61:] = body
    data[8:12] = (49 + len(body)).to_bytes(4, "big")
    refusal = None
    try:
        decode_batch(data)
    except KafkaError as error:
        refusal = error.code
    assert refusal in (None, ErrorCode.CORRUPT_MESSAGE)


@pytest.mark.parametrize("count", [-1, 2, 1000])
def test_a_wrong_record_count_is_refused(count: int) -> None:
    data = bytearray(build_batch([Record(0, 5, b"k", b"v")]))
    data[57:61] = count.to_bytes(4, "big", signed=True)
    with pytest.raises(KafkaError) as caught:
        decode_batch(data)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("base", "delta", "expected"), [(0, 4, 4), (2**31 - 1, 1, 0), (2**31 - 3, 5, 2), (-1, 3, -1)]
)
def test_sequences_wrap(base: int, delta: int, expected: int) -> None:
    assert last_sequence(base, delta) == expected

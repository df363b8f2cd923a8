"""Record batches of ours read by kafka-python, and kafka-python's by ours.

kafka-python compresses with gzip alone unless further packages are installed; the other codecs are
judged by Kafka itself in test_records_java.
"""

from __future__ import annotations

import pytest
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from ottla.protocol.compression import Codec
from ottla.protocol.legacy_records import decode_message_set
from ottla.protocol.records import Record, build_batch, decode_batch, parse_batch_header, verify_crc

RECORDS = [
    Record(
        number,
        1_700_000_000_000 + number * 37 % 100,
        b"key %d" % number if number % 2 else None,
        b"value" * number if number % 5 else None,
        [("h", b"x"), ("h", None)] if number % 3 else [],
    )
    for number in range(200)
]
CODECS = [Codec.NONE, Codec.GZIP]


@pytest.mark.parametrize("codec", CODECS)
def test_ottlas_batches_are_read(codec: Codec) -> None:
    data = build_batch(
        RECORDS, codec=codec, producer_id=5, producer_epoch=1, base_sequence=10, transactional=True
    )
    batch = DefaultRecordBatch(data)
    assert batch.validate_crc()
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (5, 1, 10)
    assert batch.is_transactional
    assert batch.compression_type == codec
    found = [Record(r.offset, r.timestamp, r.key, r.value, r.headers) for r in batch]
    assert found == RECORDS


@pytest.mark.parametrize("codec", CODECS)
def test_batches_of_kafka_python_are_read(codec: Codec) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=int(codec),
        is_transactional=0,
        producer_id=5,
        producer_epoch=1,
        base_sequence=10,
        batch_size=1 << 20,
    )
    for offset, timestamp, key, value, headers in RECORDS:
        builder.append(offset, timestamp, key, value, list(headers))
    data = bytes(builder.build())
    header = parse_batch_header(data)
    assert verify_crc(data, 0, header)
    assert (header.codec, header.producer_id, header.base_sequence) == (codec, 5, 10)
    assert decode_batch(data) == RECORDS


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_message_sets_of_kafka_python_are_converted(magic: int, codec: Codec) -> None:
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=int(codec), batch_size=1 << 20)
    for offset, timestamp, key, value, _ in RECORDS:
        builder.append(offset, timestamp, key, value)
    data = bytes(builder.build())
    expected = [(r.offset, r.timestamp if magic else -1, r.key, r.value) for r in RECORDS]
    # kafka-python leaves the wrapper's offset at 0, which gives its records negative ones: a broker
    # numbers them anew anyhow.
    assert [tuple(record)[1:4] for record in decode_message_set(data)] == [each[1:] for each in expected]

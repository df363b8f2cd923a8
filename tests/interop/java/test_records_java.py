"""Record batches of ours read by Kafka's own code, and Kafka's by ours: every format, every codec."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.protocol.compression import Codec
from ottla.protocol.legacy_records import codec_of_message, decode_message_set, iter_messages
from ottla.protocol.records import (
    ControlType,
    Record,
    build_batch,
    build_control_batch,
    decode_batch,
    parse_batch_header,
    verify_crc,
)
from tests.judges.kafka_tools import run_program
from tests.oracles import needs_kafka_jars

RECORDS = [
    Record(
        number,
        1000 + number,
        None if number % 3 == 0 else b"key %d" % number,
        None if number % 7 == 0 else b"value " + b"v" * number + b" %d" % number,
        [("number", bytes([number % 256])), ("null", None)],
    )
    for number in range(300)
]


def kafka(*arguments: str) -> str:
    needs_kafka_jars()
    return run_program("RecordBatches", *arguments)


@pytest.fixture(scope="module")
def written_by_kafka(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("kafka")
    kafka("write", str(directory))
    return directory


@pytest.mark.parametrize("codec", Codec)
def test_batches_of_kafka_are_read(written_by_kafka: Path, codec: Codec) -> None:
    data = (written_by_kafka / f"v2-{codec.name.lower()}.bin").read_bytes()
    header = parse_batch_header(data)
    assert verify_crc(data, 0, header)
    assert header.codec is codec
    assert decode_batch(data) == RECORDS


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_message_sets_of_old_clients_are_read_and_converted(
    written_by_kafka: Path, magic: int, codec: Codec
) -> None:
    data = (written_by_kafka / f"v{magic}-{codec.name.lower()}.bin").read_bytes()
    expected = [
        record._replace(headers=[], timestamp=record.timestamp if magic else -1) for record in RECORDS
    ]
    assert [record._replace(headers=[]) for record in decode_message_set(data)] == expected
    assert {codec_of_message(message) for message in iter_messages(data)} == {codec}


def test_kafka_reads_ottlas_batches(tmp_path: Path) -> None:
    written = {
        codec.name.lower(): build_batch(
            RECORDS,
            base_offset=70,
            codec=codec,
            producer_id=9,
            producer_epoch=2,
            base_sequence=2**31 - 10,
            leader_epoch=6,
            transactional=True,
        )
        for codec in Codec
    }
    written["control"] = build_control_batch(
        ControlType.ABORT, producer_id=9, producer_epoch=2, coordinator_epoch=3, timestamp=5, base_offset=8
    )
    for name, data in written.items():
        (tmp_path / name).write_bytes(data)
    output = kafka("read", *(str(tmp_path / name) for name in written)).splitlines()
    expected = []
    for codec in Codec:
        expected.append(f"batch {codec.name.lower()} 70 369 1299 9 2 {2**31 - 10} 289 true false 6")
        expected += [line_of(record._replace(offset=70 + record.offset)) for record in RECORDS]
    expected.append("batch none 8 8 5 9 2 -1 -1 true true -1")
    expected.append("record 8 5 x00000000 x000000000003")
    assert output == expected


def line_of(record: Record) -> str:
    headers = "".join(f" {name}={hexadecimal(value)}" for name, value in record.headers)
    return (
        f"record {record.offset} {record.timestamp} "
        f"{hexadecimal(record.key)} {hexadecimal(record.value)}{headers}"
    )


def hexadecimal(data: bytes | None) -> str:
    return "null" if data is None else "x" + data.hex()

"""`ottla log` on files that a broker would not complain about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ottla.cli.main import main
from ottla.protocol.legacy_records import encode_message_set
from ottla.protocol.records import Record, build_batch
from ottla.storage.log_config import LogConfig
from tests.worlds.storage_logs import NOW_MS, append, open_log


def test_a_timestamp_out_of_range_is_shown_as_a_number(tmp_path: Path) -> None:
    microseconds = 1_700_000_000_000_000
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(build_batch([Record(0, microseconds, None, b"v")]))
    described = CliRunner().invoke(main, ["log", "describe", str(tmp_path), "-o", "json"])
    assert described.exit_code == 0, described.output
    assert json.loads(described.stdout)[0]["last_time"] == str(microseconds)
    dumped = CliRunner().invoke(main, ["log", "dump", str(segment), "--records", "-o", "json"])
    assert dumped.exit_code == 0, dumped.output
    assert json.loads(dumped.stdout)[0]["batch"][0]["time"] == str(microseconds)


def dump(*words: object) -> Any:
    result = CliRunner().invoke(main, ["log", "dump", "-o", "json", *map(str, words)])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_checkpoint_files_are_read(tmp_path: Path) -> None:
    """Those of segments are compared with Kafka's tool elsewhere."""
    files = {
        "leader-epoch-checkpoint": (
            "0\n2\n0 0\n3 17\n",
            [{"epoch": 0, "start_offset": 0}, {"epoch": 3, "start_offset": 17}],
        ),
        "partition.metadata": (
            "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ",
            [{"version": 0, "topic_id": "AAAAAAAAAAAAAAAAAAAAAQ"}],
        ),
        "meta.properties": (
            "#\nversion=0\nbroker.id=3\n",
            [{"name": "version", "value": "0"}, {"name": "broker.id", "value": "3"}],
        ),
        ".kafka_cleanshutdown": ('{"version":0}', [{"content": '{"version":0}'}]),
        **{
            f"{name}-offset-checkpoint": ("0\n1\na-b 7 5\n", [{"topic": "a-b", "partition": 7, "offset": 5}])
            for name in ("recovery-point", "replication", "cleaner")
        },
        "log-start-offset-checkpoint": ("0\n0\n", []),
    }
    for name, (text, rows) in files.items():
        (tmp_path / name).write_text(text)
        assert dump(tmp_path / name) == rows, name
    everything = dump(*(tmp_path / name for name in files))
    assert everything == {str(tmp_path / name): rows for name, (_, rows) in files.items()}


@pytest.mark.parametrize(
    ("name", "content", "exit_code", "message"),
    [
        ("leader-epoch-checkpoint", b"0\n1\nx\n", 1, "leader-epoch-checkpoint: not enough values"),
        ("00000000000000000005.snapshot", b"\0\1abc", 1, "5.snapshot: 5 bytes are too few"),
        ("00000000000000000005.index", b"abc", 1, "5.index: 3 bytes are not whole entries of 8"),
        ("00000000000000000005.txnindex", b"abc", 1, "5.txnindex: 3 bytes are not whole entries of 34"),
        ("partition.metadata", b"version: 7\n", 1, "partition.metadata is malformed"),
        ("notes.txt", b"", 2, "notes.txt is not a file of a broker: *.log, *.index"),
        ("five.index", b"", 1, "five.index does not begin with an offset"),
    ],
)
def test_an_invalid_file_is_named(
    tmp_path: Path, name: str, content: bytes, exit_code: int, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    result = CliRunner().invoke(main, ["log", "dump", str(tmp_path / name)])
    assert (result.exit_code, "Traceback" in result.output) == (exit_code, False)
    assert message in result.output


def backwards(data: bytes) -> str:
    return data[::-1].decode()


def test_keys_and_values_are_decoded_by_name_or_by_a_function(tmp_path: Path) -> None:
    records = [Record(0, 1, (7).to_bytes(8, "big"), b"abc"), Record(1, 1, b"xy", None)]
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(build_batch(records))
    options = ("--key-decoder-class", "org.apache.kafka.tools.api.LongDecoder", "--skip-record-metadata")
    (batch,) = dump(segment, *options, "--value-decoder-class", f"{__name__}:backwards")
    assert batch["batch"] == [
        {"offset": 0, "key": 7, "value": "cba"},
        {"offset": 1, "key": "<cannot be decoded: 2 bytes, and not 8>", "value": None},
    ]
    (batch,) = dump(segment, "--value-decoder-class", "default", "--skip-record-metadata")
    assert [record["value"] for record in batch["batch"]] == ["YWJj", None]
    (batch,) = dump(segment, "--deep-iteration")
    assert [("key" in record, record["key_size"]) for record in batch["batch"]] == [(False, 8), (False, 2)]
    result = CliRunner().invoke(main, ["log", "dump", str(segment), "--key-decoder-class", "float"])
    assert result.exit_code == 2
    assert (
        "float is not a decoder: must be one of string, integer, long, default, or module:function"
        in result.output
    )


def test_records_that_no_coordinator_wrote_do_not_end_a_dump(tmp_path: Path) -> None:
    segment = tmp_path / "00000000000000000000.log"
    keys = [None, b"x", b"\0\1\0\5abc", b"\0\x63abc"]
    segment.write_bytes(build_batch([Record(at, 1, key, b"v") for at, key in enumerate(keys)]))
    for option in ("--offsets-decoder", "--transaction-log-decoder"):
        (batch,) = dump(segment, option)
        shown = [record["key"] for record in batch["batch"]]
        assert shown[0] == "<no key>"
        assert shown[1].startswith("<cannot be decoded: ")
        assert shown[3] == "unknown record type 99"


def test_no_more_batches_than_asked_for_are_read(tmp_path: Path) -> None:
    segment = tmp_path / "00000000000000000000.log"
    one, two = (build_batch([Record(0, 1, None, b"v")], base_offset=offset) for offset in (0, 1))
    segment.write_bytes(one + two)
    assert [row["first_offset"] for row in dump(segment)] == [0, 1]
    deleted = segment.with_name(f"{segment.name}.deleted")
    deleted.write_bytes(one)
    assert dump(deleted) == dump(segment)[:1]
    assert [row["first_offset"] for row in dump(segment, "--max-bytes", len(one) + 5)] == [0]


def test_messages_of_older_formats_are_shown(tmp_path: Path) -> None:
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(encode_message_set([Record(4, 1000, b"k", b"v")], magic=1))
    rows = dump(segment, "--print-data-log")
    assert rows == [
        {"offset": 4, "magic": 1, "time": "1970-01-01T00:00:01.000+00:00", "key": "k", "value": "v"}
    ]


def test_an_index_is_compared_with_its_log(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(index_interval_bytes=100))
    for number in range(20):
        append(log, f"value {number}", timestamp=NOW_MS + number)
    log.close(NOW_MS)
    index = tmp_path / "events-0" / "00000000000000000000.index"
    times = index.with_suffix(".timeindex")

    def verified(option: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["log", "dump", option, str(index), str(times)])
        return result.exit_code, result.output

    passed = f"{index}: passed\n{times}: passed\n"
    assert verified("--verify-index-only") == verified("--index-sanity-check") == (0, passed)
    data = bytearray(index.read_bytes())
    data[3] ^= 8
    index.write_bytes(data)
    code, output = verified("--verify-index-only")
    assert code == 1
    assert output.startswith(f"{index}: entry 0: offset ")
    assert output.endswith(f"\n{times}: passed\n")
    index.write_bytes(data[:-1])
    code, output = verified("--index-sanity-check")
    assert (code, output) == (
        1,
        f"{index}: {len(data) - 1} bytes are not whole entries of 8\n{times}: passed\n",
    )

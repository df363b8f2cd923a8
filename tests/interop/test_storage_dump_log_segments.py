"""Log files of ours read by Kafka's DumpLogSegments: batches, indexes, and how they agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from judges import needs_kafka_jars

from bench.apache_kafka import run_tool
from ottla.protocol.compression import Codec
from ottla.protocol.records import ControlType, Record, build_batch, build_control_batch
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=8_000, index_interval_bytes=512)
COMPLAINTS = ("Mismatches in", "Found timestamp mismatch", "are not found in the log", "out of order")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A leader's log and a follower's copy of it: all codecs, transactions, times out of order."""
    root = tmp_path_factory.mktemp("logs")
    leader = Log.open(root / "leader-0", CONFIG, clean_shutdown=True, now_ms=NOW_MS)
    for number in range(200):
        record = Record(0, NOW_MS + number + (number * 37) % 50, b"k", b"v" * (number % 90))
        batch = build_batch(
            [record] * (1 + number % 4),
            codec=Codec(number % 5),
            producer_id=7,
            producer_epoch=0,
            base_sequence=leader.log_end_offset - (1 if leader.log_end_offset > 100 else 0),
            transactional=leader.log_end_offset <= 100,
        )
        was = leader.log_end_offset
        leader.append_as_leader(batch, leader_epoch=number // 50, now_ms=NOW_MS)
        if was <= 100 < leader.log_end_offset:
            marker = build_control_batch(
                ControlType.COMMIT, producer_id=7, producer_epoch=0, coordinator_epoch=1, timestamp=NOW_MS
            )
            leader.append_as_leader(marker, leader_epoch=number // 50, now_ms=NOW_MS, client=False)
    follower = Log.open(root / "follower-0", CONFIG, clean_shutdown=True, now_ms=NOW_MS)
    while follower.log_end_offset < leader.log_end_offset:
        fetched = leader.read(follower.log_end_offset, 7000, up_to=leader.log_end_offset).to_bytes()
        follower.append_as_follower(fetched, now_ms=NOW_MS)
    for log in (leader, follower):
        log.close(NOW_MS)
    return root


def dump(*options: str, files: list[Path]) -> str:
    needs_kafka_jars()
    names = ",".join(str(path) for path in files)
    done = run_tool("kafka.tools.DumpLogSegments", [*options, "--files", names])
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", ["leader-0", "follower-0"])
def test_batches_are_valid_to_their_last_record(directory: Path, name: str) -> None:
    files = sorted((directory / name).glob("*.log"))
    assert len(files) > 2
    output = dump("--deep-iteration", "--print-data-log", files=files)
    offsets = [int(offset) for offset in re.findall(r"^\| offset: (\d+)", output, re.MULTILINE)]
    assert offsets == list(range(len(offsets)))
    assert len(offsets) > 400
    validity = re.findall(r"isvalid: (\w+)", output)
    assert validity
    assert set(validity) == {"true"}
    assert {"NONE", "GZIP", "SNAPPY", "LZ4", "ZSTD"} == {
        found.upper() for found in re.findall(r"compresscodec: (\w+)", output)
    }
    assert "endTxnMarker: COMMIT coordinatorEpoch: 1" in output


@pytest.mark.parametrize("name", ["leader-0", "follower-0"])
def test_indexes_point_where_they_should(directory: Path, name: str) -> None:
    files = sorted([*(directory / name).glob("*.index"), *(directory / name).glob("*.timeindex")])
    assert len(files) > 4
    output = dump("--verify-index-only", files=files)
    for complaint in COMPLAINTS:
        assert complaint not in output, output
    full = dump(files=files)
    assert len(re.findall(r"^offset: \d+ position: \d+", full, re.MULTILINE)) > 20
    assert len(re.findall(r"^timestamp: \d+ offset: \d+", full, re.MULTILINE)) > 5


def test_the_judge_notices_an_index_that_is_wrong(directory: Path, tmp_path: Path) -> None:
    log = directory / "leader-0" / "00000000000000000000.log"
    (tmp_path / log.name).write_bytes(log.read_bytes())
    index = bytearray(log.with_suffix(".index").read_bytes())
    index[3] ^= 1
    wrong = tmp_path / log.with_suffix(".index").name
    wrong.write_bytes(index)
    assert "Mismatches in" in dump("--verify-index-only", files=[wrong])

"""Log files of ours read by Kafka's DumpLogSegments: batches, indexes, snapshots, and how they agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.apache_kafka import run_tool
from ottla.protocol.compression import Codec
from ottla.protocol.records import ControlType, Record, build_batch, build_control_batch
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from tests.oracles import needs_kafka_jars

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=8_000, index_interval_bytes=512)
COMPLAINTS = ("Mismatches in", "Found timestamp mismatch", "are not found in the log", "out of order")


def next_sequence(log: Log, producer_id: int) -> int:
    entry = log.producers.get(producer_id)
    return 0 if entry is None else entry.last_sequence + 1


def abort(log: Log, leader_epoch: int) -> None:
    """A transaction of producer 9, begun and aborted."""
    data = build_batch(
        [Record(0, NOW_MS, b"k", b"aborted")],
        producer_id=9,
        producer_epoch=0,
        base_sequence=next_sequence(log, 9),
        transactional=True,
    )
    log.append_as_leader(data, leader_epoch=leader_epoch, now_ms=NOW_MS)
    marker = build_control_batch(
        ControlType.ABORT, producer_id=9, producer_epoch=0, coordinator_epoch=3, timestamp=NOW_MS
    )
    log.append_as_leader(marker, leader_epoch=leader_epoch, now_ms=NOW_MS, client=False)


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
            base_sequence=next_sequence(leader, 7),
            transactional=number < 45,
        )
        leader.append_as_leader(batch, leader_epoch=number // 50, now_ms=NOW_MS)
        if number == 44:
            marker = build_control_batch(
                ControlType.COMMIT, producer_id=7, producer_epoch=0, coordinator_epoch=1, timestamp=NOW_MS
            )
            leader.append_as_leader(marker, leader_epoch=number // 50, now_ms=NOW_MS, client=False)
        if number % 40 == 39:
            abort(leader, number // 50)
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
    assert output.count("endTxnMarker: ABORT coordinatorEpoch: 3") == 5


def test_indexes_point_to_their_batches(directory: Path) -> None:
    files = sorted([*directory.glob("*/*.index"), *directory.glob("*/*.timeindex")])
    assert len(files) > 8
    output = dump("--verify-index-only", files=files)
    for complaint in COMPLAINTS:
        assert complaint not in output, output
    full = dump(files=files)
    assert len(re.findall(r"^offset: \d+ position: \d+", full, re.MULTILINE)) > 40
    assert len(re.findall(r"^timestamp: \d+ offset: \d+", full, re.MULTILINE)) > 10


def test_indexes_are_consistent(directory: Path) -> None:
    indexes = [*directory.glob("*/*.index"), *directory.glob("*/*.timeindex")]
    files = [path for path in indexes if path.stat().st_size]
    output = dump("--index-sanity-check", files=files)
    assert output.count("passed sanity check") == len(files)


@pytest.mark.parametrize("name", ["leader-0", "follower-0"])
def test_producer_state_equals_that_of_kafkas_tool(directory: Path, name: str) -> None:
    """Aborted transactions by segment, and the producers where each segment begins and at the end."""
    indexes = sorted((directory / name).glob("*.txnindex"))
    snapshots = sorted((directory / name).glob("*.snapshot"))
    assert len(indexes) > 2
    assert len(snapshots) == len(list((directory / name).glob("*.log")))
    output = dump(files=[*indexes, *snapshots])
    log = Log.open(directory / name, CONFIG, clean_shutdown=True, now_ms=NOW_MS)
    aborted = re.findall(
        r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)", output
    )
    known = log.collect_aborted_transactions(0, log.log_end_offset)
    assert [tuple(map(int, fields)) for fields in aborted] == [tuple(each) for each in known]
    assert len(known) == 5
    newest = output[output.index(snapshots[-1].name) :]
    for producer_id in (7, 9):
        entry = log.producers.get(producer_id)
        assert entry is not None
        assert (
            f"producerId: {producer_id} producerEpoch: 0 coordinatorEpoch: {entry.coordinator_epoch} "
            f"currentTxnFirstOffset: OptionalLong.empty lastTimestamp: {entry.last_timestamp} "
        ) in newest
        assert f"lastSequence: {entry.last_sequence} lastOffset: {entry.batches[-1].last_offset} " in newest


def test_the_oracle_detects_a_wrong_index(directory: Path, tmp_path: Path) -> None:
    log = directory / "leader-0" / "00000000000000000000.log"
    (tmp_path / log.name).write_bytes(log.read_bytes())
    index = bytearray(log.with_suffix(".index").read_bytes())
    index[3] ^= 1
    wrong = tmp_path / log.with_suffix(".index").name
    wrong.write_bytes(index)
    assert "Mismatches in" in dump("--verify-index-only", files=[wrong])

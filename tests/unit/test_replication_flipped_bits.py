"""Bits that flip on a disk: a damaged batch is not replicated, not returned, and fetched again."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage.log_config import LogConfig
from tests.worlds.replication_cluster import TOPIC, Cluster, values_of
from tests.worlds.storage_logs import append, open_log

IN_A_VALUE = 90
LENGTH = 8


def flip(file: Path, position: int, mask: int = 0x40) -> None:
    with file.open("r+b") as opened:
        opened.seek(position)
        (byte,) = opened.read(1)
        opened.seek(position)
        opened.write(bytes([byte ^ mask]))


def log_of(path: Path, broker: int) -> Path:
    return path / f"{broker}" / f"{TOPIC}-0" / "00000000000000000000.log"


def test_a_follower_does_not_append_batches_that_are_damaged_on_the_leader(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, replicas=2)
    cluster.produce("a")
    cluster.replicate()
    size = log_of(tmp_path, 1).stat().st_size
    cluster.produce("b" * 50)
    flip(log_of(tmp_path, 1), size + IN_A_VALUE)
    for _ in range(3):
        with pytest.raises(KafkaError) as refused:
            cluster.fetch(2)
        assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    assert values_of(cluster.nodes[2]) == ["a"]
    assert cluster.leader.high_watermark == 1, "it was never committed"
    flip(log_of(tmp_path, 1), size + IN_A_VALUE)
    cluster.replicate()
    assert values_of(cluster.nodes[2]) == ["a", "b" * 50]


def test_a_follower_with_a_damaged_log_fetches_the_rest_again(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, replicas=2)
    sizes = []
    for value in "abcd":
        cluster.produce(value * 50)
        cluster.replicate()
        sizes.append(log_of(tmp_path, 2).stat().st_size)
    cluster.kill(2)
    flip(log_of(tmp_path, 2), sizes[1] + IN_A_VALUE)
    damaged = cluster.start(2)
    assert values_of(damaged) == ["a" * 50, "b" * 50]
    cluster.elect(1, isr=[1])
    cluster.replicate()
    assert values_of(damaged) == values_of(cluster.leader)
    assert log_of(tmp_path, 1).read_bytes() == log_of(tmp_path, 2).read_bytes()


@pytest.mark.parametrize("mask", [0x40, 0x80], ids=["huge", "negative"])
@pytest.mark.parametrize("max_bytes", [10, 1 << 20])
def test_a_read_never_announces_more_bytes_than_exist(tmp_path: Path, mask: int, max_bytes: int) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=400))
    for n in range(20):
        append(log, f"v{n}")
    old = min(log.directory.glob("*.log"))
    second = old.stat().st_size // 5
    assert second * 5 == old.stat().st_size, "five batches of the same size"
    flip(old, second + LENGTH, mask)
    assert len(log.read(0, 1 << 20, up_to=20).to_bytes()) == old.stat().st_size
    for offset in range(1, 5):
        if mask == 0x80:
            with pytest.raises(KafkaError) as refused:
                log.read(offset, max_bytes, up_to=20)
            assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
        else:
            # As Kafka: there is no whole batch any more, the next segment has one.
            read = log.read(offset, max_bytes, up_to=20)
            assert len(read.to_bytes()) == read.size > 0
    assert log.read(5, 1 << 20, up_to=20).size, "the next segment is whole"

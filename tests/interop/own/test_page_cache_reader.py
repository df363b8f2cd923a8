"""A broker whose log is not in memory: everything is served, and its loop never waits for the disk.

The disk is `Cold`: it knows which pages have been read, and counts the loop's reads of others, each of which
would wait. The same is done once with a broker that takes all for warm: that is how often the loop would wait
without all this. The kernel's own answers about its page cache are test_storage_page_cache's.
"""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from ottla.metadata.config import BrokerConfig
from ottla.metadata.memory import MemoryStore, MemoryTree
from ottla.ports.files import OsFiles
from ottla.protocol.messages import (
    CreateTopicsRequest,
    FetchRequest,
    ListOffsetsRequest,
    ProduceRequest,
)
from ottla.protocol.records import Record, build_batch, iter_batches
from ottla.server.assembly.broker import Broker, new_event_loop
from ottla.server.logs.page_cache_reader import MISSES_MAX
from ottla.wire.connection import BrokerConnection

MIB, AROUND = 1 << 20, 1 << 17
BATCHES, RECORDS = 400, 60
TOPIC = "t"
pytestmark = pytest.mark.timeout(420)


class Cold:
    """A disk of which nothing is in memory but what has been read since the last `evict`, page by page."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._read: set[tuple[int, int]] = set()
        self._loop = threading.get_ident()
        self.waits = 0
        """Reads of the loop's thread that found a page missing."""
        self.descriptors_max = 0
        for name in ("pread", "sendfile", "try_pread", "is_resident", "load", "load_ahead"):
            patch.setattr(OsFiles, name, staticmethod(getattr(self, f"_{name}")))

    def evict(self) -> None:
        self._read.clear()

    def _pages(self, fd: int, position: int, length: int) -> set[tuple[int, int]]:
        inode = os.fstat(fd).st_ino
        return {(inode, page) for page in range(position >> 12, ((position + length - 1) >> 12) + 1)}

    def _is_resident(self, fd: int, position: int, length: int, *, exact: bool = False) -> bool:
        return self._pages(fd, position, length) <= self._read

    def _wait_for(self, fd: int, position: int, length: int) -> None:
        pages = self._pages(fd, position, length)
        if threading.get_ident() == self._loop and not pages <= self._read:
            self.waits += 1
        self._read |= pages

    def _pread(self, fd: int, length: int, position: int) -> bytes:
        self._wait_for(fd, position, length)
        return os.pread(fd, length, position)

    def _sendfile(self, out_fd: int, in_fd: int, position: int, count: int) -> int:
        self._wait_for(in_fd, position, count)
        return os.sendfile(out_fd, in_fd, position, count)

    def _try_pread(self, fd: int, length: int, position: int) -> bytes | None:
        return self._pread(fd, length, position) if self._is_resident(fd, position, length) else None

    def _load(self, fd: int, position: int, length: int) -> None:
        self.descriptors_max = max(self.descriptors_max, open_descriptors())
        # As Linux, which reads 128 KiB around a missing page; by pages, lookups would exceed ATTEMPTS_MAX.
        first, end = position & -AROUND, (position + length + AROUND - 1) & -AROUND
        self._read |= self._pages(fd, first, end - first)

    def _load_ahead(self, fd: int, position: int, length: int) -> None:
        """The kernel may have forgotten it before it is used."""


def take_all_for_warm(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OsFiles, "is_resident", staticmethod(lambda *_, **__: True))
    patch.setattr(OsFiles, "try_pread", OsFiles.pread)


@pytest.fixture
def run() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        yield runner


async def produce(client: BrokerConnection, count: int, partition: int = 0) -> None:
    for number in range(count):
        records = [
            Record(i, 1_000_000 + number * RECORDS + i, None, os.urandom(1000)) for i in range(RECORDS)
        ]
        data = ProduceRequest.PartitionProduceData(index=partition, records=build_batch(records))
        topic = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[data])
        answer = await client.request(ProduceRequest(acks=1, timeout_ms=60_000, topic_data=[topic]))
        assert answer.responses[0].partition_responses[0].error_code == 0


async def fetch(client: BrokerConnection, offset: int, max_bytes: int = MIB) -> bytes:
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    topic = FetchRequest.FetchTopic(topic=TOPIC, partitions=[partition])
    asked = FetchRequest(replica_id=-1, max_wait_ms=500, min_bytes=1, max_bytes=50 * MIB, topics=[topic])
    (partition_answer,) = (await client.request(asked, version=12)).responses[0].partitions
    assert partition_answer.error_code == 0
    return bytes(partition_answer.records or b"")


async def offset_at(client: BrokerConnection, timestamp: int) -> int:
    (offset,) = await offsets_at(client, timestamp, 1)
    return offset


async def offsets_at(client: BrokerConnection, timestamp: int, partitions: int) -> list[int]:
    asked = [
        ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
        for index in range(partitions)
    ]
    topic = ListOffsetsRequest.ListOffsetsTopic(name=TOPIC, partitions=asked)
    answer = await client.request(ListOffsetsRequest(replica_id=-1, topics=[topic]))
    return [int(found.offset) for found in answer.topics[0].partitions]


@asynccontextmanager
async def running(
    settings: Mapping[str, str], tree: MemoryTree, timeout_s: float = 60
) -> AsyncIterator[tuple[Broker, BrokerConnection]]:
    broker = Broker(BrokerConfig.from_properties(settings), store=MemoryStore(tree))
    await broker.start()
    try:
        with closing(
            await BrokerConnection.open(
                "127.0.0.1", broker.endpoints[0].port, client_id="test", timeout_s=timeout_s
            )
        ) as client:
            yield broker, client
    finally:
        await broker.stop()


def test_a_log_outside_the_page_cache_is_served_without_blocking_the_event_loop(
    run: asyncio.Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "broker.id": "0",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(tmp_path),
        "log.segment.bytes": str(8 * MIB),
    }
    tree = MemoryTree()

    async def write() -> None:
        async with running(settings, tree) as (_, client):
            topic = CreateTopicsRequest.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
            await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
            await produce(client, BATCHES)

    async def read(cold: Cold) -> tuple[int, int]:
        """How often threads read, and the loop waited."""
        # A broker that has just come up remembers nothing of what it wrote, and has read no index.
        async with running(settings, tree) as (broker, client):
            cold.waits = 0
            for _ in range(3):
                cold.evict()
                offset, fetched = 0, 0
                while offset < BATCHES * RECORDS:
                    data = await fetch(client, offset)
                    fetched += len(data)
                    offset = max(header.next_offset for _, header in iter_batches(data))
                assert fetched >= BATCHES * RECORDS * 1000
                for number in (17, 9001, 20_000):
                    cold.evict()
                    assert await offset_at(client, 1_000_000 + number) == number
                    cold.evict()
                    small = await fetch(client, number, max_bytes=1)
                    first = next(header for _, header in iter_batches(small))
                    assert first.base_offset <= number < first.next_offset
            waits = cold.waits
        return broker.replication.page_cache_reader.loads, waits

    run.run(write())
    with monkeypatch.context() as patch:
        cold = Cold(patch)
        take_all_for_warm(patch)
        loads, waits = run.run(read(cold))
        assert loads == 0
        assert waits > 50
    with monkeypatch.context() as patch:
        loads, waits = run.run(read(Cold(patch)))
    assert loads > 50
    assert waits == 0


def test_offsets_of_many_cold_partitions_are_looked_up_together(
    run: asyncio.Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"broker.id": "0", "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
    partitions = 24

    async def scenario() -> None:
        async with running(settings, MemoryTree()) as (broker, client):
            topic = CreateTopicsRequest.CreatableTopic(
                name=TOPIC, num_partitions=partitions, replication_factor=1
            )
            await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
            for partition in range(partitions):
                await produce(client, 20, partition)
            cold, before = Cold(monkeypatch), broker.replication.page_cache_reader.loads
            assert await offsets_at(client, 1_000_700, partitions) == [700] * partitions
            assert broker.replication.page_cache_reader.loads > before
            assert cold.waits == 0

    run.run(scenario())


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        prefix="ottla-cold-", dir=shared if os.access(shared, os.W_OK) else tmp_path
    ) as directory:
        yield Path(directory)


def test_reads_of_many_uncached_partitions_take_few_descriptors(
    run: asyncio.Runner, in_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"broker.id": "0", "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(in_memory)}
    partitions = 3 * MISSES_MAX
    tree = MemoryTree()

    async def scenario() -> None:
        async with running(settings, tree, timeout_s=120) as (broker, client):
            topic = CreateTopicsRequest.CreatableTopic(
                name=TOPIC, num_partitions=partitions, replication_factor=1
            )
            await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), timeout_s=120)
            batch = build_batch([Record(0, 1_000, None, b"v")])
            produced = [
                ProduceRequest.PartitionProduceData(index=index, records=batch) for index in range(partitions)
            ]
            data = [ProduceRequest.TopicProduceData(name=TOPIC, partition_data=produced)]
            await client.request(ProduceRequest(acks=1, timeout_ms=60_000, topic_data=data), timeout_s=120)
        async with running(settings, tree, timeout_s=120) as (broker, client):
            async with asyncio.timeout(60):
                while sum(each.is_leader for each in broker.replication.replicas.partitions()) < partitions:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            cold = Cold(monkeypatch)
            for each in broker.replication.replicas.partitions():
                each.log.segments[-1].slice(0, 0)  # opens its file, which stays so
            gc.collect()  # what is left of the former broker
            held = open_descriptors()
            asked = FetchRequest(
                replica_id=-1,
                max_wait_ms=500,
                min_bytes=1,
                max_bytes=50 * MIB,
                topics=[
                    FetchRequest.FetchTopic(
                        topic=TOPIC,
                        partitions=[
                            FetchRequest.FetchPartition(partition=index, partition_max_bytes=MIB)
                            for index in range(partitions)
                        ],
                    )
                ],
            )
            (found,) = (await client.request(asked, version=12, timeout_s=120)).responses
            assert {(p.error_code, len(p.records or b"")) for p in found.partitions} == {(0, len(batch))}
            assert len(found.partitions) == partitions
            assert broker.replication.page_cache_reader.loads >= partitions
            cold.evict()
            assert await offsets_at(client, 1_000, partitions) == [0] * partitions
            assert broker.replication.page_cache_reader.loads >= 2 * partitions
            # Those of one attempt may go while the next one's come.
            assert cold.descriptors_max <= held + 2 * MISSES_MAX + 50

    run.run(scenario())

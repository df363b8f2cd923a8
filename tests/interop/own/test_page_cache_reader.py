"""A broker whose log is not in memory: everything is served, and its loop never waits for the disk.

The oracle is the kernel: a thread that waits for a page gives the processor away by itself, which is counted
(ru_nvcsw). A read with RWF_NOWAIT is not counted: what the kernel takes for that, it takes. The log's files
are taken out of the page cache as often as it takes, and the same is done once with a broker that takes all
for warm: that is how often the loop would wait here, without all this.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from ottla.local.processes import wait_until
from ottla.metadata.config import BrokerConfig
from ottla.metadata.memory import MemoryStore, MemoryTree
from ottla.ports.files import OS_FILES, OsFiles
from ottla.protocol.messages import (
    CreateTopicsRequest,
    FetchRequest,
    ListOffsetsRequest,
    ProduceRequest,
)
from ottla.protocol.records import Record, build_batch, iter_batches
from ottla.server.assembly.broker import Broker, new_event_loop
from ottla.server.logs.page_cache_reader import MISSES_MAX
from ottla.storage.nonblocking_reads import blocking_allowed
from ottla.wire.connection import BrokerConnection

MIB = 1 << 20
BATCHES, RECORDS = 400, 60
TOPIC = "t"
pytestmark = pytest.mark.timeout(420)


is_resident: Final = OS_FILES.is_resident


class Waits:
    """How often the loop's thread waited inside the system calls that read files, and may wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = self.waits = 0
        self._thread = threading.get_ident()
        for name in ("pread", "preadv", "sendfile"):
            counted = self._counted(getattr(os, name))
            monkeypatch.setattr(os, name, counted)
            if name != "preadv":
                monkeypatch.setattr(OsFiles, name, staticmethod(counted))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            tries_only = call.__name__ == "preadv" and len(args) > 3
            if tries_only or threading.get_ident() != self._thread:
                return call(*args)
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
            try:
                return call(*args)
            finally:
                self.calls += 1
                self.waits += resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before

        return counted


def take_all_for_warm(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OsFiles, "is_resident", staticmethod(lambda *_, **__: True))
    patch.setattr(OsFiles, "try_pread", staticmethod(lambda *range_: os.pread(*range_)))


@pytest.fixture
def run() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        yield runner


def evict(directory: Path) -> int:
    """Take all files there out of the page cache; how many MiB are gone."""
    gone = 0

    def is_cold() -> bool:
        """What somebody just looks at or writes back stays: once more, then."""
        nonlocal gone
        gone = 0
        for path in directory.iterdir():
            if not path.stat().st_size:
                continue
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                gone += path.stat().st_size * (not is_resident(fd, 0, path.stat().st_size))
            finally:
                os.close(fd)
        return gone >= MIB

    if not wait_until(is_cold, timeout_s=90):
        pytest.skip("this file system is memory")
    return gone >> 20


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

    async def start() -> tuple[Broker, BrokerConnection]:
        broker = Broker(BrokerConfig.from_properties(settings), store=MemoryStore(tree))
        await broker.start()
        return broker, await BrokerConnection.open(
            "127.0.0.1", broker.endpoints[0].port, client_id="test", timeout_s=60
        )

    async def write() -> None:
        broker, client = await start()
        topic = CreateTopicsRequest.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
        await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
        await produce(client, BATCHES)
        client.close()
        await broker.stop()

    async def read(patch: pytest.MonkeyPatch) -> tuple[int, int]:
        # A broker that has just come up remembers nothing of what it wrote, and has read no index.
        broker, client = await start()
        log = tmp_path / f"{TOPIC}-0"
        waits = Waits(patch)
        for _ in range(3):
            evict(log)
            offset, fetched = 0, 0
            while offset < BATCHES * RECORDS:
                data = await fetch(client, offset)
                fetched += len(data)
                offset = max(header.next_offset for _, header in iter_batches(data))
            assert fetched >= BATCHES * RECORDS * 1000
            for number in (17, 9001, 20_000):
                evict(log)
                assert await offset_at(client, 1_000_000 + number) == number
                evict(log)
                small = await fetch(client, number, max_bytes=1)
                first = next(header for _, header in iter_batches(small))
                assert first.base_offset <= number < first.next_offset
        client.close()
        await broker.stop()
        loads = broker.replication.page_cache_reader.loads
        print(f"\n{waits.calls} reads and sends, {loads} by threads, {waits.waits} waits")
        return loads, waits.waits

    run.run(write())
    with monkeypatch.context() as patch:
        take_all_for_warm(patch)
        loads, would_wait = run.run(read(patch))
        assert loads == 0
    for _ in range(5):
        with monkeypatch.context() as patch:
            loads, waited = run.run(read(patch))
        assert loads > 0
        # Some 60 and 1 to 6. Not none: between two probes there may be a hole.
        if waited * 4 <= max(would_wait, 16):
            break
        # Or the kernel, short of memory, takes pages back as soon as they came: once more.
    else:
        pytest.fail(f"{waited} waits, and {would_wait} without all this")


def test_offsets_of_many_cold_partitions_are_looked_up_together(
    run: asyncio.Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"broker.id": "0", "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
    partitions = 24

    async def scenario() -> None:
        broker = Broker(BrokerConfig.from_properties(settings), store=MemoryStore(MemoryTree()))
        await broker.start()
        client = await BrokerConnection.open(
            "127.0.0.1", broker.endpoints[0].port, client_id="test", timeout_s=60
        )
        topic = CreateTopicsRequest.CreatableTopic(
            name=TOPIC, num_partitions=partitions, replication_factor=1
        )
        await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
        for partition in range(partitions):
            await produce(client, 20, partition)
        waits = Waits(monkeypatch)
        for _ in range(5):
            waits.waits, before = 0, broker.replication.page_cache_reader.loads
            for partition in range(partitions):
                evict(tmp_path / f"{TOPIC}-{partition}")
            assert await offsets_at(client, 1_000_700, partitions) == [700] * partitions
            loads = broker.replication.page_cache_reader.loads
            print(f"\n{waits.calls} reads, {loads} by threads, {waits.waits} waits")
            assert loads > before
            if waits.waits <= 2:
                break
        assert waits.waits <= 2
        client.close()
        await broker.stop()

    run.run(scenario())


class Cold:
    """A disk of which nothing is in memory but what threads have read, page by page."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._read: set[tuple[int, int]] = set()
        self.descriptors_max = 0
        monkeypatch.setattr(OsFiles, "try_pread", staticmethod(self._try_pread))
        monkeypatch.setattr(OsFiles, "load", staticmethod(self._load))

    def evict(self) -> None:
        self._read.clear()

    def _pages(self, fd: int, position: int, length: int) -> set[tuple[int, int]]:
        inode = os.fstat(fd).st_ino
        return {(inode, page) for page in range(position >> 12, ((position + length - 1) >> 12) + 1)}

    def _try_pread(self, fd: int, length: int, position: int) -> bytes | None:
        if blocking_allowed() or self._pages(fd, position, length) <= self._read:
            return os.pread(fd, length, position)
        return None

    def _load(self, fd: int, position: int, length: int) -> None:
        self.descriptors_max = max(self.descriptors_max, open_descriptors())
        self._read |= self._pages(fd, position, length)


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

    async def started() -> tuple[Broker, BrokerConnection]:
        broker = Broker(BrokerConfig.from_properties(settings), store=MemoryStore(tree))
        await broker.start()
        return broker, await BrokerConnection.open("127.0.0.1", broker.endpoints[0].port, timeout_s=120)

    async def scenario() -> None:
        broker, client = await started()
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
        client.close()
        await broker.stop()
        broker, client = await started()
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
        client.close()
        await broker.stop()

    run.run(scenario())

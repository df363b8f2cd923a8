"""A broker with a full, read-only or removed disk keeps acknowledged records and continues with its other
disks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ottla.local.brokers import BrokerProcess
from ottla.local.processes import free_port, wait_until
from ottla.local.zookeeper import EmbeddedZooKeeper
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records import Record, build_batch, decode_records
from ottla.wire.connection import BrokerConnection
from tests.judges.small_disk import SmallDisk

pytestmark = pytest.mark.timeout(420)

WAIT_S = 90.0
DISK_BYTES = 2 << 20
RECORD_BYTES = 40_000
SETTINGS = {
    "auto.create.topics.enable": "false",
    "log.retention.check.interval.ms": "86400000",  # the records are of long ago
    "replica.high.watermark.checkpoint.interval.ms": "300",
}

T = TypeVar("T")


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    try:
        yield server.connect
    finally:
        server.stop()


class Client:
    """Sends requests to one broker, each on a new connection."""

    def __init__(self, port: int) -> None:
        self.port = port

    def _ask(self, recorder: Callable[[BrokerConnection], Coroutine[Any, Any, T]]) -> T:
        async def ask() -> T:
            connection = await BrokerConnection.open("127.0.0.1", self.port, timeout_s=60)
            try:
                return await recorder(connection)
            finally:
                connection.close()

        return asyncio.run(ask())

    def request(self, message: Any, version: int | None = None) -> Any:
        return self._ask(lambda connection: connection.request(message, version=version))

    def create(self, topic: str, partitions: int) -> None:
        row = m.CreateTopicsRequest.CreatableTopic(
            name=topic, num_partitions=partitions, replication_factor=1
        )
        request = m.CreateTopicsRequest(topics=[row], timeout_ms=30_000)

        def created() -> bool:
            """Not before the broker is elected controller."""
            code = self.request(request, 5).topics[0].error_code
            assert code in (ErrorCode.NONE, ErrorCode.NOT_CONTROLLER, ErrorCode.TOPIC_ALREADY_EXISTS), code
            return bool(code != ErrorCode.NOT_CONTROLLER)

        assert wait_until(created, timeout_s=WAIT_S)
        assert wait_until(lambda: len(self.leaders(topic)) == partitions, timeout_s=WAIT_S)

    def leaders(self, topic: str) -> dict[int, int]:
        asked = [m.MetadataRequest.MetadataRequestTopic(name=topic)]
        rows = self.request(m.MetadataRequest(topics=asked)).topics[0].partitions
        return {row.partition_index: row.leader_id for row in rows}

    def place(self, topic: str, partition: int, log_dir: Path) -> None:
        """Chooses the log directory of a partition before it is created."""
        request = m.AlterReplicaLogDirsRequest
        topics = [request.AlterReplicaLogDirTopic(name=topic, partitions=[partition])]
        self.request(request(dirs=[request.AlterReplicaLogDir(path=str(log_dir), topics=topics)]))

    def log_dirs(self) -> dict[Path, ErrorCode]:
        answer = self.request(m.DescribeLogDirsRequest(topics=None))
        return {Path(row.log_dir): ErrorCode.of(row.error_code) for row in answer.results}

    def _from_leader(self, ask: Callable[[], Any]) -> Any:
        """The row of whoever leads. A broker that starts hears what it leads before it takes it up (Kafka,
        too): until then it says NOT_LEADER_OR_FOLLOWER, and every client asks again."""
        rows: list[Any] = []

        def led() -> bool:
            rows.append(ask())
            return bool(rows[-1].error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER)

        assert wait_until(led, timeout_s=WAIT_S)
        return rows[-1]

    def produce(self, topic: str, partition: int, value: bytes) -> ErrorCode:
        part = m.ProduceRequest.PartitionProduceData(
            index=partition, records=build_batch([Record(0, 1000, None, value)])
        )
        data = [m.ProduceRequest.TopicProduceData(name=topic, partition_data=[part])]
        request = m.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=data)
        row = self._from_leader(lambda: self.request(request, 9).responses[0].partition_responses[0])
        return ErrorCode.of(row.error_code)

    def consume(self, topic: str, partition: int) -> list[bytes]:
        values: list[bytes] = []
        while found := self._fetch(topic, partition, len(values)):
            values += [record.value or b"" for record in found if record.offset >= len(values)]
        return values

    def _fetch(self, topic: str, partition: int, offset: int) -> list[Record]:
        part = m.FetchRequest.FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20
        )
        topics = [m.FetchRequest.FetchTopic(topic=topic, partitions=[part])]
        request = m.FetchRequest(max_wait_ms=0, min_bytes=0, session_epoch=-1, topics=topics)
        row = self._from_leader(lambda: self.request(request, 11).responses[0].partitions[0])
        assert row.error_code == 0, row
        return decode_records(row.records or b"")


def broker_of(
    directory: Path, zookeeper: str, log_dirs: list[Path], prefix: tuple[str, ...]
) -> BrokerProcess:
    port_file = directory / "port"
    directory.mkdir(exist_ok=True)
    if not port_file.exists():
        port_file.write_text(str(free_port()))
    broker = BrokerProcess(0, directory, int(port_file.read_text()), prefix=prefix)
    settings = {**SETTINGS, "log.dirs": ",".join(str(path) for path in log_dirs)}
    broker.write_properties(f"{zookeeper}/{directory.parent.name}-{directory.name}", settings)
    broker.start_and_wait()
    return broker


def test_a_full_disk_takes_its_directory_offline_and_loses_no_acknowledged_record(
    tmp_path: Path, zookeeper: str
) -> None:
    with SmallDisk(tmp_path / "small", DISK_BYTES) as disk:
        dirs = [disk.mount_point / "logs", tmp_path / "large"]
        broker = broker_of(tmp_path / "broker", zookeeper, dirs, disk.prefix())
        client = Client(broker.port)
        try:
            for partition, log_dir in enumerate(dirs):
                client.place("t", partition, log_dir)
            client.create("t", 2)
            kept: list[bytes] = []
            refused = ErrorCode.NONE
            while not refused:
                value = b"%04d" % len(kept) + bytes(RECORD_BYTES)
                refused = client.produce("t", 0, value)
                if not refused:
                    kept.append(value)
                assert len(kept) * RECORD_BYTES < DISK_BYTES, "it cannot have kept that much"
            assert refused is ErrorCode.KAFKA_STORAGE_ERROR
            assert kept

            assert client.produce("t", 1, b"the rest goes on") is ErrorCode.NONE
            assert wait_until(lambda: client.leaders("t") == {0: -1, 1: 0}, timeout_s=WAIT_S)
            assert client.produce("t", 0, b"still") is ErrorCode.KAFKA_STORAGE_ERROR
            assert client.produce("t", 1, b"and on") is ErrorCode.NONE
            assert client.log_dirs() == {dirs[0]: ErrorCode.KAFKA_STORAGE_ERROR, dirs[1]: ErrorCode.NONE}
            assert broker.stop(timeout_s=WAIT_S)

            if disk.is_mounted:
                disk.enlarge(4 * DISK_BYTES)
                disk.make_read_only(True)
                broker.start_and_wait()
                assert wait_until(lambda: client.leaders("t") == {0: -1, 1: 0}, timeout_s=WAIT_S)
                assert client.produce("t", 1, b"beside a read-only disk") is ErrorCode.NONE
                assert broker.stop(timeout_s=WAIT_S)
                disk.make_read_only(False)

            broker = broker_of(tmp_path / "broker", zookeeper, dirs, disk.prefix(limited=False))
            assert wait_until(lambda: client.leaders("t") == {0: 0, 1: 0}, timeout_s=WAIT_S)
            assert client.consume("t", 0) == kept
            assert client.consume("t", 1)[:2] == [b"the rest goes on", b"and on"]
            assert client.produce("t", 0, b"there is room") is ErrorCode.NONE
        finally:
            broker.stop()


def test_a_broker_stops_when_its_last_directory_fails(tmp_path: Path, zookeeper: str) -> None:
    dirs = [tmp_path / "a", tmp_path / "b"]
    broker = broker_of(tmp_path / "broker", zookeeper, dirs, ())
    client = Client(broker.port)
    try:
        client.create("t", 2)
        for path in dirs:
            assert broker.running
            path.rename(path.with_name(f"{path.name}-away"))
            path.write_text("no directory")
            if path is not dirs[-1]:
                assert wait_until(
                    lambda: ErrorCode.KAFKA_STORAGE_ERROR in client.log_dirs().values(), timeout_s=WAIT_S
                )
        assert wait_until(lambda: not broker.running, timeout_s=WAIT_S)
        assert broker.exit_code == 1
        assert "all log dirs have failed" in broker.log_tail(1000)
    finally:
        broker.stop()

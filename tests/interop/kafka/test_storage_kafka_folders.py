"""One data folder, served in turns by Apache Kafka 3.9.1 and by us, after clean stops and after kill -9.

Kafka writes it: rolled, compressed and compacted topics, records deleted, transactions committed, aborted and
left open, a group's offsets. Our logs must make of it what Kafka says that it is, and Kafka of what we add.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.apache_kafka import KafkaBroker, run_tool
from ottla.cli.main import main
from ottla.local.brokers import BrokerProcess
from ottla.local.processes import free_port, wait_until
from ottla.local.zookeeper import EmbeddedZooKeeper
from ottla.ports.files import OS_FILES
from ottla.protocol.messages import FetchRequest
from ottla.protocol.records import decode_batch, iter_batches
from ottla.storage.index_recovery import verify_max_timestamp
from ottla.storage.log import Log
from ottla.storage.log_dir import read_properties
from ottla.storage.log_dir_checks import check_log_dirs
from ottla.storage.log_manager import LogManager
from ottla.storage.producer_state_manager import decode_snapshot, encode_snapshot
from ottla.wire.connection import BrokerConnection
from tests.judges import kafka_dumps
from tests.judges.confluent_reader import read_to_end
from tests.judges.faults import znodes_of
from tests.judges.kafka_tools import run_program
from tests.oracles import needs_kafka_jars

STAYS_OPEN_MS = 600_000
"""Kafka aborts a transaction that is open for longer; its default, a minute, is little on a busy machine."""
WAIT_S = 120.0
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "log.cleaner.backoff.ms": "100",
    "log.roll.ms": "3600000",
    "zookeeper.session.timeout.ms": "30000",
    "log.segment.delete.delay.ms": "0",
}
TOPICS = {
    "rolled": {"segment.bytes": "4000", "index.interval.bytes": "200"},
    "compacted": {
        "segment.bytes": "1500",
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "0",
    },
    "transactions": {"segment.bytes": "2500", "index.interval.bytes": "200"},
}
OFFSETS = "__consumer_offsets"
Found = list[tuple[int, bytes | None, bytes | None]]
pytestmark = pytest.mark.timeout(900)


class Facts(NamedTuple):
    """What a broker says of a topic's partition 0: its ends; (offset, key, value) of its records; for small
    read_committed fetches from each offset on, the last stable offset, aborted transactions and size."""

    low: int
    high: int
    records: Found
    committed: Found
    fetched: list[tuple[int, list[tuple[int, int]] | None, int]]


class Folder:
    """A data folder, and the two brokers that may serve it; `facts` are as last read from a broker."""

    def __init__(self, root: Path) -> None:
        self.path = root / "broker"
        self.zookeeper = EmbeddedZooKeeper(root / "zookeeper")
        self.zookeeper.start()
        self.kafka = KafkaBroker(self.path, self.zookeeper.connect, settings=SETTINGS)
        self.ours = BrokerProcess(0, self.path, free_port())
        self.bootstrap = ""
        self.left_open: list[Producer] = []

    @property
    def data(self) -> Path:
        return self.path / "data"

    def start_kafka(self) -> None:
        self.kafka.start()
        self.bootstrap = self.kafka.bootstrap
        self.wait_until_it_leads()

    def start_ours(self) -> None:
        settings = {name: value for name, value in SETTINGS.items() if not name.startswith("log.cleaner")}
        self.ours.write_properties(self.zookeeper.connect, settings)
        self.ours.start_and_wait()
        self.bootstrap = f"127.0.0.1:{self.ours.port}"
        self.wait_until_it_leads()

    def wait_until_it_leads(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})

        def leads() -> bool:
            listed = admin.list_topics(timeout=60)
            wanted = TOPICS.keys() & listed.topics.keys()
            leaders = {listed.topics[topic].partitions[0].leader for topic in wanted}
            return list(listed.brokers) == [0] and leaders <= {0}

        until(leads, "the broker leads what it has")

    def kill(self) -> None:
        """kill -9, and what ZooKeeper does once the session is over."""
        if self.kafka.pid is not None:
            os.kill(self.kafka.pid, signal.SIGKILL)
            self.kafka.stop()
        else:
            self.ours.kill()
        with znodes_of(self.zookeeper.connect) as tree:
            for node in ("/brokers/ids/0", "/controller"):
                tree.ensure_path(node)
                tree.delete(node)

    def stop(self) -> None:
        self.kafka.stop()
        self.ours.stop()

    def copy(self, to: Path) -> Path:
        shutil.copytree(self.data, to)
        (to / ".lock").unlink(missing_ok=True)
        return to

    # --- clients --------------------------------------------------------------------------------

    def produce(self, topic: str, values: list[str], codec: str = "none", key: str | None = None) -> None:
        failures: list[object] = []
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "compression.type": codec,
                "enable.idempotence": True,
                "linger.ms": 0,
                "batch.num.messages": 10,
            }
        )
        for number, value in enumerate(values):
            producer.produce(
                topic,
                value,
                key=key or f"key {number % 5}",
                partition=0,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        assert producer.flush(WAIT_S) == 0
        assert failures == []

    def transactions_by_java(self, prefix: str, count: int) -> None:
        """Kafka's own producer: overlapping transactions, half of them aborted, the last two left open."""
        run_program("Transactions", self.bootstrap, "transactions", prefix, str(count))

    def transactions(self, name: str) -> None:
        """Three, committed, aborted and left open."""
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": name,
                "transaction.timeout.ms": STAYS_OPEN_MS,
                "linger.ms": 0,
            }
        )
        producer.init_transactions(WAIT_S)
        for end in (producer.commit_transaction, producer.abort_transaction, None):
            producer.begin_transaction()
            for number in range(20):
                producer.produce("transactions", f"{name} {end and end.__name__} {number}", partition=0)
            assert producer.flush(WAIT_S) == 0
            if end is not None:
                end(WAIT_S)
        self.left_open.append(producer)

    def says(self) -> dict[str, Facts]:
        found: dict[str, dict[str, Found]] = {topic: {} for topic in TOPICS}
        ends: dict[str, tuple[int, int]] = {}
        consumer = self.consumer("reader", **{"isolation.level": "read_uncommitted"})
        try:
            for topic in TOPICS:
                ends[topic] = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=WAIT_S)
        finally:
            consumer.close()
        for isolation in ("read_uncommitted", "read_committed"):
            for records in found.values():
                records[isolation] = []
            for message in read_to_end(
                self.bootstrap,
                [TopicPartition(topic, 0, low) for topic, (low, _) in ends.items()],
                {"isolation.level": isolation, "auto.offset.reset": "earliest"},
            ):
                records = found[message.topic()][isolation]
                records.append((message.offset(), message.key(), message.value()))
        return {
            topic: Facts(
                *ends[topic],
                records["read_uncommitted"],
                records["read_committed"],
                asyncio.run(self.fetched(topic, *ends[topic])),
            )
            for topic, records in found.items()
        }

    async def fetched(self, topic: str, low: int, high: int) -> list[tuple[int, Any, int]]:
        connection = await BrokerConnection.open(
            "127.0.0.1", int(self.bootstrap.rpartition(":")[2]), timeout_s=60
        )
        found = []
        try:
            for offset in range(low, high + 1, 1 if topic == "transactions" else 20):
                asked = FetchRequest.FetchPartition(
                    partition=0, fetch_offset=offset, partition_max_bytes=700 * (offset % 5)
                )
                request = FetchRequest(
                    max_wait_ms=0,
                    isolation_level=1,
                    session_epoch=-1,
                    topics=[FetchRequest.FetchTopic(topic=topic, partitions=[asked])],
                )
                answer = await connection.request(request, version=12)
                [row] = answer.responses[0].partitions
                assert row.error_code == 0
                aborted = row.aborted_transactions
                recorded = (
                    None if aborted is None else [(each.producer_id, each.first_offset) for each in aborted]
                )
                found.append((row.last_stable_offset, recorded, len(row.records or b"")))
        finally:
            connection.close()
        return found

    def consumer(self, group: str, **settings: object) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                **settings,
            }
        )

    def commit(self, offset: int) -> None:
        consumer = self.consumer("kept")
        try:
            consumer.commit(offsets=[TopicPartition("rolled", 0, offset)], asynchronous=False)
        finally:
            consumer.close()

    def join(self, topics: list[str]) -> None:
        """A group with one member, which leaves it again."""
        consumer = self.consumer("joined")
        try:
            consumer.subscribe(topics)

            def is_assigned() -> bool:
                consumer.poll(0.1)
                return bool(consumer.assignment())

            until(is_assigned, "the member has partitions")
        finally:
            consumer.close()

    def committed(self) -> int:
        consumer = self.consumer("kept")
        try:
            [found] = consumer.committed([TopicPartition("rolled", 0)], timeout=WAIT_S)
            return int(found.offset)
        finally:
            consumer.close()


def until(condition: Callable[[], Any], what: str) -> None:
    assert wait_until(condition, timeout_s=WAIT_S), f"never came true: {what}"


class FolderHistory(NamedTuple):
    """The folder in its stations, and what the broker that wrote it said then."""

    by_kafka: Path
    by_kafka_says: dict[str, Facts]
    killed_kafka: Path
    killed_kafka_says: dict[str, Facts]
    by_us: Path
    we_say: dict[str, Facts]
    of_us_kafka_says: dict[str, Facts]
    of_us_killed_we_say: dict[str, Facts]
    of_us_killed_kafka_says: dict[str, Facts]
    killed_us: Path
    committed: list[int]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> FolderHistory:
    needs_kafka_jars()
    root = tmp_path_factory.mktemp("folders")
    folder = Folder(root)
    committed = []
    try:
        folder.start_kafka()
        admin = AdminClient({"bootstrap.servers": folder.bootstrap})
        new = [NewTopic(topic, 1, 1, config=config) for topic, config in TOPICS.items()]
        for created in admin.create_topics(new).values():
            created.result(WAIT_S)
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            folder.produce("rolled", [f"{codec} {number} {'x' * number}" for number in range(60)], codec)
        folder.produce("compacted", [f"value {number} {'y' * 50}" for number in range(100)])
        folder.transactions_by_java("by Java", 12)
        [deleted] = admin.delete_records([TopicPartition("rolled", 0, 33)]).values()
        deleted.result(WAIT_S)
        folder.commit(17)
        folder.join(["rolled", "compacted"])
        checkpoint = folder.data / "cleaner-offset-checkpoint"
        until(lambda: "compacted 0" in checkpoint.read_text(), "the topic is compacted")
        by_kafka_says = folder.says()
        folder.stop()
        by_kafka = folder.copy(root / "by_kafka")

        folder.start_ours()
        committed.append(folder.committed())
        folder.produce("rolled", [f"ours {number} {'x' * number}" for number in range(60)], "zstd")
        folder.produce("compacted", [f"ours {number} {'y' * 50}" for number in range(40)])
        folder.commit(18)
        folder.join(["rolled"])
        we_say = folder.says()
        folder.stop()
        by_us = folder.copy(root / "by_us")

        folder.start_kafka()
        committed.append(folder.committed())
        of_us_kafka_says = folder.says()
        folder.transactions("more")
        folder.produce("rolled", [f"killed {number} {'x' * number}" for number in range(40)], "lz4")
        folder.commit(19)
        killed_kafka_says = folder.says()
        folder.kill()
        killed_kafka = folder.copy(root / "killed_kafka")

        folder.start_ours()
        committed.append(folder.committed())
        folder.produce("rolled", [f"ours again {number} {'x' * number}" for number in range(40)], "gzip")
        folder.commit(20)
        of_us_killed_we_say = folder.says()
        folder.kill()
        killed_us = folder.copy(root / "killed_us")

        folder.start_kafka()
        committed.append(folder.committed())
        of_us_killed_kafka_says = folder.says()
    finally:
        folder.stop()
        folder.zookeeper.stop()
    return FolderHistory(
        by_kafka,
        by_kafka_says,
        killed_kafka,
        killed_kafka_says,
        by_us,
        we_say,
        of_us_kafka_says,
        of_us_killed_we_say,
        of_us_killed_kafka_says,
        killed_us,
        committed,
    )


def latest(records: Found) -> dict[bytes | None, tuple[int, bytes | None]]:
    return {key: (offset, value) for offset, key, value in records}


def test_records_pass_through_all_clients_unchanged(history: FolderHistory) -> None:
    rolled = [facts["rolled"] for facts in (history.by_kafka_says, history.we_say, history.killed_kafka_says)]
    assert [facts.low for facts in rolled] == [33, 33, 33]
    assert len(history.by_kafka_says["rolled"].records) == 300 - 33
    for ours, kafkas in (
        (history.we_say, history.of_us_kafka_says),
        (history.of_us_killed_we_say, history.of_us_killed_kafka_says),
    ):
        for topic in ("rolled", "transactions"):
            fetched = zip(ours[topic].fetched, kafkas[topic].fetched, strict=True)
            assert [each for each in enumerate(fetched) if each[1][0] != each[1][1]] == []
            assert kafkas[topic] == ours[topic]
        # Kafka has gone on compacting.
        assert latest(kafkas["compacted"].records) == latest(ours["compacted"].records)
        assert (kafkas["compacted"].low, kafkas["compacted"].high) == (
            ours["compacted"].low,
            ours["compacted"].high,
        )
    assert history.committed == [17, 18, 19, 20]
    assert len({str(aborted) for _, aborted, _ in history.we_say["transactions"].fetched}) > 10


# --- what our logs make of Kafka's files -------------------------------------------------------------


def opened(data: Path) -> LogManager:
    properties = read_properties(OS_FILES, data / "meta.properties")
    logs = LogManager([data], 0, properties["cluster.id"], {"file.delete.delay.ms": "0"})
    logs.load(int(time.time() * 1000), TOPICS)
    return logs


def records_of(log: Log) -> Found:
    found: Found = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20, up_to=log.log_end_offset).to_bytes()
        headers = list(iter_batches(data))
        for position, header in headers:
            if not header.is_control:
                records = decode_batch(data, position)
                found += [(each.offset, each.key, each.value) for each in records if each.offset >= offset]
        offset = headers[-1][1].next_offset
    return found


def readable(log: Log, records: Found) -> Found:
    """What a read_committed consumer keeps of them, by the answers of a Fetch."""
    kept = []
    producers = {
        offset: header.producer_id
        for segment in log.segments
        for _, header in segment.headers()
        for offset in range(header.base_offset, header.next_offset)
    }
    stable = log.last_stable_offset(log.log_end_offset)
    aborted = log.collect_aborted_transactions(0, stable)
    for record in records:
        skipped = any(
            each.producer_id == producers[record[0]] and each.first_offset <= record[0] <= each.last_offset
            for each in aborted
        )
        if record[0] < stable and not skipped:
            kept.append(record)
    return kept


@pytest.mark.parametrize("station", ["by_kafka", "killed_kafka"])
def test_our_reader_finds_the_records_that_kafka_lists(
    history: FolderHistory, station: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = shutil.copytree(getattr(history, station), tmp_path / "data")
    checkpoints = {path: path.read_bytes() for path in data.glob("*/leader-epoch-checkpoint")}
    assert (data / ".kafka_cleanshutdown").exists() == (station == "by_kafka")
    logs = opened(data)
    for topic, facts in getattr(history, f"{station}_says").items():
        log = logs.get(topic, 0)
        assert log is not None
        assert len(log.segments) > 1
        assert (log.log_start_offset, log.log_end_offset) == (facts.low, facts.high), topic
        records = records_of(log)
        if topic != "compacted":  # Kafka may have compacted more since
            assert records == facts.records
            assert readable(log, records) == facts.committed
            assert len(facts.committed) == len(facts.records) or topic == "transactions"
        assert latest(records) == latest(facts.records)
        # The log confirms what Kafka's indexes say, with their entries for several batches at once.
        log.max_timestamp()
        for segment in log.segments:
            verify_max_timestamp(segment)
            log.offset_for_timestamp(segment.max_timestamp)
        assert not any(segment.index_is_suspect for segment in log.segments)
    assert station == "killed_kafka" or "rebuil" not in caplog.text  # codespell:ignore rebuil
    assert {path: path.read_bytes() for path in checkpoints} == checkpoints
    assert logs.get(OFFSETS, 0) is not None
    logs.close(int(time.time() * 1000))


def test_kafkas_producers_are_restored_with_and_without_its_snapshots(
    history: FolderHistory, tmp_path: Path
) -> None:
    data = shutil.copytree(history.by_kafka, tmp_path / "data")
    newest = {path.parent.name: path for path in sorted(data.glob("*/*.snapshot"))}
    said = {name: decode_snapshot(path.read_bytes()) for name, path in newest.items()}
    assert len(said["transactions-0"]) == 2
    assert {entry.transaction_start is not None for entry in said["transactions-0"].values()} == {True}
    assert len(said["rolled-0"]) == 5

    def known() -> dict[str, bytes]:
        logs = opened(data).logs()
        return {
            f"{topic}-{n}": encode_snapshot(_sorted(log.producers.entries()))
            for (topic, n), log in logs.items()
        }

    expected = {name: encode_snapshot(_sorted(entries)) for name, entries in said.items()}
    with_snapshots = known()
    assert {name: with_snapshots[name] for name in expected} == expected
    (data / ".lock").unlink()
    for path in data.glob("*/*.snapshot"):
        path.unlink()
    replayed = known()
    assert {name: replayed[name] for name in expected} == expected


def _sorted(entries: Any) -> Any:
    return dict(sorted(entries.items()))


def test_rebuilt_transaction_indexes_have_kafkas_bytes(history: FolderHistory, tmp_path: Path) -> None:
    data = shutil.copytree(history.by_kafka, tmp_path / "data")
    indexes = {
        path: path.read_bytes() for path in data.glob("transactions-0/*.txnindex") if path.stat().st_size
    }
    assert sum(map(len, indexes.values())) == 11 * 34
    assert len(indexes) > 1
    for path in indexes:
        path.unlink()
    (data / ".kafka_cleanshutdown").unlink()
    (data / "recovery-point-offset-checkpoint").unlink()
    opened(data)
    assert {path: path.read_bytes() for path in indexes} == indexes


def test_kafkas_tool_reads_what_we_added(history: FolderHistory) -> None:
    suffixes = {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
    files = [path for path in sorted(history.by_us.glob("*-0/*")) if path.suffix in suffixes]
    assert {path.suffix for path in files} == suffixes
    done = run_tool("kafka.tools.DumpLogSegments", ["--deep-iteration", "--files", ",".join(map(str, files))])
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert not re.search(
        r"Mismatches in|Found timestamp mismatch|are not found|out of order|Exception|corrupt", output
    )
    assert set(re.findall(r"isvalid: (\w+)", output)) == {"true"}


# --- `ottla log` -------------------------------------------------------------------------------------

STATIONS = ("by_kafka", "killed_kafka", "by_us", "killed_us")


@pytest.mark.parametrize("station", STATIONS)
def test_log_check_finds_no_error_in_folders_of_either_broker(history: FolderHistory, station: str) -> None:
    found = check_log_dirs(OS_FILES, [getattr(history, station)])
    assert [str(finding) for finding in found if finding.is_error] == []
    is_clean = station in ("by_kafka", "by_us")
    assert not is_clean or [str(finding) for finding in found] == []


def test_log_check_finds_damage_in_kafkas_folder(history: FolderHistory, tmp_path: Path) -> None:
    data = shutil.copytree(history.by_kafka, tmp_path / "data")
    missed = []
    files = [
        path for path in data.glob("*-0/*") if path.suffix in (".log", ".index", ".timeindex", ".snapshot")
    ]
    for path in [each for each in files if each.stat().st_size][::5]:
        content = path.read_bytes()
        for damaged in (content[:-1], content[:9] + bytes([content[9] ^ 64]) + content[10:]):
            path.write_bytes(damaged)
            if not any(finding.path.stem == path.stem for finding in check_log_dirs(OS_FILES, [path.parent])):
                missed.append((path, len(damaged)))
        path.write_bytes(content)
    assert missed == []


def dumped(files: Sequence[Path], *options: str) -> dict[Path, list[Any]]:
    """By `ottla log dump`."""
    result = CliRunner().invoke(main, ["log", "dump", *options, "-o", "json", *map(str, files)])
    assert result.exit_code == 0, result.output
    return {Path(path): rows for path, rows in json.loads(result.stdout).items()}


def files_of(history: FolderHistory, folder: str, suffix: str) -> list[Path]:
    found = [
        path
        for station in STATIONS
        for path in sorted((getattr(history, station) / folder).glob(f"*{suffix}"))
        if path.stat().st_size
    ]
    assert len(found) > 1
    return found


@pytest.mark.parametrize("topic", ["rolled", "transactions", "compacted"])
def test_log_dump_reads_batches_and_records_as_kafkas_tool(history: FolderHistory, topic: str) -> None:
    files = files_of(history, f"{topic}-0", ".log")
    theirs, ours = kafka_dumps.dump(files, "--print-data-log"), dumped(files, "--print-data-log")
    for path in files:
        batches = [row for row in theirs[path] if not row["is_record"]]
        assert [
            {
                "baseOffset": row["first_offset"],
                "lastOffset": row["last_offset"],
                "count": row["records"],
                "baseSequence": row["base_sequence"],
                "lastSequence": row["last_sequence"],
                "producerId": row["producer_id"],
                "producerEpoch": row["producer_epoch"],
                "partitionLeaderEpoch": row["epoch"],
                "isTransactional": str(row["transactional"]).lower(),
                "isControl": str(row["control"]).lower(),
                "deleteHorizonMs": (
                    "OptionalLong.empty"
                    if row["delete_horizon_ms"] is None
                    else f"OptionalLong[{row['delete_horizon_ms']}]"
                ),
                "position": row["position"],
                row["timestamp_type"]: row["max_timestamp"],
                "size": row["bytes"],
                "magic": row["magic"],
                "compresscodec": row["codec"],
                "crc": row["crc"],
                "isvalid": str(row["checksum_ok"]).lower(),
                "is_record": False,
                "payload": None,
            }
            for row in ours[path]
        ] == batches
        records = [row for row in theirs[path] if row["is_record"]]
        assert [
            (
                record["offset"],
                record["timestamp"],
                record["key_size"],
                record["value_size"],
                record["sequence"],
                record.get("marker"),
                record.get("coordinator_epoch"),
                record.get("key"),
                record.get("value"),
            )
            for row in ours[path]
            for record in row["batch"]
        ] == [
            (
                row["offset"],
                row.get("CreateTime", row.get("LogAppendTime")),
                row["keySize"],
                row["valueSize"],
                row["sequence"],
                row.get("endTxnMarker"),
                row.get("coordinatorEpoch"),
                row.get("key"),
                row["payload"],
            )
            for row in records
        ]


def test_log_dump_reads_indexes_and_snapshots_as_kafkas_tool(history: FolderHistory) -> None:
    empty = "OptionalLong.empty"
    for folder, suffix in (
        ("rolled-0", ".index"),
        ("rolled-0", ".timeindex"),
        ("transactions-0", ".txnindex"),
        ("transactions-0", ".snapshot"),
    ):
        files = files_of(history, folder, suffix)
        theirs, ours = kafka_dumps.dump(files), dumped(files)
        for path in files:
            for row in theirs[path]:
                del row["is_record"], row["payload"]
            if suffix == ".snapshot":
                expected = [
                    {
                        "producerId": row["producer_id"],
                        "producerEpoch": row["producer_epoch"],
                        "coordinatorEpoch": row["coordinator_epoch"],
                        "currentTxnFirstOffset": (
                            empty
                            if row["transaction_first_offset"] is None
                            else f"OptionalLong[{row['transaction_first_offset']}]"
                        ),
                        "lastTimestamp": row["last_timestamp"],
                        "firstSequence": row["first_sequence"],
                        "lastSequence": row["last_sequence"],
                        "lastOffset": row["last_offset"],
                        "offsetDelta": row["offset_delta"],
                        "timestamp": row["timestamp"],
                    }
                    for row in ours[path]
                ]
                assert sorted(expected, key=str) == sorted(theirs[path], key=str)
            elif suffix == ".txnindex":
                assert [list(row.values()) for row in ours[path]] == [
                    list(row.values()) for row in theirs[path]
                ]
            else:
                kept = [{name: value for name, value in row.items() if name != "time"} for row in ours[path]]
                assert kept == theirs[path], path


def test_log_dump_decodes_the_coordinators_topics_as_kafkas_tool(history: FolderHistory) -> None:
    files = files_of(history, "__consumer_offsets-0", ".log")
    theirs, ours = kafka_dumps.dump(files, "--offsets-decoder"), dumped(files, "--offsets-decoder")
    for path in files:
        expected = [
            (kafka_dumps.as_json(row["key"]), kafka_dumps.as_json(row["payload"]))
            for row in theirs[path]
            if row["is_record"]
        ]
        found = [(record["key"], record["value"]) for row in ours[path] for record in row["batch"]]
        assert found == expected
    groups = [value["data"] for key, value in found if key["type"] == "2" and value != "<DELETE>"]
    topics = {
        tuple(sorted(member["subscription"]["topics"])) for group in groups for member in group["members"]
    }
    assert topics == {("compacted", "rolled"), ("rolled",)}

    files = files_of(history, "__transaction_state-0", ".log")
    option = "--transaction-log-decoder"
    theirs, ours = kafka_dumps.dump(files, option), dumped(files, option)
    for path in files:
        recorded = [(row["key"], row["payload"]) for row in theirs[path] if row["is_record"]]
        assert [
            as_kafka_writes_it(record["key"]["data"], record["value"]["data"])
            for row in ours[path]
            for record in row["batch"]
        ] == recorded
        assert any("state=CompleteAbort" in payload for _, payload in recorded)


def as_kafka_writes_it(key: dict[str, Any], value: dict[str, Any]) -> tuple[str, str]:
    partitions = [
        f"{each['topic']}-{index}"
        for each in value["transactionPartitions"] or ()
        for index in each["partitionIds"]
    ]
    return (
        f"transaction_metadata::transactionalId={key['transactionalId']}",
        f"producerId:{value['producerId']},producerEpoch:{value['producerEpoch']},"
        f"state={value['transactionStatus']},partitions=[{','.join(partitions)}],"
        f"txnLastUpdateTimestamp={value['transactionLastUpdateTimestampMs']},"
        f"txnTimeoutMs={value['transactionTimeoutMs']}",
    )

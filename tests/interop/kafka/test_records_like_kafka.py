"""Requests about records and topics to Apache Kafka 3.9.1 and to Ottla: every response is the same.

One broker of each kind; raw requests, so that invalid requests are compared as well. Messages, topic ids and
addresses, which may differ, are not compared.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from ottla.protocol.compression import Codec, compress
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    FetchRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
)
from ottla.protocol.records import Record, build_batch, parse_batch_header
from ottla.protocol.types import Message
from tests.judges.request_recorder import RequestRecorder, kafka_and_ottla, same, until
from tests.oracles import needs_kafka_jars

SETTINGS = {
    "offsets.topic.replication.factor": "1",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
}
FREE = ("error_message", "topic_id", "cluster_id", "host", "port", "node_endpoints", "record_errors",
        "aborted_transactions")  # fmt: skip
NOW_MS = 1_700_000_000_000
pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    needs_kafka_jars()
    directory: Path = tmp_path_factory.mktemp("records")
    with kafka_and_ottla(directory, SETTINGS) as by_name:
        yield by_name


async def ask(recorder: RequestRecorder, label: str, request: Message, version: int) -> Any:
    return await recorder.ask(f"{label}, v{version}", "anna", request, version, ignoring=FREE)


async def make_topic(recorder: RequestRecorder, name: str, partitions: int = 1, **configs: str) -> None:
    rows = [
        CreateTopicsRequest.CreatableTopicConfig(name=n.replace("_", "."), value=v)
        for n, v in configs.items()
    ]
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, configs=rows
    )

    async def made() -> bool:
        response = await recorder.send("anna", CreateTopicsRequest(topics=[topic], timeout_ms=9000), 7)
        return response.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)

    async def led() -> bool:
        asked = MetadataRequest.MetadataRequestTopic(name=name)
        response = await recorder.send("anna", MetadataRequest(topics=[asked]), 9)
        found = response.topics[0]
        return len(found.partitions) == partitions and all(p.leader_id >= 0 for p in found.partitions)

    await until(made)
    await until(led)


def records(*values: str, producer: tuple[int, int, int] = (-1, -1, -1), **options: Any) -> bytes:
    timestamp = options.pop("timestamp", NOW_MS)
    key = options.pop("key", b"k")
    return build_batch(
        [Record(i, timestamp, key, value.encode(), []) for i, value in enumerate(values)],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        **options,
    )


def produce(topic: str, *data: bytes | None, acks: int = -1, partition: int = 0) -> ProduceRequest:
    """One partition's data each, for partition `partition` and those after it."""
    parts = [
        ProduceRequest.PartitionProduceData(index=partition + i, records=item) for i, item in enumerate(data)
    ]
    row = ProduceRequest.TopicProduceData(name=topic, partition_data=parts)
    return ProduceRequest(acks=acks, timeout_ms=5000, topic_data=[row])


def test_batches_that_are_refused(ports: dict[str, int]) -> None:
    # Null records are left out: Apache Kafka does not answer them at all.
    async def scenario(recorder: RequestRecorder) -> None:
        await make_topic(recorder, "refusals", 2, max_message_bytes="1000")
        good = records("a", "b")

        async def send(label: str, data: bytes | None, version: int = 9) -> None:
            await ask(recorder, label, produce("refusals", data), version)

        def patched(position: int, value: bytes) -> bytes:
            return good[:position] + value + good[position + len(value) :]

        await send("no records", b"")
        await send("half a header", good[:30])
        await send("cut short", good[:-1])
        await send("two batches", good + good)
        await send("a batch and a bit", good + good[:20])
        await send("a bad checksum", good[:-1] + b"\x7f")
        await send("magic 3", patched(16, b"\x03"))
        await send("magic 1", patched(16, b"\x01"))
        await send("a leader epoch of its own", patched(12, b"\0\0\0\x09"))
        await send("too large", records("x" * 2000))
        await send("a control batch", records("a", control=True))
        await send("another base offset", records("a", base_offset=7))
        await send("an id without a sequence", records("a", producer=(5, 0, -1)))
        await send("zstd before its time", records("a", codec=Codec.ZSTD), 6)
        await send("zstd", records("a", codec=Codec.ZSTD), 7)
        await send("good", good)
        await ask(recorder, "acks 2", produce("refusals", good, acks=2), 9)
        await ask(recorder, "no such topic", produce("nowhere", good), 9)
        await ask(recorder, "no such partition", produce("refusals", good, good, good), 9)
        await ask(recorder, "one good, one bad", produce("refusals", good, records("x" * 2000)), 9)
        await ask(recorder, "an internal topic", produce("__consumer_offsets", good), 9)
        await ask(recorder, "an illegal name", produce("no/such", good), 9)
        await ask(recorder, "a negative partition", produce("refusals", good, partition=-1), 9)

    same(ports, scenario)


def test_compressed_batches_that_do_not_hold_their_records(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        await make_topic(recorder, "damaged")
        for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
            good = records(*(f"value {number}" for number in range(9)), codec=codec)

            async def send(label: str, data: bytes, codec: Codec = codec) -> None:
                await ask(recorder, f"{codec.name}, {label}", produce("damaged", resealed(data)), 9)

            await send("good", good)
            await send("not compressed at all", good[:61] + b"\x01" * 40)
            await send("nothing", good[:61])
            await send("cut in half", good[: 61 + (len(good) - 61) // 2])
            plain = records(*(f"value {number}" for number in range(9)))[61:]
            for label, content in (
                ("a record less", plain[: -(1 + plain[0] // 2)]),
                ("a record more", plain + plain[: 1 + plain[0] // 2]),
                ("a byte less", plain[:-1]),
                ("a byte more", plain + b"x"),
            ):
                await send(label, good[:61] + compress(codec, content))

    same(ports, scenario)


def test_compressed_batches_with_wrong_headers(ports: dict[str, int]) -> None:
    """About the highest timestamp, which is put right, and about offsets."""

    async def scenario(recorder: RequestRecorder) -> None:
        await make_topic(recorder, "lies")
        for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
            plain = lying(0, 9_000, 300, 70)
            await send_compressed(recorder, "the truth", "lies", codec, plain, NOW_MS + 9_000)
            for highest in (NOW_MS + 70, NOW_MS + 9_001, 9 * NOW_MS, -1, 0):
                await send_compressed(recorder, f"highest {highest}", "lies", codec, plain, highest)
            early = lying(0, -5, -NOW_MS - 7)
            await send_compressed(recorder, "timestamps before the first", "lies", codec, early, NOW_MS)
            for offsets in ((1, 2, 3), (0, 2, 1), (0, 0, 0), (0, 1, 3), (0, 1, -1), (0, 1, 2**31 - 1)):
                data = lying(0, 0, 0, offsets=offsets)
                await send_compressed(recorder, f"offsets {offsets}", "lies", codec, data, NOW_MS)

    same(ports, scenario)


def lying(*deltas: int, offsets: Sequence[int] | None = None) -> list[Record]:
    """Records at these milliseconds from NOW_MS; `offsets` are from the batch's base offset."""
    numbers = range(len(deltas)) if offsets is None else offsets
    return [Record(at, NOW_MS + delta, b"k", b"v", []) for at, delta in zip(numbers, deltas, strict=True)]


async def send_compressed(
    recorder: RequestRecorder, label: str, topic: str, codec: Codec, content: list[Record], highest: int
) -> None:
    """Sends these records in a batch whose header says `highest`, and notes what is stored of it."""
    batch = bytearray(build_batch(content, codec=codec, keep_offsets=True))
    last = len(content) - 1
    batch[23:27] = last.to_bytes(4, "big")
    batch[35:43] = highest.to_bytes(8, "big", signed=True)
    request = produce(topic, resealed(bytes(batch)))
    answer = await recorder.ask(f"{codec.name}, {label}", "anna", request, 9, ignoring=FREE)
    row = answer.responses[0].partition_responses[0]
    if row.error_code == ErrorCode.NONE:
        stored = await recorder.send("anna", fetch(topic, row.base_offset), 11)
        header = parse_batch_header(stored.responses[0].partitions[0].records)
        recorder.note(
            f"{codec.name}, {label}, stored", (header.base_offset, header.max_timestamp), ignoring=FREE
        )


def resealed(batch: bytes) -> bytes:
    """With the length and the checksum that it should have."""
    length = (len(batch) - 12).to_bytes(4, "big")
    return batch[:8] + length + batch[12:17] + crc32c(batch[21:]).to_bytes(4, "big") + batch[21:]


def test_idempotent_producers(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        await make_topic(recorder, "idempotence")

        async def send(label: str, producer_id: int, epoch: int, sequence: int, count: int = 1) -> None:
            data = records(*["v"] * count, producer=(producer_id, epoch, sequence))
            await ask(recorder, label, produce("idempotence", data), 9)

        await send("begins", 1, 0, 0)
        await send("again", 1, 0, 0)
        await send("goes on", 1, 0, 1, 3)
        await send("leaves a gap", 1, 0, 9)
        await send("half a repetition", 1, 0, 1, 2)
        await send("same first, more", 1, 0, 1, 4)
        for sequence in range(4, 10):
            await send(f"sequence {sequence}", 1, 0, sequence)
        await send("repeats the fifth last", 1, 0, 5)
        await send("repeats the sixth last", 1, 0, 4)
        await send("a new epoch amid", 1, 1, 3)
        await send("a new epoch", 1, 1, 0)
        await send("the old epoch", 1, 0, 10)
        await send("an unknown producer amid", 2, 0, 77)
        await send("and on", 2, 0, 78)
        await send("near the end", 3, 0, 2**31 - 2, 2)
        await send("wraps", 3, 0, 0)
        await send("a wrong wrap", 3, 0, 2)
        await send("across the end", 4, 0, 2**31 - 1, 3)
        await send("after that", 4, 0, 2)

    same(ports, scenario)


def fetch(topic: str, offset: int, *, partition: int = 0, **options: Any) -> FetchRequest:
    wanted: dict[str, Any] = {"partition_max_bytes": 1 << 20, **options}
    whole = {name: wanted.pop(name) for name in ("max_bytes", "min_bytes", "session_epoch", "session_id",
             "isolation_level", "replica_id") if name in wanted}  # fmt: skip
    part = FetchRequest.FetchPartition(partition=partition, fetch_offset=offset, **wanted)
    row = FetchRequest.FetchTopic(topic=topic, partitions=[part])
    whole.setdefault("min_bytes", 1)
    return FetchRequest(max_wait_ms=0, topics=[row], **whole)


def test_fetch_responses_equal_kafkas(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        await make_topic(recorder, "fetches", 2)
        for _ in range(3):
            await recorder.send("anna", produce("fetches", records("x" * 100), records("y" * 100)), 9)

        async def get(label: str, request: FetchRequest, *versions: int) -> None:
            for version in versions or (4, 5, 7, 11, 12):
                answer = await recorder.send("anna", request, version)
                for topic in answer.responses:
                    for part in topic.partitions:
                        part.records = None if part.records is None else bytes(part.records)
                        part.preferred_read_replica = -1
                recorder.note(f"{label}, v{version}", answer, ignoring=FREE)

        await get("from the start", fetch("fetches", 0))
        await get("from the middle", fetch("fetches", 1))
        await get("at the end", fetch("fetches", 3))
        await get("beyond the end", fetch("fetches", 4))
        await get("before the start", fetch("fetches", -5))
        await get("no such topic", fetch("nowhere", 0))
        await get("no such partition", fetch("fetches", 0, partition=9))
        await get("one byte", fetch("fetches", 0, partition_max_bytes=1))
        await get("one byte in all", fetch("fetches", 0, max_bytes=1))
        await get("nothing allowed", fetch("fetches", 0, partition_max_bytes=0))
        await get("one batch and a half", fetch("fetches", 0, partition_max_bytes=260))
        await get("read committed", fetch("fetches", 0, isolation_level=1))
        await get("this epoch", fetch("fetches", 0, current_leader_epoch=0), 9, 12)
        await get("a later epoch", fetch("fetches", 0, current_leader_epoch=7), 9, 12)
        await get("last fetched in this epoch", fetch("fetches", 3, last_fetched_epoch=0), 12)
        await get("ahead in this epoch", fetch("fetches", 8, last_fetched_epoch=0), 12)
        await get("last fetched in a later epoch", fetch("fetches", 3, last_fetched_epoch=5), 12)
        await get("an unknown session", fetch("fetches", 0, session_id=9, session_epoch=3), 7, 12)
        both = fetch("fetches", 0, partition_max_bytes=100, max_bytes=100)
        both.topics[0].partitions.append(
            FetchRequest.FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=100)
        )
        await get("the second gets nothing", both)
        by_id = fetch("", 0)
        by_id.topics[0].topic_id = uuid.UUID(int=77)
        await get("an unknown id", by_id, 13)

    same(ports, scenario)


def offsets(topic: str, timestamp: int, *, partition: int = 0, **options: Any) -> ListOffsetsRequest:
    whole = {n: options.pop(n) for n in ("replica_id", "isolation_level") if n in options}
    part = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=timestamp, **options)
    row = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[part])
    return ListOffsetsRequest(topics=[row], **{"replica_id": -1, **whole})


def test_offsets_by_time_and_epoch(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        await make_topic(recorder, "times")
        await make_topic(recorder, "empty")
        for at in (100, 300, 200, 400):
            batch = records("a", "b", timestamp=NOW_MS + at)
            await recorder.send("anna", produce("times", batch), 9)
        for topic in ("times", "empty"):
            for timestamp in (
                -1,
                -2,
                -3,
                -4,
                -5,
                -6,
                0,
                NOW_MS + 100,
                NOW_MS + 101,
                NOW_MS + 300,
                NOW_MS + 301,
                NOW_MS + 401,
            ):
                for version in (1, 4, 6, 7, 8, 9):
                    label = f"{topic} at {timestamp}"
                    await ask(recorder, label, offsets(topic, timestamp), version)
            await ask(recorder, f"{topic}, committed", offsets(topic, -1, isolation_level=1), 6)
        await ask(recorder, "version 0, latest", offsets("times", -1, max_num_offsets=5), 0)
        await ask(recorder, "version 0, earliest", offsets("times", -2, max_num_offsets=5), 0)
        await ask(recorder, "no such topic", offsets("nowhere", -1), 6)
        await ask(recorder, "no such partition", offsets("times", -1, partition=4), 6)
        await ask(recorder, "this epoch", offsets("times", -1, current_leader_epoch=0), 6)
        await ask(recorder, "a later epoch", offsets("times", -1, current_leader_epoch=3), 6)
        twice = offsets("times", -1)
        twice.topics[0].partitions *= 2
        await ask(recorder, "twice the same", twice, 6)
        for topic, partition in (("times", 0), ("times", 5), ("nowhere", 0)):
            for epoch in (-1, 0, 4):
                for current in (-1, 0, 9):
                    part = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
                        partition=partition, leader_epoch=epoch, current_leader_epoch=current
                    )
                    row = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[part])
                    request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[row])
                    label = f"end of epoch {epoch} of {topic}-{partition}, asked in {current}"
                    await ask(recorder, label, request, 3)

    same(ports, scenario)


def test_metadata_of_missing_topics(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        await make_topic(recorder, "known", 2)
        row = MetadataRequest.MetadataRequestTopic
        for name in ("known", "unknown", "", ".", "..", "a/b", "x" * 249, "x" * 250, "ä"):
            for version in (1, 4, 9, 12):
                request = MetadataRequest(topics=[row(name=name)], allow_auto_topic_creation=version < 4)
                await ask(recorder, f"{name[:9]!r} ({len(name)})", request, version)
        unknown = MetadataRequest(topics=[row(name=None, topic_id=uuid.UUID(int=99))])
        await ask(recorder, "an unknown id", unknown, 12)
        await ask(recorder, "no topics", MetadataRequest(topics=[]), 9)
        await ask(
            recorder, "the same twice", MetadataRequest(topics=[row(name="known"), row(name="known")]), 9
        )
        may = MetadataRequest(topics=[row(name="made by nobody")], allow_auto_topic_creation=True)
        await ask(recorder, "creation not allowed by the broker", may, 9)

    same(ports, scenario)


def test_metadata_by_topic_id_ignores_names(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        await make_topic(recorder, "by-id", 2)
        await make_topic(recorder, "by-name")
        row = MetadataRequest.MetadataRequestTopic
        named = await recorder.send(
            "anna", MetadataRequest(topics=[row(name="by-id"), row(name="by-name")]), 12
        )
        ids = {topic.name: topic.topic_id for topic in named.topics}
        asked = {
            "an id, an empty name": [row(name="", topic_id=ids["by-id"])],
            "an id, no name": [row(name=None, topic_id=ids["by-id"])],
            "an id and its name": [row(name="by-id", topic_id=ids["by-id"])],
            "an id and another name": [row(name="by-name", topic_id=ids["by-id"])],
            "an id, a name that is not legal": [row(name="a/b", topic_id=ids["by-id"])],
            "an unknown id, an empty name": [row(name="", topic_id=uuid.UUID(int=99))],
            "an unknown id and a name": [row(name="by-name", topic_id=uuid.UUID(int=99))],
            "an id beside a name": [row(name="", topic_id=ids["by-id"]), row(name="by-name")],
            "an unknown id beside a name": [row(name="", topic_id=uuid.UUID(int=99)), row(name="by-name")],
            "an id twice": [row(name="", topic_id=ids["by-id"]), row(name="x", topic_id=ids["by-id"])],
        }
        for label, topics in asked.items():
            for version in (10, 11, 12):
                if version == 12 or all(topic.name is not None for topic in topics):
                    await ask(recorder, label, MetadataRequest(topics=topics), version)
        for version in (10, 11):
            await ask(recorder, "no name", MetadataRequest(topics=[row(name=None)]), version)

    same(ports, scenario)


def test_authorized_operations_without_an_authorizer(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        await make_topic(recorder, "for-all")
        row = MetadataRequest.MetadataRequestTopic
        for version in (8, 9, 10, 11, 12):
            topics = [row(name="for-all"), row(name="unknown")]
            request = MetadataRequest(
                topics=topics,
                include_topic_authorized_operations=True,
                include_cluster_authorized_operations=version < 11,
            )
            await ask(recorder, "topics, cluster", request, version)
        unknown = MetadataRequest(
            topics=[row(name=None, topic_id=uuid.UUID(int=99))], include_topic_authorized_operations=True
        )
        await ask(recorder, "an unknown id", unknown, 12)
        for version in (0, 1):
            described = DescribeClusterRequest(include_cluster_authorized_operations=True)
            await ask(recorder, "cluster", described, version)

    same(ports, scenario)


def test_invalid_topic_creations_and_deletions(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        await make_topic(recorder, "taken.name")
        topic = CreateTopicsRequest.CreatableTopic
        assigned = CreateTopicsRequest.CreatableReplicaAssignment
        config = CreateTopicsRequest.CreatableTopicConfig
        asked = {
            "exists": topic(name="taken.name", num_partitions=1, replication_factor=1),
            "collides": topic(name="taken_name", num_partitions=1, replication_factor=1),
            "empty name": topic(name="", num_partitions=1, replication_factor=1),
            "dot": topic(name=".", num_partitions=1, replication_factor=1),
            "slash": topic(name="a/b", num_partitions=1, replication_factor=1),
            "long": topic(name="x" * 250, num_partitions=1, replication_factor=1),
            "no partitions": topic(name="n1", num_partitions=0, replication_factor=1),
            "negative partitions": topic(name="n2", num_partitions=-2, replication_factor=1),
            "no replicas": topic(name="n3", num_partitions=1, replication_factor=0),
            "too many replicas": topic(name="n4", num_partitions=1, replication_factor=3),
            "both": topic(name="n5", num_partitions=1, replication_factor=1,
                          assignments=[assigned(partition_index=0, broker_ids=[0])]),
            "a gap": topic(name="n6", num_partitions=-1, replication_factor=-1,
                           assignments=[assigned(partition_index=1, broker_ids=[0])]),
            "twice the broker": topic(name="n7", num_partitions=-1, replication_factor=-1,
                                      assignments=[assigned(partition_index=0, broker_ids=[0, 0])]),
            "uneven": topic(name="n9", num_partitions=-1, replication_factor=-1,
                            assignments=[assigned(partition_index=0, broker_ids=[0]),
                                         assigned(partition_index=1, broker_ids=[0, 1])]),
            "unknown setting": topic(name="n10", num_partitions=1, replication_factor=1,
                                     configs=[config(name="no.such", value="1")]),
            "bad setting": topic(name="n11", num_partitions=1, replication_factor=1,
                                 configs=[config(name="retention.ms", value="soon")]),
            "null setting": topic(name="n12", num_partitions=1, replication_factor=1,
                                  configs=[config(name="retention.ms", value=None)]),
        }  # fmt: skip
        for label, row in asked.items():
            answer = await recorder.send("anna", CreateTopicsRequest(topics=[row], timeout_ms=5000), 6)
            recorder.note(label, [(t.name, t.error_code) for t in answer.topics])
        good = topic(name="twice", num_partitions=1, replication_factor=1)
        answer = await recorder.send("anna", CreateTopicsRequest(topics=[good, good], timeout_ms=5000), 6)
        recorder.note("twice in a request", [(t.name, t.error_code) for t in answer.topics])
        checked = CreateTopicsRequest(topics=[good], timeout_ms=5000, validate_only=True)
        answer = await recorder.send("anna", checked, 6)
        recorder.note("only validated", [(t.name, t.error_code, t.num_partitions) for t in answer.topics])

        for label, name, count, brokers in (
            ("fewer", "taken.name", 0, None), ("as many", "taken.name", 1, None),
            ("of nothing", "nowhere", 3, None), ("too few lists", "taken.name", 3, [[0]]),
            ("an unknown broker", "taken.name", 2, [[7]]), ("another factor", "taken.name", 2, [[0, 1]]),
            ("no replica", "taken.name", 2, [[]]), ("twice", "taken.name", 2, [[0, 0]]),
        ):  # fmt: skip
            lists = None
            if brokers is not None:
                lists = [
                    CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=ids) for ids in brokers
                ]
            grown = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=lists)
            answer = await recorder.send("anna", CreatePartitionsRequest(topics=[grown], timeout_ms=5000), 3)
            recorder.note(f"partitions: {label}", [(t.name, t.error_code) for t in answer.results])

        state = DeleteTopicsRequest.DeleteTopicState
        for label, rows in {
            "nothing by name": [state(name="nowhere")],
            "nothing by id": [state(name=None, topic_id=uuid.UUID(int=5))],
            "name and id": [state(name="taken.name", topic_id=uuid.UUID(int=5))],
        }.items():
            answer = await recorder.send("anna", DeleteTopicsRequest(topics=rows, timeout_ms=5000), 6)
            recorder.note(f"delete: {label}", [(t.name, t.error_code) for t in answer.responses])

    same(ports, scenario)

"""Raw administrative requests to Apache Kafka 3.9.1 and to Ottla: every response is the same.

DeleteRecords, DescribeLogDirs, producer ids, ElectLeaders, OffsetForLeaderEpoch, FindCoordinator and
DescribeProducers, in every version, also with invalid contents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from ottla.protocol import messages as m
from ottla.wire.connection import ConnectionLost
from tests.judges.request_recorder import (
    RequestRecorder,
    kafka_and_ottla,
    same,
    side_by_side,
    until,
    until_led,
)
from tests.oracles import needs_kafka_jars

SETTINGS = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "3",
    "auto.create.topics.enable": "false",
}
TOPICS: Mapping[str, Mapping[str, str]] = {
    "t": {},
    "compacted": {"cleanup.policy": "compact"},
    "both": {"cleanup.policy": "compact,delete"},
}
RECORDS = 10
HIGH_WATERMARK = -1
WORDS = ("error_message",)
"""Each has its own."""
pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    needs_kafka_jars()
    directory: Path = tmp_path_factory.mktemp("admin")
    with kafka_and_ottla(directory, SETTINGS) as by_name:
        side_by_side(by_name, make_topics)
        for port in by_name.values():
            produce(port)
        yield by_name


async def make_topics(recorder: RequestRecorder) -> None:
    row, setting = m.CreateTopicsRequest.CreatableTopic, m.CreateTopicsRequest.CreatableTopicConfig
    topics = [
        row(
            name=name,
            num_partitions=2,
            replication_factor=1,
            configs=[setting(name=n, value=v) for n, v in settings.items()],
        )
        for name, settings in TOPICS.items()
    ]
    await recorder.send("anna", m.CreateTopicsRequest(topics=topics, timeout_ms=20_000), 5)
    await until_led(recorder, TOPICS)


def produce(port: int) -> None:
    producer = Producer(
        {"bootstrap.servers": f"127.0.0.1:{port}", "enable.idempotence": True, "linger.ms": 0}
    )
    for topic in TOPICS:
        for n in range(RECORDS):
            producer.produce(topic, b"v%d" % n, key=b"k", partition=0)
            assert producer.flush(60) == 0  # each in a batch of its own: sizes are compared


def delete(*wanted: tuple[str, int, int], timeout_ms: int = 10_000) -> m.DeleteRecordsRequest:
    part = m.DeleteRecordsRequest.DeleteRecordsPartition
    topics = [
        m.DeleteRecordsRequest.DeleteRecordsTopic(
            name=topic, partitions=[part(partition_index=p, offset=offset)]
        )
        for topic, p, offset in wanted
    ]
    return m.DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms)


def test_records_are_deleted(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        for version in (0, 1, 2):
            await recorder.ask(f"v{version}", "anna", delete(("t", 0, version + 1)), version)
        await recorder.ask("once more", "anna", delete(("t", 0, 3)), 2)
        await recorder.ask("what is gone already", "anna", delete(("t", 0, 1)), 2)
        await recorder.ask("beyond the end", "anna", delete(("t", 0, RECORDS + 1)), 2)
        await recorder.ask("a negative one", "anna", delete(("t", 0, -2)), 2)
        await recorder.ask("nothing there", "anna", delete(("t", 1, 0)), 2)
        await recorder.ask("no such partition", "anna", delete(("t", 7, 0)), 2)
        await recorder.ask("no such topic", "anna", delete(("nope", 0, 0)), 2)
        await recorder.ask("compacted", "anna", delete(("compacted", 0, 5)), 2)
        await recorder.ask("compacted and deleted", "anna", delete(("both", 0, 5)), 2)
        await recorder.ask("no time", "anna", delete(("both", 0, 6), timeout_ms=0), 2)
        several = delete(("both", 1, HIGH_WATERMARK), ("nope", 0, 0), ("compacted", 0, 1))
        await recorder.ask("several", "anna", several, 2)
        await recorder.ask("all of it", "anna", delete(("t", 0, HIGH_WATERMARK)), 2)
        row = m.ListOffsetsRequest.ListOffsetsPartition
        asked = m.ListOffsetsRequest.ListOffsetsTopic(
            name="t", partitions=[row(partition_index=0, timestamp=-2)]
        )
        earliest = m.ListOffsetsRequest(replica_id=-1, topics=[asked])
        await recorder.ask("what is left", "anna", earliest, 6)

    same(ports, scenario)


def test_records_of_internal_topics_cannot_be_deleted(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        await recorder.wait_for_coordinator()
        await recorder.ask("offsets", "anna", delete(("__consumer_offsets", 0, 0)), 2)

    same(ports, scenario)


def test_log_directories(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        async def ask(label: str, topics: Mapping[str, list[int]] | None, version: int) -> None:
            row = m.DescribeLogDirsRequest.DescribableLogDirTopic
            rows = None if topics is None else [row(topic=t, partitions=p) for t, p in topics.items()]
            answer = await recorder.send("anna", m.DescribeLogDirsRequest(topics=rows), version)
            for result in answer.results:
                result.topics = [t for t in result.topics if not t.name.startswith("__")]
                assert (result.total_bytes > result.usable_bytes > 0) == (version >= 4)
            recorder.note(label, answer, ignoring=["log_dir", "total_bytes", "usable_bytes"])

        for version in range(5):
            await ask(f"all, v{version}", None, version)
        await ask("one", {"t": [0, 9], "nope": [0]}, 4)
        await ask("none", {}, 4)

    same(ports, scenario)


def test_producer_ids(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        async def init(label: str, version: int, **fields: Any) -> None:
            answer = await recorder.send("anna", m.InitProducerIdRequest(**fields), version)
            assert answer.error_code or answer.producer_id >= 0
            recorder.note(label, answer, ignoring=() if answer.error_code else ["producer_id"])

        for version in range(6):
            await init(f"v{version}", version, transactional_id=None)
        await init("again", 4, transactional_id=None, producer_id=5, producer_epoch=3)
        await init("half given", 4, transactional_id=None, producer_id=5)
        await init("no id at all", 4, transactional_id="")
        for broker, epoch in ((7, 1), (0, 0), (0, -1)):
            request = m.AllocateProducerIdsRequest(broker_id=broker, broker_epoch=epoch)
            await recorder.ask(f"a block for {broker} in {epoch}", "anna", request, 0)

    same(ports, scenario)


def elect(kind: int, topics: Mapping[str, list[int]] | None) -> m.ElectLeadersRequest:
    row = m.ElectLeadersRequest.TopicPartitions
    rows = None if topics is None else [row(topic=t, partitions=p) for t, p in topics.items()]
    return m.ElectLeadersRequest(election_type=kind, topic_partitions=rows, timeout_ms=5_000)


def test_elections(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        for version in (0, 1, 2):
            wanted = {"t": [0, 7], "nope": [0]}
            await recorder.ask(f"preferred, v{version}", "anna", elect(0, wanted), version, ignoring=WORDS)
            await recorder.ask(f"all, v{version}", "anna", elect(0, None), version, ignoring=WORDS)
            await recorder.ask(f"none, v{version}", "anna", elect(0, {}), version, ignoring=WORDS)
        await recorder.ask("unclean", "anna", elect(1, {"t": [0, 7], "nope": [0]}), 2, ignoring=WORDS)
        await recorder.ask("unclean, all", "anna", elect(1, None), 2, ignoring=WORDS)

    same(ports, scenario)


def test_offsets_of_leader_epochs(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        async def ask(label: str, version: int, *parts: tuple[int, int, int]) -> None:
            row = m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition
            rows = [
                row(partition=p, current_leader_epoch=current, leader_epoch=epoch)
                for p, current, epoch in parts
            ]
            topic = m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic
            topics = [topic(topic="compacted", partitions=rows)]
            await recorder.ask(label, "anna", m.OffsetForLeaderEpochRequest(topics=topics), version)

        for version in range(5):
            await ask(f"v{version}", version, (0, -1, 0), (0, -1, 5), (0, -1, -1), (1, -1, 0), (7, -1, 0))
        await ask("the present epoch", 4, (0, 0, 0))
        await ask("a later epoch", 4, (0, 3, 0))
        await ask("an epoch of none", 4, (0, 0, -5))

    same(ports, scenario)


def test_coordinators(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        await recorder.wait_for_coordinator()

        async def found(kind: int) -> bool:
            answer = await recorder.send("anna", m.FindCoordinatorRequest(key="x", key_type=kind), 2)
            return bool(answer.error_code == 0)

        await until(lambda: found(1))
        port = ["port", "host"]
        await recorder.ask("v0", "anna", m.FindCoordinatorRequest(key="g"), 0, ignoring=port)
        for version in range(1, 7):
            for kind in (0, 1):
                keys: dict[str, Any] = {"coordinator_keys": ["a", "b", ""]} if version > 3 else {"key": "a"}
                request = m.FindCoordinatorRequest(key_type=kind, **keys)
                await recorder.ask(f"type {kind}, v{version}", "anna", request, version, ignoring=port)
        for version in (4, 6):
            nobody = m.FindCoordinatorRequest(key_type=0, coordinator_keys=[])
            await recorder.ask(f"no key, v{version}", "anna", nobody, version)
            share = m.FindCoordinatorRequest(key_type=2, coordinator_keys=["a"])
            await recorder.ask(f"share group, v{version}", "anna", share, version, ignoring=WORDS)
        for version in (1, 3):
            share = m.FindCoordinatorRequest(key_type=2, key="a")
            await recorder.ask(f"share group, v{version}", "anna", share, version, ignoring=WORDS)
        for version, keys in ((2, {"key": "a"}), (5, {"coordinator_keys": ["a"]})):
            unknown = m.FindCoordinatorRequest(key_type=9, **keys)
            await recorder.ask(f"no such type, v{version}", "anna", unknown, version, ignoring=WORDS)

    same(ports, scenario)


def producers(topics: Mapping[str, Sequence[int]]) -> m.DescribeProducersRequest:
    row = m.DescribeProducersRequest.TopicRequest
    return m.DescribeProducersRequest(
        topics=[row(name=name, partition_indexes=list(p)) for name, p in topics.items()]
    )


def test_producers_are_described(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        answer = await recorder.send("anna", producers({"compacted": [0, 1]}), 0)
        for partition in answer.topics[0].partitions:
            for producer in partition.active_producers:
                assert producer.last_timestamp > 0
        recorder.note("both", answer, ignoring=["producer_id", "last_timestamp"])
        await recorder.ask("no such", "anna", producers({"t": [9], "nope": [0]}), 0, ignoring=WORDS)

    same(ports, scenario)


def test_features_are_refused(ports: dict[str, int]) -> None:
    row = m.UpdateFeaturesRequest.FeatureUpdateKey

    async def scenario(recorder: RequestRecorder) -> None:
        async def update(label: str, *updates: object, version: int = 1, **options: Any) -> None:
            request = m.UpdateFeaturesRequest(timeout_ms=10_000, feature_updates=list(updates), **options)
            await recorder.ask(label, "anna", request, version)

        await update("nothing")
        await update("unknown", row(feature="metadata.version", max_version_level=20))
        await update("unnamed", row(feature="", max_version_level=1))
        await update("no level", row(feature="group.version", max_version_level=0))
        await update("below", row(feature="group.version", max_version_level=-3))
        for kind in (0, 2, 3, 4, -1):
            await update(f"take away {kind}", row(feature="f", max_version_level=0, upgrade_type=kind))
            await update(f"lower {kind}", row(feature="f", max_version_level=1, upgrade_type=kind))
        await update("only asked", row(feature="f", max_version_level=1), validate_only=True)
        await update(
            "several",
            row(feature="f", max_version_level=1),
            row(feature="g", max_version_level=0),
            row(feature="h", max_version_level=0, upgrade_type=2),
        )
        for allowed in (False, True):
            for level in (0, 1):
                update_0 = row(feature="f", max_version_level=level, allow_downgrade=allowed)
                await update(f"version 0, {level} {allowed}", update_0, version=0)

    same(ports, scenario)


def test_kraft_apis_are_not_served(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        await recorder.ask(
            "join", "anna", m.ConsumerGroupHeartbeatRequest(group_id="g", topic_partitions=[]), 0
        )
        await recorder.ask("describe", "anna", m.ConsumerGroupDescribeRequest(group_ids=["g", "", "h"]), 0)
        await recorder.ask("describe none", "anna", m.ConsumerGroupDescribeRequest(), 0)
        served = await recorder.send("anna", m.ApiVersionsRequest(), 3)
        left_out = [row for row in served.api_keys if row.api_key in (57, 58, 68, 69)]
        recorder.note("advertised", left_out)
        envelope = m.EnvelopeRequest(request_data=b"", request_principal=b"", client_host_address=b"")
        with pytest.raises(ConnectionLost):
            await recorder.send("bert", envelope, 0)
        recorder.note("an envelope", "closes the connection")

    same(ports, scenario)


def test_there_are_no_acls_without_an_authorizer(ports: dict[str, int]) -> None:
    entry = {"principal": "User:anna", "host": "*", "operation": 3, "permission_type": 3}
    wanted = {"resource_type_filter": 2, "resource_name_filter": "t", "pattern_type_filter": 3}
    who = {"principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1}
    creation = m.CreateAclsRequest.AclCreation(resource_type=2, resource_name="t", **entry)

    async def scenario(recorder: RequestRecorder) -> None:
        for version in range(4):
            describe = m.DescribeAclsRequest(**wanted, **who)
            await recorder.ask(f"describe v{version}", "anna", describe, version)
            await recorder.ask(
                f"create v{version}", "anna", m.CreateAclsRequest(creations=[creation]), version
            )
            delete = m.DeleteAclsRequest(filters=[m.DeleteAclsRequest.DeleteAclsFilter(**wanted, **who)])
            await recorder.ask(f"delete v{version}", "anna", delete, version)

    same(ports, scenario)

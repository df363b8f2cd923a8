"""Groups over their whole life, with Apache Kafka 3.9.1 beside Ottla: what expires, what is written down
about it, and what kafka-consumer-groups.sh says while members are there and after they left.

A broker of each kind, told the same. Offsets are looked at for expiry every second, and their topic is
compressed, so the records in its files are compared as well.
"""

from __future__ import annotations

import asyncio
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

from ottla.client.admin import AdminClient
from ottla.coordinators.records import partition_for
from ottla.local.cluster import run_admin
from ottla.protocol.messages import IncrementalAlterConfigsRequest, JoinGroupRequest, MetadataRequest
from ottla.protocol.records import decode_batch, iter_batches
from tests.judges.kafka_tools import Command, Printed, run_all
from tests.judges.request_recorder import (
    RequestRecorder,
    commit,
    compare,
    fetch_offsets,
    join,
    kafka_and_ottla,
    leave,
    same,
    side_by_side,
    sync,
    until,
)
from tests.oracles import needs_kafka_jars

PARTITIONS = 3
DELAY_MS = 1000
SETTINGS = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": str(PARTITIONS),
    "offsets.topic.compression.codec": "1",
    "offsets.retention.check.interval.ms": "1000",
    "group.initial.rebalance.delay.ms": str(DELAY_MS),
    "auto.create.topics.enable": "false",
}
AlterConfigsResource = IncrementalAlterConfigsRequest.AlterConfigsResource
AlterableConfig = IncrementalAlterConfigsRequest.AlterableConfig
FOREVER_MS = 1_800_000
"""The longest session: nobody here sends heartbeats."""
_OF_A_STACK = re.compile(r"at |\.\.\. \d+ more")
TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
DATA = {"Apache Kafka": "kafka/data", "Ottla": "ottla/data"}
pytestmark = pytest.mark.timeout(420)


class Sides(NamedTuple):
    directory: Path
    ports: dict[str, int]


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    needs_kafka_jars()
    directory: Path = tmp_path_factory.mktemp("lives")
    with kafka_and_ottla(directory, SETTINGS) as ports:
        for port in ports.values():
            make_topics(port)
        side_by_side(ports, lambda recorder: recorder.wait_for_coordinator())
        yield Sides(directory, ports)


def make_topics(port: int) -> None:
    async def make(client: AdminClient) -> None:
        for topic in ("t", "u"):
            await client.create_topic(topic, partitions=2, replication_factor=1)

    run_admin([("127.0.0.1", port)], make)
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}"})
    for topic in ("t", "u"):
        for at in range(10):
            producer.produce(topic, b"%d" % at, partition=at % 2, timestamp=1_700_000_000_000 + at * 1000)
    assert producer.flush(90) == 0


async def expired(recorder: RequestRecorder, group: str, topic: str) -> None:
    async def gone() -> bool:
        answer = await recorder.send("watcher", fetch_offsets(group, {topic: [0]}), 7)
        return bool(answer.topics[0].partitions[0].committed_offset == -1)

    await until(gone)


def written(folder: Path, group: str) -> list[object]:
    """The batches about the group in its partition of the topic: codec, and what its records are."""
    log = folder / f"__consumer_offsets-{partition_for(group, PARTITIONS)}" / f"{0:020}.log"
    data = log.read_bytes()
    name = struct.pack(">h", len(group)) + group.encode()
    batches: list[object] = []
    for position, header in iter_batches(data):
        records = [
            (record.key, None if record.value is None else struct.unpack_from(">h", record.value)[0])
            for record in decode_batch(data, position)
            if record.key is not None and record.key.startswith(name, 2)
        ]
        if records:
            batches.append((header.codec.name, header.timestamp_type.name, sorted(records)))
    return batches


def test_the_first_rebalance_waits_for_more_members(sides: Sides) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        for client in ("anna", "bert", "carl"):
            await recorder.send(client, MetadataRequest(topics=[]), 5)  # connected, so that all join at once
        began = time.monotonic()
        joins = [recorder.begin(client, join("first"), 3) for client in ("anna", "bert", "carl")]
        answers = await asyncio.gather(*joins)
        waited = (time.monotonic() - began) * 1000 >= DELAY_MS
        shown = sorted((answer.generation_id, len(answer.members)) for answer in answers)
        recorder.note("joined", {"waited": waited, "generations and members": shown})

    by_broker = same(sides.ports, scenario)
    assert by_broker["joined"] == {"waited": True, "generations and members": [(1, 0), (1, 0), (1, 3)]}


def test_offsets_expire_and_leave_tombstones(sides: Sides) -> None:
    """A minute is the shortest offsets.retention.minutes; a commit of version 2 to 4 may ask for a ms."""

    async def scenario(recorder: RequestRecorder) -> None:
        # A consumer keeps what it subscribes to, however old.
        member = (await recorder.send("anna", join("reads-t", session_ms=FOREVER_MS), 3)).member_id
        await recorder.send("anna", sync("reads-t", 1, member, {member: b"x"}), 3)
        for topic in ("t", "u"):
            await recorder.ask(
                f"commit {topic}", "anna", commit("reads-t", 1, member, 3, topic=topic, retention_ms=1), 4
            )
        await recorder.ask("commit for good", "anna", commit("stays", -1, "", 4), 7)
        await recorder.ask("commit for a moment", "anna", commit("goes", -1, "", 4, retention_ms=1), 2)
        await expired(recorder, "reads-t", "u")
        await recorder.ask("subscribed", "anna", fetch_offsets("reads-t", {"t": [0], "u": [0]}), 7)
        await recorder.wait_for_group("goes", state="Dead")
        await recorder.ask("for good", "anna", fetch_offsets("stays", None), 7)
        # Without members it is as any other group.
        await recorder.ask("it leaves", "anna", leave("reads-t", (member, None)), 5)
        await recorder.wait_for_group("reads-t", state="Dead")
        await recorder.ask("nothing is left", "anna", fetch_offsets("reads-t", None), 7)

    by_broker = side_by_side(sides.ports, scenario)
    for name, answers in by_broker.items():
        for group in ("reads-t", "stays", "goes"):
            answers[f"written about {group}"] = written(sides.directory / DATA[name], group)
    compare(by_broker)
    assert by_broker["Ottla"]["written about goes"][0][0] == "GZIP"
    assert len(by_broker["Ottla"]["written about goes"]) == 2


def test_the_log_says_the_same_of_each_rebalance(sides: Sides) -> None:
    """By the lines of Kafka's GroupCoordinator, and for what reason; how a new member gets its id is not
    logged."""
    coordinator = "kafka.coordinator.group.GroupCoordinator"
    level = AlterableConfig(name=coordinator, config_operation=0, value="INFO")
    verbose = AlterConfigsResource(resource_type=8, resource_name="0", configs=[level])

    async def scenario(recorder: RequestRecorder) -> None:
        await recorder.send("anna", IncrementalAlterConfigsRequest(resources=[verbose]), 1)
        answer = await recorder.send("anna", join("logged"), 3)
        assert answer.error_code == 0, answer
        one = answer.member_id
        await recorder.send("anna", sync("logged", 1, one, {one: b"x"}), 3)
        static = recorder.begin("bert", join("logged", instance="i"), 5)
        await recorder.wait_for_group("logged", members=2, state="PreparingRebalance")
        await recorder.send("anna", join("logged", one), 5)
        two = (await static).member_id
        follower = recorder.begin("bert", sync("logged", 2, two, {}, instance="i"), 3)
        await recorder.send("anna", sync("logged", 2, one, {one: b"x", two: b"y"}), 3)
        await follower
        # The leader has new topics, say.
        again = recorder.begin("anna", join("logged", one), 5)
        await recorder.wait_for_group("logged", state="PreparingRebalance")
        await recorder.send("bert", join("logged", two, instance="i", session_ms=6000), 5)
        await again
        reasons = leave("logged", (one, None))
        reasons.members[0].reason = "the consumer is closed"
        await recorder.send("anna", reasons, 5)
        await recorder.wait_for_group("logged", state="Empty")  # without heartbeats

    side_by_side(sides.ports, scenario)
    kafkas = (sides.directory / "kafka/kafka.log").read_text()
    ours = (sides.directory / "ottla/broker.log").read_text()
    said = {
        "Apache Kafka": re.findall(r"INFO GroupCoordinator \[GroupCoordinator 0\]: (.* logged .*)", kafkas),
        "Ottla": re.findall(r"INFO +ottla\.coordinators\.\w+: (.* logged .*)", ours),
    }
    compare(
        {
            name: {"lines": [without_ids(line) for line in lines if "unknown member id joins" not in line]}
            for name, lines in said.items()
        }
    )
    assert len(said["Ottla"]) > 10


def without_ids(line: str) -> str:
    line = re.sub(r"MemberMetadata\(memberId=([^,]*),[^)]*\)+", r"\1", line)
    line = re.sub(r"Some\((\w+)\)", r"\1", line)
    return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", line).rstrip(".")


def assignment(topic: str, partition: int) -> bytes:
    """ConsumerProtocolAssignment, version 1, without user data."""
    head = struct.pack(">hih", 1, 1, len(topic)) + topic.encode()
    return head + struct.pack(">iii", 1, partition, -1)


# More of groups without members is in test_tools_like_kafka.
COMMANDS = (
    "--describe --group live",
    "--describe --group live --members --verbose",
    "--describe --group live --state",
    "--list --state stable,Empty --type classic",
    "--reset-offsets --group live --topic t --to-earliest --execute",
    "--delete --group live",
    "--delete-offsets --group live --topic t --topic u:1",
    "--describe --group idle --members",
    "--reset-offsets --group idle --topic t --to-current --dry-run",
    "--reset-offsets --group idle --topic t:0 --to-datetime 2023-11-14T22:13:24.000 --execute",
    "--reset-offsets --group idle --from-file @plan.csv --execute",
    "--reset-offsets --group idle --topic t --to-offset 99 --dry-run",
    "--reset-offsets --group idle --group live --topic t --to-earliest --dry-run",
    "--describe --group idle",
)


def test_kafka_consumer_groups_prints_the_same_for_kafka_and_ottla(sides: Sides) -> None:
    """Of a group with two members, and of one that only commits."""
    (sides.directory / "plan.csv").write_text("t,0,2\nt,1,1\n")

    def joining(member: str = "") -> JoinGroupRequest:
        return join("live", member, session_ms=FOREVER_MS, rebalance_ms=FOREVER_MS)

    async def scenario(recorder: RequestRecorder) -> None:
        one = (await recorder.send("anna", joining(), 3)).member_id
        newcomer = recorder.begin("bert", joining(), 3)
        await recorder.wait_for_group("live", members=2, state="PreparingRebalance")
        await recorder.send("anna", joining(one), 3)
        two = (await newcomer).member_id
        follower = recorder.begin("bert", sync("live", 2, two), 3)
        given = {one: assignment("t", 0), two: assignment("t", 1)}
        await recorder.send("anna", sync("live", 2, one, given), 3)
        await follower
        for topic, partition, offset in (("t", 0, 2), ("u", 1, 1), ("u", 0, 5)):
            request = commit("live", 2, one, offset, topic=topic, partition=partition)
            await recorder.ask(f"live: {topic}-{partition}", "anna", request, 7)
            request = commit("idle", -1, "", offset, topic=topic, partition=partition)
            await recorder.ask(f"idle: {topic}-{partition}", "anna", request, 7)

    same(sides.ports, scenario)
    commands = []
    for port in sides.ports.values():
        for line in COMMANDS:
            words = [str(sides.directory / w[1:]) if w.startswith("@") else w for w in line.split()]
            server = ["--bootstrap-server", f"127.0.0.1:{port}", "--timeout", "90000"]
            commands.append(Command(TOOL, [*server, *words]))
    printed = [comparable(shown) for shown in run_all(commands, sides.directory)]
    count = len(COMMANDS)
    by_broker = {name: printed[at * count : (at + 1) * count] for at, name in enumerate(sides.ports)}
    differing = [
        f"{line}\n  Apache Kafka: {kafkas}\n  Ottla:        {ours}"
        for line, kafkas, ours in zip(COMMANDS, by_broker["Apache Kafka"], by_broker["Ottla"], strict=True)
        if kafkas != ours
    ]
    assert not differing, "\n".join(differing)


def comparable(shown: Printed) -> tuple[int, list[str], list[str]]:
    """Ids and ports differ; rows come in no order; columns are as wide as what is in them."""
    texts = []
    for text in (shown.out, shown.err):
        text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", text)
        text = re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", text)
        text = re.sub(r"^[0-9-]+ [0-9:,]+ WARN", "WARN", text, flags=re.MULTILINE)
        lines = [" ".join(line.split()) for line in text.splitlines()]
        texts.append(sorted(line for line in lines if not _OF_A_STACK.match(line)))
    return shown.status, texts[0], texts[1]

"""The same requests about client quotas to Apache Kafka 3.9.1 and to Ottla: the same answers, the same tree.

One broker of each kind, over one ZooKeeper; raw requests, so that what no client would send is asked too.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kazoo.client import KazooClient

from bench.apache_kafka import run_tool
from ottla.client.admin import AdminClient
from ottla.local.brokers import BrokerProcess
from ottla.local.cluster import run_admin
from ottla.local.processes import free_port
from ottla.protocol import messages as m
from ottla.protocol.messages import (
    AlterClientQuotasRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClientQuotasRequest,
    FetchRequest,
    FetchResponse,
    ProduceRequest,
    ProduceResponse,
)
from ottla.protocol.records import Record, build_batch
from ottla.protocol.types import Message
from ottla.wire.connection import BrokerConnection
from tests.judges.kafka_tools import run_program
from tests.judges.request_recorder import RequestRecorder, kafka_and_ottla, same, until
from tests.oracles import needs_kafka_jars

SETTINGS = {"offsets.topic.replication.factor": "1", "auto.create.topics.enable": "false"}
pytestmark = pytest.mark.timeout(420)

Entity = Mapping[str, str | None]
Scenario = Callable[[RequestRecorder], Coroutine[Any, Any, None]]

ANY_NAME = 2


class Brokers(NamedTuple):
    """Apache Kafka under /kafka, ours under /ottla."""

    zookeeper: str
    kafka: int
    ottla: int
    tree: KazooClient
    directory: Path

    def same(self, scenario: Scenario) -> dict[str, Any]:
        """Hold both conversations; every answer must be the same. Returns them."""
        return same({"Apache Kafka": self.kafka, "Ottla": self.ottla}, scenario)

    def quotas(self, root: str) -> dict[str, Any]:
        """All nodes of quotas under a root, with what they hold."""
        found: dict[str, Any] = {}

        def walk(path: str) -> None:
            data = self.tree.get(f"{root}{path}")[0]
            found[path] = json.loads(data) if data else None
            for child in self.tree.get_children(f"{root}{path}"):
                walk(f"{path}/{child}")

        for entity_type in ("clients", "users", "ips"):
            walk(f"/config/{entity_type}")
        return found

    def notifications(self, root: str) -> list[Any]:
        changes = f"{root}/config/changes"
        return [
            json.loads(self.tree.get(f"{changes}/{name}")[0])
            for name in sorted(self.tree.get_children(changes))
        ]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    needs_kafka_jars()
    directory = tmp_path_factory.mktemp("quotas")
    connects: list[str] = []
    with kafka_and_ottla(directory, SETTINGS, prepare=connects.append) as ports, ExitStack() as running:
        zookeeper = connects[0].partition("/")[0]
        tree = KazooClient(zookeeper)
        running.callback(tree.close)
        running.callback(tree.stop)
        tree.start()
        for port in ports.values():
            run_admin([("127.0.0.1", port)], make_topic)
        yield Brokers(zookeeper, *ports.values(), tree, directory)


async def make_topic(client: AdminClient) -> None:
    await client.create_topic("t", partitions=2, replication_factor=1)


def alter(
    *changes: tuple[Entity, Mapping[str, float | None]], validate_only: bool = False
) -> AlterClientQuotasRequest:
    return AlterClientQuotasRequest(
        validate_only=validate_only,
        entries=[
            AlterClientQuotasRequest.EntryData(
                entity=[
                    AlterClientQuotasRequest.EntityData(entity_type=kind, entity_name=name)
                    for kind, name in entity.items()
                ],
                ops=[
                    AlterClientQuotasRequest.OpData(
                        key=key, value=0.0 if value is None else value, remove=value is None
                    )
                    for key, value in values.items()
                ],
            )
            for entity, values in changes
        ],
    )


def describe(*components: tuple[str, int, str | None], strict: bool = False) -> DescribeClientQuotasRequest:
    return DescribeClientQuotasRequest(
        strict=strict,
        components=[
            DescribeClientQuotasRequest.ComponentData(entity_type=kind, match_type=match_type, match=match)
            for kind, match_type, match in components
        ],
    )


RATES = {"producer_byte_rate": 1000.0, "consumer_byte_rate": 2000.0}
EVERYONE: list[tuple[Entity, Mapping[str, float | None]]] = [
    ({"user": "anna", "client-id": "c1"}, RATES),
    ({"user": "anna", "client-id": None}, RATES),
    ({"user": "anna"}, RATES),
    ({"user": None, "client-id": "c1"}, RATES),
    ({"user": None, "client-id": None}, RATES),
    ({"user": None}, {"request_percentage": 1250.5, "controller_mutation_rate": 1e8}),
    ({"client-id": "c1"}, RATES),
    ({"client-id": None}, RATES),
    ({"client-id": "ö/+ *~.-_%<default>"}, {"producer_byte_rate": 7.0}),
    ({"user": "CN=w,O=x y", "client-id": "a b"}, {"request_percentage": 0.0001}),
    ({"ip": "10.1.2.3"}, {"connection_creation_rate": 5.0}),
    ({"ip": None}, {"connection_creation_rate": 6000.0}),
]


def test_quotas_are_described_altered_and_stored_as_in_kafka(brokers: Brokers) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        for version in (0, 1):
            await recorder.ask(f"all there is at first, v{version}", "anna", describe(), version)
        await recorder.ask("set, v1", "anna", alter(*EVERYONE), 1)
        await recorder.ask("set again, v0", "anna", alter(*EVERYONE[:3]), 0)
        for strict in (False, True):
            for components in (
                (),
                (("user", 0, "anna"),),
                (("user", 1, None),),
                (("user", ANY_NAME, None),),
                (("client-id", 0, "c1"),),
                (("client-id", 1, "ignored"),),
                (("client-id", ANY_NAME, None),),
                (("user", 0, "anna"), ("client-id", 0, "c1")),
                (("user", 0, "anna"), ("client-id", ANY_NAME, None)),
                (("user", 1, None), ("client-id", 1, None)),
                (("user", ANY_NAME, None), ("client-id", ANY_NAME, None)),
                (("user", 0, "nobody"),),
                (("client-id", 0, ""),),
                (("client-id", 0, "ö/+ *~.-_%<default>"),),
                (("ip", 0, "10.1.2.3"),),
                (("ip", 1, None),),
                (("ip", ANY_NAME, None),),
                (("ip", 0, "127.0.0.2"),),
                (("user", 0, ""),),
                (("user", 0, ""), ("client-id", 0, "c1")),
                (("user", 0, "anna"), ("client-id", 0, "")),
                (("user", 0, ""), ("client-id", ANY_NAME, None)),
                (("ip", 0, ""),),
            ):
                await recorder.ask(
                    f"describe {components} {strict}", "anna", describe(*components, strict=strict), 1
                )

    answers = brokers.same(scenario)
    assert len(answers["describe () False"]["entries"]) == len(EVERYONE)
    assert brokers.quotas("/ottla") == brokers.quotas("/kafka")
    assert "/config/clients/%C3%B6%2F%2B%20%2A%7E.-_%25%3Cdefault%3E" in brokers.quotas("/kafka")
    assert brokers.notifications("/ottla") == brokers.notifications("/kafka")


def test_invalid_descriptions_get_kafkas_errors(brokers: Brokers) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        for version in (0, 1):
            for components in (
                (("user", 0, "a"), ("user", 0, "b")),
                (("client-id", 0, "a"), ("client-id", 0, "a")),
                (("ip", 0, "a"), ("ip", 1, None)),
                (("", 0, "a"),),
                (("group", 0, "a"),),
                (("USER", 0, "a"),),
                (("user", 0, "a"), ("ip", 0, "b")),
                (("user", 0, None),),
                (("user", 3, "a"),),
                (("user", -1, None),),
            ):
                await recorder.ask(f"{components} v{version}", "anna", describe(*components), version)

    brokers.same(scenario)


def test_invalid_changes_get_kafkas_errors(brokers: Brokers) -> None:
    client = {"client-id": "bad"}
    bad: dict[str, tuple[Entity, Mapping[str, float | None]]] = {
        "nobody": ({}, RATES),
        "unknown type": ({"group": "g"}, RATES),
        "empty user": ({"user": ""}, RATES),
        "empty client": ({"client-id": "", "user": "u"}, RATES),
        "empty address": ({"ip": ""}, {"connection_creation_rate": 1.0}),
        "address and user": ({"ip": "127.0.0.1", "user": "u"}, RATES),
        "address and client": ({"ip": None, "client-id": None}, RATES),
        "no address": ({"ip": "not.a.host.invalid"}, {"connection_creation_rate": 1.0}),
        "IPv6": ({"ip": "::1"}, {"connection_creation_rate": 1.0}),
        "negative for an address": ({"ip": "127.0.0.9"}, {"connection_creation_rate": -1.0}),
        "unknown key": (client, {"bytes": 1.0}),
        "unknown key, taken away": (client, {"bytes": None}),
        "address key for a client": (client, {"connection_creation_rate": 1.0}),
        "client key for an address": ({"ip": None}, {"producer_byte_rate": 1.0}),
        "credentials": ({"user": "u"}, {"SCRAM-SHA-256": 1.0}),
        "credentials of a pair": ({"user": "u", "client-id": "c"}, {"SCRAM-SHA-512": 1.0}),
        "credentials of a client": (client, {"SCRAM-SHA-256": 1.0}),
        "a fraction": (client, {"producer_byte_rate": 1.5}),
        "a fraction of a connection": ({"ip": None}, {"connection_creation_rate": 0.5}),
        "too many connections": ({"ip": None}, {"connection_creation_rate": 3e9}),
        "infinite": (client, {"producer_byte_rate": float("inf")}),
        "minus infinite": (client, {"producer_byte_rate": float("-inf")}),
        "one bad of two": (client, {"producer_byte_rate": 1.0, "consumer_byte_rate": 0.1}),
    }

    async def scenario(recorder: RequestRecorder) -> None:
        for label, change in bad.items():
            await recorder.ask(label, "anna", alter(change), 1)
        await recorder.ask(
            "good and bad", "anna", alter(bad["a fraction"], (client, {"request_percentage": 1.0})), 1
        )
        await recorder.ask("only looked at", "anna", alter((client, RATES), validate_only=True), 1)
        await recorder.ask("only looked at, bad", "anna", alter(*bad.values(), validate_only=True), 0)
        await recorder.ask("what came of it", "anna", describe(("client-id", 0, "bad")), 1)

    brokers.same(scenario)
    assert brokers.quotas("/ottla") == brokers.quotas("/kafka")


def test_unusual_numbers_are_stored_as_in_kafka(brokers: Brokers) -> None:
    numbers = (0.0, -0.0, 1.0, 0.001, 0.00099, 123456.75, 9999999.0, 1e7, 12345678.9, 1e21, 1e300, -3.5)
    whole = (0.0, -1.0, -7.0, 4.9999999, 5.0000001, 2.0**40, 1e18, 1e19, float("nan"))

    async def scenario(recorder: RequestRecorder) -> None:
        rates = {
            **{
                f"r{n}": {"request_percentage": value}
                for n, value in enumerate((*numbers, float("nan"), float("inf")))
            },
            **{f"w{n}": {"producer_byte_rate": value} for n, value in enumerate(whole)},
        }
        await recorder.ask(
            "set", "anna", alter(*[({"user": name}, values) for name, values in rates.items()]), 1
        )

    brokers.same(scenario)
    assert brokers.quotas("/ottla") == brokers.quotas("/kafka")


def test_empty_nodes_are_removed_as_in_kafka(brokers: Brokers) -> None:
    gone = dict.fromkeys(RATES)

    async def scenario(recorder: RequestRecorder) -> None:
        async def change(entity: Entity, values: Mapping[str, float | None]) -> None:
            await recorder.ask(f"{len(recorder.answers)}", "bert", alter((entity, values)), 1)

        for client in ("x", "y"):
            await change({"user": "only", "client-id": client}, RATES)
            await change({"user": "both", "client-id": client}, RATES)
        await change({"user": "both"}, RATES)
        await change({"user": "only", "client-id": "x"}, gone)
        await change({"user": "both"}, gone)
        await change({"client-id": "never"}, gone)
        await change({"client-id": "c1"}, {"producer_byte_rate": None})

    brokers.same(scenario)
    assert brokers.quotas("/ottla") == brokers.quotas("/kafka")

    async def the_rest(recorder: RequestRecorder) -> None:
        await recorder.ask(
            "a user's last client", "bert", alter(({"user": "only", "client-id": "y"}, gone)), 1
        )
        await recorder.ask("one of two", "bert", alter(({"user": "both", "client-id": "y"}, gone)), 1)
        await recorder.ask("and the other", "bert", alter(({"user": "both", "client-id": "x"}, gone)), 1)

    brokers.same(the_rest)
    ours = brokers.quotas("/ottla")
    assert ours == brokers.quotas("/kafka")
    assert not any("only" in path or "both" in path for path in ours)
    assert brokers.notifications("/ottla") == brokers.notifications("/kafka")


def produce(size: int, acks: int = 1, partition: int = 0) -> ProduceRequest:
    batch = build_batch([Record(0, 1_700_000_000_000, b"k", b"v" * size)])
    part = ProduceRequest.PartitionProduceData(index=partition, records=bytes(batch))
    return ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        topic_data=[ProduceRequest.TopicProduceData(name="t", partition_data=[part])],
    )


async def ask(port: int, client: str, request: Message, version: int | None) -> Any:
    connection = await BrokerConnection.open("127.0.0.1", port, client_id=client, timeout_s=60)
    try:
        return await connection.request(request, version=version)
    finally:
        connection.close()


async def limit_clients(port: int, names: Iterable[str], **limits: float) -> None:
    """Give each client these limits, and wait until they hold. No other quota is left over them."""
    await ask(port, "anna", alter(*[(whom, dict.fromkeys(rates)) for whom, rates in EVERYONE]), 1)
    await ask(port, "anna", alter(*[({"client-id": name}, limits) for name in names]), 1)
    await ask(port, "anna", alter(({"client-id": "probe"}, {"producer_byte_rate": 100.0})), 1)

    async def is_applied() -> bool:
        """Changes are heard of in order, and the probe's was the last."""
        answer: ProduceResponse = await ask(port, "probe", produce(5000), 9)
        return answer.throttle_time_ms > 0

    await until(is_applied)
    await ask(port, "anna", alter(({"client-id": "probe"}, {"producer_byte_rate": None})), 1)

    async def forgotten() -> bool:
        answer: ProduceResponse = await ask(port, "probe", produce(5000), 9)
        return answer.throttle_time_ms == 0

    await until(forgotten)


def fetch(session_epoch: int, partition: int = 0) -> FetchRequest:
    part = FetchRequest.FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 24,
        session_epoch=session_epoch,
        topics=[FetchRequest.FetchTopic(topic="t", partitions=[part])],
    )


def test_a_produce_over_the_limit_is_told_to_wait_as_long(brokers: Brokers) -> None:
    """The first request of a client: how long it has to wait hangs on its size alone."""
    cases = {f"slow-{acks}-{version}": (acks, version) for acks in (1, -1, 7) for version in (3, 8, 9, 11)}

    async def waits(port: int) -> list[int]:
        await limit_clients(port, cases, producer_byte_rate=100.0)
        answers = [
            await ask(port, name, produce(5000, acks), version) for name, (acks, version) in cases.items()
        ]
        return [answer.throttle_time_ms for answer in answers]

    theirs, mine = asyncio.run(waits(brokers.kafka)), asyncio.run(waits(brokers.ottla))
    assert all(wait > 30_000 for wait in theirs), theirs
    assert mine == theirs


def test_a_throttled_fetch_has_kafkas_throttle_time_and_no_records(brokers: Brokers) -> None:
    """One batch is more than the client's windows hold: it goes out for nobody."""
    cases = {f"eager-{version}-{epoch}": (version, epoch) for version in (4, 7, 11, 12) for epoch in (-1, 0)}

    async def answers(port: int) -> list[FetchResponse]:
        await ask(port, "writer", produce(50_000), 9)
        await limit_clients(port, cases, consumer_byte_rate=100.0)
        return [await ask(port, name, fetch(epoch), version) for name, (version, epoch) in cases.items()]

    theirs, mine = asyncio.run(answers(brokers.kafka)), asyncio.run(answers(brokers.ottla))
    assert all(answer.throttle_time_ms > 30_000 for answer in theirs), theirs
    assert mine == theirs
    assert all(answer.responses == [] and answer.session_id == 0 for answer in mine)


def test_a_fetch_reads_at_most_the_quota_of_all_windows(brokers: Brokers) -> None:
    """Of 12 KB it tries to bring 5 KB, ten seconds' worth, and not much is missing for that: the rest of the
    answer is more than 5 KB by a little, so the client has to wait that much."""

    async def wait(port: int) -> int:
        for _ in range(12):
            await ask(port, "writer", produce(1000, partition=1), 9)
        await limit_clients(port, ["careful"], consumer_byte_rate=500.0)
        answer: FetchResponse = await ask(port, "careful", fetch(-1, partition=1), 11)
        return answer.throttle_time_ms

    async def both() -> tuple[int, int]:
        return await wait(brokers.kafka), await wait(brokers.ottla)

    theirs, mine = asyncio.run(both())
    assert 0 < mine < 1000
    assert mine == theirs


def test_kafka_configs_prints_the_same_for_kafka_and_ottla(brokers: Brokers) -> None:
    def reported(port: int) -> list[list[str]]:
        def run(*arguments: str) -> list[str]:
            ran = run_tool(
                "kafka.admin.ConfigCommand", ["--bootstrap-server", f"127.0.0.1:{port}", *arguments]
            )
            lines = (ran.stdout + ran.stderr).splitlines()
            return [str(ran.returncode), *sorted(lines)]

        pair = (
            "--entity-type",
            "users",
            "--entity-name",
            "tool",
            "--entity-type",
            "clients",
            "--entity-default",
        )
        rates = "producer_byte_rate=1024,consumer_byte_rate=2048,request_percentage=200"
        return [run("--alter", *pair, "--add-config", rates), run("--describe", *pair)]

    with ThreadPoolExecutor() as both:
        theirs, mine = both.map(reported, (brokers.kafka, brokers.ottla))
    assert "producer_byte_rate=1024.0" in str(theirs)
    assert mine == theirs


# --- changes of topics (KIP-599) ---------------------------------------------------------------------


def creation(name: str, partitions: int) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    return CreateTopicsRequest(topics=[topic], timeout_ms=60_000)


def growth(name: str, count: int) -> CreatePartitionsRequest:
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
    return CreatePartitionsRequest(topics=[topic], timeout_ms=60_000)


def deletion(name: str, version: int) -> DeleteTopicsRequest:
    if version >= 6:
        return DeleteTopicsRequest(
            topics=[DeleteTopicsRequest.DeleteTopicState(name=name)], timeout_ms=60_000
        )
    return DeleteTopicsRequest(topic_names=[name], timeout_ms=60_000)


def test_controller_mutations_above_the_quota_are_rejected_or_throttled_as_in_kafka(brokers: Brokers) -> None:
    """A hundredth of a partition a second: the bucket holds a ninth of one, and each change overdraws it."""
    rate = 0.01
    changes: dict[str, list[tuple[Message, int]]] = {
        f"create v{v}": [(creation(f"c{v}-{n}", 3), v) for n in range(3)] for v in (4, 5, 6, 7)
    }
    changes |= {f"grow v{v}": [(growth(f"g{v}", n), v) for n in (3, 5, 6)] for v in (1, 2, 3)}
    changes |= {f"delete v{v}": [(deletion(f"d{v}-{n}", v), v) for n in range(3)] for v in (3, 4, 5, 6)}
    changes["only looked at"] = [(replace_validate_only(creation(f"looked-{n}", 100)), 7) for n in range(3)]
    existing = [creation(f"g{v}", 1) for v in (1, 2, 3)]
    existing += [creation(f"d{v}-{n}", 2) for v in (3, 4, 5, 6) for n in range(3)]

    async def scenario(port: int) -> dict[str, list[tuple[list[int], int]]]:
        for request in existing:
            await ask(port, "maker", request, 7)
        await limit_clients(port, changes, controller_mutation_rate=rate)
        reported: dict[str, list[tuple[list[int], int]]] = {}
        for client, requests in changes.items():
            reported[client] = []
            for request, version in requests:
                answer = await ask(port, client, request, version)
                results = getattr(answer, "topics", None) or getattr(answer, "responses", None)
                codes = [result.error_code for result in results or answer.results]
                reported[client].append((codes, answer.throttle_time_ms))
        return reported

    async def both() -> list[dict[str, list[tuple[list[int], int]]]]:
        return list(await asyncio.gather(scenario(brokers.kafka), scenario(brokers.ottla)))

    theirs, mine = asyncio.run(both())
    assert {c: [codes for codes, _ in answers] for c, answers in mine.items()} == {
        c: [codes for codes, _ in answers] for c, answers in theirs.items()
    }
    assert {code for answers in theirs.values() for codes, _ in answers for code in codes} == {0, 89}
    for client, answers in theirs.items():
        for (_, kafka_ms), (_, our_ms) in zip(answers, mine[client], strict=True):
            # What has flown into the bucket between two requests is a matter of the moment.
            assert our_ms == pytest.approx(kafka_ms, abs=100_000), client
            assert (our_ms == 0) == (kafka_ms == 0), client
    assert max(wait_ms for _, wait_ms in mine["create v5"]) > 500_000


def replace_validate_only(request: CreateTopicsRequest) -> CreateTopicsRequest:
    request.validate_only = True
    return request


def test_an_admin_client_gets_the_throttle_error_or_retries_after_it(brokers: Brokers) -> None:
    """Kafka's own. Of a partition a second the bucket holds eleven, and thirteen overdraw it by two."""
    kinds = {"refused": 0.01, "waiting": 1.0}

    def reported(port: int) -> list[tuple[str, int]]:
        for kind, rate in kinds.items():
            names = [f"{kind}-{change}" for change in ("create", "grow", "delete")]
            asyncio.run(limit_clients(port, names, controller_mutation_rate=rate))
        lines = [line.rpartition(" ") for line in run_program("Mutations", f"127.0.0.1:{port}").splitlines()]
        return [(words, int(took_ms)) for words, _, took_ms in lines]

    with ThreadPoolExecutor() as both:
        theirs, mine = both.map(reported, (brokers.kafka, brokers.ottla))
    said = [words for words, _ in mine]
    assert said == [words for words, _ in theirs]
    assert [words.partition(": ")[2] for words in said[:3]] == ["ThrottlingQuotaExceededException, waits"] * 3
    assert [words.split()[-1] for words in said[3:]] == ["done"] * 3
    for _, took_ms in theirs[3:] + mine[3:]:
        assert took_ms > 1900


# --- time (KIP-124) ----------------------------------------------------------------------------------

ASKED_BY_CLIENTS = (
    m.ListOffsetsRequest(replica_id=-1),
    m.MetadataRequest(topics=[]),
    m.OffsetCommitRequest(group_id="g"),
    m.OffsetFetchRequest(groups=[m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g")]),
    m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]),
    m.JoinGroupRequest(group_id="g", session_timeout_ms=1, protocol_type="consumer"),
    m.HeartbeatRequest(group_id="g", member_id="nobody"),
    m.LeaveGroupRequest(group_id="g"),
    m.SyncGroupRequest(group_id="g", member_id="nobody"),
    m.DescribeGroupsRequest(groups=["g"]),
    m.ListGroupsRequest(),
    m.ApiVersionsRequest(client_software_name="x", client_software_version="1"),
    m.CreateTopicsRequest(timeout_ms=1000),
    m.DeleteTopicsRequest(timeout_ms=1000),
    m.DeleteRecordsRequest(timeout_ms=1000),
    m.InitProducerIdRequest(transactional_id=None, producer_id=-1, producer_epoch=-1),
    m.OffsetForLeaderEpochRequest(replica_id=-2),
    m.DescribeConfigsRequest(),
    m.AlterConfigsRequest(),
    m.AlterReplicaLogDirsRequest(),
    m.DescribeLogDirsRequest(topics=[]),
    m.CreatePartitionsRequest(timeout_ms=1000),
    m.DeleteGroupsRequest(groups_names=["nobody"]),
    m.ElectLeadersRequest(topic_partitions=[], timeout_ms=1000),
    m.IncrementalAlterConfigsRequest(),
    m.AlterPartitionReassignmentsRequest(timeout_ms=1000),
    m.ListPartitionReassignmentsRequest(topics=[], timeout_ms=1000),
    m.OffsetDeleteRequest(group_id="g"),
    m.DescribeClientQuotasRequest(),
    m.AlterClientQuotasRequest(),
    m.DescribeProducersRequest(),
    fetch(-1),
    produce(10),
    produce(10, acks=-1),
)


def test_every_response_has_the_throttle_time_of_request_percentage(brokers: Brokers) -> None:
    """With next to nothing of the time allowed each request is too long, and the wait the longest there is.
    Each is asked by a client of its own."""
    cases = {f"slow-{number}": request for number, request in enumerate(ASKED_BY_CLIENTS)}

    async def scenario(port: int) -> dict[str, int]:
        await limit_clients(port, cases, request_percentage=0.00001)

        async def wait_ms(name: str, request: Message) -> int:
            version = 11 if isinstance(request, FetchRequest) else None  # from 13 on it names topics by id
            answer = await ask(port, name, request, version)
            return int(answer.throttle_time_ms)

        waits = await asyncio.gather(*[wait_ms(name, request) for name, request in cases.items()])
        return dict(zip([f"{n} {type(r).__name__}" for n, r in cases.items()], waits, strict=True))

    async def both() -> list[dict[str, int]]:
        return list(await asyncio.gather(scenario(brokers.kafka), scenario(brokers.ottla)))

    theirs, mine = asyncio.run(both())
    assert set(theirs.values()) == {1000}
    assert mine == theirs


def test_a_connection_above_request_percentage_is_muted(brokers: Brokers) -> None:
    async def scenario(port: int) -> float:
        await limit_clients(port, ["silenced"], request_percentage=0.00001)
        connection = await BrokerConnection.open("127.0.0.1", port, client_id="silenced")
        try:
            began = asyncio.get_running_loop().time()
            for _ in range(3):
                await connection.request(m.ListGroupsRequest(), version=4)
            return asyncio.get_running_loop().time() - began
        finally:
            connection.close()

    async def both() -> list[float]:
        return list(await asyncio.gather(scenario(brokers.kafka), scenario(brokers.ottla)))

    theirs, mine = asyncio.run(both())
    # Opening the connection asks ApiVersions, which is the first to be too long.
    assert theirs >= 2
    assert mine >= 2


# --- both in one cluster (last: who has left it is thought to be there for a moment) ------------------


def test_an_ottla_broker_in_kafkas_cluster_enforces_its_quotas_and_its_changes_apply(
    brokers: Brokers,
) -> None:
    """Kafka's tree is read at the start and followed; what we write there Kafka's broker obeys."""
    joined = BrokerProcess(7, brokers.directory / "joined", free_port())
    joined.write_properties(f"{brokers.zookeeper}/kafka", SETTINGS)

    async def waits(port: int, client: str) -> int:
        """Who leads the partition does not matter: a refused produce weighs as much."""
        answer: ProduceResponse = await ask(port, client, produce(5000), 9)
        return answer.throttle_time_ms

    async def scenario() -> None:
        everything = [await ask(port, "anna", describe(), 1) for port in (brokers.kafka, joined.port)]
        kafka, ours = (sorted(map(repr, answer.entries)) for answer in everything)
        assert ours == kafka
        assert await waits(joined.port, "before") > 30_000
        await ask(joined.port, "anna", alter(({"client-id": "of ours"}, {"producer_byte_rate": 100.0})), 1)
        await ask(brokers.kafka, "anna", alter(({"client-id": "of Kafka"}, {"producer_byte_rate": 100.0})), 1)

        async def held() -> bool:
            return await waits(brokers.kafka, "of ours") > 0 and await waits(joined.port, "of Kafka") > 0

        await asyncio.wait_for(until(held), 120)

    asyncio.run(limit_clients(brokers.kafka, ["before"], producer_byte_rate=100.0))
    joined.start_and_wait()
    try:
        asyncio.run(scenario())
    finally:
        joined.stop()

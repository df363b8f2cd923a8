"""The low-level API beside the brokers of Ottla and Apache Kafka: brokers by id, versions, many in flight."""

from __future__ import annotations

import asyncio
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import as_completed
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.apache_kafka import KafkaBroker
from ottla.client import RequestClient, blocking, errors
from ottla.client.request_client import ANY_BROKER
from ottla.local.brokers import BrokerProcess
from ottla.local.processes import free_port, wait_until
from ottla.local.zookeeper import EmbeddedZooKeeper
from ottla.protocol import frames
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, UnencodableMessage
from ottla.protocol.records import Record, build_batch
from ottla.testing import DevBroker
from tests.oracles import needs_kafka_jars
from tests.selection import ROOT

pytestmark = pytest.mark.timeout(420)
DOCS = ROOT / "docs"
PAGE = DOCS / "guides/client-requests.md"
EXAMPLE = DOCS / "samples" / "replica_offsets.py"
WAIT_S = 90.0


@pytest.fixture(scope="module")
def broker() -> Iterator[DevBroker]:
    with DevBroker() as running:
        running.create_topic("orders", partitions=3)
        yield running


def latest(topic: str, *partitions: int, replica_id: int = -1) -> m.ListOffsetsRequest:
    row = m.ListOffsetsRequest.ListOffsetsPartition
    rows = [row(partition_index=n, timestamp=-1) for n in partitions]
    wanted = m.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=rows)
    return m.ListOffsetsRequest(replica_id=replica_id, topics=[wanted])


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*arguments: Any, **keywords: Any) -> None:
        asyncio.run(test(*arguments, **keywords))

    return run


# --- one broker ---


@in_loop
async def test_a_request_is_sent_in_every_version_that_both_sides_support(broker: DevBroker) -> None:
    async with RequestClient(bootstrap_servers=broker.bootstrap) as client:
        served = await client.versions(0)
        assert set(served) <= set(frames.REQUESTS.values())
        lowest, highest = served[m.MetadataRequest]
        assert (lowest, highest) == (0, m.MetadataRequest.max_version)
        topics = [m.MetadataRequest.MetadataRequestTopic(name="orders")]
        asked = m.MetadataRequest(topics=topics)
        sent = [client.send(asked, 0, version=version) for version in range(lowest, highest + 1)]
        for version, response in enumerate(await asyncio.gather(*sent)):
            (topic,) = response.topics
            assert len(topic.partitions) == 3
            assert (topic.topic_id.int != 0) == (version >= 10), "which only these versions carry"
        newest = await client.request(asked)
        assert newest.topics[0].topic_id.int, "the highest version is chosen"


@in_loop
async def test_a_version_without_the_field_is_rejected_before_sending(broker: DevBroker) -> None:
    async with RequestClient(bootstrap_servers=broker.bootstrap) as client:
        sent = client.metrics()["request-total"]
        with pytest.raises(errors.UnsupportedVersionError, match="versions 0 to 5 in common, not 6"):
            await client.request(m.ListGroupsRequest(), 0, version=6)
        with pytest.raises(UnencodableMessage, match="states_filter"):
            await client.request(m.ListGroupsRequest(states_filter=["Empty"]), 0, version=0)
        with pytest.raises(TypeError, match="ListGroupsResponse is not a request"):
            client.send(m.ListGroupsResponse(), 0)
        with pytest.raises(errors.BrokerNotAvailableError, match="broker 7 is not in the cluster"):
            await client.request(m.ListGroupsRequest(), 7)
        assert (await client.request(m.ListGroupsRequest(), 0)).error_code == 0
        assert client.metrics()["request-total"] <= sent + 4, "Metadata, and what was right"


@in_loop
async def test_responses_to_pipelined_requests_are_in_order(broker: DevBroker) -> None:
    async with RequestClient(bootstrap_servers=broker.bootstrap) as client:
        done: list[int] = []
        with broker.delay("LIST_OFFSETS", 0.2, times=1) as held:
            sent = [client.send(latest("orders", n % 3), 0) for n in range(10)]
            for number, future in enumerate(sent):
                future.add_done_callback(lambda _, number=number: done.append(number))
            assert not any(future.done() for future in sent)
            responses = await asyncio.gather(*sent)
            assert held.hits == 1
        assert done == list(range(10))
        found = [response.topics[0].partitions[0].partition_index for response in responses]
        assert found == [n % 3 for n in range(10)]


@in_loop
async def test_records_are_written_and_read_and_acks_0_has_no_response(broker: DevBroker) -> None:
    def produce(value: bytes, acks: int) -> m.ProduceRequest:
        batch = build_batch([Record(offset=0, timestamp=0, key=None, value=value)])
        data = m.ProduceRequest.PartitionProduceData(index=0, records=bytes(batch))
        topic = m.ProduceRequest.TopicProduceData(name="written", partition_data=[data])
        return m.ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic])

    broker.create_topic("written")
    async with RequestClient(bootstrap_servers=broker.bootstrap) as client:
        leader = await client.leader(("written", 0))
        response = await client.request(produce(b"one", -1), leader)
        assert response.responses[0].partition_responses[0].base_offset == 0
        assert await client.request(produce(b"two", 0), leader) is None
        records = await asyncio.to_thread(broker.wait_for_records, "written", 2)
        assert [record.value for record in records] == [b"one", b"two"]


@in_loop
async def test_missing_topics_and_partitions_are_named_in_the_error(broker: DevBroker) -> None:
    async with RequestClient(bootstrap_servers=broker.bootstrap) as client:
        for missing in (("absent", 0), ("orders", 3)):
            with pytest.raises(errors.UnknownTopicOrPartitionError, match="-".join(map(str, missing))):
                await client.leader(missing)
        assert await client.leader(("orders", 2)) == client.controller == 0
        for transactional in (False, True):
            assert await client.coordinator("billing", transactional=transactional) == 0
        unknown = await client.request(latest("absent", 0), 0)
        assert unknown.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    broker.create_topic("later")
    async with RequestClient(bootstrap_servers=broker.bootstrap) as client:
        assert await client.leader(("later", 0)) == 0


@in_loop
async def test_a_time_out_and_a_lost_connection_are_different_errors_and_the_next_request_works() -> None:
    with DevBroker() as broker:
        settings = {"bootstrap.servers": broker.bootstrap, "reconnect.backoff.ms": 0}
        async with RequestClient(settings) as client:
            with broker.delay("LIST_GROUPS", 5, times=1), pytest.raises(errors.RequestTimedOutError):
                await client.request(m.ListGroupsRequest(), 0, timeout_ms=100)
            assert (await client.request(m.ListGroupsRequest(), 0)).error_code == 0
            with broker.drop("LIST_GROUPS", times=1), pytest.raises(errors.NetworkError):
                await client.request(m.ListGroupsRequest(), 0)
            assert (await client.request(m.ListGroupsRequest(), 0)).error_code == 0
            waiting = client.send(latest("none", 0), 0)
        with pytest.raises(errors.NetworkError):
            await waiting
        with pytest.raises(errors.IllegalStateError, match="not started"):
            client.send(m.ListGroupsRequest())


@in_loop
async def test_an_unreachable_cluster_is_an_error_within_the_time_out() -> None:
    client = RequestClient(bootstrap_servers=f"127.0.0.1:{free_port()}", default_api_timeout_ms=300)
    with pytest.raises(errors.RequestTimedOutError, match="no broker returned metadata within"):
        await client.start()
    with pytest.raises(errors.IllegalStateError):
        client.send(m.ListGroupsRequest())


def test_without_an_event_loop_it_is_the_same(broker: DevBroker) -> None:
    with blocking.RequestClient(bootstrap_servers=broker.bootstrap) as client:
        assert (client.controller, client.leader(("orders", 1)), client.coordinator("g")) == (0, 0, 0)
        assert list(client.brokers) == [0]
        sent = {client.send(latest("orders", n), 0): n for n in range(3)}
        for future in as_completed(sent, timeout=30):
            assert future.result().topics[0].partitions[0].partition_index == sent[future]
        with pytest.raises(errors.UnsupportedVersionError):
            client.send(m.ListGroupsRequest(), version=99).result(30)
        client.refresh_metadata()
        assert m.FetchRequest in client.versions()
        assert client.request(m.ListGroupsRequest(), ANY_BROKER).error_code == 0
    with pytest.raises(errors.IllegalStateError):
        client.request(m.ListGroupsRequest())


def test_both_forms_have_the_same_calls() -> None:
    def calls(kind: type) -> dict[str, list[str]]:
        return {
            name: [] if isinstance(member, property) else list(inspect.signature(member).parameters)
            for name, member in inspect.getmembers(kind)
            if not name.startswith("_")
        }

    assert calls(RequestClient) == calls(blocking.RequestClient)


def test_the_programs_of_the_page_run(broker: DevBroker) -> None:
    programs = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    printed = []
    for program in programs:
        assert "127.0.0.1:9092" in program
        text = program.replace("127.0.0.1:9092", broker.bootstrap)
        done = subprocess.run(
            [sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout.splitlines())
    assert printed[0] == ["0 NONE []", "Dead"]
    assert len(printed[1]) == 1
    assert printed[1][0].startswith("0 /")


# --- three brokers: two of Ottla, one of Apache Kafka ---

OURS, OTHER, THEIRS = 1, 2, 3
LED_BY_OURS, LED_BY_THEIRS = 0, 1
RECORDS = 25
SETTINGS = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "auto.create.topics.enable": "false",
}


class Mixed:
    """A topic with a replica of each of its partitions on every broker, all in sync."""

    def __init__(self, directory: Path, running: ExitStack) -> None:
        zookeeper = EmbeddedZooKeeper(directory / "zookeeper")
        running.callback(zookeeper.stop)
        zookeeper.start()
        self.ours = {n: BrokerProcess(n, directory / str(n), free_port()) for n in (OURS, OTHER)}
        theirs = KafkaBroker(directory / "kafka", zookeeper.connect, broker_id=THEIRS, settings=SETTINGS)
        for broker in self.ours.values():
            running.callback(broker.stop)
            broker.write_properties(zookeeper.connect, SETTINGS)
            broker.start_and_wait()
        running.callback(theirs.stop)
        theirs.start()
        self.bootstrap = ",".join([*(f"127.0.0.1:{b.port}" for b in self.ours.values()), theirs.bootstrap])
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        assert wait_until(lambda: len(admin.list_topics(timeout=60).brokers) == 3, timeout_s=WAIT_S)
        placed = [[OURS, OTHER, THEIRS], [THEIRS, OTHER, OURS]]
        for created in admin.create_topics([NewTopic("copied", 2, replica_assignment=placed)]).values():
            created.result(WAIT_S)
        producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all"})
        for number in range(RECORDS):
            producer.produce("copied", b"%d" % number, partition=number % 2)
        assert producer.flush(WAIT_S) == 0
        with Consumer({"bootstrap.servers": self.bootstrap, "group.id": "oracle"}) as consumer:
            self.ends = [
                consumer.get_watermark_offsets(TopicPartition("copied", n), WAIT_S)[1] for n in (0, 1)
            ]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    needs_kafka_jars()
    with ExitStack() as running:
        yield Mixed(tmp_path_factory.mktemp("mixed"), running)


async def ends_at(client: RequestClient, broker: int, version: int | None = None) -> list[tuple[int, int]]:
    """(error code, offset) of both partitions, as a debugging consumer is told by this broker."""
    response = await client.request(latest("copied", 0, 1, replica_id=-2), broker, version=version)
    found = sorted(response.topics[0].partitions, key=lambda each: each.partition_index)
    return [(each.error_code, each.offset) for each in found]


@in_loop
async def test_each_broker_is_reached_by_its_id_and_followers_of_both_brokers_respond(mixed: Mixed) -> None:
    """Consumers are told by leaders alone; a debugging consumer by followers, too, as in Kafka."""
    async with RequestClient(bootstrap_servers=mixed.bootstrap) as client:
        assert set(client.brokers) == {OURS, OTHER, THEIRS}
        assert [await client.leader(("copied", n)) for n in (0, 1)] == [OURS, THEIRS]
        described = {n: await client.request(m.DescribeConfigsRequest(resources=[
            m.DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=4, resource_name=str(n), configuration_keys=["broker.id"]
            )
        ]), n) for n in client.brokers}  # fmt: skip
        for number, response in described.items():
            (result,) = response.results
            assert [each.value for each in result.configs] == [str(number)], "by itself"
        common = await client.versions(THEIRS)
        assert common[m.ListOffsetsRequest].highest == m.ListOffsetsRequest.max_version
        for broker in client.brokers:
            for version in range(1, m.ListOffsetsRequest.max_version + 1):
                wanted = [(0, end) for end in mixed.ends]
                assert await ends_at(client, broker, version) == wanted, (broker, version)
            leads = [await client.leader(("copied", n)) == broker for n in (0, 1)]
            response = await client.request(latest("copied", 0, 1), broker)
            codes = {each.partition_index: each.error_code for each in response.topics[0].partitions}
            expected = [0 if led else int(ErrorCode.NOT_LEADER_OR_FOLLOWER) for led in leads]
            assert [codes[0], codes[1]] == expected, broker


def run_example(*arguments: str) -> tuple[int, list[list[str]], str]:
    """Its exit status, the words of each line, and what it said on standard error."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, [line.split() for line in done.stdout.splitlines()], done.stderr


async def ask_any(bootstrap: str, first: int) -> None:
    """Any broker is asked while one that the metadata name is gone: that one must not be the last."""
    client = RequestClient(bootstrap_servers=bootstrap)
    async with client:
        parts = client._parts
        assert parts is not None
        parts[1]._uniform = lambda low, high: low or float(first)
        assert (await client.request(m.MetadataRequest(topics=[]))).brokers


def test_the_example_compares_replicas_and_finds_a_missing_one(mixed: Mixed) -> None:
    def line(partition: int, broker: int, role: str, end: object, behind: object) -> list[str]:
        return [str(each) for each in (partition, broker, role, end, behind)]

    ends = mixed.ends
    assert ends == [13, 12]
    status, lines, said = run_example(mixed.bootstrap, "copied")
    assert (status, said) == (0, "")
    assert lines[1:] == [
        line(0, OURS, "leader", 13, 0), line(0, OTHER, "follower", 13, 0), line(0, THEIRS, "follower", 13, 0),
        line(1, THEIRS, "leader", 12, 0), line(1, OTHER, "follower", 12, 0), line(1, OURS, "follower", 12, 0),
    ]  # fmt: skip
    status, lines, said = run_example(mixed.bootstrap, "absent")
    assert (status, lines, said) == (1, [], "absent: UNKNOWN_TOPIC_OR_PARTITION\n")
    assert run_example()[0] == 2
    mixed.ours[OTHER].kill()
    for first in range(3):
        asyncio.run(ask_any(mixed.bootstrap, first))
    status, lines, _ = run_example(mixed.bootstrap, "copied")
    assert status == 1
    missing = [each for each in lines[1:] if each[1] == str(OTHER)]
    assert [each[3] in ("NETWORK_EXCEPTION", "BROKER_NOT_AVAILABLE") for each in missing] == [True, True]
    assert [each[4] for each in missing] == ["?", "?"]

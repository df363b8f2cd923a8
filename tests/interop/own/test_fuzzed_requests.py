"""A fuzzer of every request against a whole broker: it stays up, logs no traceback, and serves others.

Each example is a request of an API and version that the broker serves, valid or damaged, about existing and
missing objects. The result is a response, none (it waits), or a closed connection. OTTLA_EXPLORE draws more
examples, and others in each run.

The same with an authorizer and requests of an unauthorized client: nothing is revealed or changed.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Collection, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.local.processes import wait_until
from ottla.protocol import frames
from ottla.protocol import messages as m
from ottla.protocol.api import ApiKey
from ottla.protocol.records import Record, build_batch
from ottla.protocol.types import Message
from ottla.security.authorizer import CLASSES
from tests.interop.own.test_hostile_clients import HELLO, MIB, Subject, broker, correlation_id, framed
from tests.judges.raw_client import (
    ADMIN_HOST,
    CLIENT_HOST,
    EVERYTHING,
    RawClient,
    allow_from_admin_host,
    comparable,
    creation,
    sample,
    served,
)
from tests.protocol_samples import RandomChoices, build

pytestmark = pytest.mark.timeout(600)

EXAMPLES = 400 if "OTTLA_EXPLORE" not in os.environ else 20_000

FROM_BROKERS = {
    ApiKey.LEADER_AND_ISR,
    ApiKey.STOP_REPLICA,
    ApiKey.UPDATE_METADATA,
    ApiKey.CONTROLLED_SHUTDOWN,
}
"""What brokers take each other's word for without an authorizer: only what is damaged is sent of these."""

NAMES = (
    "t",
    "t",
    "compacted",
    "g",
    "group",
    "member",
    "txn",
    "",
    "__consumer_offsets",
    "no such",
    "*",
    "0",
    "1",
)
"""Of topics, groups, members, users, settings: some are there."""
BATCH = build_batch([Record(0, 1_700_000_000_000, b"k", b"v"), Record(0, 1_700_000_000_000, None, b"w")])


class LikelyChoices(RandomChoices):
    """Values that get further than any values do."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._rng = random.Random(~seed)

    def integer(self, lowest: int, highest: int) -> int:
        rng = self._rng
        if rng.random() < 0.8:
            value = rng.choice((0, 0, 0, 1, 1, -1, 2, 100))
            return min(max(value, lowest), highest)
        return super().integer(lowest, highest)

    def text(self) -> str:
        return self._rng.choice(NAMES) if self._rng.random() < 0.85 else super().text()

    def blob(self) -> bytes:
        rng = self._rng
        if rng.random() < 0.6:
            data = bytearray(BATCH)
            if rng.random() < 0.5:
                data[rng.randrange(len(data))] = rng.randrange(256)
            return bytes(data)
        return super().blob()


SETTINGS = {"auto_create_topics_enable": "false", "socket_request_max_bytes": str(MIB)}


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    with broker(tmp_path_factory.mktemp("fuzzed"), **SETTINGS) as it:
        make_topics(it)
        yield it


def make_topics(subject: Subject) -> None:
    with RawClient(subject.port, ADMIN_HOST) as admin:
        topics = [
            m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=2, replication_factor=1)
            for name in ("t", "compacted")
        ]
        admin.ask(m.CreateTopicsRequest(topics=topics, timeout_ms=60_000), 5)


def all_served(subject: Subject) -> list[tuple[int, int]]:
    """(API, version), all that the broker says it serves."""
    found = [(int(key), version) for key, versions in served(subject.port).items() for version in versions]
    assert len(found) > 200
    return found


@pytest.fixture(scope="module")
def served_here(subject: Subject) -> list[tuple[int, int]]:
    return all_served(subject)


def damaged(request: bytes, rng: random.Random) -> bytes:
    """Bytes changed, left out or put in behind the header, under a size that is right or a lie."""
    data = bytearray(request[4:])
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(8, len(data)) if len(data) > 9 else 0
        match rng.randrange(4):
            case 0:
                data[at:] = b""
            case 1:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 2:
                data[at : at + 4] = rng.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0"))
            case _ if data:
                data[min(at, len(data) - 1)] = rng.randrange(256)
    size = len(data) if rng.random() < 0.9 else rng.choice((len(data) + 1, len(data) - 1, 0, -1, 2**31 - 1))
    return size.to_bytes(4, "big", signed=True) + bytes(data)


def send(subject: Subject, data: bytes, host: str = ADMIN_HOST, patience_s: float = 0.01) -> bytes:
    """What is answered in that time, if anything."""
    answer = bytearray()
    with socket.create_connection(("127.0.0.1", subject.port), timeout=90, source_address=(host, 0)) as sock:
        sock.sendall(data)
        sock.settimeout(patience_s)
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4], "big"):
                chunk = sock.recv(MIB)
                if not chunk:
                    break
                answer += chunk
    return bytes(answer)


def is_served(sock: socket.socket) -> None:
    sock.sendall(HELLO)
    assert correlation_id(sock) == 1


def drawn(data: st.DataObject, served: list[tuple[int, int]], damaged_only: Collection[int] = ()) -> bytes:
    api_key, version = data.draw(st.sampled_from(served))
    seed = data.draw(st.integers(0, 2**32))
    rng = random.Random(seed)
    message = build(frames.REQUESTS[api_key], version, LikelyChoices(seed))
    request = frames.encode_request(message, version, 7, rng.choice(("fuzzer", "", "t")))
    return damaged(request, rng) if api_key in damaged_only or rng.random() < 0.4 else request


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_no_request_harms_the_broker(
    subject: Subject, served_here: list[tuple[int, int]], data: st.DataObject
) -> None:
    before = subject.memory()
    send(subject, drawn(data, served_here, FROM_BROKERS))
    with subject.connect() as honest:
        is_served(honest)
    assert subject.memory() - before < 64 * MIB


# --- from a stranger ----------------------------------------------------------------------------------

SECRET = b"not for strangers"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    """Who comes from 127.0.0.1 may do everything; everybody else, nothing."""
    lenient = {"authorizer_class_name": CLASSES[0], "allow_everyone_if_no_acl_found": "true"}
    with broker(tmp_path_factory.mktemp("guarded"), **SETTINGS, **lenient) as it:
        make_topics(it)
        assert wait_until(lambda: SECRET in send(it, produced_and_fetched(it), patience_s=60), timeout_s=60)
        with RawClient(it.port, ADMIN_HOST) as admin:
            entries = [(pattern, allow_from_admin_host(pattern)) for pattern in EVERYTHING]
            admin.ask(creation(entries), 3)
        assert wait_until(lambda: enforces_acls(it), timeout_s=60)
        yield it


def produced_and_fetched(subject: Subject) -> bytes:
    """Write what nobody else may read, and ask for it."""
    secret = m.ProduceRequest.PartitionProduceData(
        index=0, records=build_batch([Record(0, 1_700_000_000_000, None, SECRET)])
    )
    row = m.ProduceRequest.TopicProduceData(name="t", partition_data=[secret])
    with RawClient(subject.port, ADMIN_HOST) as admin:
        admin.ask(m.ProduceRequest(acks=1, timeout_ms=60_000, topic_data=[row]), 9)
    return framed(FETCH, 11)


FETCH = m.FetchRequest(
    max_bytes=MIB,
    topics=[
        m.FetchRequest.FetchTopic(
            topic="t",
            partitions=[m.FetchRequest.FetchPartition(partition=0, partition_max_bytes=MIB)],
        )
    ],
)


def enforces_acls(subject: Subject) -> bool:
    """Whether the ACLs are in force: an authorized client reads the records, an unauthorized one does not."""
    with RawClient(subject.port) as client:
        groups = client.ask(m.DescribeAclsRequest(resource_type_filter=1), 1)
    return (
        SECRET not in send(subject, framed(FETCH, 11), CLIENT_HOST) and getattr(groups, "error_code", 0) == 31
    )


LOOKS: tuple[tuple[Message, int], ...] = (
    (m.MetadataRequest(topics=None), 9),
    (
        m.ListOffsetsRequest(
            topics=[
                m.ListOffsetsRequest.ListOffsetsTopic(
                    name=name,
                    partitions=[
                        m.ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=-1)
                        for index in range(2)
                    ],
                )
                for name in ("t", "compacted")
            ]
        ),
        5,
    ),
    (
        m.DescribeConfigsRequest(
            resources=[
                m.DescribeConfigsRequest.DescribeConfigsResource(resource_type=kind, resource_name=name)
                for kind, name in ((2, "t"), (2, "compacted"), (4, "0"), (4, ""))
            ]
        ),
        4,
    ),
    (m.DescribeAclsRequest(resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1), 3),
    (m.ListGroupsRequest(), 4),
    (m.ListTransactionsRequest(), 0),
    (m.DescribeClientQuotasRequest(), 1),
    (m.DescribeUserScramCredentialsRequest(users=None), 0),
    (m.DescribeDelegationTokenRequest(owners=None), 3),
)


def visible_state(subject: Subject) -> list[Any]:
    """The state of the broker, as an authorized client sees it."""
    with RawClient(subject.port, ADMIN_HOST) as admin:
        return [comparable(admin.ask(request, version)) for request, version in LOOKS]


def test_no_request_of_an_unauthorized_client_is_granted(guarded: Subject) -> None:
    served_here, before, memory = all_served(guarded), visible_state(guarded), guarded.memory()
    assert SECRET in send(guarded, framed(FETCH, 11), patience_s=90)

    @settings(max_examples=EXAMPLES)
    @given(data=st.data())
    def harmless(data: st.DataObject) -> None:
        assert SECRET not in send(guarded, drawn(data, served_here), CLIENT_HOST)
        with guarded.connect() as honest:
            is_served(honest)
        assert guarded.memory() - memory < 64 * MIB

    for api_key, version in served_here:
        whole = sample(frames.REQUESTS[ApiKey(api_key)], version, "t")
        assert SECRET not in send(guarded, framed(whole, version), CLIENT_HOST)
    harmless()
    assert visible_state(guarded) == before

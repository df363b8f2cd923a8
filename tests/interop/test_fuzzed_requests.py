"""A fuzzer over every request, the whole broker behind it: it stays up, logs no traceback, and serves others.

Each example is a request of an API and version that the broker serves, whole or damaged, about things that
are there and things that are not. What may come of it is an answer, nothing (it waits), or a closed
connection. With OTTLA_EXPLORE set other examples are drawn each time, and more of them.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol_samples import RandomChoices, build
from test_hostile_clients import HELLO, MIB, Subject, broker, correlation_id, framed, receive

from ottla.protocol import codec, frames, messages
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import ApiVersionsRequest, ApiVersionsResponse, CreateTopicsRequest
from ottla.protocol.records import Record, build_batch
from ottla.protocol.types import Message

pytestmark = pytest.mark.timeout(600)

EXAMPLES = 400 if "OTTLA_EXPLORE" not in os.environ else 20_000

FROM_BROKERS = {
    ApiKey.LEADER_AND_ISR,
    ApiKey.STOP_REPLICA,
    ApiKey.UPDATE_METADATA,
    ApiKey.CONTROLLED_SHUTDOWN,
}
"""What brokers take each other's word for without an authorizer: only what is damaged is sent of these."""

REQUESTS: dict[int, type[Message]] = {
    cls.api_key: cls
    for cls in (getattr(messages, name) for name in messages.__all__)
    if cls.__name__.endswith("Request")
}
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


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    settings = {"auto_create_topics_enable": "false", "socket_request_max_bytes": str(MIB)}
    with broker(tmp_path_factory.mktemp("fuzzed"), **settings) as it:
        with it.connect() as sock:
            topics = [
                CreateTopicsRequest.CreatableTopic(name=name, num_partitions=2, replication_factor=1)
                for name in ("t", "compacted")
            ]
            sock.sendall(framed(CreateTopicsRequest(topics=topics, timeout_ms=60_000), 5))
            receive(sock, int.from_bytes(receive(sock, 4), "big"))
        yield it


@pytest.fixture(scope="module")
def served(subject: Subject) -> list[tuple[int, int]]:
    """(API, version), all that the broker says it serves."""
    with subject.connect() as sock:
        sock.sendall(framed(ApiVersionsRequest(), 0))
        frame = memoryview(receive(sock, int.from_bytes(receive(sock, 4), "big")))
    answer = codec.decode(ApiVersionsResponse, 0, frame, 4)
    assert answer.error_code == ErrorCode.NONE
    found = [(k.api_key, v) for k in answer.api_keys for v in range(k.min_version, k.max_version + 1)]
    assert len(found) > 200
    return found


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


def send(subject: Subject, data: bytes) -> None:
    """And look whether anything comes; it need not."""
    with subject.connect() as sock:
        sock.sendall(data)
        sock.settimeout(0.01)
        try:
            sock.recv(MIB)
        except (TimeoutError, ConnectionResetError):
            return


def is_served(sock: socket.socket) -> None:
    sock.sendall(HELLO)
    assert correlation_id(sock) == 1


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_no_request_harms_the_broker(
    subject: Subject, served: list[tuple[int, int]], data: st.DataObject
) -> None:
    api_key, version = data.draw(st.sampled_from(served))
    seed = data.draw(st.integers(0, 2**32))
    rng = random.Random(seed)
    message = build(REQUESTS[api_key], version, LikelyChoices(seed))
    request = frames.encode_request(message, version, 7, rng.choice(("fuzzer", "", "t")))
    if api_key in FROM_BROKERS or rng.random() < 0.4:
        request = damaged(request, rng)
    before = subject.memory()
    send(subject, request)
    with subject.connect() as honest:
        is_served(honest)
    assert subject.memory() - before < 64 * MIB

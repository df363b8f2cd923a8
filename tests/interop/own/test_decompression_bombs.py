"""A few bytes that become a million records: the broker refuses or takes them, and serves others meanwhile.

What the event loop spends on them is compared with what the work itself takes, done here as a control.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from zlib import crc32

import pytest

from ottla.protocol import codec, frames
from ottla.protocol.compression import Codec, compress
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.legacy_records import encode_message_set
from ottla.protocol.messages import CreateTopicsRequest, ProduceRequest, ProduceResponse
from ottla.protocol.records import Record, build_batch
from ottla.storage.log_config import LogConfig
from ottla.storage.log_validator import validate
from tests.interop.own.test_hostile_clients import MIB, Subject, broker, bystander, closing, framed, receive

pytestmark = pytest.mark.timeout(420)

NOW_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    with broker(tmp_path_factory.mktemp("bombed")) as it:
        with it.connect() as sock:
            for name, config in (("plain", {}), ("compacted", {"cleanup.policy": "compact"})):
                topic = CreateTopicsRequest.CreatableTopic(
                    name=name,
                    num_partitions=1,
                    replication_factor=1,
                    configs=[
                        CreateTopicsRequest.CreatableTopicConfig(name=k, value=v) for k, v in config.items()
                    ],
                )
                sock.sendall(framed(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 5))
                receive(sock, int.from_bytes(receive(sock, 4), "big"))
        yield it


def old_format_bomb(count: int) -> bytes:
    """A wrapper of format 1 with so many messages."""
    one = encode_message_set([Record(0, NOW_MS, b"k", b"v")], 1)
    bomb = encode_message_set([Record(0, NOW_MS, None, compress(Codec.GZIP, one * count))], 1)
    data = bytearray(bomb)
    data[17] = Codec.GZIP  # its attributes: a wrapper
    data[12:16] = crc32(bytes(data[16:])).to_bytes(4, "big")
    return bytes(data)


def keyless_bomb(count: int) -> bytes:
    """For a compacted topic: each record is to be named in the answer."""
    return build_batch([Record(0, NOW_MS, None, b"")] * count, codec=Codec.ZSTD)


def request(topic: str, records: bytes, version: int) -> bytes:
    data = ProduceRequest.PartitionProduceData(index=0, records=records)
    asked = ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
    return framed(ProduceRequest(acks=1, timeout_ms=60_000, topic_data=[asked]), version)


def produce(subject: Subject, topic: str, records: bytes, version: int) -> ProduceResponse:
    with subject.connect() as sock:
        sock.sendall(request(topic, records, version))
        size = int.from_bytes(receive(sock, 4), "big")
        frame = memoryview(receive(sock, size))
    body = frames.response_body_offset(ProduceResponse.api_key, version, frame)
    return codec.decode(ProduceResponse, version, frame, body)


def error_of(response: ProduceResponse) -> int:
    return response.responses[0].partition_responses[0].error_code


def cost_s(records: bytes, config: LogConfig) -> float:
    """Of the same work in this process."""
    before = time.process_time()
    with contextlib.suppress(KafkaError):
        validate(records, config, NOW_MS)
    return time.process_time() - before


@pytest.mark.parametrize(
    ("topic", "version", "make", "count", "config", "error"),
    [
        ("plain", 2, old_format_bomb, 200_000, LogConfig(), ErrorCode.NONE),
        ("compacted", 9, keyless_bomb, 30_000, LogConfig(cleanup_policy="compact"), ErrorCode.INVALID_RECORD),
    ],
    ids=["an old format", "a compacted topic"],
)
def test_the_event_loop_has_little_work_with_a_compression_bomb(
    subject: Subject,
    topic: str,
    version: int,
    make: Callable[[int], bytes],
    count: int,
    config: LogConfig,
    error: ErrorCode,
) -> None:
    bomb = make(count)
    assert len(bomb) < 64 * 1024
    control_s = cost_s(bomb, config)
    produce(subject, topic, make(3), version)  # the worker is there
    before_s = subject.cpu_s()
    with bystander(subject) as waits:
        answer = produce(subject, topic, bomb, version)
    assert error_of(answer) == error
    # The process's main thread also served the bystander.
    spent_s = subject.cpu_s() - before_s - len(waits) * 0.001
    assert spent_s < control_s / 2, f"{spent_s:.2f} s of the loop for what takes {control_s:.2f} s"


def test_a_batch_that_decompresses_beyond_the_limit_is_rejected_without_the_brokers_memory(
    subject: Subject,
) -> None:
    zeros = build_batch([Record(0, NOW_MS, b"k", bytes(200 * MIB))], codec=Codec.ZSTD)
    assert len(zeros) < MIB
    before = subject.memory()
    with bystander(subject):
        assert error_of(produce(subject, "compacted", zeros, 9)) == ErrorCode.MESSAGE_TOO_LARGE
    assert subject.memory() - before < 40 * MIB
    assert error_of(produce(subject, "compacted", build_batch([Record(0, NOW_MS, b"k", b"v")]), 9)) == 0


def test_many_compression_bombs_delay_no_other_client(subject: Subject) -> None:
    """And all of them are answered, one after the other."""
    bomb = request("plain", old_format_bomb(20_000), 2)
    with closing([subject.connect() for _ in range(10)]) as sockets:
        with bystander(subject) as waits:
            for sock in sockets:
                sock.sendall(bomb)
            for sock in sockets:
                receive(sock, int.from_bytes(receive(sock, 4), "big"))
        assert len(waits) > 10

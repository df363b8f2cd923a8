"""A blocking connection to the test broker, and all records of a topic read over it.

Called by ottla.testing.broker; needs no event loop. Faults do not apply to its client id. Callers choose the
versions of APIs, since the broker is always of this package.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any, Final

from ottla.client import errors
from ottla.client.core.decoding import PartitionData
from ottla.client.core.types import ConsumerRecord, TopicPartition
from ottla.protocol import codec, frames
from ottla.protocol import messages as m
from ottla.protocol.types import Message

CLIENT_ID: Final = "ottla.testing"
_SIZE: Final = struct.Struct(">i")
_METADATA_VERSION: Final = 8
_FETCH_VERSION: Final = 11
"""The last version with topic names."""
_LIST_OFFSETS_VERSION: Final = 5
_EARLIEST_TIMESTAMP: Final = -2
_BYTES_MAX: Final = 16 << 20


class BlockingConnection:
    """A connection for one request after the other."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        """Raises OSError."""
        self._socket = socket.create_connection((host, port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def __enter__(self) -> BlockingConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, request: Message, version: int) -> Any:
        """Send a request and return its response. Raises OSError."""
        self._correlation_id += 1
        self._socket.sendall(frames.encode_request(request, version, self._correlation_id, CLIENT_ID))
        (size,) = _SIZE.unpack(self._read(_SIZE.size))
        frame = self._read(size)
        answered = frames.parse_correlation_id(frame)
        assert answered == self._correlation_id, f"answer {answered} to request {self._correlation_id}"
        offset = frames.response_body_offset(request.api_key, version, frame)
        return codec.decode(frames.RESPONSES[request.api_key], version, frame, offset)

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            if not (more := self._socket.recv(size - len(data))):
                raise ConnectionError("the broker closed the connection")
            data += more
        return bytes(data)


def read_records(connection: BlockingConnection, topic: str, *, committed: bool) -> list[ConsumerRecord]:
    """All records of a topic, by partition and offset. Raises errors.ClientError, OSError."""
    asked = m.MetadataRequest.MetadataRequestTopic(name=topic)
    answer = connection.send(
        m.MetadataRequest(topics=[asked], allow_auto_topic_creation=False), _METADATA_VERSION
    )
    (found,) = answer.topics
    if found.error_code:
        raise errors.for_code(found.error_code, topic)
    partitions = sorted(partition.partition_index for partition in found.partitions)
    return [
        record
        for partition in partitions
        for record in _partition(connection, TopicPartition(topic, partition), committed=committed)
    ]


def _partition(
    connection: BlockingConnection, tp: TopicPartition, *, committed: bool
) -> Iterator[ConsumerRecord]:
    offset = 0
    while True:
        answer = _fetch(connection, tp, offset, committed=committed)
        if answer.error_code == errors.OffsetOutOfRangeError.code and offset < (
            start := _start(connection, tp)
        ):
            offset = start
            continue
        if answer.error_code:
            raise errors.for_code(answer.error_code, f"{tp} at offset {offset}")
        data = PartitionData(
            tp,
            memoryview(answer.records or b""),
            offset,
            check_crcs=True,
            aborted=(answer.aborted_transactions or ()) if committed else None,
        )
        while (batch := data.next_batch()) is not None:
            yield from batch
        if data.next_offset == offset:
            return
        offset = data.next_offset


def _start(connection: BlockingConnection, tp: TopicPartition) -> int:
    """The log start offset, which a Fetch response with OFFSET_OUT_OF_RANGE does not have."""
    kind = m.ListOffsetsRequest
    wanted = kind.ListOffsetsPartition(partition_index=tp.partition, timestamp=_EARLIEST_TIMESTAMP)
    request = kind(replica_id=-1, topics=[kind.ListOffsetsTopic(name=tp.topic, partitions=[wanted])])
    (found,) = connection.send(request, _LIST_OFFSETS_VERSION).topics
    (answer,) = found.partitions
    if answer.error_code:
        raise errors.for_code(answer.error_code, f"the first offset of {tp}")
    return int(answer.offset)


def _fetch(connection: BlockingConnection, tp: TopicPartition, offset: int, *, committed: bool) -> Any:
    kind = m.FetchRequest
    wanted = kind.FetchPartition(partition=tp.partition, fetch_offset=offset, partition_max_bytes=_BYTES_MAX)
    request = kind(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=_BYTES_MAX,
        isolation_level=int(committed),
        session_id=0,
        session_epoch=-1,
        topics=[kind.FetchTopic(topic=tp.topic, partitions=[wanted])],
    )
    (found,) = connection.send(request, _FETCH_VERSION).responses
    (answer,) = found.partitions
    return answer

"""Reads and writes records of partitions, as one principal: fetched bytes to `LogRecord`s.

Called by the pages of records. Unlike a consumer it keeps control records, and what a batch says of its
producer, and never reads ahead. One connection to each leader, opened with the first read. Invariants: a
fetch asks for no more than `bytes_max`, except for a larger first batch; at most SLOTS reads run at a time.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ottla.client import errors
from ottla.client.core.decoding import PartitionData, decode, last_batch
from ottla.client.core.types import RecordMetadata, TopicPartition
from ottla.client.errors import ClientError
from ottla.client.producer import Producer
from ottla.client.request_client import RequestClient
from ottla.protocol import messages as m
from ottla.protocol.compression import decompress
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import (
    MAGIC_V2,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    ControlType,
    Record,
    codec_of,
    parse_batch_header,
    parse_control_record,
)

SLOTS: Final = 3
VERSION_MAX: Final = 12
"""The last version of Fetch that has names of topics."""
WAIT_MS: Final = 50
PARTITION_BYTES_MIN: Final = 64 << 10
PARTITION_BYTES_MAX: Final = 1 << 20
TRIES: Final = 3
API_MS: Final = 7_000
PRODUCE_MS: Final = 10_000
RECORD_MAX: Final = 4 << 20
"""Bytes of a new record."""
_MAGIC_AT: Final = 16
_CONTROL: Final = {ControlType.ABORT: "abort", ControlType.COMMIT: "commit"}

Headers = Sequence[tuple[str, bytes | None]]


class LogRecord(NamedTuple):
    """A record with what its batch says of it."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    appended: bool = False
    """The timestamp is that of the broker (LogAppendTime)."""
    leader_epoch: int = -1
    control: str = ""
    """Of a control record, what it ends a transaction with: `commit`, `abort`."""
    batch: BatchHeader | None = None
    """None for messages of the formats before 2."""

    @property
    def size(self) -> int:
        """Bytes of key, value and headers, uncompressed."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers


@dataclass
class Fetched:
    """The response to one fetch, by partition."""

    records: dict[int, list[LogRecord]] = field(default_factory=dict)
    next: dict[int, int] = field(default_factory=dict)
    """Where the next fetch continues; only of partitions that returned data."""
    errors: dict[int, ClientError] = field(default_factory=dict)
    bytes: int = 0


class LogReader:
    """See the module."""

    def __init__(
        self,
        settings: Mapping[str, object],
        connect: Callable[[Mapping[str, object]], RequestClient] = RequestClient,
    ) -> None:
        """`settings`: of the client. `connect` makes it."""
        self._settings = settings
        self._connect = connect
        self._client: RequestClient | None = None
        self._versions: dict[int, int] = {}
        self._starting = asyncio.Lock()
        self.slots = asyncio.Semaphore(SLOTS)
        """Held by a page while it reads."""

    async def close(self) -> None:
        """Close the connections."""
        async with self._starting:
            client, self._client = self._client, None
            if client is not None:
                await client.stop()

    async def _started(self) -> RequestClient:
        async with self._starting:
            if self._client is None:
                client = self._connect({**self._settings, "default.api.timeout.ms": API_MS})
                await client.start()
                self._client = client
            return self._client

    async def fetch(
        self, topic: str, offsets: Mapping[int, int], bytes_max: int, *, committed: bool = False
    ) -> Fetched:
        """Records of partitions from these offsets on, from their leaders. `committed`: without those of open
        and aborted transactions. Errors of partitions are in the result. Raises ClientError if no broker
        responds."""
        client = await self._started()
        found = Fetched()
        pending = dict(offsets)
        for attempt in range(TRIES):
            if attempt:
                await client.refresh_metadata()
            moved = await self._fetch_once(client, topic, pending, bytes_max, committed, found)
            pending = {partition: pending[partition] for partition in moved}
            found.errors |= moved
            if not pending:
                break
        return found

    async def produce(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers, partition: int | None
    ) -> RecordMetadata:
        """Write one record with acks=all, by a producer of its own. Raises ClientError."""
        settings = {
            **self._settings, "acks": "all", "enable.idempotence": False, "linger.ms": 0,
            "delivery.timeout.ms": PRODUCE_MS, "max.block.ms": PRODUCE_MS, "max.request.size": RECORD_MAX,
        }  # fmt: skip
        async with Producer(settings) as producer:
            return await producer.send_and_wait(
                topic, value, key=key, partition=partition, headers=list(headers)
            )

    async def _fetch_once(
        self,
        client: RequestClient,
        topic: str,
        offsets: Mapping[int, int],
        bytes_max: int,
        committed: bool,
        found: Fetched,
    ) -> dict[int, ClientError]:
        """Fetch from each leader; returns the partitions whose leader has moved."""
        by_leader: defaultdict[int, list[int]] = defaultdict(list)
        moved: dict[int, ClientError] = {}
        for partition in offsets:
            try:
                by_leader[await client.leader((topic, partition))].append(partition)
            except ClientError as error:
                found.errors[partition] = error
                if isinstance(error, (errors.AuthorizationError, errors.UnknownTopicOrPartitionError)):
                    found.errors |= dict.fromkeys(offsets, error)
                    return {}
        share = bytes_max // max(len(by_leader), 1)
        results = await asyncio.gather(
            *(
                self._fetch_from(client, leader, topic, {p: offsets[p] for p in listed}, share, committed)
                for leader, listed in by_leader.items()
            ),
            return_exceptions=True,
        )
        for listed, result in zip(by_leader.values(), results, strict=True):
            if isinstance(result, ClientError):
                moved |= dict.fromkeys(listed, result)
            elif isinstance(result, BaseException):
                raise result
            else:
                for row in result:
                    self._take(topic, row, offsets, committed, found, moved)
        return moved

    async def _fetch_from(
        self,
        client: RequestClient,
        leader: int,
        topic: str,
        offsets: Mapping[int, int],
        bytes_max: int,
        committed: bool,
    ) -> list[m.FetchResponse.PartitionData]:
        if leader not in self._versions:
            served = (await client.versions(leader))[m.FetchRequest]
            self._versions[leader] = min(served.highest, VERSION_MAX)
        request = m.FetchRequest
        each_max = min(max(bytes_max // len(offsets), PARTITION_BYTES_MIN), PARTITION_BYTES_MAX)
        rows = [
            request.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=each_max)
            for partition, offset in offsets.items()
        ]
        response: m.FetchResponse = await client.request(
            request(
                max_wait_ms=WAIT_MS,
                min_bytes=1,
                max_bytes=bytes_max,
                isolation_level=int(committed),
                topics=[request.FetchTopic(topic=topic, partitions=rows)],
            ),
            leader,
            version=self._versions[leader],
        )
        if response.error_code:
            raise errors.for_code(ErrorCode.of(response.error_code), f"fetching {topic}")
        return [row for each in response.responses for row in each.partitions]

    @staticmethod
    def _take(
        topic: str,
        row: m.FetchResponse.PartitionData,
        offsets: Mapping[int, int],
        committed: bool,
        found: Fetched,
        moved: dict[int, ClientError],
    ) -> None:
        partition = row.partition_index
        if row.error_code:
            error = errors.for_code(ErrorCode.of(row.error_code), f"fetching {topic}-{partition}")
            target = moved if isinstance(error, errors.InvalidMetadataError) else found.errors
            if isinstance(error, errors.UnknownTopicOrPartitionError):
                target = found.errors
            target[partition] = error
            return
        found.errors.pop(partition, None)
        if not row.records:
            return
        data = memoryview(row.records)
        found.bytes += len(data)
        end = last_batch(data, offsets[partition])
        if end is None:
            return
        aborted = (row.aborted_transactions or ()) if committed else None
        try:
            listed = list(records_in(TopicPartition(topic, partition), data, offsets[partition], aborted))
        except ClientError as error:
            found.errors[partition] = error
            return
        found.records[partition] = listed
        found.next[partition] = max(end.next_offset, offsets[partition])


def records_in(
    tp: TopicPartition,
    data: memoryview,
    offset: int,
    aborted: Iterable[m.FetchResponse.AbortedTransaction] | None = None,
) -> Iterator[LogRecord]:
    """The records of all complete batches from an offset on, control records included. `aborted`: the aborted
    transactions whose records are left out; None for none. Raises DeserializationError."""
    starts = [(each.first_offset, each.producer_id) for each in aborted or ()]
    heapq.heapify(starts)
    aborting: set[int] = set()
    at = 0
    while at + _MAGIC_AT < len(data):
        if data[at + _MAGIC_AT] != MAGIC_V2:
            yield from _of_old_format(tp, data[at:], offset)
            return
        if at + RECORD_BATCH_OVERHEAD > len(data):
            return
        header = parse_batch_header(data, at)
        end = at + header.size
        if header.size < RECORD_BATCH_OVERHEAD or end > len(data):
            return
        while starts and starts[0][0] <= header.last_offset:
            aborting.add(heapq.heappop(starts)[1])
        try:
            body = data[at + RECORD_BATCH_OVERHEAD : end]
            codec = codec_of(header.attributes)
            plain = decompress(codec, body) if codec else bytes(body)
            for each in decode(tp, tuple(header), plain):
                control = _control(each) if header.is_control else ""
                if control == _CONTROL[ControlType.ABORT]:
                    aborting.discard(header.producer_id)
                left_out = header.is_transactional and not control and header.producer_id in aborting
                if each.offset >= offset and not left_out:
                    yield LogRecord(
                        tp.partition, each.offset, each.timestamp_ms, each.key, each.value, each.headers,
                        each.timestamp_type == 1, header.partition_leader_epoch, control, header,
                    )  # fmt: skip
        except (IndexError, ValueError, KafkaError) as problem:
            raise errors.DeserializationError(
                tp.topic, tp.partition, header.base_offset, f"a batch is corrupt: {problem}"
            ) from problem
        at = end


def _control(record: Any) -> str:
    given = Record(record.offset, record.timestamp_ms, record.key, record.value)
    kind = -1
    with suppress(KafkaError):
        kind = parse_control_record(given).type
    return _CONTROL[ControlType(kind)] if kind in _CONTROL else f"of type {kind}"


def _of_old_format(tp: TopicPartition, data: memoryview, offset: int) -> Iterator[LogRecord]:
    """Messages of the formats 0 and 1, and batches after them."""
    found = PartitionData(tp, data, offset, check_crcs=False, aborted=None)
    while (listed := found.next_batch()) is not None:
        for each in listed:
            yield LogRecord(
                tp.partition, each.offset, each.timestamp_ms, each.key, each.value, each.headers,
                each.timestamp_type == 1, each.leader_epoch,
            )  # fmt: skip

"""Old clients beside present-day ones on one topic: records of formats 0 and 1, which brokers convert.

Old producers send message sets, plain or in a compressed wrapper, with Produce 0 to 2, and send a set again
until it is acknowledged. Old readers use Fetch 0 to 3 and decode as the client library's `legacy` package.
Both find leaders by Metadata 0. Beside them are a present-day producer (idempotent or transactional) and a
present-day consumer. The seed chooses the topic's compression.type and message.timestamp.type.

Checked:

- *nothing acknowledged is lost*: each record that was acknowledged with acks=all is at its offset, with its
  key, its value and, from format 1 on, its timestamp (-1 from format 0).
- *same records*: readers of all versions see the same record at the same offset, in the end the same offsets.
- *no duplicates*: a record is at no more offsets than the times its set was sent; idempotent producers send
  once.
- *order*: a record that is sent after another one was acknowledged is behind it.
- *old formats*: no response has an error that its version does not know, or a message set that is corrupt.
- *liveness*: in a whole cluster each client of each version reaches the end.

Not promised: the order of sets of one producer of which the earlier one was not acknowledged. The broker may
append it when the network delivers it, after later ones. Nor that an old reader gets over a control batch at
the end of a segment: its response has no whole message, as Kafka's. The readers here go on behind it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.client import AdminClient, Consumer, Producer
from ottla.client.admin import NewTopic
from ottla.client.core.types import TopicPartition
from ottla.client.errors import ClientError
from ottla.client.legacy.message_sets import ByteBufferMessageSet
from ottla.environment import environment
from ottla.protocol import messages as m
from ottla.protocol.compression import Codec
from ottla.protocol.errors import ErrorCode
from ottla.protocol.legacy_records import encode_message_set
from ottla.protocol.records import NO_TIMESTAMP, Record
from ottla.protocol.types import Message
from ottla.simulation.cluster import Cluster, Violation
from ottla.simulation.invariants import check_acknowledged
from ottla.simulation.workloads.clients import Clients, FlippedBits
from ottla.simulation.workloads.raw_connection import NOT_APPENDED, ConnectionEnded, RawConnection

TIMEOUT_S: Final = 5.0
"""How long an old client waits for a response."""
ATTEMPTS_MAX: Final = 20
BEHIND_S: Final = 0.2
"""How long an old client waits after an error."""
RESTART_RATE: Final = 0.03
"""How often a reader begins again, from the first record, instead of its next fetch."""
FETCH_BYTES: Final = (1_000, 64 * 1024)
_READ_ERRORS: Final = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_OUT_OF_RANGE,  # by a former leader that does not know that it is none
    )
)
_CODECS: Final = (Codec.NONE, Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)


@dataclass
class _Sent:
    """A record as its producer sends it."""

    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    behind: int
    """The highest offset that was acknowledged in its partition before it was sent."""
    attempts: int = 0
    offsets: set[int] = field(default_factory=set)
    """Where it was seen."""


class _OldClient:
    """Finds leaders by Metadata 0, and has a connection to each broker."""

    def __init__(self, cluster: Cluster, topic: str, partitions: int, source: random.Random) -> None:
        self._partitions = partitions
        self._cluster = cluster
        self._topic = topic
        self._source = source
        self._connections: dict[str, RawConnection] = {}
        self._leaders: dict[int, str] = {}

    async def leaders(self) -> dict[int, str]:
        """Partition -> host; a partition may have no leader. Raises ConnectionEnded."""
        if len(self._leaders) < self._partitions:
            host = self._source.choice([each.host for each in self._cluster.machines.values()])
            topics = [m.MetadataRequest.MetadataRequestTopic(name=self._topic)]
            found = await self.call(host, m.MetadataRequest(topics=topics), 0)
            hosts = {broker.node_id: broker.host for broker in found.brokers}
            self._leaders = {
                each.partition_index: hosts[each.leader_id]
                for topic in found.topics
                for each in topic.partitions
                if each.leader_id in hosts
            }
        return self._leaders

    async def call(self, host: str, request: Message, version: int) -> Any:
        """Send a request to a broker. Raises ConnectionEnded."""
        try:
            connection = self._connections.get(host)
            if connection is None:
                connection = self._connections[host] = await RawConnection.open(host, TIMEOUT_S)
            return await connection.call(request, version)
        except ConnectionEnded:
            self.forget(host)
            raise

    def forget(self, host: str | None = None) -> None:
        """After an error: ask for the leaders again; close the connection to a host."""
        self._leaders = {}
        connection = None if host is None else self._connections.pop(host, None)
        if connection is not None:
            connection.close(abort=self._source.random() < 0.5)

    def close(self) -> None:
        for host in list(self._connections):
            self.forget(host)


class OldFormats:
    """See the module."""

    def __init__(
        self, *, topic: str = "old-formats", partitions: int = 2, producers: int = 2, rate: float = 6.0
    ) -> None:
        """`rate` is the number of message sets that each old producer sends in a second."""
        self.topic = topic
        self._partitions = [TopicPartition(topic, number) for number in range(partitions)]
        self._producers = producers
        self._interval_s = 1 / rate
        self._sent: dict[bytes, _Sent] = {}
        """By the record's name, which begins its value, or its key if it has no value."""
        self._seen: dict[tuple[int, int], bytes] = {}
        """(partition, offset) -> name."""
        self._times: dict[tuple[int, int], int] = {}
        """(partition, offset) -> timestamp, as read in format 1 or 2."""
        self._acknowledged: dict[tuple[int, int], bytes] = {}
        self._ends = dict.fromkeys(range(partitions), -1)
        """The highest offset that was acknowledged."""
        self._complete: dict[int, list[int]] | None = None
        """All offsets with records, when the producers have ended."""
        self._stopping = False
        self._resent = 0

    async def prepare(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._clients = Clients(cluster, self.topic)
        source = cluster.random(self.topic)
        self._by_broker = source.random() < 0.25
        self._is_transactional = source.random() < 0.3
        self._config = {
            "compression.type": source.choice(
                ("producer", "producer", "uncompressed", "gzip", "lz4", "snappy")
            ),
            "message.timestamp.type": "LogAppendTime" if self._by_broker else "CreateTime",
            "message.format.version": source.choice(("0.8.2", "0.10.0", "3.0-IV1")),
            "segment.bytes": source.choice(("4000", "32768")),
            "retention.ms": "-1",  # some producers choose old timestamps
        }
        await cluster.admin(self._create)

    async def _create(self, admin: AdminClient) -> None:
        topic = NewTopic(self.topic, len(self._partitions), 3, config=self._config)
        (await admin.create_topics([topic])).raise_first()

    async def run(self) -> None:
        for number in range(self._producers):
            name = f"{self.topic}-producer-{number}"
            self._clients.start(name, self._produce_old(name))
        name = f"{self.topic}-present-producer"
        present = self._produce_in_transactions if self._is_transactional else self._produce
        self._clients.start(name, present(name))
        for version in (0, 1, 2, 3):
            name = f"{self.topic}-reader-{version}"
            self._clients.start(name, self._read_old(name, version))
        name = f"{self.topic}-present-reader"
        self._clients.start(name, self._read(name))

    # --- records ---

    def _new_record(
        self, name: bytes, partition: int, timestamp_ms: int, source: random.Random
    ) -> tuple[bytes | None, bytes | None]:
        """Register a record that is about to be sent; returns its key and value."""
        padding = b"|" + b"x" * source.choice((0, 20, 300))
        key, value = source.choice(
            ((None, name + padding), (b"", name + padding), (b"key " + name, name + padding), (name, None))
        )
        self._sent[name] = _Sent(partition, key, value, timestamp_ms, self._ends[partition])
        return key, value

    def _observe(
        self,
        partition: int,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int | None,
        how: str,
    ) -> None:
        """`timestamp_ms` None: of format 0, which has none."""
        where = f"offset {offset} of {self.topic}-{partition}"
        text = key if value is None else value
        name = b"" if text is None else text.partition(b"|")[0]
        sent = self._sent.get(name)
        if sent is None or (partition, key, value) != (sent.partition, sent.key, sent.value):
            raise Violation(
                f"no invention: {how} has {key!r}: {value!r} at {where}; its producer sent {sent}"
            )
        self._place(partition, offset, name, how)
        if timestamp_ms is None:
            return
        expected = self._times.setdefault(
            (partition, offset), timestamp_ms if self._by_broker else sent.timestamp_ms
        )
        if timestamp_ms != expected:
            raise Violation(
                f"timestamps: {how} has {timestamp_ms} for {name!r} at {where}, expected {expected}, "
                f"{self._config['message.timestamp.type']}"
            )

    def _place(self, partition: int, offset: int, name: bytes, how: str) -> None:
        where = f"offset {offset} of {self.topic}-{partition}"
        known = self._seen.setdefault((partition, offset), name)
        if known != name:
            raise Violation(f"same records: {where} held {known!r}, and {how} has {name!r}")
        sent = self._sent[name]
        if offset <= sent.behind:
            raise Violation(
                f"order: {name!r} is at {where}; offset {sent.behind} was acknowledged before it was sent"
            )
        sent.offsets.add(offset)
        if len(sent.offsets) > sent.attempts:
            raise Violation(
                f"no duplicates: {name!r} was sent {sent.attempts} times to {self.topic}-{partition}, and is "
                f"at offsets {sorted(sent.offsets)}, by {how}"
            )

    def _acknowledge(self, partition: int, offset: int, name: bytes, sent_s: float) -> None:
        check_acknowledged(self._cluster, self.topic, partition, offset, sent_s=sent_s)
        self._acknowledged[partition, offset] = name
        self._ends[partition] = max(self._ends[partition], offset)
        self._place(partition, offset, name, "the acknowledgement")

    def _check_error(self, code: int, allowed: Iterable[ErrorCode], what: str) -> None:
        error = ErrorCode.of(code)
        if error not in allowed:
            raise Violation(f"old formats: {what} has {error.name}")

    # --- old producers ---

    async def _produce_old(self, name: str) -> None:
        source = self._cluster.random(name)
        client = _OldClient(self._cluster, self.topic, len(self._partitions), source)
        number = 0
        while not self._stopping:
            version = source.choice((0, 1, 2))
            sets: dict[int, list[tuple[bytes, Record]]] = {}
            for tp in source.sample(self._partitions, source.choice((1, 1, len(self._partitions)))):
                rows = sets[tp.partition] = []
                for at in range(source.choice((1, 1, 3))):
                    each = f"{name} {number}".encode()
                    number += 1
                    timestamp_ms = self._timestamp(source) if version == 2 else NO_TIMESTAMP
                    key, value = self._new_record(each, tp.partition, timestamp_ms, source)
                    rows.append((each, Record(at, timestamp_ms, key, value)))
            await self._send(client, version, sets, source)
            await self._cluster.think(source, self._interval_s)
        client.close()

    def _timestamp(self, source: random.Random) -> int:
        return source.choice((NO_TIMESTAMP, 0, environment.get().wall_ms()))

    async def _send(
        self,
        client: _OldClient,
        version: int,
        sets: dict[int, list[tuple[bytes, Record]]],
        source: random.Random,
    ) -> None:
        """Send message sets by partition until they are acknowledged; gives up at last."""
        codec, acks = source.choice(_CODECS), source.choice((-1, -1, -1, 1))
        for _ in range(ATTEMPTS_MAX):
            try:
                leaders = await client.leaders()
                hosts = dict.fromkeys(leaders[each] for each in sets if each in leaders)
                for host in hosts:
                    chosen = [each for each in sets if leaders.get(each) == host]
                    for partition in await self._produce_once(
                        client, host, version, {each: sets[each] for each in chosen}, codec, acks
                    ):
                        del sets[partition]
            except ConnectionEnded:
                pass
            if not sets:
                return
            client.forget()
            await asyncio.sleep(BEHIND_S)

    async def _produce_once(
        self,
        client: _OldClient,
        host: str,
        version: int,
        sets: dict[int, list[tuple[bytes, Record]]],
        codec: Codec,
        acks: int,
    ) -> list[int]:
        """Returns the partitions whose sets are acknowledged. Raises ConnectionEnded."""
        data = []
        for partition, rows in sets.items():
            records = encode_message_set([record for _, record in rows], 1 if version == 2 else 0, codec)
            data.append(m.ProduceRequest.PartitionProduceData(index=partition, records=records))
            for name, _ in rows:
                self._sent[name].attempts += 1
                self._resent += self._sent[name].attempts > 1
        topic = m.ProduceRequest.TopicProduceData(name=self.topic, partition_data=data)
        sent_s = self._cluster.loop.now
        response = await client.call(
            host, m.ProduceRequest(acks=acks, timeout_ms=3_000, topic_data=[topic]), version
        )
        done = []
        for row in response.responses[0].partition_responses:
            what = f"Produce v{version} of {codec.name} to {self.topic}-{row.index} on {host}"
            if row.error_code:
                self._check_error(row.error_code, NOT_APPENDED, what)
                continue
            done.append(row.index)
            for at, (name, _) in enumerate(sets[row.index]):
                offset = row.base_offset + at
                if acks == -1:
                    self._acknowledge(row.index, offset, name, sent_s)
                    self._note_append_time(row, version, offset, what)
        return done

    def _note_append_time(self, row: Any, version: int, offset: int, what: str) -> None:
        """The broker's timestamp in the response to Produce 2."""
        if version < 2:
            return
        time_ms = row.log_append_time_ms
        if (time_ms != NO_TIMESTAMP) is not self._by_broker:
            raise Violation(f"timestamps: {what} has log append time {time_ms}")
        if self._by_broker and self._times.setdefault((row.index, offset), time_ms) != time_ms:
            raise Violation(
                f"timestamps: {what} has log append time {time_ms}, and offset {offset} was read with "
                f"{self._times[row.index, offset]}"
            )

    # --- old readers ---

    async def _read_old(self, name: str, version: int) -> None:
        source = self._cluster.random(name)
        client = _OldClient(self._cluster, self.topic, len(self._partitions), source)
        found: dict[int, list[int]] = {tp.partition: [] for tp in self._partitions}
        skipped = dict.fromkeys(found, 0)
        while found != self._complete:
            try:
                leaders = await client.leaders()
                for host in dict.fromkeys(leaders.values()):
                    chosen = [each for each, leader in leaders.items() if leader == host]
                    if not await self._fetch(client, host, version, chosen, found, skipped, source):
                        client.forget()
            except ConnectionEnded:
                await asyncio.sleep(BEHIND_S)
            if self._complete is not None:
                self._compare_ends(name, found)
            elif source.random() < RESTART_RATE:
                found.update((partition, []) for partition in found)
                skipped.update(dict.fromkeys(found, 0))
            await asyncio.sleep(BEHIND_S * source.random())
        client.close()

    async def _fetch(
        self,
        client: _OldClient,
        host: str,
        version: int,
        partitions: list[int],
        found: dict[int, list[int]],
        skipped: dict[int, int],
        source: random.Random,
    ) -> bool:
        """Fetch once from a broker, and verify the records; False after an error. Raises ConnectionEnded.
        `skipped` are the offsets after control batches where no message is."""
        next_offsets = {
            each: max(found[each][-1] + 1 if found[each] else 0, skipped[each]) for each in partitions
        }
        size = source.choice(FETCH_BYTES)
        rows = [
            m.FetchRequest.FetchPartition(partition=each, fetch_offset=offset, partition_max_bytes=size)
            for each, offset in next_offsets.items()
        ]
        request = m.FetchRequest(
            max_wait_ms=200,
            min_bytes=1,
            max_bytes=256 * 1024,
            topics=[m.FetchRequest.FetchTopic(topic=self.topic, partitions=rows)],
        )
        flipped_bits = FlippedBits(self._cluster)
        response = await client.call(host, request, version)
        succeeded = True
        for row in (row for topic in response.responses for row in topic.partitions):
            partition = row.partition_index
            what = f"Fetch v{version} of {self.topic}-{partition} at {next_offsets[partition]} from {host}"
            if row.error_code:
                if not (row.error_code == ErrorCode.CORRUPT_MESSAGE and flipped_bits.may_show()):
                    self._check_error(row.error_code, _READ_ERRORS, what)
                succeeded = False
                continue
            tp, data = TopicPartition(self.topic, partition), memoryview(bytes(row.records or b""))
            before = len(found[partition])
            try:
                for each in ByteBufferMessageSet(tp, data, next_offsets[partition]):
                    self._read_message(each.offset, each.message, version, partition, found[partition], what)
                    if each.offset >= row.high_watermark:
                        raise Violation(
                            f"old formats: {what} has offset {each.offset}, and high watermark "
                            f"{row.high_watermark}"
                        )
            except ClientError as problem:
                raise Violation(f"old formats: {what} has invalid records: {problem}") from problem
            if data and size == FETCH_BYTES[-1] and len(found[partition]) == before:
                skipped[partition] = next_offsets[partition] + 1
        return succeeded

    def _read_message(
        self, offset: int, message: Any, version: int, partition: int, found: list[int], what: str
    ) -> None:
        if found and offset <= found[-1]:
            raise Violation(f"order: {what} has offset {offset} after {found[-1]}")
        timestamp_ms = None if version < 2 else message.timestamp_ms
        self._observe(partition, offset, message.key, message.payload, timestamp_ms, what)
        found.append(offset)

    def _compare_ends(self, name: str, found: dict[int, list[int]]) -> None:
        """A reader may be behind, and has skipped nothing."""
        assert self._complete is not None
        for partition, offsets in found.items():
            expected = self._complete[partition][: len(offsets)]
            if offsets != expected:
                differing = sorted(set(offsets) ^ set(expected))
                raise Violation(
                    f"same records: {name} and a present-day reader do not agree on offsets {differing[:5]} "
                    f"of {self.topic}-{partition}"
                )

    # --- present-day clients ---

    async def _produce(self, name: str) -> None:
        source = self._cluster.random(name)
        number = 0
        while not self._stopping:
            async with Producer(
                bootstrap_servers=self._cluster.bootstrap,
                client_id=name,
                compression_type=source.choice(("none", "gzip", "lz4", "snappy")),
                linger_ms=source.choice((0, 50)),
                request_timeout_ms=5_000,
            ) as producer:
                pending: set[asyncio.Future[Any]] = set()
                for _ in range(source.randint(1, 200)):
                    if self._stopping:
                        break
                    try:
                        pending.add(await self._send_present(producer, f"{name} {number}".encode(), source))
                    except ClientError:
                        await asyncio.sleep(0.5)
                    number += 1
                    await self._cluster.think(source, self._interval_s)
                if pending:
                    await asyncio.wait(pending)

    async def _send_present(
        self, producer: Producer, name: bytes, source: random.Random
    ) -> asyncio.Future[Any]:
        partition = source.choice(self._partitions).partition
        timestamp_ms = environment.get().wall_ms()
        key, value = self._new_record(name, partition, timestamp_ms, source)
        self._sent[name].attempts = 1
        delivery = await producer.send(
            self.topic,
            value,
            key,
            partition=partition,
            timestamp_ms=timestamp_ms,
            headers=source.choice(((), (("header", b"one"), ("header", None)))),
        )
        sent_s = self._cluster.loop.now

        def delivered(done: asyncio.Future[Any]) -> None:
            if not done.cancelled() and done.exception() is None:
                self._acknowledge(partition, done.result().offset, name, sent_s)

        delivery.add_done_callback(delivered)
        return delivery

    async def _produce_in_transactions(self, name: str) -> None:
        source = self._cluster.random(name)
        number = 0
        while not self._stopping:
            with suppress(ClientError):
                async with Producer(
                    bootstrap_servers=self._cluster.bootstrap,
                    client_id=name,
                    transactional_id=name,
                    transaction_timeout_ms=5_000,
                    compression_type=source.choice(("none", "gzip", "lz4", "snappy")),
                    request_timeout_ms=3_000,
                    delivery_timeout_ms=15_000,
                    max_block_ms=15_000,
                ) as producer:
                    while not self._stopping:
                        producer.begin_transaction()
                        for _ in range(source.randint(1, 4)):
                            number += 1
                            await self._send_present(producer, f"{name} {number}".encode(), source)
                            await self._cluster.think(source, self._interval_s)
                        if source.random() < 0.4:
                            await producer.abort_transaction()
                        else:
                            await producer.commit_transaction()
            await asyncio.sleep(0.2)

    async def _read(self, name: str) -> None:
        found: dict[int, list[int]] = {tp.partition: [] for tp in self._partitions}
        source = self._cluster.random(name)
        while found != self._complete:
            try:
                await self._read_present(name, found, source=source)
            except ClientError as problem:
                self._cluster.note(name, f"consumer failed: {problem!r}")
                await asyncio.sleep(0.5)

    async def _read_present(
        self,
        name: str,
        found: dict[int, list[int]],
        ends: dict[TopicPartition, int] | None = None,
        source: random.Random | None = None,
    ) -> None:
        """Read from the present positions on, until these ends or until all is read. With a source of
        randomness, begin again at times. Raises ClientError."""
        async with Consumer(
            bootstrap_servers=self._cluster.bootstrap, client_id=name, auto_offset_reset="none"
        ) as consumer:
            consumer.assign(self._partitions)
            for tp in self._partitions:
                consumer.seek(tp, found[tp.partition][-1] + 1 if found[tp.partition] else 0)
            while found != self._complete:
                if ends is not None and not [
                    tp for tp, end in ends.items() if await consumer.position(tp) < end
                ]:
                    return
                for tp, records in (await consumer.poll(0.2)).items():
                    for each in records:
                        self._read_record(name, tp, each, found[tp.partition])
                if self._complete is not None:
                    self._compare_ends(name, found)
                elif source is not None and source.random() < RESTART_RATE:
                    found.update((partition, []) for partition in found)
                    for tp in self._partitions:
                        consumer.seek(tp, 0)

    def _read_record(self, name: str, tp: TopicPartition, record: Any, found: list[int]) -> None:
        if found and record.offset <= found[-1]:
            raise Violation(f"order: {name} read offset {record.offset} of {tp} after {found[-1]}")
        self._observe(tp.partition, record.offset, record.key, record.value, record.timestamp_ms, name)
        found.append(record.offset)

    # --- the end ---

    async def finish(self) -> None:
        self._stopping = True
        await self._clients.wait(
            *(each for name, each in self._cluster.clients.items() if self._is_producer(name))
        )
        complete = await self._cluster.in_process(f"{self.topic}-verifier", self._read_all())
        for (partition, offset), name in self._acknowledged.items():
            if offset not in complete[partition]:
                raise Violation(
                    f"nothing acknowledged is lost: {name!r} was acknowledged at offset {offset} of "
                    f"{self.topic}-{partition}, where no record is"
                )
        self._complete = {partition: sorted(offsets) for partition, offsets in complete.items()}
        for version in (0, 1, 2, 3):
            reader = f"{self.topic}-late-reader-{version}"
            self._clients.start(reader, self._read_old(reader, version))
        await self._clients.wait()
        self._cluster.note(
            "simulation",
            f"{self.topic}: {len(self._acknowledged)} of {len(self._sent)} records acknowledged, "
            f"{len(self._seen)} stored, {self._resent} sent again, {self._config}",
        )

    def _is_producer(self, name: str) -> bool:
        return name.startswith(f"{self.topic}-") and "producer" in name

    async def _read_all(self) -> dict[int, dict[int, None]]:
        """All offsets with records, by a present-day consumer."""
        found: dict[int, list[int]] = {tp.partition: [] for tp in self._partitions}
        name = f"{self.topic}-verifier"
        async with Consumer(bootstrap_servers=self._cluster.bootstrap, client_id=name) as consumer:
            ends = await consumer.end_offsets(self._partitions)
        await self._read_present(name, found, ends)
        return {partition: dict.fromkeys(offsets) for partition, offsets in found.items()}

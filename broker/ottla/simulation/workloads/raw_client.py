"""A raw client that sends what an old or a hostile client may send, beside the other workloads.

Each attack is one connection to one broker, chosen by the seed: old formats and versions, requests of all
APIs and versions without content, garbage, truncated frames, huge sizes, half-closed connections, pipelines
that are not read, commits of generations and members that do not exist, wrong leader epochs, and requests of
controllers and to registrations that are gone.

Checked: what must be refused is refused, with Kafka's error; each well-formed request has its response, in
order (while there are faults, a connection may end instead); *KIP-320*: a request with another leader epoch
than the broker has gets FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH; records of all formats keep their
offsets and values, in whichever format they are read; a retry of one of the last five batches of a producer
gets the offset of the original, and a gap in its sequence and a batch of no transaction are refused. The
monitor and the other workloads see whether a broker dies, logs a mistake, or obeys.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Final

from crc32c import crc32c

from ottla.client import AdminClient
from ottla.client.admin import NewTopic
from ottla.protocol import codec, frames
from ottla.protocol import messages as m
from ottla.protocol.api import ApiKey
from ottla.protocol.compression import Codec
from ottla.protocol.errors import ErrorCode, KafkaError, UnencodableMessage
from ottla.protocol.legacy_records import decode_message_set, encode_message_set
from ottla.protocol.records import CRC_START, Record, build_batch, decode_batch, iter_batches
from ottla.protocol.types import Message
from ottla.replication.partition import Partition
from ottla.simulation.cluster import Cluster, Machine, Violation
from ottla.simulation.workloads.clients import FlippedBits
from ottla.simulation.workloads.raw_connection import NOT_APPENDED, ConnectionEnded, RawConnection

PATIENCE_S: Final = 10.0
"""How long the client waits while there are faults."""
STRICT_S: Final = 40.0
"""How long a broker may take once there are none."""
DISRUPTIVE: Final = frozenset(
    (ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA, ApiKey.CONTROLLED_SHUTDOWN)
)
"""Brokers believe the controller; a client that may act as it can do anything (authorization forbids it)."""
NOT_SENT_EMPTY: Final = DISRUPTIVE | {ApiKey.ELECT_LEADERS, ApiKey.SASL_AUTHENTICATE, ApiKey.ENVELOPE}
"""Empty means all partitions, or the broker closes the connection, as Kafka's."""
_COORDINATOR: Final = frozenset(
    (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    )
)
_STRANGER: Final = _COORDINATOR | {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}
"""The errors for a member that does not exist."""
_REFUSED: Final = _STRANGER | {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
"""The errors of its commit; the broker may not know the topic yet."""

Attack = Callable[[RawConnection, Machine, random.Random], Awaitable[None]]


class RawClient:
    """See the module."""

    def __init__(
        self, *, topic: str = "raw", partitions: int = 3, clients: int = 2, rate: float = 8.0
    ) -> None:
        """`rate` is the number of attacks that each client begins in a second."""
        self.topic = topic
        self._partitions = partitions
        self._clients = range(clients)
        self._interval_s = 1 / rate
        self._stopping = False
        self._strict = False
        self._tasks: list[asyncio.Task[None]] = []
        self._values: dict[tuple[int, int], bytes] = {}
        """(partition, offset) -> value, as acknowledged with acks=all or read."""
        self._acknowledged: dict[tuple[int, int], bytes] = {}
        self._number = 0
        self.counts: dict[str, int] = {}
        """Attacks that came to their end, by name."""
        self._attacks: tuple[Attack, ...] = (
            self.produce_and_fetch,
            self.produce_and_fetch,
            self.retries,
            self.unverified_transaction,
            self.list_offsets,
            self.read_metadata,
            self.every_api,
            self.unknown_api,
            self.garbage,
            self.truncated,
            self.half_closed,
            self.pipelined,
            self.old_group_member,
            self.foreign_commit,
            self.leader_epochs,
            self.leader_epochs,
            self.stale_controller,
        )

    async def prepare(self, cluster: Cluster) -> None:
        self._cluster = cluster
        await cluster.admin(self._create)

    async def _create(self, admin: AdminClient) -> None:
        await admin.create_topics([NewTopic(self.topic, self._partitions, 3)])

    async def run(self) -> None:
        for number in self._clients:
            name = f"{self.topic}-{number}"
            task = self._cluster.client(name).create_task(self._attack_all(name))
            task.add_done_callback(self._cluster.watch)
            self._tasks.append(task)

    async def _attack_all(self, name: str) -> None:
        source = self._cluster.random(name)
        while not self._stopping:
            await self._cluster.think(source, self._interval_s)
            machines = list(self._cluster.machines.values())
            if self._strict:  # a broker that is being scaled away may begin again, if it is needed after all
                machines = [machine for machine in machines if machine.wanted and machine.is_serving]
            await self._attack(source.choice(self._attacks), source.choice(machines), source)

    async def _attack(self, attack: Attack, machine: Machine, source: random.Random) -> None:
        """One attack on one broker; its end without a violation, or with the connection's."""
        name = getattr(attack, "__name__", "attack")
        connection = None
        try:
            connection = await RawConnection.open(machine.host, STRICT_S if self._strict else PATIENCE_S)
            await attack(connection, machine, source)
            self.counts[name] = self.counts.get(name, 0) + 1
        except ConnectionEnded as problem:
            if self._strict and machine.wanted:  # not one that is just being scaled away
                raise Violation(
                    f"each request has its response: {name} at {machine.host}: {problem}"
                ) from problem
        finally:
            if connection is not None:
                connection.close(abort=source.random() < 0.3)

    def _check(self, invariant: str, code: int, allowed: frozenset[ErrorCode], what: str) -> None:
        error = ErrorCode.of(code)
        if error not in allowed:
            names = ", ".join(sorted(each.name for each in allowed))
            raise Violation(f"{invariant}: {what}: {error.name}, expected {names}")

    # --- records ---

    async def produce_and_fetch(
        self, connection: RawConnection, machine: Machine, source: random.Random
    ) -> None:
        """Produce and Fetch in versions of each record format."""
        led = [
            number
            for (topic, number), state in self._cluster.partition_states()
            if topic == self.topic and state.leader == machine.id
        ]
        partition = source.choice(led or list(range(self._partitions)))
        version = source.choice((0, 1, 2, 3, 7, 11))
        acks = source.choice((-1, -1, 1, 0))
        values = [self._value(source) for _ in range(source.randint(1, 3))]
        data = m.ProduceRequest.PartitionProduceData(
            index=partition, records=_records(version, values, source)
        )
        topic = m.ProduceRequest.TopicProduceData(name=self.topic, partition_data=[data])
        request = m.ProduceRequest(acks=acks, timeout_ms=5_000, topic_data=[topic])
        if acks == 0:
            # If the broker does not lead the partition, it closes the connection, as Kafka's.
            connection.write(connection.frame(request, version))
            await asyncio.sleep(source.choice((0.0, 0.1)))
            return
        response = await connection.call(request, version)
        row = response.responses[0].partition_responses[0]
        where = f"Produce v{version} to {self.topic}-{partition} on {machine.host}"
        if row.error_code:
            self._check("old formats", row.error_code, NOT_APPENDED, where)
        elif acks == -1:
            for number, value in enumerate(values):
                place = (partition, row.base_offset + number)
                self._acknowledged[place] = value
                self._observe(place, value, f"acknowledged to {where}")
        await self._fetch(connection, machine, partition, source)

    async def retries(self, connection: RawConnection, machine: Machine, source: random.Random) -> None:
        """An idempotent producer that sends one of its last five batches again, or leaves one out."""
        partition = self._led_by(machine, source)
        request = m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000)
        init = await connection.call(request, 1)
        if partition is None or init.error_code:
            return
        sent: list[tuple[bytes, int]] = []
        for sequence in range(source.randint(1, 7)):
            value = self._value(source)
            row = await self._produce_batch(connection, partition, init, sequence, value)
            if row.error_code:
                self._check(
                    "sequences", row.error_code, NOT_APPENDED, f"sequence {sequence} to {machine.host}"
                )
                return
            self._acknowledged[partition, row.base_offset] = value
            self._observe((partition, row.base_offset), value, f"acknowledged by {machine.host}")
            sent.append((value, row.base_offset))
        again = source.randrange(max(0, len(sent) - 5), len(sent))
        value, offset = sent[again]
        row = await self._produce_batch(connection, partition, init, again, value)
        where = f"sequence {again} of producer {init.producer_id} in {self.topic}-{partition}"
        self._check("sequences", row.error_code, NOT_APPENDED | {ErrorCode.NONE}, f"a retry of {where}")
        if not row.error_code and row.base_offset != offset:
            raise Violation(f"sequences: {where} is at offset {offset}, and its retry at {row.base_offset}")
        row = await self._produce_batch(connection, partition, init, len(sent) + 1, value)
        allowed = NOT_APPENDED | {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}
        self._check("sequences", row.error_code, allowed, f"a gap after {where}")

    async def unverified_transaction(
        self, connection: RawConnection, machine: Machine, source: random.Random
    ) -> None:
        """A batch of a transaction that the coordinator does not know of, as a late one is (KIP-890)."""
        partition = self._led_by(machine, source)
        name = f"{self.topic}-{source.randrange(4)}"
        found = await connection.call(m.FindCoordinatorRequest(key=name, key_type=1), 2)
        if found.node_id != machine.id:
            return
        request = m.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=10_000)
        init = await connection.call(request, 1)
        if partition is None or init.error_code:
            return
        row = await self._produce_batch(connection, partition, init, 0, b"unverified", name)
        if not row.error_code:
            raise Violation(
                f"transactions are verified: {machine.host} has appended a batch of {name!r} to {self.topic}-"
                f"{partition} that was added to no transaction"
            )

    def _led_by(self, machine: Machine, source: random.Random) -> int | None:
        led = [
            number
            for (topic, number), state in self._cluster.partition_states()
            if topic == self.topic and state.leader == machine.id
        ]
        return source.choice(led) if led else None

    async def _produce_batch(
        self,
        connection: RawConnection,
        partition: int,
        producer: Any,
        sequence: int,
        value: bytes,
        transactional_id: str | None = None,
    ) -> Any:
        """Send one record with acks=all; the row of the response."""
        batch = build_batch(
            [Record(0, 1_700_000_000_000, None, value)],
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=sequence,
            transactional=transactional_id is not None,
        )
        data = m.ProduceRequest.PartitionProduceData(index=partition, records=batch)
        topic = m.ProduceRequest.TopicProduceData(name=self.topic, partition_data=[data])
        request = m.ProduceRequest(
            transactional_id=transactional_id, acks=-1, timeout_ms=5_000, topic_data=[topic]
        )
        response = await connection.call(request, 7)
        return response.responses[0].partition_responses[0]

    def _value(self, source: random.Random) -> bytes:
        self._number += 1
        return b"%d %s" % (self._number, b"x" * source.choice((0, 10, 300)))

    def _observe(self, place: tuple[int, int], value: bytes, how: str) -> None:
        known = self._values.setdefault(place, value)
        if known != value:
            raise Violation(
                f"same records: offset {place[1]} of {self.topic}-{place[0]} held {known!r}, and now "
                f"{value!r} is {how}"
            )

    async def _fetch(
        self, connection: RawConnection, machine: Machine, partition: int, source: random.Random
    ) -> None:
        version = source.choice((0, 1, 2, 3, 4, 7, 11, 12))
        known = [offset for number, offset in self._values if number == partition]
        offset = max(0, source.choice((0, max(known, default=0) - source.randint(0, 20))))
        await self._read(connection, machine, partition, offset, version)

    async def _read(
        self, connection: RawConnection, machine: Machine, partition: int, offset: int, version: int
    ) -> int | None:
        """Fetch once, and verify the records. Returns the next offset; None if there was an error."""
        row = m.FetchRequest.FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=64 * 1024
        )
        request = m.FetchRequest(
            max_wait_ms=100,
            min_bytes=0,
            max_bytes=256 * 1024,
            topics=[m.FetchRequest.FetchTopic(topic=self.topic, partitions=[row])],
        )
        flipped_bits = FlippedBits(self._cluster)
        found = (await connection.call(request, version)).responses[0].partitions[0]
        where = f"Fetch v{version} of {self.topic}-{partition} at {offset} from {machine.host}"
        if found.error_code:
            allowed = NOT_APPENDED | {ErrorCode.OFFSET_OUT_OF_RANGE}
            if flipped_bits.may_show():
                allowed |= {ErrorCode.CORRUPT_MESSAGE}
            self._check("old formats", found.error_code, allowed, where)
            return None
        try:
            records = _decode(bytes(found.records or b""), version)
        except KafkaError as problem:
            if flipped_bits.may_show():
                return None
            raise Violation(f"old formats: {where} returned invalid records: {problem}") from problem
        following = offset
        for record in records:
            if record.offset < offset:
                continue  # the beginning of its batch
            if record.offset != following:
                raise Violation(f"old formats: {where} returned {record.offset} after {following - 1}")
            following = record.offset + 1
            if following > found.high_watermark:
                raise Violation(f"old formats: {where} returned {record.offset}, not committed")
            self._observe((partition, record.offset), bytes(record.value or b""), f"returned by {where}")
        return following

    async def list_offsets(self, connection: RawConnection, machine: Machine, source: random.Random) -> None:
        """ListOffsets in its oldest versions."""
        version = source.choice((0, 1, 2, 5))
        partition = source.randrange(self._partitions)
        row = m.ListOffsetsRequest.ListOffsetsPartition(
            partition_index=partition,
            timestamp=source.choice((-1, -2, 0, 1 << 40)),
            max_num_offsets=1 if version else 3,
        )
        topic = m.ListOffsetsRequest.ListOffsetsTopic(name=self.topic, partitions=[row])
        response = await connection.call(m.ListOffsetsRequest(replica_id=-1, topics=[topic]), version)
        found = response.topics[0].partitions[0]
        if found.error_code:
            allowed = NOT_APPENDED | {ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.OFFSET_NOT_AVAILABLE}
            self._check("old formats", found.error_code, allowed, f"ListOffsets v{version} at {machine.host}")

    async def read_metadata(self, connection: RawConnection, machine: Machine, source: random.Random) -> None:
        """Metadata in every version, of one topic and of all."""
        version = source.randint(0, m.MetadataRequest.max_version)
        names = [m.MetadataRequest.MetadataRequestTopic(name=self.topic)]
        topics = source.choice((names, [], None if version else []))
        response = await connection.call(m.MetadataRequest(topics=topics), version)
        asked = topics is names
        if asked and [topic.name for topic in response.topics] != [self.topic]:
            raise Violation(f"each request has its response: Metadata v{version} has {response.topics}")

    # --- bytes ---

    async def every_api(self, connection: RawConnection, machine: Machine, source: random.Random) -> None:
        """A request without content, of each API in one version."""
        served = await connection.call(m.ApiVersionsRequest(), source.choice((0, 1, 2)))
        keys = [row for row in served.api_keys if row.api_key not in NOT_SENT_EMPTY]
        for row in source.sample(keys, 8) if not self._strict else keys:
            cls = frames.REQUESTS[row.api_key]
            version = source.randint(row.min_version, row.max_version)
            request = _empty(cls, version)
            if request is not None:
                try:
                    await connection.call(request, version)
                except ConnectionEnded as problem:
                    raise ConnectionEnded(f"{cls.__name__} v{version}: {problem}") from problem

    async def unknown_api(self, connection: RawConnection, machine: Machine, source: random.Random) -> None:
        """An unknown version of ApiVersions has a response (KIP-511), of any other API none."""
        response = await connection.call(m.ApiVersionsRequest(), 0)
        newer = struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 1, -1) + b"\0"
        connection.write(struct.pack(">i", len(newer)) + newer)
        frame = await connection.read()
        answer = codec.decode(m.ApiVersionsResponse, 0, frame, 4)
        if answer.error_code != ErrorCode.UNSUPPORTED_VERSION or not response.api_keys:
            raise Violation(f"each request has its response: ApiVersions v99 has {answer}")
        header = source.choice(
            ((999, 0), (-1, 0), (ApiKey.METADATA, 99), (ApiKey.FETCH, -1), (32_767, 32_767))
        )
        unknown = struct.pack(">hhih", *header, 2, -1)
        connection.write(struct.pack(">i", len(unknown)) + unknown)
        await self._expect_end(connection, f"a request of API and version {header} at {machine.host}")

    async def _expect_end(self, connection: RawConnection, what: str) -> None:
        if not await connection.ended() and self._strict:
            raise Violation(f"invalid requests end the connection: {what} did not")

    async def garbage(self, connection: RawConnection, machine: Machine, source: random.Random) -> None:
        """Bytes that are no request: no frames, impossible sizes, and headers before a random body."""
        kind = source.randrange(4)
        noise = source.randbytes(source.choice((1, 10, 500, 5_000)))
        if kind == 0:
            connection.write(struct.pack(">i", source.choice((-1, 0, 3, -(1 << 31), (1 << 31) - 1))) + noise)
        elif kind == 1:
            connection.write(b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n" + noise)
        else:
            keys = [key for key in frames.REQUESTS if key not in DISRUPTIVE]
            cls = frames.REQUESTS[source.choice(keys)]
            version = source.randint(cls.min_version, cls.max_version)
            request = _empty(cls, version)
            body = b"" if request is None else codec.encode(request, version)
            if kind == 2 and body:
                # Some of the request's own bytes, then others.
                body = body[: source.randrange(len(body))]
            head = struct.pack(">hhih", cls.api_key, version, 1, -1) + body + noise
            connection.write(struct.pack(">i", len(head)) + head)
        await asyncio.sleep(source.choice((0.0, 0.1)))

    async def truncated(self, connection: RawConnection, machine: Machine, source: random.Random) -> None:
        """A part of a request, and then nothing, the end, or a reset."""
        topic = m.MetadataRequest.MetadataRequestTopic(name=self.topic)
        data = connection.frame(m.MetadataRequest(topics=[topic]), 1)
        connection.write(data[: source.randrange(1, len(data))])
        if source.random() < 0.5:
            connection.half_close()
            await self._expect_end(connection, f"a part of a request at {machine.host}")
        else:
            await asyncio.sleep(source.choice((0.0, 0.5, 2.0)))

    async def half_closed(self, connection: RawConnection, machine: Machine, source: random.Random) -> None:
        """A client that has closed its side still gets its responses."""
        requests = [connection.frame(m.MetadataRequest(topics=[]), 1) for _ in range(source.randint(1, 5))]
        connection.write(b"".join(requests))
        connection.half_close()
        for number in range(1, len(requests) + 1):
            answered = frames.parse_correlation_id(await connection.read())
            if answered != number:
                raise Violation(f"responses are in order: {machine.host} sent {answered} instead of {number}")
        await self._expect_end(connection, f"a half-closed connection at {machine.host}")

    async def pipelined(self, connection: RawConnection, machine: Machine, source: random.Random) -> None:
        """Many requests before the first response is read, which then are read slowly."""
        count = source.choice((20, 20, 20, 400))
        for _ in range(count):
            if source.random() < 0.5:
                connection.write(connection.frame(m.ApiVersionsRequest(), 0))
            else:
                connection.write(connection.frame(m.MetadataRequest(topics=None), 1))
        await asyncio.sleep(source.choice((0.0, 1.0, 3.0)))
        for number in range(1, count + 1):
            answered = frames.parse_correlation_id(await connection.read())
            if answered != number:
                raise Violation(f"responses are in order: {machine.host} sent {answered} instead of {number}")
            if source.random() < 0.02:
                await asyncio.sleep(0.05)

    # --- groups ---

    async def old_group_member(
        self, connection: RawConnection, machine: Machine, source: random.Random
    ) -> None:
        """A member as of Kafka 0.9, which commits in its generation and in others."""
        group = f"{self.topic}-group-{source.randrange(3)}"
        find = await connection.call(m.FindCoordinatorRequest(key=group), 0)
        if find.error_code or find.host != machine.host:
            return
        subscription = codec.encode(
            m.ConsumerProtocolSubscription(topics=[self.topic]), m.ConsumerProtocolSubscription.min_version
        )
        protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"\0\0" + subscription)
        join = await connection.call(
            m.JoinGroupRequest(
                group_id=group,
                session_timeout_ms=6_000,
                member_id="",
                protocol_type="consumer",
                protocols=[protocol],
            ),
            source.choice((0, 1, 2, 3)),
        )
        if join.error_code:
            return
        shares = [
            m.SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=each.member_id, assignment=b"\0\0\0\0\0\0"
            )
            for each in join.members
        ]
        sync = await connection.call(
            m.SyncGroupRequest(
                group_id=group, generation_id=join.generation_id, member_id=join.member_id, assignments=shares
            ),
            0,
        )
        where = f"of generation {join.generation_id} in group {group}"
        for generation in (join.generation_id - 1, join.generation_id + 1):
            code = await self._commit(connection, group, generation, join.member_id)
            if not (generation < 0 and code is ErrorCode.NONE):
                self._check("fencing", code, _REFUSED, f"a commit of generation {generation} instead {where}")
        code = await self._commit(connection, group, join.generation_id, join.member_id)
        allowed = _STRANGER | NOT_APPENDED | {ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS}
        self._check("old formats", code, allowed, f"a commit {where}, whose sync had {sync.error_code}")
        await connection.call(m.HeartbeatRequest(group_id=group, generation_id=0, member_id="x"), 0)
        if source.random() < 0.7:
            await connection.call(m.LeaveGroupRequest(group_id=group, member_id=join.member_id), 0)

    async def _commit(self, connection: RawConnection, group: str, generation: int, member: str) -> ErrorCode:
        row = m.OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=0, committed_metadata=""
        )
        topic = m.OffsetCommitRequest.OffsetCommitRequestTopic(name=self.topic, partitions=[row])
        response = await connection.call(
            m.OffsetCommitRequest(
                group_id=group, generation_id_or_member_epoch=generation, member_id=member, topics=[topic]
            ),
            2,
        )
        return ErrorCode.of(response.topics[0].partitions[0].error_code)

    async def foreign_commit(
        self, connection: RawConnection, machine: Machine, source: random.Random
    ) -> None:
        """Commits, heartbeats and syncs in the name of a member that does not exist, in groups of other
        workloads."""
        group = f"groups-{source.randrange(2)}"
        generation = source.randint(0, 20)
        who = f"of a member that does not exist, at {machine.host}"
        was_loading = _is_loading(machine)
        refused = await self._commit(connection, group, generation, "x")
        self._check("fencing", refused, _REFUSED, f"a commit {who}")
        heartbeat = m.HeartbeatRequest(group_id=group, generation_id=generation, member_id="x")
        code = (await connection.call(heartbeat, source.choice((0, 3)))).error_code
        loads = was_loading or _is_loading(machine) or refused is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        # A coordinator that loads believes all members, and bids them to join again; Kafka's does.
        allowed = _STRANGER | ({ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS} if loads else set())
        self._check("fencing", code, allowed, f"a heartbeat {who}")
        sync = m.SyncGroupRequest(group_id=group, generation_id=generation, member_id="x", assignments=[])
        code = (await connection.call(sync, source.choice((0, 3)))).error_code
        loads = loads or _is_loading(machine)
        allowed = _STRANGER | ({ErrorCode.REBALANCE_IN_PROGRESS} if loads else set())
        self._check("fencing", code, allowed, f"SyncGroup {who}")

    # --- fencing ---

    async def leader_epochs(self, connection: RawConnection, machine: Machine, source: random.Random) -> None:
        """Older, newer and equal leader epochs in Fetch, ListOffsets and OffsetsForLeaderEpoch (KIP-320)."""
        partition = self._replica(machine, source)
        if partition is None:
            return
        before = (machine.starts, partition.leader_epoch, partition.is_leader)
        asked = partition.leader_epoch + source.choice((-1, 0, 1))
        send = source.choice((_fetch_epoch, _list_epoch, _end_of_epoch))
        code = await send(connection, partition.topic, partition.partition, asked)
        found = self._replica_of(machine, partition.topic, partition.partition)
        if found is None or before != (machine.starts, found.leader_epoch, found.is_leader):
            return
        if asked < 0:
            return  # no epoch: it is not checked
        expected = ErrorCode.NONE if before[2] else ErrorCode.NOT_LEADER_OR_FOLLOWER
        if asked < before[1]:
            expected = ErrorCode.FENCED_LEADER_EPOCH
        elif asked > before[1]:
            expected = ErrorCode.UNKNOWN_LEADER_EPOCH
        allowed = {expected}
        if expected is ErrorCode.NONE:
            allowed |= {ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_NOT_AVAILABLE}
        self._check(
            "KIP-320",
            code,
            frozenset(allowed | {ErrorCode.KAFKA_STORAGE_ERROR}),
            f"{send.__name__[1:]} with leader epoch {asked} to {machine.host}, which has {before[1]} of "
            f"{partition.topic}-{partition.partition}",
        )

    def _replica(self, machine: Machine, source: random.Random) -> Partition | None:
        """A replica of a running broker."""
        topics = self._cluster.topics()
        topic = source.choice(list(topics))
        return self._replica_of(machine, topic, source.choice(list(topics[topic].partitions)))

    def _replica_of(self, machine: Machine, topic: str, partition: int) -> Partition | None:
        replication = getattr(machine.broker, "replication", None) if machine.is_serving else None
        return None if replication is None else replication.replicas.find(topic, partition)

    async def stale_controller(
        self, connection: RawConnection, machine: Machine, source: random.Random
    ) -> None:
        """A former controller, or the present one to a former registration, makes this broker the leader of
        everything, deletes its replicas, or changes the metadata."""
        if not machine.is_serving or machine.broker is None:
            return
        replicas = machine.broker.replication.replicas
        broker_epoch, controller_epoch, starts = (
            replicas.broker_epoch,
            replicas.controller_epoch,
            machine.starts,
        )
        topics = self._cluster.topics()
        topic = source.choice(list(topics))
        partition = source.choice(list(topics[topic].partitions))
        if source.random() < 0.5 and controller_epoch > 0:
            controller_epoch -= 1
            expected = ErrorCode.STALE_CONTROLLER_EPOCH
        else:
            broker_epoch -= 1
            controller_epoch += source.choice((0, 1_000))
            expected = ErrorCode.STALE_BROKER_EPOCH
        make = source.choice((_lead, _stop, _update))
        request, version = make(
            topic, partition, topics[topic].topic_id, machine.id, controller_epoch, broker_epoch
        )
        code = (await connection.call(request, version)).error_code
        if starts == machine.starts:
            # A new registration since then makes the broker epoch old, too.
            allowed = frozenset((expected, ErrorCode.STALE_BROKER_EPOCH))
            self._check("stale controller", code, allowed, f"{type(request).__name__} at {machine.host}")

    # --- the end ---

    async def finish(self) -> None:
        self._stopping = True
        done, pending = await asyncio.wait(self._tasks, timeout=180)
        if pending:
            raise Violation(f"liveness: clients of {self.topic} have not ended: {pending}")
        for task in done:
            task.result()
        self._strict = True
        await self._cluster.in_process(f"{self.topic}-strict", self._attack_without_faults())
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        self._cluster.note("simulation", f"{self.topic}: {len(self._acknowledged)} acknowledged; {counts}")

    async def _attack_without_faults(self) -> None:
        source = self._cluster.random(f"{self.topic} strict")
        machines = list(self._cluster.machines.values())
        for attack in dict.fromkeys(self._attacks):
            await self._attack(attack, source.choice(machines), source)
        for partition in range(self._partitions):
            await self._read_all(partition, source)

    async def _read_all(self, partition: int, source: random.Random) -> None:
        """Every acknowledged record is there, in every format."""
        for version in (0, 2, 4):
            offset = 0
            deadline = self._cluster.loop.now + STRICT_S
            while (following := await self._read_at_leader(partition, offset, version)) != offset:
                if following is not None:
                    offset = following
                elif self._cluster.loop.now > deadline:
                    raise Violation(f"liveness: {self.topic}-{partition} cannot be read at {offset}")
                else:
                    await asyncio.sleep(0.5)
            last = max((number for each, number in self._acknowledged if each == partition), default=-1)
            if offset <= last:
                raise Violation(
                    f"nothing acknowledged is lost: {self.topic}-{partition} ends at {offset}; {last} was "
                    "acknowledged"
                )

    async def _read_at_leader(self, partition: int, offset: int, version: int) -> int | None:
        """As `_read`, from the present leader."""
        state = dict(self._cluster.partition_states())[self.topic, partition]
        machine = self._cluster.machines.get(state.leader)
        if machine is None:
            return None
        connection = await RawConnection.open(machine.host, STRICT_S)
        try:
            return await self._read(connection, machine, partition, offset, version)
        finally:
            connection.close()


def _is_loading(machine: Machine) -> bool:
    """Whether a broker loads groups, or starts."""
    coordinators = getattr(machine.broker, "coordinators", None)
    return coordinators is None or coordinators.groups._manager.partitions.is_loading


def _records(version: int, values: list[bytes], source: random.Random) -> bytes:
    """Records in the format of a version of Produce."""
    records = [Record(number, 1_700_000_000_000, None, value) for number, value in enumerate(values)]
    compression = source.choice((Codec.NONE, Codec.NONE, Codec.GZIP))
    if version >= 3:
        return build_batch(records, codec=compression)
    return encode_message_set(records, 1 if version == 2 else 0, compression)


def _decode(data: bytes, version: int) -> list[Record]:
    """The records in a Fetch response; the last batch may be cut off."""
    if version < 4:
        return decode_message_set(data)
    records: list[Record] = []
    for position, header in iter_batches(data):
        if crc32c(data[position + CRC_START : position + header.size]) != header.crc:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"batch at offset {header.base_offset}")
        records += decode_batch(data, position)
    return records


def _empty(cls: type[Message], version: int) -> Message | None:
    """A request with the defaults of its fields; None if the version needs more."""
    try:
        request = cls()
        if isinstance(request, m.ProduceRequest):
            request.acks = 1  # with 0 there is no response
        elif isinstance(request, m.DescribeAclsRequest):
            # ANY; with UNKNOWN the request is invalid, and ends the connection, as Kafka's.
            request.resource_type_filter = request.operation = request.permission_type = 1
        codec.encode(request, version)
    except (TypeError, UnencodableMessage):
        return None
    return request


async def _fetch_epoch(connection: RawConnection, topic: str, partition: int, epoch: int) -> int:
    row = m.FetchRequest.FetchPartition(
        partition=partition, current_leader_epoch=epoch, fetch_offset=0, partition_max_bytes=100
    )
    request = m.FetchRequest(
        max_wait_ms=0, min_bytes=0, topics=[m.FetchRequest.FetchTopic(topic=topic, partitions=[row])]
    )
    return int((await connection.call(request, 9)).responses[0].partitions[0].error_code)


async def _list_epoch(connection: RawConnection, topic: str, partition: int, epoch: int) -> int:
    row = m.ListOffsetsRequest.ListOffsetsPartition(
        partition_index=partition, current_leader_epoch=epoch, timestamp=-1
    )
    request = m.ListOffsetsRequest(
        replica_id=-1, topics=[m.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[row])]
    )
    return int((await connection.call(request, 5)).topics[0].partitions[0].error_code)


async def _end_of_epoch(connection: RawConnection, topic: str, partition: int, epoch: int) -> int:
    row = m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
        partition=partition, current_leader_epoch=epoch, leader_epoch=max(0, epoch)
    )
    request = m.OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[row])],
    )
    return int((await connection.call(request, 3)).topics[0].partitions[0].error_code)


def _lead(
    topic: str, partition: int, topic_id: Any, broker: int, controller_epoch: int, broker_epoch: int
) -> tuple[Message, int]:
    state = m.LeaderAndIsrRequest.LeaderAndIsrPartitionState(
        partition_index=partition,
        controller_epoch=controller_epoch,
        leader=broker,
        leader_epoch=10_000,
        isr=[broker],
        partition_epoch=10_000,
        replicas=[broker],
        leader_recovery_state=0,
    )
    states = m.LeaderAndIsrRequest.LeaderAndIsrTopicState(
        topic_name=topic, topic_id=topic_id, partition_states=[state]
    )
    request = m.LeaderAndIsrRequest(
        controller_id=broker,
        controller_epoch=controller_epoch,
        broker_epoch=broker_epoch,
        topic_states=[states],
        live_leaders=[],
    )
    return request, 6


def _stop(
    topic: str, partition: int, topic_id: Any, broker: int, controller_epoch: int, broker_epoch: int
) -> tuple[Message, int]:
    state = m.StopReplicaRequest.StopReplicaPartitionState(
        partition_index=partition, leader_epoch=-2, delete_partition=True
    )
    states = m.StopReplicaRequest.StopReplicaTopicState(topic_name=topic, partition_states=[state])
    request = m.StopReplicaRequest(
        controller_id=broker,
        controller_epoch=controller_epoch,
        broker_epoch=broker_epoch,
        topic_states=[states],
    )
    return request, 3


def _update(
    topic: str, partition: int, topic_id: Any, broker: int, controller_epoch: int, broker_epoch: int
) -> tuple[Message, int]:
    state = m.UpdateMetadataRequest.UpdateMetadataPartitionState(
        partition_index=partition,
        controller_epoch=controller_epoch,
        leader=broker,
        leader_epoch=10_000,
        isr=[broker],
        zk_version=10_000,
        replicas=[broker],
    )
    states = m.UpdateMetadataRequest.UpdateMetadataTopicState(
        topic_name=topic, topic_id=topic_id, partition_states=[state]
    )
    request = m.UpdateMetadataRequest(
        controller_id=broker,
        controller_epoch=controller_epoch,
        broker_epoch=broker_epoch,
        topic_states=[states],
        live_brokers=[],
    )
    return request, 7

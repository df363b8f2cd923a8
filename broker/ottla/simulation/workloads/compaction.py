"""Producers write keys of a compacted topic, again and again, with tombstones and in transactions; readers
build the map of the keys from the beginning, while the cleaner runs.

In some runs tombstones and markers expire soon. A replica that was away longer than `delete.retention.ms`
misses a removed tombstone, as in Kafka, and keeps what the tombstone has deleted; it misses the marker of a
transaction too, whose records it has, so there are no transactions in these runs.

Each key has one writer, which waits for an acknowledgement before it writes the key again. A key whose
outcome is unknown is not written any more, and may have its old or its new value.

Checked: a reader's map has, of each key, the last value that was acknowledged when it began, or a later one;
offsets never change; nothing at or beyond the last stable offset, nor in a leader's active segment, is
compacted; in the end all readers and the files of all replicas have the writers' map.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.client import AdminClient, Consumer, Producer
from ottla.client.admin import NewTopic
from ottla.client.core.types import TopicPartition
from ottla.client.errors import ClientError
from ottla.protocol.records import ControlType, decode_batch, iter_batches, parse_control_record
from ottla.simulation.cluster import Cluster, Machine, Violation
from ottla.simulation.workloads.clients import Clients

KEYS: Final = 12
"""Of each writer, at a time."""
TOMBSTONE_RATE: Final = 0.2
ABORT_RATE: Final = 0.3
LOOK_S: Final = 0.25
"""Virtual time between two looks at the brokers' logs."""
DECIDED_S: Final = 60.0
"""Virtual time within which the coordinator aborts the transactions of a writer that has ended, if the clocks
of the brokers agree: a time-out counts from the wall clock of the coordinator that began the transaction."""

CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": "3000",
    "segment.ms": "2000",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "1000",
    "message.timestamp.type": "LogAppendTime",
}

RETENTION_MS: Final = (2_000, 36_000_000)
"""delete.retention.ms: expires soon, or in no run, whatever the clocks do."""

Entry = tuple[int, str | None]
"""An offset, and the value there; None: a tombstone."""


@dataclass
class Key:
    """What the writer of a key knows."""

    name: str
    partition: int
    acknowledged: Entry | None = None
    unknown: list[str | None] = field(default_factory=list)
    """The value whose outcome is unknown, if there is one."""
    sent: int = 0
    acknowledged_number: int = -1


class Compaction:
    """See the module."""

    def __init__(
        self, *, topic: str = "compacted", partitions: int = 2, writers: int = 2, rate: float = 40.0
    ) -> None:
        """Every second writer writes in transactions. `rate`: records of each writer in a second."""
        self.topic = topic
        self._partitions = [TopicPartition(topic, number) for number in range(partitions)]
        self._writers = writers
        self._interval_s = 1 / rate
        self._keys: dict[str, Key] = {}
        self._seen: dict[tuple[int, int], tuple[str, str | None]] = {}
        """(partition, offset) -> key and value, as acknowledged or read."""
        self._stopping = False
        self._active: dict[tuple[int, int, int], tuple[tuple[int, int], bytes]] = {}
        """(broker, its start, partition) -> leader epoch and base offset of the active segment, and its
        bytes."""
        self._stable = dict.fromkeys(self._partitions, 0)
        """The highest last stable offset of a leader."""

    async def prepare(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._clients = Clients(cluster, self.topic)
        self._retention_ms = cluster.random(self.topic).choice(RETENTION_MS)
        await cluster.admin(self._create)

    async def _create(self, admin: AdminClient) -> None:
        config = {**CONFIG, "delete.retention.ms": str(self._retention_ms)}
        topic = NewTopic(self.topic, len(self._partitions), 3, config=config)
        (await admin.create_topics([topic])).raise_first()

    async def run(self) -> None:
        for number in range(self._writers):
            name = f"{self.topic}-writer-{number}"
            write = self._write_transactions if number % 2 and not self._expires else self._write
            self._clients.start(name, write(name))
        name = f"{self.topic}-reader"
        self._clients.start(name, self._read(name))
        self._looking = asyncio.ensure_future(self._look())

    @property
    def _expires(self) -> bool:
        return self._retention_ms == RETENTION_MS[0]

    # --- writers ---

    def _new_key(self, writer: str, source: random.Random) -> Key:
        name = f"{writer} {len(self._keys)}"
        key = self._keys[name] = Key(name, source.randrange(len(self._partitions)))
        return key

    def _next_value(self, key: Key, source: random.Random) -> str | None:
        number = key.sent
        key.sent += 1
        if source.random() < TOMBSTONE_RATE:
            return None
        return f"{key.name}: {number}{' ' * source.randrange(60)}"

    def _acknowledge(self, key: Key, offset: int, value: str | None, number: int) -> None:
        self._observe(key.partition, offset, key.name, value, "acknowledged to its writer")
        key.acknowledged = (offset, value)
        key.acknowledged_number = number

    def _observe(self, partition: int, offset: int, key: str, value: str | None, how: str) -> None:
        known = self._seen.setdefault((partition, offset), (key, value))
        if known != (key, value):
            raise Violation(
                f"offsets never change: offset {offset} of {self.topic}-{partition} held {known}, and now "
                f"{(key, value)} is {how}"
            )

    async def _write(self, name: str) -> None:
        source = self._cluster.random(name)
        free = [self._new_key(name, source) for _ in range(KEYS)]
        while not self._stopping:
            async with Producer(
                bootstrap_servers=self._cluster.bootstrap,
                client_id=name,
                linger_ms=source.choice((0, 20, 100)),
                compression_type=source.choice(("none", "gzip")),
                delivery_timeout_ms=source.choice((15_000, 120_000)),
                request_timeout_ms=5_000,
            ) as producer:
                pending: set[asyncio.Future[Any]] = set()
                ends_s = self._cluster.loop.now + 5 + 20 * source.random()
                while not self._stopping and self._cluster.loop.now < ends_s:
                    await self._cluster.think(source, self._interval_s)
                    if not free:
                        continue
                    key = free.pop(source.randrange(len(free)))
                    number, value = key.sent, self._next_value(key, source)
                    delivery: asyncio.Future[Any] | None = None
                    try:
                        delivery = await producer.send(
                            self.topic,
                            None if value is None else value.encode(),
                            key.name.encode(),
                            partition=key.partition,
                        )
                    except ClientError:
                        key.unknown.append(value)
                        free.append(self._new_key(name, source))
                        await asyncio.sleep(0.5)
                        continue

                    def delivered(
                        done: asyncio.Future[Any],
                        key: Key = key,
                        value: str | None = value,
                        number: int = number,
                    ) -> None:
                        if done.cancelled() or done.exception() is not None:
                            key.unknown.append(value)
                            free.append(self._new_key(name, source))
                        else:
                            self._acknowledge(key, done.result().offset, value, number)
                            free.append(key)

                    pending.add(delivery)
                    delivery.add_done_callback(pending.discard)
                    delivery.add_done_callback(delivered)
                if pending:
                    await asyncio.wait(pending)

    async def _write_transactions(self, name: str) -> None:
        source = self._cluster.random(name)
        keys = [self._new_key(name, source) for _ in range(KEYS)]
        while not self._stopping:
            producer = Producer(
                bootstrap_servers=self._cluster.bootstrap,
                client_id=name,
                transactional_id=name,
                transaction_timeout_ms=10_000,
                linger_ms=source.choice((0, 20)),
                max_block_ms=20_000,
                request_timeout_ms=5_000,
            )
            try:
                await producer.start()
                while not self._stopping:
                    await self._write_transaction(producer, keys, name, source)
            except ClientError as problem:
                self._cluster.note(name, f"producer failed: {problem!r}")
                await asyncio.sleep(0.5)
            finally:
                await producer.stop(5.0)

    async def _write_transaction(
        self, producer: Producer, keys: list[Key], name: str, source: random.Random
    ) -> None:
        aborts = source.random() < ABORT_RATE
        chosen = sorted(source.sample(range(len(keys)), source.randint(1, 6)))
        written: list[tuple[int, str | None, int, asyncio.Future[Any]]] = []
        decided = False
        try:
            producer.begin_transaction()
            for at in chosen:
                key = keys[at]
                number, value = key.sent, self._next_value(key, source)
                delivery = await producer.send(
                    self.topic,
                    None if value is None else value.encode(),
                    key.name.encode(),
                    partition=key.partition,
                )
                written.append((at, value, number, delivery))
                delivery.add_done_callback(_ignore)
                await self._cluster.think(source, self._interval_s)
            if aborts:
                decided = True
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
                decided = True
                for at, value, number, delivery in written:
                    self._acknowledge(keys[at], delivery.result().offset, value, number)
        finally:
            if not decided:
                for at, value, *_ in written:
                    keys[at].unknown.append(value)
                    keys[at] = self._new_key(name, source)

    # --- readers ---

    async def _read(self, name: str) -> None:
        while not self._stopping:
            try:
                found = await self._read_map(name)
                self._check_map(*found, name)
            except ClientError as problem:
                self._cluster.note(name, f"consumer failed: {problem!r}")
            await asyncio.sleep(1.0)

    async def _read_map(
        self, name: str
    ) -> tuple[dict[str, Entry], dict[TopicPartition, int], dict[str, tuple[Entry, int]]]:
        """The entries of all keys; the end offsets up to which was read; what was acknowledged before."""
        expected = {
            key.name: (key.acknowledged, key.acknowledged_number)
            for key in self._keys.values()
            if key.acknowledged is not None
        }
        found: dict[str, Entry] = {}
        async with Consumer(
            bootstrap_servers=self._cluster.bootstrap,
            client_id=name,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            max_partition_fetch_bytes=8_000,
        ) as consumer:
            consumer.assign(self._partitions)
            ends = await consumer.end_offsets(self._partitions)
            positions = dict.fromkeys(self._partitions, -1)
            while True:
                left = [tp for tp, end in ends.items() if await consumer.position(tp) < end]
                if not left:
                    return found, ends, expected
                for tp, records in (await consumer.poll(1.0)).items():
                    for record in records:
                        if record.offset <= positions[tp]:
                            raise Violation(
                                f"order: {name} read offset {record.offset} of {tp} after {positions[tp]}"
                            )
                        positions[tp] = record.offset
                        key = record.key.decode()
                        value = None if record.value is None else record.value.decode()
                        self._observe(tp.partition, record.offset, key, value, f"read by {name}")
                        if record.offset < ends[tp]:
                            found[key] = (record.offset, value)

    def _check_map(
        self,
        found: dict[str, Entry],
        ends: dict[TopicPartition, int],
        expected: dict[str, tuple[Entry, int]],
        name: str,
    ) -> None:
        for key_name, ((offset, value), number) in expected.items():
            key = self._keys[key_name]
            if offset >= ends[TopicPartition(self.topic, key.partition)]:
                continue
            entry = found.get(key_name)
            # A later record, beyond the end of this read, may have taken the place of the expected one.
            is_last = key.sent == number + 1
            has_expired = self._expires and value is None
            if (entry is None or entry[0] < offset) and is_last and not has_expired:
                raise Violation(
                    f"compaction keeps the last value: {name} found {entry} for key {key_name!r}; "
                    f"{value!r} was acknowledged at offset {offset} of {self.topic}-{key.partition} before"
                )

    # --- brokers ---

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for machine in self._cluster.machines.values():
                if machine.is_serving:
                    self._look_at(machine)

    def _look_at(self, machine: Machine) -> None:
        assert machine.broker is not None
        for tp in self._partitions:
            partition = machine.broker.replication.replicas.find(*tp)
            if partition is None or not partition.is_leader or partition.log.closed:
                continue
            log = partition.log
            base = log.segments[-1].base_offset
            file = machine.disk.names.get(f"{log.directory}/{base:020d}.log")
            if file is None:
                continue
            key, data = (machine.id, machine.starts, tp.partition), bytes(file.data)
            known = self._active.get(key)
            if known is not None and known[0] == (partition.leader_epoch, base):
                before = known[1]
                if data[: len(before)] != before:
                    raise Violation(
                        f"the active segment is not compacted: broker {machine.id} changed segment {base} of "
                        f"{tp}, while it was the leader of epoch {partition.leader_epoch}"
                    )
            self._active[key] = ((partition.leader_epoch, base), data)
            self._stable[tp] = max(self._stable[tp], partition.last_stable_offset)
            self._check_contiguous(machine, tp, base, data)

    def _check_contiguous(self, machine: Machine, tp: TopicPartition, base: int, data: bytes) -> None:
        """Beyond the last stable offset there are no gaps, on any broker."""
        end = None
        for _, header in iter_batches(data):
            if header.base_offset >= self._stable[tp]:
                if (end is not None and header.base_offset != end) or (
                    header.record_count != header.last_offset_delta + 1
                ):
                    raise Violation(
                        f"nothing past the last stable offset is compacted: broker {machine.id} has a gap at "
                        f"offset {header.base_offset} of {tp}; the last stable offset is {self._stable[tp]}"
                    )
                end = header.next_offset

    # --- the end ---

    async def finish(self) -> None:
        self._stopping = True
        self._looking.cancel()
        if self._looking.done() and not self._looking.cancelled():
            self._looking.result()
        await self._clients.wait()
        await self._until_decided()
        name = f"{self.topic}-verifier"
        found, ends, expected = await self._cluster.in_process(name, self._read_map(name))
        self._check_map(found, ends, expected, name)
        for problem in self._differences(found):
            raise Violation(f"compaction keeps the last value: at the end, {name} found {problem}")
        cleaned = 0
        for machine in self._cluster.machines.values():
            if machine.is_serving:
                stored, gaps = self._stored_map(machine)
                cleaned += gaps
                replicas = machine.broker.replication.replicas if machine.broker is not None else None
                held = [
                    tp.partition for tp in self._partitions if replicas and replicas.find(*tp) is not None
                ]
                for problem in self._differences(stored, held):
                    raise Violation(f"replicas agree: the files of broker {machine.id} have {problem}")
        unknown = sum(bool(key.unknown) for key in self._keys.values())
        self._cluster.note(
            "simulation",
            f"{self.topic}: {len(self._keys)} keys, {unknown} with an unknown outcome; ends "
            f"{list(ends.values())}, {cleaned} records of all replicas were compacted",
        )

    async def _until_decided(self) -> None:
        """Wait until all transactions have ended and all replicas have everything."""
        allowed_s = DECIDED_S + self._cluster.clock_spread_s()
        deadline_s = self._cluster.loop.now + allowed_s
        while unfinished := list(self._unfinished()):
            if self._cluster.loop.now > deadline_s:
                raise Violation(f"liveness: {allowed_s:.0f} s after the last record: {'; '.join(unfinished)}")
            await asyncio.sleep(0.5)

    def _unfinished(self) -> Iterator[str]:
        for tp in self._partitions:
            replicas = [
                (machine.id, partition)
                for machine in self._cluster.machines.values()
                if machine.is_serving and machine.broker is not None
                for partition in (machine.broker.replication.replicas.find(*tp),)
                if partition is not None
            ]
            end = max((partition.log.log_end_offset for _, partition in replicas), default=0)
            if not any(each.is_leader and each.last_stable_offset == end for _, each in replicas):
                yield f"{tp} has no leader with the last stable offset {end}"
            for broker_id, partition in replicas:
                if partition.log.log_end_offset < end:
                    yield f"broker {broker_id} has {tp} up to {partition.log.log_end_offset} of {end}"

    def _differences(self, found: dict[str, Entry], held: Sequence[int] | None = None) -> Iterator[str]:
        """`held`: the partitions that were read; all by default."""
        for key in self._keys.values():
            if held is not None and key.partition not in held:
                continue
            offset, value = found.get(key.name, (-1, None))
            at, last = key.acknowledged or (-1, None)
            was_missed = self._expires and None in (last, *key.unknown) and offset < at
            if value not in (last, *key.unknown) and not was_missed:
                yield f"{found.get(key.name)} for key {key.name!r} and not {(at, last)}, nor {key.unknown}"
        for name in sorted(found.keys() - self._keys.keys()):
            yield f"{found[name]} for key {name!r}, which was not written"

    def _stored_map(self, machine: Machine) -> tuple[dict[str, Entry], int]:
        """The map of the committed records in a broker's files, and how many records are missing there."""
        assert machine.broker is not None
        found: dict[str, Entry] = {}
        missing = 0
        for tp in self._partitions:
            partition = machine.broker.replication.replicas.find(*tp)
            if partition is None:
                continue
            undecided: dict[int, list[tuple[int, str, str | None]]] = {}
            committed: list[tuple[int, str, str | None]] = []
            count = 0
            for segment in partition.log.segments:
                data = bytes(
                    machine.disk.names[f"{partition.log.directory}/{segment.base_offset:020d}.log"].data
                )
                for position, header in iter_batches(data):
                    records = decode_batch(data, position)
                    count += len(records)
                    if header.is_control:
                        decided = undecided.pop(header.producer_id, [])
                        if any(parse_control_record(each).type == ControlType.COMMIT for each in records):
                            committed += decided
                        continue
                    target = (
                        undecided.setdefault(header.producer_id, []) if header.is_transactional else committed
                    )
                    for record in records:
                        assert record.key is not None
                        value = None if record.value is None else bytes(record.value).decode()
                        target.append((record.offset, bytes(record.key).decode(), value))
            if undecided:
                raise Violation(
                    f"transactions end: {tp} of broker {machine.id} has no marker for {undecided}"
                )
            found.update((key, (offset, value)) for offset, key, value in sorted(committed, key=_offset))
            missing += partition.log.log_end_offset - count
        return found, missing


def _offset(entry: tuple[int, str, str | None]) -> int:
    return entry[0]


def _ignore(delivery: asyncio.Future[Any]) -> None:
    if not delivery.cancelled():
        delivery.exception()

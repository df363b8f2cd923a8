"""Producers append to a topic whose old segments are deleted by time and size, and whose first records are
deleted by DeleteRecords; consumers read it from the beginning, again and again.

Checked: what DeleteRecords has acknowledged as deleted stays deleted: no broker names an earlier log start
offset, and no consumer that begins later reads an earlier record (KIP-107), unless a broker crashes before it
has written its checkpoint of log start offsets, and leads, or a stale leader answers; the acknowledged
records at or above the log start offset are all read, in order; a read from a deleted offset is reset to the
log start offset (auto.offset.reset=earliest) or fails (none); the same record is at the same offset for all;
in the end no replica begins before its leader.

Deletion by time and size is every replica's own: after a failover the log may begin earlier than before, as
in Kafka.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

from ottla.client import AdminClient, Consumer, Producer
from ottla.client.admin import NewTopic
from ottla.client.core.types import TopicPartition
from ottla.client.errors import ClientError, OffsetOutOfRangeError
from ottla.protocol.records import iter_batches
from ottla.replication.partition import Partition
from ottla.simulation.cluster import Cluster, Machine, Violation
from ottla.simulation.workloads.clients import Clients

FOLLOWED_S: Final = 30.0
"""Virtual time within which followers have the leader's log start offset, and old segments are deleted."""
LATE_MS: Final = 15_000
"""So much later than allowed a segment may be deleted: brokers look for old ones every five seconds."""

LOOK_S: Final = 0.05
"""Virtual time between two looks at the brokers' log start offsets."""


class Retention:
    """See the module."""

    def __init__(self, *, topic: str = "retention", partitions: int = 2, rate: float = 60.0) -> None:
        """`rate`: records in a second."""
        self.topic = topic
        self._partitions = [TopicPartition(topic, number) for number in range(partitions)]
        self._interval_s = 1 / rate
        self._seen: dict[tuple[int, int], str] = {}
        """(partition, offset) -> value, as acknowledged or read."""
        self._acknowledged: dict[TopicPartition, list[int]] = {tp: [] for tp in self._partitions}
        self._deleted = dict.fromkeys(self._partitions, 0)
        """The offset before which DeleteRecords has deleted all records."""
        self._holders: dict[TopicPartition, set[tuple[int, int]]] = {tp: set() for tp in self._partitions}
        """(broker, its start) that had deleted these records when that was acknowledged."""
        self._forgotten_s = dict.fromkeys(self._partitions, -1.0)
        """When a broker was seen last that may begin before what DeleteRecords has deleted."""
        self._start = dict.fromkeys(self._partitions, 0)
        """The highest log start offset of any replica."""
        self._deletes = self._failures = 0
        self._stopping = False

    async def prepare(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._clients = Clients(cluster, self.topic)
        source = cluster.random(self.topic)
        self._config = {
            "segment.bytes": "4000",
            "segment.ms": source.choice(("1000", "600000")),
            # Not so short that a step of a clock, which is a minute at most, deletes all.
            "retention.ms": source.choice(("10000", "-1")),
            "retention.bytes": source.choice(("12000", "40000", "-1")),
            "file.delete.delay.ms": source.choice(("0", "3000")),
        }
        await cluster.admin(self._create)

    async def _create(self, admin: AdminClient) -> None:
        topic = NewTopic(self.topic, len(self._partitions), 3, config=self._config)
        (await admin.create_topics([topic])).raise_first()

    async def run(self) -> None:
        for role, work in (("producer", self._produce), ("reader", self._read), ("deleter", self._delete)):
            name = f"{self.topic}-{role}"
            self._clients.start(name, work(name))
        self._looking = asyncio.ensure_future(self._look_often())

    # --- clients ---

    async def _produce(self, name: str) -> None:
        source = self._cluster.random(name)
        number = 0
        while not self._stopping:
            async with Producer(
                bootstrap_servers=self._cluster.bootstrap,
                client_id=name,
                linger_ms=source.choice((0, 20)),
                request_timeout_ms=5_000,
            ) as producer:
                pending: set[asyncio.Future[Any]] = set()
                while not self._stopping:
                    value = f"{number}{' ' * source.randrange(60)}"
                    number += 1
                    tp = source.choice(self._partitions)
                    try:
                        delivery = await producer.send(self.topic, value.encode(), partition=tp.partition)
                    except ClientError:
                        await asyncio.sleep(0.5)
                        continue

                    def delivered(
                        done: asyncio.Future[Any], tp: TopicPartition = tp, value: str = value
                    ) -> None:
                        if not done.cancelled() and done.exception() is None:
                            offset = done.result().offset
                            self._observe(tp, offset, value, "acknowledged to its producer")
                            self._acknowledged[tp].append(offset)

                    pending.add(delivery)
                    delivery.add_done_callback(pending.discard)
                    delivery.add_done_callback(delivered)
                    await self._cluster.think(source, self._interval_s)
                if pending:
                    await asyncio.wait(pending)

    def _observe(self, tp: TopicPartition, offset: int, value: str, how: str) -> None:
        known = self._seen.setdefault((tp.partition, offset), value)
        if known != value:
            raise Violation(
                f"same records: offset {offset} of {tp} held {known!r}, and now {value!r} is {how}"
            )

    def _look(self) -> None:
        """Note the brokers' log start offsets: a reader may have received any of them.

        A broker may begin before what was deleted if it did not have the deletion when that was acknowledged,
        or has been started since: the checkpoint of log start offsets is written once a minute, and a
        follower is in sync before it learns the leader's log start offset, as in Kafka. Also if it leads and
        does not know its successor: it answers as before."""
        epochs = {tp: state.leader_epoch for tp, state in self._cluster.partition_states()}
        for machine, tp, partition in self._replicas():
            start = partition.log.log_start_offset
            self._start[tp] = max(self._start[tp], start)
            is_stale = partition.is_leader and partition.leader_epoch < epochs.get(tp, 0)
            if is_stale or (machine.id, machine.starts) not in self._holders[tp]:
                self._forgotten_s[tp] = self._cluster.loop.now

    async def _look_often(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(LOOK_S)

    def _may_be_forgotten(self, tp: TopicPartition, offset: int, since_s: float) -> bool:
        """Whether a broker has served since a time that may begin before what was deleted."""
        self._look()
        return self._deleted[tp] != offset or self._forgotten_s[tp] >= since_s - 2 * LOOK_S

    def _replicas(self) -> Iterator[tuple[Machine, TopicPartition, Partition]]:
        """Also those of brokers that stop, or have lost their session: these still respond."""
        for machine in self._cluster.machines.values():
            if (replicas := machine.replicas) is None:
                continue
            for tp in self._partitions:
                partition = replicas.find(*tp)
                if partition is not None:
                    yield machine, tp, partition

    async def _delete(self, name: str) -> None:
        source = self._cluster.random(name)
        async with AdminClient(
            bootstrap_servers=self._cluster.bootstrap, client_id=name, request_timeout_ms=5_000
        ) as admin:
            while not self._stopping:
                await asyncio.sleep(4 * source.random())
                tp = source.choice(self._partitions)
                acknowledged = self._acknowledged[tp]
                if not acknowledged:
                    continue
                offset = source.choice((-1, source.choice(acknowledged[-100:])))
                try:
                    results = await admin.delete_records({tp: offset})
                    start = results[tp]
                except ClientError as problem:
                    self._cluster.note(name, f"DeleteRecords failed: {problem!r}")
                    continue
                if start < offset:
                    raise Violation(f"KIP-107: records of {tp} up to {offset} were deleted, up to {start}")
                self._deletes += 1
                if start > self._deleted[tp]:
                    self._deleted[tp] = start
                    self._holders[tp] = {
                        (machine.id, machine.starts)
                        for machine, each, partition in self._replicas()
                        if each == tp and partition.log.log_start_offset >= start
                    }

    async def _read(self, name: str) -> None:
        source = self._cluster.random(name)
        while not self._stopping:
            try:
                await self._read_once(name, source)
            except ClientError as problem:
                self._cluster.note(name, f"consumer failed: {problem!r}")
            await asyncio.sleep(source.random())

    async def _read_once(self, name: str, source: random.Random) -> None:
        """Read from the beginning, or from an offset that may be deleted, up to the present end."""
        resets = source.random() < 0.7
        async with Consumer(
            bootstrap_servers=self._cluster.bootstrap,
            client_id=name,
            auto_offset_reset="earliest" if resets else "none",
            max_partition_fetch_bytes=source.choice((1_000, 100_000)),
        ) as consumer:
            consumer.assign(self._partitions)
            deleted, began_s = dict(self._deleted), self._cluster.loop.now
            starts = await consumer.beginning_offsets(self._partitions)
            self._look()
            for tp, start in starts.items():
                if start < deleted[tp] and not self._may_be_forgotten(tp, deleted[tp], began_s):
                    raise Violation(
                        f"the log start offset never goes back: {tp} begins at {start}, and "
                        f"DeleteRecords has deleted the records before {deleted[tp]}"
                    )
                self._start[tp] = max(self._start[tp], start)
            ends = await consumer.end_offsets(self._partitions)
            first = {tp: source.choice((start, 0)) for tp, start in starts.items()}
            for tp, offset in first.items():
                consumer.seek(tp, offset)
            await self._read_to(consumer, ends, deleted, began_s, resets=resets, name=name)

    async def _read_to(
        self,
        consumer: Consumer,
        ends: dict[TopicPartition, int],
        deleted: dict[TopicPartition, int],
        began_s: float,
        *,
        resets: bool,
        name: str,
    ) -> None:
        expected = {tp: sorted(o for o in self._acknowledged[tp] if o < ends[tp]) for tp in ends}
        found: dict[TopicPartition, set[int]] = {tp: set() for tp in ends}
        positions = dict.fromkeys(ends, -1)
        while [tp for tp, end in ends.items() if await consumer.position(tp) < end]:
            try:
                polled = await consumer.poll(1.0)
            except OffsetOutOfRangeError:
                if resets:
                    raise Violation(f"auto.offset.reset: {name} was not reset") from None
                self._failures += 1
                return
            self._look()
            for tp, records in polled.items():
                for record in records:
                    if record.offset <= positions[tp]:
                        raise Violation(
                            f"order: {name} read offset {record.offset} of {tp} after {positions[tp]}"
                        )
                    if record.offset < deleted[tp] and not self._may_be_forgotten(tp, deleted[tp], began_s):
                        raise Violation(
                            f"KIP-107: {name} read offset {record.offset} of {tp}; the records before "
                            f"{deleted[tp]} were deleted before it began"
                        )
                    positions[tp] = record.offset
                    self._observe(tp, record.offset, record.value.decode(), f"read by {name}")
                    found[tp].add(record.offset)
        for tp, offsets in expected.items():
            missing = [offset for offset in offsets if offset not in found[tp] and offset >= self._start[tp]]
            if missing:
                raise Violation(
                    f"retention: {name} did not read offset {missing[0]} and {len(missing) - 1} more "
                    f"acknowledged records of {tp}, which begins at {self._start[tp]}"
                )

    # --- the end ---

    async def finish(self) -> None:
        self._stopping = True
        await self._clients.wait()
        self._looking.cancel()
        name = f"{self.topic}-verifier"
        await self._cluster.in_process(name, self._read_once(name, random.Random(0)))
        await self._until_none("followers follow the log start offset", self._late_followers)
        await self._until_none("retention deletes old segments", self._overdue)
        counts = [len(offsets) for offsets in self._acknowledged.values()]
        self._cluster.note(
            "simulation",
            f"{self.topic}: {self._deletes} DeleteRecords, {self._failures} reads out of range, log start "
            f"offsets {list(self._start.values())}, {counts} records "
            f"acknowledged, {self._config}",
        )

    async def _until_none(self, invariant: str, find: Callable[[], list[str]]) -> None:
        deadline_s = self._cluster.loop.now + FOLLOWED_S
        while found := find():
            if self._cluster.loop.now > deadline_s:
                raise Violation(f"{invariant}: {'; '.join(found)}")
            await asyncio.sleep(0.5)

    def _late_followers(self) -> list[str]:
        replicas = list(self._replicas())
        starts = {tp: each.log.log_start_offset for _, tp, each in replicas if each.is_leader}
        return [
            f"{machine.host} has {tp} from {each.log.log_start_offset}, and its leader from {starts.get(tp)}"
            for machine, tp, each in replicas
            if each.log.log_start_offset < starts.get(tp, 0)
        ]

    def _overdue(self) -> list[str]:
        """What retention.bytes and retention.ms do not allow leaders to have, and files of deleted
        segments."""
        kept_bytes, kept_ms = int(self._config["retention.bytes"]), int(self._config["retention.ms"])
        found = []
        for machine, tp, partition in self._replicas():
            prefix = f"{partition.log.directory}/"
            files = {path: file for path, file in machine.disk.names.items() if path.startswith(prefix)}
            found += [f"{machine.host} has {path}" for path in files if path.endswith(".deleted")]
            logs = [memoryview(bytes(files[path].data)) for path in sorted(files) if path.endswith(".log")]
            if not partition.is_leader or not logs:
                continue
            where = f"{machine.host} has {tp} from {partition.log.log_start_offset}"
            if 0 <= kept_bytes <= sum(len(each) for each in logs[1:]):
                found.append(f"{where} with {[len(each) for each in logs]} bytes")
            newest_ms = max((header.max_timestamp for _, header in iter_batches(logs[0])), default=None)
            now_ms = machine.clock.wall_ms()
            if kept_ms >= 0 and newest_ms is not None and now_ms - newest_ms > kept_ms + LATE_MS:
                found.append(f"{where} with records of {newest_ms}; it is {now_ms} there")
        return found

"""Transactional applications read records, process them, and write the results and their offsets in one
transaction: exactly-once processing. A part of the input is written in transactions as well: some are
aborted, and some are left to the coordinator, because their feeder is killed.

Instances are killed, paused and replaced by others with the same transactional id; transactions are aborted
on purpose, and some last longer than their time-out; a producer that begins a transaction and is gone leaves
it to the coordinator. Input partitions are assigned by the group (KIP-447) or by hand, as the seed decides.

Checked, with readers that use read_committed:

- *no aborted and no uncommitted data*, in the outputs and in the input that is processed, and *fencing*: of a
  producer that was replaced nothing is committed that it did not request before.
- *atomicity*: of each transaction everything can be read at the end, or nothing; the markers in all
  partitions agree with each other and with what the client received.
- *exactly once* and *order*: each committed record of the input is once in each output; in a partition of an
  output the results of an input partition are in the order of the input, also while it runs.
- *the last stable offset never goes back for a client* that keeps to the leader epochs that it has seen
  (KIP-207, KIP-320), nor does the high watermark.
- *stable offsets*: who asks for the group's offsets after a commit was acknowledged gets those of that
  transaction, or later ones (KIP-447).
- *liveness*: all input is processed within `DRAINED_S` once the cluster is whole, and within `ENDED_S` after
  the last client has ended there is no open transaction, in coordinators and in partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from ottla.client import AdminClient, Consumer, Producer
from ottla.client.admin import NewTopic
from ottla.client.core.types import ConsumerRecord, OffsetToCommit, TopicPartition
from ottla.client.errors import ClientError
from ottla.simulation.cluster import Cluster, Violation
from ottla.simulation.loop import Process
from ottla.simulation.workloads.clients import Clients, has_former_coordinator, read_all, retrieve
from ottla.simulation.workloads.ledger import Ledger, Transaction, ends_in_logs

DRAINED_S: Final = 120.0
ENDED_S: Final = 60.0
_TIMEOUTS_MS: Final = (2_000, 10_000)
"""Of transactions."""


@dataclass
class _Instance:
    """One run of an application."""

    transactional_id: str
    name: str
    input: tuple[int, ...]
    """Its partitions, if they are assigned by hand."""
    is_superseded: bool = False
    process: Process | None = None


class Transactions:
    """See the module."""

    def __init__(
        self, *, name: str = "transactions", partitions: int = 3, instances: int = 2, rate: float = 25.0
    ) -> None:
        """`rate` is the number of records of the input in a second."""
        self._name = name
        self._input = f"{name}-input"
        self._outputs = (f"{name}-output-a", f"{name}-output-b")
        self._group = f"{name}-group"
        self._partitions = partitions
        self._instances = instances
        self._interval_s = 2 / rate  # of each of the two feeders
        self._ledger = Ledger(name)
        self._fed = Ledger(self._input)
        self._order: dict[tuple[TopicPartition, str], int] = {}
        """(partition, who reads, input partition) -> the last offset of the input."""
        self._current: list[_Instance] = []
        self._started = 0
        self._stopping = False
        self._drained = False
        self._last: dict[TopicPartition, int] = {}
        """The last offsets of the complete input with a committed record."""

    async def prepare(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._clients = Clients(cluster, self._name)
        self._source = cluster.random(self._name)
        self._by_group = self._source.random() < 0.5
        await cluster.admin(self._create)

    async def _create(self, admin: AdminClient) -> None:
        topics = [NewTopic(topic, self._partitions, 3) for topic in (self._input, *self._outputs)]
        (await admin.create_topics(topics)).raise_first()

    async def run(self) -> None:
        self._feeder = self._clients.start(f"{self._name}-feeder", self._feed())
        self._start_transactional_feeder()
        self._clients.start(f"{self._name}-reader", self._read(f"{self._name}-reader"))
        for isolation_level in ("read_committed", "read_uncommitted"):
            name = f"{self._name}-watcher-{isolation_level.removeprefix('read_')}"
            self._clients.start(name, self._watch_ends(name, isolation_level))
        for number in range(self._instances):
            mine = range(number, self._partitions, self._instances)
            self._current.append(self._start_instance(f"{self._name}-{number}", tuple(mine)))
        self._disturbing = asyncio.ensure_future(self._disturb())

    def _partitions_of(self, *topics: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for topic in topics for number in range(self._partitions)]

    # --- the input ---

    async def _feed(self) -> None:
        source = self._cluster.random(f"{self._name} feeder")
        async with Producer(bootstrap_servers=self._cluster.bootstrap, request_timeout_ms=5_000) as producer:
            number = 0
            while not self._stopping:
                try:
                    delivery = await producer.send(
                        self._input, b"%d" % number, partition=source.randrange(self._partitions)
                    )
                    delivery.add_done_callback(retrieve)
                except ClientError:
                    await asyncio.sleep(0.5)
                number += 1
                await self._cluster.think(source, self._interval_s)

    def _start_transactional_feeder(self) -> None:
        self._started += 1
        name = f"{self._name}-feeder-run-{self._started}"
        self._transactional_feeder = self._clients.start(name, self._feed_in_transactions(name))

    async def _feed_in_transactions(self, name: str) -> None:
        source = self._cluster.random(name)
        owner = f"{self._name}-feeder"
        while not self._stopping:
            try:
                async with Producer(
                    bootstrap_servers=self._cluster.bootstrap,
                    client_id=name,
                    transactional_id=owner,
                    transaction_timeout_ms=source.choice(_TIMEOUTS_MS),
                    request_timeout_ms=3_000,
                    delivery_timeout_ms=15_000,
                    max_block_ms=15_000,
                ) as producer:
                    self._fed.initialized(owner, producer)
                    while not self._stopping:
                        await self._feed_transaction(owner, producer, source)
            except ClientError as problem:
                self._cluster.note(name, f"begins again: {problem!r}")
                await asyncio.sleep(0.2)

    async def _feed_transaction(self, owner: str, producer: Producer, source: Random) -> None:
        transaction = self._fed.begin(owner)
        producer.begin_transaction()
        try:
            for _ in range(source.randint(1, 5)):
                tp = source.choice(self._partitions_of(self._input))
                value = self._fed.write(transaction, tp, "fed")
                delivery = await producer.send(tp.topic, value.encode(), partition=tp.partition)
                delivery.add_done_callback(retrieve)
                await self._cluster.think(source, self._interval_s)
            if source.random() < 0.4:
                await producer.abort_transaction()
                self._fed.aborted(transaction)
                return
            self._fed.request_commit(transaction, producer)
            await producer.commit_transaction()
            self._fed.committed(transaction)
        except ClientError:
            await producer.abort_transaction()  # raises if the outcome is unknown
            self._fed.aborted(transaction)

    def _take_input(self, tp: TopicPartition, offset: int, value: str, reader: str) -> str:
        """A reader with read_committed has read a record of the input. Returns its name in the outputs."""
        if " " in value:  # written in a transaction
            self._fed.observe(tp, offset, value, reader)
        return value.replace(" ", "_")

    # --- instances ---

    def _start_instance(self, transactional_id: str, partitions: tuple[int, ...]) -> _Instance:
        self._started += 1
        instance = _Instance(transactional_id, f"{transactional_id}-run-{self._started}", partitions)
        instance.process = self._clients.start(instance.name, self._live(instance))
        return instance

    async def _live(self, instance: _Instance) -> None:
        source = self._cluster.random(instance.name)
        while not self._drained and not instance.is_superseded:
            try:
                await self._process(instance, source)
            except ClientError as problem:
                self._cluster.note(instance.name, f"begins again: {problem!r}")
                await asyncio.sleep(0.2)

    async def _process(self, instance: _Instance, source: Random) -> None:
        """Read, process and write until an error that only new clients get over."""
        async with (
            Producer(
                bootstrap_servers=self._cluster.bootstrap,
                client_id=instance.name,
                transactional_id=instance.transactional_id,
                transaction_timeout_ms=source.choice(_TIMEOUTS_MS),
                request_timeout_ms=3_000,
                delivery_timeout_ms=15_000,
                max_block_ms=15_000,
                linger_ms=source.choice((0, 5)),
            ) as producer,
            Consumer(
                bootstrap_servers=self._cluster.bootstrap,
                client_id=instance.name,
                group_id=self._group,
                session_timeout_ms=6_000,
                heartbeat_interval_ms=1_000,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
            ) as consumer,
        ):
            # The producer starts first: it ends its predecessor's transaction, so that no offset is pending.
            self._ledger.initialized(instance.transactional_id, producer)
            if self._by_group:
                consumer.subscribe([self._input])
            else:
                # Nobody commits for it now. A former coordinator does not know what its predecessor did.
                while has_former_coordinator(self._cluster):
                    await asyncio.sleep(0.2)
                consumer.assign([(self._input, partition) for partition in instance.input])
            while not self._drained:  # a superseded instance does not know that it is
                records = await consumer.poll(0.3, source.choice((1, 10, 50)))
                if records:
                    await self._transact(instance, producer, consumer, records, source)

    async def _transact(
        self,
        instance: _Instance,
        producer: Producer,
        consumer: Consumer,
        records: Mapping[TopicPartition, Sequence[Any]],
        source: Random,
    ) -> None:
        transaction = self._ledger.begin(instance.transactional_id)
        producer.begin_transaction()
        try:
            for tp, batch in records.items():
                for record in batch:
                    await self._write(producer, transaction, tp, record)
            pause_s = source.choice((0.3, 1.0, 6.0)) if source.random() < 0.06 else 0.0
            is_late = source.random() < 0.5
            await asyncio.sleep(0.0 if is_late else pause_s)
            if source.random() < 0.1:
                await producer.abort_transaction()
                self._ledger.aborted(transaction)
                _rewind(consumer, records)
                return
            processed = {tp: _after(batch[-1]) for tp, batch in records.items()}
            await producer.send_offsets_to_transaction(
                processed,
                consumer.group_metadata() if self._by_group else self._group,
            )
            await asyncio.sleep(pause_s if is_late else 0.0)
            self._ledger.request_commit(transaction, producer)
            await producer.commit_transaction()
            self._ledger.committed(transaction)
            if source.random() < 0.2:
                await self._check_stable(consumer, transaction, processed)
        except ClientError as problem:
            self._cluster.note(instance.name, f"aborts {transaction.name}: {problem!r}")
            await producer.abort_transaction()  # raises if the outcome is unknown
            self._ledger.aborted(transaction)
            _rewind(consumer, records)

    async def _check_stable(
        self, consumer: Consumer, transaction: Transaction, processed: Mapping[TopicPartition, OffsetToCommit]
    ) -> None:
        """The group's offsets are those of the committed transaction, though its markers may not be written
        yet. A former coordinator does not know of it."""
        try:
            found = await consumer.committed(processed)
        except ClientError:
            return
        if has_former_coordinator(self._cluster):
            return
        for tp, (offset, *_) in processed.items():
            known = found[tp]
            if known is None or known.offset < offset:
                raise Violation(
                    f"stable offsets: {transaction.name} has committed offset {offset} of {tp}, and a member "
                    f"of {self._group} got {known} after it"
                )

    async def _write(
        self, producer: Producer, transaction: Transaction, tp: TopicPartition, record: Any
    ) -> None:
        name = self._take_input(tp, record.offset, record.value.decode(), transaction.owner)
        for output in self._outputs:
            target = TopicPartition(output, (tp.partition + len(output)) % self._partitions)
            value = self._ledger.write(transaction, target, f"{tp.partition} {record.offset} {name}")
            delivery = await producer.send(target.topic, value.encode(), partition=target.partition)
            delivery.add_done_callback(retrieve)

    async def _disturb(self) -> None:
        """Kill and replace instances, or replace them while they are paused."""
        source = self._source
        while True:
            await asyncio.sleep(1 + 4 * source.random())
            kind = source.choice(("kill", "replace", "orphan", "feeder"))
            if kind == "orphan":
                await self._leave_open(source)
                continue
            if kind == "feeder":
                self._cluster.note(self._name, "the transactional feeder is killed", is_fault=True)
                self._clients.kill(self._transactional_feeder)
                await asyncio.sleep(source.choice((0.0, 0.5, 3.0)))
                self._start_transactional_feeder()
                continue
            number = source.randrange(self._instances)
            old = self._current[number]
            assert old.process is not None
            if kind == "kill":
                self._cluster.note(old.name, "is killed", is_fault=True)
                self._clients.kill(old.process)
            else:
                self._cluster.note(old.name, "is paused and replaced", is_fault=True)
                old.process.pause()
            old.is_superseded = True
            await asyncio.sleep(source.choice((0.0, 0.5, 3.0)))
            self._replace(number)
            if kind == "replace":
                # It goes on where it was, and does not know.
                self._cluster.loop.call_later(source.choice((0.1, 1.0, 8.0)), old.process.resume)

    def _replace(self, number: int) -> None:
        old = self._current[number]
        self._current[number] = self._start_instance(old.transactional_id, old.input)

    async def _leave_open(self, source: Random) -> None:
        """A producer begins a transaction, and is gone."""
        self._started += 1
        name = f"{self._name}-orphan-{self._started}"
        process = self._clients.start(name, self._write_open(name, source))
        self._cluster.loop.call_later(3 * source.random(), self._clients.kill, process)

    async def _write_open(self, name: str, source: Random) -> None:
        try:
            async with Producer(
                bootstrap_servers=self._cluster.bootstrap,
                client_id=name,
                transactional_id=name,
                transaction_timeout_ms=source.choice(_TIMEOUTS_MS),
            ) as producer:
                self._ledger.initialized(name, producer)
                transaction = self._ledger.begin(name)
                producer.begin_transaction()
                while True:
                    tp = source.choice(self._partitions_of(*self._outputs))
                    value = self._ledger.write(transaction, tp, "open")
                    delivery = await producer.send(tp.topic, value.encode(), partition=tp.partition)
                    delivery.add_done_callback(retrieve)
                    await asyncio.sleep(0.1)
        except ClientError as problem:
            self._cluster.note(name, f"ends: {problem!r}")

    # --- readers ---

    def _observe(self, tp: TopicPartition, offset: int, value: str, reader: str) -> None:
        self._ledger.observe(tp, offset, value, reader)
        partition, number, _ = value.split(" ", 2)
        key = (tp, f"{reader} {partition}")
        before = self._order.get(key, -1)
        if int(number) <= before:
            raise Violation(
                f"exactly once, in order: {reader} read the result of offset {number} of {self._input}-"
                f"{partition} after that of offset {before}: {value!r} at offset {offset} of {tp}"
            )
        self._order[key] = int(number)

    async def _read(self, name: str) -> None:
        positions = dict.fromkeys(self._partitions_of(*self._outputs), 0)
        while not self._drained:
            try:
                async with Consumer(
                    bootstrap_servers=self._cluster.bootstrap,
                    client_id=name,
                    auto_offset_reset="none",
                    isolation_level="read_committed",
                ) as consumer:
                    consumer.assign(positions)
                    for tp, offset in positions.items():
                        consumer.seek(tp, offset)
                    while not self._drained:
                        for tp, records in (await consumer.poll(0.2)).items():
                            for record in records:
                                positions[tp] = record.offset + 1
                                self._observe(tp, record.offset, record.value.decode(), name)
            except ClientError as problem:
                self._cluster.note(name, f"consumer failed: {problem!r}")
                await asyncio.sleep(0.5)

    async def _watch_ends(self, name: str, isolation_level: str) -> None:
        partitions = self._partitions_of(self._input, *self._outputs)
        ends = dict.fromkeys(partitions, 0)
        async with Consumer(
            bootstrap_servers=self._cluster.bootstrap,
            client_id=name,
            isolation_level=isolation_level,
            default_api_timeout_ms=10_000,
        ) as consumer:
            while not self._drained:
                try:
                    found = await consumer.end_offsets(partitions)
                except ClientError:
                    continue
                for tp, end in found.items():
                    if end < ends[tp]:
                        raise Violation(
                            f"monotone ends: the end of {tp} with {isolation_level} went from {ends[tp]} "
                            f"back to {end}, for {name}"
                        )
                    ends[tp] = end
                await asyncio.sleep(0.2)

    # --- the end ---

    async def finish(self) -> None:
        self._stopping = True
        self._disturbing.cancel()
        for process in self._cluster.clients.values():
            process.resume()
        for number, instance in enumerate(self._current):
            if instance.is_superseded:
                self._replace(number)
        await self._clients.wait(self._feeder, self._transactional_feeder)
        await self._end_input()
        await self._clients.until(DRAINED_S, "the input is processed", self._unprocessed)
        self._drained = True
        await self._clients.wait()
        partitions = self._partitions_of(*self._outputs)
        offsets = [("__consumer_offsets", number) for number in range(2)]

        async def unfinished(admin: AdminClient) -> str:
            return await self._ledger.unfinished(admin, [*partitions, *offsets])

        await self._clients.until(
            ENDED_S + self._cluster.clock_spread_s(), "no transaction is left open", unfinished
        )
        ends_in_logs(self._cluster, self._ledger, partitions)
        found = await read_all(self._cluster, f"{self._name}-verifier", partitions, "read_committed")
        self._ledger.verify_atomic(found.items())
        self._verify_processed(found)

    async def _end_input(self) -> None:
        """The feeders have ended: wait for the end of their transactions, and verify the input."""
        partitions = self._partitions_of(self._input)

        async def unfinished(admin: AdminClient) -> str:
            return await self._fed.unfinished(admin, partitions)

        await self._clients.until(
            ENDED_S + self._cluster.clock_spread_s(), "no transaction of the input is left open", unfinished
        )
        ends_in_logs(self._cluster, self._fed, partitions)
        self._inputs = await read_all(
            self._cluster, f"{self._name}-input-verifier", partitions, "read_committed"
        )
        self._last = {tp: rows[-1][0] for tp, rows in self._inputs.items() if rows}
        self._fed.verify_atomic(
            (tp, [(offset, value) for offset, value in rows if " " in value])
            for tp, rows in self._inputs.items()
        )

    async def _unprocessed(self, admin: AdminClient) -> str:
        """Which input the group has not committed yet."""
        try:
            committed = await admin.group_offsets(self._group)
        except ClientError as problem:
            return f"{problem!r}"
        return "; ".join(
            f"{tp} is processed up to {committed.get(tp)} of {last + 1}"
            for tp, last in self._last.items()
            if committed.get(tp, -1) <= last
        )

    def _verify_processed(self, outputs: Mapping[TopicPartition, list[tuple[int, str]]]) -> None:
        given = {
            f"{tp.partition} {at} {value.replace(' ', '_')}"
            for tp, rows in self._inputs.items()
            for at, value in rows
        }
        for topic in self._outputs:
            results = set()
            for tp, rows in outputs.items():
                if tp.topic != topic:
                    continue
                for offset, value in rows:
                    self._observe(tp, offset, value, "the reader at the end")
                    results.add(" ".join(value.split(" ")[:3]))
            if results != given:
                raise Violation(
                    f"exactly once: {topic} lacks the results of {sorted(given - results)[:5]} and has those "
                    f"of {sorted(results - given)[:5]}, which are not in the input"
                )
        outcomes = [each.outcome.name for each in self._ledger.transactions.values()]
        counts = ", ".join(f"{outcomes.count(name)} {name.lower()}" for name in dict.fromkeys(outcomes))
        self._cluster.note(
            "simulation",
            f"{self._name}: {len(given)} records of the input; by {'group' if self._by_group else 'hand'}; "
            f"transactions: {counts}",
        )


def _after(record: ConsumerRecord) -> OffsetToCommit:
    """With its leader epoch: without one, a leader that does not know its successor, and ends before the
    offset, would reset the position (KIP-320)."""
    return OffsetToCommit(record.offset + 1, leader_epoch=record.leader_epoch)


def _rewind(consumer: Consumer, records: Mapping[TopicPartition, Sequence[Any]]) -> None:
    for tp, batch in records.items():
        if tp in consumer.assignment():
            consumer.seek(tp, batch[0].offset)

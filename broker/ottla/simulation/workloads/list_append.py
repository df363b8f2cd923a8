"""Transactions over lists, in the manner of Jepsen's Elle: each key is a partition, and its list is what the
partition holds. A transaction appends unique values to several keys and reads lists in between; the order of
the versions of a list is that of the offsets, so dependencies are known and not guessed.

What Kafka promises of it, and what is checked:

- *no lost append*: what a committed transaction appended is in the lists at the end, all of it or nothing
  (an outcome may be unknown to the client).
- *G1a, aborted read*, and reads of transactions whose commit was not requested, the reader's own included.
- *G1b, intermediate read*: a read is a prefix of the final list, up to an offset. It has every value of every
  committed transaction below this offset. Kafka makes a transaction visible up to the last stable offset of
  each partition: an older open transaction may hide the later part of a newer one, in one list and between
  lists. That is no violation.
- *G0 and G1c, cycles* of ww, wr and session edges. A ww edge leads from a transaction to one that appended
  after the marker of the first in this partition. Kafka does not lock keys: records of transactions that are
  open at one time interleave, in a different order on each key, so that two appends alone are no edge. A wr
  edge leads to a transaction that read a value of the first before it requested its commit. A session edge
  leads to the next transaction of a client. So each edge leads from an earlier commit to a later one.

Not promised, and not checked: that a read sees what was acknowledged before it (markers are written after the
response), that a transaction reads its own appends, that the reads of a transaction are of one moment.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from random import Random
from typing import Final, NamedTuple

from ottla.client import AdminClient, Consumer, Producer
from ottla.client.admin import NewTopic
from ottla.client.core.types import TopicPartition
from ottla.client.errors import ClientError
from ottla.simulation.cluster import Cluster, Violation
from ottla.simulation.loop import Process
from ottla.simulation.workloads.clients import Clients, read_all, retrieve
from ottla.simulation.workloads.ledger import End, Ledger, Transaction, ends_in_logs

_READ_S: Final = 5.0
"""A read that takes longer is given up."""
ENDED_S: Final = 60.0

_Versions = Mapping[int, list[tuple[int, str]]]
"""By key: offsets and values."""


class _Read(NamedTuple):
    transaction: Transaction
    key: int
    first: int
    """The number of values that this client had read before."""
    size: int
    bound: int
    """The offset up to which was read."""


class Edge(NamedTuple):
    """A dependency of a transaction on an earlier one, with its explanation."""

    kind: str
    to: str
    text: str


class _Lists:
    """The lists as one consumer has read them so far."""

    def __init__(self, workload: ListAppend, name: str, consumer: Consumer) -> None:
        self._workload = workload
        self._name = name
        self._consumer = consumer
        self.bounds = dict.fromkeys(workload.keys, 0)
        self.sizes = dict.fromkeys(workload.keys, 0)
        consumer.assign(workload.keys)
        for tp in workload.keys:
            consumer.seek(tp, 0)
            consumer.pause(tp)

    async def read(self, tp: TopicPartition, *, again: bool) -> bool:
        """Read a list up to its present end, with `again` from its beginning; whether that was possible."""
        consumer, workload = self._consumer, self._workload
        end = (await consumer.end_offsets([tp]))[tp]
        if end < self.bounds[tp]:
            raise Violation(
                f"monotone ends: {self._name} read {tp} up to offset {self.bounds[tp]}, and now its last "
                f"stable offset is {end}"
            )
        if again:
            consumer.seek(tp, 0)
            self.bounds[tp] = self.sizes[tp] = 0
        deadline = workload.cluster.loop.now + _READ_S
        consumer.resume(tp)
        try:
            while self.bounds[tp] < end:
                for record in (await consumer.poll(0.2)).get(tp, ()):
                    workload.observe(
                        tp, self.sizes[tp], record.offset, record.value.decode(), f"a read by {self._name}"
                    )
                    self.sizes[tp] += 1
                self.bounds[tp] = max(self.bounds[tp], await consumer.position(tp))
                if workload.cluster.loop.now > deadline:
                    return False
        finally:
            consumer.pause(tp)
        return True


class ListAppend:
    """See the module."""

    def __init__(self, *, name: str = "list-append", keys: int = 4, clients: int = 3) -> None:
        self._name = name
        self.keys = [TopicPartition(name, number) for number in range(keys)]
        self._number_of_clients = clients
        self._ledger = Ledger(name)
        self._versions: dict[int, list[tuple[int, str]]] = {number: [] for number in range(keys)}
        """The longest version of each list that was read."""
        self._reads: list[_Read] = []
        self._processes: list[Process] = []
        self._starts = 0
        self._stopping = False

    async def prepare(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._clients = Clients(cluster, self._name)
        await cluster.admin(self._create)

    async def _create(self, admin: AdminClient) -> None:
        (await admin.create_topics([NewTopic(self._name, len(self.keys), 3)])).raise_first()

    async def run(self) -> None:
        self._processes = [self._start(number) for number in range(self._number_of_clients)]
        self._disturbing = asyncio.ensure_future(self._disturb())

    def _start(self, number: int) -> Process:
        self._starts += 1
        transactional_id = f"{self._name}-{number}"
        name = f"{transactional_id}-run-{self._starts}"
        return self._clients.start(name, self._live(name, transactional_id))

    async def _disturb(self) -> None:
        """Kill clients, and start others with the same transactional id."""
        source = self.cluster.random(self._name)
        while True:
            await asyncio.sleep(2 + 8 * source.random())
            number = source.randrange(self._number_of_clients)
            self.cluster.note(self._processes[number].name, "is killed", is_fault=True)
            self._clients.kill(self._processes[number])
            await asyncio.sleep(source.choice((0.0, 1.0)))
            self._processes[number] = self._start(number)

    # --- the clients ---

    async def _live(self, name: str, transactional_id: str) -> None:
        source = self.cluster.random(name)
        while not self._stopping:
            try:
                async with (
                    Producer(
                        bootstrap_servers=self.cluster.bootstrap,
                        client_id=name,
                        transactional_id=transactional_id,
                        transaction_timeout_ms=10_000,
                        request_timeout_ms=3_000,
                        delivery_timeout_ms=15_000,
                        max_block_ms=15_000,
                    ) as producer,
                    Consumer(
                        bootstrap_servers=self.cluster.bootstrap,
                        client_id=name,
                        auto_offset_reset="none",
                        isolation_level="read_committed",
                        default_api_timeout_ms=5_000,
                    ) as consumer,
                ):
                    self._ledger.initialized(transactional_id, producer)
                    lists = _Lists(self, name, consumer)
                    while not self._stopping:
                        await self._transact(transactional_id, producer, lists, source)
                        await self.cluster.think(source, 0.05)
            except ClientError as problem:
                self.cluster.note(name, f"begins again: {problem!r}")
                await asyncio.sleep(0.2)

    async def _transact(
        self, transactional_id: str, producer: Producer, lists: _Lists, source: Random
    ) -> None:
        transaction = self._ledger.begin(transactional_id)
        producer.begin_transaction()
        try:
            for _ in range(source.randint(1, 4)):
                tp = source.choice(self.keys)
                if source.random() < 0.6:
                    await self._append(producer, transaction, tp, source)
                else:
                    await self._read(transaction, lists, tp, source)
            if source.random() < 0.1:
                await producer.abort_transaction()
                self._ledger.aborted(transaction)
                return
            self._ledger.request_commit(transaction, producer)
            await producer.commit_transaction()
            self._ledger.committed(transaction)
        except ClientError:
            await producer.abort_transaction()  # raises if the outcome is unknown
            self._ledger.aborted(transaction)

    async def _append(
        self, producer: Producer, transaction: Transaction, tp: TopicPartition, source: Random
    ) -> None:
        value = self._ledger.write(transaction, tp, f"key {tp.partition}")
        delivery = await producer.send(tp.topic, value.encode(), partition=tp.partition)
        delivery.add_done_callback(retrieve)
        if source.random() < 0.5:
            await delivery

    async def _read(
        self, transaction: Transaction, lists: _Lists, tp: TopicPartition, source: Random
    ) -> None:
        first = lists.sizes[tp]
        if await lists.read(tp, again=source.random() < 0.05):
            self._reads.append(_Read(transaction, tp.partition, first, lists.sizes[tp], lists.bounds[tp]))

    def observe(self, tp: TopicPartition, place: int, offset: int, value: str, reader: str) -> None:
        """A reader has read the value at this place of a list."""
        self._ledger.observe(tp, offset, value, reader)
        version = self._versions[tp.partition]
        if place == len(version):
            version.append((offset, value))
        elif version[place] != (offset, value):
            raise Violation(
                f"versions: place {place} of {tp} holds {version[place]} for an earlier reader, and "
                f"{(offset, value)} for {reader}"
            )

    # --- the end ---

    async def finish(self) -> None:
        self._stopping = True
        self._disturbing.cancel()
        await self._clients.wait()

        async def unfinished(admin: AdminClient) -> str:
            return await self._ledger.unfinished(admin, self.keys)

        await self._clients.until(
            ENDED_S + self.cluster.clock_spread_s(), "no transaction is left open", unfinished
        )
        ends = ends_in_logs(self.cluster, self._ledger, self.keys)
        found = await read_all(self.cluster, f"{self._name}-verifier", self.keys, "read_committed")
        for tp, records in found.items():
            for place, (offset, value) in enumerate(records):
                self.observe(tp, place, offset, value, "the reader at the end")
            if len(records) < len(self._versions[tp.partition]):
                lost = self._versions[tp.partition][len(records)]
                raise Violation(f"no lost append: {lost} was read from {tp}, and is not there at the end")
        self._ledger.verify_atomic(found.items())
        self._verify_reads()
        edges = self._edges(ends)
        cycle = find_cycle(edges)
        if cycle:
            kinds = {edge.kind for edge in cycle}
            raise Violation(f"{'G0' if kinds == {'ww'} else 'G1c'}: {explain(cycle)}")
        self.cluster.note(
            "simulation",
            f"{self._name}: {len(self._ledger.transactions)} transactions, {len(self._reads)} reads, "
            f"{sum(map(len, self._versions.values()))} values, {sum(map(len, edges.values()))} edges",
        )

    def _verify_reads(self) -> None:
        for read in self._reads:
            for offset, value in self._versions[read.key][read.size :]:
                if offset >= read.bound:
                    break
                raise Violation(
                    f"G1b: {read.transaction} read list {read.key} up to offset {read.bound}, without "
                    f"{value!r} at offset {offset} of {self._ledger.by_value[value]}"
                )

    def _edges(self, ends: Mapping[str, Mapping[TopicPartition, End]]) -> dict[str, list[Edge]]:
        """The dependencies of the transactions that were committed, by the earlier one."""
        by_value = self._ledger.by_value
        edges: defaultdict[str, list[Edge]] = defaultdict(list)
        committed = {by_value[value].name for version in self._versions.values() for _, value in version}
        for key, version in self._versions.items():
            tp = self.keys[key]
            spans: dict[str, tuple[int, int]] = {}
            for offset, value in version:
                name = by_value[value].name
                spans.setdefault(name, (offset, ends[name][tp].offset))
            add_write_edges(edges, key, spans)
        for read in self._reads:
            name = read.transaction.name
            if read.transaction.writes and name not in committed:
                continue
            for offset, value in self._versions[read.key][min(read.first, read.size) : read.size]:
                text = f"{name} read {value!r} at offset {offset} of list {read.key}"
                edges[by_value[value].name].append(Edge("wr", name, text))
        last: dict[str, str] = {}
        for name, transaction in self._ledger.transactions.items():
            if name in committed or not transaction.writes:
                before = last.get(transaction.owner)
                if before is not None:
                    edges[before].append(Edge("session", name, f"{name} follows {before} in its client"))
                last[transaction.owner] = name
        return dict(edges)


def add_write_edges(
    edges: defaultdict[str, list[Edge]], key: int, spans: Mapping[str, tuple[int, int]]
) -> None:
    """`spans`: of each transaction the offsets of its first append to this key, and of its marker."""
    by_marker = sorted(spans.items(), key=lambda item: item[1][1])
    for name, (first, _) in spans.items():
        nearest = -1
        for other, (begin, marker) in reversed(by_marker):
            if marker > first or other == name:
                continue
            if marker < nearest:
                break  # it ended before the nearest one began, and so leads there
            nearest = max(nearest, begin)
            text = f"{name} appended to list {key} at offset {first}, after {other} had ended at {marker}"
            edges[other].append(Edge("ww", name, text))


def find_cycle(edges: Mapping[str, list[Edge]]) -> list[Edge]:
    """The edges of a cycle, or none."""
    done: set[str] = set()
    for start in edges:
        if start in done:
            continue
        on_path = {start: 0}
        path: list[Edge] = []
        stack = [(start, iter(edges[start]))]
        while stack:
            name, rest = stack[-1]
            edge = next(rest, None)
            if edge is None:
                stack.pop()
                del on_path[name]
                done.add(name)
                if path:
                    path.pop()
            elif edge.to in on_path:
                return [*path[on_path[edge.to] :], edge]
            elif edge.to not in done:
                path.append(edge)
                on_path[edge.to] = len(path)
                stack.append((edge.to, iter(edges.get(edge.to, ()))))
    return []


def explain(cycle: list[Edge]) -> str:
    """A cycle as a sentence for each of its edges."""
    return "a cycle: " + "; ".join(f"{edge.text} ({edge.kind})" for edge in cycle)

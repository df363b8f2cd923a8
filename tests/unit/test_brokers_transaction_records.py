"""The coordinator of transactions is killed at each record of the protocol: all or nothing is left of each.

Every row of `CASES` is a transaction, brought to its record and held there: the coordinator cannot go on
while the leaders that are to take its markers, or the replica of its own log, are paused. Then it is killed,
with all transactions that it had, and another broker goes on with them.

Brokers 0 and 1 have the log of transactions, 2 leads the left one of a transaction's two partitions, 3 the
right one and the groups' offsets; it is killed, too, and starts again.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Collection, Coroutine
from typing import Any, Final, Literal, NamedTuple

from ottla.client import Producer
from ottla.client.admin import AdminClient, TopicPartition
from ottla.protocol.records import decode_records
from ottla.simulation.cluster import Cluster
from ottla.simulation.workloads.clients import read_all
from tests.worlds.simulated_brokers import create, end_session, replica, run, state_of, until

COORDINATOR, HEIR, LEFT, RIGHT = range(4)
STATE_LOG, OFFSETS = "__transaction_state", "__consumer_offsets"
STATES: Final = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort",
)  # fmt: skip
"""By their numbers in the records."""
SETTINGS: Final = {
    # A broker that is paused is neither dead nor late.
    "zookeeper.session.timeout.ms": "600000",
    "replica.lag.time.max.ms": "600000",
    "request.timeout.ms": "120000",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.min.isr": "1",
    "min.insync.replicas": "1",
}

End = Literal["commit", "abort", "replaced"]


class Case(NamedTuple):
    name: str
    paused: Collection[int]
    """The brokers that are paused when its end is decided."""
    ends: End | None
    """How it is ended before the coordinator is killed, and by the heir otherwise."""
    at: str
    """The record that consumers see when the coordinator is killed."""
    written: str
    """The last one in the coordinator's own file."""
    then: End | None = None
    """What its producer does after that."""

    @property
    def is_committed(self) -> bool:
        return "commit" in (self.ends, self.then)


def row(
    name: str,
    at: str,
    *,
    ends: End | None = None,
    then: End | None = None,
    paused: Collection[int] = (),
    written: str = "",
) -> Case:
    return Case(name, paused, ends, at, written or at, then)


CASES: Final = (
    row("empty", "Empty"),
    row("open-then-committed", "Ongoing", then="commit"),
    row("open-then-aborted", "Ongoing", then="abort"),
    row("open-and-left-to-another", "Ongoing", then="replaced"),
    row("committed", "CompleteCommit", ends="commit"),
    row("aborted", "CompleteAbort", ends="abort"),
    row("half-committed", "PrepareCommit", ends="commit", paused=(RIGHT,)),
    row("half-aborted", "PrepareAbort", ends="abort", paused=(RIGHT,)),
    row("to-be-committed", "PrepareCommit", ends="commit", paused=(LEFT, RIGHT)),
    row("to-be-aborted", "PrepareAbort", ends="abort", paused=(LEFT, RIGHT)),
    # Of the two the heir has but the first in its log, or on the way to it.
    row("said-to-commit", "Ongoing", ends="commit", paused=(HEIR, LEFT, RIGHT), written="PrepareCommit"),
    row("said-to-abort", "Ongoing", ends="abort", paused=(HEIR, LEFT, RIGHT), written="PrepareAbort"),
)
"""In the order in which they are brought to their records: what is paused goes on when the coordinator is
dead."""
PLACES: Final = [TopicPartition(topic, n) for topic in ("left", "right") for n in range(len(CASES))]


class Transaction:
    """A case's producer, and what it writes: a record to each side, and a group's offset."""

    def __init__(self, cluster: Cluster, number: int, case: Case) -> None:
        self.number = number
        self.case = case
        self._bootstrap = cluster.bootstrap
        self._process = cluster.client(case.name)
        self._producers: list[Producer] = []
        self._ending: asyncio.Task[None] | None = None

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._process.create_task(work)

    async def start(self) -> None:
        await self._run(self._start())

    async def _start(self) -> None:
        producer = Producer(
            bootstrap_servers=self._bootstrap,
            transactional_id=self.case.name,
            transaction_timeout_ms=600_000,
            request_timeout_ms=200_000,
            delivery_timeout_ms=400_000,
            max_block_ms=400_000,
        )
        await producer.start()
        self._producers.append(producer)

    async def write(self, value: str, offset: int) -> None:
        """Begin, and leave it open."""

        async def write() -> None:
            producer = self._producers[-1]
            producer.begin_transaction()
            for topic in ("left", "right"):
                await producer.send(topic, value.encode(), partition=self.number)
            await producer.flush()
            await producer.send_offsets_to_transaction(
                {TopicPartition("left", self.number): offset}, self.case.name
            )

        await self._run(write())

    async def end(self, how: End) -> None:
        match how:
            case "commit":
                await self._run(self._producers[-1].commit_transaction())
            case "abort":
                await self._run(self._producers[-1].abort_transaction())
            case "replaced":
                await self.start()

    def begin_to_end(self, how: End) -> None:
        """Without waiting for the response."""
        self._ending = asyncio.ensure_future(self.end(how))

    async def wait_until_ended(self) -> None:
        if self._ending is not None:
            await self._ending

    async def stop(self) -> None:
        async def stop() -> None:
            for producer in self._producers:
                await producer.stop(0)

        await self._run(stop())


def states(cluster: Cluster, *, are_committed: bool) -> dict[str, str]:
    """The states of the transactional ids in the coordinator's own file; with `are_committed` those that
    consumers see."""
    partition = replica(cluster, COORDINATOR, STATE_LOG)
    assert partition is not None
    found: dict[str, str] = {}
    for path, file in sorted(cluster.machines[COORDINATOR].disk.names.items()):
        if f"/{STATE_LOG}-0/" in path and path.endswith(".log"):
            for record in decode_records(bytes(file.data)):
                assert record.key is not None
                assert record.value is not None
                if not are_committed or record.offset < partition.high_watermark:
                    # A version and a name; a version, ids, a time-out and the state's number.
                    name = bytes(record.key[4:]).decode()
                    found[name] = STATES[struct.unpack_from(">hqhib", record.value)[-1]]
    return found


def is_stable(cluster: Cluster, broker: int, place: TopicPartition) -> bool:
    """Whether the last transaction of a partition has its marker."""
    partition = replica(cluster, broker, *place)
    assert partition is not None
    return partition.last_stable_offset == partition.high_watermark


async def hold_at_their_records(cluster: Cluster, transactions: list[Transaction]) -> None:
    """Bring every transaction to its record, and prove that it is there."""
    for each in transactions:
        await each.start()
        if each.case.at != "Empty":
            await each.write("first", 5)
    paused: set[int] = set()
    for each in transactions:
        case = each.case
        for broker in set(case.paused) - paused:
            cluster.pause(broker)
            paused.add(broker)
        if HEIR in paused:
            await asyncio.sleep(1.0)  # the fetch that it had sent is answered, and none follows
        if case.ends is not None:
            each.begin_to_end(case.ends)
            if HEIR not in paused:
                await each.wait_until_ended()
        await until(lambda c=case: states(cluster, are_committed=True)[c.name] == c.at, f"{case}")  # type: ignore[misc]
        await until(lambda c=case: states(cluster, are_committed=False)[c.name] == c.written, f"{case}")  # type: ignore[misc]
        if paused == {RIGHT}:
            place = TopicPartition("left", each.number)
            await until(lambda at=place: is_stable(cluster, LEFT, at), "half of the markers")  # type: ignore[misc]
    assert states(cluster, are_committed=False) == {case.name: case.written for case in CASES}
    assert states(cluster, are_committed=True) == {case.name: case.at for case in CASES}


async def committed(cluster: Cluster) -> dict[TopicPartition, list[str]]:
    """What a reader of committed records sees, when no transaction is open."""
    await until(
        lambda: all(is_stable(cluster, LEFT if at.topic == "left" else RIGHT, at) for at in PLACES),
        "all transactions to have ended",
    )
    found = await read_all(cluster, "reader", PLACES, "read_committed")
    return {place: [value for _, value in found[place]] for place in PLACES}


async def group_offset(cluster: Cluster, case: Case, number: int) -> int | None:
    offsets = await cluster.admin(lambda admin: admin.group_offsets(case.name))
    return offsets.get(TopicPartition("left", number))


async def check_none_hangs(admin: AdminClient) -> None:
    """As kafka-transactions.sh list and find-hanging."""
    listed = (await admin.list_transactions()).raise_first()
    found = {each.transactional_id: each.state for rows in listed.values() for each in rows}
    assert found == {case.name: "CompleteCommit" for case in CASES}
    for producers in (await admin.describe_producers(PLACES)).raise_first().values():
        assert all(producer.transaction_start_offset < 0 for producer in producers)


def test_transactions_are_atomic_for_a_coordinator_kill_at_any_record() -> None:
    async def scenario(cluster: Cluster) -> None:
        await create(cluster, STATE_LOG, {0: [COORDINATOR, HEIR]}, cleanup_policy="compact")
        await create(cluster, OFFSETS, {0: [RIGHT]}, cleanup_policy="compact")
        for topic, broker in (("left", LEFT), ("right", RIGHT)):
            await create(cluster, topic, {n: [broker] for n in range(len(CASES))})
        transactions = [Transaction(cluster, number, case) for number, case in enumerate(CASES)]

        await hold_at_their_records(cluster, transactions)
        end_session(cluster, COORDINATOR)
        cluster.kill(COORDINATOR)
        for broker in (HEIR, LEFT):
            cluster.resume(broker)
        # The coordinator of the groups loads the offsets of open transactions again.
        cluster.kill(RIGHT)
        cluster.start_broker(RIGHT)
        for each in transactions:
            await each.wait_until_ended()
            if each.case.then is not None:
                await each.end(each.case.then)
        assert state_of(cluster, STATE_LOG).leader == HEIR

        def expected(*more: str) -> dict[TopicPartition, list[str]]:
            first = [["first"] if case.is_committed else [] for case in CASES]
            return {place: [*first[place.partition], *more] for place in PLACES}

        assert await committed(cluster) == expected()
        for n, case in enumerate(CASES):
            assert await group_offset(cluster, case, n) == (5 if case.is_committed else None), case

        for each in transactions:
            await each.write("next", 6)
            await each.end("commit")
        assert await committed(cluster) == expected("next")
        for n, case in enumerate(CASES):
            assert await group_offset(cluster, case, n) == 6, case
        await cluster.admin(check_none_hangs)
        for each in transactions:
            await each.stop()

    run(scenario, brokers=4, settings=SETTINGS)

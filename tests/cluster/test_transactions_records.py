"""The coordinator of transactions is killed at each record of the protocol: all or nothing is left of each.

Every row of `CASES` is a transaction, brought to its record and held there: the coordinator cannot go on
while the leaders that are to take its markers, or the replica of its own log, are stopped (SIGSTOP). What it
stands at is read in `__transaction_state`, as a consumer sees it and, for what no replica has yet, in its
file. Then it is killed, with all transactions that it had, and another broker goes on with them.

Brokers 0 and 1 have the log of transactions, 2 leads the left one of a transaction's two partitions, 3 the
right one and the groups' offsets.
"""

from __future__ import annotations

import asyncio
import signal
import struct
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from faults import SETTINGS, close_session_of, leader_of
from oracles import needs_kafka_jars

from ottla.local.brokers import BrokerProcess
from ottla.local.cluster import LocalCluster
from ottla.local.processes import wait_until
from ottla.protocol.messages import ListOffsetsRequest
from ottla.protocol.records import decode_records
from ottla.wire.connection import BrokerConnection
from tests.interop.kafka_tools import Command, run_all

WAIT_S: Final = 150
COORDINATOR, HEIR, LEFT, RIGHT = range(4)
STATE_LOG, OFFSETS = "__transaction_state", "__consumer_offsets"
STATES: Final = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort",
)  # fmt: skip
"""By their numbers in the records."""
pytestmark = pytest.mark.timeout(600)

End = Literal["commit", "abort", "replaced"]


class Case(NamedTuple):
    name: str
    stopped: Collection[int]
    """The brokers that have stopped when its end is decided."""
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
    stopped: Collection[int] = (),
    written: str = "",
) -> Case:
    return Case(name, stopped, ends, at, written or at, then)


CASES: Final = (
    row("empty", "Empty"),
    row("open-then-committed", "Ongoing", then="commit"),
    row("open-then-aborted", "Ongoing", then="abort"),
    row("open-and-left-to-another", "Ongoing", then="replaced"),
    row("committed", "CompleteCommit", ends="commit"),
    row("aborted", "CompleteAbort", ends="abort"),
    row("half-committed", "PrepareCommit", ends="commit", stopped=(RIGHT,)),
    row("half-aborted", "PrepareAbort", ends="abort", stopped=(RIGHT,)),
    row("to-be-committed", "PrepareCommit", ends="commit", stopped=(LEFT, RIGHT)),
    row("to-be-aborted", "PrepareAbort", ends="abort", stopped=(LEFT, RIGHT)),
    # Of the two the heir has but the first in its log, or on the way to it.
    row("said-to-commit", "Ongoing", ends="commit", stopped=(HEIR, LEFT, RIGHT), written="PrepareCommit"),
    row("said-to-abort", "Ongoing", ends="abort", stopped=(HEIR, LEFT, RIGHT), written="PrepareAbort"),
)
"""In the order in which they are brought to their records: what is stopped goes on when the coordinator is
dead."""


def settings() -> dict[str, str]:
    return {
        **SETTINGS,
        # Who has stopped is neither dead nor late.
        "zookeeper.session.timeout.ms": "60000",
        "replica.lag.time.max.ms": "120000",
        "request.timeout.ms": "120000",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.partition.verification.enable": "true",
    }


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    needs_kafka_jars()
    with LocalCluster(tmp_path, brokers=4, settings=settings()) as running:
        running.create_topic(STATE_LOG, assignment={0: [COORDINATOR, HEIR]}, cleanup_policy="compact")
        running.create_topic(OFFSETS, assignment={0: [RIGHT]}, cleanup_policy="compact")
        for topic, broker in (("left", LEFT), ("right", RIGHT)):
            running.create_topic(
                topic, partitions=len(CASES), assignment={n: [broker] for n in range(len(CASES))}
            )
        yield running


class Transaction:
    """A case's producer, and what it writes: a record to each side, and a group's offset."""

    def __init__(self, cluster: LocalCluster, number: int, case: Case) -> None:
        self.case = case
        self.number = number
        self._bootstrap = cluster.bootstrap
        self._threads = ThreadPoolExecutor(1)
        self._told: Future[None] | None = None
        self._producer = self._new_producer()

    def _new_producer(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": self.case.name,
                "transaction.timeout.ms": 600_000,
                "reconnect.backoff.max.ms": 500,
            }
        )
        producer.init_transactions(WAIT_S)
        return producer

    def write(self, value: str, offset: int) -> None:
        """Begin, and leave it open."""
        producer = self._producer
        producer.begin_transaction()
        for topic in ("left", "right"):
            producer.produce(topic, value, partition=self.number)
        assert producer.flush(WAIT_S) == 0
        group = Consumer({"bootstrap.servers": self._bootstrap, "group.id": self.case.name})
        try:
            places = [TopicPartition("left", self.number, offset)]
            producer.send_offsets_to_transaction(places, group.consumer_group_metadata(), WAIT_S)
        finally:
            group.close()

    def end(self, how: End) -> None:
        match how:
            case "commit":
                self._producer.commit_transaction(WAIT_S)
            case "abort":
                self._producer.abort_transaction(WAIT_S)
            case "replaced":
                self._producer = self._new_producer()

    def begin_to_end(self, how: End) -> None:
        """Without waiting to be told that it is so."""
        self._told = self._threads.submit(self.end, how)

    def wait_until_told(self) -> None:
        if self._told is not None:
            self._told.result(WAIT_S)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class StateLog:
    """What a consumer, told all there is, sees of `__transaction_state`."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "watcher",
                "enable.auto.commit": False,
                "isolation.level": "read_uncommitted",
            }
        )
        self._consumer.assign([TopicPartition(STATE_LOG, 0, 0)])
        self.states: dict[str, str] = {}

    def reaches(self, name: str, state: str) -> bool:
        """Whether that is, after a while at most, the last word about the transactional id."""

        def reached() -> bool:
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                learn(self.states, message.key(), message.value())
            return self.states.get(name) == state

        return wait_until(reached, timeout_s=WAIT_S, poll_s=0)

    def close(self) -> None:
        self._consumer.close()


def learn(states: dict[str, str], key: bytes | None, value: bytes | None) -> None:
    """From a record of Kafka's: a version and a name; a version, ids, a timeout and the state's number."""
    assert key is not None
    assert value is not None
    states[key[4:].decode()] = STATES[struct.unpack_from(">hqhib", value)[-1]]


def written(broker: BrokerProcess) -> dict[str, str]:
    """The states in the broker's own file, replicated or not."""
    states: dict[str, str] = {}
    for file in sorted((broker.data_dir / f"{STATE_LOG}-0").glob("*.log")):
        for record in decode_records(file.read_bytes()):
            learn(states, record.key, record.value)
    return states


def has_its_marker(cluster: LocalCluster, topic: str, partition: int) -> bool:
    """Whether committed records may be read to the end; the leader says so."""
    broker = cluster.brokers[LEFT if topic == "left" else RIGHT]

    async def ends() -> list[int]:
        connection = await BrokerConnection.open(broker.host, broker.port, timeout_s=60)
        try:
            part = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=-1)
            asked = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[part])
            answers = [
                await connection.request(ListOffsetsRequest(isolation_level=level, topics=[asked]), version=7)
                for level in (0, 1)
            ]
            return [answer.topics[0].partitions[0].offset for answer in answers]
        finally:
            connection.close()

    high_watermark, stable = asyncio.run(ends())
    assert high_watermark > 0
    return high_watermark == stable


def committed(bootstrap: str) -> dict[tuple[str, int], list[str]]:
    """What a reader of committed records sees up to each partition's stable end."""
    found: dict[tuple[str, int], list[str]] = {
        (topic, n): [] for topic in ("left", "right") for n in range(len(CASES))
    }
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([TopicPartition(*place, 0) for place in found])
        going, deadline = set(found), time.monotonic() + WAIT_S
        while going:
            assert time.monotonic() < deadline, going
            message = consumer.poll(1)
            if message is None:
                continue
            topic, partition, error = message.topic(), message.partition(), message.error()
            if topic is None or partition is None:
                continue  # a broker was away
            if error is None:
                found[topic, partition].append((message.value() or b"").decode())
            elif error.code() == KafkaError._PARTITION_EOF:
                going.discard((topic, partition))
    finally:
        consumer.close()
    return found


def group_offset(bootstrap: str, case: Case, number: int) -> int:
    """-1001 where none is committed."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": case.name})
    try:
        found: int = consumer.committed([TopicPartition("left", number)], WAIT_S)[0].offset
    finally:
        consumer.close()
    return found


NO_OFFSET: Final = -1001


def hold_at_their_records(
    cluster: LocalCluster, transactions: list[Transaction], stop: Callable[[int], None]
) -> None:
    """Bring every transaction to its record, and prove that it is there."""
    log = StateLog(cluster)
    try:
        for each in transactions:
            if each.case.at != "Empty":
                each.write("first", 5)
        stopped: set[int] = set()
        for each in transactions:
            case = each.case
            for broker in set(case.stopped) - stopped:
                stop(broker)
                stopped.add(broker)
            if case.ends is not None:
                each.begin_to_end(case.ends)
                if HEIR not in stopped:
                    each.wait_until_told()
            assert log.reaches(case.name, case.at), f"{case.name}: {log.states.get(case.name)}"
            file = cluster.brokers[COORDINATOR]
            assert wait_until(lambda f=file, c=case: written(f).get(c.name) == c.written, timeout_s=WAIT_S)
            if stopped == {RIGHT}:
                number = each.number
                cluster.wait_until(lambda n=number: has_its_marker(cluster, "left", n), "half of the markers")
        assert written(cluster.brokers[COORDINATOR]) == {case.name: case.written for case in CASES}
        assert log.states == {case.name: case.at for case in CASES}
    finally:
        log.close()


def test_transactions_are_atomic_for_a_coordinator_kill_at_any_record(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        transactions = [Transaction(cluster, number, case) for number, case in enumerate(CASES)]
        for each in transactions:
            stack.callback(each.close)

        def go_on() -> None:
            for broker in (HEIR, LEFT, RIGHT):
                cluster.brokers[broker].signal(signal.SIGCONT)

        stack.callback(go_on)
        hold_at_their_records(
            cluster, transactions, lambda broker: cluster.brokers[broker].signal(signal.SIGSTOP)
        )
        cluster.brokers[COORDINATOR].kill()
        close_session_of(cluster, cluster.brokers[COORDINATOR])
        go_on()
        for each in transactions:
            each.wait_until_told()
            if each.case.then is not None:
                each.end(each.case.then)
        cluster.wait_until(lambda: leader_of(cluster, STATE_LOG) == HEIR, "the heir to lead")

        expected = {
            (topic, n): ["first"] if case.is_committed else []
            for topic in ("left", "right")
            for n, case in enumerate(CASES)
        }
        # Who ends a transaction does not wait for its markers.
        assert wait_until(lambda: committed(cluster.bootstrap) == expected, timeout_s=WAIT_S), committed(
            cluster.bootstrap
        )
        for n, case in enumerate(CASES):
            offset = 5 if case.is_committed else NO_OFFSET
            assert wait_until(
                lambda c=case, n=n, o=offset: group_offset(cluster.bootstrap, c, n) == o, timeout_s=WAIT_S
            ), case

        for each in transactions:
            each.write("next", 6)
            each.end("commit")
        expected = {place: [*values, "next"] for place, values in expected.items()}
        assert wait_until(lambda: committed(cluster.bootstrap) == expected, timeout_s=WAIT_S)
        for n, case in enumerate(CASES):
            assert wait_until(
                lambda c=case, n=n: group_offset(cluster.bootstrap, c, n) == 6, timeout_s=WAIT_S
            ), case
        assert_no_hanging_transaction(cluster, tmp_path)


def assert_no_hanging_transaction(cluster: LocalCluster, directory: Path) -> None:
    """As kafka-transactions.sh says."""
    tool, bootstrap = "org.apache.kafka.tools.TransactionsCommand", ("--bootstrap-server", cluster.bootstrap)
    looks = [
        Command(
            tool,
            (*bootstrap, "find-hanging", "--broker-id", str(broker), "--max-transaction-timeout", "0"),
        )
        for broker in (HEIR, LEFT, RIGHT)
    ]
    every_one = "".join(rf"(?=.*{case.name}\s+\S+\s+\S+\s+CompleteCommit)" for case in CASES)
    listed, *found = run_all(
        [Command(tool, (*bootstrap, "list"), awaited=f"^{every_one}"), *looks], directory
    )
    assert listed.status == 0
    for printed in found:
        assert printed.status == 0, printed
        assert len(printed.out.splitlines()) == 1, f"more than the heads of columns: {printed.out}"

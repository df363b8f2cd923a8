"""`python -m bench.failover`: the time that partitions have no leader after the controller's broker dies.

One cluster of each side in turns, with topics of three replicas. The broker that is the controller, and leads
its share of the partitions, is killed (SIGKILL). The time runs from the end of its ZooKeeper session: then
/controller is deleted, another broker is elected, reads the cluster and elects a leader for every partition
of the dead broker. The end is ZooKeeper's time stamp of the last write (mtime of the partitions' nodes); the
number of transactions is the difference of transaction ids; the clients' view is Metadata of all topics from
a living broker.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
from kazoo.client import KazooClient
from rich.console import Console
from rich.table import Table

from bench.interpreter import say_interpreter
from bench.sides import Side, chosen_sides, only_option
from ottla.metadata import znodes
from ottla.protocol.messages import MetadataRequest, MetadataResponse
from ottla.wire.connection import BrokerConnection

SESSION_TIMEOUT_MS = 6000
WAIT_S = 120.0
BROKERS = 3
SETTINGS = {
    "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "auto.leader.rebalance.enable": "false",
    "default.replication.factor": str(BROKERS),
}


class Failover(NamedTuple):
    """Times in ms since the end of the session."""

    elected: float
    last_leader: float
    metadata: float
    moved: int
    transactions: int


def topics_of(partitions: int) -> list[str]:
    return [f"load-{number}" for number in range(max(1, partitions // 100))]


def state_paths(partitions: int) -> Iterator[tuple[str, int, str]]:
    topics = topics_of(partitions)
    for topic in topics:
        for partition in range(partitions // len(topics)):
            yield topic, partition, znodes.state_path(topic, partition)


class Observer:
    """Reads the controller and the partition states from ZooKeeper."""

    def __init__(self, connect: str, partitions: int) -> None:
        self._tree = KazooClient(connect)
        self._tree.start()
        self._paths = list(state_paths(partitions))

    def close(self) -> None:
        self._tree.stop()
        self._tree.close()

    def controller(self) -> tuple[int, float, int] | None:
        """(broker, time of its election in ms, transaction id); None without a controller."""
        try:
            data, stat = self._tree.get(znodes.CONTROLLER)
        except Exception:
            return None
        return znodes.decode_controller(data), stat.ctime, stat.czxid

    def states(self) -> list[tuple[znodes.PartitionState, float, int]]:
        """(state, time of its write in ms, transaction id) of each partition that has a state."""
        requests = [(t, p, self._tree.get_async(path)) for t, p, path in self._paths]
        states = []
        for topic, partition, answer in requests:
            try:
                data, stat = answer.get()
            except Exception:
                continue
            states.append((znodes.decode_partition_state(topic, partition, data), stat.mtime, stat.mzxid))
        return states

    def wait_for_isr(self, replicas: int) -> None:
        """Wait until every partition has `replicas` in-sync replicas; TimeoutError after WAIT_S."""
        deadline = time.monotonic() + WAIT_S
        while True:
            states = self.states()
            in_sync = [s for s, _, _ in states if len(s.isr) == replicas]
            if len(in_sync) == len(self._paths):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{len(in_sync)} of {len(self._paths)} partitions have {replicas} in-sync replicas"
                )
            time.sleep(0.5)

    def until_gone(self) -> float:
        """When /controller went, in ms."""
        while self._tree.exists(znodes.CONTROLLER) is not None:
            time.sleep(0.002)
        return time.time() * 1000


async def leaderless(port: int, victim: int) -> float:
    """When a broker's metadata had no partition left that the victim leads, in ms."""
    connection = await BrokerConnection.open("127.0.0.1", port, client_id="bench")
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        answer: MetadataResponse = await connection.request(MetadataRequest(topics=None), version=12)
        leaders = {p.leader_id for topic in answer.topics for p in topic.partitions}
        if victim not in leaders and -1 not in leaders:
            connection.close()
            return time.time() * 1000
        await asyncio.sleep(0.02)
    raise TimeoutError("some partitions did not get another leader")


def create(side: Side, topic: str, partitions: int) -> None:
    side.admin(lambda c: c.create_topic(topic, partitions=partitions, replication_factor=BROKERS))


def fail_over(side: Side, partitions: int) -> Failover:
    observer = Observer(side.zookeeper_connect, partitions)
    try:
        for topic in topics_of(partitions):
            create(side, topic, partitions // len(topics_of(partitions)))
        observer.wait_for_isr(BROKERS)
        found = observer.controller()
        assert found is not None
        victim = found[0]
        led = sum(state.leader == victim for state, _, _ in observer.states())
        living = next(port for number, port in enumerate(side.ports) if number != victim)
        time.sleep(3)
        os.kill(side.pid(victim), signal.SIGKILL)
        gone_ms = observer.until_gone()
        seen_ms = asyncio.run(leaderless(living, victim))
        time.sleep(1)
        elected = observer.controller()
        assert elected is not None
        states = observer.states()
        assert all(state.leader not in (victim, -1) for state, _, _ in states)
        return Failover(
            elected[1] - gone_ms,
            max(written for _, written, _ in states) - gone_ms,
            seen_ms - gone_ms,
            led,
            max(zxid for _, _, zxid in states) - elected[2],
        )
    finally:
        observer.close()


@click.command()
@click.option(
    "--partitions", default="200,2000", show_default=True, help="Numbers of partitions, comma-separated."
)
@only_option
@click.option("--rounds", default=1, show_default=True)
def main(partitions: str, only: str | None, rounds: int) -> None:
    """The time from the end of the dead controller's session to the last partition's new leader."""
    say_interpreter()
    table = Table(
        "partitions", "side", "elected ms", "last leader ms", "metadata ms", "moved", "transactions"
    )
    for column in table.columns[2:]:
        column.justify = "right"
    for count in [int(text) for text in partitions.split(",")]:
        for kind in chosen_sides(only):
            taken: list[Failover] = []
            for _ in range(rounds):
                with (
                    tempfile.TemporaryDirectory(prefix="ottla-bench-") as directory,
                    kind(Path(directory), BROKERS, SETTINGS) as side,
                ):
                    taken.append(fail_over(side, count))
            medians = [statistics.median(column) for column in zip(*taken, strict=True)]
            table.add_row(f"{count:,}", kind.name, *(f"{value:,.0f}" for value in medians))
    Console().print(table)


if __name__ == "__main__":
    main()

"""`python -m bench.availability`: catch-up of a follower, and the loss of a leader under a producer.

Three brokers of a side on core 0, a topic of one partition and three replicas; the sides take turns.

- catch-up: a follower stops, a producer writes MiB to the leader, the follower starts again. The time runs
  from the first byte in the follower's log file until the file is as long as the leader's, so that it does
  not include the start of either side.
- leader lost: librdkafka's producer sends 200 records a second, each a request of its own, with acks=all and
  idempotence, while the leader is killed (SIGKILL) or stopped (SIGTERM: a controlled shutdown). The result
  is the longest time between two acknowledgements in a row, as the client sees it. After a SIGKILL it
  includes ZooKeeper's session time-out, 6 s here. Afterwards the log must have every acknowledged record.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import click
from confluent_kafka import Consumer, Producer, TopicPartition
from rich.console import Console
from rich.table import Table

from bench.connection import RequestConnection
from bench.interpreter import say_interpreter
from bench.processes import cpu_s_of
from bench.requests import IN_FLIGHT, TOPIC, produce_frame
from bench.sides import KafkaSide, OttlaSide, Side
from bench.tools import CLIENT_CORE
from ottla.local.processes import wait_until

BROKERS = 3
WAIT_S = 180.0
FRAME_BYTES = 64 << 10
RECORDS_PER_S = 200
SETTINGS = {"zookeeper.session.timeout.ms": "6000", "auto.leader.rebalance.enable": "false"}


class CatchUp(NamedTuple):
    mib_per_s: float
    leader_cpu_s: float
    """CPU seconds per GiB, of all threads; so is follower_cpu_s."""
    follower_cpu_s: float


def wait_for(condition: Callable[[], bool], description: str, poll_s: float = 0.01) -> float:
    """Wait for the condition; the monotonic time in seconds when it came true."""
    if not wait_until(condition, timeout_s=WAIT_S, poll_s=poll_s):
        raise click.ClickException(f"waited {WAIT_S:g} s for {description}")
    return time.monotonic()


def log_bytes(side: Side, broker: int) -> int:
    files = (side.directory / str(broker) / "data" / f"{TOPIC}-0").glob("*.log")
    return sum(file.stat().st_size for file in files)


def leader_of(side: Side) -> int:
    return side.admin(lambda c: c.describe_topics([TOPIC]))[TOPIC].partitions[0].leader


def is_in_sync(side: Side) -> bool:
    found = side.admin(lambda c: c.describe_topics([TOPIC])).get(TOPIC)
    return found is not None and found.partitions[0].leader >= 0 and len(found.partitions[0].isr) == BROKERS


def catch_up(side: Side, mib: int) -> CatchUp:
    side.create_topic(TOPIC)
    leader = leader_of(side)
    follower = (leader + 1) % BROKERS
    side.stop_broker(follower)
    frame = produce_frame(FRAME_BYTES)
    connection = RequestConnection(side.ports[leader])
    connection.run(frame, (mib << 20) // len(frame), IN_FLIGHT)
    connection.close()
    leader_bytes = log_bytes(side, leader)
    third = ({0, 1, 2} - {leader, follower}).pop()
    wait_for(
        lambda: log_bytes(side, third) == leader_bytes,
        "the other follower, which must not fetch during the measurement",
    )
    assert log_bytes(side, follower) == 0
    leader_before = cpu_s_of(side.pid(leader))
    side.start_broker(follower)
    began = wait_for(lambda: log_bytes(side, follower) > 0, "the first byte", poll_s=0.001)
    follower_before, leader_before = cpu_s_of(side.pid(follower)), cpu_s_of(side.pid(leader))
    ended = wait_for(lambda: log_bytes(side, follower) == leader_bytes, "the last byte", poll_s=0.001)
    gib = leader_bytes / (1 << 30)
    result = CatchUp(
        leader_bytes / (1 << 20) / (ended - began),
        (cpu_s_of(side.pid(leader)) - leader_before) / gib,
        (cpu_s_of(side.pid(follower)) - follower_before) / gib,
    )
    wait_for(lambda: is_in_sync(side), "three replicas in sync")
    side.delete_topic(TOPIC)
    return result


def longest_gap(side: Side, stop_leader: Callable[[int], None]) -> float:
    """The longest time between acknowledgements, in ms, while `stop_leader` stops the leader."""
    side.create_topic(TOPIC)
    leader = leader_of(side)
    acknowledged: list[float] = []
    failures: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is None:
            acknowledged.append(time.monotonic())
        else:
            failures.append(error)

    producer = Producer(
        {
            "bootstrap.servers": side.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 0,
            "log_level": 0,
        }
    )

    def send_for(seconds: float) -> None:
        """Send records at an even rate."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            producer.produce(TOPIC, b"x" * 100, partition=0, on_delivery=delivered)
            producer.poll(1 / RECORDS_PER_S)

    send_for(3)
    lost_at = time.monotonic()
    # In a thread: acknowledgements during the shutdown count, too.
    stopping = threading.Thread(target=stop_leader, args=(leader,))
    stopping.start()
    deadline = time.monotonic() + WAIT_S
    while (
        stopping.is_alive()
        or not acknowledged
        or acknowledged[-1] < lost_at + 0.1
        or leader_of(side) == leader
    ):
        send_for(1)
        if time.monotonic() > deadline:
            raise click.ClickException("the partition has no other leader")
    stopping.join()
    send_for(2)
    if producer.flush(WAIT_S) or failures:
        raise click.ClickException(f"records were not acknowledged: {failures[:3]}")
    gap = max(later - before for before, later in pairwise(acknowledged))
    end = end_offset(side)
    if end != len(acknowledged):
        raise click.ClickException(f"{len(acknowledged)} records were acknowledged, and the log has {end}")
    side.start_broker(leader)
    wait_for(lambda: is_in_sync(side), "three replicas in sync")
    side.delete_topic(TOPIC)
    return gap * 1000


def end_offset(side: Side) -> int:
    consumer = Consumer({"bootstrap.servers": side.bootstrap, "group.id": "bench", "log_level": 0})
    try:
        _, high = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=30)
        return int(high)
    finally:
        consumer.close()


@click.command()
@click.option(
    "--mib", default=512, show_default=True, help="Size of the records that the follower has to fetch."
)
@click.option("--rounds", default=3, show_default=True)
@click.option("--only", type=click.Choice(["catch-up", "leader"]), help="One of the two measurements.")
def main(mib: int, rounds: int, only: str | None) -> None:
    """Catch-up of a follower in MiB/s, and leader failover as a client sees it, on both sides."""
    say_interpreter()
    os.sched_setaffinity(0, {CLIENT_CORE})
    catch_ups: dict[str, list[CatchUp]] = {}
    killed: dict[str, list[float]] = {}
    stopped: dict[str, list[float]] = {}
    for number in range(rounds):
        for kind in (OttlaSide, KafkaSide) if number % 2 == 0 else (KafkaSide, OttlaSide):
            with (
                tempfile.TemporaryDirectory(prefix="ottla-bench-") as directory,
                kind(Path(directory), BROKERS, SETTINGS) as side,
            ):
                if only != "leader":
                    catch_up(side, mib)  # warm-up, which a JVM needs
                    catch_ups.setdefault(side.name, []).append(catch_up(side, mib))
                if only != "catch-up":
                    stopped.setdefault(side.name, []).append(longest_gap(side, side.stop_broker))
                    killed.setdefault(side.name, []).append(longest_gap(side, side.kill_broker))
    table = Table(
        "side",
        "catch-up MiB/s",
        "leader CPU s/GiB",
        "follower CPU s/GiB",
        "leader stopped ms",
        "leader killed ms",
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for name in ("Ottla", "Kafka"):
        rates = (
            [statistics.median(c) for c in zip(*catch_ups[name], strict=True)] if name in catch_ups else []
        )
        gaps = [statistics.median(g[name]) for g in (stopped, killed) if name in g]
        table.add_row(
            name,
            *([f"{rates[0]:,.0f}", f"{rates[1]:.2f}", f"{rates[2]:.2f}"] if rates else ["-"] * 3),
            *([f"{gap:,.0f}" for gap in gaps] if gaps else ["-"] * 2),
        )
    Console().print(table)


if __name__ == "__main__":
    main()

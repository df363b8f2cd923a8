"""`python -m bench.sessions`: the broker's CPU time for a fetch of many idle partitions, full and by session.

As in bench.requests, a broker with the in-memory store runs on core 0, this process on core 1, and the CPU
time of the broker's main thread comes from /proc. *whole*: every request names every partition, without a
session. *idle*: an incremental request without changes. *one of them*: an incremental request after a record
was produced to one partition (the Produce request is part of the figure).
"""

from __future__ import annotations

import os
import statistics
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from bench.connection import RequestConnection
from bench.interpreter import say_interpreter
from bench.requests import CLIENT_CORE, MeasuredBroker, measured_broker, produce_frame
from ottla.client.admin import AdminClient
from ottla.local.cluster import run_admin
from ottla.protocol import frames
from ottla.protocol.messages import FetchRequest

VERSION = 12
SESSION_ID = struct.Struct(">i")
AT_SESSION_ID = 4 + 1 + 4 + 2  # after correlation id, tagged fields, throttle time and error code


def fetch(topics: dict[str, int], session_id: int, epoch: int) -> bytes:
    """A consumer's Fetch at the end of each partition, without a wait."""
    message = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=50 << 20,
        session_id=session_id,
        session_epoch=epoch,
        topics=[
            FetchRequest.FetchTopic(
                topic=topic,
                partitions=[
                    FetchRequest.FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1 << 20)
                    for n in range(partitions)
                ],
            )
            for topic, partitions in topics.items()
        ],
    )
    return frames.encode_request(message, VERSION, 1, "bench-consumer")


def open_session(connection: RequestConnection, topics: dict[str, int]) -> int:
    """Opens a fetch session of all partitions; its id."""
    connection.send(fetch(topics, 0, 0))
    (session_id,) = SESSION_ID.unpack_from(connection.receive(), AT_SESSION_ID)
    assert session_id > 0
    return int(session_id)


def cpu_us(broker: MeasuredBroker, requests: int, send: Callable[[], None]) -> float:
    """CPU µs of the broker for each call of `send`."""
    before = broker.cpu_s()
    for _ in range(requests):
        send()
    return (broker.cpu_s() - before) / requests * 1e6


def figures(broker: MeasuredBroker, partitions: int, rounds: int) -> Iterator[tuple[str, float]]:
    # In several topics: the creation of one with 5,000 partitions exceeds the client's time-out.
    topics = {f"t{partitions}-{n}": min(partitions, 500) for n in range(max(1, partitions // 500))}

    async def create(client: AdminClient) -> None:
        for topic, count in topics.items():
            await client.create_topic(topic, partitions=count, replication_factor=1)

    run_admin([("127.0.0.1", broker.port)], create)
    connection = RequestConnection(broker.port)
    session_id = open_session(connection, topics)
    epoch = 0

    def whole() -> None:
        connection.run(fetch_all, 1, 1)

    def idle() -> None:
        nonlocal epoch
        epoch += 1
        connection.run(fetch({}, session_id, epoch), 1, 1)

    def one_of_them() -> None:
        connection.run(one, 1, 1)
        idle()

    fetch_all, one = fetch(topics, 0, -1), produce_frame(1, topic=next(iter(topics)))
    few = max(20, 20_000 // partitions)
    for name, requests, send in (
        ("whole", few, whole),
        ("idle", 2000, idle),
        ("one of them", 500, one_of_them),
    ):
        cpu_us(broker, max(10, requests // 5), send)
        yield name, statistics.median(cpu_us(broker, requests, send) for _ in range(rounds))
    connection.close()


@click.command()
@click.option("--rounds", default=5, show_default=True)
def main(rounds: int) -> None:
    """Measure the CPU time of the broker's event loop for a fetch of many partitions."""
    say_interpreter()
    os.sched_setaffinity(0, {CLIENT_CORE})
    table = Table("partitions", "fetch", "CPU µs / request")
    table.columns[2].justify = "right"
    here = Path(__file__).parent.parent
    with (
        tempfile.TemporaryDirectory(prefix="ottla-bench-") as directory,
        measured_broker("broker", here, Path(directory)) as broker,
    ):
        for partitions in (1, 100, 1000, 5000):
            for name, cost in figures(broker, partitions, rounds):
                table.add_row(str(partitions), name, f"{cost:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()

"""`python -m bench.sessions`: what a fetch of many idle partitions costs the broker, whole and by session.

As bench.requests: a broker over the in-memory store on core 0, this process on core 1, the CPU time of the
broker's main thread from /proc. *whole*: every request names every partition (what every request cost before
there were sessions). *idle*: an incremental request, and nothing has happened. *one of them*: a record has
been produced to one partition since the last one (the Produce request is part of the figure).
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

from bench.requests import CLIENT_CORE, Peer, Subject, subject
from ottla.client.admin import AdminClient
from ottla.local.cluster import run_admin
from ottla.protocol import frames
from ottla.protocol.messages import FetchRequest, ProduceRequest
from ottla.protocol.records import Record, build_batch

VERSION = 12
SESSION_ID = struct.Struct(">i")
AT_SESSION_ID = 4 + 1 + 4 + 2  # after correlation id, tagged fields, throttle time and error code


def fetch(topics: dict[str, int], session_id: int, epoch: int) -> bytes:
    """A consumer's Fetch at the end of each partition, which does not wait."""
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


def produce(topic: str) -> bytes:
    batch = build_batch([Record(0, 1000, None, b"x" * 200)])
    data = ProduceRequest.PartitionProduceData(index=0, records=batch)
    row = ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
    return frames.encode_request(ProduceRequest(acks=1, timeout_ms=9000, topic_data=[row]), 11, 1, "bench")


class Sessions(Peer):
    """A connection that can begin a session."""

    def begin(self, topics: dict[str, int]) -> int:
        """The id of a session of all partitions."""
        self._sock.sendall(fetch(topics, 0, 0))
        (session_id,) = SESSION_ID.unpack_from(self._receive(), AT_SESSION_ID)
        assert session_id > 0
        return int(session_id)


def spent(who: Subject, requests: int, ask: Callable[[], None]) -> float:
    """CPU µs of the broker for each call of `ask`."""
    before = who.cpu_s()
    for _ in range(requests):
        ask()
    return (who.cpu_s() - before) / requests * 1e6


def figures(who: Subject, partitions: int, rounds: int) -> Iterator[tuple[str, float]]:
    # In several topics: one of 5000 partitions takes longer to make than a client waits.
    topics = {f"t{partitions}-{n}": min(partitions, 500) for n in range(max(1, partitions // 500))}

    async def create(client: AdminClient) -> None:
        for topic, count in topics.items():
            await client.create_topic(topic, partitions=count, replication_factor=1)

    run_admin([("127.0.0.1", who.port)], create)
    peer = Sessions(who.port)
    session_id = peer.begin(topics)
    epoch = 0

    def whole() -> None:
        peer.run(fetch_all, 1, 1)

    def idle() -> None:
        nonlocal epoch
        epoch += 1
        peer.run(fetch({}, session_id, epoch), 1, 1)

    def one_of_them() -> None:
        peer.run(one, 1, 1)
        idle()

    fetch_all, one = fetch(topics, 0, -1), produce(next(iter(topics)))
    few = max(20, 20_000 // partitions)
    for name, requests, ask in (
        ("whole", few, whole),
        ("idle", 2000, idle),
        ("one of them", 500, one_of_them),
    ):
        spent(who, max(10, requests // 5), ask)
        yield name, statistics.median(spent(who, requests, ask) for _ in range(rounds))
    peer.close()


@click.command()
@click.option("--rounds", default=5, show_default=True)
def main(rounds: int) -> None:
    """CPU time that the broker's loop spends on a fetch of many partitions."""
    os.sched_setaffinity(0, {CLIENT_CORE})
    table = Table("partitions", "fetch", "CPU µs / request")
    table.columns[2].justify = "right"
    here = Path(__file__).parent.parent
    with (
        tempfile.TemporaryDirectory(prefix="ottla-bench-") as directory,
        subject("broker", here, Path(directory)) as who,
    ):
        for partitions in (1, 100, 1000, 5000):
            for name, cost in figures(who, partitions, rounds):
                table.add_row(str(partitions), name, f"{cost:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()

"""`python -m bench.requests`: the broker's CPU time for one request, without Java or ZooKeeper.

A broker with the in-memory metadata store runs on core 0. This process, on core 1, sends it requests that
were encoded beforehand, and reads the CPU time of the broker's main thread from /proc. Five requests are in
flight, as Kafka's producer allows (it sends small ones mostly one at a time: `--in-flight 1`). With
`--against CHECKOUT` the code of another checkout is measured in turns, so that other work on the machine
affects both. A response with an error code ends the benchmark: an error costs little and would look like
speed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Table

from bench.page_cache import touch_free_pages
from bench.sides import python_path
from ottla.client.admin import AdminClient
from ottla.local.cluster import run_admin
from ottla.local.ports import wait_until
from ottla.local.processes import ChildProcess
from ottla.metadata.config import BrokerConfig
from ottla.metadata.memory import MemoryStore
from ottla.protocol import codec, frames
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import FetchRequest, FetchResponse, ProduceRequest, ProduceResponse
from ottla.protocol.records import Record, build_batch
from ottla.protocol.types import Message
from ottla.server.assembly.broker import Broker, new_event_loop

BROKER_CORE, CLIENT_CORE = 0, 1
IN_FLIGHT = 5
TOUCH_FROM_BYTES = 100 << 20
RECORD_BYTES = 200
PRODUCE_VERSION, FETCH_VERSION = 11, 12
TOPIC = "t"
FETCHED_TOPIC = "fetched"
"""The topic that the fetches read; retention deletes records in the topic of the produce loads."""
FETCHED_BATCHES = 32
SIZE = struct.Struct(">i")


class Load(NamedTuple):
    name: str
    requests: int
    frame: bytes


def produce_frame(batch_bytes: int, acks: int = 1, topic: str = TOPIC) -> bytes:
    """A Produce request with one batch of about `batch_bytes`, at least one record."""
    count = max(1, batch_bytes // (RECORD_BYTES + 8))
    value = os.urandom(RECORD_BYTES)
    now_ms = time.time_ns() // 1_000_000
    batch = build_batch([Record(i, now_ms, None, value) for i in range(count)])
    message = ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=topic, partition_data=[ProduceRequest.PartitionProduceData(index=0, records=batch)]
            )
        ],
    )
    return frames.encode_request(message, PRODUCE_VERSION, 1, "bench-producer")


def fetch_frame() -> bytes:
    """A consumer's Fetch of 1 MiB from the start of the log."""
    message = FetchRequest(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50 << 20,
        topics=[
            FetchRequest.FetchTopic(
                topic=FETCHED_TOPIC,
                partitions=[
                    FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
                ],
            )
        ],
    )
    return frames.encode_request(message, FETCH_VERSION, 1, "bench-consumer")


def loads() -> list[Load]:
    return [
        Load("produce, one record", 20_000, produce_frame(1)),
        Load("produce, 16 KiB", 10_000, produce_frame(16 << 10)),
        Load("produce, 64 KiB", 5_000, produce_frame(64 << 10)),
        Load("fetch, 1 MiB", 1_000, fetch_frame()),
    ]


def error_codes(response: Message) -> list[int]:
    """The error codes of a Produce or Fetch response and of its partitions."""
    if isinstance(response, ProduceResponse):
        return [row.error_code for topic in response.responses for row in topic.partition_responses]
    assert isinstance(response, FetchResponse), type(response)
    rows = [row.error_code for topic in response.responses for row in topic.partitions]
    return [response.error_code, *rows]


class RequestConnection:
    """A connection that keeps requests in flight and checks the error codes of the responses."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(4 << 20))

    def run(self, frame: bytes, requests: int, in_flight: int) -> None:
        """Raises ClickException for a response with an error code and for a closed connection."""
        header = frames.parse_request_header(memoryview(frame)[SIZE.size :])
        sent = min(in_flight, requests)
        for _ in range(sent):
            self._sock.sendall(frame)
        for _ in range(requests):
            response = self._receive()
            if sent < requests:  # before the check, so that the broker does not wait for it
                self._sock.sendall(frame)
                sent += 1
            self._check(header, response)

    def _receive(self) -> memoryview:
        """The next response, without its size; valid until the next call."""
        self._read(SIZE.size)
        (size,) = SIZE.unpack_from(self._buffer)
        self._read(size)
        return self._buffer[:size]

    def _check(self, header: frames.RequestHeader, frame: memoryview) -> None:
        body = frames.response_body_offset(header.api_key, header.api_version, frame)
        response = codec.decode(frames.RESPONSES[header.api_key], header.api_version, frame, body)
        for code in filter(None, error_codes(response)):
            name = type(response).__name__
            raise click.ClickException(f"{name} has error {ErrorCode.of(code).name}")

    def _read(self, count: int) -> None:
        filled = 0
        while filled < count:
            received = self._sock.recv_into(self._buffer[filled:count])
            if received == 0:
                raise click.ClickException("the broker closed the connection")
            filled += received

    def close(self) -> None:
        self._sock.close()


class MeasuredBroker(NamedTuple):
    """A running broker, and its CPU times from /proc."""

    name: str
    pid: int
    port: int

    def cpu_s(self) -> float:
        """CPU time of the main thread, where the event loop runs."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9

    def cpu_ticks(self) -> tuple[int, int]:
        """(user, system) clock ticks of the process."""
        stat = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return int(stat[11]), int(stat[12])


@contextmanager
def measured_broker(name: str, checkout: Path, directory: Path) -> Iterator[MeasuredBroker]:
    """A broker with the code of `checkout`, and the topics of one partition each."""
    ready = directory / "ready"
    command = [sys.executable, "-m", "bench.requests", "--serve", str(directory)]
    log = directory / "broker.log"
    environment = ["/usr/bin/env", f"--chdir={checkout}", f"PYTHONPATH={python_path(checkout)}"]
    broker = ChildProcess(name, [*environment, *command], log=log)
    broker.start()
    try:
        if not wait_until(lambda: ready.exists() or not broker.running, timeout_s=30) or not ready.exists():
            raise click.ClickException(log.read_text())
        assert broker.pid is not None
        port = int(ready.read_text())

        async def create(client: AdminClient) -> None:
            for topic in (TOPIC, FETCHED_TOPIC):
                await client.create_topic(topic, partitions=1, replication_factor=1)

        run_admin([("127.0.0.1", port)], create)
        connection = RequestConnection(port)
        connection.run(produce_frame(64 << 10, topic=FETCHED_TOPIC), FETCHED_BATCHES, IN_FLIGHT)
        connection.close()
        subprocess.run(
            ["taskset", "-a", "-c", "-p", str(BROKER_CORE), str(broker.pid)], check=True, capture_output=True
        )
        yield MeasuredBroker(name, broker.pid, port)
    finally:
        broker.stop(timeout_s=20)


async def serve(directory: Path) -> None:
    """Run a broker until SIGTERM."""
    settings = {
        "broker.id": "0",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(directory / "data"),
        "log.retention.bytes": str(1 << 30),
    }
    broker = Broker(BrokerConfig.from_properties(settings), store=MemoryStore())
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    await broker.start()
    (directory / "port").write_text(str(broker.endpoints[0].port))
    (directory / "port").rename(directory / "ready")
    await stopping.wait()
    await broker.stop()


def measure(broker: MeasuredBroker, load: Load, in_flight: int) -> tuple[float, float]:
    """(CPU µs per request, the kernel's share of it)."""
    connection = RequestConnection(broker.port)
    if load.name.startswith("fetch"):
        in_flight = 1
    if load.requests * len(load.frame) > TOUCH_FROM_BYTES:
        touch_free_pages()
    before, (user_before, system_before) = broker.cpu_s(), broker.cpu_ticks()
    connection.run(load.frame, load.requests, in_flight)
    used, (user, system) = broker.cpu_s() - before, broker.cpu_ticks()
    connection.close()
    user, system = user - user_before, system - system_before
    return used / load.requests * 1e6, system / max(1, user + system)


@click.command()
@click.option(
    "--against",
    type=click.Path(path_type=Path, exists=True, resolve_path=True),
    help="Another checkout to measure in turns.",
)
@click.option("--rounds", default=5, show_default=True)
@click.option("--only", default="", help="Loads whose name has this text.")
@click.option("--in-flight", default=IN_FLIGHT, show_default=True, help="Produce requests in flight.")
@click.option("--serve", "serve_in", type=click.Path(path_type=Path), hidden=True)
def main(against: Path | None, rounds: int, only: str, in_flight: int, serve_in: Path | None) -> None:
    """Measure the CPU time of the broker's event loop for one request of each kind."""
    if serve_in is not None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve(serve_in))
        return
    os.sched_setaffinity(0, {CLIENT_CORE})
    table = Table("load", "code", "CPU µs / request", "least", "system")
    for column in table.columns[2:]:
        column.justify = "right"
    here = Path(__file__).parent.parent
    with ExitStack() as stack:
        brokers = []
        for name, checkout in (("before", against), ("now", here)):
            if checkout is not None:
                directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ottla-bench-")))
                brokers.append(stack.enter_context(measured_broker(name, checkout, directory)))
        for load in loads():
            if only not in load.name:
                continue
            samples_by_name: dict[str, list[tuple[float, float]]] = {broker.name: [] for broker in brokers}
            for number in range(rounds + 1):
                for broker in brokers if number % 2 else reversed(brokers):
                    sample = measure(broker, load, in_flight)
                    if number:  # the first round warms up
                        samples_by_name[broker.name].append(sample)
            for name, samples in samples_by_name.items():
                costs = [cost for cost, _ in samples]
                table.add_row(
                    load.name,
                    name,
                    f"{statistics.median(costs):.1f}",
                    f"{min(costs):.1f}",
                    f"{statistics.median(share for _, share in samples):.0%}",
                    end_section=name == "now",
                )
    Console().print(table)


if __name__ == "__main__":
    main()

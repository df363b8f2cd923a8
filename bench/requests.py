"""`python -m bench.requests`: the broker's CPU time for one request, without Java or ZooKeeper.

A broker with the in-memory metadata store runs on core 0. This process, on core 1, sends it requests that
were encoded beforehand, and reads the CPU time of the broker's main thread from /proc. Five requests are in
flight, as Kafka's producer allows (it sends small ones mostly one at a time: `--in-flight 1`). With
`--against CHECKOUT` the code of another checkout is measured in turns, and with `--interpreter NAME=PYTHON`,
which is repeatable, this code on another interpreter, so that other work on the machine affects all of them.
The ratio is the median of the rounds' ratios to the code before, else to this code on this interpreter.
`--floor` measures a process that makes the same system calls and nothing else (floor.py); `make bench` takes
its floors from here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Table

from bench.connection import SIZE, RequestConnection, check_errors, decode_response
from bench.floor import Exchange, running
from bench.interpreter import say_interpreter
from bench.processes import cpu_ticks, main_thread_cpu_s, serve_at, serving, touch_free_pages
from bench.sides import python_path
from ottla.client.admin import AdminClient
from ottla.local.cluster import run_admin
from ottla.metadata.config import BrokerConfig
from ottla.metadata.memory import MemoryStore
from ottla.protocol import codec, frames
from ottla.protocol.messages import FetchRequest, FetchResponse, ProduceRequest
from ottla.protocol.records import Record, build_batch
from ottla.server.assembly.broker import Broker, new_event_loop

BROKER_CORE, CLIENT_CORE = 0, 1
IN_FLIGHT = 5
TOUCH_FROM_BYTES = 100 << 20
RECORD_BYTES = 200
PRODUCE_VERSION, FETCH_VERSION = 11, 12
TOPIC = "t"
FETCHED_TOPIC = "fetched"
"""The topic that the fetches read; retention deletes records in the topic of the produce loads."""
KEYED_TOPIC, PARTITIONS = "keyed", 48
FETCHED_BATCHES = 32
FETCHED_BYTES_MIN = 15 << 16
"""A fetch of 1 MiB brings at least as many batches of 64 KiB; an empty one would look fast."""


class Load(NamedTuple):
    """Requests of one kind: their number in a run, the encoded request, and the records of each."""

    name: str
    requests: int
    frame: bytes
    records: int = 1


def records_of(batch_bytes: int) -> int:
    """The records of a batch of about this size, at least one."""
    return max(1, batch_bytes // (RECORD_BYTES + 8))


def produce_frame(batch_bytes: int, acks: int = 1, topic: str = TOPIC, partitions: int = 1) -> bytes:
    """A Produce request with one batch of about `batch_bytes`, at least one record, for each partition."""
    count = records_of(batch_bytes)
    value = os.urandom(RECORD_BYTES)
    now_ms = time.time_ns() // 1_000_000
    batch = build_batch([Record(i, now_ms, None, value) for i in range(count)])
    message = ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=topic,
                partition_data=[
                    ProduceRequest.PartitionProduceData(index=index, records=batch)
                    for index in range(partitions)
                ],
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
    single, small, large = 1, 16 << 10, 64 << 10
    return [
        Load("produce, one record", 20_000, produce_frame(single)),
        Load("produce, 16 KiB", 10_000, produce_frame(small), records_of(small)),
        Load("produce, 64 KiB", 5_000, produce_frame(large), records_of(large)),
        Load(
            f"produce, {PARTITIONS} partitions",
            1_000,
            produce_frame(single, topic=KEYED_TOPIC, partitions=PARTITIONS),
            PARTITIONS,
        ),
        Load("fetch, 1 MiB", 1_000, fetch_frame(), FETCHED_BYTES_MIN // large * records_of(large)),
    ]


class MeasuredBroker(NamedTuple):
    """A running broker, and its CPU times from /proc."""

    name: str
    pid: int
    port: int

    def cpu_s(self) -> float:
        """CPU time of the main thread, where the event loop runs."""
        return main_thread_cpu_s(self.pid)


@contextmanager
def measured_broker(
    name: str, checkout: Path, directory: Path, python: str = sys.executable
) -> Iterator[MeasuredBroker]:
    """A broker with the code of `checkout` on `python`, and the topics of the loads."""
    command = [python, "-m", "bench.requests", "--serve", str(directory)]
    environment = ["/usr/bin/env", f"--chdir={checkout}", f"PYTHONPATH={python_path(checkout)}"]
    with serving(name, [*environment, *command], directory) as (pid, port):

        async def create(client: AdminClient) -> None:
            for topic, partitions in ((TOPIC, 1), (FETCHED_TOPIC, 1), (KEYED_TOPIC, PARTITIONS)):
                await client.create_topic(topic, partitions=partitions, replication_factor=1)

        run_admin([("127.0.0.1", port)], create)
        connection = RequestConnection(port)
        connection.run(produce_frame(64 << 10, topic=FETCHED_TOPIC), FETCHED_BATCHES, IN_FLIGHT)
        connection.close()
        subprocess.run(
            ["taskset", "-a", "-c", "-p", str(BROKER_CORE), str(pid)], check=True, capture_output=True
        )
        yield MeasuredBroker(name, pid, port)


@contextmanager
def measured_floor(broker: MeasuredBroker, directory: Path) -> Iterator[MeasuredBroker]:
    """A process that makes the broker's system calls, with the broker's responses to the same requests."""
    exchanges: dict[int, Exchange] = {}
    records = b""
    for load in loads():
        connection = RequestConnection(broker.port)
        connection.send(load.frame)
        response = bytes(connection.receive())
        connection.close()
        header = frames.parse_request_header(memoryview(load.frame)[SIZE.size :])
        decoded = decode_response(header.api_key, header.api_version, response)
        check_errors(decoded)
        if isinstance(decoded, FetchResponse):
            records = bytes(decoded.responses[0].partitions[0].records or b"")
            exchanges[len(load.frame)] = Exchange.of_fetch(response, records)
        else:
            exchanges[len(load.frame)] = Exchange.of_produce(batches_of(load.frame), response)
    with running(directory / "floor", exchanges, records) as (pid, port):
        os.sched_setaffinity(pid, {BROKER_CORE})
        yield MeasuredBroker("floor", pid, port)


def batches_of(frame: bytes) -> list[slice]:
    """Where the batches of a Produce request are."""
    memory = memoryview(frame)[SIZE.size :]
    header = frames.parse_request_header(memory)
    request = codec.decode(ProduceRequest, header.api_version, memory, header.body_offset)
    batches, at = [], 0
    for data in request.topic_data[0].partition_data:
        batch = bytes(data.records or b"")
        at = frame.index(batch, at)
        batches.append(slice(at, at + len(batch)))
        at += len(batch)
    return batches


def floor_costs(rounds: int = 3) -> dict[str, float]:
    """CPU seconds of the floor for a million records, by the name of the load; medians."""
    costs: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="ottla-bench-") as place,
        measured_broker("now", Path(__file__).parent.parent, Path(place)) as broker,
        measured_floor(broker, Path(place)) as floor,
    ):
        for load in loads():
            samples = [measure(floor, load, IN_FLIGHT)[0] for _ in range(rounds + 1)][1:]
            costs[load.name] = statistics.median(samples) / load.records
    return costs


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
    serve_at(broker.endpoints[0].port, directory)
    await stopping.wait()
    await broker.stop()


def measure(broker: MeasuredBroker, load: Load, in_flight: int) -> tuple[float, float]:
    """(CPU µs per request, the kernel's share of it)."""
    connection = RequestConnection(broker.port)
    if is_fetch := load.name.startswith("fetch"):
        in_flight = 1
    if load.requests * len(load.frame) > TOUCH_FROM_BYTES:
        touch_free_pages()
    before, (user_before, system_before) = broker.cpu_s(), cpu_ticks(broker.pid)
    connection.run(load.frame, load.requests, in_flight)
    received = connection.bytes_received
    used, (user, system) = broker.cpu_s() - before, cpu_ticks(broker.pid)
    connection.close()
    if is_fetch and received < load.requests * FETCHED_BYTES_MIN:
        raise click.ClickException(f"{load.requests} fetches have brought {received} bytes only")
    user, system = user - user_before, system - system_before
    return used / load.requests * 1e6, system / max(1, user + system)


def comparison_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of a benchmark that measures another checkout, too."""
    checkout = click.Path(path_type=Path, exists=True, resolve_path=True)
    for option in (
        click.option("--in-flight", default=IN_FLIGHT, show_default=True, help="Produce requests in flight."),
        click.option("--only", default="", help="Loads whose name has this text."),
        click.option("--rounds", default=5, show_default=True),
        click.option("--against", type=checkout, help="Another checkout to measure in turns."),
    ):
        command = option(command)
    return command


def parse_interpreters(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """The path of each Python by its name in the table."""
    paths = {}
    for value in values:
        name, equals, path = value.partition("=")
        if not equals or not name.replace(".", "").isalnum() or name in ("before", "now", "floor"):
            raise click.BadParameter(f"{value}: expected NAME=PYTHON, as in 3.13=/usr/bin/python3.13")
        # Links are not resolved: that of a virtual environment leads to its packages.
        paths[name] = str(Path(path).absolute())
    return paths


@click.command()
@comparison_options
@click.option(
    "--interpreter",
    "interpreters",
    multiple=True,
    metavar="NAME=PYTHON",
    callback=parse_interpreters,
    help="Another Python with the broker's packages, to measure this code on in turns; repeatable.",
)
@click.option("--floor", "with_floor", is_flag=True, help="Measure the system calls alone, too.")
@click.option("--serve", "serve_in", type=click.Path(path_type=Path), hidden=True)
def main(
    against: Path | None,
    rounds: int,
    only: str,
    in_flight: int,
    interpreters: dict[str, str],
    with_floor: bool,
    serve_in: Path | None,
) -> None:
    """Measure the CPU time of the broker's event loop for one request of each kind."""
    if serve_in is not None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve(serve_in))
        return
    say_interpreter()
    os.sched_setaffinity(0, {CLIENT_CORE})
    table = Table("load", "code", "CPU µs / request", "least", "ratio", "system")
    for column in table.columns[2:]:
        column.justify = "right"
    here = Path(__file__).parent.parent
    with ExitStack() as stack:
        brokers = []
        before = [("before", against, sys.executable)] if against is not None else []
        others = [(name, here, python) for name, python in interpreters.items()]
        for name, checkout, python in (*before, ("now", here, sys.executable), *others):
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ottla-bench-")))
            brokers.append(stack.enter_context(measured_broker(name, checkout, directory, python)))
        base = brokers[0].name
        if with_floor:
            brokers.insert(0, stack.enter_context(measured_floor(brokers[-1], directory)))
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
                ratios = [cost / other for cost, (other, _) in zip(costs, samples_by_name[base], strict=True)]
                table.add_row(
                    load.name,
                    name,
                    f"{statistics.median(costs):.1f}",
                    f"{min(costs):.1f}",
                    f"{statistics.median(ratios):.2f}",
                    f"{statistics.median(share for _, share in samples):.0%}",
                    end_section=name == brokers[-1].name,
                )
    Console().print(table)


if __name__ == "__main__":
    main()

"""Clients of `make bench` for what Kafka's performance tools do not do: `python -m bench.traffic JSON`.

The runner starts them on the client's core, with a `Task` as JSON, and reads their figures from standard
output. `keyed`, `read` and `end-to-end` are librdkafka's clients (confluent-kafka); the others send requests
that were encoded beforehand, and check the error codes of all responses:

keyed         keyed records to all partitions; latencies are those of every 64th record
read          a topic from its beginning, all partitions by one consumer
end-to-end    one record at a time: written, and read by a waiting consumer
connections   many connections, each with one record a second; a latency begins when a record is due
groups        as many groups of one member, each with a commit and a heartbeat a second
partitions    Produce requests with a record for each partition, five in flight
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import select
import socket
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import click

from bench.connection import SIZE, RequestConnection, check_errors, decode_response
from bench.groups import Member, make_group
from bench.loads import RECORD_BYTES
from bench.processes import usage_of
from bench.requests import IN_FLIGHT, produce_frame
from ottla.protocol import frames
from ottla.protocol import messages as m
from ottla.protocol.types import Message
from ottla.wire.connection import BrokerConnection

SAMPLE_EVERY: Final = 64
KEYS: Final = 100_000
READ_TIMEOUT_S: Final = 60.0
SPARE_FILES: Final = 100
Figures = dict[str, float]


@dataclass(frozen=True)
class Task:
    """What one run does."""

    kind: str
    bootstrap: str
    topic: str
    partitions: int
    records: int
    clients: int = 1
    """Connections or groups."""
    settings: tuple[str, ...] = ()
    """librdkafka's, as name=value."""
    brokers: tuple[int, ...] = ()
    """Process ids, whose CPU time a task without its preparations gives as `cpu_s`."""

    @classmethod
    def parse(cls, text: str) -> Task:
        fields: dict[str, Any] = json.loads(text)
        settings, brokers = fields.pop("settings"), fields.pop("brokers")
        return cls(**fields, settings=tuple(settings), brokers=tuple(brokers))

    def command(self) -> list[str]:
        return [sys.executable, "-m", "bench.traffic", json.dumps(asdict(self))]

    @property
    def port(self) -> int:
        """Of the first broker."""
        return int(self.bootstrap.partition(",")[0].rpartition(":")[2])

    @property
    def librdkafka(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap, **dict(pair.split("=", 1) for pair in self.settings)}


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of at least one value do not exceed."""
    return sorted(values)[round((len(values) - 1) * share)]


def percentiles(latencies_ms: Sequence[float]) -> Figures:
    """p50, p99 and p99.9 of at least one latency."""
    ranked = sorted(latencies_ms)
    shares = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}
    return {name: percentile(ranked, share) for name, share in shares.items()}


# --- librdkafka ------------------------------------------------------------------------------------------


def keyed_values(count: int) -> list[bytes]:
    """Different texts of RECORD_BYTES, which compress as events in JSON do."""
    source = random.Random(1)
    words = [f'"field-{n}":"{source.getrandbits(64):016x}"' for n in range(64)]
    return [
        ",".join(source.choices(words, k=8)).encode()[:RECORD_BYTES].ljust(RECORD_BYTES) for _ in range(count)
    ]


def end_offsets(task: Task) -> int:
    """The number of records that were ever appended to the topic."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": task.bootstrap, "group.id": "bench"})
    ends = [
        consumer.get_watermark_offsets(TopicPartition(task.topic, number), timeout=30)[1]
        for number in range(task.partitions)
    ]
    consumer.close()
    return sum(ends)


def write_keyed(task: Task) -> Figures:
    from confluent_kafka import Producer

    before = end_offsets(task)
    producer = Producer({"queue.buffering.max.messages": 1_000_000, **task.librdkafka})
    latencies: list[float] = []

    def sampled(error: Any, message: Any) -> None:
        if error is not None:
            raise click.ClickException(str(error))
        latencies.append(message.latency() * 1000)

    keys, values = [b"key-%d" % n for n in range(KEYS)], keyed_values(1000)
    began = time.monotonic()
    for number in range(task.records):
        key, value = keys[number * 7919 % KEYS], values[number % 1000]
        while True:
            try:
                if number % SAMPLE_EVERY:
                    producer.produce(task.topic, value, key)
                else:
                    producer.produce(task.topic, value, key, on_delivery=sampled)
                    producer.poll(0)
                break
            except BufferError:
                producer.poll(0.01)
    left = producer.flush(120)
    took_s = time.monotonic() - began
    written = end_offsets(task) - before
    if left or written != task.records:
        raise click.ClickException(f"{written} of {task.records} records were written, {left} are left")
    return {"records_per_s": task.records / took_s, **percentiles(latencies)}


def read(task: Task) -> Figures:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({**task.librdkafka, "group.id": uuid.uuid4().hex, "enable.auto.commit": False})
    consumer.assign([TopicPartition(task.topic, number, 0) for number in range(task.partitions)])
    count, began = 0, 0.0
    deadline = time.monotonic() + READ_TIMEOUT_S
    while count < task.records:
        messages = consumer.consume(10_000, timeout=1.0)
        if began == 0.0 and messages:
            began, first = time.monotonic(), len(messages)
        count += sum(message.error() is None for message in messages)
        if time.monotonic() > deadline:
            raise click.ClickException(f"{count} of {task.records} records after {READ_TIMEOUT_S:g} s")
    took_s = time.monotonic() - began
    consumer.close()
    return {"records_per_s": max(1, count - first) / took_s}


def end_to_end(task: Task) -> Figures:
    from confluent_kafka import Consumer, Producer, TopicPartition

    producer = Producer({**task.librdkafka, "linger.ms": 0, "acks": "all"})
    consumer = Consumer({**task.librdkafka, "group.id": "bench", "enable.auto.commit": False})
    end = end_offsets(task)
    consumer.assign([TopicPartition(task.topic, 0, end)])
    latencies: list[float] = []
    began = time.monotonic()
    for number in range(task.records):
        value = b"%d" % number
        sent = time.monotonic()
        producer.produce(task.topic, value)
        while (message := consumer.poll(READ_TIMEOUT_S)) is None or message.value() != value:
            if message is None or message.error():
                raise click.ClickException(f"record {number} did not arrive: {message and message.error()}")
        latencies.append((time.monotonic() - sent) * 1000)
        producer.poll(0)
    took_s = time.monotonic() - began
    producer.flush(30)
    consumer.close()
    return {"records_per_s": task.records / took_s, **percentiles(latencies)}


# --- encoded requests --------------------------------------------------------------------------------------


def write_partitions(task: Task) -> Figures:
    connection = RequestConnection(task.port)
    requests = task.records // task.partitions
    began = time.monotonic()
    connection.run(produce_frame(1, topic=task.topic, partitions=task.partitions), requests, IN_FLIGHT)
    took_s = time.monotonic() - began
    connection.close()
    return {"records_per_s": requests * task.partitions / took_s}


def pace(task: Task, frames_by_client: Sequence[Sequence[bytes]], seconds: int) -> Figures:
    """Each client, with a connection of its own, sends all its requests each second, evenly spread. A client
    has at most one request in flight: a request that is due waits for the response before it."""
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files_max < len(frames_by_client) + SPARE_FILES:
        raise click.ClickException(
            f"ulimit -n allows {files_max} files, for {len(frames_by_client)} connections"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    poller = select.epoll()
    sockets: dict[int, socket.socket] = {}
    clients = []
    for _ in frames_by_client:
        connected = socket.create_connection(("127.0.0.1", task.port))
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setblocking(False)
        poller.register(connected, select.EPOLLIN)
        sockets[connected.fileno()] = connected
        clients.append(connected)
    in_flight: dict[int, tuple[float, bytes]] = {}
    late: dict[int, list[tuple[float, bytes]]] = {}
    latencies: list[float] = []
    before = usage_of(task.brokers)
    started = time.monotonic() + 0.1
    slots = sorted(
        (
            second + (client + number * len(frames_by_client) / len(requests)) / len(frames_by_client) % 1.0,
            client,
            frame,
        )
        for client, requests in enumerate(frames_by_client)
        for number, frame in enumerate(requests)
        for second in range(seconds)
    )

    def send(fd: int, due: float, frame: bytes) -> None:
        if fd in in_flight:
            late.setdefault(fd, []).append((due, frame))
        else:
            in_flight[fd] = (due, frame)
            sockets[fd].sendall(frame)

    def receive(fd: int) -> None:
        response = sockets[fd].recv(65536)
        due, frame = in_flight.pop(fd)
        latencies.append((time.monotonic() - due) * 1000)
        if len(response) < SIZE.size or SIZE.unpack_from(response)[0] != len(response) - SIZE.size:
            raise click.ClickException(f"the broker sent {len(response)} bytes, which are no whole response")
        header = frames.parse_request_header(memoryview(frame)[SIZE.size :])
        check_errors(decode_response(header.api_key, header.api_version, memoryview(response)[SIZE.size :]))
        if waiting := late.pop(fd, None):
            send(fd, *waiting.pop(0))
            late.update({fd: waiting} if waiting else {})

    at = 0
    while len(latencies) < len(slots):
        now = time.monotonic() - started
        while at < len(slots) and slots[at][0] <= now:
            due, client, frame = slots[at]
            send(clients[client].fileno(), started + due, frame)
            at += 1
        wait_s = max(0.0, slots[at][0] - now) if at < len(slots) else 1.0
        for fd, _ in poller.poll(wait_s):
            receive(fd)
        if now > seconds + READ_TIMEOUT_S:
            raise click.ClickException(f"{len(latencies)} of {len(slots)} responses after {now:.0f} s")
    took_s = time.monotonic() - started
    after = usage_of(task.brokers)
    poller.close()
    for connected in clients:
        connected.close()
    return {
        "records_per_s": len(slots) / took_s,
        "cpu_s": after.cpu_s - before.cpu_s,
        "kernel_s": after.kernel_s - before.kernel_s,
        **percentiles(latencies),
    }


def pace_connections(task: Task) -> Figures:
    frame = produce_frame(1, topic=task.topic)
    return pace(task, [[frame]] * task.clients, max(1, task.records // task.clients))


async def make_groups(port: int, groups: int) -> list[Member]:
    connection = await BrokerConnection.open("127.0.0.1", port, client_id="bench")
    members = [await make_group(connection, number, partitions=1, commits=0) for number in range(groups)]
    connection.close()
    return members


async def leave_groups(port: int, members: Sequence[Member]) -> None:
    connection = await BrokerConnection.open("127.0.0.1", port, client_id="bench")
    for member in members:
        leave = m.LeaveGroupRequest(group_id=member.group_id, member_id=member.member_id)
        await connection.request(leave, version=2, timeout_s=60)
    connection.close()


def member_frames(member: Member, topic: str) -> list[bytes]:
    """A commit and a heartbeat."""
    row = m.OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    commit: Message = m.OffsetCommitRequest(
        group_id=member.group_id,
        generation_id_or_member_epoch=member.generation_id,
        member_id=member.member_id,
        topics=[m.OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[row])],
    )
    beat: Message = m.HeartbeatRequest(
        group_id=member.group_id, generation_id=member.generation_id, member_id=member.member_id
    )
    return [frames.encode_request(commit, 7, 1, "bench"), frames.encode_request(beat, 3, 1, "bench")]


def pace_groups(task: Task) -> Figures:
    members = asyncio.run(make_groups(task.port, task.clients))
    requests = [member_frames(member, task.topic) for member in members]
    figures = pace(task, requests, max(1, task.records // (2 * task.clients)))
    asyncio.run(leave_groups(task.port, members))
    return figures


KINDS: Final[dict[str, Callable[[Task], Figures]]] = {
    "keyed": write_keyed,
    "read": read,
    "end-to-end": end_to_end,
    "connections": pace_connections,
    "groups": pace_groups,
    "partitions": write_partitions,
}


@click.command()
@click.argument("task")
def main(task: str) -> None:
    """Run TASK, and print its figures as JSON."""
    parsed = Task.parse(task)
    click.echo(json.dumps(KINDS[parsed.kind](parsed)))


if __name__ == "__main__":
    main()

"""`ottla perf`: measures producers, consumers and end-to-end latency.

The metrics are those of kafka-producer-perf-test.sh, kafka-consumer-perf-test.sh and kafka-e2e-latency.sh,
with the same units; measured with this client, in one process.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, cycle, islice
from typing import IO, Any, Final

import click

from ottla.cli.output import as_json, show
from ottla.cli.session import (
    Session,
    cluster_command,
    complete_topics,
    key_values,
)
from ottla.client.blocking import Producer
from ottla.client.consumer import Consumer
from ottla.client.core.types import RecordMetadata, TopicPartition
from ottla.client.producer import Producer as AsyncProducer

_MB: Final = 1024 * 1024
"""The MB of Kafka's tools."""
PERCENTILES: Final = (0.5, 0.95, 0.99, 0.999)


def due_s(count: int, per_second: float) -> float:
    """Seconds after the start at which the next record after `count` may be sent; 0 without a limit."""
    return count / per_second if per_second > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Throughput:
    """Records and bytes of a time, as rates."""

    records: int
    bytes: int
    elapsed_s: float

    @property
    def records_per_s(self) -> float:
        return self.records / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def mb(self) -> float:
        return self.bytes / _MB

    @property
    def mb_per_s(self) -> float:
        return self.mb / self.elapsed_s if self.elapsed_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Latencies:
    """Statistics of latencies in milliseconds; all 0 without a record."""

    average: float
    most: float
    percentiles: tuple[float, ...]
    """The percentiles of PERCENTILES, in order."""

    @classmethod
    def of(cls, measured_ms: Sequence[float]) -> Latencies:
        if not measured_ms:
            return cls(0.0, 0.0, (0.0,) * len(PERCENTILES))
        ordered = sorted(measured_ms)
        at = (min(len(ordered) - 1, int(share * len(ordered))) for share in PERCENTILES)
        return cls(sum(ordered) / len(ordered), ordered[-1], tuple(ordered[index] for index in at))


_REPORT_S: Final = 5.0
_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_POLL_S: Final = 0.1
_RECORDS_MAX: Final = 10_000

_settings = click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of Kafka's clients."
)
_metrics = click.option("--print-metrics", is_flag=True, help="Print the client's metrics at the end.")


@click.group(short_help="Measure producers, consumers and latency.")
def perf() -> None:
    """Performance of a cluster, as Kafka's own tools measure it."""


@perf.command()
@click.argument("topic", shell_complete=complete_topics)
@click.option("--records", type=click.IntRange(min=1), required=True, help="The number of records to write.")
@click.option("--size", type=click.IntRange(min=1), help="Bytes of each value, which is random letters.")
@click.option("--payload-file", type=click.File("rb"), help="Values from a file, in a random order.")
@click.option("--payload-delimiter", default="\\n", help="Between the file's values. Default: a line's end.")
@click.option("--payload-monotonic", is_flag=True, help="Values are the numbers from 0.")
@click.option("--rate", type=float, default=-1.0, metavar="N", help="The maximum of records per second.")
@click.option("--transactional-id", help="Write in transactions of this id.")
@click.option(
    "--transaction-duration",
    "transaction_ms",
    type=click.IntRange(min=1),
    metavar="MS",
    help="Commit a transaction after this time; generates a transactional id by default. Default: 3000.",
)
@_settings
@_metrics
@cluster_command
def produce(
    session: Session,
    topic: str,
    records: int,
    size: int | None,
    payload_file: IO[bytes] | None,
    payload_delimiter: str,
    payload_monotonic: bool,
    rate: float,
    transactional_id: str | None,
    transaction_ms: int | None,
    settings: tuple[str, ...],
    print_metrics: bool,
) -> None:
    """Write records as fast as possible, or at a rate. The latency of a record ends with its
    acknowledgement."""
    if sum((size is not None, payload_file is not None, payload_monotonic)) != 1:
        raise click.UsageError("give one of --size, --payload-file and --payload-monotonic")
    values = _values(size, payload_file, payload_delimiter)
    given: dict[str, object] = {**session.client(), **key_values(settings, "--set")}
    if transactional_id or transaction_ms:
        given["transactional.id"] = transactional_id or f"performance-producer-{uuid.uuid4()}"
    with session.translated_errors():
        run = _ProducerRun(Producer(given), session.output != "json")
        every_s = (transaction_ms or 3000) / 1000 if "transactional.id" in given else None
        run.write(topic, islice(values, records), rate, every_s)
    run.show(session, print_metrics)


def _values(size: int | None, file: IO[bytes] | None, delimiter: str) -> Iterator[bytes]:
    rng = random.Random(0)
    if file is not None:
        separator = delimiter.encode().decode("unicode_escape").encode()
        payloads = [each for each in file.read().split(separator) if each]
        if not payloads:
            raise click.UsageError(f"{file.name} has no values")
        return (rng.choice(payloads) for _ in count())
    if size is not None:
        return cycle([bytes(rng.choices(_ALPHABET, k=size)) for _ in range(16)])
    return (str(number).encode() for number in count())


class _ProducerRun:
    """One measurement: latencies and bytes of acknowledged records, and the elapsed time."""

    def __init__(self, producer: Producer, reports: bool) -> None:
        self._producer = producer
        self._reports = reports
        self._latencies = array("d")
        self._bytes = 0
        self._failed: BaseException | None = None
        self._metrics: dict[str, float] = {}
        self._elapsed_s = 0.0

    def write(self, topic: str, values: Iterator[bytes], rate: float, transaction_s: float | None) -> None:
        producer = self._producer
        with producer:
            began = reported = committed = time.perf_counter()
            reported_count = 0
            if transaction_s is not None:
                producer.begin_transaction()
            for sent, value in enumerate(values):
                now = time.perf_counter()
                if (early := began + due_s(sent, rate) - now) > 0:
                    time.sleep(early)
                    now = time.perf_counter()
                if transaction_s is not None and now - committed >= transaction_s:
                    producer.commit_transaction()
                    producer.begin_transaction()
                    committed = now
                producer.send_nowait(topic, value, on_delivery=self._delivered(now, len(value)))
                if self._failed is not None:
                    break
                if self._reports and now - reported >= _REPORT_S:
                    reported_count = self._report(reported_count, now - reported)
                    reported = now
            if transaction_s is not None and self._failed is None:
                producer.commit_transaction()
            producer.flush()
            self._elapsed_s = time.perf_counter() - began
            self._metrics = producer.metrics()
        if self._failed is not None:
            raise self._failed

    def _delivered(
        self, began: float, size: int
    ) -> Callable[[RecordMetadata | None, BaseException | None], None]:
        def delivered(_: RecordMetadata | None, error: BaseException | None) -> None:
            if error is not None:
                self._failed = error
            else:
                self._latencies.append((time.perf_counter() - began) * 1000)
                self._bytes += size

        return delivered

    def _report(self, reported_count: int, elapsed_s: float) -> int:
        """Print the records acknowledged since the last report. Returns the total number."""
        measured = self._latencies[reported_count:]
        latencies = Latencies.of(measured)
        mean = self._bytes / max(1, len(self._latencies))
        throughput = Throughput(len(measured), int(mean * len(measured)), elapsed_s)
        click.echo(
            f"{throughput.records} records sent, {throughput.records_per_s:.1f} records/sec "
            f"({throughput.mb_per_s:.2f} MB/sec), {latencies.average:.1f} ms avg latency, "
            f"{latencies.most:.1f} ms max latency.",
            err=True,
        )
        return reported_count + len(measured)

    def show(self, session: Session, print_metrics: bool) -> None:
        throughput = Throughput(len(self._latencies), self._bytes, self._elapsed_s)
        latencies = Latencies.of(self._latencies)
        if session.output == "json":
            row = {
                "records": throughput.records,
                "records_per_s": throughput.records_per_s,
                "mb_per_s": throughput.mb_per_s,
                **_latency_row(latencies),
            }
            as_json({**row, "metrics": self._metrics} if print_metrics else row)
            return
        shares = zip(latencies.percentiles, PERCENTILES, strict=True)
        percentiles = ", ".join(f"{each:.0f} ms {share * 100:g}th" for each, share in shares)
        click.echo(
            f"{throughput.records} records sent, {throughput.records_per_s:f} records/sec "
            f"({throughput.mb_per_s:.2f} MB/sec), "
            f"{latencies.average:.2f} ms avg latency, {latencies.most:.2f} ms max latency, {percentiles}."
        )
        if print_metrics:
            _print_metrics(session, self._metrics)


def _latency_row(latencies: Latencies) -> dict[str, float]:
    names = (f"p{share * 100:g}_ms" for share in PERCENTILES)
    return {
        "avg_ms": latencies.average,
        "max_ms": latencies.most,
        **dict(zip(names, latencies.percentiles, strict=True)),
    }


def _print_metrics(session: Session, metrics: dict[str, float]) -> None:
    show(({"metric": name, "value": value} for name, value in sorted(metrics.items())), session.output)


@perf.command()
@click.argument("topics", metavar="TOPIC…", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("--records", type=click.IntRange(min=1), required=True, help="The number of records to read.")
@click.option("--group", help="Default: a new one.")
@click.option("--from-latest", is_flag=True, help="A new group begins at the end, not at the beginning.")
@click.option("--fetch-size", type=click.IntRange(min=1), metavar="BYTES", help="Of a partition, at a time.")
@click.option("--socket-buffer-size", type=click.IntRange(min=1), metavar="BYTES")
@click.option(
    "--idle",
    "idle_s",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="End after this time without a record.",
)
@_settings
@_metrics
@cluster_command
def consume(
    session: Session,
    topics: tuple[str, ...],
    records: int,
    group: str | None,
    from_latest: bool,
    fetch_size: int | None,
    socket_buffer_size: int | None,
    idle_s: float,
    settings: tuple[str, ...],
    print_metrics: bool,
) -> None:
    """Read records as a member of a group. The time of rebalances is reported separately."""
    given: dict[str, object] = {
        **session.client(),
        "group.id": group or f"perf-consumer-{random.randrange(100_000)}",
        "auto.offset.reset": "latest" if from_latest else "earliest",
        "check.crcs": False,
        **({"max.partition.fetch.bytes": fetch_size} if fetch_size else {}),
        **({"receive.buffer.bytes": socket_buffer_size} if socket_buffer_size else {}),
        **key_values(settings, "--set"),
    }
    row, metrics = session.run(_read(given, topics, records, idle_s))
    if session.output == "json":
        as_json({**row, "metrics": metrics} if print_metrics else row)
        return
    show([row], session.output)
    if print_metrics:
        _print_metrics(session, metrics)


async def _read(
    settings: dict[str, object], topics: tuple[str, ...], wanted: int, idle_s: float
) -> tuple[dict[str, Any], dict[str, float]]:
    number = size = 0
    joining_s, joining_since = 0.0, time.perf_counter()
    began_ms = time.time() * 1000
    began = last = time.perf_counter()

    def assigned(_: list[TopicPartition]) -> None:
        nonlocal joining_s
        joining_s += time.perf_counter() - joining_since

    def revoked(_: list[TopicPartition]) -> None:
        nonlocal joining_since
        joining_since = time.perf_counter()

    async with Consumer(settings) as consumer:
        consumer.subscribe(topics, on_assigned=assigned, on_revoked=revoked)
        while number < wanted and time.perf_counter() - last < idle_s:
            for found in (await consumer.poll(_POLL_S, min(_RECORDS_MAX, wanted - number))).values():
                number += len(found)
                size += sum(len(record.key or b"") + len(record.value or b"") for record in found)
                last = time.perf_counter()
        metrics = consumer.metrics()
        elapsed_s = last - began
    whole = Throughput(number, size, elapsed_s)
    fetching = Throughput(number, size, elapsed_s - joining_s)
    return {
        "start_ms": int(began_ms),
        "end_ms": int(began_ms + elapsed_s * 1000),
        "mb": whole.mb,
        "mb_per_s": whole.mb_per_s,
        "records": number,
        "records_per_s": whole.records_per_s,
        "rebalance_ms": int(joining_s * 1000),
        "fetch_ms": int(fetching.elapsed_s * 1000),
        "fetch_mb_per_s": fetching.mb_per_s,
        "fetch_records_per_s": fetching.records_per_s,
    }, metrics


@perf.command()
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "--records", type=click.IntRange(min=1), required=True, help="The number of records, one after the other."
)
@click.option("--size", type=click.IntRange(min=1), default=100, show_default=True, help="Bytes of each.")
@click.option("--acks", type=click.Choice(["1", "all"]), default="all", show_default=True)
@_settings
@cluster_command
def latency(
    session: Session, topic: str, records: int, size: int, acks: str, settings: tuple[str, ...]
) -> None:
    """Measure the latency from producer to consumer; each record is sent after the previous one was read."""
    given = {**session.client(), **key_values(settings, "--set")}
    measured = session.run(_round_trips(given, topic, records, size, acks, session.timeout_s))
    row = {"records": records, **_latency_row(Latencies.of(measured))}
    show([row], session.output) if session.output != "json" else as_json(row)


async def _round_trips(
    settings: dict[str, object], topic: str, number: int, size: int, acks: str, timeout_s: float
) -> list[float]:
    """Latencies in milliseconds. Raises TimeoutError when a record is not read in time."""
    measured = []
    sending = {**settings, "acks": acks, "linger.ms": 0}
    if acks != "all":
        sending["enable.idempotence"] = False
    async with AsyncProducer(sending) as producer, Consumer(settings) as consumer:
        partitions = [TopicPartition(topic, p) for p in range(await producer.partitions_for(topic))]
        consumer.assign(partitions)
        consumer.seek_to_end()
        for tp in partitions:  # so that the ends are looked up before the first record is sent
            await consumer.position(tp)
        for _ in range(number):
            value = random.randbytes(size)
            began = time.perf_counter()
            metadata = await producer.send_and_wait(topic, value)
            async with asyncio.timeout(timeout_s):
                await _until_read(consumer, metadata)
            measured.append((time.perf_counter() - began) * 1000)
    return measured


async def _until_read(consumer: Consumer, metadata: RecordMetadata) -> None:
    """Poll until the record is read, skipping records of other producers."""
    tp = TopicPartition(metadata.topic, metadata.partition)
    while True:
        for record in (await consumer.poll(_POLL_S)).get(tp, ()):
            if record.offset == metadata.offset:
                return

"""The loads of `make bench`, as a table.

The runner runs each kind of load, so that a new load is a new row. Both sides get the same client, settings
and number of records. The topics of a row are created for it and deleted after it. Settings are the Java
producer's, or librdkafka's in Traffic; others have the client's default.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

RECORD_BYTES: Final = 200
"""The size of the Kafka paper's messages; small enough to show the broker's cost per record."""


@dataclass(frozen=True)
class Produce:
    """ProducerPerformance without a rate limit; in transactions of `transaction_ms` unless 0."""

    settings: tuple[str, ...]
    transaction_ms: int = 0


@dataclass(frozen=True)
class Consume:
    """ConsumerPerformance over a filled topic; `cold`: from disk, its page cache dropped."""

    cold: bool


@dataclass(frozen=True)
class ProducePaced:
    """ProducerPerformance at a rate that leaves the broker mostly idle, for latencies.

    With `backlog_mib`, another consumer reads a topic of that size from disk again and again, without a
    limit.
    """

    settings: tuple[str, ...]
    rate: int
    backlog_mib: int = 0


@dataclass(frozen=True)
class Traffic:
    """A client of `bench.traffic`, by its kind. If the kind has no records, the load's are requests."""

    kind: str
    partitions: int = 1
    clients: int = 1
    """Connections or groups."""
    settings: tuple[str, ...] = ()
    """librdkafka's."""
    filled: bool = False
    """The topic has the load's records before it is measured."""


@dataclass(frozen=True)
class Load:
    key: str
    """The name on the command line (`--only`)."""
    name: str
    brokers: int
    """Number of brokers of each side, all on one core, and of the topic's replicas."""
    records: int
    """Number of records of a run: about three seconds on the slower side."""
    work: Produce | Consume | ProducePaced | Traffic
    tls: bool = False
    """Clients use TLS; the connections between brokers do not."""
    floor: str = ""
    """The load of bench.requests whose system calls are the least that a broker needs for this one."""


_64_KIB = ("batch.size=65536", "linger.ms=5")
_16_KIB = ("batch.size=16384", "linger.ms=0")
_SINGLE = ("batch.size=1", "linger.ms=0")
_LARGE_LZ4 = ("batch.size=524288", "linger.ms=20", "compression.type=lz4")
_PACED = ("acks=1", *_16_KIB)
_TRANSACTIONAL = ("acks=all", *_16_KIB)


def _keyed(partitions: int, linger_ms: int, codec: str = "none") -> Traffic:
    settings = (f"linger.ms={linger_ms}", f"compression.type={codec}")
    return Traffic("keyed", partitions, settings=settings)


LOADS: Final = (
    Load(
        "produce-64k",
        "64 KiB batches, acks=1",
        1,
        1_000_000,
        Produce(("acks=1", *_64_KIB)),
        floor="produce, 64 KiB",
    ),
    Load(
        "produce-16k",
        "16 KiB batches, acks=1",
        1,
        500_000,
        Produce(("acks=1", *_16_KIB)),
        floor="produce, 16 KiB",
    ),
    Load("produce-lz4", "512 KiB batches, lz4, acks=1", 1, 1_000_000, Produce(("acks=1", *_LARGE_LZ4))),
    Load(
        "produce-single",
        "one record a request, acks=1",
        1,
        40_000,
        Produce(("acks=1", *_SINGLE)),
        floor="produce, one record",
    ),
    Load("consume-memory", "consume from memory", 1, 3_000_000, Consume(cold=False), floor="fetch, 1 MiB"),
    Load("consume-disk", "consume from disk", 1, 3_000_000, Consume(cold=True)),
    Load("paced-idle", "2,000 records/s, no other load", 1, 24_000, ProducePaced(_PACED, 2_000)),
    Load("paced-backlog", "2,000 records/s, cold backlog read", 1, 24_000, ProducePaced(_PACED, 2_000, 1024)),
    Load("keyed-48", "keyed, 48 partitions, linger 5 ms", 1, 1_000_000, _keyed(48, 5)),
    Load("keyed-48-linger", "keyed, 48 partitions, linger 50 ms", 1, 1_500_000, _keyed(48, 50)),
    Load("keyed-200", "keyed, 200 partitions, linger 5 ms", 1, 800_000, _keyed(200, 5)),
    Load("keyed-zstd", "keyed, 48 partitions, zstd", 1, 800_000, _keyed(48, 5, "zstd")),
    Load("keyed-lz4", "keyed, 48 partitions, lz4", 1, 1_000_000, _keyed(48, 5, "lz4")),
    Load("read-48", "read 48 partitions, librdkafka", 1, 2_000_000, Traffic("read", 48, filled=True)),
    Load("read-200", "read 200 partitions, librdkafka", 1, 2_000_000, Traffic("read", 200, filled=True)),
    Load(
        "partitions-48",
        "a record for each of 48 partitions a request",
        1,
        200_000,
        Traffic("partitions", 48),
        floor="produce, 48 partitions",
    ),
    Load(
        "partitions-200",
        "a record for each of 200 partitions a request",
        1,
        400_000,
        Traffic("partitions", 200),
    ),
    Load(
        "connections",
        "5,000 connections, a record a second each",
        1,
        50_000,
        Traffic("connections", 1, 5_000),
    ),
    Load("groups", "1,000 groups, a commit and a heartbeat a second", 1, 20_000, Traffic("groups", 1, 1_000)),
    Load("tls-64k", "TLS: 64 KiB batches, acks=1", 1, 500_000, Produce(("acks=1", *_64_KIB)), tls=True),
    Load("tls-16k", "TLS: 16 KiB batches, acks=1", 1, 300_000, Produce(("acks=1", *_16_KIB)), tls=True),
    Load("tls-consume", "TLS: consume from memory", 1, 2_000_000, Consume(cold=False), tls=True),
    Load("transactions", "transactions of 10 ms, acks=all", 1, 200_000, Produce(_TRANSACTIONAL, 10)),
    Load("rf3-64k", "RF 3: 64 KiB batches, acks=all", 3, 500_000, Produce(("acks=all", *_64_KIB))),
    Load("rf3-16k", "RF 3: 16 KiB batches, acks=all", 3, 200_000, Produce(("acks=all", *_16_KIB))),
    Load("rf3-single", "RF 3: one record a request, acks=all", 3, 10_000, Produce(("acks=all", *_SINGLE))),
    Load("rf3-end-to-end", "RF 3: one record at a time, end to end", 3, 3_000, Traffic("end-to-end")),
    Load("rf3-transactions", "RF 3: transactions of 50 ms", 3, 100_000, Produce(_TRANSACTIONAL, 50)),
)


def scaled(load: Load, by: float) -> Load:
    """The load with records and backlog multiplied by `by`."""
    work = load.work
    if isinstance(work, ProducePaced):
        work = replace(work, backlog_mib=int(work.backlog_mib * by))
    return replace(load, records=max(1000, int(load.records * by)), work=work)


def chosen(only: tuple[str, ...]) -> list[Load]:
    """The loads whose key or name contains one of the texts; all loads without a text."""
    return [load for load in LOADS if not only or any(t in load.key or t in load.name for t in only)]

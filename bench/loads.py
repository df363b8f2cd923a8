"""The loads of `make bench`, as a table.

The runner runs each kind of load, so that a new load is a new row. Both sides get the same client, settings
and number of records. The topics of a row are created for it and deleted after it. Settings are the Java
producer's; others have the client's default.
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
class Load:
    key: str
    """The name on the command line (`--only`)."""
    name: str
    brokers: int
    """Number of brokers of each side, all on one core, and of the topic's replicas."""
    records: int
    """Number of records of a run: about three seconds on the slower side."""
    work: Produce | Consume | ProducePaced
    tls: bool = False
    """Clients use TLS; the connections between brokers do not."""


_64_KIB = ("batch.size=65536", "linger.ms=5")
_16_KIB = ("batch.size=16384", "linger.ms=0")
_SINGLE = ("batch.size=1", "linger.ms=0")
_LARGE_LZ4 = ("batch.size=524288", "linger.ms=20", "compression.type=lz4")
_PACED = ("acks=1", *_16_KIB)
_TRANSACTIONAL = ("acks=all", *_16_KIB)

LOADS: Final = (
    Load("produce-64k", "64 KiB batches, acks=1", 1, 1_000_000, Produce(("acks=1", *_64_KIB))),
    Load("produce-16k", "16 KiB batches, acks=1", 1, 500_000, Produce(("acks=1", *_16_KIB))),
    Load("produce-lz4", "512 KiB batches, lz4, acks=1", 1, 1_000_000, Produce(("acks=1", *_LARGE_LZ4))),
    Load("produce-single", "one record a request, acks=1", 1, 40_000, Produce(("acks=1", *_SINGLE))),
    Load("consume-memory", "consume from memory", 1, 3_000_000, Consume(cold=False)),
    Load("consume-disk", "consume from disk", 1, 3_000_000, Consume(cold=True)),
    Load("paced-idle", "2,000 records/s, no other load", 1, 24_000, ProducePaced(_PACED, 2_000)),
    Load("paced-backlog", "2,000 records/s, cold backlog read", 1, 24_000, ProducePaced(_PACED, 2_000, 1024)),
    Load("tls-64k", "TLS: 64 KiB batches, acks=1", 1, 500_000, Produce(("acks=1", *_64_KIB)), tls=True),
    Load("tls-16k", "TLS: 16 KiB batches, acks=1", 1, 300_000, Produce(("acks=1", *_16_KIB)), tls=True),
    Load("tls-consume", "TLS: consume from memory", 1, 2_000_000, Consume(cold=False), tls=True),
    Load("transactions", "transactions of 10 ms, acks=all", 1, 200_000, Produce(_TRANSACTIONAL, 10)),
    Load("rf3-64k", "RF 3: 64 KiB batches, acks=all", 3, 500_000, Produce(("acks=all", *_64_KIB))),
    Load("rf3-16k", "RF 3: 16 KiB batches, acks=all", 3, 200_000, Produce(("acks=all", *_16_KIB))),
    Load("rf3-single", "RF 3: one record a request, acks=all", 3, 10_000, Produce(("acks=all", *_SINGLE))),
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

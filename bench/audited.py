"""`python -m bench.audited [RECORDS] [ROUNDS]`: the cost of the audit for a producer.

A plain confluent-kafka producer and an audited one send the same records in turns to one Ottla broker. The
CPU time is that of this process with librdkafka's threads, without the broker's. A third producer has a
delivery callback of its own, as many applications do: its extra cost is not the audit's.
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from bench.interpreter import say_interpreter
from ottla.local.cluster import LocalCluster
from ottla_pipeline.auditing.confluent import AuditedProducer

VALUE = b"x" * 200
TOPIC = "orders"


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run(producer: Any, records: int, **settings: Any) -> tuple[float, float]:
    """(CPU seconds, wall seconds) until everything is delivered."""
    cpu, began = cpu_s(), time.monotonic()
    for number in range(records):
        while True:
            try:
                producer.produce(TOPIC, VALUE, **settings)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 100 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0
    if isinstance(producer, AuditedProducer):
        assert producer.close()
    return cpu_s() - cpu, time.monotonic() - began


def main(records: int, rounds: int) -> None:
    say_interpreter()
    with tempfile.TemporaryDirectory() as folder, LocalCluster(Path(folder), brokers=1) as cluster:
        cluster.create_topic(TOPIC, partitions=4, replicas=1)
        cluster.create_topic("ottla.audit", replicas=1)
        config = {"bootstrap.servers": cluster.bootstrap, "linger.ms": 5}
        producers: dict[str, Callable[[], tuple[float, float]]] = {
            "plain": lambda: run(Producer(config), records),
            "plain with callback": lambda: run(Producer(config), records, on_delivery=lambda *_: None),
            "audited": lambda: run(AuditedProducer(config), records),
        }
        samples: dict[str, list[tuple[float, float]]] = {name: [] for name in producers}
        for number in range(rounds + 1):  # the first round warms up
            for name, run_once in producers.items():
                sample = run_once()
                if number:
                    samples[name].append(sample)
        print(f"{records:,} records of {len(VALUE)} bytes, median of {rounds} rounds")  # noqa: T201
        for name, times in samples.items():
            cpu, wall = (statistics.median(column) for column in zip(*times, strict=True))
            line = f"{cpu / records * 1e6:.2f} µs CPU a record, {records / wall:,.0f} records/s"
            print(f"{name:<20} {line}")  # noqa: T201


if __name__ == "__main__":
    main(*(int(text) for text in (sys.argv[1:] + ["200000", "5"][len(sys.argv) - 1 :])[:2]))

"""The service in a simulated cluster under faults, and as a process that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from invoices_service import INVOICES, ORDERS, make_invoices

from ottla.client import Producer
from ottla.client.blocking import Producer as BlockingProducer
from ottla.client.errors import ClientError
from ottla.testing import DevBroker
from ottla.testing.simulation import Faults, SimulatedCluster, simulated

SERVICE = Path(__file__).with_name("invoices_service.py")
ORDER = b'{"amount": 100}'


def keys(count: int) -> list[bytes]:
    return [b"order-%d" % number for number in range(count)]


# ---- in a simulated cluster: `pytest --ottla-seed 0-199` for more runs


async def send_orders(bootstrap_servers: str) -> None:
    async with Producer(bootstrap_servers=bootstrap_servers) as producer:
        for key in keys(30):
            await producer.send_and_wait(ORDERS, ORDER, key=key)


@simulated(seeds=range(5), faults=Faults(seconds=10, kill=0.1, cut=0.1, kill_application=0.4))
async def test_each_order_has_one_invoice(cluster: SimulatedCluster) -> None:
    for topic in (ORDERS, INVOICES):
        await cluster.create_topic(topic, partitions=2)
    for name in ("a", "b"):
        cluster.application(
            name, partial(make_invoices, cluster.bootstrap_servers, name), restart_on=(ClientError,)
        )
    await cluster.run(send_orders(cluster.bootstrap_servers))

    async def invoices() -> Counter[bytes | None]:
        records = await cluster.records(INVOICES, isolation_level="read_committed")
        return Counter(record.key for record in records)

    async def complete() -> bool:
        return len(await invoices()) == 30

    await cluster.until(complete)
    assert await invoices() == Counter(keys(30))


# ---- as a process


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.ottla(settings={"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "4"})
def test_a_process_that_is_killed_makes_no_invoice_twice(fresh_ottla_broker: DevBroker) -> None:
    broker = fresh_ottla_broker
    for topic in (ORDERS, INVOICES):
        broker.create_topic(topic, partitions=2)

    def start() -> subprocess.Popen[bytes]:
        environment = {**os.environ, "OTTLA_BOOTSTRAP": broker.bootstrap, "INSTANCE": "0"}
        return subprocess.Popen([sys.executable, SERVICE], env=environment)

    with BlockingProducer(bootstrap_servers=broker.bootstrap) as producer, start() as first:
        for key in keys(2_000):
            producer.send(ORDERS, ORDER, key=key)
        producer.flush()
        wait_for(lambda: len(broker.records(INVOICES)) > 200)
        first.kill()
    with start() as second:
        try:
            wait_for(lambda: len(broker.records(INVOICES)) >= 2_000)
        finally:
            second.send_signal(signal.SIGTERM)
    assert second.returncode == 0
    assert Counter(invoice.key for invoice in broker.records(INVOICES)) == Counter(keys(2_000))

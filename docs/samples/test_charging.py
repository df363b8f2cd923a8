"""Tests of charging.py in a simulated cluster: `pytest docs/samples/test_charging.py`.

The test of `charge_orders_carelessly` fails. It is there to show how.
"""

from __future__ import annotations

import asyncio

from charging import Charge, charge_orders, charge_orders_carelessly

from ottla.client import Producer
from ottla.client.errors import ClientError
from ottla.testing.simulation import Faults, SimulatedCluster, simulated

FAULTS = Faults(seconds=8, kill=0.1, cut=0.1, kill_application=0.4, pause_application=0.1)
ORDERS = 10


class Provider:
    """The payment provider: it outlives the application. An order is charged at most once."""

    def __init__(self) -> None:
        self.charged: dict[str, int] = {}

    async def charge(self, order: str, amount: int) -> None:
        await asyncio.sleep(0.2)
        self.charged.setdefault(order, amount)


async def send_orders(bootstrap_servers: str) -> None:
    async with Producer(bootstrap_servers=bootstrap_servers) as producer:
        for number in range(ORDERS):
            await producer.send_and_wait("orders", b"%d" % (100 + number), key=b"order-%d" % number)
            await asyncio.sleep(0.5)


async def check(cluster: SimulatedCluster, application) -> None:
    await cluster.create_topic("orders", partitions=2)
    provider = Provider()
    charge: Charge = provider.charge
    for name in ("charging-a", "charging-b"):
        cluster.application(
            name, lambda: application(cluster.bootstrap_servers, charge), restart_on=(ClientError,)
        )
    await cluster.run(send_orders(cluster.bootstrap_servers))
    await cluster.until(lambda: len(provider.charged) == ORDERS, timeout_s=60)
    assert provider.charged == {f"order-{number}": 100 + number for number in range(ORDERS)}


@simulated(seeds=range(200), faults=FAULTS)
async def test_each_order_is_charged(cluster: SimulatedCluster) -> None:
    await check(cluster, charge_orders)


@simulated(seeds=range(200), faults=FAULTS)
async def test_each_order_is_charged_carelessly(cluster: SimulatedCluster) -> None:
    await check(cluster, charge_orders_carelessly)

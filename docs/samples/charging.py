"""An application that charges orders: one call of a payment provider for each record of the topic `orders`.

`charge_orders` commits an order's offset after its payment. `charge_orders_carelessly` commits it before, and
loses the payment if it is killed between the two. test_charging.py shows both in a simulated cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ottla.client import Consumer

Charge = Callable[[str, int], Awaitable[None]]
"""Charges an order (id, amount). A repeated call with the same id charges nothing."""


def orders(bootstrap_servers: str) -> Consumer:
    return Consumer(
        bootstrap_servers=bootstrap_servers,
        group_id="charging",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=6_000,
    )


async def charge_orders(bootstrap_servers: str, charge: Charge) -> None:
    async with orders(bootstrap_servers) as consumer:
        consumer.subscribe(["orders"])
        async for record in consumer:
            await charge(record.key.decode(), int(record.value))
            await consumer.commit()


async def charge_orders_carelessly(bootstrap_servers: str, charge: Charge) -> None:
    async with orders(bootstrap_servers) as consumer:
        consumer.subscribe(["orders"])
        async for record in consumer:
            await consumer.commit()
            await charge(record.key.decode(), int(record.value))

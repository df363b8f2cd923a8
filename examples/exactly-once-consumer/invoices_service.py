"""Makes an invoice of each order, exactly once: the invoices of a batch and its offsets are one transaction.

    OTTLA_BOOTSTRAP=127.0.0.1:9092 INSTANCE=0 python invoices_service.py

Each instance has a name that it keeps when it starts again (on Kubernetes: the name of a StatefulSet's pod).
It ends in order on SIGTERM; it can be killed at any point.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal

from ottla.client import Consumer, Producer
from ottla.client.errors import AuthorizationError, ClientError, ProducerFencedError

ORDERS, INVOICES = "orders", "invoices"
PAUSE_S = 1.0
log = logging.getLogger("invoices")


def invoice_of(order: bytes) -> bytes:
    amount = json.loads(order)["amount"]
    return json.dumps({"amount": amount, "tax": amount * 0.25}).encode()


async def make_invoices(bootstrap_servers: str, instance: str) -> None:
    """Runs until it is cancelled. An error aborts the open transaction: start again."""
    async with (
        Consumer(
            bootstrap_servers=bootstrap_servers,
            group_id="invoices",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=6_000,
        ) as consumer,
        Producer(bootstrap_servers=bootstrap_servers, transactional_id=f"invoices-{instance}") as producer,
    ):
        consumer.subscribe([ORDERS])
        while True:
            batch = await consumer.poll(timeout_s=1, max_records=100)
            if not batch:
                continue
            async with producer.transaction():
                for orders in batch.values():
                    for order in orders:
                        await producer.send(INVOICES, invoice_of(order.value), key=order.key)
                offsets = {partition: orders[-1].offset + 1 for partition, orders in batch.items()}
                await producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            log.info("%d invoices", sum(map(len, batch.values())))


async def run(bootstrap_servers: str, instance: str) -> None:
    """Starts again after errors that pass. Raises those that do not: another instance has this name, or an
    ACL forbids it."""
    while True:
        try:
            await make_invoices(bootstrap_servers, instance)
        except (ProducerFencedError, AuthorizationError):
            raise
        except ClientError as error:
            log.warning("starting again in %g s: %s", PAUSE_S, error)
            await asyncio.sleep(PAUSE_S)


async def main() -> None:
    service = asyncio.ensure_future(
        run(os.environ.get("OTTLA_BOOTSTRAP", "127.0.0.1:9092"), os.environ.get("INSTANCE", "0"))
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, service.cancel)
    try:
        await service
    except asyncio.CancelledError:
        log.info("stopped")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(main())

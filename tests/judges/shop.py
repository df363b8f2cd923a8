"""A cluster of a shop under way: topics, schemas, groups, users with ACLs, and clients that keep it busy.

with shop(directory) as running:    # three brokers in three racks, a registry, and traffic
    running.bootstrap, running.registry

The screenshots of the documentation show it. Orders of the last six hours are in it from the start.
"""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ottla.client.blocking import AdminClient, Consumer, Producer
from ottla.local.cluster import LocalCluster
from ottla.security.acls import (
    AclBinding,
    Entry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from tests.judges.registries import Registry

RACKS: Final = ("eu-1a", "eu-1b", "eu-1c")
SETTINGS: Final = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
    "group.initial.rebalance.delay.ms": "500",
}
TOPICS: Final = {
    "orders": (6, {"retention.ms": "604800000", "min.insync.replicas": "2"}),
    "payments": (3, {"min.insync.replicas": "2"}),
    "shipments": (6, {}),
    "customers": (3, {"cleanup.policy": "compact"}),
    "prices": (3, {"cleanup.policy": "compact"}),
    "clicks": (6, {"retention.ms": "86400000"}),
    "returns": (3, {}),
    "fraud-alerts": (1, {}),
}
RATES: Final = {
    "orders": 25.0,
    "payments": 18.0,
    "shipments": 9.0,
    "clicks": 70.0,
    "prices": 4.0,
    "returns": 1.0,
}
"""Records per second at midday of a shop's day, which is two minutes long here."""
HOURS: Final = 6
ORDERS: Final = 4_000
"""Of these hours."""
_CITIES: Final = ("Gent", "Porto", "Graz", "Aarhus", "Torino", "Lyon", "Brno", "Malmö")
_ITEMS: Final = ("kettle", "lamp", "rug", "mug", "chair", "shelf", "clock", "basket")
_ORDER: Final = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "customer", "type": "long"},
        {"name": "total", "type": "double"},
        {"name": "currency", "type": "string"},
    ],
}
_CHANGED: Final = {
    **_ORDER,
    "fields": [*_ORDER["fields"], {"name": "city", "type": ["null", "string"], "default": None}],
}


@dataclass(frozen=True, slots=True)
class Shop:
    """The running cluster."""

    cluster: LocalCluster
    registry: str
    """The URL of its schema registry."""

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap


def order(number: int, choose: random.Random) -> tuple[str, dict[str, Any]]:
    """Key and value of an order."""
    items: list[dict[str, Any]] = [
        {"sku": choose.choice(_ITEMS), "qty": choose.randint(1, 3), "price": choose.randint(300, 9900) / 100}
        for _ in range(choose.randint(1, 3))
    ]
    key = f"order-{number}"
    return key, {
        "id": key,
        "customer": {"id": 1000 + choose.randrange(400), "city": choose.choice(_CITIES)},
        "items": items,
        "total": round(sum(each["qty"] * each["price"] for each in items), 2),
        "currency": "EUR",
        "status": choose.choice(("new", "new", "paid", "packed")),
    }


@contextmanager
def shop(directory: Path) -> Iterator[Shop]:
    """All of it; ends with its threads and processes."""
    with ExitStack() as stack:
        cluster = stack.enter_context(
            LocalCluster(directory, brokers=1, settings={**SETTINGS, "broker.rack": RACKS[0]})
        )
        for broker, rack in enumerate(RACKS[1:], 1):
            cluster.add_broker(broker, {"broker.rack": rack})
        cluster.wait_until(lambda: len(cluster.describe().brokers) == len(RACKS), "all brokers to register")
        _prepare(cluster.bootstrap)
        registry = stack.enter_context(Registry(cluster.bootstrap, directory))
        for schema in (_ORDER, _CHANGED):
            status, answer = registry.ask(
                "POST", "/subjects/orders-value/versions", {"schema": json.dumps(schema)}
            )
            assert status == 200, answer
        stack.enter_context(_traffic(cluster.bootstrap))
        yield Shop(cluster, registry.url)


def _prepare(bootstrap: str) -> None:
    """Topics, users, ACLs, the orders of the last hours, and a group that stopped an hour ago."""
    with AdminClient(bootstrap_servers=bootstrap) as admin:
        for name, (partitions, config) in TOPICS.items():
            admin.create_topic(name, partitions=partitions, replication_factor=3, config=config)
        for user in ("webshop", "billing", "warehouse", "analytics"):
            admin.set_scram_credential(user, "SCRAM-SHA-512", f"{user}'s word", iterations=4096)
        admin.create_acls(list(_acls())).raise_first()
        _backfill(bootstrap)
        hour_ms = int(time.time() * 1000) - 3_600_000
        then = admin.offsets_for_time([("orders", each) for each in range(6)], hour_ms)
        admin.alter_group_offsets("fraud-scoring", then).raise_first()


def _acls() -> Iterator[AclBinding]:
    def rule(
        user: str, operation: Operation, topic: str, pattern: PatternType = PatternType.LITERAL
    ) -> AclBinding:
        entry = Entry(f"User:{user}", "*", operation, Permission.ALLOW)
        return AclBinding(ResourcePattern(ResourceType.TOPIC, topic, pattern), entry)

    yield rule("webshop", Operation.WRITE, "orders")
    yield rule("webshop", Operation.WRITE, "clicks")
    yield rule("billing", Operation.READ, "orders")
    yield rule("billing", Operation.WRITE, "payments")
    yield rule("warehouse", Operation.READ, "orders")
    yield rule("warehouse", Operation.WRITE, "ship", PatternType.PREFIXED)
    yield rule("analytics", Operation.READ, "*")


def _backfill(bootstrap: str) -> None:
    choose = random.Random(7)
    now_ms = int(time.time() * 1000)
    with Producer(bootstrap_servers=bootstrap, linger_ms=20) as producer:
        for number in range(ORDERS):
            key, value = order(10_000 + number, choose)
            at_ms = now_ms - HOURS * 3_600_000 * (ORDERS - number) // ORDERS
            headers = [
                ("source", choose.choice((b"web", b"app"))),
                ("trace", b"%016x" % choose.getrandbits(64)),
            ]
            producer.send_nowait(
                "orders", json.dumps(value).encode(), key.encode(), timestamp_ms=at_ms, headers=headers
            )
        producer.flush()


@contextmanager
def _traffic(bootstrap: str) -> Iterator[None]:
    """Producers and consumers in threads."""
    stop = threading.Event()
    work: list[Callable[[], None]] = [
        lambda: _produce(bootstrap, stop),
        lambda: _hang(bootstrap, stop),
        *(
            lambda each=each: _consume(bootstrap, "billing", ("orders",), f"billing-{each}", stop)
            for each in (1, 2)
        ),
        lambda: _consume(bootstrap, "shipping", ("orders", "payments"), "shipping-1", stop),
        lambda: _consume(bootstrap, "recommendations", ("clicks",), "recommendations-1", stop, most=40),
    ]
    threads = [threading.Thread(target=each) for each in work]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        stop.set()
        for each in threads:
            each.join()


def _produce(bootstrap: str, stop: threading.Event) -> None:
    """Records of all topics, more at midday than at night."""
    choose = random.Random(11)
    number = 10_000 + ORDERS
    owed = dict.fromkeys(RATES, 0.0)
    with Producer(bootstrap_servers=bootstrap, linger_ms=20, client_id="webshop") as producer:
        while not stop.wait(0.25):
            day = 0.6 + 0.4 * math.sin(time.monotonic() / 120 * 2 * math.pi)
            for topic, rate in RATES.items():
                owed[topic] += 0.25 * rate * day * choose.uniform(0.7, 1.3)
                while owed[topic] >= 1:
                    owed[topic] -= 1
                    key, value = order(number, choose)
                    number += topic == "orders"
                    producer.send_nowait(topic, json.dumps(value).encode(), key.encode())


def _hang(bootstrap: str, stop: threading.Event) -> None:
    """A transaction that is never committed: consumers of read_committed wait for it."""
    settings = {
        "bootstrap.servers": bootstrap,
        "transactional.id": "payments-ledger-2",
        "transaction.timeout.ms": "900000",
    }
    with Producer(settings) as producer:
        producer.begin_transaction()
        producer.send("payments", b'{"id": "payment-77", "amount": 12.5}', b"payment-77", partition=1).result(
            60
        )
        stop.wait()
        producer.abort_transaction()


def _consume(
    bootstrap: str, group: str, topics: tuple[str, ...], client: str, stop: threading.Event, most: int = 500
) -> None:
    """A member of a group; `most` records per second."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "client.id": client,
        "auto.offset.reset": "latest" if most < 100 else "earliest",
        "enable.auto.commit": "false",
    }
    with Consumer(settings) as consumer:
        consumer.subscribe(topics)
        while not stop.wait(1.0):
            if consumer.poll(0.5, most):
                consumer.commit()

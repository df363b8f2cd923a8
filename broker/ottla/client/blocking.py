"""The clients for code without an event loop: the same names, over one loop in a thread of its own.

with Producer(bootstrap_servers="127.0.0.1:9092") as producer:
    print(producer.send("orders", b"one").result())
with Consumer(bootstrap_servers="127.0.0.1:9092", group_id="billing") as consumer:
    consumer.subscribe(["orders"])
    for record in consumer:
        print(record.value)
with AdminClient(bootstrap_servers="127.0.0.1:9092") as admin:
    print(admin.list_topics())
"""

from __future__ import annotations

from ottla.client.blocking_admin import AdminClient
from ottla.client.blocking_consumer import Consumer
from ottla.client.blocking_producer import Producer

__all__ = ["AdminClient", "Consumer", "Producer"]

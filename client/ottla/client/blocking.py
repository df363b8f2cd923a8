"""The clients for code without an event loop. Each runs an asynchronous client in a thread of its own.

with Producer(bootstrap_servers="127.0.0.1:9092") as producer:
    print(producer.send("orders", b"one").result())
with Consumer(bootstrap_servers="127.0.0.1:9092", group_id="billing") as consumer:
    consumer.subscribe(["orders"])
    for record in consumer:
        print(record.value)
with AdminClient(bootstrap_servers="127.0.0.1:9092") as admin:
    print(admin.list_topics())
with RequestClient(bootstrap_servers="127.0.0.1:9092") as client:
    print(client.request(messages.ListGroupsRequest(), client.controller))
"""

from __future__ import annotations

from ottla.client.blocking_admin import AdminClient
from ottla.client.blocking_consumer import Consumer
from ottla.client.blocking_producer import Producer
from ottla.client.blocking_request_client import RequestClient

__all__ = ["AdminClient", "Consumer", "Producer", "RequestClient"]

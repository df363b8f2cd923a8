"""The client of Ottla and of Apache Kafka: `from ottla.client import Producer, Consumer, AdminClient`.

`RequestClient` sends single requests of the protocol. The classes are for asyncio; `ottla.client.blocking`
has the same four for code without an event loop. Names are imported on first use, because brokers import
modules of this package that do not need them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ottla.client.admin import AdminClient
    from ottla.client.consumer import Consumer
    from ottla.client.core.assignment import Assignment, Assignor, Subscription
    from ottla.client.core.types import ConsumerRecord, ProducerRecord, RecordMetadata, TopicPartition
    from ottla.client.producer import Producer
    from ottla.client.request_client import RequestClient

_MODULES: Final = {
    "AdminClient": "admin",
    "Assignment": "core.assignment",
    "Assignor": "core.assignment",
    "Consumer": "consumer",
    "ConsumerRecord": "core.types",
    "Producer": "producer",
    "ProducerRecord": "core.types",
    "RecordMetadata": "core.types",
    "RequestClient": "request_client",
    "Subscription": "core.assignment",
    "TopicPartition": "core.types",
}

__all__ = [
    "AdminClient",
    "Assignment",
    "Assignor",
    "Consumer",
    "ConsumerRecord",
    "Producer",
    "ProducerRecord",
    "RecordMetadata",
    "RequestClient",
    "Subscription",
    "TopicPartition",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found

"""A broker for tests of Kafka applications, with fault injection.

    from ottla.testing import DevBroker

    with DevBroker() as broker:
        broker.create_topic("orders", partitions=3)
        broker.fail("PRODUCE", "NOT_LEADER_OR_FOLLOWER", times=2)
        ...  # the application produces to broker.bootstrap
        records = broker.wait_for_records("orders", 10)

`ottla.pytest` has fixtures. All methods block and need no event loop: asynchronous tests call them by
`asyncio.to_thread`.

    broker      DevBroker: the process, its topics and records
    faults      faults, over the control socket
    connection  requests over a blocking socket
"""

from __future__ import annotations

from ottla.client.core.types import ConsumerRecord
from ottla.testing.broker import DevBroker, Fault, RecordsMissing

__all__ = ["ConsumerRecord", "DevBroker", "Fault", "RecordsMissing"]

"""A real broker for the tests of other people's code, that fails when it is told to.

    from ottla.testing import DevBroker

    with DevBroker() as broker:
        broker.create_topic("orders", partitions=3)
        broker.fail("PRODUCE", "NOT_LEADER_OR_FOLLOWER", times=2)
        ...  # what is tested produces to broker.bootstrap
        records = broker.wait_for_records("orders", 10)

`ottla.pytest` has it as fixtures. All of it blocks, and needs no event loop: asynchronous tests call it by
`asyncio.to_thread`.

    broker    the process: its life, its topics and records
    faults    what goes wrong, ordered over the control socket
    wire      one request after the other, over a blocking socket
"""

from __future__ import annotations

from ottla.client.core.types import ConsumerRecord
from ottla.testing.broker import DevBroker, RecordsMissing
from ottla.testing.faults import Fault

__all__ = ["ConsumerRecord", "DevBroker", "Fault", "RecordsMissing"]

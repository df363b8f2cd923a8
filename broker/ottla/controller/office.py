"""What the entry points' code needs of the controller, without needing the controller.

Implemented by `controller.Controller`, used by `topic_requests` and `partition_requests`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from ottla.controller.term import Term
from ottla.metadata.config import BrokerConfig
from ottla.metadata.policies import Policy

T = TypeVar("T")


class NotController(Exception):
    """This broker is not the controller, or ceased to be while it worked."""


class Office(Protocol):
    broker_id: int
    config: BrokerConfig
    create_topic_policy: Policy | None
    random_below: Callable[[int], int]

    async def in_office(self, work: Callable[[Term], Awaitable[T]]) -> T: ...

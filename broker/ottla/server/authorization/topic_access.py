"""What the Produce and Fetch handlers ask, topic by topic: each topic once in a request.

Made by `ottla.server.assembly.request_processing` for these two handlers where there is an authorizer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ottla.security.acls import Operation, ResourceType
from ottla.security.authorizer import AclAuthorizer
from ottla.server.authorization.access import Access
from ottla.server.dispatch.dispatcher import Request

MayTouch: TypeAlias = Callable[[str | None], bool]
"""Of a topic's name; None for a topic id that nobody knows."""


class TopicAccess:
    def __init__(self, authorizer: AclAuthorizer) -> None:
        self._authorizer = authorizer

    def writable(self, request: Request) -> MayTouch:
        return self._once(request, Operation.WRITE)

    def readable(self, request: Request, *, follower: bool) -> MayTouch:
        """A consumer needs READ on each topic, a follower CLUSTER_ACTION for all of them."""
        if not follower:
            return self._once(request, Operation.READ)
        allowed = Access(self._authorizer, request).allows_cluster(Operation.CLUSTER_ACTION)
        return lambda topic: allowed

    def _once(self, request: Request, operation: Operation) -> MayTouch:
        access = Access(self._authorizer, request)
        verdicts: dict[str | None, bool] = {None: True}

        def may_touch(topic: str | None) -> bool:
            verdict = verdicts.get(topic)
            if verdict is None:
                assert topic is not None
                verdict = verdicts[topic] = access.allows(operation, ResourceType.TOPIC, topic)
            return verdict

        return may_touch

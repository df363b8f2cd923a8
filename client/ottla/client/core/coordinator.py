"""The coordinator of a group: finds its node.

A request manager; `membership` and `offsets` look up the node, and report it as lost if it proves wrong.
Invariant: at most one FindCoordinator request is in flight, and failures are followed by backoff.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any, Final

from ottla.client import errors
from ottla.client.core.backoff import Uniform
from ottla.client.core.cluster import GROUP, Cluster
from ottla.client.core.consumer_config import ConsumerConfig
from ottla.client.core.types import ANY_NODE, Node, UnsentRequest
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode

CHANNEL: Final = "control"
"""The channel of requests that must not wait behind a fetch."""


class Coordinator:
    """Kafka's CoordinatorRequestManager."""

    def __init__(self, config: ConsumerConfig, cluster: Cluster, uniform: Uniform) -> None:
        self._config = config
        self._group = config.group_id or ""
        self._cluster = cluster
        self._uniform = uniform
        self._wanted = False
        self._in_flight = False
        self._failures = 0
        self._not_before = -math.inf
        self.found_at = -math.inf
        self.fatal: Exception | None = None
        """A fatal error of FindCoordinator. Whoever raises it sets it to None."""

    @property
    def is_known(self) -> bool:
        """Whether `node` returns an id; does not make `poll` look for it."""
        return self._cluster.coordinator(GROUP, self._group) in self._cluster.nodes

    def node(self) -> int | None:
        """The node id; None if it is unknown, which makes `poll` look for it."""
        if not self.is_known:
            self._wanted = True
            return None
        return self._cluster.coordinator(GROUP, self._group)

    def lost(self, node_id: int | None, now: float) -> None:
        """The node is not the coordinator any more, or did not respond."""
        if node_id is None or self._cluster.coordinator(GROUP, self._group) == node_id:
            self._cluster.forget_coordinator(GROUP, self._group)
            self._not_before = max(self._not_before, now + self._config.retry_pause_s(0, self._uniform))

    def poll(self, now: float) -> list[UnsentRequest]:
        if not self._wanted or self._in_flight or now < self._not_before:
            return []
        if self.is_known:
            self._wanted = False
            return []
        self._in_flight = True
        request = m.FindCoordinatorRequest(key=self._group, key_type=GROUP)
        timeout_s = self._config.request_timeout_ms / 1000
        # Versions up to 3 have a single key.
        return [UnsentRequest(ANY_NODE, request, "find", timeout_s, version_max=3, keeps=True)]

    def next_time(self, now: float) -> float:
        return self._not_before if self._wanted and not self._in_flight else math.inf

    def on_response(self, tag: Hashable, response: Any, now: float) -> None:
        self._in_flight = False
        code = ErrorCode.NONE
        if not isinstance(response, BaseException):
            code = ErrorCode.of(response.error_code)
            if code is ErrorCode.NONE:
                self._wanted = False
                self._failures = 0
                self.found_at = now
                node = Node(response.node_id, response.host, response.port)
                self._cluster.take_coordinator(GROUP, self._group, node)
                return
        if code is not ErrorCode.NONE and not code.retriable:
            self._wanted = False
            self.fatal = errors.for_code(code, f"finding the coordinator of group {self._group}")
        self._not_before = now + self._config.retry_pause_s(self._failures, self._uniform)
        self._failures += 1

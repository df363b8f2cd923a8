"""Where a group's coordinator is.

Polled by the network loop with the other cores; `membership` and `offsets` ask it for the node, and tell it
when that has proved wrong. Invariant: one FindCoordinator is on its way at most, and failures are spaced out.
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
"""Requests that must not wait behind a fetch."""


class Coordinator:
    def __init__(self, config: ConsumerConfig, cluster: Cluster, uniform: Uniform) -> None:
        self._config = config
        self._group = config.group_id or ""
        self._cluster = cluster
        self._uniform = uniform
        self._wanted = False
        self._asked = False
        self._failures = 0
        self._not_before = -math.inf
        self.found_at = -math.inf
        self.fatal: Exception | None = None
        """Why it cannot be found, ever. Whoever raises it, takes it away."""

    def node(self) -> int | None:
        """Its id, or None: it is looked for then."""
        node_id = self._cluster.coordinator(GROUP, self._group)
        if node_id is None or node_id not in self._cluster.nodes:
            self._wanted = True
            return None
        return node_id

    def lost(self, node_id: int | None, now: float) -> None:
        """The node that was asked is not the coordinator any more, or did not answer."""
        if node_id is None or self._cluster.coordinator(GROUP, self._group) == node_id:
            self._cluster.forget_coordinator(GROUP, self._group)
            self._not_before = max(self._not_before, now + self._config.retry_pause_s(0, self._uniform))

    def poll(self, now: float) -> list[UnsentRequest]:
        if not self._wanted or self._asked or now < self._not_before or self.node() is not None:
            return []
        self._asked = True
        request = m.FindCoordinatorRequest(key=self._group, key_type=GROUP)
        timeout_s = self._config.request_timeout_ms / 1000
        # Versions up to 3 ask for one.
        return [UnsentRequest(ANY_NODE, request, "find", timeout_s, version_max=3, keeps=True)]

    def next_time(self, now: float) -> float:
        return self._not_before if self._wanted and not self._asked else math.inf

    def on_response(self, tag: Hashable, response: Any, now: float) -> None:
        self._asked = False
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
            self.fatal = errors.for_code(code, f"looking for the coordinator of group {self._group}")
        self._not_before = now + self._config.retry_pause_s(self._failures, self._uniform)
        self._failures += 1

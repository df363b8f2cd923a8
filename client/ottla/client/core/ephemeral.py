"""A group that stores no offsets and is deleted with its last member (group.ephemeral).

A request manager, polled after `membership`; `Consumer` calls `delete` when it leaves such a group. Each
member that leaves requests the deletion: the coordinator rejects it while there are other members, so that
the last one deletes the group. If the last member dies, the coordinator removes the empty group. Invariant: a
group with committed offsets is not deleted, because another consumer continues from them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable
from enum import Enum
from typing import Any, Final

from ottla.client.core.backoff import Uniform, backoff_s
from ottla.client.core.consumer_config import ConsumerConfig
from ottla.client.core.coordinator import CHANNEL, Coordinator
from ottla.client.core.types import UnsentRequest
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode

log = logging.getLogger(__name__)

_MOVED: Final = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
_DONE: Final = frozenset({ErrorCode.NONE, ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND})


class _Step(Enum):
    NOTHING = "nothing to do"
    CHECK = "check for committed offsets"
    DELETE = "delete the group"


class EphemeralGroup:
    """Deletes the group after its last member has left."""

    def __init__(
        self,
        config: ConsumerConfig,
        coordinator: Coordinator,
        is_leaving: Callable[[], bool],
        uniform: Uniform,
    ) -> None:
        """`is_leaving`: whether the response to LeaveGroup is pending."""
        self._config = config
        self._group = config.group_id or ""
        self._coordinator = coordinator
        self._is_leaving = is_leaving
        self._uniform = uniform
        self._step = _Step.NOTHING
        self._in_flight_node: int | None = None
        """The node of the request in flight."""
        self._failures = 0
        self._not_before = -math.inf

    def delete(self) -> None:
        """Delete the group if this member was the last one."""
        self._step = _Step.CHECK

    @property
    def deleting(self) -> bool:
        return self._step is not _Step.NOTHING

    def poll(self, now: float) -> list[UnsentRequest]:
        if self._step is _Step.NOTHING or self._in_flight_node is not None or now < self._not_before:
            return []
        if self._is_leaving():
            return []
        node_id = self._coordinator.node()
        if node_id is None:
            return []
        self._in_flight_node = node_id
        timeout_s = self._config.request_timeout_ms / 1000
        if self._step is _Step.CHECK:
            check = m.OffsetFetchRequest(group_id=self._group, topics=None)
            # Version 7 is the last with a single group.
            return [UnsentRequest(node_id, check, "", timeout_s, version_max=7, channel=CHANNEL, keeps=True)]
        delete = m.DeleteGroupsRequest(groups_names=[self._group])
        return [UnsentRequest(node_id, delete, "", timeout_s, channel=CHANNEL, keeps=True)]

    def next_time(self, now: float) -> float:
        # What is due and was not sent waits for the coordinator or for the response to LeaveGroup.
        waits = self.deleting and self._in_flight_node is None and self._not_before > now
        return self._not_before if waits else math.inf

    def on_response(self, tag: Hashable, response: Any, now: float) -> None:
        node_id, self._in_flight_node = self._in_flight_node, None
        if isinstance(response, BaseException):
            self._coordinator.lost(node_id, now)
            self._again(now)
            return
        checked = self._step is _Step.CHECK
        code = ErrorCode.of(response.error_code if checked else response.results[0].error_code)
        if code in _MOVED:
            self._coordinator.lost(node_id, now)
        if code.retriable:
            self._again(now)
        elif code not in _DONE:
            log.warning("group %s: cannot be deleted: %s", self._group, code.name)
            self._step = _Step.NOTHING
        elif checked and any(p.committed_offset >= 0 for t in response.topics for p in t.partitions):
            log.warning("group %s: not deleted, because it has committed offsets", self._group)
            self._step = _Step.NOTHING
        else:
            self._step = _Step.DELETE if checked else _Step.NOTHING

    def _again(self, now: float) -> None:
        config = self._config
        self._not_before = now + backoff_s(
            self._failures, config.retry_backoff_ms, config.retry_backoff_max_ms, self._uniform
        )
        self._failures += 1

"""A group that stores no offsets, and is gone with its last member (group.ephemeral).

Polled by the network loop behind `membership`; `Consumer` calls `vanish` when it leaves such a group. Whoever
leaves has the group deleted: the coordinator refuses that as long as others are members, so that the last one
does it. A member that dies leaves a group without offsets behind, which the coordinator cleans up by itself.
Invariant: a group that has offsets stored, by whomever, is left alone: somebody else reads on from them.
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
_FINE: Final = frozenset({ErrorCode.NONE, ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND})


class _Step(Enum):
    NOTHING = "nothing to do"
    LOOK = "whether offsets are stored"
    DELETE = "delete the group"


class EphemeralGroup:
    def __init__(
        self,
        config: ConsumerConfig,
        coordinator: Coordinator,
        is_leaving: Callable[[], bool],
        uniform: Uniform,
    ) -> None:
        """`is_leaving`: whether the coordinator has yet to say that this member is out."""
        self._config = config
        self._group = config.group_id or ""
        self._coordinator = coordinator
        self._is_leaving = is_leaving
        self._uniform = uniform
        self._step = _Step.NOTHING
        self._asked: int | None = None
        """The node whose answer is awaited."""
        self._failures = 0
        self._not_before = -math.inf

    def vanish(self) -> None:
        """This member goes, and the group with it, if it was the last one."""
        self._step = _Step.LOOK

    @property
    def vanishing(self) -> bool:
        return self._step is not _Step.NOTHING

    def poll(self, now: float) -> list[UnsentRequest]:
        if self._step is _Step.NOTHING or self._asked is not None or now < self._not_before:
            return []
        if self._is_leaving():
            return []
        node_id = self._coordinator.node()
        if node_id is None:
            return []
        self._asked = node_id
        timeout_s = self._config.request_timeout_ms / 1000
        if self._step is _Step.LOOK:
            look = m.OffsetFetchRequest(group_id=self._group, topics=None)
            # One group a request: version 7 is the last to say so.
            return [UnsentRequest(node_id, look, "", timeout_s, version_max=7, channel=CHANNEL, keeps=True)]
        delete = m.DeleteGroupsRequest(groups_names=[self._group])
        return [UnsentRequest(node_id, delete, "", timeout_s, channel=CHANNEL, keeps=True)]

    def next_time(self, now: float) -> float:
        return self._not_before if self.vanishing and self._asked is None else math.inf

    def on_response(self, tag: Hashable, response: Any, now: float) -> None:
        node_id, self._asked = self._asked, None
        if isinstance(response, BaseException):
            self._coordinator.lost(node_id, now)
            self._again(now)
            return
        looked = self._step is _Step.LOOK
        code = ErrorCode.of(response.error_code if looked else response.results[0].error_code)
        if code in _MOVED:
            self._coordinator.lost(node_id, now)
        if code.retriable:
            self._again(now)
        elif code not in _FINE:
            log.warning("group %s: it cannot be deleted, and stays for a while: %s", self._group, code.name)
            self._step = _Step.NOTHING
        elif looked and any(p.committed_offset >= 0 for t in response.topics for p in t.partitions):
            log.warning("group %s: it has offsets that others have stored, and stays", self._group)
            self._step = _Step.NOTHING
        else:
            self._step = _Step.DELETE if looked else _Step.NOTHING

    def _again(self, now: float) -> None:
        config = self._config
        self._not_before = now + backoff_s(
            self._failures, config.retry_backoff_ms, config.retry_backoff_max_ms, self._uniform
        )
        self._failures += 1

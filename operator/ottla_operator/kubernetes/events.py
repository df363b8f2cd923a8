"""Kubernetes Events about the operator's actions, which `kubectl describe` shows.

Called by the reconciler and the store, through the `Recorder` interface. Recording never blocks and never
fails; an Event equal to a recent one of the same resource is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from ottla_operator.conditions import iso_time
from ottla_operator.kubernetes.api import Api, ApiError
from ottla_operator.kubernetes.naming import MANAGER
from ottla_operator.platform.interfaces import InvolvedObject

log = logging.getLogger(__name__)

_DEDUPLICATION_MS: Final = 600_000
_RECENT_MAX: Final = 2_000
_MESSAGE_MAX: Final = 1_000
_QUEUE_MAX: Final = 500


class EventRecorder:
    """Writes Events in the background. When the queue is full it drops them, with a line in the log."""

    def __init__(self, api: Api, clock_ms: Callable[[], int]) -> None:
        self._api = api
        self._clock_ms = clock_ms
        self._recorded_at: OrderedDict[tuple[str, str, str], int] = OrderedDict()
        self._queue: asyncio.Queue[dict[str, object]] = asyncio.Queue(_QUEUE_MAX)

    def record(self, resource: InvolvedObject, reason: str, message: str, *, warning: bool = False) -> None:
        now_ms = self._clock_ms()
        key = (resource.metadata.uid, reason, message)
        recorded_ms = self._recorded_at.get(key)
        if recorded_ms is not None and now_ms - recorded_ms < _DEDUPLICATION_MS:
            return
        log.log(logging.WARNING if warning else logging.INFO, "%s: %s: %s", _name(resource), reason, message)
        self._recorded_at[key] = now_ms
        self._recorded_at.move_to_end(key)
        while len(self._recorded_at) > _RECENT_MAX:
            self._recorded_at.popitem(last=False)
        try:
            self._queue.put_nowait(_event(resource, reason, message, warning, now_ms))
        except asyncio.QueueFull:
            log.debug("the queue of Events is full: an Event is dropped")

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            event = await self._queue.get()
            try:
                await self._api.create(event)
            except ApiError as error:
                # A namespace that is being deleted accepts none.
                log.debug("writing an Event failed: %s", error)


def _name(resource: InvolvedObject) -> str:
    return f"{resource.metadata.namespace}/{resource.key}"


def _event(
    resource: InvolvedObject, reason: str, message: str, warning: bool, now_ms: int
) -> dict[str, object]:
    metadata, now = resource.metadata, iso_time(now_ms)
    if len(message) > _MESSAGE_MAX:
        message = message[:_MESSAGE_MAX] + "…"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{metadata.name}-", "namespace": metadata.namespace},
        "involvedObject": {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "name": metadata.name,
            "namespace": metadata.namespace,
            "uid": metadata.uid,
        },
        "reason": reason,
        "message": message,
        "type": "Warning" if warning else "Normal",
        "source": {"component": MANAGER},
        "reportingComponent": MANAGER,
        "reportingInstance": MANAGER,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }

"""The network loop: polls the request managers, sends their requests, and passes responses back; sleeps until
the next time.

Called by `Producer`, `Consumer` and `RequestClient`, one each. It also keeps the metadata of the cluster
fresh. No request has a task of its own; one timer wakes the loop. Invariant: a request manager is never
called from within itself: responses and `wake` take effect in later turns of the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from ottla.client.core.cluster import Cluster
from ottla.client.core.types import ANY_NODE, RequestManager, UnsentRequest
from ottla.client.network import Network
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages import MetadataRequest
from ottla.wire.connection import resolve

log = logging.getLogger(__name__)


class NetworkLoop:
    """Use: `start`; `wake` whenever a request manager may have something to send; `stop`."""

    def __init__(self, cluster: Cluster, network: Network, *, request_timeout_s: float) -> None:
        self._cluster = cluster
        self._network = network
        self._request_timeout_s = request_timeout_s
        self._loop = asyncio.get_running_loop()
        self._managers: Sequence[RequestManager] = ()
        self._timer: asyncio.TimerHandle | None = None
        self._woken: asyncio.Handle | None = None
        self._running = False
        self._metadata_changed = False
        self._metadata_waiters: list[asyncio.Future[None]] = []
        self.turned_at = -math.inf
        """When the request managers were last polled."""

    def start(self, managers: Sequence[RequestManager]) -> None:
        self._managers = managers
        self._running = True
        self.wake()

    def stop(self) -> None:
        """Stop; no request manager is called after this."""
        self._running = False
        for handle in (self._timer, self._woken):
            if handle is not None:
                handle.cancel()
        self._timer = self._woken = None
        self._notify_metadata_waiters()

    def wake(self) -> None:
        """Poll all request managers in the next turn of the event loop."""
        if self._woken is None and self._running:
            self._woken = self._loop.call_soon(self._turn)

    async def metadata(self, timeout_s: float) -> None:
        """Return after the next response or failure of a Metadata request. Raises TimeoutError."""
        seen: asyncio.Future[None] = self._loop.create_future()
        self._metadata_waiters.append(seen)
        self.wake()
        async with asyncio.timeout(timeout_s):
            await seen

    def _turn(self) -> None:
        self._woken = None
        self.turned_at = now = self._loop.time()
        self._request_metadata(now)
        for manager in self._managers:
            for unsent in manager.poll(now):
                self._network.send(unsent, partial(self._on_response, manager, unsent.tag))
        if self._metadata_changed:
            # After the request managers have processed it; a waiter would have to wait again otherwise.
            self._metadata_changed = False
            self._notify_metadata_waiters()
        self._sleep(now)

    def _sleep(self, now: float) -> None:
        at = max(self._cluster.next_time(now), self._network.any_time(now))
        for manager in self._managers:
            at = min(at, manager.next_time(now))
        timer = self._timer
        if timer is not None:
            if timer.when() == at:
                return
            timer.cancel()
            self._timer = None
        if at < math.inf and self._woken is None and self._running:
            self._timer = self._loop.call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.wake()

    def _on_response(self, manager: RequestManager, tag: Any, response: Any) -> None:
        if self._running:
            manager.on_response(tag, response, self._loop.time())
            self.wake()

    def _request_metadata(self, now: float) -> None:
        if now < self._network.any_time(now):
            return
        request = self._cluster.request(now)
        if request is not None:
            unsent = UnsentRequest(ANY_NODE, request, MetadataRequest, self._request_timeout_s, keeps=True)
            self._network.send(unsent, self._on_metadata)

    def _on_metadata(self, response: Any) -> None:
        now = self._loop.time()
        if isinstance(response, BaseException):
            log.info("metadata request failed: %s", response)
            self._cluster.failed(now, response if isinstance(response, KafkaError) else None)
        else:
            self._cluster.take(response, now)
        self._metadata_changed = True
        self.wake()

    def _notify_metadata_waiters(self) -> None:
        seen, self._metadata_waiters = self._metadata_waiters, []
        for future in seen:
            resolve(future)

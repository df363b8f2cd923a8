"""Drives the cores: polls them, sends what they give, hands them the answers, sleeps until the next time.

Called by `Producer` and `Consumer`, one each. It looks after the cluster's metadata as well. No request has a
task of its own; one timer wakes all. Invariant: a core is never called from within itself: answers and
`wake` come in turns of the loop of their own.
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
    """Use: `start`; `wake` whenever a core may have something to do; `stop`."""

    def __init__(self, cluster: Cluster, network: Network, *, request_timeout_s: float) -> None:
        self._cluster = cluster
        self._network = network
        self._request_timeout_s = request_timeout_s
        self._loop = asyncio.get_running_loop()
        self._cores: Sequence[RequestManager] = ()
        self._timer: asyncio.TimerHandle | None = None
        self._woken: asyncio.Handle | None = None
        self._running = False
        self._heard = False
        self._metadata_seen: list[asyncio.Future[None]] = []
        self.turned_at = -math.inf
        """When the cores were last asked what there is to send."""

    def start(self, cores: Sequence[RequestManager]) -> None:
        self._cores = cores
        self._running = True
        self.wake()

    def stop(self) -> None:
        """No core is called after this."""
        self._running = False
        for handle in (self._timer, self._woken):
            if handle is not None:
                handle.cancel()
        self._timer = self._woken = None
        self._tell_of_metadata()

    def wake(self) -> None:
        """Poll all cores in the next turn of the loop."""
        if self._woken is None and self._running:
            self._woken = self._loop.call_soon(self._turn)

    async def metadata(self, timeout_s: float) -> None:
        """Returns after the next answer of any kind to a Metadata request. Raises TimeoutError."""
        seen: asyncio.Future[None] = self._loop.create_future()
        self._metadata_seen.append(seen)
        self.wake()
        async with asyncio.timeout(timeout_s):
            await seen

    def _turn(self) -> None:
        self._woken = None
        self.turned_at = now = self._loop.time()
        self._ask_metadata(now)
        for core in self._cores:
            for unsent in core.poll(now):
                self._network.send(unsent, partial(self._on_response, core, unsent.tag))
        if self._heard:
            # Not before the cores have taken it in: who waited for it would be told to wait again.
            self._heard = False
            self._tell_of_metadata()
        self._sleep(now)

    def _sleep(self, now: float) -> None:
        at = max(self._cluster.next_time(now), self._network.any_time(now))
        for core in self._cores:
            at = min(at, core.next_time(now))
        timer = self._timer
        if timer is not None:
            if timer.when() == at:
                return
            timer.cancel()
            self._timer = None
        if at < math.inf and self._woken is None and self._running:
            self._timer = self._loop.call_at(at, self._rung)

    def _rung(self) -> None:
        self._timer = None
        self.wake()

    def _on_response(self, core: RequestManager, tag: Any, response: Any) -> None:
        if self._running:
            core.on_response(tag, response, self._loop.time())
            self.wake()

    def _ask_metadata(self, now: float) -> None:
        if now < self._network.any_time(now):
            return
        request = self._cluster.request(now)
        if request is not None:
            asked = UnsentRequest(ANY_NODE, request, MetadataRequest, self._request_timeout_s, keeps=True)
            self._network.send(asked, self._take_metadata)

    def _take_metadata(self, response: Any) -> None:
        now = self._loop.time()
        if isinstance(response, BaseException):
            log.info("asking for metadata: %s", response)
            self._cluster.failed(now, response if isinstance(response, KafkaError) else None)
        else:
            self._cluster.take(response, now)
        self._heard = True
        self.wake()

    def _tell_of_metadata(self) -> None:
        seen, self._metadata_seen = self._metadata_seen, []
        for future in seen:
            resolve(future)

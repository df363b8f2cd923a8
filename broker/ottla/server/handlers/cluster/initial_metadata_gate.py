"""Holds requests about the cluster between a broker's start and the controller's first UpdateMetadata.

Used for the routes that describe the cluster, and by the broker's start. Kafka responds without brokers and
topics meanwhile. librdkafka treats UNKNOWN_TOPIC_OR_PARTITION for a topic that it knows as permanent, and
drops the records that are queued for it. So if the controller has sent nothing within
INITIAL_METADATA_TIMEOUT_S, the broker reads the cluster from the metadata store, and again every
STORE_READ_INTERVAL_S until the controller sends it. While neither is available, the requests wait, and
clients time out and try another broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import cast

from ottla.controller import loading, requests
from ottla.controller.context import ControllerContext
from ottla.metadata import znodes
from ottla.metadata.cache import MetadataCache
from ottla.metadata.store import MetadataStore, StoreError
from ottla.protocol.messages import UpdateMetadataRequest
from ottla.server.dispatch.dispatcher import Request, Route, SyncHandler

log = logging.getLogger(__name__)

INITIAL_METADATA_TIMEOUT_S = 3.0
STORE_READ_INTERVAL_S = 5.0
_RETRY_DELAY_S = 1.0
_NO_CONTROLLER = -1

ReadCluster = Callable[[], Awaitable[UpdateMetadataRequest]]


async def read_cluster(store: MetadataStore) -> UpdateMetadataRequest:
    """The UpdateMetadata request that a controller would send to a new broker. Raises StoreError,
    InvalidNode."""
    elected = await store.get(znodes.CONTROLLER)
    controller_id = znodes.decode_controller(elected[0]) if elected else _NO_CONTROLLER
    state = ControllerContext(controller_id, 0)
    await loading.load(store, state)
    return requests.full_update_metadata(state)


class InitialMetadataGate:
    """Holds requests until the metadata cache has a cluster."""

    def __init__(self, cache: MetadataCache, read: ReadCluster) -> None:
        self._waiting: list[tuple[Request, Callable[[Request], None]]] = []
        self._cache = cache
        self._read = read
        self._from_controller = asyncio.Event()
        """Set once the controller has sent metadata."""
        self.opened = asyncio.Event()
        """Set once the cache has metadata, of the controller or of the store."""
        cache.on_update.append(self._updated)

    def hold(self, route: Route) -> Route:
        """The route, with requests held until the gate is open."""
        handle = cast(SyncHandler, route.handle)

        def handle_when_open(request: Request) -> None:
            if not self.wait(request, handle):
                handle(request)

        return route.handled_by(handle_when_open)

    def wait(self, request: Request, then: Callable[[Request], None]) -> bool:
        """Hold `request` if the gate is closed, and call `then` with it when it opens; whether it is held."""
        if self.opened.is_set():
            return False
        self._waiting.append((request, then))
        return True

    async def run(self) -> None:
        """From INITIAL_METADATA_TIMEOUT_S on, read the cluster from the store until the controller sends
        it."""
        delay_s = INITIAL_METADATA_TIMEOUT_S
        while not await self._controller_responded(delay_s):
            delay_s = _RETRY_DELAY_S
            try:
                view = await self._read()
            except (StoreError, znodes.InvalidNode) as error:
                log.warning("The controller has not sent metadata, and the store is unavailable: %s", error)
                continue
            if not self._from_controller.is_set():
                if not self.opened.is_set():
                    log.warning("The controller has not sent metadata yet: reading it from the store")
                self._cache.load_initial(view)
                delay_s = STORE_READ_INTERVAL_S

    async def _controller_responded(self, timeout_s: float) -> bool:
        try:
            await asyncio.wait_for(self._from_controller.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def _updated(self) -> None:
        """The metadata cache was updated: open the gate and handle the held requests."""
        if not self._cache.is_initial:
            self._from_controller.set()
        if self.opened.is_set():
            return
        self.opened.set()
        waiting, self._waiting = self._waiting, []
        for request, then in waiting:
            if request.abandoned:
                continue
            try:
                then(request)
            except Exception as e:
                request.fail(e)

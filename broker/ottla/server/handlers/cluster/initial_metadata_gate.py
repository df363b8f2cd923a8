"""Between a broker's start and the controller's first UpdateMetadata, requests about the cluster wait.

Called with the routes that describe the cluster, and by the broker's start. Kafka answers with no brokers and
no topics meanwhile. librdkafka treats UNKNOWN_TOPIC_OR_PARTITION for a topic that it knows as permanent, and
drops the records that are queued for it. So when the controller has sent nothing within
INITIAL_METADATA_TIMEOUT_S, the broker reads the cluster from the metadata store, again every
STORE_READ_INTERVAL_S until the controller sends it. While neither answers, the requests wait, and clients
time out and ask another broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import cast

from ottla.controller import loading, requests
from ottla.controller.state import ClusterState
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
    """What a controller would tell a broker that has just started. Raises StoreError, InvalidNode."""
    elected = await store.get(znodes.CONTROLLER)
    controller_id = znodes.decode_controller(elected[0]) if elected else _NO_CONTROLLER
    state = ClusterState(controller_id, 0)
    await loading.load(store, state)
    return requests.whole_metadata(state)


class InitialMetadataGate:
    def __init__(self, cache: MetadataCache, read: ReadCluster) -> None:
        self._waiting: list[tuple[Request, Callable[[Request], None]]] = []
        self._cache = cache
        self._read = read
        self._told = asyncio.Event()
        """Set once the controller has spoken."""
        self.reached = asyncio.Event()
        """Set once the cluster is known."""
        cache.on_update.append(self._updated)

    def hold(self, route: Route) -> Route:
        """The route, for requests that may come too early."""
        handle = cast(SyncHandler, route.handle)

        def once_known(request: Request) -> None:
            if not self.wait(request, handle):
                handle(request)

        return route.handled_by(once_known)

    def wait(self, request: Request, then: Callable[[Request], None]) -> bool:
        """Keep `request` for later, if it is too early to answer it."""
        if self.reached.is_set():
            return False
        self._waiting.append((request, then))
        return True

    async def run(self) -> None:
        """Stand in for the controller until it has spoken: from INITIAL_METADATA_TIMEOUT_S after the call
        on."""
        delay_s = INITIAL_METADATA_TIMEOUT_S
        while not await self._told_within(delay_s):
            delay_s = _RETRY_DELAY_S
            try:
                view = await self._read()
            except (StoreError, znodes.InvalidNode) as error:
                log.warning("The controller has not sent metadata, and the store cannot be read: %s", error)
                continue
            if not self._told.is_set():
                if not self.reached.is_set():
                    log.warning("The controller has not sent metadata yet: it is read from the store")
                self._cache.stand_in(view)
                delay_s = STORE_READ_INTERVAL_S

    async def _told_within(self, timeout_s: float) -> bool:
        try:
            await asyncio.wait_for(self._told.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def _updated(self) -> None:
        """The metadata cache holds a cluster: answer the requests that wait, and let no other wait."""
        if not self._cache.is_stand_in:
            self._told.set()
        if self.reached.is_set():
            return
        self.reached.set()
        waiting, self._waiting = self._waiting, []
        for request, then in waiting:
            if request.abandoned:
                continue
            try:
                then(request)
            except Exception as e:
                request.fail(e)

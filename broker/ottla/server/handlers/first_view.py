"""The moment between a broker's start and the controller's first UpdateMetadata: who asks meanwhile, waits.

Called with the routes that tell of the cluster, and by the broker's start. Kafka answers with no brokers
then, which some clients take badly. Nobody waits longer than FIRST_VIEW_TIMEOUT_S: with no controller to be
had, an answer that names no broker is the truth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from ottla.metadata.cache import MetadataCache
from ottla.server.dispatch import Request, Route, SyncHandler

FIRST_VIEW_TIMEOUT_S = 3.0


class FirstView:
    def __init__(self, cache: MetadataCache, loop: asyncio.AbstractEventLoop) -> None:
        self._waiting: list[tuple[Request, Callable[[Request], None]]] = []
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self.reached = asyncio.Event()
        """Set once the cluster is known, or it was waited for long enough."""
        cache.on_update.append(self.release)

    def hold(self, route: Route) -> Route:
        """The route, for those who may have come too early."""
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
        if self._timer is None:
            self._timer = self._loop.call_later(FIRST_VIEW_TIMEOUT_S, self.release)
        return True

    def release(self) -> None:
        """Answer everyone, and let nobody wait any more."""
        if self.reached.is_set():
            return
        self.reached.set()
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, []
        for request, then in waiting:
            if request.abandoned:
                continue
            try:
                then(request)
            except Exception as e:
                request.fail(e)
